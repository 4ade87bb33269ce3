"""`kvbound diff` of policies that allocate budgets to layers and heads, and of policies that merge.

usage: diff_merging_test.py KVBOUND      KVBOUND: the program's path
"""
import numpy as np

from support import faults, kvbound_cli
from support.diffs import DiffTest
from support.dumps import recompute
from support.kvbound_cli import INCONCLUSIVE, MISMATCH, PASS, SAMPLES, TraceFile

ALLOCATIONS = ("snapkv:window=8+pyramid", "snapkv:window=8+adakv", "h2o:window=8+adakv:safeguard=0",
               "tova:sinks=2+adakv:safeguard=0.5", "streaming-llm+pyramid:beta=3:shape=cosine",
               "random:window=8+pyramid",
               "snapkv:window=8+critical+adakv", "h2o:window=8+critical:alpha=adaptive+adakv:safeguard=0",
               "snapkv:window=8+theta-sweep+adakv:safeguard=0", "tova+theta-sweep+pyramid", "h2o:window=8+exact+adakv",
               "snapkv:window=8+obcache-joint:space=projected+adakv:safeguard=0", "snapkv:window=8+greedy+adakv",
               "tova+critical+pyramid:beta=2")


STATIC, UNRANKED = "snapkv:window=8", "random:window=8"
DYNAMIC = ("h2o:window=8", "tova", "streaming-llm", "h2o:window=8:recent=2:sinks=1")
MERGES = ("keepkv:threshold=0.9", "keepkv:threshold=none:key=zip:gqa=mean", "keepkv-paper:threshold=0.9",
          "keepkv:threshold=none:gqa=mean", "keepkv:threshold=none:predict=current:rank=0", "keepkv:threshold=0.9:key=convex",
          "convex:threshold=0.9", "convex:threshold=none:gqa=mean:scores=raw:normalisation=paper", "d2o:threshold=0.9",
          "kvmerger:threshold=none", "cam:neighbours=4", "keepkv:threshold=1")
SELECTIONS = ("snapkv:window=8+critical+keepkv:threshold=0.9", "h2o:window=8+critical+keepkv:threshold=0.9",
              "tova+exact+d2o:threshold=none", "h2o:window=8+obcache-joint+keepkv:threshold=0.9",
              "snapkv:window=8+theta-sweep+adakv+keepkv:threshold=0.9", "tova+pyramid+kvmerger:threshold=0.9",
              "h2o:window=8+adakv:safeguard=0+keepkv:threshold=none", "snapkv:window=8+greedy+convex:threshold=none")
ORDERS = ("snapkv:window=8+keepkv:threshold=0.9:order=merge-first", "h2o:window=8+keepkv:threshold=none:order=merge-first",
          "snapkv:window=8+keepkv:threshold=0.9:period=2", "tova+keepkv:threshold=none:period=3",
          "h2o:window=8+critical+keepkv:threshold=0.9:period=2")


