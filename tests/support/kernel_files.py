"""Files for `kvbound check`: a kernel's inputs and results, computed by NumPy."""
import numpy as np

import independent.replay
from support.dumps import recompute
from support.kernels import Kernel
from support.kvbound_cli import TraceFile, encode


class KernelFile(TraceFile):
    """Tensors {name: (dtype, array)}, and metadata as keyword arguments; written as safetensors."""

    def __init__(self, tensors, **metadata):
        self.tensors, self.metadata = dict(tensors), {name: str(value) for name, value in metadata.items()}

    def changed(self, **tensors):
        """A copy in which some tensors have other arrays."""
        return KernelFile({**self.tensors, **{name: (self.tensors[name][0], array) for name, array in tensors.items()}},
                          **self.metadata)

    def with_tensor(self, name, dtype, array):
        return KernelFile({**self.tensors, name: (dtype, np.asarray(array))}, **self.metadata)

    def array(self, name):
        return np.array(self.tensors[name][1])


def rounded(array, dtype):
    """The numbers of an array rounded to a safetensors type, as float64."""
    if dtype == "BF16":
        return (np.frombuffer(encode(array, dtype), "<u2").astype("<u4") << 16).view("<f4").astype(float).reshape(np.shape(array))
    return np.asarray(array).astype({"F64": "f8", "F32": "f4", "F16": "f2"}[dtype]).astype(float)


def random_rows(shape, dtype, seed):
    return rounded(np.random.default_rng(seed).standard_normal(shape), dtype)


