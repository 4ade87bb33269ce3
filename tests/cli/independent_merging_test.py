#!/usr/bin/python3
"""Tests of the independent implementation's merging and allocation: identities, plain lists, 60 digits, cases by hand.

usage: independent_merging_test.py      needs no program
"""
import decimal
import itertools
import tempfile
import unittest
import unittest.mock
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import independent.replay
from independent import merged_cache
from independent.allocation import (adakv_wins, floors_and_largest_fractions, head_budgets, layer_budgets,
                                    legal_head_budgets)
from independent.merged_replay import keep_and_merge
from independent.merging import cosines, merge_cluster, one_score, similarity_weights
from independent.draws import GOLDEN, mixed
from independent.policy import parse_policy
from independent.prediction import Prediction, log_sum
from independent.scores import softmax
from independent.targets import cam_draw, cam_takes, chains, legal_targets, merged_first, settle
from support.dumps import recompute
from support.kvbound_cli import TraceFile

decimal.getcontext().prec = 60


def options(text):
    return parse_policy("tova+" + text).merge


def random_cluster(seed, heads=1, entries=4, width=5, spread=1.0):
    """A random cluster with its queries' raw scores; the cache has no other entries."""
    random = np.random.default_rng(seed)
    cluster = SimpleNamespace(keys=random.standard_normal((entries, width)),
                              values=random.standard_normal((entries, width)),
                              votes=random.integers(1, 9, entries).astype(float), scale=0.4,
                              queries=spread * random.standard_normal((heads, width)))
    cluster.log_scores = cluster.scale * cluster.queries @ cluster.keys.T
    cluster.key_terms, cluster.value_terms = abs(cluster.keys), abs(cluster.values)
    cluster.score_terms = abs(cluster.log_scores)
    cluster.log_totals = log_sum(cluster.log_scores + np.log(cluster.votes))
    cluster.log_total_terms = np.zeros(heads)
    return cluster


