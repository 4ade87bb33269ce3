"""Decode steps of hosts that evict while decoding, for replay.py."""
import numpy as np

from independent.policy import always_kept
from independent.scores import (entry_scores, group_score, projected_value_norms, seen_logits, softmax,
                                stage_two_score)
from independent.selection import stage_one_sizes, within_tie


def leaving(policy, budget, always, score, score_terms, stage_two, stage_two_terms, weights):
    """The entry to evict, and the entries that rounding allows to be evicted: an index, and booleans [entries].

    always [entries]; score, score_terms [entries] of the KV head; stage_two, its terms: CriticalKV's;
    weights [heads, entries] of the step's query. Evicted is the smallest score of those not always kept, ties: the
    larger index; with critical the smallest stage two outside stage one, which takes the best by score.
    """
    candidates = np.flatnonzero(~always)

    def smallest(deciding, among):
        return among[::-1][np.argmin(deciding[among[::-1]])]

    def may_go(deciding, terms, surely):  # surely: certain candidates, beside which there may be others
        least = smallest(deciding, surely)
        return within_tie(deciding, deciding[least], terms + terms[least])

    if policy.selection != "critical":
        return smallest(score, candidates), may_go(score, score_terms, candidates) & ~always
    ranked = candidates[np.argsort(-score[candidates], kind="stable")]
    ours, sizes = stage_one_sizes(policy.alpha, budget - always.sum(), ranked, always, weights)
    legal = np.zeros(len(always), bool)
    for size in sizes:
        last, first = ranked[size - 1] if size else None, ranked[size]
        inside, outside = np.zeros(len(always), bool), ~always  # certainly in and certainly out of stage one
        if size:
            inside = ~within_tie(score, score[first], score_terms + score_terms[first])
            outside = outside & ~within_tie(score[last], score, score_terms + score_terms[last])
        surely, perhaps = np.flatnonzero(outside), ~always & ~inside
        legal |= perhaps & may_go(stage_two, stage_two_terms, surely) if surely.size else perhaps
    return smallest(stage_two, ranked[ours:][np.argsort(ranked[ours:])]), legal


class DecodingHead:
    """One KV head's cache while decoding: positions, ascending, and h2o's running scores per query head.

    key, value, votes: indexed by position; only those of MergingHead ever change.
    """

    def __init__(self, trace, layer, policy, budget, group, scores, kept):
        self.trace, self.layer, self.policy, self.budget, self.group = trace, layer, policy, budget, group
        self.heads = range(group * trace.group, (group + 1) * trace.group)
        self.positions, self.key, self.value = np.asarray(kept), layer.key[group], layer.value[group]
        tokens = trace.prompt_tokens + trace.decode_tokens
        self.per_head, self.terms = np.zeros((2, trace.group, tokens), layer.value.dtype)
        self.votes = np.ones(tokens, layer.value.dtype)
        if policy.host == "h2o":
            self.per_head[:, :trace.prompt_tokens] = scores.per_head
            self.terms[:, :trace.prompt_tokens] = scores.per_head_terms
        # their absolute terms
        self.norms = [self.value_norms(self.value), self.value_norms(abs(self.value), np.abs)]

    def value_norms(self, values, change=np.asarray):
        return np.stack([projected_value_norms(values, change(self.layer.output_projection[head]), self.policy.norm)
                         for head in self.heads])

    def merged(self, now):
        """The arguments of entry_scores for a cache with merged entries."""
        return None

    def enter(self, step):
        """Adds the new entry, and does everything that comes before its query scores the cache."""
        self.positions = np.append(self.positions, self.trace.prompt_tokens + step)

    def depart(self, step, position):
        """Removes the evicted entry."""
        self.positions = np.delete(self.positions, np.searchsorted(self.positions, position))

    def accumulate(self, step):
        """The step's query updates the scores of the cached entries: h2o adds to them, tova replaces them. Returns its
        weights [heads, entries]."""
        layer, now = self.layer, self.positions
        key, value, weights = self.key[now], self.value[now], []
        for index, head in enumerate(self.heads):
            query = layer.query[head, self.trace.window_queries + step:][:1]
            logits = seen_logits(query, key, len(key), self.trace.scale)
            score, terms = entry_scores(self.policy, query, key, value, layer.output_projection[head], logits,
                                        self.trace.scale, self.merged(now))
            if self.policy.host == "h2o":
                score, terms = score + self.per_head[index, now], terms + self.terms[index, now]
            self.per_head[index, now], self.terms[index, now] = score[0], terms[0]
            weights.append(softmax(logits + np.log(self.votes[now]))[0])
        return np.stack(weights)

    def step(self, step, recorded=None):
        """Adds a new entry, scores by its query, and evicts an entry if the cache is over budget. Returns the evicted
        position (-1: none), the expected one, and whether rounding allows the former. recorded: the dump's evicted
        position, which is taken if it can be evicted.
        """
        self.enter(step)
        now, policy = self.positions, self.policy
        always = always_kept(policy, self.budget, now)
        weights = self.accumulate(step) if policy.dynamic and policy.ranks else None
        if not policy.dynamic or len(now) <= self.budget:
            return -1, -1, recorded in (None, -1)
        if not policy.ranks:
            ours, legal = np.flatnonzero(~always)[0], ~always
        else:
            per_head = self.per_head[:, now]
            stage_two = [stage_two_score(policy, per_head, norms[:, now]) for norms in self.norms]
            ours, legal = leaving(policy, self.budget, always, group_score(policy, per_head),
                                  group_score(policy, self.terms[:, now]), *stage_two, weights)
        index = ours
        if recorded is not None and recorded in now[~always]:
            index = np.searchsorted(now, recorded)
        left, should = now[index], now[ours]
        self.depart(step, left)
        return left, should, recorded is None or (left == recorded and bool(legal[index]))


def decode(trace, layer, policy, budget, scores, kept, recorded=None):
    """The evicted positions by the policy or as recorded, I64 [steps, kv_heads], -1 for none; the number of near ties
    decided the other way; and descriptions of illegal evictions. scores, kept: per KV head.
    """
    left, swaps, failures = np.full((trace.decode_tokens, trace.kv_heads), -1), 0, []
    for group, entries in enumerate(np.broadcast_to(budget, trace.kv_heads)):
        head = DecodingHead(trace, layer, policy, int(entries), group, scores[group], kept[group])
        for step in range(trace.decode_tokens):
            theirs = None if recorded is None else recorded[step, group]
            left[step, group], should, legal = head.step(step, theirs)
            if not legal:
                failures.append(f"evicted of step {step}, KV head {group} is {theirs} where {should} is expected")
            else:
                swaps += left[step, group] != should
    return left, swaps, failures
