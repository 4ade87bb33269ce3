"""Assertions for tests of kernels, inputs that break them, and proof that a check would notice."""
import numpy as np

from kvbound import pytest_plugin
from kvbound.checks import check_attention, check_topk
from kvbound.result import CheckResult


def _require(result):
    pytest_plugin.collect(result)
    if not result.ok:
        raise AssertionError(result.message)
    return result


def assert_attention(out, q, k, v, **options) -> CheckResult:
    """check_attention, with one line as AssertionError unless the outputs agree, with evidence. Returns the CheckResult."""
    __tracebackhide__ = True  # of pytest: the failing line is the caller's
    return _require(check_attention(out, q, k, v, **options))


def assert_topk(indices, scores, k=None, **options) -> CheckResult:
    """check_topk, likewise."""
    __tracebackhide__ = True
    return _require(check_topk(indices, scores, k, **options))


def decode_case(kind="sink", *, tokens=1024, num_qo_heads=8, num_kv_heads=2, head_dim=64, batch=1, dtype=np.float32, seed=1):
    """(q, k, v) of a decode step whose attention has a shape that kernels get wrong.

    kind     "sink": the first 4 tokens take most of the weight, and have tiny values; "needle": 4 positions hold nearly
             all of it; "flat": nearly equal weights; "power-law": they fall like a power of their rank; "overflow": logits
             near 100, which overflow exp in single precision; "tied": sets of equal keys
    returns  q [batch, num_qo_heads, head_dim]; k, v [batch, tokens, num_kv_heads, head_dim], of `dtype`; the same for a seed
    """
    random = np.random.default_rng(seed)
    direction = random.standard_normal((batch, num_kv_heads, head_dim))
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    logits = _logits(kind, random, (batch, tokens, num_kv_heads))
    noise = random.standard_normal((batch, tokens, num_kv_heads, head_dim)) / 8
    noise -= (noise * direction[:, None]).sum(-1, keepdims=True) * direction[:, None]
    k = logits[..., None] * direction[:, None] + noise
    v = random.standard_normal((batch, tokens, num_kv_heads, head_dim))
    if kind == "sink":
        v[:, :4] /= 50
    if kind == "tied":
        k = np.repeat(k[:, ::4], 4, axis=1)[:, :tokens]
    group = num_qo_heads // num_kv_heads
    q = np.sqrt(head_dim) * np.repeat(direction, group, axis=1) + random.standard_normal((batch, num_qo_heads, head_dim)) / 8
    return tuple(np.ascontiguousarray(x.astype(dtype)) for x in (q, k, v))


def _logits(kind, random, shape):
    tokens = shape[1]
    position = np.arange(tokens)[None, :, None]
    jitter = random.standard_normal(shape) / 20
    if kind in ("power-law", "tied"):
        rank = 1 + np.argsort(random.random(shape), axis=1)
        return 1.2 * np.log(tokens / rank) + jitter
    if kind == "sink":
        return np.where(position < 4, 1.2 * np.log(tokens) + 1.5 - position, jitter)
    if kind == "needle":
        needles = (position % max(tokens // 4, 1) == tokens // 8).astype(float)
        return needles * (1.3 * np.log(tokens) + 2) + jitter
    if kind == "overflow":
        return np.where(position == tokens // 2, 100.0, 95 + jitter)
    if kind == "flat":
        return jitter
    raise ValueError(f"kind: is {kind!r}; expected sink, needle, flat, power-law, overflow or tied")


def has_teeth(check, output, *, head_axis=-2):
    """Proves that a check notices faults: that it accepts `output`, and none of what has been done to copies of it.

        zeros; a gain of 0.72; two heads exchanged, where there are two that differ; one NaN

    check    called with an array as `output`; what it returns is true where it accepts, as a CheckResult does; an
             AssertionError is a refusal, too
    returns  True
    raises   AssertionError that names what was accepted, or that the output itself was refused
    """
    output = np.asarray(output)
    faults = {"zeros": np.zeros_like(output), "a gain of 0.72": (output * 0.72).astype(output.dtype)}
    swapped = np.flip(output, axis=head_axis)
    if not np.array_equal(swapped, output):
        faults["swapped heads"] = np.ascontiguousarray(swapped)
    broken = output.copy()
    broken.flat[broken.size // 2] = np.nan
    faults["one NaN"] = broken

    def accepts(array):
        try:
            return bool(check(array))
        except AssertionError:
            return False

    if not accepts(output):
        raise AssertionError("the check refuses the output itself")
    for fault, array in faults.items():
        if accepts(array):
            raise AssertionError(f"the check accepts {fault}")
    return True