class Groups(unittest.TestCase):
    def require_lossless(self, cluster, result, tolerance=1e-12):
        """The merged entry has the members' total votes and, with them, the logit ln W of the cluster for every query.
        """
        for query, logs in zip(cluster.queries, cluster.log_scores + np.log(cluster.votes)):
            logit = cluster.scale * query @ result.key + np.log(result.votes)
            np.testing.assert_allclose(logit, log_sum(logs), tolerance, 1e-12)
        self.assertEqual(result.votes, cluster.votes.sum())

    def test_minimum_norm_and_zip_are_lossless_for_one_head_and_a_convex_key_is_not(self):
        for seed in range(200):
            cluster = random_cluster(seed, spread=(0.01, 1, 100)[seed % 3])
            for text in ("keepkv", "keepkv:gqa=mean", "keepkv-paper"):
                result, *others = merge_cluster(options(text), cluster)
                self.assertEqual(others, [])
                self.require_lossless(cluster, result, 1e-9)
                shares = softmax(cluster.log_scores[0] + np.log(cluster.votes))
                np.testing.assert_allclose(result.value, shares @ cluster.values, 1e-10, 1e-12)
            if seed % 3:
                with self.assertRaises(AssertionError):
                    self.require_lossless(cluster, merge_cluster(options("keepkv:key=convex"), cluster)[0])

    def test_joint_gives_independent_queries_their_logits_and_its_value_cannot_be_bettered(self):
        for seed in range(50):
            cluster = random_cluster(seed, heads=3)
            cluster.log_totals = cluster.log_totals + np.log([1.5, 3, 9])
            result = merge_cluster(options("keepkv:rank=0"), cluster)[0]
            self.require_lossless(cluster, result)
            weights = np.exp(log_sum(cluster.log_scores + np.log(cluster.votes)) - cluster.log_totals)
            means = np.stack([softmax(logs) @ cluster.values for logs in cluster.log_scores + np.log(cluster.votes)])

            def loss(value):
                return ((weights[:, None] * (value - means))**2).sum()

            for step in np.random.default_rng(seed).standard_normal((20, 5)) * 0.01:
                self.assertLess(loss(result.value), loss(result.value + step))
            across = np.linalg.svd(cluster.queries)[2][3:]  # orthogonal to all queries
            keys = [softmax(logs) @ cluster.keys for logs in cluster.log_scores + np.log(cluster.votes)]
            np.testing.assert_allclose(across @ result.key, across @ np.mean(keys, axis=0), 1e-9, 1e-12)

    def test_dropped_directions_do_not_move_the_key_and_both_sides_of_the_bar_are_legal(self):
        cluster = random_cluster(1, heads=2, width=3)
        cluster.queries = np.array([[1.0, 0, 0], [0, 0.3, 0]])
        cluster.log_scores = cluster.scale * cluster.queries @ cluster.keys.T
        both, neither = (merge_cluster(options(f"keepkv:rank={rank}"), cluster) for rank in ("0.29", "0.31"))
        self.assertEqual((len(both), len(neither)), (1, 1))
        at_the_bar = merge_cluster(options("keepkv:rank=0.3"), cluster)
        self.assertEqual(len(at_the_bar), 2)
        for result in (both[0], neither[0]):
            self.assertTrue(any(np.allclose(result.key, other.key, 1e-12) for other in at_the_bar))
        mean = np.mean([softmax(logs) @ cluster.keys for logs in cluster.log_scores + np.log(cluster.votes)], axis=0)
        np.testing.assert_allclose(neither[0].key[1:], mean[1:], 1e-12)
        self.assertGreater(abs(both[0].key[1] - mean[1]), 1e-3)

    def test_divergence_has_all_digits_however_near_or_far_the_scores(self):
        for seed, spread in itertools.product(range(20), (1e-9, 1e-5, 1e-2, 1, 1e2, 1e4)):
            random = np.random.default_rng(seed)
            scores, votes = spread * random.standard_normal(5), random.integers(1, 10**6 if seed % 2 else 3, 5).astype(float)
            weights = [Decimal(p) * Decimal(s).exp() for p, s in zip(votes.tolist(), scores.tolist())]
            total, everyone = sum(weights), sum(map(Decimal, votes.tolist()))
            exact = sum(w / total * ((w / total) / (Decimal(p) / everyone)).ln() for w, p in zip(weights, votes.tolist()))
            found = one_score(scores, abs(scores), votes)
            self.assertLess(abs(found.divergence - float(exact)), 1e-13 * (found.divergence_terms + float(exact)))
            if spread >= 1:
                np.testing.assert_allclose(found.divergence, float(exact), 1e-9)
        self.assertEqual(one_score(np.full(3, 7.7), np.ones(3), np.array([1.0, 2, 9])).divergence, 0)

    def test_zip_of_equal_scores_leaves_the_mean_and_singular_groups_take_the_minimum_norm(self):
        cluster = random_cluster(3, entries=2)
        for score in (0.0, 5.0):
            cluster.log_scores[...] = score
            result, *_ = merge_cluster(options("keepkv-paper"), cluster)
            np.testing.assert_allclose(result.key, cluster.votes @ cluster.keys / cluster.votes.sum(), 1e-12)
        cluster.votes[...] = 1
        cluster.log_scores = np.array([[1.0, 0.0]])
        # m = 0 < KL up to rounding
        cluster.log_scores[0] -= softmax(cluster.log_scores[0]) @ cluster.log_scores[0]
        results = merge_cluster(options("keepkv-paper"), cluster)
        minimum_norm = merge_cluster(options("keepkv:gqa=mean"), cluster)[0]
        self.assertTrue(any(np.allclose(result.key, minimum_norm.key, 1e-12) for result in results))
        # near the singularity: the key is far away, and its error bounds are large
        cluster.log_scores += 1e-3
        result, *others = merge_cluster(options("keepkv-paper"), cluster)
        self.assertEqual(others, [])
        self.assertGreater(abs(result.key).max(), 50)
        self.assertGreater(result.key_terms.min(), 1e3)

    def test_baselines_by_hand(self):
        keys = np.array([[2.0, 0], [0, 1], [-1, 0], [0, 0]])
        np.testing.assert_allclose(similarity_weights(options("d2o"), keys), softmax(np.array([1.0, 0, -1, 0])), 1e-14)
        np.testing.assert_allclose(similarity_weights(options("d2o"), keys[::-1][:2]), softmax(np.array([1.0, 0])), 1e-14)
        squared = np.array([0, 5, 9, 4.0])
        np.testing.assert_allclose(similarity_weights(options("kvmerger"), keys), softmax(-squared / (2 * 6)), 1e-14)
        np.testing.assert_allclose(similarity_weights(options("kvmerger"), keys[[0, 0]]), [0.5, 0.5])
        cluster = random_cluster(4)
        for text in ("convex", "convex:gqa=mean"):
            cluster.votes[...] = 1
            result = merge_cluster(options(text), cluster)[0]
            self.assertEqual(result.votes, 1)
            np.testing.assert_allclose(result.key, softmax(cluster.log_scores[0]) @ cluster.keys, 1e-12)
        self.assertEqual(mixed(GOLDEN), 0xE220A8397B1DCDAF)  # SplitMix64's first number for seed 0
        twice = mixed((mixed(GOLDEN) + GOLDEN) % 2**64)
        self.assertEqual(cam_draw(0, 0, 0), (mixed((twice + GOLDEN) % 2**64) >> 11) / 2**53)
        draws = [cam_draw(7, head, position) for head in range(4) for position in range(500)]
        self.assertLess(abs(np.mean(draws) - 0.5), 0.05)
        merge = options("cam:seed=7")
        self.assertEqual(cam_takes(merge, 1, 9, 0.3, np.array([0.1, 0.2])), (True, False))
        self.assertEqual(cam_takes(merge, 1, 9, 0.0, np.zeros(2)), (False, False))
        self.assertEqual(cam_takes(merge, 1, 9, 0.3, np.zeros(0)), (False, False))
        share = np.mean([cam_takes(merge, 0, position, 0.1, np.array([0.4]))[0] for position in range(2000)])
        self.assertLess(abs(share - 0.25), 0.05)


