"""The targets that evicted entries may be merged into, given rounding, for replay.py."""
import itertools

import numpy as np

from independent.draws import draw
from independent.merging import cosines
from independent.selection import NEAR_TIE, OF_TERMS, select_top, within_tie

MOST = 4096


def cosine_terms(keys, key_terms, others, other_terms):
    """The absolute error terms of cosines(keys, others)."""
    def relative(vectors, terms):
        lengths = np.linalg.norm(vectors, axis=1)
        return np.divide(np.linalg.norm(terms, axis=1), lengths, out=np.zeros_like(lengths), where=lengths > 0)

    return 2 * (relative(keys, key_terms)[:, None] + relative(others, other_terms)) + 1


def legal_targets(merge, likeness, terms):
    """Per evicted entry the indices it may be merged into, ours first; -1: dropped. likeness, terms [evicted, staying].

    The largest cosine, ties to the smaller index, if it exceeds the threshold; any within rounding of that.
    """
    options, bar = [], merge.threshold
    for row, row_terms in zip(likeness, terms):
        best = int(np.argmax(row))
        tied = np.flatnonzero(within_tie(row[best], row, row_terms[best] + row_terms))
        slack = NEAR_TIE + OF_TERMS * row_terms[best]
        legal = [] if bar is not None and not row[best] > bar else [best]
        if bar is None or (bar < 1 and row[best] > bar - slack):
            legal += [int(other) for other in tied if other not in legal]
        if bar is not None and not row[best] > bar:
            legal.insert(0, -1)
        elif bar is not None and row[best] <= bar + slack:
            legal.append(-1)
        options.append(legal)
    return options


def chains(merge, score, candidates, likeness):
    """merge-first: the root of each candidate. score [positions], likeness [candidates]^2 of original keys."""
    root, bar = {}, -np.inf if merge.threshold is None else merge.threshold
    for i in sorted(range(len(candidates)), key=lambda i: -score[candidates[i]]):  # in descending order
        higher = np.flatnonzero(score[candidates] > score[candidates[i]])
        target = higher[np.argmax(likeness[i, higher])] if higher.size else i
        root[i] = root[target] if target != i and likeness[i, target] > bar else i
    return {int(candidates[i]): int(candidates[r]) for i, r in root.items()}


def merged_first(merge, score, score_terms, candidates, keys, count, chosen=None):
    """The kept roots with their members (except the root), and whether the roots `chosen` may be kept instead."""
    roots = chains(merge, score, candidates, cosines(keys[candidates], keys[candidates]))
    members = {}
    for entry, root in sorted(roots.items()):
        members.setdefault(root, []).append(entry)
    heads = np.array(sorted(members), np.int64)
    sums, terms = (np.array([part[members[head]].sum() for head in heads]) for part in (score, score_terms))
    ours, legal = np.sort(select_top(sums, count)), True
    if chosen is not None and not np.array_equal(heads[ours], chosen):
        theirs = np.searchsorted(heads, chosen)
        legal = len(chosen) == len(ours) and np.isin(chosen, heads).all()
        if legal:
            missing, extra = np.setdiff1d(ours, theirs), np.setdiff1d(theirs, ours)
            legal = within_tie(sums[missing].max(), sums[extra].min(), (terms[missing].max() + terms[extra].max()))
            ours = theirs
    return {int(heads[i]): [entry for entry in members[heads[i]] if entry != heads[i]] for i in ours}, bool(legal)


def clusters_of(assignment):
    """{evicted: target} -> {target: [evicted, ascending]}, without dropped entries."""
    clusters = {}
    for entry, target in sorted(assignment.items()):
        if target >= 0:
            clusters.setdefault(target, []).append(entry)
    return clusters


def connected(options, staying):
    """The staying entries, partitioned by the undecided entries that they share: lists of (staying, undecided)."""
    parent = {target: target for target in staying}

    def find(target):
        while parent[target] != target:
            target = parent[target]
        return target

    undecided = [entry for entry, legal in options.items() if len(legal) > 1]
    for entry in undecided:
        first, *rest = (target for target in options[entry] if target >= 0)
        for target in rest:
            parent[find(target)] = find(first)
    parts = {}
    for target in staying:
        parts.setdefault(find(target), ([], []))[0].append(target)
    for entry in undecided:
        parts[find(next(target for target in options[entry] if target >= 0))][1].append(entry)
    return parts.values()


def settle(options, staying, agrees):
    """The targets that explain the dump: {evicted: target or -1}, ours where none do; and how many are not ours.

    options {evicted: [targets that rounding allows, ours first]}; agrees(staying entry, entries merged into it) -> bool
    """
    assignment, swaps = {entry: legal[0] for entry, legal in options.items()}, 0
    for targets, undecided in connected(options, staying):
        clusters = clusters_of(assignment)
        if not undecided or all(agrees(target, clusters.get(target, [])) for target in targets):
            continue
        for choice in itertools.islice(itertools.product(*(options[entry] for entry in undecided)), MOST):
            tried = {**assignment, **dict(zip(undecided, choice))}
            clusters = clusters_of(tried)
            if all(agrees(target, clusters.get(target, [])) for target in targets):
                swaps += sum(tried[entry] != assignment[entry] for entry in undecided)
                assignment = tried
                break
    return assignment, swaps


def cam_draw(seed, kv_head, position):
    """CaM's draw in [0, 1) for an evicted entry."""
    return (draw(seed, kv_head, position) >> 11) * 2.0**-53


def cam_receivers(merge, staying, position):
    """The staying positions over which an evicted entry's value is spread: the next `neighbours` behind it."""
    return staying[staying > position][:merge.neighbours]


def cam_takes(merge, kv_head, position, weight, following_weights):
    """Whether the value is spread, and whether rounding may decide it the other way. weight A_e; following_weights A of
    the receivers."""
    if not len(following_weights):
        return False, False
    mean = following_weights.mean()
    chance = min(1.0, weight / mean) if mean > 0 else float(weight > 0)
    draw = cam_draw(merge.seed, kv_head, position)
    return draw < chance, bool(abs(draw - chance) <= 1e-10 * chance)
