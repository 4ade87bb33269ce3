"""One KV head's cache whose evicted entries merge, for replay.py."""
from types import SimpleNamespace

import numpy as np

from independent.decoding import DecodingHead
from independent.merging import cosines, merge_cluster
from independent.prediction import Prediction, log_sum
from independent.prompt import rebuild_scores
from independent.scores import softmax
from independent.selection import OF_TERMS, near_swaps
from independent.targets import (cam_receivers, cam_takes, cosine_terms, clusters_of, legal_targets, settle)

RELATIVE = 1e-8
SMALLEST_NORMAL = np.finfo(np.float64).tiny


def within(theirs, ours, terms):
    return bool((abs(theirs - ours) <= RELATIVE * abs(ours) + OF_TERMS * terms + SMALLEST_NORMAL).all())


class Choices:
    """Decisions that rounding may turn and that no dump shows: our own, or those of a script.

    script {index of a decision: index of its option}; made: the step of each decision
    """

    def __init__(self, script=None):
        self.script, self.step, self.made = script or {}, -1, []

    def pick(self, options):
        if len(options) == 1:
            return options[0]
        self.made.append((self.step, len(options)))
        return options[self.script.get(len(self.made) - 1, 0) % len(options)]


class MergingHead(DecodingHead):
    """Keys, values, votes and predicted scores by position; the constructor performs the prompt's merges.

    members  {staying: [evicted]}: merge-first's clusters; None: evict-first, by cosine
    recorded_into: the dump's target for the next evicted entry, taken if rounding allows it; None: our own
    shown    the dump's votes, key, value after the prompt in the order of kept, which decide near ties
    """

    def __init__(self, trace, layer, policy, budget, group, scores, kept, members=None, shown=None, choices=None):
        super().__init__(trace, layer, policy, budget, group, scores, kept)
        self.merge, self.choices, self.swaps, self.shown = policy.merge, choices or Choices(), 0, shown
        self.recorded_into, self.clusters = None, []
        self.restore()
        dtype, n = self.key.dtype, trace.prompt_tokens
        self.logits, self.logit_terms = np.zeros((2, trace.group, len(self.key)), dtype)
        self.prediction = Prediction(self.merge, trace.group, len(self.key), n, dtype) if (
            self.merge.predicts and self.merge.predict == "ema") else None
        for row in range(trace.window_queries) if self.prediction else [trace.window_queries - 1]:
            self.attend(row, np.arange(n - trace.window_queries + row + 1))
        everyone = np.arange(n)
        self.merge_away(everyone, np.setdiff1d(everyone, self.positions), members)
        self.shown = None

    def restore(self):
        """Resets every entry to its original key, value and vote."""
        self.key, self.value = self.layer.key[self.group].copy(), self.layer.value[self.group].copy()
        self.key_terms, self.value_terms = abs(self.key), abs(self.value)
        self.votes[...] = 1
        self.norms = [self.value_norms(self.value), self.value_norms(self.value_terms, np.abs)]

    def merged(self, now):
        return self.votes[now], self.key_terms[now], self.value_terms[now]

    def attend(self, row, now, remember=True):
        """The attention of a recorded query over these entries: its weights [heads, entries] and their relative error
        terms."""
        self.queries = self.layer.query[self.heads, row]
        self.logits[:, now] = self.queries @ self.key[now].T * self.trace.scale
        self.logit_terms[:, now] = abs(self.queries) @ self.key_terms[now].T * self.trace.scale
        if remember and self.prediction:
            self.prediction.accumulate(now, self.logits[:, now], self.logit_terms[:, now], self.votes[now])
        weights = softmax(self.logits[:, now] + np.log(self.votes[now]))
        terms = self.logit_terms[:, now]
        return weights, terms + (weights * terms).sum(axis=1, keepdims=True)

    def enter(self, step):
        """Rebuilds the cache if a period ends; then computes the outputs; then updates the moving averages."""
        super().enter(step)
        self.choices.step, row = step, self.trace.window_queries + step
        if self.prediction:
            self.prediction.queries = self.trace.prompt_tokens + step + 1
        if self.merge.period and (step + 1) % self.merge.period == 0:
            self.rebuild(step)
        now = self.positions
        weights, spread = self.attend(row, now)
        self.output = weights @ self.value[now]
        self.output_terms = weights @ self.value_terms[now] + (weights * spread) @ abs(self.value[now])
        self.merged_into, self.should_merge_into, self.legal = -2, -2, True

    def rebuild(self, step):
        """Rebuilds the cache from all original entries, by this step's query alone."""
        self.restore()
        scores = rebuild_scores(self.trace, self.layer, self.policy, self.group, self.budget, step)
        window = self.policy.window if self.policy.host == "snapkv" else scores.always.sum()
        self.positions = self.choices.pick(near_swaps(self.policy, int(self.budget - window), scores))
        everyone = np.arange(self.trace.prompt_tokens + step + 1)
        self.attend(self.trace.window_queries + step, everyone, remember=False)
        averages, self.prediction = self.prediction, None
        self.merge_away(everyone, np.setdiff1d(everyone, self.positions))
        self.prediction = averages
        if averages:
            averages.forget()
        self.per_head[...], self.terms[...] = 0, 0

    def scores_for_merging(self, now):
        """ln s^ and its error terms: both [heads, entries]"""
        return self.prediction.log_scores(now) if self.prediction else (self.logits[:, now], self.logit_terms[:, now])

    def likeness(self, leaving, staying):
        """The cosines [leaving, staying] of the current keys, and their error terms."""
        return (cosines(self.key[leaving], self.key[staying]),
                cosine_terms(self.key[leaving], self.key_terms[leaving], self.key[staying], self.key_terms[staying]))

    def totals(self, everyone):
        """ln D_h and its error terms, each [heads], before anything merges; None where scores are not predicted."""
        if not self.merge.predicts:
            return None
        logs, terms = self.scores_for_merging(everyone)
        logs = logs + np.log(self.votes[everyone])
        return log_sum(logs), (softmax(logs) * terms).sum(axis=1)

    def results(self, target, members, totals):
        """All results that rounding allows for the staying entry after these members have been merged into it."""
        now = np.array([target, *members])
        cluster = SimpleNamespace(keys=self.key[now], key_terms=self.key_terms[now], values=self.value[now],
                                  value_terms=self.value_terms[now], votes=self.votes[now], queries=self.queries,
                                  scale=self.trace.scale)
        if not members:
            return [SimpleNamespace(key=cluster.keys[0], key_terms=cluster.key_terms[0], value=cluster.values[0],
                                    value_terms=cluster.value_terms[0], votes=cluster.votes[0], log_scores=None)]
        if self.merge.predicts:
            cluster.log_scores, cluster.score_terms = self.scores_for_merging(now)
            cluster.log_totals, cluster.log_total_terms = totals
        return merge_cluster(self.merge, cluster)

    def become(self, target, result):
        self.key[target], self.key_terms[target] = result.key, result.key_terms
        self.value[target], self.value_terms[target] = result.value, result.value_terms
        self.votes[target] = result.votes
        if result.log_scores is not None and self.prediction:
            self.prediction.replace(target, result.log_scores, result.score_terms)
        self.renew_norms([target])

    def renew_norms(self, positions):
        for norms, entries, change in zip(self.norms, (self.value, self.value_terms), (np.asarray, np.abs)):
            norms[:, positions] = self.value_norms(entries[positions], change)

    def is_shown(self, target, result):
        at = np.searchsorted(self.positions, target)
        return bool(self.shown.votes[at] == result.votes
                    and within(self.shown.key[at], result.key, result.key_terms)
                    and within(self.shown.value[at], result.value, result.value_terms))

    def merge_away(self, everyone, leaving, members=None):
        """Evicts all of `leaving` at once. everyone: the cache before; self.positions: the cache after."""
        if self.merge.name == "cam":
            return self.spread(leaving)
        found, totals = {}, self.totals(everyone)

        def results(target, leaving):
            key = target, *leaving
            if key not in found:
                found[key] = self.results(target, leaving, totals)
            return found[key]

        def agrees(target, leaving):
            return any(self.is_shown(target, result) for result in results(target, leaving))

        if members is None:
            options = self.options(leaving)
            if self.shown is None:
                members = clusters_of({entry: self.choices.pick(legal) for entry, legal in options.items()})
            else:
                assignment, self.swaps = settle(options, [int(entry) for entry in self.positions], agrees)
                members = clusters_of(assignment)
        self.clusters.append((self.positions.tolist(), {target: list(cluster) for target, cluster in members.items() if cluster}))
        for target, cluster in [(target, cluster) for target, cluster in members.items() if cluster]:
            legal = results(target, cluster)
            seen = [] if self.shown is None else [result for result in legal if self.is_shown(target, result)]
            self.become(target, seen[0] if seen else legal[0] if self.shown is not None else self.choices.pick(legal))

    def options(self, leaving):
        """{evicted: the positions that it may be merged into, our choice first; -1: it is dropped}"""
        if not len(leaving):
            return {}
        staying = np.setdiff1d(self.positions, leaving)
        if not len(staying):
            return {int(entry): [-1] for entry in leaving}
        targets = legal_targets(self.merge, *self.likeness(leaving, staying))
        return {int(entry): [int(staying[at]) if at >= 0 else -1 for at in legal] for entry, legal in zip(leaving, targets)}

    def spread(self, leaving):
        """CaM's spreading at the prompt's end, by the last query's weights."""
        everyone = np.arange(self.trace.prompt_tokens)
        weights = self.attend(self.trace.window_queries - 1, everyone, remember=False)[0].mean(axis=0)
        values = [(entry, cam_receivers(self.merge, self.positions, entry)) for entry in leaving]
        for entry, receivers in values:
            if cam_takes(self.merge, self.group, int(entry), weights[entry], weights[receivers])[0]:
                self.give(entry, receivers)

    def give(self, entry, receivers):
        """Spreads the entry's value evenly over the receivers."""
        for entries in (self.value, self.value_terms):
            entries[receivers] += entries[entry] / len(receivers)
        self.renew_norms(receivers)

    def depart(self, step, position):
        """Merges the entry, then removes it."""
        now, recorded = self.positions, self.recorded_into
        if self.merge.name == "cam":
            weights = np.zeros(len(self.key))
            weights[now] = softmax(self.logits[:, now] + np.log(self.votes[now])).mean(axis=0)
            receivers = cam_receivers(self.merge, now, position)
            taken, either = cam_takes(self.merge, self.group, int(position), weights[position], weights[receivers])
            nearest = int(receivers[0]) if len(receivers) else -1
            options = [nearest if taken else -1] + ([-1 if taken else nearest] if either else [])
        else:
            options = self.options(np.array([position]))[int(position)]
        self.should_merge_into = options[0]
        self.legal = recorded is None or recorded in options
        self.merged_into = int(recorded) if recorded is not None and self.legal else options[0]
        if self.merged_into >= 0 and self.merge.name == "cam":
            self.give(position, receivers)
        elif self.merged_into >= 0:
            self.become(self.merged_into, self.choices.pick(self.results(self.merged_into, [int(position)], self.totals(now))))
        super().depart(step, position)
