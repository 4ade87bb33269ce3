"""`kvbound diff A B --against TRACE`: every row's verdict, beside what NumPy says of the same two dumps.

usage: diff_against_test.py KVBOUND      KVBOUND: the program's path
"""
from unittest import mock

import numpy as np

import independent.decoding
from support import faults, kvbound_cli
from support.diffs import CRITICAL, DiffTest, RowsTest
from support.dumps import Dump, recompute
from support.kvbound_cli import INCONCLUSIVE, INVALID, MISMATCH, PASS, USAGE, TraceFile

GROUP = 2  # query heads of a KV head in the generated traces


def reordered(layer):
    """The same logits, whose products are added in another order."""
    order = np.random.default_rng(1).permutation(layer.key.shape[-1])
    layer.key, layer.query = layer.key[..., order], layer.query[..., order]


def rows_of(dump, layer, kind):
    """The rows of a tensor [steps, query_heads, head_dim], [.., heads], or one of KV heads: {index: numbers}"""
    array = dump.array(layer, kind)
    if kind == "kept":
        return {(head,): kept for head, kept in enumerate(faults.kept_sets(dump, layer))}
    if kind in ("kept_offsets", "score_positions"):
        return {(): array}
    whole = kind in ("output", "score", "stage_two_score", "projected_value_norms")
    return {index: array[index] for index in np.ndindex(array.shape[:-1] if whole else array.shape)}


def ulps(one, other, dtype=np.float32):
    """The largest distance in units in the last place of the larger number."""
    one, other = np.atleast_1d(one).astype(np.float64), np.atleast_1d(other).astype(np.float64)
    larger = np.maximum(abs(one), abs(other))
    _, exponents = np.frexp(larger)
    last_place = np.ldexp(1.0, np.maximum(exponents - 1, np.finfo(dtype).minexp) - np.finfo(dtype).nmant)
    return (abs(one - other) / last_place).max()


class AgainstTest(DiffTest, RowsTest):
    def against(self, trace, one, other, code=PASS, *options):
        """Runs the comparison; returns (report, {(layer, tensor, row): verdict} of rows that are not identical, stdout, stderr)."""
        report, result = self.compare_rows(one, other, code, "diff", "a.safetensors", "b.safetensors", "--against", trace, *options)
        verdicts = {(item["layer"], item["tensor"], tuple(row["row"])): row["verdict"]
                    for item in report["tensors"] for row in item["differing"]}
        return report, verdicts, result.stdout, result.stderr


