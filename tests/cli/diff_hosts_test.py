"""`kvbound diff` for hosts that evict while decoding, for scores based on removing an entry, and for greedy selection.

usage: diff_hosts_test.py KVBOUND      KVBOUND: the program's path
"""
import re
from fractions import Fraction
from unittest import mock

import numpy as np

import independent.decoding
import independent.replay
import independent.scores
from support import faults, kvbound_cli
from support.diffs import DiffTest
from support.dumps import recompute
from support.kvbound_cli import INCONCLUSIVE, MISMATCH, SAMPLES, TraceFile

DYNAMIC = ("h2o:window=8", "h2o:window=12:sinks=2:recent=3", "tova", "tova:sinks=3", "streaming-llm:sinks=4",
           "h2o:window=8+critical", "h2o:window=8:recent=2+critical:alpha=adaptive:gqa=product-of-means:norm=l2",
           "tova+critical:alpha=0.25:epsilon=0", "tova:sinks=1+critical:alpha=adaptive", "h2o:window=8+theta-sweep",
           "tova+theta-sweep:norm=l2", "h2o:window=8+obcache-value:space=projected", "h2o:window=8+obcache-key",
           "tova+obcache-joint", "h2o:window=8:recent=0+obcache-joint:space=projected", "tova+exact",
           "h2o:window=8+exact", "tova:sinks=2+exact:space=projected")
STATIC = ("snapkv:window=8+obcache-value", "snapkv:window=8:pool=1+obcache-key:space=projected",
          "snapkv:window=8+obcache-joint", "snapkv:window=8+exact", "snapkv:window=8:pool=1+exact:space=projected",
          "random:sinks=2:window=8", "snapkv:window=8+greedy")
SCORED = tuple(policy for policy in DYNAMIC + STATIC if not policy.startswith(("streaming-llm", "random")))
DECIDING = {"h2o:window=8": "score", "tova": "score", "h2o:window=8+exact": "score",
            "tova+obcache-joint:space=projected": "score", "h2o:window=8+critical": "stage_two_score"}
BY_POLICY = -2  # not a position: the policy chooses the evicted entry


