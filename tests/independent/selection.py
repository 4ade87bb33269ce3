"""The entries kept at the prompt's end, for replay.py: every selection, and near ties."""
import numpy as np

from independent.draws import drawn
from independent.scores import softmax, squares

OF_TERMS, NEAR_TIE = 1e-13, 1e-12


def select_top(score, count):
    """The count largest, ties to the smaller index: [candidates] -> indices, best first."""
    return np.argsort(-score, kind="stable")[:count]


def within_tie(larger, smaller, terms=0.0):
    """Whether rounding could have put the smaller before the larger. terms: the sum of both sums of absolute terms."""
    with np.errstate(invalid="ignore"):
        return ((larger <= smaller) | np.isfinite(larger)
                & (larger - smaller <= NEAR_TIE * np.maximum(abs(larger), abs(smaller)) + OF_TERMS * terms))


def stage_one_sizes(alpha, count, ranked, always, weights):
    """The number of entries that stage one takes, and all numbers that rounding allows.

    floor(alpha * count), or adaptive: the fewest of the ranked whose weight, with the always-kept entries', exceeds 1/2
    for all queries, else count. ranked: best first; always: the always-kept entries; weights [..., entries]
    """
    if alpha is not None:
        return int(alpha * count // 1), range(int(alpha * count // 1), int(alpha * count // 1) + 1)
    ranked = ranked[:count]
    masses = weights[..., always].sum(axis=-1, keepdims=True) + np.concatenate(
        (np.zeros_like(weights[..., :1]), weights[..., ranked].cumsum(axis=-1)), axis=-1)
    smallest = masses.reshape(-1, masses.shape[-1]).min(axis=0)
    first, *ends = (next(iter(np.flatnonzero(smallest > half)), count)
                    for half in (0.5, 0.5 * (1 - NEAR_TIE), 0.5 * (1 + NEAR_TIE)))
    return int(first), range(int(ends[0]), int(ends[1]) + 1)


def choices(policy, count, scores, score, stage_two, stage_one_size=None):
    """The selections that a policy compares for one KV head: [(stage 1, the score that decides the rest, all,
    ascending)].

    theta-sweep: lambda in 0, 25 points from 1e-3 to 1e3, infinity by mean_h A^h (lambda + N^h / mean_j N^h), unpooled;
    then the top-k set and the critical set of the host's scores.
    """
    candidates = scores.candidates

    def choice(deciding, stage_one=np.zeros(0, np.int64)):
        left = np.setdiff1d(candidates, stage_one)
        rest = left[select_top(deciding[left], count - len(stage_one))]
        return stage_one, deciding, np.sort(np.append(stage_one, rest))

    ranked = candidates[select_top(score[candidates], count)]
    if policy.selection == "top-k":
        return [choice(stage_two, ranked)]  # stage 1 is everything
    if stage_one_size is None:
        stage_one_size, _ = stage_one_sizes(policy.alpha, count, ranked, scores.always, scores.weights)
    critical = choice(stage_two, ranked[:stage_one_size])
    if policy.selection == "critical":
        return [critical]
    mean_norms = scores.norms.mean(axis=1, keepdims=True)
    ratio = np.divide(scores.norms, mean_norms, out=np.zeros_like(scores.norms), where=mean_norms > 0)
    sweep = [(scores.mean * (weight + ratio)).mean(axis=0) for weight in (0.0, *np.geomspace(1e-3, 1e3, 25))]
    sweep.append(scores.mean.mean(axis=0))
    return [*(choice(deciding[:len(score)]) for deciding in sweep), choice(score), critical]


def window_bound(scores, chosen):
    """sum_h theta_h by the window's mean A: sum_evicted A N + (e / sum_kept A) sum_kept A N with e = sum_evicted A."""
    kept = scores.always.copy()
    kept[chosen] = True
    products, lost, mass = scores.mean * scores.norms, scores.mean[:, ~kept].sum(axis=1), scores.mean[:, kept].sum(axis=1)
    share = np.divide(lost, mass, out=np.full_like(lost, np.inf), where=mass > 0)
    return (products[:, ~kept].sum(axis=1) + share * products[:, kept].sum(axis=1)).sum()


class Greedy:
    """Removes entries one at a time: each time the one whose removal, with those already removed, changes the outputs
    least, squared and summed over queries: logits [queries, tokens], -infinity if not seen; values [tokens, head_dim].

    With w the weights over all entries, a those over the remaining ones, u_j = v_j - o, d the outputs' shift so far:
        shift after j = (d - a_j u_j) / (1 - a_j),   d = -(sum_removed w u) / (sum_remaining w)
    If more than half of the weight is removed, d is computed from the remaining entries; if a_j > 1/2, without j.
    """

    def __init__(self, logits, values):
        self.logits, self.values, self.weights = logits, values, softmax(logits)
        self.outputs = self.weights @ values
        self.distances = np.stack([squares(values - output) for output in self.outputs])
        self.lengths = np.stack([np.sqrt(squares(abs(values) + abs(output))) for output in self.outputs])
        self.left = np.ones(len(values), bool)
        self.gone_shift, self.gone_mass = np.zeros_like(self.outputs), np.zeros(len(logits))

    def remove(self, j):
        self.left[j] = False
        self.gone_shift += self.weights[:, j, None] * (self.values[j] - self.outputs)
        self.gone_mass += self.weights[:, j]

    def shifts(self):
        """d [queries, head_dim], and a [queries, tokens], 0 for removed entries"""
        left_weights = np.where(self.left, self.weights, 0.0)
        left_mass = left_weights.sum(axis=1, keepdims=True)
        heavy = self.gone_mass > 0.5
        left_mass[heavy] = 1
        shift, share = -self.gone_shift / left_mass, left_weights / left_mass
        if heavy.any():
            share[heavy] = softmax(np.where(self.left, self.logits[heavy], -np.inf))
            shift[heavy] = share[heavy] @ self.values - self.outputs[heavy]
        return shift, share

    def objectives(self):
        """sum over queries of ||o' - o||^2 if j is removed, too: [tokens]; meaningless for removed entries"""
        shift, share = self.shifts()
        products = shift @ self.values.T - (shift * self.outputs).sum(axis=1, keepdims=True)
        dominant = share > 0.5
        rest = np.where(dominant, 1.0, 1 - share)
        squared = (squares(shift)[:, None] - 2 * share * products + share**2 * self.distances) / rest**2
        for query, j in np.argwhere(dominant):
            others = np.where(self.left, self.logits[query], -np.inf)
            others[j] = -np.inf
            squared[query, j] = squares(softmax(others) @ self.values - self.outputs[query])
        return squared.sum(axis=0)

    def terms(self, j):
        """An upper bound on the sum of absolute terms of objectives()[j]."""
        _, share = self.shifts()
        heavy = self.gone_mass > 0.5
        before = np.where(heavy, self.lengths.max(axis=1), (self.weights * ~self.left * self.lengths).sum(axis=1)
                          / np.where(heavy, 1.0, 1 - self.gone_mass))
        rest = np.where(share[:, j] > 0.5, 1.0, 1 - share[:, j])
        return (((before + share[:, j] * self.lengths[:, j]) / rest)**2).sum()


def greedy(logits, values, candidates, count, chosen=None):
    """The count candidates that are kept, ascending, ties to the smaller index; how many removals were not best, and
    how many of these are no near ties. chosen: candidates that must be kept, whatever is best.
    """
    state, swaps, wrong = Greedy(logits, values), 0, 0
    may_go = np.isin(np.arange(len(values)), candidates)
    allowed = may_go if chosen is None else may_go & ~np.isin(np.arange(len(values)), chosen)
    for _ in range(len(candidates) - count):
        objectives = state.objectives()

        def best(indices):
            return indices[::-1][np.argmin(objectives[indices[::-1]])]

        first, going = best(np.flatnonzero(may_go & state.left)), best(np.flatnonzero(allowed & state.left))
        if going != first:
            swaps += 1
            wrong += not within_tie(objectives[going], objectives[first], state.terms(going) + state.terms(first))
        state.remove(going)
    return np.flatnonzero(may_go & state.left), swaps, wrong


def keep(policy, count, scores):
    """The positions kept in one KV head, ascending: the first selection of smallest bound, and the always-kept ones."""
    if policy.selection == "greedy":
        chosen, _, _ = greedy(*scores.window, scores.candidates, count)
    elif not policy.ranks:
        chosen = drawn(policy, *scores.drawn_for, scores.candidates, count) if count else np.zeros(0, np.int64)
    else:
        weighed = [chosen for _, _, chosen in choices(policy, count, scores, scores.score, scores.stage_two)]
        chosen = weighed[0] if len(weighed) == 1 else min(weighed, key=lambda chosen: window_bound(scores, chosen))
    return np.union1d(chosen, np.flatnonzero(scores.always))


def near_swaps(policy, count, scores, most=16):
    """The positions kept, as by `keep`, and that set with one entry exchanged for another that rounding could prefer.

    For top-k and critical only, whose second stage is varied; the nearest `most` swaps.
    """
    ours, swaps = keep(policy, count, scores), []
    if policy.selection == "top-k":
        stage_one, deciding, terms = [], scores.score, scores.score_terms
    elif policy.selection == "critical":
        stage_one, deciding, _ = choices(policy, count, scores, scores.score, scores.stage_two)[0]
        terms = scores.stage_two_terms
    else:
        return [ours]
    movable, others = np.setdiff1d(scores.candidates, stage_one), np.setdiff1d(scores.candidates, ours)
    inside = np.intersect1d(movable, ours)
    if inside.size and others.size:
        best, worst = others[np.argmax(deciding[others])], inside[np.argmin(deciding[inside])]
        inside = inside[within_tie(deciding[inside], deciding[best], terms[inside] + terms[best])]
        others = others[within_tie(deciding[worst], deciding[others], terms[worst] + terms[others])]
        swaps = [(deciding[i] - deciding[j], i, j) for i in inside for j in others
                 if within_tie(deciding[i], deciding[j], terms[i] + terms[j])]
    return [ours, *(np.union1d(np.setdiff1d(ours, [i]), [j]) for _, i, j in sorted(swaps)[:most])]


def near_tie(deciding, terms, ours, theirs):
    """Whether the sets are equal up to swaps of entries that rounding could have swapped."""
    missing, extra = np.setdiff1d(ours, theirs), np.setdiff1d(theirs, ours)
    if len(ours) != len(theirs) or not missing.size:
        return len(ours) == len(theirs)
    best, worst = missing[np.argmax(deciding[missing])], extra[np.argmin(deciding[extra])]
    return within_tie(deciding[best], deciding[worst], terms[best] + terms[worst])


def explained_by_near_ties(policy, count, scores, chosen, score, stage_two):
    """Whether the dump's set, if it is not ours, is legal. chosen: without the always-kept; score, stage_two: its own.

    It must be what the policy selects by the dump's scores, and every swap, stage by stage, a near tie by our scores.
    For theta-sweep, whose deciding scores are not dumped: a near tie with one of the selections, and no worse a bound.
    For greedy: every removal, the best of those that the dump made, must be a near tie with the best of all.
    """
    if not policy.ranks:
        return False
    if policy.selection == "greedy":
        return greedy(*scores.window, scores.candidates, count, chosen)[2] == 0
    weighed = choices(policy, count, scores, scores.score, scores.stage_two)
    if policy.selection == "theta-sweep":
        best = min(window_bound(scores, ours) for _, _, ours in weighed)
        tied = (set(taken) <= set(chosen) and near_tie(deciding, deciding, ours, chosen) for taken, deciding, ours in weighed)
        return any(tied) and window_bound(scores, chosen) <= best * (1 + NEAR_TIE)
    ranked = scores.candidates[select_top(score[scores.candidates], count)]
    sizes = [count] if policy.selection == "top-k" else stage_one_sizes(policy.alpha, count, ranked, scores.always,
                                                                        scores.weights)[1]
    for size in sizes:
        stage_one, _, ours = choices(policy, count, scores, scores.score, scores.stage_two, size)[0]
        forced_stage_one, deciding, forced = choices(policy, count, scores, score, scores.stage_two, size)[0]
        if (np.array_equal(choices(policy, count, scores, score, stage_two, size)[0][2], chosen)
                and near_tie(scores.score, scores.score_terms, stage_one, forced_stage_one)
                and near_tie(deciding, scores.stage_two_terms, forced, chosen)):
            return True
    return False
