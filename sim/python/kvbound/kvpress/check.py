"""kvbound.kvpress.check: a press of kvpress against its paper's definition, and a name for each difference."""
import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kvbound.checks import check_merge
from kvbound.kvpress.kept_sets import entries_kept, kept_set
from kvbound.kvpress.methods import Method, method_of
from kvbound.kvpress.prompt import pressed_prompt

MOST_VARIED = 2  # options that are set otherwise than the press' code is known to, at the same time


class Difference(NamedTuple):
    """What a press does otherwise than its paper, and what that alone changes of what the paper's definition keeps."""

    option: str
    paper: Any
    press: Any
    text: str
    entries: int  # of what the definition keeps, evicted; or the other way round, if those are more
    overlap: float  # the mean of |both| / |larger| over the KV heads


class Unexplained(NamedTuple):
    """Entries of one KV head that no variant explains, against the closest one."""

    layer: int
    kv_head: int
    press_alone: list[int]  # positions
    variant_alone: list[int]


@dataclass(frozen=True)
class PressCheck:
    """What kvbound.kvpress.check found. It prints as a table, and is true if the press keeps what its paper's definition does."""

    press: str
    policy: str | None  # of kvbound, the paper's definition; None: a definition of kvbound.kvpress.ranking alone
    tokens: int
    compression_ratio: float
    ok: bool  # all layers agree with the definition, but for near ties
    by_head: np.ndarray  # [layers, num_kv_heads]: entries that the press and the definition keep otherwise
    overlap: float
    near_ties: int  # entries that differ from the variant that reproduces the press, by rounding
    differences: list[Difference]
    unexplained: list[Unexplained]

    def __bool__(self):
        return self.ok

    @property
    def entries(self):
        """How many entries are kept otherwise than the definition says."""
        return int(self.by_head.sum())

    def __str__(self):
        layers, heads = self.by_head.shape
        head = f"{self.press}, {self.tokens} tokens, compression_ratio {self.compression_ratio:g}, {layers} layers of {heads} KV heads"
        if self.ok:
            return f"{head}: agrees with {self.policy or 'its paper'}"
        lines = [head, f"against {self.policy or 'its paper'}: {self.entries} entries differ, overlap {self.overlap:.1%}"]
        if self.differences:
            lines.append(f"{'entries':>9}  overlap  each alone")
            lines += [f"{one.entries:9}  {one.overlap:7.1%}  {one.text}" for one in self.differences]
        if self.unexplained:
            count = sum(max(len(one.press_alone), len(one.variant_alone)) for one in self.unexplained)
            lines.append(f"unexplained: {count} entries in {len(self.unexplained)} KV heads; the first: layer "
                         f"{self.unexplained[0].layer}, KV head {self.unexplained[0].kv_head}")
        else:
            ties = f"; {self.near_ties} entries are near ties" if self.near_ties else ""
            lines.append(f"together they reproduce every kept set{' exactly' if not ties else ''}{ties}")
        return "\n".join(lines)


class _Comparison:
    """The layers of a prompt, and how well variants of a method reproduce what a press kept of them."""

    def __init__(self, layers, method, compression_ratio):
        self.layers, self.method, self.compression_ratio = layers, method, compression_ratio
        self.paper = {option.name: option.paper for option in method.options}

    def variant(self, options):
        """[(kept, near)] of every layer."""
        return [kept_set(layer, self.method.rank, self.compression_ratio, self.paper | options) for layer in self.layers]

    def unexplained(self, options):
        """[Unexplained] of a variant, and the number of near ties."""
        found, ties = [], 0
        for layer, (kept, near) in zip(self.layers, self.variant(options)):
            differs = layer.kept != kept
            explained = layer.kept.sum() == kept.sum() and not (differs & ~near).any()
            ties += int(differs.sum()) // 2 if explained else 0
            if not explained:
                found += [Unexplained(layer.index, head, np.flatnonzero(layer.kept[head] & ~kept[head]).tolist(),
                                      np.flatnonzero(kept[head] & ~layer.kept[head]).tolist())
                          for head in np.flatnonzero(differs.any(axis=1)).tolist()]
        return found, ties

    def reproducing(self):
        """The options that reproduce the press, none of which can be left out; if none do, the press' own ones."""
        own = {option.name: option.press for option in self.method.options}
        for varied in range(MOST_VARIED + 1):
            for chosen in itertools.combinations(self.method.options, varied):
                for values in itertools.product(*((option.paper, *option.others) for option in chosen)):
                    changes = {option.name: value for option, value in zip(chosen, values)}
                    if any(own[name] == value for name, value in changes.items()):
                        continue
                    if not self.unexplained(own | changes)[0]:
                        return self._without_needless(own | changes)
        return own

    def _without_needless(self, options):
        for name, value in self.paper.items():
            if options[name] != value and not self.unexplained(options | {name: value})[0]:
                options = options | {name: value}
        return options


