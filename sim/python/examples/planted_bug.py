"""Find a planted bug: a paged decode kernel that loses the last token of every sequence whose last page is full."""
# %% The kernel, and the bug
from itertools import pairwise

import numpy as np
from kvbound import check_attention
from kvbound.testing import decode_case

PAGE = 16


def paged_decode(q, k, v, kv_indptr, kv_indices, kv_last_page_len, right=False):
    out = np.empty_like(q)
    for b, (first, end) in enumerate(pairwise(kv_indptr)):
        last = kv_last_page_len[b]
        if not right:
            last = last % PAGE or PAGE - 1  # a full page has 16 tokens, not 15
        keys, values = (x[kv_indices[first:end]].reshape(-1, *x.shape[2:])[:(end - first - 1) * PAGE + last] for x in (k, v))
        keys, values = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (keys, values))
        logits = np.einsum("hd,thd->ht", q[b], keys) / np.sqrt(np.float32(q.shape[2]))
        weights = np.exp(logits - logits.max(1, keepdims=True))
        out[b] = np.einsum("ht,thd->hd", weights / weights.sum(1, keepdims=True), values)
    return out


# %% Sequences of 1,000 and 1,024 tokens, in pages of any order
q, k, v = decode_case("flat", tokens=127 * PAGE, num_qo_heads=4, num_kv_heads=2)
q = np.concatenate([q, -q])
pages = {"k": k.reshape(127, PAGE, *k.shape[2:]), "v": v.reshape(127, PAGE, *v.shape[2:])}
table = {"kv_indptr": np.array([0, 63, 127]), "kv_indices": np.random.default_rng(1).permutation(127),
         "kv_last_page_len": np.array([8, 16])}

# %% A tolerance of 0.01 does not see it
out, expected = paged_decode(q, **pages, **table), paged_decode(q, **pages, **table, right=True)
print("within 0.01 of what is right:", np.allclose(out, expected, rtol=0, atol=1e-2))

# %% The bounds do, and the diagnosis names it
result = check_attention(out, q, **pages, **table)
worst = result.worst()
print(f"{result.verdict}: sequence {worst.index[0]} is off by {worst.error / worst.bound:.0f} times its bound")
print("diagnosis:", result.diagnosis())

# %% Mended
print("mended:", check_attention(expected, q, **pages, **table).verdict)
