"""Replays of policies that merge, for replay.py: one layer, and the measures of its decode steps.
"""
from types import SimpleNamespace

import numpy as np

from independent.merged_cache import RELATIVE, Choices, MergingHead, within
from independent.scores import attention_weights
from independent.selection import keep
from independent.targets import merged_first

MOST_REPLAYS = 200  # of one KV head, in search of the decisions of rounding that no dump shows


def keep_and_merge(policy, budget, layer, group, scores, chosen=None, score=None):
    """The positions kept by one KV head after the prompt, ascending; merge-first's members {staying: [merged]} or None.

    chosen: the dump's set without the always-kept entries, taken if rounding allows it; score: the dump's own.
    """
    count = budget - scores.always.sum()
    if policy.merge.order != "merge-first":
        return keep(policy, count, scores), None
    members, legal = merged_first(policy.merge, scores.score if score is None else score, scores.score_terms,
                                  scores.candidates, layer.key[group], count, chosen)
    if not legal:
        members, _ = merged_first(policy.merge, scores.score, scores.score_terms, scores.candidates, layer.key[group], count)
    return np.union1d(np.array(sorted(members), np.int64), np.flatnonzero(scores.always)), members


def changed_entry(head):
    """The entry that the last step's evicted one merged into: votes, key, value and their error terms; 0 if it merged into none
    or was spread."""
    into = head.merged_into if head.merge.name != "cam" else -1
    parts = {"votes": head.votes, "key": head.key, "value": head.value, "key_terms": head.key_terms,
             "value_terms": head.value_terms}
    return SimpleNamespace(**{name: part[into].copy() if into >= 0 else np.zeros_like(part[0]) for name, part in parts.items()})


def replay_head(head, steps, recorded=None):
    """All decode steps of one KV head: output [steps, heads, head_dim], terms; cached [steps, tokens], evicted, merged_into
    [steps]; changed [steps]: the entry that the evicted one merged into, after that; wrong: {first wrong step: texts}; swaps: near ties decided the other way. recorded: the dump's output,
    evicted and merged_into (None for a host that evicts nothing).
    """
    found = SimpleNamespace(output=[], terms=[], cached=np.zeros((steps, len(head.key)), bool), evicted=[], merged_into=[],
                            changed=[], texts=[], first_wrong=steps, swaps=head.swaps)
    for step in range(steps):
        evicted = None if recorded is None or recorded.evicted is None else int(recorded.evicted[step])
        head.recorded_into = None if evicted is None else int(recorded.merged_into[step])
        gone, should, legal = head.step(step, evicted)
        found.output.append(head.output)
        found.terms.append(head.output_terms)
        found.cached[step, np.append(head.positions, gone)[:len(head.positions) + (gone >= 0)]] = True
        found.evicted.append(gone)
        found.merged_into.append(head.merged_into)
        found.changed.append(changed_entry(head))
        if not legal:
            found.texts.append(f"evicted of step {step}, KV head {head.group} is {evicted} where {should} is expected")
        if gone < 0 and head.recorded_into not in (None, -2) or not head.legal:
            found.texts.append(f"merged_into of step {step}, KV head {head.group} is {head.recorded_into} where "
                               f"{head.should_merge_into} is expected")
        found.swaps += (gone != should) + (head.merged_into != head.should_merge_into)
        wrong = found.texts or recorded is not None and not within(recorded.output[step], head.output, head.output_terms)
        if wrong and found.first_wrong == steps:
            found.first_wrong = step
    return found


def replay_group(make_head, steps, recorded=None):
    """One KV head's replay; decisions that no dump shows are made so that its records agree, if rounding allows that.

    make_head: a function of Choices. Greedy search: of all changes to one decision before the first wrong step, the one
    that gets furthest is kept, and so on.
    """
    def replay(script):
        choices = Choices(script)
        return replay_head(make_head(choices), steps, recorded), choices.made

    script, replays = {}, 1
    best, made = replay(script)
    while recorded is not None and best.first_wrong < steps and replays < MOST_REPLAYS:
        trials = [(which, option) for which, (step, count) in enumerate(made)
                  if step <= best.first_wrong and which not in script for option in range(1, count)]
        trials = trials[::-1][:MOST_REPLAYS - replays]  # the latest decisions first
        tried = [({**script, which: option}, *replay({**script, which: option})) for which, option in trials]
        replays += len(tried) + 1
        further = max(tried, key=lambda trial: trial[1].first_wrong, default=None)
        if further is None or further[1].first_wrong <= best.first_wrong:
            break
        script, best, made = further
    best.swaps += len(script)
    return best


def replay_layer(trace, layer, policy, budgets, scores, kept, members, shown=None, recorded=None):
    """Measures and their error terms, two dicts; evicted, merged_into [steps, kv_heads]; the number of near-tie swaps;
    descriptions of illegal choices; the caches after the prompt: votes, merged_key, merged_value and terms, per KV head
    in the order of kept.

        output = sum_j a_j v_j of the cache, perturbation = ||(sum_j A_j v_j - output) W||_1, kept_mass = sum_cached A_j
    """
    steps, results, terms, difference = trace.decode_tokens, {}, {}, 0.0
    replays, caches = [], []
    for group in range(trace.kv_heads):
        def make_head(choices, group=group):
            head = MergingHead(trace, layer, policy, int(budgets[group]), group, scores[group], kept[group], members[group],
                               shown and shown[group], choices)
            now = head.positions
            head.prompt_cache = SimpleNamespace(votes=head.votes[now], key=head.key[now], value=head.value[now],
                                                key_terms=head.key_terms[now], value_terms=head.value_terms[now])
            caches.append((group, head.prompt_cache))
            return head

        replays.append(replay_group(make_head, steps, recorded and recorded[group]))
    for head in range(trace.query_heads):
        group, member = divmod(head, trace.group)
        values, projection, replay = layer.value[group], layer.output_projection[head], replays[group]
        full = attention_weights(layer.query[head, trace.window_queries:], layer.key[group], trace.prompt_tokens, trace.scale)
        output, output_terms = (np.stack(part)[:, member] for part in (replay.output, replay.terms))
        whole, absolute = full @ values @ projection, full @ abs(values)
        head_difference = (full @ values - output) @ projection
        difference = difference + head_difference
        loss, original, mass = abs(head_difference).sum(axis=1), abs(whole).sum(axis=1), (full * replay.cached).sum(axis=1)
        relative = np.divide(loss, original, out=np.where(loss > 0, np.nan, 0.0), where=original > 0)
        for kind, value, term in (
                ("output", output, output_terms), ("kept_mass", mass, mass), ("relative", relative, relative),
                ("perturbation", loss, ((absolute + output_terms) @ abs(projection)).sum(axis=1))):
            results.setdefault(kind, []).append(value)
            terms.setdefault(kind, []).append(term)
    results, terms = ({kind: np.stack(heads, axis=1) for kind, heads in side.items()} for side in (results, terms))
    results["layer_perturbation"] = abs(difference).sum(axis=1)
    terms["layer_perturbation"] = terms["perturbation"].sum(axis=1)
    found = SimpleNamespace(swaps=sum(replay.swaps for replay in replays),
                            texts=[text for replay in replays for text in replay.texts],
                            caches=[dict(caches)[group] for group in range(trace.kv_heads)],
                            changed=[replay.changed for replay in replays])
    found.evicted, found.merged_into = (np.array([getattr(replay, kind) for replay in replays], np.int64).reshape(-1, steps).T
                                     for kind in ("evicted", "merged_into"))
    return results, terms, found
