"""The merge of a cluster of cache entries, for replay.py: every method, in the log domain.

A cluster has its staying entry first: keys, values [entries, head_dim], votes [entries], log_scores [heads, entries],
and the queries that it is merged for: queries [heads, head_dim], scale, log_totals [heads] = ln D_h. *_terms: sums of
absolute terms to first order: an error is OF_TERMS times these. A result: key, value, votes, log_scores [heads] (None:
no predicted scores), *_terms.
"""
from types import SimpleNamespace

import numpy as np

from independent.prediction import log_sum
from independent.scores import softmax
from independent.selection import NEAR_TIE, OF_TERMS

SINGULAR = 1e-12  # |m| of zip against the largest |ln s^|


def mean_of(shares, spread, entries, entry_terms):
    """sum_j share_j entry_j and its terms; spread [entries]: the shares' relative error terms."""
    mean = shares @ entries
    return mean, shares @ (entry_terms + (abs(entries) + abs(mean)) * spread[:, None])


def one_score(log_scores, terms, votes):
    """A cluster by one score [entries]: shares w / W, log_total ln W, divergence KL(w / W || p / P), and terms."""
    logs = log_scores + np.log(votes)
    shares, chances = softmax(logs), votes / votes.sum()
    found = SimpleNamespace(shares=shares, spread=terms + shares @ terms, log_total=log_sum(logs),
                            log_total_terms=shares @ terms, divergence=0.0)
    shifted = log_scores - log_scores.max()
    ratios = shifted - log_sum(shifted + np.log(chances))  # ln((w / W) / (p / P))
    if (log_scores != log_scores[0]).any():
        found.divergence = chances @ (ratios * np.exp(ratios) - np.expm1(ratios))  # every term >= 0
    found.divergence_terms = shares @ ((1 + abs(ratios)) * found.spread) + chances @ abs(np.expm1(ratios))
    return found


