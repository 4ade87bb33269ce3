"""One call of a kernel, held against the reference in double precision: `kvbound check`, on arrays.

Bounds are derived from the arithmetic that is declared; there are no tolerances. Arrays may be of NumPy, or of any
library with DLPack, on the CPU: those in C order are read where they are. Shapes are those of the kernels of
FlashInfer and FlashAttention.
"""
import numpy as np

from kvbound import _native
from kvbound.arrays import exported
from kvbound.errors import InvalidInput
from kvbound.policies import budget_text, policy_text
from kvbound.result import CheckResult, Comparison


def _check(operation, arrays, options):
    tensors = exported(f"check {operation}", arrays)
    return CheckResult(_native.check(operation, tensors, options), tensors)


def check_attention(out, q, k, v, *, lse=None, sm_scale=None, causal=None, window_left=None, kv_layout=None, kv_indptr=None,
                    kv_indices=None, kv_last_page_len=None, qo_indptr=None, lengths=None, lse_base=None, storage=None,
                    weights=None, accumulate=None, partials=None, splits=None, tile=None, products=None) -> CheckResult:
    """Outputs of a decode or prefill kernel against softmax attention.

        out_i = sum_j p_ij v_j,  p_ij = exp(sm_scale q_i . k_j) / sum_j exp(sm_scale q_i . k_j)

    out        as q, with the head_dim of v
    q          [batch, num_qo_heads, head_dim]: one query a sequence, its last token; with qo_indptr [batch + 1], or where k
               is one sequence, [queries, num_qo_heads, head_dim]
    k, v       [batch, tokens, num_kv_heads, head_dim], with lengths [batch]; ragged [total, num_kv_heads, head_dim] with
               kv_indptr [batch + 1]; paged [pages, page_size, num_kv_heads, head_dim] with kv_indptr, kv_indices,
               kv_last_page_len. kv_layout="HND": heads before tokens
    lse        optional [.., num_qo_heads], ln of the sum; lse_base=2: log2
    sm_scale   of logits, 1/sqrt(head_dim) by default
    causal     whether queries do not see later tokens; window_left: how many before their own they see (-1: all)
    storage    "F32", "F16", "BF16": what the kernel rounds its inputs to, if theirs is wider
    weights    the type that weights p are rounded to before they multiply values
    accumulate, partials, splits, tile, products   the rest of its arithmetic, as `kvbound check attention --help` says

    returns    CheckResult
    raises     InvalidInput for arrays that do not fit each other, NaN or infinity among inputs; InvalidOption
    source     the definition of attention (arXiv:1706.03762); the bounds: reference/bounds/error_bounds.md
    """
    return _check("attention", {"out": out, "q": q, "k": k, "v": v, "lse": lse, "kv_indptr": kv_indptr, "kv_indices": kv_indices,
                                "kv_last_page_len": kv_last_page_len, "qo_indptr": qo_indptr, "lengths": lengths},
                  {"sm_scale": sm_scale, "causal": causal, "window_left": window_left, "kv_layout": kv_layout,
                   "lse_base": lse_base, "storage": storage, "weights": weights, "accumulate": accumulate,
                   "partials": partials, "splits": splits, "tile": tile, "products": products})


def check_topk(indices, scores, k=None, *, lengths=None, score_error=None, order=None) -> CheckResult:
    """The largest scores of every row; of equal ones any, unless `order` says more.

    indices      [rows, k] of integers; -1: no entry
    scores       [rows, n]
    k            if given, how many columns `indices` must have
    lengths      optional [rows]: the first so many scores count
    score_error  how far the scores that the kernel saw may be from these: a number, or [rows, n]
    order        "any" (the default) or "descending"

    returns      CheckResult
    raises       InvalidInput, InvalidOption
    """
    shape = tuple(indices.shape if hasattr(indices, "shape") else np.shape(indices))
    if k is not None and shape[-1:] != (k,):
        raise InvalidInput(f"check topk: indices.shape: is {list(shape)}; expected [rows, k] with k = {k}")
    by_row = score_error if hasattr(score_error, "shape") and getattr(score_error, "ndim", 0) == 2 else None
    return _check("topk", {"indices": indices, "scores": scores, "lengths": lengths, "score_error": by_row},
                  {"score_error": score_error if by_row is None else None, "order": order})


def check_compaction(after, before, kept, kept_offsets, *, kv_layout=None, kv_indptr=None, kv_indices=None,
                     kv_last_page_len=None, poison=None, order=None) -> CheckResult:
    """What a cache holds after its kept rows were moved together: every one once, bit for bit.

    after    [kept rows, head_dim] ragged, [num_kv_heads, m, head_dim] dense, or paged, as check_attention's k
    before   [num_kv_heads, n, head_dim] of the same type
    kept     positions of one KV head after the other; kept_offsets [num_kv_heads + 1]
    poison   what unused rows hold: a number, its bits as "0x7fc0", or [head_dim]; None: they are not judged
    order    "any" (the default), "kept" or "ascending"

    returns  CheckResult
    raises   InvalidInput, InvalidOption
    """
    row = poison if hasattr(poison, "shape") and getattr(poison, "ndim", 0) == 1 else None
    return _check("compact", {"after": after, "before": before, "kept": kept, "kept_offsets": kept_offsets, "poison": row,
                              "kv_indptr": kv_indptr, "kv_indices": kv_indices, "kv_last_page_len": kv_last_page_len},
                  {"kv_layout": kv_layout, "poison": poison if row is None else None, "order": order})


