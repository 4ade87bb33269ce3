"""`kvbound check OPERATION A --against B`: two kernels' results of the same inputs, row by row, beside what NumPy says of them.

usage: check_against_test.py KVBOUND      KVBOUND: the program's path
"""

import numpy as np

from support import kvbound_cli
from support.diffs import RowsTest
from support.documents import comparison, read
from support.kernel_files import SMALL_LAYER, KernelFile, compressed_layer, decode, prefill, random_rows, softmax_attention, topk
from support.kvbound_cli import INCONCLUSIVE, MISMATCH, PASS, USAGE


def alone(case, sequence):
    """One sequence of a dense decode case."""
    part = slice(sequence, sequence + 1)
    return case.changed(**{name: case.array(name)[part] for name in case.tensors})


def another_order(case):
    """The same outputs, added up in another order of the head's dimensions and of the tokens."""
    q, k, v = (case.array(name) for name in "qkv")
    dims, tokens = (np.random.default_rng(1).permutation(count) for count in (q.shape[-1], k.shape[1]))
    out = [softmax_attention(q[b:b + 1, :, dims], k[b, tokens][..., dims], v[b, tokens])[0] for b in range(len(q))]
    return case.changed(out=np.concatenate(out))


class CheckAgainst(RowsTest):
    def against(self, operation, one, other, code=PASS, *options):
        """Returns (report, {(tensor, row of A, row of B): verdict} of rows that are not identical, stdout, stderr)."""
        report, result = self.compare_rows(one, other, code, "check", operation, "a.safetensors", "--against", "b.safetensors", *options)
        verdicts = {(item["tensor"], tuple(row["row"]), tuple(row["row_b"])): row["verdict"]
                    for item in report["tensors"] for row in item["differing"]}
        return report, verdicts, result.stdout, result.stderr

    def test_a_file_and_itself_are_identical(self):
        for case in (decode(), prefill([9, 0, 30], [4, 2, 7])):
            report, verdicts, stdout, stderr = self.against("attention", case, case, PASS, "--identical")
            self.assertEqual((verdicts, stderr), ({}, ""))
            rows = sum(item["rows"] for item in report["tensors"])
            self.assertEqual(rows, case.array("out").shape[0] * 4 * (2 if "lse" in case.tensors else 1))
            self.assertRegex(stdout, rf"\AA a\.safetensors and B b\.safetensors: {rows} of {rows} rows identical, none wrong\n")
            self.assertIn("\n  compared: sequences 0-2\n", stdout)

    def test_the_types_and_the_layout_of_inputs_do_not_count(self):
        case = decode("F16")
        batch, tokens = case.array("k").shape[:2]
        ragged = KernelFile({**case.tensors, "q": ("F32", case.array("q")), **{
            name: ("F64", case.array(name).reshape(batch * tokens, 2, 16)) for name in "kv"},
            "kv_indptr": ("I32", np.arange(batch + 1) * tokens), "qo_indptr": ("I32", np.arange(batch + 1))}, storage="F16")
        self.against("attention", case, ragged, PASS, "--identical")

    def test_another_order_of_additions_is_reordered_by_as_many_ulps_as_numpy_says(self):
        one = decode("F32")
        other = another_order(one)
        report, verdicts, stdout, stderr = self.against("attention", one, other)
        self.assertEqual(stderr, "")
        mine, theirs = one.array("out").astype("f4"), other.array("out").astype("f4")
        different = {(b, h) for b, h in np.ndindex(mine.shape[:2]) if (mine[b, h] != theirs[b, h]).any()}
        self.assertGreater(len(different), 5)
        self.assertEqual(verdicts, {("out", index, index): "reordered" for index in different})
        for row in report["tensors"][0]["differing"]:
            a, b = mine[tuple(row["row"])], theirs[tuple(row["row"])]
            larger = np.maximum(abs(a), abs(b))
            self.assertAlmostEqual(row["ulps"], (abs(a.astype(float) - b) / np.spacing(larger)).max(), places=9)
            self.assertAlmostEqual(row["row_ulps"], abs(a.astype(float) - b).max() / float(np.spacing(larger.max())), places=9)
        self.assertRegex(stdout, rf", {len(different)} reordered \(at most [\d.e+]+ ulps apart")
        _, _, _, stderr = self.against("attention", one, other, MISMATCH, "--identical")
        self.assertRegex(stderr, rf"\Akvbound: {len(different)} of 24 rows are not identical, the first out\[\d, \d\]: reordered\n\Z")

    def test_a_wrong_row_is_said_to_be_whose_it_is(self):
        right = decode()

        def wrong(*heads):
            out = right.array("out")
            for head in heads:
                out[1, head] *= 1.05
            return right.changed(out=out)

        for one, other, expected in ((wrong(3), right, {3: "wrong: A"}), (right, wrong(0), {0: "wrong: B"}),
                                     (wrong(1, 2), wrong(2, 3), {1: "wrong: A", 2: "both wrong", 3: "wrong: B"})):
            _, verdicts, stdout, stderr = self.against("attention", one, other, MISMATCH)
            self.assertEqual(verdicts, {("out", (1, head), (1, head)): verdict for head, verdict in expected.items()})
            for name, mark in (("a", "wrong: A"), ("b", "wrong: B")):
                named = rf"(?m)^kvbound: {name}\.safetensors: out\[1, \d, \d+\] is "
                (self.assertRegex if {mark, "both wrong"} & {*expected.values()} else self.assertNotRegex)(stderr, named)

    def test_a_sequence_of_a_batch_is_held_against_the_same_one_alone(self):
        batch = decode(batch=5)
        report, verdicts, stdout, _ = self.against("attention", batch, alone(batch, 3), PASS, "--identical")
        self.assertEqual((report["compared"], report["a"]["only"]["cases"], report["b"]["only"]["cases"], verdicts), ([[3, 0]], [0, 1, 2, 4], [], {}))
        self.assertIn("\n  compared: sequence 3 of A with 0 of B\n  only in A: sequences 0-2,4: judged, but not compared\n", stdout)
        report, verdicts, _, stderr = self.against("attention", batch, another_order(alone(batch, 3)), MISMATCH, "--identical")
        self.assertLessEqual({verdict for verdict in verdicts.values()}, {"reordered"})
        self.assertLessEqual({key[1:] for key in verdicts}, {((3, head), (0, head)) for head in range(4)})
        self.assertRegex(stderr, r"rows are not identical, the first out\[3, \d\]: reordered")
        _, verdicts, _, _ = self.against("attention", alone(batch, 3), batch, PASS, "--identical")
        self.assertEqual(verdicts, {})
        out = batch.array("out")
        out[0] *= 0.5
        _, verdicts, _, stderr = self.against("attention", batch.changed(out=out), alone(batch, 3), MISMATCH)
        self.assertEqual(verdicts, {}, "what is wrong has no counterpart")
        self.assertRegex(stderr, r"\Akvbound: a\.safetensors: out\[0, ")

    def test_all_that_have_the_inputs_of_one_are_compared_with_it(self):
        one = alone(decode(), 0)
        many = one.changed(**{name: np.concatenate([one.array(name)] * 3) for name in one.tensors})
        out = many.array("out")
        out[1] = another_order(one).array("out")[0]
        report, verdicts, stdout, _ = self.against("attention", many.changed(out=out), one)
        self.assertEqual(report["compared"], [[0, 0], [1, 0], [2, 0]])
        self.assertEqual({key[1][0] for key in verdicts}, {1})
        self.assertIn("compared: sequence 0 of A with 0 of B, sequence 1 of A with 0 of B, sequence 2 of A with 0 of B\n", stdout)
        self.assertEqual(self.against("attention", one, many)[0]["compared"], [[0, 0], [0, 1], [0, 2]])

    def test_other_inputs_or_settings_have_nothing_in_common(self):
        case = decode()
        for name in "qkv":
            array = case.array(name)
            array.flat[5] = 1.5
            other = case.changed(**{name: array})
            results = [softmax_attention(*(other.array(input)[b:b + 1] if input == "q" else other.array(input)[b] for input in "qkv"))
                       for b in range(3)]
            other = other.changed(out=np.concatenate([out for out, _ in results]), lse=np.concatenate([lse for _, lse in results]))
            report, _, stdout, stderr = self.against("attention", alone(case, 0), alone(other, 0), INCONCLUSIVE)
            self.assertEqual((report["compared"], report["a"]["only"]["cases"]), ([], [0]))
            self.assertIn("\n  no sequence of A has the inputs and settings of one of B\n", stdout)
            self.assertIn("kvbound: A and B have no row in common\n", stderr)
        scaled = KernelFile(decode(sm_scale=0.2).tensors, sm_scale=0.2)
        self.against("attention", case, scaled, INCONCLUSIVE)

    def test_settings_that_come_to_the_same_are_the_same(self):
        case = decode(batch=2)
        self.against("attention", case, KernelFile(case.tensors, causal="true", window_left=500, sm_scale=np.float32(0.25)), PASS, "--identical")
        base_2 = KernelFile(case.changed(lse=case.array("lse") * np.log2(np.e)).tensors, lse_base=2)
        report, _, stdout, _ = self.against("attention", case, base_2, PASS, "--identical")
        self.assertEqual([item["tensor"] for item in report["tensors"]], ["out"])
        self.assertEqual([report[file]["only"]["tensors"] for file in "ab"], [["lse"], ["lse"]])
        self.assertIn("\n  only in A: lse: judged, but not compared\n  only in B: lse: judged, but not compared\n", stdout)
        without = KernelFile({name: value for name, value in case.tensors.items() if name != "lse"})
        report, _, _, _ = self.against("attention", case, without, PASS, "--identical")
        self.assertEqual([report[file]["only"]["tensors"] for file in "ab"], [["lse"], []])

    def test_the_same_numbers_of_another_shape_are_other_inputs(self):
        flat = {"q": np.full((2, 2, 4), 0.5), "k": np.full((8, 1, 4), 0.5), "v": np.full((8, 1, 4), 0.5), "out": np.full((2, 2, 4), 0.5)}
        one = KernelFile({name: ("F32", array) for name, array in flat.items()})
        other = KernelFile({name: ("F32", array.reshape(4, 2, 4) if name in "kv" else array) for name, array in flat.items()})
        self.against("attention", one, other, INCONCLUSIVE)
        one, other = (KernelFile({**{name: case.tensors[name] for name in "qkv"}, "kept": ("I64", np.array(kept)),
                                  "kept_offsets": ("I64", np.array(offsets))}, policy="snapkv:window=2", budget="4")
                      for case, kept, offsets in ((other, [0, 1, 2, 3] * 2, [0, 4, 8]), (one, [0, 1, 6, 7], [0, 4])))
        for pair in ((one, other), (other, one)):
            self.assertEqual(self.against_any("merge", *pair)["compared"], [])

    def against_any(self, operation, one, other):
        one.write(self.folder / "a.safetensors")
        other.write(self.folder / "b.safetensors")
        result = self.run_program("check", operation, "a.safetensors", "--against", "b.safetensors", "--json", "out.json")
        self.assertIn(result.returncode, (PASS, MISMATCH, INCONCLUSIVE), result.stderr)
        return comparison(read(self.folder / "out.json"))

    def test_inputs_that_a_policy_does_not_read_may_differ(self):
        layer = self.layer("snapkv:window=8")
        without = KernelFile({name: layer.tensors[name] for name in ("q", "k", "score")}, **layer.metadata)
        report, _, _, _ = self.against("scores", layer, without, PASS, "--identical")
        self.assertEqual(report["compared"], [[0, 0]])

    def test_rows_of_other_lengths_are_not_compared(self):
        one = topk(rows=2, n=4, k=5)
        one = one.changed(indices=np.concatenate([one.array("indices"), -np.ones((2, 1), int)], axis=1))
        more = one.changed(indices=np.concatenate([one.array("indices"), -np.ones((2, 3), int)], axis=1))
        self.against("topk", one, one, PASS, "--identical")
        self.assertEqual(self.against("topk", one, more, INCONCLUSIVE)[0]["compared"], [])

    def test_selections_are_compared_as_sets_that_near_ties_may_change(self):
        one = topk(dtype="F16", n=40)
        indices = one.array("indices")
        order = indices.copy()
        order[2] = order[2][::-1]
        _, verdicts, _, _ = self.against("topk", one, one.changed(indices=order))
        self.assertEqual(verdicts, {("indices", (2,), (2,)): "reordered"})
        wrong = indices.copy()
        wrong[4, 0] = next(i for i in range(40) if i not in wrong[4])
        _, verdicts, _, stderr = self.against("topk", one.changed(indices=wrong), one, MISMATCH)
        self.assertEqual(verdicts, {("indices", (4,), (4,)): "wrong: A"})
        self.assertRegex(stderr, r"\Akvbound: a\.safetensors: indices\[4, \d+\]")
        row = KernelFile({name: (dtype, array[3:4]) for name, (dtype, array) in one.tensors.items()})
        report, _, stdout, _ = self.against("topk", one, row, PASS, "--identical")
        self.assertEqual((report["compared"], report["case"]), ([[3, 0]], "row"))
        self.assertIn("compared: row 3 of A with 0 of B\n", stdout)

    def layer(self, policy, precision=np.float64):
        return compressed_layer(self.generate("trace.safetensors", *SMALL_LAYER), policy, "40", precision)

    def test_scores_and_merges_are_compared_by_heads(self):
        for operation, policy, kind in (("scores", "snapkv:window=8+critical", "score"),
                                        ("merge", "snapkv:window=8+keepkv:threshold=none", "merged_value")):
            one, other = self.layer(policy), self.layer(policy, np.float32)
            _, verdicts, _, _ = self.against(operation, one, other)
            self.assertEqual({*verdicts.values()}, {"reordered"})
            self.assertLessEqual({(kind, (head,), (head,)) for head in (0, 1)}, {*verdicts})
            values = one.array(kind)
            values[-1] *= 1.01
            _, verdicts, _, _ = self.against(operation, other, one.changed(**{kind: values}), MISMATCH)
            self.assertEqual({key for key, verdict in verdicts.items() if verdict == "wrong: B"}, {(kind, (1,), (1,))})

    def test_norms_are_compared_by_query_heads(self):
        layer = self.layer("snapkv:window=8+critical")
        one = KernelFile({"v": layer.tensors["v"], "w_o": layer.tensors["w_o"], "norms": layer.tensors["projected_value_norms"]})
        other = one.with_tensor("norms", "F32", one.array("norms"))
        _, verdicts, _, _ = self.against("norms", one, other)
        self.assertEqual(verdicts, {("norms", (head,), (head,)): "reordered" for head in range(4)})
        self.against("norms", KernelFile(one.tensors, norm="l1"), KernelFile(one.tensors), PASS, "--identical")

    def test_kept_sets_may_differ_where_entries_tie(self):
        layer = self.layer("tova")
        kept, score, k, v = (layer.array(name) for name in ("kept", "score", "k", "v"))
        least = min(kept[:40], key=lambda position: score[0, position])
        twin = next(position for position in range(least + 1, 120) if position not in kept[:40])
        k[twin], v[twin] = k[least], v[least]
        names = ("q", "k", "kept", "kept_offsets")
        one = KernelFile({name: layer.tensors[name] for name in names}, **layer.metadata).changed(k=k)
        moved = np.concatenate([np.sort(np.where(kept[:40] == least, twin, kept[:40])), kept[40:]])
        report, verdicts, _, _ = self.against("merge", one, one.changed(kept=moved))
        self.assertEqual(verdicts[("kept", (0,), (0,))], "reordered")
        self.assertEqual((report["case"], report["apart"]), ("layer", [{"kv_head": 0, "first_step": 0}]))

    def test_options_that_do_not_fit_are_refused(self):
        case = decode()
        case.write(self.folder / "a.safetensors")
        self.refuses(USAGE, "--identical is for two files, with --against B", "check", "attention", "a.safetensors", "--identical")
        self.refuses(USAGE, "json", "check", "attention", "a.safetensors", "--against", "a.safetensors", "--json", "a.safetensors")
        random = random_rows((2, 5, 4), "F16", 1)
        KernelFile({"before": ("F16", random), "kept": ("I64", np.tile(np.arange(5), 2)), "kept_offsets": ("I64", np.array([0, 5, 10])),
                    "after": ("F16", random.reshape(10, 4))}).write(self.folder / "c.safetensors")
        self.refuses(USAGE, "--against is not of compact, whose results are exact", "check", "compact", "c.safetensors", "--against",
                     "c.safetensors")


if __name__ == "__main__":
    kvbound_cli.main()
