"""Sound attention kernels in NumPy, in single precision, made of parts of which a fault replaces one.

Every output is a sum over tiles of tokens by online softmax, in parts of the cache that are merged by their log-sum-exps, as in
FlashAttention and flash decoding. Letters: n tokens, d head_dim, H query heads on G KV heads.
"""
import numpy as np

from support.kernel_files import rounded

TILE, SPLITS = 128, 8
FLOAT = np.float32


def stored(array, dtype):
    """The numbers of an array rounded to a type of safetensors, in single precision; None: as they are."""
    return np.asarray(array, FLOAT) if dtype is None else rounded(array, dtype).astype(FLOAT)


def online(q, k, v, scale, tile=TILE, weights="BF16", power=np.exp):
    """One head's attention by online softmax: (output [d], log-sum-exp) of q [d] over k, v [n, d].

    weights  the type that weights are rounded to before they multiply values, as tensor cores require
    power    the exponential
    """
    maximum, total, output = FLOAT(-np.inf), FLOAT(0), np.zeros(v.shape[1], FLOAT)
    for first in range(0, len(k), tile):
        logits = FLOAT(scale) * (k[first:first + tile] @ q)
        higher = max(maximum, logits.max())
        kept, powers = power(maximum - higher), power(logits - higher)
        total = total * kept + powers.sum(dtype=FLOAT)
        output = output * kept + stored(powers, weights) @ v[first:first + tile]
        maximum = higher
    return output / total, maximum + np.log(total)


def merged(outputs, lses):
    """The parts' outputs [parts, d], weighted by their log-sum-exps [parts]; and the log-sum-exp of all."""
    maximum = lses.max()
    factors = np.exp(lses - maximum)
    total = factors.sum(dtype=FLOAT)
    return factors @ outputs / total, maximum + np.log(total)


def parts_of(n, splits=SPLITS):
    """The slices of n tokens that are attended apart: as many as given, fewer where there are not enough tokens."""
    size = -(-n // splits)
    return [slice(first, min(n, first + size)) for first in range(0, n, size)]


def split(q, k, v, scale, parts=parts_of, merge=merged, attend=online, partials=None, **options):
    """One head's attention in parts that are merged: (output [d], log-sum-exp).

    partials  the type that outputs of parts are rounded to
    """
    results = [attend(q, k[part], v[part], scale, **options) for part in parts(len(k))]
    return merge(stored([output for output, _ in results], partials), stored([lse for _, lse in results], None))


def kv_head(head, query_heads, kv_heads):
    """The KV head of a query head: consecutive query heads share one."""
    return head // (query_heads // kv_heads)


def decode(q, k, v, scale=None, kv_head_of=kv_head, **options):
    """Outputs [batch, H, d] and log-sum-exps [batch, H] of one query for each sequence.

    q [batch, H, d]; k, v [batch, n, G, d], or lists of [n, G, d]
    options  of split()
    """
    query_heads = q.shape[1]
    scale = 1 / np.sqrt(q.shape[2]) if scale is None else scale
    results = []
    for sequence, (keys, values) in enumerate(zip(k, v)):
        heads = [kv_head_of(head, query_heads, keys.shape[1]) for head in range(query_heads)]
        results.append([split(FLOAT(q[sequence, head]), FLOAT(keys[:, g]), FLOAT(values[:, g]), scale, **options)
                        for head, g in enumerate(heads)])
    return (np.array([[output for output, _ in row] for row in results]), np.array([[lse for _, lse in row] for row in results]))


def prefill(q, k, v, scale=None, window=None, **options):
    """Causal attention of a sequence's last queries: outputs [queries, H, d], log-sum-exps [queries, H].

    q [queries, H, d]; k, v [n, G, d]
    window  how many tokens before its own a query sees; None: all
    """
    results = []
    for i, query in enumerate(q):
        position = len(k) - len(q) + i
        seen = slice(0 if window is None else max(0, position - window), position + 1)
        results.append(decode(query[None], k[None, seen], v[None, seen], scale, **options))
    return tuple(np.concatenate(parts) for parts in zip(*results))
