"""Validate a kernel of the kind that Triton's tutorials write: attention of one decode step, split over the cache.

The kernel is NumPy here, with one program for each part of the cache, so that this runs everywhere. A real one takes its
place with .cpu() around its inputs and outputs.
"""
# %% The kernel
import numpy as np
from kvbound import check_attention, probe
from kvbound.testing import assert_attention, decode_case, has_teeth

SPLITS, BLOCK = 4, 32


def program(q, k, v):
    """A part's output times its sum, its sum, and the largest logit. Tiles of BLOCK tokens, weights in F16, sums in F32."""
    largest, total, out = np.full(len(q), -np.inf, "f4"), np.zeros(len(q), "f4"), np.zeros(q.shape, "f4")
    for begin in range(0, len(k), BLOCK):
        tile = slice(begin, begin + BLOCK)
        logits = (q * k[tile]).sum(2, dtype="f4") / np.sqrt(np.float32(q.shape[1]))
        before, largest = largest, np.maximum(largest, logits.max(0))
        weights = np.exp(logits - largest)
        rescaled = np.exp(before - largest)
        total = total * rescaled + weights.sum(0)
        out = out * rescaled[:, None] + (weights.astype("f2")[..., None] * v[tile].astype("f4")).sum(0)
    return out, total, largest


def flash_decode(q, k, v):
    group = q.shape[1] // k.shape[2]
    k, v = (np.repeat(x[0], group, axis=1) for x in (k, v))
    parts = [program(q[0].astype("f4"), k[run].astype("f4"), v[run]) for run in np.array_split(np.arange(len(k)), SPLITS)]
    outs, totals, largest = (np.stack(x) for x in zip(*parts))
    shares = np.exp(largest - largest.max(0))
    return ((shares[..., None] * outs).sum(0) / (shares * totals).sum(0)[:, None])[None].astype(q.dtype)


# %% Its arithmetic, found by probing: the order of its sums, and what weights are rounded to
heads = {"num_qo_heads": 8, "num_kv_heads": 2}
found = probe.accumulation_of_attention(flash_decode, tokens=256, head_dim=64, **heads, dtype=np.float16)
print(found)

# %% Every kind of attention that kernels get wrong
for kind in ("sink", "needle", "flat", "power-law", "overflow", "tied"):
    q, k, v = decode_case(kind, tokens=256, head_dim=64, **heads, dtype=np.float16)
    out = flash_decode(q, k, v)
    result = assert_attention(out, q, k, v, **found.declared)
    in_any_order = check_attention(out, q, k, v, weights=found.weights)
    print(f"{kind:10} {result.verdict}; the gain is 1 within {result.gain.band:.2%}, {in_any_order.gain.band:.2%} in any order")

# %% And proof that the check would notice
print("notices zeros, a gain of 0.72, swapped heads, a NaN:",
      has_teeth(lambda x: check_attention(x, q, k, v, **found.declared), out))
