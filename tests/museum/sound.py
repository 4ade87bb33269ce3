"""Legal kernels, each with its arithmetic declared: none of them may be called wrong.

What a kernel is free to do is drawn for each: types, tiles, parts of the cache and the order of both, exp or exp2, where weights
are rounded and by what they are divided, layouts, lengths, how ties are settled.
"""
from dataclasses import dataclass

import numpy as np

from kernels import decode, prefill, stored
from support.kernel_files import KernelFile
from support.kernels import Kernel

HEADS = (1, 1), (4, 4), (4, 2), (8, 2), (8, 1), (6, 3)
LENGTHS = 1, 2, 5, 16, 31, 33, 64, 100, 129, 255, 300, 512, 777, 1024, 1500, 2048, 4096
HEAD_DIMS = 16, 32, 64, 72, 80, 96, 128, 256


@dataclass(frozen=True)
class Variant:
    name: str
    operation: str
    file: KernelFile


def variant(number):
    """The variant with this number, 0 or more: always the same. Of 20, 13 are of attention, 4 of top-k, 3 of compaction."""
    draws = np.random.default_rng([2026, number])
    kinds = 10 * [decode_variant] + 3 * [prefill_variant] + 4 * [topk_variant] + 3 * [compact_variant]
    return kinds[number * 7 % 20](draws, number)


def pick(draws, *choices):
    return choices[draws.integers(len(choices))]


# ---- attention

@dataclass
class Uneven(Kernel):
    """Parts have any sizes, and are merged in any order."""
    seed: int = 0

    def slices(self, tokens):
        draws = np.random.default_rng(self.seed)
        cuts = np.unique([0, *draws.integers(0, tokens + 1, self.splits - 1), tokens])
        return draws.permutation(np.array([slice(*ends) for ends in zip(cuts, cuts[1:])]))


def arithmetic(draws):
    """A kernel, and what it declares."""
    splits, tile = pick(draws, 1, 2, 3, 8), pick(draws, 16, 32, 64, 128, 256)
    weights = pick(draws, None, "BF16", "BF16", "F16")
    partials = pick(draws, None, None, "BF16", "F16") if splits > 1 else None
    divided_first = bool(draws.random() < 0.2)  # then all tokens of a part are one sum
    kernel = Uneven(weights=weights, partials=partials, splits=splits, tile=tile, base2=bool(draws.random() < 0.5),
                    online=bool(draws.random() < 0.7), rounded_sum=bool(draws.random() < 0.3), divided_first=divided_first,
                    seed=int(draws.integers(2**32)))
    declared = {"splits": splits, "tile": "any" if divided_first else pick(draws, tile, tile, "any")}
    return kernel, {**declared, **({"weights": weights} if weights else {}), **({"partials": partials} if partials else {})}


def drawn_logits(draws, q, k):
    """Keys for logits of some distribution: normal, wide, with a sink that takes most of the weight, or all equal."""
    kind = pick(draws, "normal", "normal", "wide", "sink", "equal")
    if kind == "wide":
        return kind, 4 * k
    if kind == "sink":
        k[0] = 3 * q.mean(axis=0).reshape(-1)[:k.shape[-1]]
    return kind, 0 * k if kind == "equal" else k