class Rows(AgainstTest):
    def test_a_head_that_keeps_nothing_has_no_rows_to_compare(self):
        trace = self.trace()
        right = self.reference(trace, "snapkv:window=8+d2o", "20").only({"kept", "kept_offsets", "votes", "merged_key", "merged_value"})
        for head in (0, 1):
            empty = right.copy()
            part = slice(20, 40) if head == 0 else slice(0, 20)
            for kind in ("kept", "votes", "merged_key", "merged_value"):
                empty.put(1, kind, right.array(1, kind)[part])
            empty.put(1, "kept_offsets", np.array([0, 0, 20] if head == 0 else [0, 20, 20]))
            for pair in ((right, empty), (empty, right)):
                _, verdicts, _, _ = self.against(trace, *pair, MISMATCH)
                self.assertIn("wrong", verdicts[1, "kept", (head,)])
                self.assertEqual({verdicts[1, kind, (head,)] for kind in ("votes", "merged_key", "merged_value")} & {"reordered"}, set())

    def test_a_dump_and_itself_are_identical(self):
        trace = self.trace("BF16")
        for policy in (CRITICAL, "h2o:window=8", "snapkv:window=8+keepkv:threshold=0.9", "h2o:window=8+keepkv:threshold=none:period=2"):
            dump = self.reference(trace, policy)
            report, verdicts, stdout, stderr = self.against(trace, dump, dump, PASS, "--identical")
            self.assertEqual((verdicts, stderr, report["apart"]), ({}, "", []))
            rows = sum(item["rows"] for item in report["tensors"])
            self.assertEqual(stdout.split("\n")[0], f"A a.safetensors and B b.safetensors: {rows} of {rows} rows identical, none wrong")
            self.assertEqual({item["tensor"] for item in report["tensors"]}, dump.kinds())
            self.assertTrue(all(item["distances"] is None for item in report["tensors"]))

    def test_the_same_numbers_in_another_type_are_identical(self):
        trace = self.trace("F32")
        dump = recompute(trace, CRITICAL, "40", np.float32)
        self.against(trace, dump, dump.stored("F64"), PASS, "--identical")

    def test_another_order_of_additions_is_reordered_by_as_many_ulps_as_numpy_says(self):
        for dtype, kind, policy in (("F32", "mixed", CRITICAL), ("BF16", "power-law", "h2o:window=8")):
            trace = self.trace(dtype, kind)
            one = recompute(trace, policy, "40", np.float32)
            other = recompute(trace, policy, "40", np.float32, change_layer=reordered)
            report, verdicts, stdout, stderr = self.against(trace, one, other)
            self.assertEqual(stderr, "")
            different = 0
            for item in report["tensors"]:
                mine = rows_of(one, item["layer"], item["tensor"])
                theirs = rows_of(other, item["layer"], item["tensor"])
                self.assertEqual(item["rows"], len(mine))
                differing = {tuple(row["row"]): row for row in item["differing"]}
                for index, numbers in mine.items():
                    if np.asarray(numbers).tobytes() == np.asarray(theirs[index]).tobytes():
                        self.assertNotIn(index, differing)
                        continue
                    different += 1
                    self.assertEqual(differing[index]["verdict"], "reordered")
                    self.assertAlmostEqual(differing[index]["ulps"], ulps(numbers, theirs[index]), places=9)
                    largest = max(abs(np.append(numbers, theirs[index])))
                    at = np.argmax(abs(np.atleast_1d(numbers).astype(float) - theirs[index]))
                    pair = np.atleast_1d(numbers)[at], np.atleast_1d(theirs[index])[at]
                    of_row = abs(float(pair[0]) - float(pair[1])) / float(np.spacing(np.float32(largest)))
                    self.assertAlmostEqual(differing[index]["row_ulps"], of_row, places=9)
                if not item["differing"]:
                    continue
                distances = item["distances"]
                self.assertEqual(distances["unit"], "F32")
                self.assertEqual(distances["ulps"], max(row["ulps"] for row in item["differing"]))
                self.assertEqual(distances["row_ulps"], max(row["row_ulps"] for row in item["differing"]))
                at = tuple(distances["index"])
                self.assertEqual((distances["value_a"], distances["value_b"]), tuple(
                    float(dump.array(item["layer"], item["tensor"])[at]) for dump in (one, other)))
            self.assertGreater(different, 20, "no sum was added in another order")
            self.assertRegex(stdout, rf", {different} reordered \(at most [\d.e+]+ ulps apart, [\d.e+]+ of the row's largest number\), none wrong\n")
            result = self.against(trace, one, other, MISMATCH, "--identical")
            rows = sum(item["rows"] for item in report["tensors"])
            self.assertRegex(result[3], rf"\Akvbound: {different} of {rows} rows are not identical, the first layers\.\d+\.\w+\[[\d, ]+\]: reordered\n\Z")

    def test_one_wrong_head_is_named_whose_it_is(self):
        trace = self.trace("F32")
        right = recompute(trace, CRITICAL, "40", np.float32)

        def wrong(*heads):
            dump = right.copy()
            for head in heads:
                dump.array(1, "output")[2, head] *= 1.01
            return dump

        for one, other, expected in ((wrong(3), right, {3: "wrong: A"}), (right, wrong(0), {0: "wrong: B"}),
                                     (wrong(3), wrong(3), {3: "both wrong"}),
                                     (wrong(1, 2), wrong(2, 3), {1: "wrong: A", 2: "both wrong", 3: "wrong: B"})):
            _, verdicts, stdout, stderr = self.against(trace, one, other, MISMATCH)
            self.assertEqual(verdicts, {(1, "output", (2, head)): verdict for head, verdict in expected.items()})
            for name, mark in (("a", "wrong: A"), ("b", "wrong: B")):
                named = rf"(?m)^kvbound: {name}\.safetensors: layers\.1\.output\[2, \d, \d+\] is "
                (self.assertRegex if {mark, "both wrong"} & {*expected.values()} else self.assertNotRegex)(stderr, named)
            self.assertRegex(stdout.split("\n")[0], r", \d (wrong|both)")
            self.assertRegex(stdout, r"\n\ntensor [^\n]*\noutput ", "tensors with wrong rows come first")

    def test_each_is_judged_by_the_arithmetic_that_it_declares(self):
        trace = self.trace("F32")
        one, other = recompute(trace, CRITICAL, "40"), recompute(trace, CRITICAL, "40", np.float32)
        _, verdicts, _, _ = self.against(trace, one, other)
        self.assertEqual({*verdicts.values()}, {"reordered"})
        other.metadata["accumulate"] = other.metadata["storage"] = "F64"
        _, verdicts, _, stderr = self.against(trace, one, other, MISMATCH)
        self.assertIn("wrong: B", verdicts.values())
        self.assertLessEqual({*verdicts.values()}, {"reordered", "wrong: B"})
        self.assertRegex(stderr, r"\Akvbound: b\.safetensors: ")

    def test_undecided_rows_are_said_and_are_no_pass(self):
        trace, policy = self.trace("F32"), "snapkv:window=8+greedy"
        right = self.reference(trace, policy)
        kept = faults.all_kept_sets(right)
        out = np.setdiff1d(np.arange(112), kept[1][1])
        kept[1][1] = np.sort(np.append(kept[1][1][1:], out[0]))
        other = recompute(trace, policy, "40", kept=kept)
        _, verdicts, stdout, stderr = self.against(trace, right.only({"kept"}), other.only({"kept"}), INCONCLUSIVE)
        self.assertEqual(verdicts, {(1, "kept", (1,)): "undecided"})
        self.assertIn("1 undecided", stdout)
        self.assertRegex(stderr, r"\Akvbound: b\.safetensors: inconclusive: .*kept: 1 of 160 undecided\n\Z")
        self.against(trace, right.only({"kept"}), other.only({"kept"}), MISMATCH, "--identical")


