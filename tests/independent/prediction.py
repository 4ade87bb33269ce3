"""Predicted scores of cache entries for replay.py: the moving average, in the log domain."""
import numpy as np


def log_sum(logs, axis=-1, keepdims=False):
    """ln sum exp along an axis; -infinity if all numbers are -infinity."""
    largest = logs.max(axis=axis, keepdims=True)
    shift = np.where(np.isfinite(largest), largest, 0)
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(logs - shift).sum(axis=axis, keepdims=True)) + shift
    return total if keepdims else total.squeeze(axis)


def log(number):
    with np.errstate(divide="ignore"):
        return np.log(number)


class Prediction:
    """One KV head's predicted scores s^, indexed by position, per query head, from all queries so far.

        S' = a S + (1 - a) s,  c' = a c + 1 - a,  both from 0;  exact: s^ = S / c,  paper: s^ = S / (1 - a^queries)

    attention: ln s = z - ln sum p e^z over what the query sees; raw: ln s = z.
    queries: L of the paper's formula: positions seen by the last query. terms: absolute error terms of ln S.
    """

    def __init__(self, merge, heads, tokens, queries, dtype=np.float64):
        self.decay, self.attention, self.exact = merge.ema, merge.scores == "attention", merge.normalisation == "exact"
        self.log_sums, self.terms = np.full((heads, tokens), -np.inf, dtype), np.zeros((heads, tokens), dtype)
        self.weights, self.queries = np.zeros(tokens, dtype), queries

    def accumulate(self, now, logits, terms, votes):
        """Takes in one query's logits of the entries `now` [heads, entries], -infinity if not seen; votes [entries]."""
        if self.attention:
            weighed = logits + np.log(votes)
            total = log_sum(weighed, keepdims=True)
            logits = logits - total
            terms = terms + (np.exp(weighed - total) * terms).sum(axis=1, keepdims=True) + abs(total)
        seen = np.isfinite(logits[0])
        now, logits, terms = now[seen], logits[:, seen], terms[:, seen]
        old, new = log(self.decay) + self.log_sums[:, now], log(1 - self.decay) + logits
        self.log_sums[:, now] = np.logaddexp(old, new)
        share = np.exp(old - self.log_sums[:, now])
        self.terms[:, now] = share * self.terms[:, now] + (1 - share) * terms
        self.weights[now] = self.decay * self.weights[now] + 1 - self.decay

    def normaliser(self, now):
        """The logarithm of the number by which S is divided: [entries]"""
        if self.exact:
            return log(self.weights[now])
        return np.full(len(now), log(-np.expm1(self.queries * log(self.decay))))

    def log_scores(self, now):
        """ln s^ of these entries, and their absolute error terms: both [heads, entries]"""
        logs = self.log_sums[:, now] - self.normaliser(now)
        return logs, self.terms[:, now] + abs(logs)

    def replace(self, position, log_scores, terms):
        """Sets the entry's ln s^ [heads] after a merge; its c does not change."""
        self.log_sums[:, position] = log_scores + self.normaliser(np.array([position]))
        self.terms[:, position] = terms

    def forget(self):
        self.log_sums[...], self.terms[...], self.weights[...] = -np.inf, 0, 0
