"""Attention as GPU kernels compute it, in NumPy's single precision: parts of the cache, tiles, online softmax, 16-bit operands."""
from dataclasses import dataclass

import numpy as np

import independent.replay
from support.dumps import Dump
from support.kvbound_cli import STORAGE, encode


def rounded(array, dtype):
    """The array in single precision, each number rounded to this type; None: as it is."""
    if dtype is None:
        return array
    if dtype == "TF32":
        return ((array.view("<u4") + np.uint32(0xFFF) + (array.view("<u4") >> 13 & 1)) & np.uint32(0xFFFFE000)).view("<f4")
    raw = encode(array, dtype)
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").reshape(array.shape)
    return np.frombuffer(raw, STORAGE[dtype]).astype("<f4").reshape(array.shape)


@dataclass
class Kernel:
    """A kernel's arithmetic, and a fault: a factor of its logits or of its outputs."""

    weights: str = None         # the type that weights are rounded to before they multiply values
    partials: str = None        # the same of the outputs of the cache's parts
    stored: str = "F32"         # the same of outputs
    splits: int = 1
    tile: int = 64
    base2: bool = True          # exponentials to base 2
    online: bool = True         # a running maximum; otherwise that of all logits of the part
    rounded_sum: bool = False   # the sum of weights is that of the rounded ones
    divided_first: bool = False  # weights are divided by their sum before they are rounded
    products: str = None        # the type of both factors of each product
    logits: float = 1.0
    gain: float = 1.0

    def __call__(self, queries, keys, values, scale):
        """queries [rows, head_dim], keys and values [tokens, head_dim] -> [rows, head_dim]"""
        return self.attend(queries, keys, values, scale)[0]

    def attend(self, queries, keys, values, scale):
        """The same, and the natural logarithms of the sums of exponentials [rows]."""
        queries, keys, values = (rounded(np.ascontiguousarray(a, "<f4"), self.products) for a in (queries, keys, values))
        parts = [self.part(queries, keys[part], values[part], scale) for part in self.slices(len(keys))]
        if len(parts) > 1:
            parts = [(rounded(output, self.partials), maximum, total) for output, maximum, total in parts]
        output, maximum, total = self.merged(parts)
        sums = (maximum + np.log2(total)) * np.float32(np.log(2)) if self.base2 else maximum + np.log(total)
        return rounded((output * np.float32(self.gain)).astype("<f4"), self.stored), sums

    def slices(self, tokens):
        """Which of so many tokens each part of the cache has."""
        return [part for part in np.array_split(np.arange(tokens), self.splits) if len(part)]

    def merged(self, parts):
        """One part of several: each is (output, maximum, sum of weights)."""
        maximum = np.max([maximum for _, maximum, _ in parts], axis=0)
        shares = [self.exp(each - maximum) * total for _, each, total in parts]
        total = np.sum(shares, axis=0, dtype="<f4")
        return sum(output * (share / total)[:, None] for (output, _, _), share in zip(parts, shares)), maximum, total

    def exp(self, numbers):
        return np.exp2(numbers) if self.base2 else np.exp(numbers)

    def part(self, queries, keys, values, scale):
        """The output of one part of the cache, its maximum, and the sum of its weights."""
        factor = np.float32(scale * self.logits * (np.log2(np.e) if self.base2 else 1))
        rows = len(queries)
        logits = (queries @ keys.T) * factor
        maximum = np.full(rows, -np.inf, "<f4") if self.online else logits.max(axis=1)
        total, output = np.zeros(rows, "<f4"), np.zeros((rows, values.shape[1]), "<f4")
        if self.divided_first:
            weights = self.exp(logits - logits.max(axis=1)[:, None])
            total = weights.sum(axis=1)
            return rounded(weights / total[:, None], self.weights) @ values, logits.max(axis=1), total
        for first in range(0, len(keys), self.tile):
            tile = slice(first, first + self.tile)
            larger = np.maximum(maximum, logits[:, tile].max(axis=1))
            rescaling = self.exp(maximum - larger)
            weights = self.exp(logits[:, tile] - larger[:, None])
            operand = rounded(weights, self.weights or self.products)
            total = total * rescaling + (operand if self.rounded_sum else weights).sum(axis=1)
            output = output * rescaling[:, None] + operand @ values[tile]
            maximum = larger
        return output / total[:, None], maximum, total

    def dump(self, path, **declared):
        """A dump of this trace, with nothing evicted: what the kernel gives for the prompt's queries and for decode steps."""
        trace = independent.replay.Trace(path)
        storage = trace.tensors["layers.0.key"][0]
        declared = {"weights": self.weights, "partials": self.partials, "splits": str(self.splits) if self.splits > 1 else None,
                    **declared}
        dump = Dump({"format": "kvbound-dump", "version": "1", "policy": "snapkv:window=8", "budget": "100%",
                     "backend": "kernel", "storage": storage, "accumulate": "F32", "trace_sha256": trace.sha256,
                     **{name: text for name, text in declared.items() if text}}, {})
        for index in range(len([name for name in trace.tensors if name.endswith(".key")])):
            layer = trace.layer(index)
            rows = np.empty((trace.window_queries + trace.decode_tokens, trace.query_heads, trace.head_dim))
            for row in range(len(rows)):
                visible = trace.prompt_tokens - trace.window_queries + row + 1
                for group in range(trace.kv_heads):
                    heads = slice(group * trace.group, (group + 1) * trace.group)
                    rows[row, heads] = self(layer.query[heads, row], layer.key[group, :visible],
                                            layer.value[group, :visible], trace.scale)
            dump.tensors[f"layers.{index}.prompt_output"] = self.stored, rows[:trace.window_queries]
            dump.tensors[f"layers.{index}.output"] = self.stored, rows[trace.window_queries:]
        return dump
