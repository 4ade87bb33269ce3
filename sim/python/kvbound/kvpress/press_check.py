"""kvbound.kvpress.check: a press of kvpress against its paper's definition, and a name for each difference."""
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kvbound.checks import check_merge
from kvbound.kvpress.kept_sets import entries_kept, kept_set
from kvbound.kvpress.methods import method_of
from kvbound.kvpress.prompt import pressed_prompt


class Difference(NamedTuple):
    """What a press does otherwise than its paper, and what that alone changes of what the paper's definition keeps."""

    option: str
    paper: Any
    press: Any
    text: str
    entries: int  # kept otherwise, in all layers and KV heads
    overlap: float  # |both| / |larger| of the kept sets, the mean over the KV heads

    def __str__(self):
        return f"{self.entries:9}  {self.overlap:7.1%}  {self.text}"


class Unexplained(NamedTuple):
    """Entries of one KV head that no variant explains, against the closest one, near ties apart."""

    layer: int
    kv_head: int
    press_alone: list[int]  # positions
    variant_alone: list[int]


@dataclass(frozen=True, eq=False)
class PressCheck:
    """What kvbound.kvpress.check found. It prints as a table, and is true if the press keeps what its paper's definition does.

    policy        kvbound's, of the definition; None: it has none, and the definition is kvbound.kvpress.ranking's
    layers        the model's numbers of those that were compared
    kept          [layers, num_kv_heads, n] of bool: what the press keeps; expected: what the definition keeps
    by_head       [layers, num_kv_heads]: entries that they keep otherwise, near ties apart
    ok            whether all agree with the definition, but for near ties
    differences   that together reproduce the press, or come closest to it; none of them needless
    near_ties     entries in which it differs from what they reproduce, by rounding
    unexplained   entries that they do not reproduce
    """

    press: str
    policy: str | None
    compression_ratio: float
    layers: list[int]
    kept: np.ndarray
    expected: np.ndarray
    by_head: np.ndarray
    ok: bool
    differences: list[Difference]
    near_ties: int
    unexplained: list[Unexplained]

    def __bool__(self):
        return self.ok

    @property
    def entries(self):
        """How many entries are kept otherwise than the definition says, near ties apart."""
        return int(self.by_head.sum())

    @property
    def overlap(self):
        """|both| / |larger| of the kept sets of press and definition, the mean over the KV heads."""
        return float(_overlap(self.kept, self.expected).mean())

    def __str__(self):
        layers, heads, n = self.kept.shape
        lines = [f"{self.press}, compression_ratio {self.compression_ratio:g}, {n} tokens, {layers} layers of {heads} KV heads,",
                 f"against {self.policy or 'its paper'}: "
                 + ("agrees" if self.ok else f"{self.entries} entries differ, overlap {self.overlap:.1%}")]
        if self.differences:
            lines += ["  entries  overlap  each alone", *map(str, self.differences)]
        if self.unexplained:
            first = self.unexplained[0]
            lines.append(f"unexplained in {len(self.unexplained)} KV heads, the first: layer {first.layer}, KV head "
                         f"{first.kv_head}, {len(first.press_alone)} entries of the press alone, {len(first.variant_alone)} of "
                         "the closest variant")
        elif self.differences:
            lines.append("together they reproduce every kept set" + ("" if self.near_ties else " exactly"))
        if self.near_ties:
            lines.append(f"{self.near_ties} near ties: entries that rounding could put on either side")
        return "\n".join(lines)


def _overlap(one, other):
    return (one & other).sum(axis=-1) / np.maximum(one.sum(axis=-1), other.sum(axis=-1))


def _alone(one, other, near=False):
    """How many entries are kept otherwise, [...], of kept sets [..., n] of bool; of sets of unequal size, of the larger."""
    differs = (one != other) & ~np.asarray(near)
    return np.maximum((differs & one).sum(axis=-1), (differs & other).sum(axis=-1))