def _changed(one, other):
    """(entries kept otherwise by [num_kv_heads], their overlap) of two kept sets [num_kv_heads, n] of bool."""
    alone = np.maximum((one & ~other).sum(axis=1), (other & ~one).sum(axis=1))
    return alone, (one & other).sum(axis=1) / np.maximum(one.sum(axis=1), other.sum(axis=1))


def _agrees(layer, method, compression_ratio):
    """Whether a layer's kept sets are those of kvbound's policy, but for near ties by derived bounds."""
    positions = [np.flatnonzero(row) for row in layer.kept]
    return check_merge(np.concatenate(positions), np.cumsum([0, *map(len, positions)]), layer.queries[-128:], layer.keys, layer.values,
                       layer.projection, policy=method.policy, sm_scale=layer.sm_scale,
                       budget=entries_kept(len(layer.keys), compression_ratio, "exactly")).ok


def _name(press):
    inner = getattr(press, "press", None)
    return type(press).__name__ + (f"({_name(inner)})" if inner is not None else "")


def check(press, model, ids, *, device=None):
    """Holds what a press of kvpress keeps of a prompt's cache against its paper's definition, and names each difference.

    The press compresses a prompt. For each layer, what it kept is compared with what kvbound's policy of the paper keeps of the
    same queries, keys, values and W^O, by kvbound.check_merge. Where it differs, options in which press and paper may differ
    (window, pooling, budgets, products, ...) are tried until a variant, stated in double precision, keeps exactly the same
    entries; each option without which it would not is a Difference. What no variant reproduces is unexplained.

    press    SnapKVPress, TOVAPress, StreamingLLMPress, KnormPress or ExpectedAttentionPress, or CriticalKVPress, AdaKVPress or
             CriticalAdaKVPress of one of them
    model    a Hugging Face directory, a name of the hub, or a causal language model of transformers that is loaded in float32
    ids      [tokens] integers: the prompt
    device   where torch runs a model that is loaded here (default: "cpu")

    returns  PressCheck
    raises   InvalidInput for a press that is not known, or a model or prompt that record_hf refuses, too; InvalidOption for a
             budget below what is always kept; ImportError without kvpress and transformers
    """
    method = method_of(press)
    named = {option.name: option for option in method.options}
    future = max(named["future"].paper, named["future"].press) if "future" in named else 0
    layers = pressed_prompt(press, model, ids, future_positions=future, device=device)
    return _compared(_name(press), layers, method, press.compression_ratio)


def _compared(name, layers, method: Method, compression_ratio):
    comparison = _Comparison(layers, method, compression_ratio)
    definition = comparison.variant({})
    changed = [_changed(layer.kept, kept) for layer, (kept, _) in zip(layers, definition)]
    by_head, overlap = np.stack([alone for alone, _ in changed]), float(np.mean([both for _, both in changed]))
    if method.policy is not None:
        ok = all(_agrees(layer, method, compression_ratio) for layer in layers)
    else:
        ok = not comparison.unexplained({})[0]
    if ok:
        return PressCheck(name, method.policy, len(layers[0].keys), compression_ratio, True, by_head, overlap, int(by_head.sum()), [], [])
    options = comparison.reproducing()
    unexplained, ties = comparison.unexplained(options)
    differences = []
    for option in method.options:
        value = options[option.name]
        if value != option.paper:
            alone = [_changed(kept, paper)
                     for (kept, _), (paper, _) in zip(comparison.variant({option.name: value}), definition)]
            differences.append(Difference(option.name, option.paper, value, option.text.format(press=value, paper=option.paper),
                                          int(sum(entries.sum() for entries, _ in alone)),
                                          float(np.mean([both for _, both in alone]))))
    return PressCheck(name, method.policy, len(layers[0].keys), compression_ratio, False, by_head, overlap, ties, differences,
                      unexplained)