def softmax_attention(q, k, v, scale=None, visible=None, precision=np.float32, weights=None):
    """Outputs [rows, query_heads, value_dim] and log-sum-exps [rows, query_heads] of queries over one sequence.

    q        [rows, query_heads, head_dim]; k, v [tokens, kv_heads, .]
    visible  function of a row's number that gives the slice of tokens that it sees; all by default
    weights  the type that weights are rounded to before they multiply values
    """
    q, k, v = (np.asarray(array, precision) for array in (q, k, v))
    rows, query_heads, head_dim = q.shape
    group = query_heads // k.shape[1]
    scale = precision(1 / np.sqrt(head_dim) if scale is None else scale)
    out, lse = np.zeros((rows, query_heads, v.shape[2]), precision), np.full((rows, query_heads), -np.inf, precision)
    for i in range(rows):
        seen = visible(i) if visible else slice(None)
        for h in range(query_heads):
            logits = scale * (k[seen, h // group] @ q[i, h])
            if not len(logits):
                continue
            powers = np.exp(logits - logits.max())
            total = powers.sum(dtype=precision)
            factors = rounded(powers, weights).astype(precision) if weights else powers
            out[i, h] = (factors @ v[seen, h // group]) / total
            lse[i, h] = logits.max() + np.log(total)
    return out, lse


def decode(dtype="BF16", batch=3, tokens=70, query_heads=4, kv_heads=2, head_dim=16, value_dim=None, out="F32", **options):
    """A dense decode case, in single precision."""
    q = random_rows((batch, query_heads, head_dim), dtype, 1)
    k = random_rows((batch, tokens, kv_heads, head_dim), dtype, 2)
    v = random_rows((batch, tokens, kv_heads, value_dim or head_dim), dtype, 3)
    precision = np.float64 if dtype == "F64" else np.float32
    results = [softmax_attention(q[b:b + 1], k[b], v[b], options.get("sm_scale"), precision=precision) for b in range(batch)]
    return KernelFile({"q": (dtype, q), "k": (dtype, k), "v": (dtype, v),
                       "out": (out, np.concatenate([result[0] for result in results])),
                       "lse": ("F32", np.concatenate([result[1] for result in results]))}, **options)


def prefill(lengths, queries, dtype="F16", query_heads=4, kv_heads=2, head_dim=16, causal=True, window=None):
    """Ragged sequences whose last queries are given."""
    total, rows = sum(lengths), sum(queries)
    q = random_rows((rows, query_heads, head_dim), dtype, 4)
    k, v = (random_rows((total, kv_heads, head_dim), dtype, seed) for seed in (5, 6))
    kv_indptr, qo_indptr = np.cumsum([0, *lengths]), np.cumsum([0, *queries])
    out = []
    for b, (length, count) in enumerate(zip(lengths, queries)):
        def visible(i):
            position = length - count + i
            return slice(0 if window is None else max(0, position - window), position + 1 if causal else length)
        part = slice(kv_indptr[b], kv_indptr[b + 1])
        out.append(softmax_attention(q[qo_indptr[b]:qo_indptr[b + 1]], k[part], v[part], visible=visible)[0])
    return KernelFile({"q": (dtype, q), "k": (dtype, k), "v": (dtype, v), "out": ("F32", np.concatenate(out)),
                       "qo_indptr": ("I32", qo_indptr), "kv_indptr": ("I32", kv_indptr)},
                      causal="true" if causal else "false", **({} if window is None else {"window_left": window}))


def paged(case, page_size, layout="NHD", seed=7):
    """A ragged case with its cache in pages, shuffled, with garbage in what is unused."""
    offsets = case.array("kv_indptr")
    random = np.random.default_rng(seed)
    counts = [-(-int(length) // page_size) for length in np.diff(offsets)]
    pages = random.permutation(sum(counts) + 3)
    indptr, tensors = np.cumsum([0, *counts]), {}
    for name in ("k", "v"):
        dtype, array = case.tensors[name]
        cache = random.standard_normal((len(pages), page_size, *array.shape[1:])) * 100
        for b, (begin, end) in enumerate(zip(offsets, offsets[1:])):
            for i, row in enumerate(array[begin:end]):
                cache[pages[indptr[b] + i // page_size], i % page_size] = row
        tensors[name] = dtype, cache if layout == "NHD" else cache.swapaxes(1, 2)
    last = [(int(length) - 1) % page_size + 1 for length in np.diff(offsets)]
    return KernelFile({**case.tensors, **tensors, "kv_indptr": ("I32", indptr), "kv_indices": ("I32", pages),
                       "kv_last_page_len": ("I32", last)}, **case.metadata, kv_layout=layout)


SMALL_LAYER = ("--kind", "mixed", "--dtype", "F32", "--tokens", "120", "--seed", "3", "--layers", "1", "--query-heads", "4", "--kv-heads",
               # of `generate`
               "2", "--head-dim", "16", "--model-dim", "24", "--window-queries", "12", "--decode", "1")


def compressed_layer(trace, policy, budget, precision=np.float64, **options):
    """The first layer of a trace of SMALL_LAYER as a file of `scores` and `merge`, recomputed by NumPy."""
    _, entries = independent.replay.open_tensors(trace)
    tensor = {name: independent.replay.read_tensor(entry) for name, entry in entries.items()}
    inputs = {"q": tensor["layers.0.query"].swapaxes(0, 1)[:12], "k": tensor["layers.0.key"].swapaxes(0, 1)[:120],
              "v": tensor["layers.0.value"].swapaxes(0, 1)[:120], "w_o": tensor["layers.0.output_projection"]}
    dump = recompute(trace, policy, budget, precision)
    return KernelFile({**{name: ("F32", array) for name, array in inputs.items()},
                       **{name.removeprefix("layers.0."): value for name, value in dump.tensors.items()}},
                      policy=policy, budget=budget, **options)


def topk(rows=5, n=200, k=20, dtype="F32", seed=1, **options):
    scores = rounded(np.random.default_rng(seed).standard_normal((rows, n)), dtype)
    return KernelFile({"scores": (dtype, scores), "indices": ("I32", np.argsort(-scores, kind="stable")[:, :k])}, **options)


def compacted(kv_heads=2, n=40, head_dim=8, dtype="BF16", seed=1):
    random = np.random.default_rng(seed)
    before = rounded(random.standard_normal((kv_heads, n, head_dim)), dtype)
    kept = [np.sort(random.permutation(n)[:count]) for count in (11, 7, 13, 20)[:kv_heads]]
    return KernelFile({"before": (dtype, before), "kept": ("I64", np.concatenate(kept)),
                       "kept_offsets": ("I64", np.cumsum([0, *map(len, kept)])),
                       "after": (dtype, np.concatenate([before[g, rows] for g, rows in enumerate(kept)]))})


def long_decode(tokens, factor=1.0, scale=1.0, padding=0, heads=4, head_dim=64):
    """One query of spread-out attention over a long cache, in BF16, with a factor of the outputs, of the logits, or keys and values
    of zeros behind the cache that the kernel does not mask."""
    random = np.random.default_rng(tokens)
    q, k, v = (rounded(random.standard_normal(shape, dtype="f4"), "BF16").astype("f4")
               for shape in ((heads, head_dim), (tokens, head_dim), (tokens, head_dim)))
    kernel = Kernel(weights="BF16", partials="BF16", stored="BF16", splits=8, tile=128, logits=scale, gain=factor)
    out = kernel(q, *(np.pad(array, ((0, padding), (0, 0))) for array in (k, v)), head_dim ** -0.5)
    return KernelFile({"q": ("BF16", q[None]), "k": ("BF16", k[None, :, None]), "v": ("BF16", v[None, :, None]),
                       "out": ("BF16", out[None])}, weights="BF16", partials="BF16", splits=8, tile=128)