class RightDumps(DiffTest):
    def test_a_recorded_models_dumps_agree(self):
        trace = SAMPLES / "pocket-gqa.safetensors"
        for policy in ("h2o+obcache-joint", "tova+exact:space=projected", "h2o+critical:alpha=adaptive"):
            self.agrees(trace, self.reference(trace, policy, "12.5%", "--layers", "1,3", "--steps", "5"))

    def test_single_precision_is_told_from_double(self):
        trace = self.trace("F32")
        for policy in SCORED[:-1]:
            dump = recompute(trace, policy, "40", np.float32)
            dump.metadata["accumulate"] = dump.metadata["storage"] = "F64"
            with self.subTest(policy):
                self.diff(trace, dump, MISMATCH)

    def test_any_subset_of_the_tensors_may_be_there(self):
        trace = self.trace("BF16")
        for policy in ("h2o:window=8+critical", "tova+exact", "streaming-llm"):
            dump = self.reference(trace, policy)
            for kind in dump.kinds():
                with self.subTest(f"{policy} {kind}"):
                    self.agrees(trace, dump.only({kind}))
                    self.agrees(trace, dump.only(dump.kinds() - {kind}))
            self.agrees(trace, dump.only({"evicted", "output"}))

    def test_the_first_steps_and_none_may_be_there(self):
        trace = self.trace(decode=6)
        for steps in ("1", "5"):
            report = self.agrees(trace, self.reference(trace, "h2o:window=8", "40", "--steps", steps))
            self.assertEqual(report["dump"]["steps"], int(steps))
        short = TraceFile(decode_tokens=0).write(self.folder / "short.safetensors")
        self.passes("replay", short, "--policy", "tova", "--budget", "9", "--dump", "d.safetensors", code=INCONCLUSIVE)
        self.passes("diff", short, "d.safetensors")

    def test_evictions_may_have_their_former_name(self):
        trace = self.trace()
        dump = self.reference(trace, "tova", "40")
        for layer in range(2):
            dump.tensors[f"layers.{layer}.left"] = dump.tensors.pop(f"layers.{layer}.evicted")
        report, _ = self.diff(trace, dump)
        self.assertEqual(report["verdict"], "agrees")
        self.assertIn("evicted", [item["tensor"] for item in report["tensors"]])
        dump.array(1, "left")[1, 0] = 10**6
        _, stderr = self.differs(trace, dump, "evicted")
        self.assertIn("layers.1.evicted[1, 0]: step 1, KV head 0: position 1000000 was evicted, which is not in", stderr)
        dump.tensors["layers.0.evicted"] = dump.tensors["layers.0.left"]
        self.refused(trace, dump, r"at byte \d+: layers\.0\.left: is layers\.0\.evicted by its former name; expected one of them")

    def test_exactly_tied_entries_may_leave_in_any_order_and_are_counted(self):
        def smaller_first(right):
            def wrong(policy, budget, always, score, *rest):
                index, legal = right(policy, budget, always, score, *rest)
                ties = np.flatnonzero(~always & (score == score[index]))
                return ties[0], legal
            return wrong

        trace = self.trace("F32", "tied", tokens=200)
        with mock.patch.object(independent.decoding, "leaving", smaller_first(independent.decoding.leaving)):
            dump = recompute(trace, "tova", "60")
        right = recompute(trace, "tova", "60")
        report = self.agrees(trace, dump)
        swaps = sum(item["near_tie_swaps"] for item in report["tensors"] if item["tensor"] == "evicted")
        self.assertGreater(swaps, 0, "the trace has no ties")
        self.assertTrue(any((dump.array(layer, "evicted") != right.array(layer, "evicted")).any() for layer in range(2)))

    def test_a_greedy_set_that_is_not_the_references_is_never_a_pass(self):
        trace = self.trace("F32")
        right = self.reference(trace, "snapkv:window=8+greedy")
        kept = {layer: list(right.array(layer, "kept").reshape(2, 40)) for layer in range(2)}
        out = np.setdiff1d(np.arange(112), kept[1][1])
        kept[1][1] = np.sort(np.append(kept[1][1][1:], out[0]))
        report, stderr = self.diff(trace, recompute(trace, "snapkv:window=8+greedy", "40", kept=kept), INCONCLUSIVE)
        self.assertEqual(report["verdict"], "no evidence")
        self.assertIn("inconclusive: no bound is small enough", stderr)
        entries = {(item["layer"], item["tensor"]): item for item in report["tensors"]}
        self.assertEqual([entries[layer, "kept"]["undecided"] for layer in range(2)], [0, 1])
        self.assertEqual(entries[1, "kept"]["verdict"], "no evidence")
        # one entry of the observation window is missing
        kept[1][1] = np.sort(np.append(kept[1][1][:-1], out[1]))
        self.differs(trace, recompute(trace, "snapkv:window=8+greedy", "40", kept=kept), "kept")