def check_norms(norms, v, w_o, *, norm=None, kv_layout=None, storage=None, accumulate=None, products=None) -> CheckResult:
    """Norms of projected values, || v_j W^O_h ||.

    norms    [num_qo_heads, n]
    v        [n, num_kv_heads, head_dim]; kv_layout="HND": heads first
    w_o      [num_qo_heads * head_dim, model_dim]: the output projection's rows
    norm     "l1" (the default) or "l2"

    returns  CheckResult
    raises   InvalidInput, InvalidOption
    source   CriticalKV (arXiv:2502.03805), algorithm 1
    """
    return _check("norms", {"norms": norms, "v": v, "w_o": w_o},
                  {"norm": norm, "kv_layout": kv_layout, "storage": storage, "accumulate": accumulate, "products": products})


def check_scores(score, q, k, v=None, w_o=None, *, stage_two_score=None, policy="snapkv", window_size=None, kernel_size=None,
                 budget=None, compression_ratio=None, sm_scale=None, kv_layout=None, storage=None, weights=None,
                 accumulate=None, partials=None, products=None) -> CheckResult:
    """Scores of the entries of one layer's prompt.

    score              [num_kv_heads, m], m entries that the policy scores
    q                  [window_size, num_qo_heads, head_dim]: the prompt's last queries
    k, v               [n, num_kv_heads, head_dim]; v and w_o [num_qo_heads * head_dim, model_dim] where the policy needs them
    stage_two_score    optional, likewise, of critical
    policy             of `kvbound policies`; window_size and kernel_size (of pooling) go into its host
    budget             entries a KV head, or a share such as "20%"; compression_ratio: the share that is removed

    returns            CheckResult
    raises             InvalidInput, InvalidOption
    """
    return _check("scores", {"score": score, "stage_two_score": stage_two_score, "q": q, "k": k, "v": v, "w_o": w_o},
                  {"policy": policy_text(policy, window_size, kernel_size), "budget": budget_text(budget, compression_ratio),
                   "sm_scale": sm_scale, "kv_layout": kv_layout, "storage": storage, "weights": weights,
                   "accumulate": accumulate, "partials": partials, "products": products})


def check_merge(kept, kept_offsets, q, k, v, w_o=None, *, target_of=None, votes=None, merged_key=None, merged_value=None,
                policy="snapkv", window_size=None, kernel_size=None, budget=None, compression_ratio=None, sm_scale=None,
                kv_layout=None, storage=None, weights=None, accumulate=None, partials=None, splits=None, tile=None,
                products=None) -> CheckResult:
    """Kept sets of one layer's prompt, and what was merged into them.

    kept, kept_offsets        positions of one KV head after the other; [num_kv_heads + 1]
    target_of                 [num_kv_heads, n]; votes [kept]; merged_key, merged_value [kept, head_dim]: those there are
    q, k, v, w_o and options  as check_scores

    returns                   CheckResult
    raises                    InvalidInput, InvalidOption
    source                    KeepKV (arXiv:2504.09936) and the other merging methods, by policy
    """
    return _check("merge", {"kept": kept, "kept_offsets": kept_offsets, "target_of": target_of, "votes": votes,
                            "merged_key": merged_key, "merged_value": merged_value, "q": q, "k": k, "v": v, "w_o": w_o},
                  {"policy": policy_text(policy, window_size, kernel_size), "budget": budget_text(budget, compression_ratio),
                   "sm_scale": sm_scale, "kv_layout": kv_layout, "storage": storage, "weights": weights,
                   "accumulate": accumulate, "partials": partials, "splits": splits, "tile": tile, "products": products})


def compare(a, b, *, against, operation="attention", identical=False, names=("a", "b")) -> Comparison:
    """Results of two kernels, of the same inputs, row by row: identical, reordered (both within their bounds), or wrong.

    a, b        what is compared: arrays as `out`, or dicts such as {"out": out, "lse": lse}
    against     the inputs, and options, by the names that the operation's check has them: {"q": q, "k": k, "v": v,
                "sm_scale": 0.1}
    operation   "attention", "topk", "norms", "scores" or "merge"
    identical   whether rows must be the same to the last bit, as of a batch and of one sequence of it alone
    names       of the two kernels, for people

    returns     Comparison
    raises      InvalidInput, InvalidOption
    """
    inputs = {name: value for name, value in against.items() if hasattr(value, "shape") or isinstance(value, list)}
    options = {name: value for name, value in against.items() if name not in inputs}
    kernels = [exported(name, inputs | (result if isinstance(result, dict) else {"out": result})) for name, result in zip(names, (a, b))]
    return Comparison(_native.compare(operation, names[0], kernels[0], names[1], kernels[1], options, identical))