def decode_variant(draws, number):
    (query_heads, kv_heads), head_dim, batch = pick(draws, *HEADS), pick(draws, *HEAD_DIMS), pick(draws, 1, 2, 3)
    dtype, out_type = pick(draws, "BF16", "BF16", "F16", "F32"), pick(draws, "BF16", "F16", "F32")
    longest = pick(draws, *LENGTHS)
    lengths = [longest] + [int(draws.integers(1, longest + 1)) for _ in range(batch - 1)]
    value_dim = pick(draws, head_dim, head_dim, 64)
    kernel, declared = arithmetic(draws)
    q = stored(draws.standard_normal((batch, query_heads, head_dim)), dtype)
    kinds, keys, values = [], [], []
    for sequence, length in enumerate(lengths):
        kind, k = drawn_logits(draws, q[sequence], draws.standard_normal((length, kv_heads, head_dim)))
        kinds.append(kind)
        keys.append(stored(k, dtype))
        values.append(stored(draws.standard_normal((length, kv_heads, value_dim)), dtype))
    scale = pick(draws, None, None, 0.1)
    out, lse = decode(q, keys, values, scale, kernel)
    form, cache = layout(draws, dtype, keys, values)
    base = pick(draws, "e", "2")
    tensors = {"q": (dtype, q), "out": (out_type, out), **cache}
    if not kernel.rounded_sum:  # lse is that of the weights, not of what they were rounded to
        tensors["lse"] = "F32", lse / (np.log(2) if base == "2" else 1)
    options = {} if scale is None else {"sm_scale": scale}
    name = f"decode {form} {dtype} {lengths} tokens, heads {query_heads}/{kv_heads}, head_dim {head_dim}, {'/'.join(kinds)}"
    return Variant(f"{number}: {name}, {declared}", "attention",
                   KernelFile(tensors, **declared, **options, lse_base=base, **layout_options(form)))


def layout_options(form):
    return {"kv_layout": "HND"} if form.endswith("HND") else {}