class MergingDumps(DiffTest):
    def test_the_references_dumps_agree_for_every_method_and_host(self):
        for number, kind in enumerate(("mixed", "power-law")):
            trace = self.trace("F64", kind, tokens=90 + number, decode=5)
            for host in (STATIC, UNRANKED, *DYNAMIC):
                for merge in MERGES:
                    with self.subTest(f"{kind} {host} {merge}"):
                        self.agrees(trace, self.reference(trace, f"{host}+{merge}", "30"))

    def test_they_agree_with_other_selections_scores_and_allocations(self):
        trace = self.trace("BF16", decode=5)
        for policy in SELECTIONS:
            with self.subTest(policy):
                self.agrees(trace, self.reference(trace, policy, "30"))

    def test_they_agree_where_merging_comes_first_and_where_caches_are_rebuilt(self):
        trace = self.trace("F64", decode=7)
        for policy in ORDERS:
            with self.subTest(policy):
                self.agrees(trace, self.reference(trace, policy, "30"))

    def test_a_recorded_models_dumps_agree(self):
        for sample in ("pocket-gqa", "pocket-mha"):
            trace = SAMPLES / f"{sample}.safetensors"
            for policy in ("snapkv+keepkv", "h2o+keepkv-paper:threshold=0.5", "tova+cam"):
                with self.subTest(f"{sample} {policy}"):
                    self.agrees(trace, self.reference(trace, policy, "12.5%", "--layers", "1", "--steps", "6"))

    def test_any_subset_of_the_tensors_may_be_there(self):
        trace = self.trace("F64", decode=5)
        for policy in ("h2o:window=8+keepkv:threshold=0.9", "snapkv:window=8+d2o:threshold=0.9", "tova+cam:neighbours=4"):
            dump = self.reference(trace, policy, "30")
            for kind in sorted(dump.kinds()):
                with self.subTest(f"{policy} {kind}"):
                    self.agrees(trace, dump.only({kind}))
                    self.agrees(trace, dump.only(dump.kinds() - {kind}))

    def test_the_first_steps_and_none_may_be_there(self):
        trace = self.trace("F64", decode=5)
        self.agrees(trace, self.reference(trace, "h2o:window=8+keepkv:threshold=0.9", "30", "--steps", "2"))
        short = TraceFile(decode_tokens=0, dtype="F64").write(self.folder / "short.safetensors")
        self.passes("replay", short, "--policy", "tova+keepkv:threshold=none", "--budget", "9", "--dump", "d.safetensors",
                    code=INCONCLUSIVE)
        self.passes("diff", short, "d.safetensors")

    def test_dumps_rounded_to_single_precision_never_differ(self):
        trace = self.trace("F32", decode=5)
        for host in (STATIC, *DYNAMIC):
            for merge in MERGES:
                with self.subTest(f"{host} {merge}"):
                    self.agrees(trace, self.reference(trace, f"{host}+{merge}", "30").stored("F32"))

    def test_a_factor_is_named_where_it_explains_all_rows(self):
        trace = self.trace("F64", decode=5)
        right = self.reference(trace, "h2o:window=8+critical+keepkv:threshold=none", "30")
        for kind, numbers in (("score", "scores"), ("stage_two_score", "scores"), ("projected_value_norms", "norms"),
                              ("votes", "votes"), ("merged_key", "keys"), ("merged_value", "values"), ("step_votes", "votes")):
            with self.subTest(kind):
                dump = faults.with_array(right, 1, kind, lambda array: array / 2)
                report, stderr = self.differs(trace, dump, kind)
                self.assertRegex(stderr, rf"; gain 0\.500 \(1\.000 to 1\.000 by rounding\) in all; {numbers} are 0\.500 of what they should be "
                                         r"\(that explains (the row that was|all \d+ rows that were) tried\)")
                item, = (item for item in report["tensors"] if (item["layer"], item["tensor"]) == (1, kind))
                self.assertEqual([functional["name"] for functional in item["functionals"]], ["gain", "difference"])
                self.assertEqual(item["functionals"][0]["value"], 0.5)
                last = np.flatnonzero(dump.array(1, kind))[-1]
                other = faults.with_array(dump, 1, kind, lambda array: np.where(np.arange(array.size).reshape(array.shape) == last, 0.7, array))
                self.assertNotIn("what they should be", self.differs(trace, other, kind)[1])

    def test_tensors_that_a_policy_has_not_are_refused(self):
        trace = self.trace("F64")
        merged = self.reference(trace, "snapkv:window=8+keepkv:threshold=0.9", "30")
        merged.metadata["policy"] = "snapkv:window=8"
        self.refused(trace, merged, r"at byte \d+: layers\.0\.\w+: only policies that merge have this; this is snapkv")
        plain = self.reference(trace, "snapkv:window=8", "30")
        plain.metadata["policy"] = "snapkv:window=8+keepkv"
        self.refused(trace, plain, r"at byte \d+: layers\.0\.bound: only policies that do not merge have this; this is snapkv")
        dynamic = self.reference(trace, "tova+keepkv:threshold=0.9", "30").only({"kept", "merged_into"})
        dynamic.metadata["policy"] = "snapkv:window=8+keepkv"
        self.refused(trace, dynamic, r"at byte \d+: layers\.0\.merged_into: only policies that merge while decoding")


