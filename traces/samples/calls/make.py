"""Makes the calls of this folder: inputs and results of kernels as `kvbound check` reads them.

usage: make.py      writes batch.npz, alone.npz, topk.npz and scores.npz into the working folder
"""
import numpy as np

HEADS, GROUP, DIM, TOKENS = 4, 2, 16, 96  # query heads, of which two share a KV head


def attention(q, k, v, block):
    """One decode step of a sequence in single precision, over blocks of tokens as flash-decoding has them: the blocks'
    outputs, each divided by its own sum of weights, are added, weighted by those sums."""
    out = np.zeros(q.shape, np.float32)
    for h in range(HEADS):
        keys, values = (x[:, h // GROUP].astype(np.float32) for x in (k, v))
        logits = keys @ q[h].astype(np.float32) / np.float32(np.sqrt(DIM))
        weights = np.exp(logits - logits.max())
        sums = [weights[i:i + block].sum() for i in range(0, TOKENS, block)]
        parts = [weights[i:i + block] @ values[i:i + block] / total for i, total in zip(range(0, TOKENS, block), sums)]
        out[h] = sum(part * total for part, total in zip(parts, sums)) / np.float32(sum(sums))
    return out.astype(np.float16)


random = np.random.default_rng(1)
# [batch, query_heads, head_dim]
q = random.standard_normal((2, HEADS, DIM)).astype(np.float16)
# [batch, tokens, kv_heads, head_dim]
k, v = random.standard_normal((2, 2, TOKENS, HEADS // GROUP, DIM)).astype(np.float16)
batch = np.stack([attention(q[b], k[b], v[b], block=24) for b in range(2)])
np.savez("batch.npz", q=q, k=k, v=v, out=batch, splits=4)
np.savez("alone.npz", q=q[1:], k=k[1:], v=v[1:], out=attention(q[1], k[1], v[1], block=24)[None], splits=4)

scores = random.standard_normal((3, TOKENS)).astype(np.float32)
np.savez("topk.npz", scores=scores, indices=np.argsort(-scores, axis=1, kind="stable")[:, :8])

# SnapKV's scores of a prompt: attention of its last queries, max-pooled, mean over the queries and the heads
WINDOW = 8
queries = random.standard_normal((WINDOW, HEADS, DIM)).astype(np.float32)
prompt = random.standard_normal((TOKENS, HEADS // GROUP, DIM)).astype(np.float32)
score = np.zeros((HEADS // GROUP, TOKENS - WINDOW), np.float32)
for h in range(HEADS):
    mean = np.zeros(TOKENS, np.float32)
    for w in range(WINDOW):
        logits = prompt[:TOKENS - WINDOW + w + 1, h // GROUP] @ queries[w, h] / np.float32(np.sqrt(DIM))
        weights = np.exp(logits - logits.max())
        mean[:len(weights)] += weights / weights.sum() / np.float32(WINDOW)
    padded = np.pad(mean[:TOKENS - WINDOW], 3, constant_values=-np.inf)
    score[h // GROUP] += np.lib.stride_tricks.sliding_window_view(padded, 7).max(axis=1) / np.float32(GROUP)
np.savez("scores.npz", q=queries, k=prompt, score=score)