class Predictions(unittest.TestCase):
    def test_the_moving_average_is_the_plain_one(self):
        random, now = np.random.default_rng(5), np.arange(6)
        for normalisation, scores, decay in itertools.product(("exact", "paper"), ("attention", "raw"), (0.0, 0.5, 0.9)):
            prediction = Prediction(options(f"keepkv:normalisation={normalisation}:scores={scores}:ema={decay}"), 2, 6, 20)
            sums, counted, votes = np.zeros((2, 6)), np.zeros(6), random.integers(1, 4, 6).astype(float)
            for query in range(7):
                logits = random.standard_normal((2, 6))
                logits[:, query + 1:] = -np.inf
                plain = np.exp(logits)
                plain = plain / ((votes * plain).sum(axis=1, keepdims=True) if scores == "attention" else 1)
                prediction.accumulate(now, logits, np.zeros((2, 6)), votes)
                seen = now <= query
                sums[:, seen] = decay * sums[:, seen] + (1 - decay) * plain[:, seen]
                counted[seen] = decay * counted[seen] + 1 - decay
            expected = sums / (counted if normalisation == "exact" else 1 - decay**20)
            np.testing.assert_allclose(np.exp(prediction.log_scores(now)[0]), expected, 1e-12)
            prediction.replace(2, np.array([-1.0, 3.0]), np.zeros(2))
            np.testing.assert_allclose(prediction.log_scores(now)[0][:, 2], [-1, 3], 1e-12)

    def test_constant_scores_are_exact_by_exact_and_short_by_paper(self):
        for text, expected in (("exact", 2.0), ("paper", 2 * (1 - 0.9**9) / (1 - 0.9**40))):  # paper: 1.2435
            prediction = Prediction(options(f"keepkv:scores=raw:normalisation={text}"), 1, 1, 40)
            for _ in range(9):
                prediction.accumulate(np.arange(1), np.full((1, 1), np.log(2)), np.zeros((1, 1)), np.ones(1))
            np.testing.assert_allclose(np.exp(prediction.log_scores(np.arange(1))[0]), expected, 1e-12)

    def test_huge_logits_do_not_overflow(self):
        prediction, now = Prediction(options("keepkv:scores=raw"), 1, 2, 9), np.arange(2)
        for logit in (-1e4, 1e4, 9e3):
            prediction.accumulate(now, np.array([[logit, -logit]]), np.zeros((1, 2)), np.ones(2))
        np.testing.assert_allclose(prediction.log_scores(now)[0][0], [1e4, 1e4], 1e-3)