class WrongDumps(DiffTest):
    def test_a_score_off_by_a_millionth_is_found(self):
        def scale(dump):
            dump.array(1, "score")[...] *= 1 + 1e-6

        for policy in ("h2o:window=8", "tova", "h2o:window=8+obcache-value", "tova+obcache-key",
                       "snapkv:window=8+obcache-joint:space=projected", "h2o:window=8+exact"):
            self.finds("score", policy, change=scale, precisions=(np.float64,))

    def test_another_score_is_found(self):
        for policy in ("h2o:window=8+exact", "tova+exact", "snapkv:window=8+exact:space=projected"):
            self.finds("score", policy, policy_changes=[("score", "obcache-value")])
            if not policy.startswith("snapkv"):  # snapkv may keep the same entries by either score
                self.finds("kept", policy, policy_changes=[("score", "obcache-value")], kinds={"kept", "evicted", "output"})
        self.finds("score", "tova+obcache-joint", policy_changes=[("space", "projected")])
        self.finds("score", "h2o:window=8+obcache-key", policy_changes=[("score", "obcache-joint")])

    def test_an_exact_removal_error_that_cancels_is_found(self):
        trace = TraceFile(dtype="F64", prompt_tokens=60)
        faults.peak(trace)
        path = trace.write(self.folder / "peaked.safetensors")
        for policy in ("h2o:window=4+exact", "tova+exact:space=projected"):
            self.agrees(path, recompute(path, policy, "12"))
            removal_scores = independent.scores.removal_scores
            with mock.patch.object(independent.scores, "removal_scores", faults.cancelling(removal_scores)):
                dump = recompute(path, policy, "12")
            self.differs(path, dump, "score")

    def test_a_wrong_eviction_is_found_and_what_follows_it_is_judged_on_the_cache_as_it_was(self):
        for policy, deciding in DECIDING.items():
            for trace in self.traces():
                right = recompute(trace, policy, "50")
                score, kept = right.array(1, deciding)[1], faults.kept_sets(right, 1)[1]
                stay = kept[kept < len(score) - 12]
                best = stay[np.argmax(score[stay])]
                self.assertNotIn(best, right.array(1, "evicted")[:, 1])
                left = {layer: np.full((4, 2), BY_POLICY) for layer in range(2)}
                left[1][1, 1] = best
                for precision in (np.float64, np.float32):
                    with self.subTest(f"{policy} {trace.name} {precision.__name__}"):
                        consistent = recompute(trace, policy, "50", precision, kept=faults.all_kept_sets(right), evicted=left)
                        _, stderr = self.differs(trace, consistent, "evicted")
                        self.assertRegex(stderr, rf"layers\.1\.evicted\[1, 1\]: step 1, KV head 1: position \d+ stayed rather "
                                                 rf"than {best}, by [a-z -]*score: ")
                        self.assertNotIn("more tensor", stderr, "later numbers are judged on the cache as it was")
                        stale = right.copy()
                        stale.array(1, "evicted")[1, 1] = best
                        self.differs(trace, stale, "evicted")

    def test_evictions_that_cannot_be_are_found(self):
        trace = self.trace("F32", tokens=160)
        for policy in ("h2o:window=8:sinks=1", "tova:sinks=1", "streaming-llm:sinks=1"):
            right = recompute(trace, policy, "50")
            for note, dump in faults.impossible_evictions(right.only({"evicted", "kept", "kept_offsets"}), 0, 160, 0):
                with self.subTest(f"{policy} {note}"):
                    _, stderr = self.differs(trace, dump, "evicted")
                    self.assertIn(note, stderr)
            dump = right.copy()
            dump.array(0, "evicted")[2, 1] = -1
            _, stderr = self.differs(trace, dump, "evicted")
            self.assertNotIn("more tensor", stderr, "the reference's own choice leaves instead")

    def test_a_recent_window_off_by_one_is_found(self):
        self.finds("kept", "h2o:window=8:recent=8", policy_changes=[("recent", 7)])
        # The entries kept after the prompt are correct, but while decoding the oldest recent entry may
        # be evicted, and soon is.
        policy = "h2o:window=8:recent=30"
        for trace in self.traces():
            right = recompute(trace, policy, "50")
            dump = recompute(trace, policy, "50", kept=faults.all_kept_sets(right), policy_changes=[("recent", 0)])
            self.differs(trace, dump, "evicted")

    def test_h2o_that_forgets_its_running_sum_is_found(self):
        for policy in ("h2o:window=8", "h2o:window=8+exact"):
            for trace in self.traces():
                head = independent.decoding.DecodingHead
                with mock.patch.object(head, "accumulate", faults.forgetting(head.accumulate)):
                    dump = recompute(trace, policy, "50")
                with self.subTest(f"{policy} {trace.name}"):
                    self.differs(trace, dump, "evicted")

    def test_critical_without_its_first_stage_while_decoding_is_found(self):
        # With such an epsilon stage two ranks by norms alone, and evicts entries that
        # attention would protect.
        for policy in ("h2o:window=8+critical:alpha=0.9:epsilon=1", "tova+critical:alpha=adaptive:epsilon=1"):
            trace = self.trace("F32", "flat", tokens=161, decode=12)
            right = recompute(trace, policy, "50")
            dump = recompute(trace, policy, "50", kept=faults.all_kept_sets(right), policy_changes=[("alpha", Fraction(0))])
            with self.subTest(policy):
                self.assertFalse(all((dump.array(layer, "evicted") == right.array(layer, "evicted")).all()
                                     for layer in range(2)), "the first stage protects no entry here")
                self.differs(trace, dump, "evicted")

    def test_a_wrong_kept_set_is_found(self):
        for policy, deciding in DECIDING.items():
            for trace in self.traces():
                right = recompute(trace, policy, "50")
                score, kept = right.array(1, deciding)[1], faults.all_kept_sets(right)
                best, worst = faults.clear_exchange(score, kept[1][1], 8)
                kept[1][1] = faults.exchanged(kept[1][1], best, worst)
                with self.subTest(f"{policy} {trace.name}"):
                    _, stderr = self.differs(trace, recompute(trace, policy, "50", kept=kept), "kept")
                    self.assertIn(f"KV head 1 kept position {worst} rather than", stderr)
                    self.assertNotIn("more tensor", stderr, "later numbers are judged on the cache as it was")

    def test_streaming_llm_that_keeps_one_newest_less_is_found(self):
        for trace in self.traces():
            tokens = independent.replay.Trace(trace).prompt_tokens
            wrong = np.r_[np.arange(5), np.arange(tokens - 45, tokens)]  # five sinks instead of four
            dump = recompute(trace, "streaming-llm:sinks=4", "50", kept={layer: [wrong] * 2 for layer in range(2)})
            _, stderr = self.differs(trace, dump, "kept")
            self.assertIn(f"position {tokens - 46} is missing, which is always kept", stderr)
            right = recompute(trace, "streaming-llm:sinks=4", "50")
            right.array(0, "evicted")[1, 0] += 1  # only the oldest non-sink entry may be evicted
            _, stderr = self.differs(trace, right, "evicted")
            self.assertIn(f"layers.0.evicted[1, 0]: step 1, KV head 0: position {tokens - 44} was evicted, which is always kept", stderr)

    def test_entries_drawn_otherwise_are_found(self):
        policy = "random:seed=3:sinks=4:window=8"
        trace = self.trace("BF16")
        right = recompute(trace, policy, "50")
        self.agrees(trace, right)
        for change in (("seed", 4), ("sinks", 3), ("recent", 7)):
            with self.subTest(change):
                self.differs(trace, recompute(trace, policy, "50", policy_changes=[change]), "kept")
        kept = faults.all_kept_sets(right)
        for note, wrong in (("another layer's", {0: kept[1], 1: kept[0]}),
                            ("another head's", {layer: heads[::-1] for layer, heads in kept.items()})):
            with self.subTest(note):
                self.differs(trace, recompute(trace, policy, "50", kept=wrong), "kept")
        gone = kept[1][1][10]
        instead = np.setdiff1d(np.arange(20), kept[1][1])[0]
        kept[1][1] = faults.exchanged(kept[1][1], gone, instead)
        _, stderr = self.differs(trace, recompute(trace, policy, "50", np.float32, kept=kept), "kept")
        self.assertRegex(stderr, rf"KV head 1 kept position {instead} rather than {gone}, by draw: 0\.\d+ against 0\.\d+, ")
        self.assertNotIn("more tensor", stderr, "later numbers are judged on the cache as it was")

    def test_evictions_are_counted_where_the_kept_set_has_not_the_budgets_size(self):
        trace = self.trace("F32", tokens=160)
        right = recompute(trace, "h2o:window=8", "50")
        for entries in (48, 52):
            kept = [np.resize(right.array(0, "kept"), 50), right.array(0, "kept")[50:]]
            kept[0] = kept[0][2:] if entries == 48 else np.union1d(kept[0], np.setdiff1d(np.arange(150), kept[0])[:2])
            dump = right.only({"kept", "kept_offsets", "evicted", "output", "score"})
            dump.put(0, "kept", np.concatenate(kept))
            dump.put(0, "kept_offsets", np.array([0, entries, entries + 50]))
            _, stderr = self.differs(trace, dump, "kept_offsets")
            self.assertIn("more tensor", stderr)


