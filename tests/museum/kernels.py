"""Sound kernels of decode steps and prefills, of which a fault replaces one part.

Letters: n tokens, d head_dim, H query heads on G KV heads.
"""
from dataclasses import replace

import numpy as np

from support.kernels import Kernel, rounded

TYPICAL = Kernel(weights="BF16", splits=8, tile=128)
EXACT = replace(TYPICAL, weights=None)  # what a result is compared with
# as a file declares it
ARITHMETIC = {"weights": TYPICAL.weights, "splits": TYPICAL.splits, "tile": TYPICAL.tile}


def stored(array, dtype):
    """The numbers of an array rounded to a type of safetensors, in single precision."""
    return rounded(np.asarray(array, np.float32), dtype)


def repeated(query_heads, kv_heads):
    """The KV head of every query head: consecutive ones share one."""
    return np.arange(query_heads) // (query_heads // kv_heads)


def decode(q, k, v, scale=None, kernel=TYPICAL, kv_heads=repeated):
    """Outputs [batch, H, d] and log-sum-exps [batch, H] of one query for each sequence.

    q [batch, H, d]; k, v [batch, n, G, d], or lists of [n, G, d]
    """
    scale = 1 / np.sqrt(q.shape[2]) if scale is None else scale
    out = np.empty((*q.shape[:2], v[0].shape[2]), np.float32)
    lse = np.empty(q.shape[:2], np.float32)
    for sequence, (queries, keys, values) in enumerate(zip(q, k, v)):
        heads = kv_heads(len(queries), keys.shape[1])
        for head in range(keys.shape[1]):
            group = heads == head
            out[sequence, group], lse[sequence, group] = kernel.attend(queries[group], keys[:, head], values[:, head], scale)
    return out, lse


def prefill(q, k, v, scale=None, kernel=TYPICAL, window=None):
    """Causal attention of a sequence's last queries: outputs [queries, H, d], log-sum-exps [queries, H].

    q [queries, H, d]; k, v [n, G, d]
    window  how many tokens before its own a query sees; None: all
    """
    results = []
    for i, query in enumerate(q):
        position = len(k) - len(q) + i
        seen = slice(0 if window is None else max(0, position - window), position + 1)
        results.append(decode(query[None], k[None, seen], v[None, seen], scale, kernel))
    return tuple(np.concatenate(parts) for parts in zip(*results))