class Targets(unittest.TestCase):
    def test_the_most_similar_wins_ties_to_the_smaller_and_the_threshold_is_exceeded(self):
        keys, others = np.array([[1.0, 0], [0, 0], [1, 1]]), np.array([[0, 2.0], [3, 0], [3, 0], [0, 0]])
        likeness = cosines(keys, others)
        np.testing.assert_allclose(likeness, [[0, 1, 1, 0], [0, 0, 0, 0], [0.5**0.5, 0.5**0.5, 0.5**0.5, 0]], 1e-15)
        zeros = np.zeros_like(likeness)
        self.assertEqual(legal_targets(options("keepkv"), likeness, zeros), [[1, 2], [-1], [-1]])
        self.assertEqual(legal_targets(options("keepkv:threshold=none"), likeness, zeros), [[1, 2], [0, 1, 2, 3], [0, 1, 2]])
        self.assertEqual(legal_targets(options("keepkv:threshold=1"), likeness, zeros), [[-1], [-1], [-1]])
        half = legal_targets(options(f"keepkv:threshold={0.5**0.5:.17f}"), likeness, zeros)
        self.assertEqual(sorted(half[2]), [-1, 0, 1, 2])
        self.assertEqual(half[:2], [[1, 2], [-1]])

    def test_merge_first_by_hand(self):
        keys = np.array([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1], [1, 0.05]])
        score, candidates = np.array([5.0, 1, 4, 4, 2]), np.arange(5)
        merge = options("keepkv:order=merge-first")
        likeness = cosines(keys, keys)
        # 1 via 4
        self.assertEqual(chains(merge, score, candidates, likeness), {0: 0, 1: 0, 2: 2, 3: 3, 4: 0})
        self.assertEqual(chains(options("keepkv:order=merge-first:threshold=none"), score, candidates, likeness),
                         dict.fromkeys(range(5), 0))
        self.assertEqual(merged_first(merge, score, score, candidates, keys, 2), ({0: [1, 4], 2: []}, True))
        self.assertEqual(merged_first(merge, score, score, candidates, keys, 9), ({0: [1, 4], 2: [], 3: []}, True))
        self.assertEqual(merged_first(merge, score, score, candidates, keys, 2, np.array([0, 3])),
                         ({0: [1, 4], 3: []}, True))
        self.assertFalse(merged_first(merge, score, score, candidates, keys, 2, np.array([2, 3]))[1])

    def test_what_was_seen_settles_near_ties_and_nothing_else(self):
        choices = {10: [1, 2], 11: [2], 12: [3, -1], 13: [-1]}
        for truth in ({10: 1, 11: 2, 12: 3, 13: -1}, {10: 2, 11: 2, 12: -1, 13: -1}):
            found, swaps = settle(choices, [1, 2, 3], lambda target, members: members == [
                entry for entry, where in truth.items() if where == target])
            self.assertEqual((found, swaps), (truth, sum(truth[entry] != legal[0] for entry, legal in choices.items())))
        self.assertEqual(settle(choices, [1, 2, 3], lambda *_: False)[1], 0)


