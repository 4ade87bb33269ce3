"""The scores that decide which entries are kept, at the prompt's end and in rebuilds, for replay.py."""
from types import SimpleNamespace

import numpy as np

from independent.policy import always_kept
from independent.scores import (entry_scores, group_score, max_pool, projected_value_norms, seen_logits, softmax,
                                stage_two_score)


def deciding_scores(trace, layer, policy, group, always, rows):
    """The scores of one KV head; h are its query heads. rows: the recorded queries that judge, of which the last is at
    the position of the last entry; always [entries]: the always-kept ones.

    candidates: the other positions, which index score
    drawn_for                        layer and KV head, of hosts that rank nothing, which have no scores
    weights [heads, rows, entries]   A of each such query;  mean [heads, entries]   their mean
    window                           logits [heads*rows, entries] and values [entries, head_dim], for greedy
    per_head [heads, positions]      the score over the rows: attention's mean (snapkv), sum (h2o), last query (tova);
                                     the other scores' sum (tova: last query); snapkv: over the candidates, max-pooled
    score [positions]                of the group: the mean of attention, the sum of every other score
    attention [positions]            the same for attention, whatever the policy's score, for adakv
    norms [heads, entries]           N^h_j = ||v_j W^O_h||
    stage_two [positions]            mean_h (per_head^h + epsilon) N^h, or (score + epsilon) mean_h N^h
    *_terms: sums of absolute terms; norms with |v| and |W^O|
    """
    scores = SimpleNamespace(always=always, candidates=np.flatnonzero(~always))
    if not policy.ranks:
        scores.drawn_for = layer.index, group
        return scores
    entries, heads = len(always), range(group * trace.group, (group + 1) * trace.group)
    key, value, queries = layer.key[group, :entries], layer.value[group, :entries], layer.query[heads, rows]
    logits = [seen_logits(query, key, entries - query.shape[0], trace.scale) for query in queries]
    scores.weights = np.stack([softmax(row) for row in logits])
    scores.mean = scores.weights.mean(axis=1)
    scores.window = np.concatenate(logits), value
    scored = trace.prompt_tokens - policy.window if policy.host == "snapkv" else entries

    def over_rows(per_query, attention):
        total = np.mean if policy.host == "snapkv" and attention else np.sum
        return max_pool(total(np.stack(per_query)[..., :scored], axis=1), policy.pool)

    per_query = [(weights, weights) if policy.score == "attention" else
                 entry_scores(policy, query, key, value, layer.output_projection[head], row, trace.scale)
                 for head, query, weights, row in zip(heads, queries, scores.weights, logits)]
    scores.per_head, scores.per_head_terms = (over_rows(part, policy.score == "attention") for part in zip(*per_query))
    scores.score, scores.score_terms = (group_score(policy, part) for part in (scores.per_head, scores.per_head_terms))
    scores.attention = scores.score if policy.score == "attention" else over_rows(scores.weights, True).mean(axis=0)
    for suffix, change in (("", np.asarray), ("_terms", np.abs)):
        norms = np.stack([projected_value_norms(change(value), change(layer.output_projection[head]), policy.norm)
                          for head in heads])
        setattr(scores, "norms" + suffix, norms)
        setattr(scores, "stage_two" + suffix, stage_two_score(policy, scores.per_head, norms[:, :scored]))
    return scores


def prompt_scores(trace, layer, policy, group, budget=None):
    """The scores at the prompt's end, by the host's window. budget: of all KV heads, or of each; only
    streaming-llm needs it."""
    own = trace.prompt_tokens if budget is None else np.broadcast_to(budget, trace.kv_heads)[group]
    always = always_kept(policy, own, np.arange(trace.prompt_tokens))
    return deciding_scores(trace, layer, policy, group, always,
                           slice(trace.window_queries - policy.window, trace.window_queries))


def rebuild_scores(trace, layer, policy, group, budget, step):
    """The scores for a rebuild: by this step's query alone, over all entries so far."""
    positions, row = np.arange(trace.prompt_tokens + step + 1), trace.window_queries + step
    always = (positions >= trace.prompt_tokens - policy.window if policy.host == "snapkv"
              else always_kept(policy, budget, positions))
    return deciding_scores(trace, layer, policy, group, always, slice(row, row + 1))