class Recomputations(DiffTest):
    """Dumps of the independent implementation, whose results are rounded differently."""

    suite = "long"
    POLICIES = [f"{host}+{merge}" for host in (STATIC, "h2o:window=8", "tova") for merge in MERGES] + list(SELECTIONS[:-1] + ORDERS)

    def test_those_in_double_precision_agree(self):
        for dtype, kind in (("F64", "mixed"), ("BF16", "power-law")):
            trace = self.trace(dtype, kind, tokens=90, decode=5)
            for policy in self.POLICIES:
                with self.subTest(f"{dtype} {kind} {policy}"):
                    self.agrees(trace, recompute(trace, policy, "40"))

    def test_those_in_single_precision_never_differ_and_most_of_them_agree(self):
        agreed = undecided = 0
        for dtype, kind in (("F32", "mixed"), ("F16", "sink"), ("BF16", "power-law")):
            trace = self.trace(dtype, kind, tokens=90, decode=5)
            for policy in self.POLICIES:
                with self.subTest(f"{dtype} {kind} {policy}"):
                    recompute(trace, policy, "40", np.float32).write(self.folder / "dump.safetensors")
                    result = self.run_program("diff", trace, "dump.safetensors")
                    self.assertIn(result.returncode, (PASS, INCONCLUSIVE), f"{result.stdout}{result.stderr}")
                    agreed += result.returncode == PASS
                    undecided += result.returncode == INCONCLUSIVE
        self.assertGreater(agreed, 3 * undecided)

    def test_single_precision_is_told_from_double(self):
        trace = self.trace("F32", tokens=90, decode=5)
        for policy in self.POLICIES[:2 * len(MERGES)]:
            dump = recompute(trace, policy, "40", np.float32)
            dump.metadata["accumulate"] = dump.metadata["storage"] = "F64"
            with self.subTest(policy):
                self.diff(trace, dump, MISMATCH)
            for kind in ("merged_key", "merged_value"):
                if "cam" not in policy and "threshold=1" not in policy:  # nearly all values of cam are exact
                    self.differs(trace, dump.only({"kept", kind}), kind)