class Allocation(unittest.TestCase):
    def test_pyramids_by_hand_and_their_totals(self):
        for layers, text, budget, expected in (
                (3, "tova+pyramid:beta=2", 10, [15, 10, 5]), (4, "tova+pyramid:beta=2", 10, [15, 12, 8, 5]),
                (4, "snapkv:window=8+pyramid:beta=20", 10, [12, 11, 9, 8]), (2, "tova+pyramid:beta=1", 10, [10, 10]),
                (4, "tova+pyramid:beta=2:shape=cosine", 10, [15, 13, 7, 5]), (1, "tova+pyramid", 7, [7]),
                (2, "h2o:window=4:sinks=2+pyramid:beta=20", 99, [100, 98]),
                (3, "streaming-llm:sinks=9+pyramid", 10, [11, 10, 9]),
                (3, "random:sinks=2:window=7+pyramid", 10, [11, 10, 9])):
            trace = SimpleNamespace(layers=layers, prompt_tokens=100)
            self.assertEqual(layer_budgets(trace, parse_policy(text), budget), expected, text)
        for layers, budget, beta, shape in itertools.product((2, 3, 7, 32), (20, 33, 64), (1, 3, 20), ("linear", "cosine")):
            budgets = layer_budgets(SimpleNamespace(layers=layers, prompt_tokens=100),
                                    parse_policy(f"tova+pyramid:beta={beta}:shape={shape}"), budget)
            self.assertEqual((sum(budgets), sorted(budgets, reverse=True)), (layers * budget, budgets))

    def test_adakv_by_hand_and_its_near_ties(self):
        def head(*attention):
            return SimpleNamespace(attention=np.array(attention), candidates=np.arange(4), always=np.zeros(4, bool))

        heads = [head(9.0, 8, 7, 1), head(6.0, 5, 1, 1)]
        policy = parse_policy("tova+adakv")
        self.assertEqual(adakv_wins(heads, 2)[0].tolist(), [3, 1])
        self.assertEqual(head_budgets(policy, 2, heads), [3, 1])  # from 2.8 and 1.2
        # 2.5 and 1.5: a tie
        self.assertEqual(head_budgets(parse_policy("tova+adakv:safeguard=0.5"), 2, heads), [3, 1])
        self.assertEqual(head_budgets(parse_policy("tova+adakv:safeguard=1"), 2, heads), [2, 2])
        self.assertEqual(head_budgets(parse_policy("tova"), 2, heads), [2, 2])
        self.assertTrue(legal_head_budgets(policy, 2, heads, [3, 1]))
        self.assertFalse(legal_head_budgets(policy, 2, heads, [2, 2]))
        tied = [head(9.0, 8, 6, 1), head(6.0, 5, 1, 1)]
        self.assertEqual(head_budgets(parse_policy("tova+adakv:safeguard=0"), 2, tied), [3, 1])
        tied[1].attention[1] = 6 * (1 - 1e-15)
        self.assertTrue(legal_head_budgets(parse_policy("tova+adakv:safeguard=0"), 2, tied, [2, 2]))
        self.assertFalse(legal_head_budgets(parse_policy("tova+adakv:safeguard=0"), 2, tied, [1, 3]))
        self.assertFalse(legal_head_budgets(parse_policy("tova"), 2, tied, [3, 1]))

    def test_largest_fractions_conserve_totals(self):
        self.assertEqual(floors_and_largest_fractions([Fraction(5, 2), Fraction(3, 2)], 4), [3, 1])
        self.assertEqual(floors_and_largest_fractions([Fraction(9, 4), Fraction(7, 4)], 4), [2, 2])


