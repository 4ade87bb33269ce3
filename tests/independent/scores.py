"""Scores of cache entries for replay.py: by their definitions, one query at a time."""
import numpy as np


def softmax(logits):
    """The softmax over the last axis; -infinity has weight 0."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def seen_logits(queries, keys, first_position, scale, cached=True):
    """scale * q_i.k_j where query i at first_position + i sees the cached j <= its position, else -infinity:
    queries [queries, head_dim], keys [tokens, head_dim], cached booleans [tokens] or [queries, tokens] -> [queries, tokens]
    """
    seen = (np.arange(len(keys)) <= first_position + np.arange(len(queries))[:, None]) & cached
    return np.where(seen, queries @ keys.T * scale, -np.inf)


def attention_weights(queries, keys, first_position, scale, cached=True):
    """softmax over j of the seen logits: 0 if not seen"""
    return softmax(seen_logits(queries, keys, first_position, scale, cached))


def projected_value_norms(values, projection, norm="l1"):
    """|| values[j,:] * projection || in l1 or l2: [tokens, head_dim], [head_dim, model_dim] -> [tokens]."""
    return np.linalg.norm(values @ projection, ord=1 if norm == "l1" else 2, axis=1)


def squares(vectors):
    return (vectors * vectors).sum(axis=-1)


def removal_scores(kind, logits, values, votes=None):
    """The cost for one query of removing entry j: logits [tokens], -infinity if not seen; values [tokens, width];
    votes [tokens]: A is the softmax of z + ln votes, z is without votes. None: one vote each.

    obcache-value  A_j^2 ||v_j||^2
    obcache-key    A_j^2 z_j^2 ||v_j - o||^2
    obcache-joint  A_j^2 ||v_j + z_j (v_j - o)||^2
    exact          A_j^2 ||v_j - o_-j||^2, o_-j the output without j; +infinity if the query sees j alone.
                   For A_j > 1/2, at most one entry, o_-j is computed from the others' logits; else nothing cancels in
                   v_j - o_-j = (v_j - o) / (1 - A_j).
    """
    weighed = logits if votes is None else logits + np.log(votes)
    weights, seen = softmax(weighed), np.isfinite(logits)
    if kind == "obcache-value":
        return weights**2 * squares(values)
    differences = values - weights @ values
    seen_logit = np.where(seen, logits, 0)
    if kind == "obcache-key":
        return weights**2 * seen_logit**2 * squares(differences)
    if kind == "obcache-joint":
        return weights**2 * squares(values + seen_logit[:, None] * differences)
    light = weights <= 0.5
    scores = np.divide(weights, 1 - weights, out=np.zeros_like(weights), where=light)**2 * squares(differences)
    for j in np.flatnonzero(~light):
        others = np.where(np.arange(len(logits)) == j, -np.inf, weighed)
        alone = not np.isfinite(others).any()
        scores[j] = np.inf if alone else weights[j]**2 * squares(values[j] - softmax(others) @ values)
    return scores


def removal_score_terms(kind, logits, absolute_logits, absolute_values, votes=None):
    """The same formulas with sums of absolute terms for products and differences; absolute_logits = scale |q|.|k_j|."""
    logits = logits if votes is None else logits + np.log(votes)
    weights = softmax(logits)
    if kind == "obcache-value":
        return weights**2 * squares(absolute_values)
    sums = absolute_values + weights @ absolute_values
    if kind == "obcache-key":
        return weights**2 * absolute_logits**2 * squares(sums)
    if kind == "obcache-joint":
        return weights**2 * squares(absolute_values + absolute_logits[:, None] * sums)
    terms = np.divide(weights, 1 - weights, out=np.zeros_like(weights), where=weights <= 0.5)**2 * squares(sums)
    for j in np.flatnonzero(weights > 0.5):
        others = np.where(np.arange(len(logits)) == j, -np.inf, logits)
        if np.isfinite(others).any():
            terms[j] = weights[j]**2 * squares(absolute_values[j] + softmax(others) @ absolute_values)
    return terms


def entry_scores(policy, queries, keys, values, projection, logits, scale, merged=None):
    """One query head's score of every entry for every query, and its sums of absolute terms: both [queries, tokens].

    logits [queries, tokens] as seen; other arguments as in a layer, for one head. Space projected: v and o after W^O.
    merged: votes [tokens] and the error terms of keys and values, if the cache has merged entries.
    """
    if merged is not None:
        return merged_entry_scores(policy, queries, keys, values, projection, logits, scale, *merged)
    if policy.score == "attention":
        weights = softmax(logits)
        return weights, weights
    projected = policy.space == "projected"
    space = values @ projection if projected else values
    absolute = abs(values) @ abs(projection) if projected else abs(values)
    absolute_logits = scale * abs(queries) @ abs(keys).T
    return (np.stack([removal_scores(policy.score, row, space) for row in logits]),
            np.stack([removal_score_terms(policy.score, *rows, absolute) for rows in zip(logits, absolute_logits)]))


def merged_entry_scores(policy, queries, keys, values, projection, logits, scale, votes, key_terms, value_terms):
    """The scores of a cache with merged entries: attention with votes, first-order errors of merged keys and values.
    """
    def growth(terms, sizes):  # of errors, relative to entries that were never merged
        return np.maximum(1, np.divide(terms, sizes, out=np.ones_like(terms), where=sizes > 0))

    weights, logit_terms = softmax(logits + np.log(votes)), scale * abs(queries) @ key_terms.T
    spread = logit_terms + (weights * logit_terms).sum(axis=1, keepdims=True)
    if policy.score == "attention":
        return weights, weights * (1 + spread)
    space, absolute, space_terms = values, abs(values), value_terms
    if policy.space == "projected":
        space, absolute, space_terms = values @ projection, absolute @ abs(projection), value_terms @ abs(projection)
    absolute_logits = scale * abs(queries) @ abs(keys).T
    terms = np.stack([removal_score_terms(policy.score, *rows, absolute, votes) for rows in zip(logits, absolute_logits)])
    grown = growth(np.sqrt(squares(space_terms)), np.sqrt(squares(absolute))).max() + growth(logit_terms, absolute_logits)
    return np.stack([removal_scores(policy.score, row, space, votes) for row in logits]), terms * 2 * (spread + grown)


def group_score(policy, per_head):
    """The score of a KV head from [heads, ...]: the mean of attention, the sum of every other score."""
    return per_head.mean(axis=0) if policy.score == "attention" else per_head.sum(axis=0)


def stage_two_score(policy, per_head, norms):
    """CriticalKV's stage two: mean_h (a^h + epsilon) N^h, or (mean_h a^h + epsilon) mean_h N^h; of [heads, entries]."""
    factor = per_head if policy.gqa == "mean-of-products" else per_head.mean(axis=0)
    return ((factor + policy.epsilon) * norms).mean(axis=0)


def max_pool(score, pool):
    """The maximum over j - pool//2 .. j + pool//2, cut at both ends: [heads, candidates] -> the same shape."""
    pooled = score.copy()
    for j in range(score.shape[1] if pool > 1 else 0):
        pooled[:, j] = score[:, max(0, j - pool // 2):j + pool // 2 + 1].max(axis=1)
    return pooled
