#!/usr/bin/python3
"""Tests of the independent implementation (independent/replay.py): cases by hand, brute force, 400 digits.

usage: independent_replay_test.py      needs no program
"""
import decimal
import itertools
import tempfile
import unittest
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import independent.replay
from independent.decoding import leaving
from independent.draws import draw
from independent.policy import always_kept, parse_policy, resolve_budget
from independent.scores import entry_scores, removal_scores, softmax
from independent.selection import Greedy, choices, greedy, keep, near_tie, select_top, within_tie
from support.dumps import recompute
from support.kvbound_cli import TraceFile

decimal.getcontext().prec = 400  # enough digits for 1 + e^-800
LN3 = float(np.log(3))
SIZES = SimpleNamespace(prompt_tokens=100, window_queries=40)


def deletion(logits, values, gone):
    """|| o' - o ||^2 with 400 digits; o' is the output after the entries in `gone` are deleted."""
    weights = [Decimal(float(logit)).exp() for logit in logits]

    def output(kept):
        mass = sum(weights[j] for j in kept)
        return [sum(weights[j] * Decimal(float(values[j][d])) for j in kept) / mass for d in range(len(values[0]))]

    everyone = range(len(logits))
    pairs = zip(output([j for j in everyone if j not in gone]), output(list(everyone)))
    return float(sum((after - before)**2 for after, before in pairs))


def window_deletion(logits, values, gone):
    """The same as deletion(), but in double precision and summed over the queries, one per row of logits."""
    left = np.array([j for j in range(len(values)) if j not in gone])
    return sum(((softmax(row[left]) @ values[left] - softmax(row) @ values)**2).sum() for row in logits)