class WrongMerges(DiffTest):
    """Faults in dumps of the reference are found and named."""

    def found(self, tensor, policy, change, note="."):
        trace = self.trace("F64", decode=6)
        dump = self.reference(trace, policy, "30")
        self.agrees(trace, dump)
        change(dump)
        with self.subTest(f"{tensor} {policy}"):
            _, stderr = self.differs(trace, dump, tensor)
            self.assertRegex(stderr, note)

    def test_a_wrong_vote(self):
        trace = self.trace("F64", decode=6)
        for policy in (STATIC + "+keepkv:threshold=0.9", "h2o:window=8+keepkv:threshold=0.9", STATIC + "+d2o:threshold=0.9", "tova+cam"):
            right = self.reference(trace, policy, "30")
            self.agrees(trace, right)
            for note, dump in faults.wrong_votes(right, 1):
                with self.subTest(f"{policy} {note}"):
                    _, stderr = self.differs(trace, dump, "votes")
                    self.assertRegex(stderr, note)

    def test_a_merged_key_or_value_off_by_a_billionth(self):
        for tensor in ("merged_key", "merged_value"):
            def perturb(dump):
                dump.array(1, tensor)[11, 3] *= 1 + 1e-9

            for merge in MERGES:
                for host in (STATIC, "tova"):
                    self.found(tensor, f"{host}+{merge}", perturb)

    def test_an_output_off_by_a_millionth(self):
        def perturb(dump):
            dump.array(1, "output")[4, 1, 3] *= 1 + 1e-6

        for merge in MERGES:
            for host in (STATIC, "h2o:window=8"):
                self.found("output", f"{host}+{merge}", perturb)

    def test_a_perturbation_off_by_a_millionth(self):
        def perturb(dump):
            dump.array(0, "perturbation")[2, 1] *= 1 + 1e-6

        self.found("perturbation", "h2o:window=8+keepkv:threshold=0.9", perturb)

    def test_another_target(self):
        def swap(dump):
            into = dump.array(1, "merged_into")
            kept = dump.array(1, "kept")
            step, head = np.argwhere(into >= 0)[-1]  # the last merge, so that no later choice depends on it
            others = kept[head * 30:(head + 1) * 30]
            into[step, head] = next(other for other in others
                                    if other not in (into[step, head], *dump.array(1, "evicted")[:step + 1, head]))

        for merge in ("keepkv:threshold=none", "d2o:threshold=none", "convex:threshold=none", "kvmerger:threshold=none"):
            self.found("merged_into", "h2o:window=8+" + merge, swap,
                       note=r"step \d+, KV head \d: position \d+ merged with \d+ rather than merging with \d+: the largest cosine")

    def test_one_dropped_that_was_to_merge_and_one_merged_that_was_to_be_dropped(self):
        def drop(dump):
            into = dump.array(1, "merged_into")
            into[tuple(np.argwhere(into >= 0)[-1])] = -1

        def merge(dump):
            into = dump.array(1, "merged_into")
            kept = dump.array(1, "kept")
            step, head = np.argwhere(into == -1)[-1]
            into[step, head] = next(other for other in kept[head * 30:(head + 1) * 30]
                                    if other not in dump.array(1, "evicted")[:step + 1, head])

        for host in ("h2o:window=8", "streaming-llm"):
            self.found("merged_into", host + "+keepkv:threshold=none", drop)
            self.found("merged_into", host + "+keepkv:threshold=1", merge)

    def test_a_target_that_is_not_there_and_one_where_no_entry_was_evicted(self):
        def nowhere(dump):
            dump.array(0, "merged_into")[3, 1] = 1000

        def though_none_was_evicted(dump):
            dump.array(0, "merged_into")[0, 1] = 5

        self.found("merged_into", "tova+keepkv:threshold=none", nowhere)
        trace = self.trace("F64", decode=6)
        dump = self.reference(trace, "tova+keepkv:threshold=none", "30")
        dump.array(0, "merged_into")[2, 0] = -2
        self.differs(trace, dump, "merged_into")

    def test_another_draw(self):
        def other(dump):
            into = dump.array(1, "merged_into")
            into[2, 0] = -1 if into[2, 0] >= 0 else dump.array(1, "kept")[29]

        self.found("merged_into", "h2o:window=8+cam:neighbours=4", other)

    def test_another_who_left(self):
        def other(dump):
            left = dump.array(1, "evicted")
            kept = dump.array(1, "kept")
            step, head = 3, 1
            scores = dump.array(1, "score")[head]
            best = max(kept[head * 30:head * 30 + 22], key=lambda position: scores[position])
            left[step, head] = best

        self.found("evicted", "h2o:window=8+keepkv:threshold=0.9", other)

    def test_other_options_of_the_policy(self):
        trace = self.trace("F64", decode=6)
        for right, wrong, tensor in (
                ("keepkv:threshold=none", "keepkv:threshold=none:key=convex", "merged_key"),
                ("keepkv:threshold=none", "keepkv:threshold=none:gqa=mean", "merged_key"),
                ("keepkv:threshold=none", "keepkv:threshold=none:ema=0.8", "merged_key"),
                ("keepkv:threshold=none", "keepkv:threshold=none:scores=raw", "merged_key"),
                ("keepkv:threshold=none:gqa=mean", "keepkv:threshold=none:gqa=mean:key=zip", "merged_key"),
                ("keepkv:threshold=none", "keepkv:threshold=0.9", "votes"),
                ("d2o:threshold=none", "kvmerger:threshold=none", "merged_key"),
                ("cam:seed=1", "cam:seed=2", "merged_value")):
            with self.subTest(f"{right} {wrong}"):
                dump = self.reference(trace, f"snapkv:window=8+{wrong}", "30")
                self.differs(trace, faults.claiming(dump, self.reference(trace, f"snapkv:window=8+{right}", "30")), tensor)

    def test_nan_is_wrong_wherever_it_is_certain_or_not_what_should_be_there(self):
        def put(layer, tensor, *index):
            def change(dump):
                dump.array(layer, tensor)[index] = np.nan
            return change

        for tensor, index in (("votes", (7,)), ("merged_key", (11, 3)), ("merged_value", (11, 3)), ("output", (4, 1, 3)),
                              ("kept_mass", (4, 1)), ("perturbation", (4, 1)), ("layer_perturbation", (4,))):
            for policy in ("h2o:window=8+keepkv:threshold=0.9", "tova+keepkv:threshold=none:period=3",
                           "snapkv:window=8+keepkv:threshold=0.9:order=merge-first"):
                self.found(tensor, policy, put(1, tensor, *index))

    def test_what_is_not_recorded_of_is_never_a_pass_where_it_is_wrong(self):
        """An output that differs after a rebuild or under merge-first is undecided: the dump records too little."""
        def perturb(dump):
            dump.array(1, "output")[4, 1, 3] *= 1 + 1e-6

        trace = self.trace("F64", decode=6)
        for policy in ("tova+keepkv:threshold=none:period=3", "snapkv:window=8+keepkv:threshold=0.9:order=merge-first"):
            dump = self.reference(trace, policy, "30")
            self.agrees(trace, dump)
            perturb(dump)
            report, _ = self.diff(trace, dump, INCONCLUSIVE)
            output = [item for item in report["tensors"] if item["tensor"] == "output"]
            self.assertEqual([item["undecided"] for item in output], [0, 1])