class _Comparison:
    """The layers of a prompt, and how well variants of a method reproduce what a press kept of them."""

    def __init__(self, layers, method, compression_ratio):
        self.layers, self.method, self.compression_ratio = layers, method, compression_ratio
        self.paper = {option.name: option.paper for option in method.options}
        self.definition, self.near = self.variant({})

    def variant(self, options):
        """(kept, near) of kept_set, of all layers."""
        found = [kept_set(layer, self.method.rank, self.compression_ratio, self.paper | options) for layer in self.layers]
        return tuple(np.stack(parts) for parts in zip(*found))

    def mismatch(self, options):
        """(entries that a variant keeps otherwise than the press, near ties apart, near ties), of all layers."""
        beyond = ties = 0
        for layer in self.layers:
            kept, near = kept_set(layer, self.method.rank, self.compression_ratio, self.paper | options)
            wrong = int(_alone(layer.kept, kept, near).sum()) or abs(int(layer.kept.sum()) - int(kept.sum()))
            beyond, ties = beyond + wrong, ties + int(_alone(layer.kept, kept).sum()) - wrong
        return beyond, ties

    def agrees(self, row, layer):
        """Whether a layer, the row-th, is kept as the definition keeps it: for kvbound's policies, by derived bounds."""
        if self.method.policy is None:
            return not ((layer.kept != self.definition[row]) & ~self.near[row]).any()
        positions = [np.flatnonzero(kept) for kept in layer.kept]
        return check_merge(np.concatenate(positions), np.cumsum([0, *map(len, positions)]), layer.queries[-128:], layer.keys,
                           layer.values, layer.projection, policy=self.method.policy, sm_scale=layer.sm_scale,
                           budget=entries_kept(len(layer.keys), self.compression_ratio, "exactly")).ok

    def closest(self):
        """The options of the variant that keeps what the press keeps, or the most of it, none of them needless.

        What the press' code is known to do, then one option after the other is set so that the fewest entries differ.
        """
        options = {option.name: option.press for option in self.method.options}
        left = self.mismatch(options)
        while left[0]:
            tried = [options | {option.name: value} for option in self.method.options
                     for value in dict.fromkeys((option.paper, option.press, *option.others)) if value != options[option.name]]
            found, best = min(((self.mismatch(one), index) for index, one in enumerate(tried)))
            if found >= left:
                break
            options, left = tried[best], found
        for name, value in self.paper.items():
            without = options | {name: value}
            if options[name] != value and (found := self.mismatch(without)) <= left:
                options, left = without, found
        return options

    def difference(self, option, value):
        kept, _ = self.variant({option.name: value})
        return Difference(option.name, option.paper, value, option.text.format(press=value, paper=option.paper),
                          int(_alone(kept, self.definition).sum()), float(_overlap(kept, self.definition).mean()))

    def unexplained(self, options):
        kept, near = self.variant(options)
        found = []
        for layer, variant, close in zip(self.layers, kept, near):
            differs = (layer.kept != variant) & ~close
            found += [Unexplained(layer.index, head, np.flatnonzero(differs[head] & layer.kept[head]).tolist(),
                                  np.flatnonzero(differs[head] & variant[head]).tolist())
                      for head in np.flatnonzero(differs.any(axis=1)).tolist()]
        return found


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

    returns  PressCheck; of layers with a sliding window or without attention a warning says that they are left out
    raises   InvalidInput for a press that is not known, or a model or prompt that record_hf refuses, too; InvalidOption for a
             budget below what is always kept; ImportError without kvpress and transformers
    """
    method, ratio = method_of(press), press.compression_ratio
    named = {option.name: option for option in method.options}
    future = max(named["future"].paper, named["future"].press) if "future" in named else 0
    layers = pressed_prompt(press, model, ids, future_positions=future, device=device)
    comparison = _Comparison(layers, method, ratio)
    ok = all(comparison.agrees(row, layer) for row, layer in enumerate(layers))
    options = comparison.paper if ok else comparison.closest()
    differences = [comparison.difference(option, options[option.name]) for option in method.options
                   if options[option.name] != option.paper]
    kept = np.stack([layer.kept for layer in layers])
    return PressCheck(_name(press), method.policy, ratio, [layer.index for layer in layers], kept, comparison.definition,
                      _alone(kept, comparison.definition, comparison.near), ok, differences, comparison.mismatch(options)[1],
                      comparison.unexplained(options))