class Scores(unittest.TestCase):
    def near(self, ours, theirs, tolerance=1e-12):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=0)

    def test_two_entries_by_hand(self):
        logits, values = np.array([LN3, 0]), np.array([[4.0], [0.0]])  # A = 3/4, 1/4; o = 3
        self.near(removal_scores("obcache-value", logits, values), [9, 0])
        self.near(removal_scores("obcache-key", logits, values), [9 / 16 * LN3**2, 0])
        self.near(removal_scores("obcache-joint", logits, values), [9 / 16 * (4 + LN3)**2, 0])
        self.near(removal_scores("exact", logits, values), [9, 1])

    def test_exact_is_what_deletion_does_whatever_the_gap(self):
        random = np.random.default_rng(1)
        for gap in (0, 1, 10, 38, 800):
            for tokens in (2, 3, 7):
                logits, values = random.standard_normal(tokens), random.standard_normal((tokens, 3))
                logits[tokens // 2] += gap
                self.near(removal_scores("exact", logits, values),
                          [deletion(logits, values, {j}) for j in range(tokens)], 1e-9)

    def test_exact_of_the_only_entry_seen_is_infinite_and_of_unseen_ones_zero(self):
        scores = removal_scores("exact", np.array([2.0, -np.inf]), np.ones((2, 3)))
        self.assertEqual(list(scores), [np.inf, 0])
        for kind in ("obcache-value", "obcache-key", "obcache-joint"):
            self.assertEqual(removal_scores(kind, np.array([2.0, -np.inf]), np.ones((2, 3)))[1], 0)

    def test_value_is_what_zeroing_the_value_does(self):
        random = np.random.default_rng(2)
        logits, values = random.standard_normal(6), random.standard_normal((6, 4))
        scores, weights = removal_scores("obcache-value", logits, values), softmax(logits)
        for j in range(6):
            zeroed = values * (np.arange(6) != j)[:, None]
            self.near(scores[j], ((weights @ zeroed - weights @ values)**2).sum())

    def test_key_and_joint_are_the_curvature_of_shrinking_the_entry(self):
        random = np.random.default_rng(3)
        logits, values, t = random.standard_normal(5), random.standard_normal((5, 4)), 1e-5
        for kind in ("obcache-key", "obcache-joint"):
            scores = removal_scores(kind, logits, values)
            for j in range(5):
                shrunk = np.where(np.arange(5) == j, 1 - t, 1)
                moved = softmax(logits * shrunk) @ (values * (shrunk[:, None] if kind == "obcache-joint" else 1))
                self.near(((moved - softmax(logits) @ values)**2).sum() / t**2, scores[j], 1e-3)

    def test_projected_space_is_head_space_of_projected_values(self):
        random = np.random.default_rng(4).standard_normal
        query, key, value, projection = random((1, 3)), random((9, 3)), random((9, 3)), random((3, 5))
        for name in ("obcache-value", "obcache-key", "obcache-joint", "exact"):
            head, projected = (parse_policy(f"tova+{name}:space={space}") for space in ("head", "projected"))
            logits = query @ key.T * 0.5
            ours, terms = entry_scores(projected, query, key, value, projection, logits, 0.5)
            self.near(ours[0], removal_scores(name, logits[0], value @ projection))
            self.assertTrue((terms >= ours * (1 - 1e-12)).all())
            ours, terms = entry_scores(head, query, key, value, projection, logits, 0.5)
            self.near(ours[0], removal_scores(name, logits[0], value))
            self.assertTrue((terms >= ours * (1 - 1e-12)).all())


class GreedySelection(unittest.TestCase):
    def cases(self):
        for seed, gap in itertools.product(range(6), (0, 5, 38, 800)):
            random = np.random.default_rng(seed)
            logits, values = random.standard_normal((3, 8)) * 2, random.standard_normal((8, 2))
            logits[seed % 3, seed] += gap
            logits[2, 7] -= gap
            yield logits, values

    def test_every_removal_is_the_best_by_deletion(self):
        for logits, values in self.cases():
            gone, state = set(), Greedy(logits, values)
            for _ in range(6):
                direct = {j: window_deletion(logits, values, gone | {j}) for j in range(6) if j not in gone}
                objectives = state.objectives()
                for j, expected in direct.items():
                    np.testing.assert_allclose(objectives[j], expected, rtol=1e-9, atol=1e-15)
                best = min(direct, key=lambda j: (direct[j], -j))
                gone.add(best)
                state.remove(best)
                self.assertEqual(set(greedy(logits, values, np.arange(6), 6 - len(gone))[0]), set(range(6)) - gone)

    def test_no_greedy_set_is_better_than_the_best_of_all(self):
        larger = 0
        for logits, values in self.cases():
            for count in range(6):
                ours = window_deletion(logits, values, set(range(6)) - set(greedy(logits, values, np.arange(6), count)[0]))
                optimum = min(window_deletion(logits, values, gone) for gone in map(
                    set, itertools.combinations(range(6), 6 - count)))
                self.assertGreaterEqual(ours, optimum * (1 - 1e-9) - 1e-15)
                if count == 5:
                    np.testing.assert_allclose(ours, optimum, rtol=1e-9, atol=1e-15)
                larger += ours > optimum * 1.01
        self.assertGreater(larger, 0, "greedy was never worse: too easy cases")

    def test_sets_shift_the_output_by_the_identity_of_removal(self):
        for logits, values in self.cases():
            state = Greedy(logits, values)
            for j in (1, 4, 2):
                state.remove(j)
            shift, share = state.shifts()
            np.testing.assert_allclose((shift**2).sum(), sum(deletion(row, values, {1, 2, 4}) for row in logits),
                                       rtol=1e-9, atol=1e-15)
            np.testing.assert_allclose(share.sum(axis=1), 1, rtol=1e-12)

    def test_ties_leave_the_smaller_index_and_may_be_swapped(self):
        logits, values = np.zeros((2, 5)), np.ones((5, 2))  # evicting any entry leaves the output as it is
        self.assertEqual(list(greedy(logits, values, np.arange(4), 2)[0]), [0, 1])
        kept, swaps, wrong = greedy(logits, values, np.arange(4), 2, np.array([2, 3]))
        self.assertEqual((list(kept), swaps, wrong), ([2, 3], 2, 0))

    def test_a_worse_set_is_no_near_tie(self):
        for logits, values in self.cases():
            best = greedy(logits, values, np.arange(6), 5)[0]
            for gone in range(6):
                others = np.setdiff1d(np.arange(6), [gone])
                wrong = greedy(logits, values, np.arange(6), 5, others)[2]
                if not set(others) == set(best) and window_deletion(logits, values, {gone}) > 1e-6:
                    self.assertEqual(wrong, 1)


class Decoding(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="kvbound-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def run_trace(self, policy_text, budget, **sizes):
        file = TraceFile(**{**dict(layers=1, decode_tokens=6), **sizes})
        trace = independent.replay.Trace(file.write(self.folder / "trace.safetensors"))
        policy, layer = parse_policy(policy_text), trace.layer(0)
        heads = [independent.replay.prompt_scores(trace, layer, policy, group, budget) for group in range(trace.kv_heads)]
        kept = [keep(policy, budget - scores.always.sum(), scores) for scores in heads]
        return trace, layer, kept, independent.replay.decode(trace, layer, policy, budget, heads, kept)[0]

    def plain(self, trace, layer, group, kept, policy, budget, running):
        """The evicted positions by attention scores, computed with lists, for tova and h2o (running: {position: score
        so far})."""
        cache, left = [int(position) for position in kept], []
        for step in range(trace.decode_tokens):
            now = trace.prompt_tokens + step
            cache.append(now)
            score = {position: 0.0 for position in cache}
            for head in range(group * trace.group, (group + 1) * trace.group):
                query = layer.query[head, trace.window_queries + step]
                exps = {p: float(np.exp(query @ layer.key[group, p] * trace.scale)) for p in cache}
                for p in cache:
                    score[p] += exps[p] / sum(exps.values()) / trace.group
            if policy.host == "h2o":
                score = {p: running.get(p, 0.0) + score[p] for p in cache}
                running = score
            recent = cache[len(cache) - policy.recent:]
            going = min((p for p in cache if p >= policy.sinks and p not in recent), key=lambda p: (score[p], -p))
            cache.remove(going)
            left.append(going)
        return left

    def test_h2o_and_tova_agree_with_plain_lists(self):
        for text, budget in (("tova", 5), ("tova:sinks=2", 5), ("h2o:window=8:sinks=1:recent=3", 9),
                             ("h2o:window=24:recent=0", 6), ("h2o:window=4", 24), ("tova:sinks=1", 1)):
            window_queries = 24 if "24" in text else 8
            trace, layer, kept, left = self.run_trace(text, budget, window_queries=window_queries)
            policy = parse_policy(text)
            for group in range(trace.kv_heads):
                running = {}
                for row in range(policy.window):
                    at = window_queries - policy.window + row
                    seen = trace.prompt_tokens - window_queries + at + 1
                    for head in range(group * trace.group, (group + 1) * trace.group):
                        exps = np.exp(layer.key[group, :seen] @ layer.query[head, at] * trace.scale)
                        for p in range(seen):
                            running[p] = running.get(p, 0.0) + exps[p] / exps.sum() / trace.group
                always = always_kept(policy, budget, np.arange(trace.prompt_tokens))
                best = sorted((p for p in running if not always[p]), key=lambda p: (-running[p], p))
                self.assertEqual(sorted(best[:budget - always.sum()] + list(np.flatnonzero(always))), list(kept[group]))
                self.assertEqual(self.plain(trace, layer, group, kept[group], policy, budget, running),
                                 list(left[:, group]), text)

    def test_streaming_llm_lets_the_oldest_beyond_the_sinks_go(self):
        _, _, kept, left = self.run_trace("streaming-llm:sinks=2", 5)
        self.assertEqual([list(positions) for positions in kept], [[0, 1, 21, 22, 23]] * 2)
        self.assertEqual(left.tolist(), [[p, p] for p in range(21, 27)])
        _, _, _, left = self.run_trace("streaming-llm:sinks=2", 2)
        self.assertEqual(left.tolist(), [[p, p] for p in range(24, 30)])

    def test_random_keeps_the_smallest_draws_of_each_layer_and_head(self):
        self.assertEqual(draw(0), 0xE220A8397B1DCDAF)  # SplitMix64's first number for seed 0
        path = TraceFile(prompt_tokens=30).write(self.folder / "trace.safetensors")
        trace, policy = independent.replay.Trace(path), parse_policy("random:seed=6:sinks=2:window=3")
        sets = {}
        for index in range(2):
            for group in range(2):
                scores = independent.replay.prompt_scores(trace, trace.layer(index), policy, group)
                order = sorted(range(2, 27), key=lambda position: draw(6, index, group, position))
                for count in (0, 4, 5, 25):
                    kept = [0, 1, *sorted(order[:count]), 27, 28, 29]
                    self.assertEqual(keep(policy, count, scores).tolist(), kept)
                sets[index, group] = tuple(order[:5])
        self.assertEqual(len(set(sets.values())), 4)

    def test_an_entry_seen_alone_never_leaves_h2o_by_exact(self):
        _, _, kept, left = self.run_trace("h2o:window=24:recent=2+exact", 5, window_queries=24)
        self.assertTrue(all(0 in positions for positions in kept))
        self.assertFalse((left == 0).any())

    def test_who_leaves_by_critical_is_outside_stage_one(self):
        score, stage_two = np.array([5.0, 4, 3, 2, 9]), np.array([1.0, 2, 3, 0.5, 0])
        always, weights = np.array([0, 0, 0, 0, 1], bool), np.array([[0.1, 0.1, 0.1, 0.1, 0.6]])

        def leaves(text, weights=weights):
            index, legal = leaving(parse_policy(text), 4, always, score, score, stage_two, stage_two, weights)
            self.assertEqual(list(np.flatnonzero(legal)), [index])
            return index

        self.assertEqual(leaves("tova"), 3)
        self.assertEqual(leaves("tova+critical:alpha=0"), 3)
        self.assertEqual(leaves("tova+critical:alpha=adaptive"), 3)
        stage_two[:] = [0.1, 2, 3, 0.5, 0]
        self.assertEqual(leaves("tova+critical:alpha=0"), 0)
        self.assertEqual(leaves("tova+critical:alpha=0.34"), 3)  # stage one protects entry 0
        # the always-kept entry holds more than half
        self.assertEqual(leaves("tova+critical:alpha=adaptive"), 0)
        self.assertEqual(leaves("tova+critical:alpha=adaptive", np.array([[0.1, 0.1, 0.1, 0.3, 0.4]])), 3)

    def test_ties_leave_the_larger_position_and_the_others_are_legal(self):
        score = np.array([2.0, 1, 1, 1 + 1e-14, 1.1])
        index, legal = leaving(parse_policy("tova"), 4, np.zeros(5, bool), score, score, score, score, score[None])
        self.assertEqual((index, list(np.flatnonzero(legal))), (2, [1, 2, 3]))

    def test_dumps_of_its_own_agree_and_wrong_choices_do_not(self):
        path = TraceFile(decode_tokens=5, prompt_tokens=40).write(self.folder / "trace.safetensors")
        trace = independent.replay.Trace(path)
        for text in ("streaming-llm:sinks=1", "random:seed=2:sinks=1:window=4", "tova:sinks=1", "tova+exact",
                     "tova+critical:alpha=adaptive", "h2o:window=8", "h2o:window=8:recent=2+obcache-joint:space=projected",
                     "h2o:window=4+critical:gqa=product-of-means", "h2o:window=4+theta-sweep", "snapkv:window=4+greedy",
                     "snapkv:window=4+obcache-key", "snapkv:window=8:pool=3+exact:space=projected"):
            dump = recompute(path, text, "12")
            for kind in ("evicted", "kept", None):
                if kind == "evicted" and "evicted" not in dump.kinds():
                    continue
                changed = dump.copy()
                if kind == "evicted":
                    # one step too early
                    changed.array(1, "evicted")[3, 0] = changed.array(1, "evicted")[4, 0]
                elif kind == "kept":  # replaces an entry by another candidate
                    row = changed.array(1, "kept")[:12]
                    row[...] = np.sort(np.append(np.delete(row, 1), np.setdiff1d(np.arange(8, 30), row)[0]))
                out = changed.write(self.folder / "dump.safetensors")
                failures = [text for _, text in independent.replay.Judgement(trace, out).failures]
                with self.subTest(f"{text} {kind}"):
                    if kind is None:
                        self.assertEqual(failures, [])
                    else:
                        self.assertTrue(any(kind in failure for failure in failures), failures)

    def test_tensors_that_the_policy_has_not_are_refused(self):
        path = TraceFile().write(self.folder / "trace.safetensors")
        trace = independent.replay.Trace(path)
        whole = recompute(path, "h2o:window=4+critical", "9")
        for text, extra in (("snapkv:window=4", "evicted"), ("streaming-llm", "score"), ("streaming-llm", "score_positions"),
                            ("random:window=4", "score"), ("random:window=4", "evicted"),
                            ("tova", "stage_two_score"), ("tova+exact", "projected_value_norms")):
            dump = recompute(path, text, "9")
            dump.tensors[f"layers.0.{extra}"] = whole.tensors[f"layers.0.{extra}"]
            failures = independent.replay.Judgement(trace, dump.write(self.folder / "dump.safetensors")).failures
            self.assertEqual([failure for _, failure in failures],
                             [f"layers.0.{extra} is not a tensor of this policy and trace"])

    def test_a_near_tie_taken_the_other_way_is_followed(self):
        file = TraceFile(layers=1, query_heads=1, kv_heads=1, decode_tokens=4)
        file.tensors["layers.0.key"][1][...] = 0  # all entries have the same attention weight
        path = file.write(self.folder / "trace.safetensors")
        trace = independent.replay.Trace(path)
        dump = recompute(path, "tova", "9")
        self.assertEqual(dump.array(0, "evicted").tolist(), [[24], [25], [26], [27]])
        other = recompute(path, "tova", "9", evicted={0: np.array([[3], [24], [5], [25]])})
        judged = independent.replay.Judgement(trace, other.write(self.folder / "dump.safetensors"))
        self.assertEqual(([], 4), (judged.failures, judged.swaps))
        other.put(0, "output", dump.array(0, "output"))
        self.assertTrue(independent.replay.Judgement(trace, other.write(self.folder / "dump.safetensors")).failures)


class Policies(unittest.TestCase):
    def test_defaults(self):
        policy = parse_policy("h2o:window=16")
        self.assertEqual((policy.host, policy.window, policy.sinks, policy.recent, policy.score, policy.selection),
                         ("h2o", 16, 0, 16, "attention", "top-k"))
        self.assertEqual(parse_policy("streaming-llm").sinks, 4)
        policy = parse_policy("random")
        self.assertEqual((policy.seed, policy.sinks, policy.recent, policy.ranks, policy.dynamic), (0, 4, 32, False, False))
        self.assertEqual(parse_policy("tova+exact").space, "head")

    def test_what_has_no_meaning_is_refused(self):
        for text in ("lru", "snapkv:sinks=1", "snapkv:pool=2", "snapkv:window=0", "tova:window=3", "tova:sinks=-1",
                     "h2o:sinks=1:sinks=2", "h2o+h2o", "h2o+exact:space=both", "h2o+obcache", "tova+exact+obcache-key",
                     "streaming-llm+exact", "streaming-llm+critical", "streaming-llm+greedy", "h2o+greedy",
                     "random+exact", "random+critical", "random+greedy", "random:seed=-1", "random:recent=1",
                     "snapkv+exact+greedy", "snapkv+obcache-value+critical", "tova+exact+theta-sweep", "snapkv+greedy:x=1",
                     "snapkv+critical:alpha=2", "snapkv+critical+critical", "snapkv+attention", "snapkv+", ""):
            with self.subTest(text), self.assertRaises(ValueError):
                parse_policy(text)

    def test_budgets_hold_what_always_stays(self):
        for text, least in (("snapkv:window=20", 20), ("h2o:window=8:sinks=2", 10), ("h2o:recent=3", 3), ("tova:sinks=5", 5),
                            ("tova", 1), ("streaming-llm", 4), ("random", 36), ("random:sinks=0:window=0", 1)):
            policy = parse_policy(text)
            self.assertEqual(resolve_budget(str(least), SIZES, policy), least)
            self.assertEqual(resolve_budget("100%", SIZES, policy), 100)
            for budget in (least - 1, 101):
                with self.assertRaises(ValueError):
                    resolve_budget(str(budget), SIZES, policy)
        for text in ("snapkv:window=41", "h2o:window=41"):
            with self.assertRaises(ValueError):
                resolve_budget("50", SIZES, parse_policy(text))

    def test_near_ties_are_few(self):
        self.assertTrue(within_tie(1.0, 1 - 1e-13) and within_tie(1.0, 2.0) and within_tie(np.inf, np.inf))
        self.assertFalse(within_tie(1.0, 1 - 1e-11) or within_tie(np.inf, 1.0) or within_tie(np.nan, 1.0))
        self.assertTrue(within_tie(1.0, 0.999, 1e10) and not within_tie(1.0, 0.999, 1e9))
        score = np.array([3.0, 2, 2, 1])
        self.assertTrue(near_tie(score, 0 * score, np.array([0, 1]), np.array([0, 2])))
        self.assertFalse(near_tie(score, 0 * score, np.array([0, 1]), np.array([1, 2])))
        self.assertEqual(list(select_top(score, 2)), [0, 1])

    def test_h2o_chooses_among_those_not_always_kept(self):
        scores = SimpleNamespace(candidates=np.array([1, 2, 3]), always=np.array([1, 0, 0, 0, 1], bool))
        score = np.array([9.0, 1, 3, 2, 8])
        self.assertEqual(list(choices(parse_policy("h2o"), 2, scores, score, score)[0][2]), [2, 3])


if __name__ == "__main__":
    unittest.main()