def correction(divergence, divergence_terms, query, scale):
    """KL q / (scale |q|^2), or 0 if that is not finite; and its error terms."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        direction = query / (scale * (query @ query))
        if not np.isfinite(divergence * direction).all():
            return np.zeros_like(query), np.zeros_like(query)
    return divergence * direction, (divergence_terms + abs(divergence)) * abs(direction)


def zip_keys(found, log_scores, terms, mean, mean_terms, minimum_norm):
    """kbar z* / m with its terms, or the minimum-norm key where m is singular: all that rounding allows, ours first."""
    m, largest = found.shares @ log_scores, abs(log_scores).max()
    m_terms = found.shares @ (terms + (abs(log_scores) + abs(m)) * found.spread)
    if found.divergence == 0:
        return [(mean, mean_terms)]
    singular = abs(m) <= SINGULAR * largest
    either = abs(abs(m) - SINGULAR * largest) <= OF_TERMS * m_terms + NEAR_TIE * SINGULAR * largest
    options = [minimum_norm] if singular or either else []
    if m != 0 and (not singular or either):
        scale = 1 - found.divergence / m
        scale_terms = found.divergence_terms / abs(m) + found.divergence * m_terms / m**2
        options.insert(len(options) if singular else 0, (mean * scale, mean_terms * abs(scale) + abs(mean) * scale_terms))
    if found.divergence <= OF_TERMS * found.divergence_terms:
        options.append((mean, mean_terms))
    return options


def merge_mean(merge, cluster):
    """Merges by one score exp(mean_h ln s^^h) for all heads, and q = mean_h q_h: [(key, terms)], (value, terms)."""
    log_scores, terms = cluster.log_scores.mean(axis=0), cluster.score_terms.mean(axis=0)
    found, query = one_score(log_scores, terms, cluster.votes), cluster.queries.mean(axis=0)
    mean, mean_terms = mean_of(found.shares, found.spread, cluster.keys, cluster.key_terms)
    value = mean_of(found.shares, found.spread, cluster.values, cluster.value_terms)
    if merge.key == "convex":
        return [(mean, mean_terms)], value
    shift, shift_terms = correction(found.divergence, found.divergence_terms, query, cluster.scale)
    minimum_norm = mean - shift, mean_terms + shift_terms
    if merge.key == "zip":
        return zip_keys(found, log_scores, terms, mean, mean_terms, minimum_norm), value
    return [minimum_norm], value


def corrections_to_targets(merge, queries, wanted, wanted_terms):
    """The smallest shifts of a key that change its logits [heads] by `wanted`: queries scale q_h [heads, head_dim],
    without directions whose singular values are below rank of the largest; all that rounding allows, ours first.
    """
    left, sizes, right = np.linalg.svd(queries, full_matrices=False)
    if not sizes.size or sizes[0] == 0:
        return [(np.zeros(queries.shape[1], queries.dtype), 0.0)]
    bar, slack = merge.rank * sizes[0], (NEAR_TIE * merge.rank + OF_TERMS * np.sqrt(queries.size)) * sizes[0]
    ours = int(((sizes >= bar) & (sizes > 0)).sum())
    surely, perhaps = int((sizes > bar + slack).sum()), int(((sizes >= bar - slack) & (sizes > 0)).sum())
    options = []
    for count in (ours, *(count for count in range(max(1, surely), perhaps + 1) if count != ours)):
        inverse = (right[:count].T / sizes[:count]) @ left[:, :count].T
        gap = max(sizes[count - 1] - (sizes[count] if count < len(sizes) else 0), OF_TERMS * sizes[0])
        shift = inverse @ wanted
        rounding = sizes[0] * np.linalg.norm(wanted) / sizes[count - 1] / gap
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.isfinite(shift).all():
                shift, rounding = np.zeros_like(shift), 0.0
        options.append((shift, abs(inverse) @ wanted_terms + rounding))
    return options


def merge_joint(merge, cluster):
    """Merges with a score per query head; one key serves all their logits, one value all their outputs."""
    heads, queries = [], cluster.scale * cluster.queries
    for log_scores, terms in zip(cluster.log_scores, cluster.score_terms):
        found = one_score(log_scores, terms, cluster.votes)
        found.key, found.key_terms = mean_of(found.shares, found.spread, cluster.keys, cluster.key_terms)
        found.value, found.value_terms = mean_of(found.shares, found.spread, cluster.values, cluster.value_terms)
        heads.append(found)
    keys, key_terms, divergences, divergence_terms, values, value_terms, log_totals, log_total_terms = (
        np.stack([getattr(found, kind) for found in heads]) for kind in (
            "key", "key_terms", "divergence", "divergence_terms", "value", "value_terms", "log_total", "log_total_terms"))
    weights = softmax(2 * (log_totals - cluster.log_totals))
    terms = 2 * (log_total_terms + cluster.log_total_terms + abs(log_totals) + abs(cluster.log_totals))
    value = weights @ values, weights @ (value_terms + (abs(values) + abs(weights @ values))
                                         * (terms + weights @ terms)[:, None])
    mean, mean_terms = keys.mean(axis=0), key_terms.mean(axis=0)
    if merge.key == "convex":
        return [(mean, mean_terms)], value
    wanted = (queries * (keys - mean)).sum(axis=1) - divergences
    wanted_terms = (abs(queries) * (key_terms + mean_terms)).sum(axis=1) + divergence_terms
    return [(mean + shift, mean_terms + terms)
            for shift, terms in corrections_to_targets(merge, queries, wanted, wanted_terms)], value


def cosines(keys, others):
    """The cosine of every pair, 0 with a zero key: [keys, others]; equal keys have bit-equal cosines."""
    unique, where = np.unique(np.concatenate((keys, others)), axis=0, return_inverse=True)
    lengths = np.linalg.norm(unique, axis=1)
    units = np.divide(unique, lengths[:, None], out=np.zeros_like(unique), where=lengths[:, None] > 0)
    where = where.reshape(-1)
    return np.clip(units @ units.T, -1, 1)[np.ix_(where[:len(keys)], where[len(keys):])]


def similarity_weights(merge, keys):
    """d2o: softmax of cos(k_j, k_c); kvmerger: exp(-|k_j - k_c|^2 / 2 sigma^2), sigma^2 the mean over j != c."""
    if merge.name == "d2o":
        likeness = cosines(keys, keys[:1])[:, 0]
        likeness[0] = 1
        return softmax(likeness)
    distances = ((keys - keys[0])**2).sum(axis=1)
    variance = distances[1:].mean()
    return softmax(-distances / (2 * variance) if variance > 0 else np.zeros_like(distances))


def merge_cluster(merge, cluster):
    """All results of merging a cluster that rounding allows, ours first."""
    log_scores = score_terms = None
    if merge.predicts:
        keys, value = (merge_joint if merge.gqa == "joint" else merge_mean)(merge, cluster)
        logs = cluster.log_scores + np.log(cluster.votes)
        score_terms = (softmax(logs) * cluster.score_terms).sum(axis=1)
        log_scores = log_sum(logs) - np.log(cluster.votes.sum())
    else:
        shares = similarity_weights(merge, cluster.keys)
        lengths, longest = np.linalg.norm(cluster.keys, axis=1), np.linalg.norm(cluster.key_terms, axis=1)
        moved = np.divide(longest, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        if merge.name == "kvmerger":
            distances = np.linalg.norm(cluster.keys - cluster.keys[0], axis=1)
            moved = np.divide(longest + longest[0], distances[1:].max(), out=np.zeros_like(lengths),
                              where=np.full(len(lengths), distances[1:].max() > 0))
        spread = moved + moved.max() + 1
        keys = [mean_of(shares, spread, cluster.keys, cluster.key_terms)]
        value = mean_of(shares, spread, cluster.values, cluster.value_terms)
    votes = cluster.votes.sum() if merge.votes else cluster.votes[0]
    return [SimpleNamespace(key=key, key_terms=key_terms, value=value[0], value_terms=value[1], votes=votes,
                            log_scores=log_scores, score_terms=score_terms) for key, key_terms in keys]
