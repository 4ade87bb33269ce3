"""Which entries a method keeps of a Ranking: budgets, AdaKV's allocation, CriticalKV's stages; in NumPy, in double precision."""
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np

from kvbound.errors import InvalidOption
from kvbound.kvpress.ranking import by_group, projected_value_norms


def entries_kept(n, compression_ratio, rule):
    """How many of n entries are kept: n (1 - compression_ratio), rounded down "exactly" or "in floating point", at least 1."""
    exact = n - n * Fraction(Decimal(str(compression_ratio)))
    return max(1, math.floor(exact) if rule == "exactly" else int(n * (1 - compression_ratio)))


def kept_set(layer, rank, compression_ratio, options):
    """What is kept of a layer.

    rank      a function of kvbound.kvpress.ranking
    options   those of rank, and
                  budget       "exactly", "in floating point": see entries_kept
                  whole_layers optional: the first so many layers keep everything
                  allocation   optional: "shares" (AdaKV's), "safe entries" (with `safeguard`): without it, all KV heads keep
                               equally many
                  selection    optional: "critical", with alpha, epsilon, norm (1, 2), product ("mean of products", "product of
                               means"), stage_one ("alpha", "alpha or safe entries")
                  always       "apart": what is always kept takes no part in these; "ranked": it does, with the largest score + 1
    returns   (kept [num_kv_heads, n] of bool, near likewise: what rounding could put on either side)
    raises    InvalidOption for a budget below what is always kept
    """
    n, num_kv_heads, _ = layer.keys.shape
    if layer.index < options.get("whole_layers", 0):
        return np.ones((num_kv_heads, n), bool), np.zeros((num_kv_heads, n), bool)
    ranking = rank(layer, options)
    scores, heads, always = ranking.scores.copy(), ranking.head_scores.copy(), ranking.always
    total = entries_kept(n, compression_ratio, options["budget"])
    if total < always.sum():
        raise InvalidOption(f"compression_ratio: {compression_ratio} leaves {total} entries; expected at least {always.sum()}, "
                            "which the method always keeps")
    if options.get("always", "apart") == "ranked":
        scores[:, always] = heads[:, always] = scores[:, ~always].max() + 1
        always = np.zeros(n, bool)
    free = np.flatnonzero(~always)
    scores, heads = scores[:, free], heads[:, free]
    error, head_error = ranking.error[:, free], ranking.head_error[:, free]
    budgets, safe, near = allocated(scores, error, total - int(always.sum()), options)
    kept = np.zeros((num_kv_heads, n), bool)
    kept[:, always] = True
    close = np.zeros((num_kv_heads, n), bool)
    if options.get("selection") == "critical":
        second, second_error = stage_two_scores(layer, free, scores, heads, error, head_error, options)
        chosen, near_two = two_stages(scores, error, second, second_error, budgets, safe, options)
        near = near | near_two
    else:
        chosen = np.stack([top(row, budget) for row, budget in zip(scores, budgets)])
        near = near | np.stack([near_boundary(*rows) for rows in zip(scores, error, chosen)])
    kept[:, free], close[:, free] = chosen, near
    return kept, close


def top(scores, count):
    """[n] of bool: the `count` largest; of equal ones the first."""
    chosen = np.zeros(len(scores), bool)
    chosen[np.argsort(-scores, kind="stable")[:count]] = True
    return chosen


def near_boundary(scores, error, chosen):
    """[n] of bool: chosen entries that rounding may put below one that is not, and the other way round."""
    if chosen.all() or not chosen.any():
        return np.zeros(len(scores), bool)
    highest, lowest = (scores + error)[~chosen].max(), (scores - error)[chosen].min()
    return np.where(chosen, scores - error <= highest, scores + error >= lowest)


def allocated(scores, error, total, options):
    """(each KV head's budget, how many of its entries are safe, which entries rounding could put into another head's budget)."""
    num_kv_heads, m = scores.shape
    near = np.zeros(scores.shape, bool)
    if "allocation" not in options:
        return [total] * num_kv_heads, 0, near
    safe = max(1, int(total * options["safeguard"])) if options["allocation"] == "safe entries" else 0
    first = np.where(np.stack([top(row, safe) for row in scores]), np.inf, scores)
    chosen = top(first.ravel(), total * num_kv_heads)
    near = near_boundary(first.ravel(), error.ravel(), chosen).reshape(scores.shape)
    found = chosen.reshape(scores.shape).sum(axis=1)
    return (shares(found, total, options["safeguard"]) if options["allocation"] == "shares" else found.tolist()), safe, near


def shares(found, total, safeguard):
    """AdaKV's budgets: (1 - safeguard) found + safeguard total, rounded down; the rest goes to the largest fractional parts."""
    safeguard = Fraction(Decimal(str(safeguard)))
    exact = [(1 - safeguard) * int(count) + safeguard * total for count in found]
    budgets = [math.floor(share) for share in exact]
    by_fraction = sorted(range(len(exact)), key=lambda head: budgets[head] - exact[head])
    for head in by_fraction[:total * len(exact) - sum(budgets)]:
        budgets[head] += 1
    return budgets


def stage_two_scores(layer, free, scores, heads, error, head_error, options):
    """(attention times projected value norm, its error) of the entries `free`: [num_kv_heads, entries]."""
    norms, norm_errors = (by_group(part[:, free], len(scores)) for part in projected_value_norms(layer, options["norm"]))
    if options["product"] == "mean of products":
        heads, head_error = by_group(heads, len(scores)) + options["epsilon"], by_group(head_error, len(scores))
        return (heads * norms).mean(axis=1), (head_error * norms + heads * norm_errors).mean(axis=1)
    scores = scores + options["epsilon"]
    return scores * norms.mean(axis=1), error * norms.mean(axis=1) + scores * norm_errors.mean(axis=1)


def two_stages(scores, error, second, second_error, budgets, safe, options):
    """CriticalKV's selection: (chosen, near), both as scores: stage one by scores, stage two by `second`.

    source  CriticalKV (arXiv:2502.03805), Algorithm 1
    """
    chosen, near = np.zeros(scores.shape, bool), np.zeros(scores.shape, bool)
    for head, budget in enumerate(budgets):
        count = math.floor(Fraction(Decimal(str(options["alpha"]))) * budget)
        if options.get("stage_one") == "alpha or safe entries":
            count = max(count, safe)
        stage_one = top(scores[head], count)
        chosen[head] = top(np.where(stage_one, np.inf, second[head]), budget)
        others = ~stage_one
        near[head] = near_boundary(scores[head], error[head], stage_one)
        near[head, others] |= near_boundary(second[head, others], second_error[head, others], chosen[head, others])
    return chosen, near