def layout(draws, dtype, keys, values):
    """Sequences [n, G, d] in one of the usual forms of a file: (its name, tensors)."""
    form = pick(draws, "dense NHD", "dense HND", "ragged NHD", "ragged HND", "paged NHD", "paged HND")
    heads_first = form.endswith("HND")
    indptr, page_size, tensors = np.cumsum([0, *map(len, keys)]), pick(draws, 1, 16, 64), {}
    counts = [-(-len(k) // page_size) for k in keys]
    table = draws.permutation(sum(counts) + 2)
    for name, sequences in (("k", keys), ("v", values)):
        tail = sequences[0].shape[1:]
        if form.startswith("ragged"):
            cache = np.concatenate(sequences)
        elif form.startswith("dense"):
            cache = np.full((len(sequences), max(map(len, sequences)), *tail), 99, np.float32)
            for row, sequence in zip(cache, sequences):
                row[:len(sequence)] = sequence
        else:
            cache = np.full((len(table), page_size, *tail), 99, np.float32)
            for first, count, sequence in zip(np.cumsum([0, *counts]), counts, sequences):
                padded = np.full((count * page_size, *tail), 99, np.float32)
                padded[:len(sequence)] = sequence
                cache[table[first:first + count]] = padded.reshape(count, page_size, *tail)
        tensors[name] = dtype, cache.swapaxes(-3, -2) if heads_first else cache
    if form.startswith("dense"):
        tensors["lengths"] = "I32", np.diff(indptr)
    elif form.startswith("ragged"):
        tensors["kv_indptr"] = "I32", indptr
    else:
        tensors |= {"kv_indptr": ("I32", np.cumsum([0, *counts])), "kv_indices": ("I32", table),
                    "kv_last_page_len": ("I32", [(len(k) - 1) % page_size + 1 for k in keys])}
    return form, tensors


def prefill_variant(draws, number):
    (query_heads, kv_heads), head_dim, batch = pick(draws, *HEADS), pick(draws, *HEAD_DIMS), pick(draws, 1, 2, 3)
    dtype, out_type, longest = pick(draws, "BF16", "F16", "F32"), pick(draws, "BF16", "F16", "F32"), pick(draws, 1, 20, 130, 400)
    lengths = [int(draws.integers(1, longest + 1)) for _ in range(batch)]
    counts = [int(draws.integers(1, min(length, 6) + 1)) for length in lengths]
    window = pick(draws, None, None, 0, 15, 64)
    kernel, declared = arithmetic(draws)
    q = [stored(draws.standard_normal((count, query_heads, head_dim)), dtype) for count in counts]
    keys, values = ([stored(draws.standard_normal((length, kv_heads, head_dim)), dtype) for length in lengths] for _ in "kv")
    out = [prefill(*sequence, kernel=kernel, window=window)[0] for sequence in zip(q, keys, values)]
    form, cache = layout(draws, dtype, keys, values)
    tensors = {"q": (dtype, np.concatenate(q)), "out": (out_type, np.concatenate(out)),
               "qo_indptr": ("I32", np.cumsum([0, *counts])), **cache}
    options = {} if window is None else {"window_left": window}
    name = f"prefill {form} {dtype} {counts} of {lengths} tokens, heads {query_heads}/{kv_heads}, head_dim {head_dim}"
    return Variant(f"{number}: {name}, window {window}, {declared}", "attention",
                   KernelFile(tensors, causal="true", **declared, **options, **layout_options(form)))


# ---- selections

def topk_variant(draws, number):
    rows, n, k = int(draws.integers(1, 6)), pick(draws, 1, 50, 1000, 20000), pick(draws, 1, 7, 64, 512)
    dtype, kind = pick(draws, "F32", "BF16", "F16"), pick(draws, "normal", "ties", "zeros", "masked")
    scores = draws.standard_normal((rows, n))
    scores = {"normal": scores, "ties": np.round(scores, 1), "zeros": np.maximum(scores - 1, 0),
              "masked": np.where(draws.random((rows, n)) < 0.5, -np.inf, scores)}[kind]
    scores = stored(scores, dtype)
    lengths = [int(draws.integers(0, n + 1)) for _ in range(rows)] if draws.random() < 0.5 else [n] * rows
    error = pick(draws, 0, 0, 0.01)
    order = pick(draws, "any", "any", "descending") if not error else "any"
    indices = np.full((rows, k), -1)
    for row, length in enumerate(lengths):
        seen = scores[row, :length] + (draws.uniform(-0.99, 0.99, length) * error if error else 0)
        ranked = np.lexsort((draws.permutation(length), -seen))[:k]  # ties are settled at random
        indices[row, :len(ranked)] = ranked if order == "descending" else draws.permutation(ranked)
    tensors = {"scores": (dtype, scores), "indices": (pick(draws, "I32", "I64"), indices), "lengths": ("I32", lengths)}
    return Variant(f"{number}: topk {k} of {rows} x {n} {dtype} {kind}, lengths {lengths}, error {error}, {order}", "topk",
                   KernelFile(tensors, order=order, **({"score_error": error} if error else {})))


# ---- compaction

def compact_variant(draws, number):
    heads, n, head_dim = int(draws.integers(1, 5)), pick(draws, 1, 40, 700), pick(draws, 1, 16, 128)
    dtype, order, paged = pick(draws, "BF16", "F16", "F32"), pick(draws, "any", "kept", "ascending"), draws.random() < 0.5
    before = stored(draws.standard_normal((heads, n, head_dim)), dtype)
    kept = [draws.permutation(n)[:draws.integers(1, n + 1)] for _ in range(heads)]
    moved = {"any": [draws.permutation(rows) for rows in kept], "kept": kept,
             "ascending": [np.sort(rows) for rows in kept]}[order]
    rows = [before[head, positions] for head, positions in enumerate(moved)]
    tensors = {"before": (dtype, before), "kept": ("I64", np.concatenate(kept)),
               "kept_offsets": ("I64", np.cumsum([0, *map(len, kept)])), "after": (dtype, np.concatenate(rows))}
    options = {"order": order}
    if paged:
        page_size = pick(draws, 1, 4, 16)
        counts = [-(-len(head) // page_size) for head in rows]
        table = draws.permutation(sum(counts) + 2)
        after = np.full((len(table), page_size, head_dim), -7, np.float32)
        for first, count, head in zip(np.cumsum([0, *counts]), counts, rows):
            padded = np.full((count * page_size, head_dim), -7, np.float32)
            padded[:len(head)] = head
            after[table[first:first + count]] = padded.reshape(count, page_size, head_dim)
        tensors |= {"after": (dtype, after), "kv_indptr": ("I32", np.cumsum([0, *counts])), "kv_indices": ("I32", table),
                    "kv_last_page_len": ("I32", [(len(head) - 1) % page_size + 1 for head in rows])}
        options["poison"] = -7
    return Variant(f"{number}: compact {heads} x {n} x {head_dim} {dtype} {order}{' paged' if paged else ''}", "compact",
                   KernelFile(tensors, **options))