class UnfitDumps(DiffTest):
    def test_tensors_that_the_policy_has_not_and_those_that_are_misshapen_are_refused(self):
        trace = self.trace("F32")
        good = self.reference(trace, "tova")
        missing = good.copy()
        del missing.tensors["layers.1.evicted"]
        self.refused(trace, missing, r"layers\.1\.evicted: this tensor is missing, but other layers have it")
        for array in (np.zeros((4, 3)), np.zeros(8), np.zeros((5, 2)), np.zeros((4, 2, 1))):
            dump = good.copy()
            dump.put(0, "evicted", array)
            self.refused(trace, dump, r"at byte \d+: layers\.\d\.(evicted|output)\.shape: is \[[\d, ]+\]; expected "
                                      r"\[steps, \w+(, head_dim)?\]")
        dump = good.copy()
        dump.tensors["layers.0.evicted"] = "F32", dump.array(0, "evicted")
        self.refused(trace, dump, r"at byte \d+: layers\.0\.evicted\.dtype: is F32; expected I64 or I32")
        for kind, shape in (("score", "[kv_heads, prompt_tokens]"), ("score_positions", "[prompt_tokens]")):
            dump = good.copy()
            dump.put(0, kind, dump.array(0, kind)[..., :-8])
            self.refused(trace, dump, rf"at byte \d+: layers\.0\.{kind}\.shape: is \[.*\]; expected {re.escape(shape)} = ")
        for kind in ("score", "score_positions", "stage_two_score", "projected_value_norms"):
            dump = self.reference(trace, "streaming-llm")
            dump.tensors[f"layers.0.{kind}"] = "F64", np.zeros(3)
            self.refused(trace, dump, rf"at byte \d+: layers\.0\.{kind}: no tensor of a dump of streaming-llm:sinks=4; "
                                      "known: prompt_output, kept_offsets, kept, evicted, output, ")
            dump = self.reference(trace, "random:window=8")
            dump.tensors[f"layers.0.{kind}"] = "F64", np.zeros(3)
            self.refused(trace, dump, rf"at byte \d+: layers\.0\.{kind}: no tensor of a dump of random:seed=0:sinks=4:window=8; "
                                      "known: prompt_output, kept_offsets, kept, output, ")
        dump = self.reference(trace, "snapkv:window=8+greedy")
        dump.tensors["layers.0.projected_value_norms"] = "F64", np.zeros(3)
        self.refused(trace, dump, r"at byte \d+: layers\.0\.projected_value_norms: no tensor of a dump of snapkv")

    def test_budgets_that_do_not_fit_the_host_are_refused(self):
        trace = self.trace("F32")
        for policy, budget, wrong in (("h2o:window=8:sinks=2", "40", "9"), ("streaming-llm", "40", "3"),
                                      ("random:window=8", "40", "11"),
                                      ("tova:sinks=5", "40", "4")):
            dump = self.reference(trace, policy, budget)
            dump.metadata["budget"] = wrong
            self.refused(trace, dump, r"at byte \d+: __metadata__\.budget: ")