class OtherCaches(AgainstTest):
    def test_near_ties_are_legal_and_what_follows_is_of_another_cache(self):
        trace = self.trace("F32", "mixed", tokens=200)
        one, kept = recompute(trace, "snapkv:window=8", "60"), {}
        swapped = []
        for layer in range(2):
            kept[layer] = []
            for head, positions in enumerate(faults.kept_sets(one, layer)):
                scores = one.array(layer, "score")[head]
                out = np.setdiff1d(np.arange(192), positions)
                pair = next(((j, i) for j in positions[:52] for i in out if scores[i] == scores[j]), None)
                if pair and not swapped:
                    positions = faults.exchanged(positions, *pair)
                    swapped.append((layer, head))
                kept[layer].append(positions)
        (layer, head), = swapped
        other = recompute(trace, "snapkv:window=8", "60", kept=kept)
        report, verdicts, stdout, stderr = self.against(trace, one, other)
        self.assertEqual(stderr, "")
        self.assertEqual(verdicts.pop((layer, "kept", (head,))), "reordered")
        expected = {(layer, kind, (step, query)) for kind in ("output", "kept_mass", "bound", "perturbation") for step in range(4)
                    for query in range(head * GROUP, head * GROUP + GROUP)} | {
            (layer, "layer_perturbation", (step,)) for step in range(4)}
        self.assertEqual({*verdicts.values()}, {"other cache"})
        self.assertLessEqual({*verdicts}, expected)
        self.assertEqual({row for row in expected if row[1] == "output"}, {row for row in verdicts if row[1] == "output"})
        self.assertEqual(report["apart"], [{"layer": layer, "kv_head": head, "first_step": 0}])
        self.assertIn(f"1 of 4 KV heads of layers hold different entries, the first: layer {layer}, KV head {head}, from step 0 on",
                      stdout)
        self.against(trace, one, other, MISMATCH, "--identical")
        for kind, step in (("output", 1), ("perturbation", 2)):  # a wrong row is wrong on its own cache, too
            wrong = other.copy()
            wrong.array(layer, kind)[step, head * GROUP] *= 1.5
            _, verdicts, _, _ = self.against(trace, one, wrong, MISMATCH)
            self.assertEqual({row for row, verdict in verdicts.items() if verdict == "wrong: B"},
                             {(layer, kind, (step, head * GROUP))})

    def test_a_wrong_choice_is_wrong_and_what_follows_is_of_another_cache(self):
        trace = self.trace("F32")
        right = recompute(trace, "snapkv:window=8", "40", np.float32)
        kept = faults.all_kept_sets(right)
        kept[1][1] = faults.exchanged(kept[1][1], *faults.clear_exchange(right.array(1, "score")[1], kept[1][1]))
        wrong = recompute(trace, "snapkv:window=8", "40", np.float32, kept=kept)
        _, verdicts, _, stderr = self.against(trace, wrong, right, MISMATCH)
        self.assertEqual(verdicts.pop((1, "kept", (1,))), "wrong: A")
        self.assertEqual({*verdicts.values()}, {"other cache"})
        self.assertEqual({row[0] for row in verdicts}, {1})
        self.assertRegex(stderr, r"\Akvbound: a\.safetensors: layers\.1\.kept\[\d+\]: KV head 1 kept position \d+ rather than [^\n]*\n\Z")
        both = {"kept", "output"}
        _, verdicts, stdout, _ = self.against(trace, wrong.only(both), right.only({"output"}), MISMATCH)
        self.assertEqual({*verdicts.values()}, {"other cache"}, "B's kept sets are those of the reference")
        self.assertIn("none wrong of these, but what A has alone is\n", stdout)
        self.assertIn("\n  only in A: kept: judged, but not compared\n", stdout)

    def test_an_eviction_of_a_tie_makes_later_caches_differ(self):
        def smaller_first(right):
            def wrong(policy, budget, always, score, *rest):
                index, legal = right(policy, budget, always, score, *rest)
                return np.flatnonzero(~always & (score == score[index]))[0], legal
            return wrong

        trace = self.trace("F32", "tied", tokens=200)
        one = recompute(trace, "tova", "60")
        with mock.patch.object(independent.decoding, "leaving", smaller_first(independent.decoding.leaving)):
            other = recompute(trace, "tova", "60")
        report, verdicts, _, _ = self.against(trace, one, other)
        caches = {}
        # {(layer, step, KV head)} whose caches differ, and which choices on equal histories do
        for layer in range(2):
            for head in range(2):
                mine, theirs = (set(faults.kept_sets(dump, layer)[head]) for dump in (one, other))
                same = True
                for step in range(4):
                    caches[layer, step, head] = mine != theirs, same
                    gone = [dump.array(layer, "evicted")[step, head] for dump in (one, other)]
                    if gone[0] != gone[1]:
                        self.assertEqual(verdicts.pop((layer, "evicted", (step, head))), "reordered" if same else "other cache")
                        same = False
                    mine.discard(gone[0])
                    theirs.discard(gone[1])
        self.assertTrue(any(not same for _, same in caches.values()), "the trace has no ties")
        for (layer, kind, row), verdict in verdicts.items():
            heads = range(2) if kind == "layer_perturbation" else [row[1] // GROUP]
            apart = any(caches[layer, row[0], head][0] for head in heads)
            self.assertEqual(verdict, "other cache" if apart else "reordered", (layer, kind, row))
        first = {}
        for (layer, step, head), (apart, _) in caches.items():
            if apart:
                first.setdefault((layer, head), step)
        self.assertEqual({(entry["layer"], entry["kv_head"]): entry["first_step"] for entry in report["apart"]}, first)

    def test_a_tie_between_merge_targets_makes_clusters_differ(self):
        policy = "h2o:window=8+d2o:threshold=none"
        path = self.trace("F32", tokens=90)
        emulated = "--backend", "emulated"
        first, second = faults.tie_targets(path, self.reference(path, policy, "30", *emulated), 1, 0)
        dump = self.reference(path, policy, "30", *emulated)
        other = faults.with_targets_renamed(dump, 1, 0, first, second)
        faults.exchange_rows(other, 1, 0, first, second)
        _, verdicts, _, _ = self.against(path, dump.first_steps(1), other.first_steps(1))
        self.assertEqual(verdicts.pop((1, "target_of", (0,))), "reordered")
        self.assertEqual({*verdicts.values()}, {"other cache"})
        self.assertEqual({row[1:] for row in verdicts}, {("merged_key", (0,)), ("merged_value", (0,))})


class Parts(AgainstTest):
    def test_what_both_have_is_compared_and_the_rest_is_judged_and_said(self):
        trace = self.trace("F32", layers=3)
        whole = recompute(trace, "h2o:window=8", "40", np.float32)
        part = whole.only({"evicted", "kept", "kept_offsets", "output"}).first_steps(2)
        part.tensors = {name: value for name, value in part.tensors.items() if not name.startswith("layers.0.")}
        part.metadata["layers"] = "1-2"
        report, verdicts, stdout, _ = self.against(trace, whole, part)
        self.assertEqual(verdicts, {})
        self.assertEqual({(item["layer"], item["tensor"]): item["rows"] for item in report["tensors"]},
                         {(layer, kind): rows for layer in (1, 2) for kind, rows in
                          (("kept_offsets", 1), ("kept", 2), ("evicted", 4), ("output", 8))})
        missing = [kind for kind in report["a"]["tensors"] if kind not in part.kinds()]
        self.assertEqual(report["a"]["only"], {"tensors": missing, "layers": [0], "steps": 2})
        self.assertEqual(report["b"]["only"], {"tensors": [], "layers": [], "steps": 0})
        self.assertIn(f"\n  only in A: {', '.join(missing)}; layers 0; steps 2 to 3: judged, but not compared\n", stdout)
        self.against(trace, part, whole, PASS, "--identical")
        for layer, kind, index in ((0, "output", (0, 0, 0)), (1, "output", (3, 1, 2)), (2, "score", (0, 5))):
            wrong = whole.copy()
            wrong.array(layer, kind)[index] += 1
            _, verdicts, stdout, stderr = self.against(trace, part, wrong, MISMATCH)
            self.assertEqual(verdicts, {})
            self.assertIn("none wrong of these, but what B has alone is\n", stdout)
            self.assertRegex(stderr, rf"\Akvbound: b\.safetensors: layers\.{layer}\.{kind}")

    def test_dumps_without_a_common_row_are_no_evidence(self):
        trace = self.trace("F32")
        dump = self.reference(trace)
        report, _, stdout, stderr = self.against(trace, dump.only({"score"}), dump.only({"output"}), INCONCLUSIVE)
        self.assertEqual(report["tensors"], [])
        self.assertIn("no row is in both\n", stdout)
        self.assertEqual(stderr, "kvbound: A and B have no row in common\n")
        _, _, _, stderr = self.against(trace, dump.only({"score"}), dump.only({"output"}), INCONCLUSIVE, "--quiet", "--identical")
        self.assertEqual(stderr, "")

    def test_bounds_that_tell_nothing_let_nothing_pass(self):
        trace = TraceFile(prompt_tokens=60)
        for layer in range(2):
            trace.tensors[f"layers.{layer}.key"][1][...] *= 1000
        path = trace.write(self.folder / "wide.safetensors")
        one = self.reference(path, "snapkv:window=4", "9").only({"score"})
        one.metadata["storage"] = "BF16"  # rounding such logits to BF16 makes any score possible
        other = one.copy()
        other.array(1, "score")[0] = 0
        _, verdicts, _, stderr = self.against(path, one, other, INCONCLUSIVE)
        self.assertEqual(verdicts, {(1, "score", (0,)): "undecided"})
        self.assertIn("b.safetensors: inconclusive", stderr)

    def test_dumps_of_other_runs_or_traces_are_refused(self):
        trace = self.trace("F32")
        one = self.reference(trace, CRITICAL, "40").only({"output"})
        for changes, pattern in (({"policy": "snapkv:window=8"}, r"policy: is snapkv:window=8:pool=7, but that of a\.safetensors is snapkv\S*\+critical"),
                                 ({"budget": "41"}, r"budget: is 41, but that of a\.safetensors is 40"),
                                 ({"trace_sha256": "0" * 64}, "trace_sha256: is ")):
            other = one.copy()
            other.metadata.update(changes)
            one.write(self.folder / "a.safetensors")
            other.write(self.folder / "b.safetensors")
            self.refuses(INVALID, rf"b\.safetensors: .*__metadata__\.{pattern}", "diff", "a.safetensors", "b.safetensors",
                         "--against", trace, "--json", "none.json", silent=True)
        same = one.copy()
        same.metadata["budget"] = "34%"  # 40 of 120 entries
        self.against(trace, one, same, PASS, "--identical")

    def test_senseless_command_lines_are_refused(self):
        trace = self.trace("F32")
        self.reference(trace).write(self.folder / "d.safetensors")
        for arguments, pattern in ((("d.safetensors", "--against", trace), "A or B is missing"),
                                   (("d.safetensors",) * 3 + ("--against", trace), "unexpected argument"),
                                   ((trace, "d.safetensors", "--identical"), "--identical is for two dumps, with --against TRACE"),
                                   (("d.safetensors", "d.safetensors", "--against", trace, "--json", "d.safetensors"), "is an input")):
            self.refuses(USAGE, pattern, "diff", *arguments)

    def test_a_row_alone_is_told_from_a_batch(self):
        """A kernel whose split depends on the batch adds the same numbers up in other parts."""
        trace = self.trace("F32")
        alone = recompute(trace, "snapkv:window=8", "40", np.float32).only({"kept", "output"})
        batch = recompute(trace, "snapkv:window=8", "40", np.float32, change_layer=reordered).only({"kept", "output"})
        self.against(trace, batch, Dump(dict(batch.metadata, backend="other"), batch.tensors), PASS, "--identical")
        _, verdicts, _, stderr = self.against(trace, batch, alone, MISMATCH, "--identical")
        self.assertEqual({*verdicts.values()}, {"reordered"})
        self.assertIn("rows are not identical", stderr)


if __name__ == "__main__":
    kvbound_cli.main()