class Allocations(DiffTest):
    def test_the_references_dumps_agree_in_double_and_rounded_to_single_precision(self):
        for dtype, kind in (("F64", "mixed"), ("BF16", "power-law"), ("F32", "tied")):
            trace = self.trace(dtype, kind)
            for policy in ALLOCATIONS:
                with self.subTest(f"{dtype} {kind} {policy}"):
                    dump = self.reference(trace, policy, "30%")
                    self.agrees(trace, dump)
                    self.agrees(trace, dump.stored("F32"))

    def test_layers_have_budgets_of_their_own_and_so_do_heads(self):
        trace = self.trace("F64", layers=3)
        dump = self.reference(trace, "snapkv:window=8+pyramid", "40")
        sizes = [dump.array(layer, "kept_offsets") for layer in range(3)]
        self.assertEqual([list(offsets) for offsets in sizes], [[0, 72, 144], [0, 40, 80], [0, 8, 16]])
        dump = self.reference(trace, "h2o:window=8+adakv:safeguard=0", "40")
        sizes = [np.diff(dump.array(layer, "kept_offsets")) for layer in range(3)]
        self.assertTrue(all(sum(size) == 80 and min(size) >= 8 for size in sizes))
        self.assertTrue(any(size[0] != size[1] for size in sizes), "heads were to differ")
        self.agrees(trace, self.reference(trace, "snapkv:window=8+pyramid", "40", "--layers", "1-2"))

    def test_any_subset_of_the_tensors_may_be_there(self):
        trace = self.trace("BF16")
        dump = self.reference(trace, "h2o:window=8+adakv:safeguard=0", "40")
        for kind in dump.kinds():
            if kind != "kept":
                self.agrees(trace, dump.only({kind}))
        self.agrees(trace, dump.only({"kept", "kept_offsets", "evicted"}))
        self.refused(trace, dump.only(dump.kinds() - {"kept_offsets"}),
                     r"at byte \d+: layers\.0\.kept: needs layers\.0\.kept_offsets: KV heads of this policy may keep different numbers")
        pyramid = self.reference(trace, "snapkv:window=8+pyramid", "40")
        self.agrees(trace, pyramid.only(pyramid.kinds() - {"kept_offsets"}))

    def test_budgets_shared_out_otherwise_are_found(self):
        for kind in ("mixed", "power-law"):
            trace = self.trace("F64", kind)
            for policy in ("h2o:window=8+adakv", "snapkv:window=8+adakv:safeguard=0", "tova+exact+adakv"):
                with self.subTest(f"{kind} {policy}"):
                    right = self.reference(trace, policy, "40")
                    sizes = [tuple(np.diff(right.array(layer, "kept_offsets"))) for layer in range(2)]
                    self.assertNotEqual(sizes, [(40, 40), (40, 40)])
                    host = policy[:policy.index("+adakv")]
                    report, _ = self.differs(trace, faults.claiming(self.reference(trace, host, "40"), right), "kept_offsets")
                    kept = [item for item in report["tensors"] if item["tensor"] == "kept"]
                    self.assertTrue(all(item["verdict"] == "differs" for item, size in zip(kept, sizes) if size != (40, 40)))

    def test_another_pyramid_is_found(self):
        trace = self.trace("F32")
        dump = self.reference(trace, "snapkv:window=8+pyramid:shape=cosine:beta=2", "40")
        right = self.reference(trace, "snapkv:window=8+pyramid", "40")
        self.differs(trace, faults.claiming(dump, right), "kept_offsets")


if __name__ == "__main__":
    kvbound_cli.main()