class ManyRightDumps(DiffTest):
    suite = "long"

    def test_the_references_dumps_agree_for_every_policy_in_double_and_rounded_to_single_precision(self):
        for dtype in ("F64", "BF16"):
            trace = self.trace(dtype)
            for policy in DYNAMIC + STATIC:
                for budget in ("12", "40", "100%"):
                    with self.subTest(f"{dtype} {policy} {budget}"):
                        dump = self.reference(trace, policy, budget)
                        self.agrees(trace, dump)
                        self.agrees(trace, dump.stored("F32"))

    def test_recomputations_agree_by_the_bounds_of_their_precision(self):
        for number, (dtype, kind) in enumerate((("F64", "power-law"), ("F32", "sink"), ("F16", "needle"),
                                                ("BF16", "mixed"), ("F32", "flat"), ("BF16", "tied"))):
            trace = self.trace(dtype, kind, tokens=90 + number, seed=number)
            for policy in DYNAMIC + STATIC[:-1]:  # rounding may change which entries `greedy` evicts
                for precision in (np.float64, np.float32):
                    with self.subTest(f"{dtype} {kind} {policy} {precision.__name__}"):
                        self.agrees(trace, recompute(trace, policy, "40", precision))


if __name__ == "__main__":
    kvbound_cli.main()