class Replays(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="kvbound-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def trace(self, change=None, **sizes):
        file = TraceFile(**{**dict(decode_tokens=8, prompt_tokens=40, layers=2), **sizes})
        if change:
            change(file)
        path = file.write(self.folder / "trace.safetensors")
        return path, independent.replay.Trace(path)

    def failures(self, trace, dump):
        judged = independent.replay.Judgement(trace, dump.write(self.folder / "dump.safetensors"))
        return [text for _, text in judged.failures], judged.swaps

    def heads(self, trace, text, budget=12):
        """Every merging head in its state after the prompt."""
        policy = parse_policy(text)
        for index in range(trace.layers):
            layer = trace.layer(index)
            for group in range(trace.kv_heads):
                scores = independent.replay.prompt_scores(trace, layer, policy, group, budget)
                kept, members = keep_and_merge(policy, budget, layer, group, scores)
                yield layer, merged_cache.MergingHead(trace, layer, policy, budget, group, scores, kept, members)

    def test_the_last_query_loses_nothing_with_its_own_scores_and_one_head(self):
        _, trace = self.trace(query_heads=2)
        lossy = 0
        for text in ("snapkv:window=4", "tova:sinks=1", "h2o:window=8:recent=2+exact", "streaming-llm:sinks=1",
                     "random:window=2"):
            for key in ("min-norm", "zip:gqa=mean"):
                for layer, head in self.heads(trace, f"{text}+keepkv:predict=current:threshold=none:key={key}"):
                    n, row = trace.prompt_tokens, trace.window_queries - 1
                    self.assertEqual(head.votes[head.positions].sum(), n)

                    def output(query, keys, values, votes):
                        return softmax(trace.scale * keys @ query + np.log(votes)) @ values

                    group, query = head.group, layer.query[head.heads[0], row]
                    now = head.positions
                    np.testing.assert_allclose(output(query, head.key[now], head.value[now], head.votes[now]), output(
                        query, layer.key[group, :n], layer.value[group, :n], np.ones(n)), 1e-9)
                    for step in range(trace.decode_tokens):
                        left, _, _ = head.step(step)
                        query, now = layer.query[head.heads[0], row + 1 + step], head.positions
                        after = output(query, head.key[now], head.value[now], head.votes[now])
                        np.testing.assert_allclose(after, head.output[0], 1e-8, 1e-11)
                        lossy += left >= 0
                        self.assertEqual(head.votes[now].sum(), n + step + 1)
        self.assertGreater(lossy, 0, "no entry was ever evicted")

    def test_rebuilds_lose_nothing(self):
        path, trace = self.trace(query_heads=2)
        for text in ("snapkv:window=4", "tova", "h2o:window=8:recent=2", "tova+adakv", "h2o:window=4+critical"):
            dump = recompute(path, text + "+keepkv:threshold=none:period=4", "12")
            for layer in range(2):
                loss = dump.array(layer, "perturbation")
                self.assertLess(loss[3::4].max(), 1e-11)
                self.assertGreater(np.delete(loss, [3, 7], axis=0).min(), 1e-6)
                if not text.startswith("snapkv"):
                    self.assertTrue((dump.array(layer, "evicted")[3::4] == -1).all())
                    self.assertTrue((dump.array(layer, "merged_into")[3::4] == -2).all())

    def test_a_threshold_of_one_is_plain_eviction(self):
        path, _ = self.trace()
        for text in ("snapkv:window=4", "tova:sinks=1+exact", "h2o:window=8:recent=2+critical", "streaming-llm",
                     "random:window=4", "tova+adakv"):
            plain = recompute(path, text, "12")
            for merge in ("keepkv:threshold=1", "convex:threshold=1", "d2o:threshold=1", "kvmerger:threshold=1"):
                dump = recompute(path, f"{text}+{merge}", "12")
                for kind in plain.kinds() - {"bound"}:
                    for layer in range(2):
                        np.testing.assert_allclose(dump.array(layer, kind), plain.array(layer, kind), 1e-9, 1e-13)
                self.assertEqual(dump.array(1, "votes").max(), 1)

    def policies(self):
        return ("snapkv:window=4+keepkv:threshold=0.3",
                "snapkv:window=4:pool=1+adakv+keepkv:threshold=0.2:order=merge-first",
                "tova:sinks=1+exact+keepkv-paper:threshold=none", "h2o:window=8:recent=2+obcache-key+convex:threshold=0",
                "h2o:window=4+critical+keepkv:threshold=0.1:period=3:gqa=mean:key=convex", "tova+adakv+d2o:threshold=0.2",
                "h2o:window=4+pyramid:shape=cosine+kvmerger:threshold=0", "tova+cam:neighbours=3:seed=9",
                "streaming-llm:sinks=1+keepkv:predict=current:scores=raw:rank=0:threshold=0.5",
                "random:seed=2:sinks=1:window=3+pyramid+keepkv:threshold=0")

    def test_dumps_of_its_own_agree_and_one_wrong_number_does_not(self):
        path, trace = self.trace()
        for text in self.policies():
            dump = recompute(path, text, "12")
            self.assertEqual(self.failures(trace, dump), ([], 0), text)
            for kind in sorted(dump.kinds()):
                if kind == "score_positions":
                    continue
                changed = dump.copy()
                array = changed.array(1, kind)
                array.flat[array.size // 2] += 1 if array.dtype == np.int64 else abs(array).max() * 1e-6
                failures, _ = self.failures(trace, changed)
                self.assertTrue(any(kind in failure for failure in failures), f"{text}: {kind}")

    def test_tied_targets_taken_the_other_way_are_followed_and_counted(self):
        def twins(file):
            for layer in range(2):  # entries 0 and 1 are always kept, with equal keys and different values
                key = file.tensors[f"layers.{layer}.key"][1]
                key[:, 1] = key[:, 0]
                key[:, 2:8] = key[:, [0]] + 0.05 * key[:, 2:8]

        path, trace = self.trace(twins)
        text = "tova:sinks=2+keepkv:threshold=0.95"
        right = recompute(path, text, "12")
        self.assertEqual(self.failures(trace, right), ([], 0))

        def last(right_targets):
            def wrong(*arguments):
                return [legal[::-1] if legal[0] >= 0 else legal for legal in right_targets(*arguments)]
            return wrong

        with unittest.mock.patch.object(merged_cache, "legal_targets", last(merged_cache.legal_targets)):
            other = recompute(path, text, "12")
        failures, swaps = self.failures(trace, other)
        self.assertEqual(failures, [])
        self.assertGreater(swaps, 0)
        self.assertFalse(np.array_equal(other.array(0, "votes"), right.array(0, "votes")))

    def test_a_wrong_target_is_found(self):
        path, trace = self.trace()
        for text in ("tova+keepkv:threshold=none", "tova+d2o:threshold=none", "tova+cam:seed=3:neighbours=2"):
            dump = recompute(path, text, "12")
            into = dump.array(1, "merged_into")
            into[4, 0] = dump.array(1, "kept").max() if into[4, 0] < 0 else -1
            failures, _ = self.failures(trace, dump)
            self.assertTrue(any("merged_into of step 4" in failure for failure in failures), text)

    def test_compositions_without_meaning_are_refused(self):
        for text in ("tova+keepkv:key=zip", "tova+keepkv:key=zip:gqa=joint", "tova+exact+keepkv:order=merge-first",
                     "tova+critical+keepkv:order=merge-first", "streaming-llm+keepkv:order=merge-first",
                     "streaming-llm+keepkv:period=2", "streaming-llm+adakv", "random+keepkv:order=merge-first",
                     "random+keepkv:period=2", "random+adakv", "tova+keepkv:period=0", "tova+keepkv:ema=1",
                     "tova+keepkv:threshold=1.1", "tova+keepkv+cam", "tova+adakv+pyramid", "tova+d2o:ema=0.5",
                     "tova+cam:threshold=0.5", "snapkv+greedy+keepkv:period=8", "tova+adakv:safeguard=2",
                     "tova+pyramid:beta=0", "tova+convex:key=zip"):
            with self.subTest(text), self.assertRaises(ValueError):
                parse_policy(text)
        paper = parse_policy("tova+keepkv-paper").merge
        self.assertEqual(vars(paper), vars(parse_policy(
            "tova+keepkv:key=zip:gqa=mean:scores=raw:normalisation=paper").merge))


if __name__ == "__main__":
    unittest.main()
