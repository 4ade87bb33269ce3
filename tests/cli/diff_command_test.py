"""`kvbound diff`: correct dumps agree, wrong ones differ in the tensor that is named, and malformed ones are refused.

usage: diff_command_test.py KVBOUND      KVBOUND: the program's path
"""
import re
import subprocess
import sys
from unittest import mock

import numpy as np

import independent.replay
from support import faults, kvbound_cli
from support.diffs import CRITICAL, REAL, DiffTest
from support.documents import read
from support.dumps import Dump, recompute
from support.kvbound_cli import (INCONCLUSIVE, INVALID, MISMATCH, REPOSITORY, SAMPLES, USAGE, WORLD, TraceFile,
                                 encode)

POLICIES = ("snapkv:window=8", "snapkv:window=8:pool=1", CRITICAL,
            "snapkv:window=8:pool=3+critical:alpha=adaptive:gqa=product-of-means",
            "snapkv:window=8+critical:alpha=0.25:epsilon=0:norm=l2", "snapkv:window=8:pool=1+theta-sweep",
            "snapkv:window=8+theta-sweep:alpha=adaptive:gqa=product-of-means:norm=l2")


class RightDumps(DiffTest):
    def test_the_references_dumps_agree_for_every_policy_and_storage(self):
        for dtype in REAL:
            trace = self.trace(dtype)
            for policy in POLICIES:
                for budget in ("8", "40", "100%"):
                    with self.subTest(f"{dtype} {policy} {budget}"):
                        self.agrees(trace, self.reference(trace, policy, budget))

    def test_the_samples_dumps_agree(self):
        for sample in ("pocket-gqa", "pocket-mha"):
            trace = SAMPLES / f"{sample}.safetensors"
            for policy in ("snapkv+critical:alpha=adaptive", "snapkv+theta-sweep"):
                self.agrees(trace, self.reference(trace, policy, "12.5%", "--layers", "1,3", "--steps", "5"))

    def test_tensors_may_be_stored_in_any_real_type(self):
        for trace_dtype in REAL:
            trace = self.trace(trace_dtype)
            for policy in (CRITICAL, "snapkv:window=8+theta-sweep"):
                dump = self.reference(trace, policy)
                for dtype in REAL:
                    with self.subTest(f"{trace_dtype} {policy} in {dtype}"):
                        self.agrees(trace, dump.stored(dtype))

    def test_the_emulated_devices_dumps_agree(self):
        for dtype in REAL:
            trace = self.trace(dtype)
            for policy in ("snapkv:window=8", CRITICAL, "snapkv:window=8+critical:alpha=adaptive:norm=l2"):
                with self.subTest(f"{dtype} {policy}"):
                    dump = self.reference(trace, policy, "40", "--backend", "emulated")
                    self.assertEqual((dump.metadata["backend"], dump.metadata["accumulate"]), ("emulated", "F32"))
                    self.agrees(trace, dump)

    def test_any_subset_of_the_tensors_may_be_there(self):
        trace = self.trace("BF16")
        dump = self.reference(trace)
        for kind in dump.kinds():
            with self.subTest(kind):
                self.agrees(trace, dump.only({kind}))
                self.agrees(trace, dump.only(dump.kinds() - {kind}))
        integers = dump.only({"kept", "kept_offsets", "score_positions"})
        integers.tensors = {name: ("I32", array) for name, (_, array) in integers.tensors.items()}
        self.agrees(trace, integers)

    def test_some_layers_and_the_first_steps_may_be_there(self):
        trace = self.trace(layers=5)
        for options in (("--layers", "0,2-3"), ("--steps", "1"), ("--layers", "4", "--steps", "3")):
            report = self.agrees(trace, self.reference(trace, CRITICAL, "40", *options))
            layers = {item["layer"] for item in report["tensors"]}
            self.assertEqual(layers, {"--layers": {0, 2, 3}}.get(options[0], set(range(5))) if len(options) == 2 else {4})
            self.assertEqual(report["dump"]["steps"], {"0,2-3": 4, "1": 1, "4": 3}[options[1]])

    def test_a_double_recomputation_agrees(self):
        for number, (dtype, kind) in enumerate((("F64", "power-law"), ("F32", "sink"), ("F16", "needle"),
                                                ("BF16", "mixed"), ("F32", "flat"), ("BF16", "tied"))):
            trace = self.trace(dtype, kind, tokens=90 + number, seed=number)
            for policy in POLICIES:
                with self.subTest(f"{dtype} {kind} {policy}"):
                    self.agrees(trace, recompute(trace, policy, "40"))

    def test_a_single_precision_recomputation_agrees_by_the_bounds_of_single_precision(self):
        for number, (dtype, kind) in enumerate((("F64", "power-law"), ("F32", "sink"), ("F16", "needle"),
                                                ("BF16", "mixed"), ("F32", "flat"), ("BF16", "tied"))):
            trace = self.trace(dtype, kind, tokens=190 + number, seed=number)
            for policy in POLICIES:
                with self.subTest(f"{dtype} {kind} {policy}"):
                    dump = recompute(trace, policy, "60", np.float32)
                    self.agrees(trace, dump)
                    dump.metadata["accumulate"] = dump.metadata["storage"] = "F64"
                    self.diff(trace, dump, MISMATCH)

    def test_the_papers_printed_forms_agree_in_single_precision(self):
        def printed(trace, layer, kept):
            results, terms = replay_layer(trace, layer, kept)
            for head in range(trace.query_heads):
                group = head // trace.group
                values, projection = layer.value[group], layer.output_projection[head]
                cached = np.arange(len(values)) >= trace.prompt_tokens
                cached[kept[group]] = True
                attention = layer.query[head, trace.window_queries:], layer.key[group], trace.prompt_tokens, trace.scale
                weights = independent.replay.attention_weights(*attention)
                norms = independent.replay.projected_value_norms(values, projection)
                mass = weights[:, cached].sum(axis=1)
                compressed = independent.replay.attention_weights(*attention, cached)
                results["perturbation"][:, head] = abs(weights @ values @ projection
                                                       - compressed @ values @ projection).sum(axis=1)
                results["bound"][:, head] = weights @ norms - (2 - 1 / mass) * (weights[:, cached] @ norms[cached])
            return results, terms

        replay_layer = independent.replay.replay_layer
        trace = self.trace("BF16", "power-law")
        with mock.patch.object(independent.replay, "replay_layer", printed):
            for budget in ("20", "119", "120"):
                dump = recompute(trace, CRITICAL, budget, np.float32).only({"kept", "bound", "perturbation"})
                self.assertEqual(dump.array(0, "bound").dtype, np.float32)
                self.agrees(trace, dump)

    def test_inputs_rounded_to_the_storage_and_weights_rounded_before_the_values_agree_if_the_dump_says_so(self):
        def rounded(array):
            return (np.frombuffer(encode(array, "BF16"), "<u2").astype("<u4") << 16).view("<f4").reshape(array.shape)

        def round_layer(layer):
            for name, array in vars(layer).items():
                if isinstance(array, np.ndarray):  # not the layer's number
                    setattr(layer, name, rounded(array).astype(array.dtype))

        trace = self.trace("F32")
        dump = recompute(trace, CRITICAL, "40", change_layer=round_layer, storage="BF16")
        self.agrees(trace, dump)
        dump.metadata["storage"] = "F32"
        self.diff(trace, dump, MISMATCH)

        def attention_weights(*arguments):
            return rounded(exact(*arguments))

        exact = independent.replay.attention_weights
        with mock.patch.object(independent.replay, "attention_weights", attention_weights):
            dump = recompute(trace, CRITICAL, "40").only({"output"})
        kept = recompute(trace, CRITICAL, "40")
        for layer in range(2):
            dump.tensors[f"layers.{layer}.kept"] = "I64", kept.array(layer, "kept")
        dump.metadata["weights"] = "BF16"
        self.agrees(trace, dump)
        del dump.metadata["weights"]
        self.differs(trace, dump, "output")

    def test_swaps_of_near_ties_are_legal_and_counted(self):
        for kind, policy in (("mixed", "snapkv:window=8"), ("tied", CRITICAL)):
            trace = self.trace("F32", kind, tokens=200)
            dump = recompute(trace, policy, "60")
            deciding = "stage_two_score" if policy == CRITICAL else "score"
            swaps, kept = 0, {}
            for layer in range(2):
                kept[layer] = []
                for head, positions in enumerate(dump.array(layer, "kept").reshape(2, 60)):
                    scores = np.stack([dump.array(layer, kind)[head] for kind in ("score", deciding)])
                    out = np.setdiff1d(np.arange(192), positions)
                    pair = next(((j, i) for j in positions[:52] for i in out if (scores[:, i] == scores[:, j]).all()), None)
                    if pair:
                        positions, swaps = np.sort(np.append(positions[positions != pair[0]], pair[1])), swaps + 1
                    kept[layer].append(positions)
            self.assertGreater(swaps, 0, "the trace has no ties to swap")
            swapped = recompute(trace, policy, "60", kept=kept)
            report = self.agrees(trace, swapped)
            self.assertEqual(sum(item["near_tie_swaps"] or 0 for item in report["tensors"]), swaps)
            if kind == "mixed":  # pooling makes different neighbours tie: swapping them changes the output
                for layer in range(2):
                    swapped.put(layer, "output", dump.array(layer, "output"))
                self.differs(trace, swapped, "output")

    def test_a_sharded_trace_and_one_without_decode_steps_can_be_compared_with(self):
        index, _ = kvbound_cli.write_sharded(TraceFile(), self.folder)
        self.agrees(index, self.reference(index, "snapkv:window=4+critical", "9"))
        short = TraceFile(decode_tokens=0).write(self.folder / "short.safetensors")
        self.passes("replay", short, "--policy", "snapkv:window=4", "--budget", "9", "--dump", "d.safetensors",
                    code=INCONCLUSIVE)
        self.agrees(short, Dump.read(self.folder / "d.safetensors"))

    def test_what_is_no_evidence_is_no_pass(self):
        trace = TraceFile()
        for layer in range(2):
            trace.tensors[f"layers.{layer}.value"][1][...] = 0
        path = trace.write(self.folder / "zero.safetensors")
        dump = self.reference(path, "snapkv:window=4", "9")
        self.agrees(path, dump)
        for empty, reason in ((dump.only({"output", "perturbation"}), "all numbers are 0, as they should be"),
                              (dump.only(set()), "there is nothing to judge: no tensor has an element")):
            report, stderr = self.diff(path, empty, INCONCLUSIVE)
            self.assertEqual(report["verdict"], "no evidence")
            self.assertIn(f"inconclusive: {reason}", stderr)
        dump = dump.only({"output"})
        dump.array(1, "output")[0, 0, 0] = 1e-3
        self.differs(path, dump, "output")

    def test_bounds_wider_than_the_numbers_let_nothing_pass(self):
        trace = TraceFile(prompt_tokens=60)
        for layer in range(2):
            trace.tensors[f"layers.{layer}.key"][1][...] *= 1000
        path = trace.write(self.folder / "wide.safetensors")
        dump = self.reference(path, "snapkv:window=4", "9").only({"score", "score_positions", "kept", "kept_offsets"})
        dump.metadata["storage"] = "BF16"  # rounding such logits to BF16 makes any score possible
        for layer in range(2):
            dump.array(layer, "score")[...] = 0
            dump.array(layer, "kept")[...] = [*range(5), *range(56, 60)] * 2
        report, _ = self.diff(path, dump, INCONCLUSIVE)
        verdicts = {entry["tensor"]: entry["verdict"] for entry in report["tensors"]}
        self.assertEqual((verdicts["score"], verdicts["kept"]), ("no evidence", "no evidence"))


class WrongDumps(DiffTest):
    """Dumps of a recomputation with a deliberate fault."""

    def test_an_output_scaled_by_1_01_is_found(self):
        self.finds("output", change=faults.scale_output)
        self.finds("output", change=lambda dump: dump.array(1, "output")[-1].__imul__(1.01))

    def test_a_causal_mask_off_by_one_is_found(self):
        def no_self(right):
            def wrong(queries, keys, first, scale, cached=True):
                return right(queries, keys, first - (cached is not True), scale, cached)
            return wrong

        self.finds("score", patch=("independent.prompt.seen_logits", faults.unmasked))
        self.finds("output", patch=("attention_weights", no_self))

    def test_a_dropped_part_of_split_k_is_found(self):
        def dropping(right):
            def wrong(queries, keys, first, scale, cached=True):
                if cached is not True:
                    part = np.array_split(np.flatnonzero(cached), 4)[1]
                    cached = cached.copy()
                    cached[part] = False
                return right(queries, keys, first, scale, cached)
            return wrong

        self.finds("output", patch=("attention_weights", dropping))

    def test_two_swapped_query_heads_are_found(self):
        def swap(dump):
            output = dump.array(1, "output")
            output[:, [0, 1]] = output[:, [1, 0]]

        self.finds("output", change=swap)
        self.finds("score", change_layer=lambda layer: faults.swap_queries(layer.query))

    def test_a_pool_of_5_for_7_is_found(self):
        self.finds("score", policy_changes=[("pool", 5)])
        self.finds("kept", policy_changes=[("pool", 5)], kinds={"kept", "output"})

    def test_a_missing_epsilon_is_found(self):
        self.finds("stage_two_score", policy_changes=[("epsilon", 0)])

    def test_w_o_transposed_within_a_head_is_found(self):
        def transpose(layer):
            faults.transpose_heads(layer.output_projection, slice(2, 3))

        self.finds("projected_value_norms", change_layer=transpose)
        self.finds("bound", policy="snapkv:window=8", change_layer=transpose)
        self.finds("perturbation", policy="snapkv:window=8", change_layer=transpose, kinds={"kept", "perturbation"})

    def test_one_element_off_by_twice_its_bound_is_found_and_by_half_is_not(self):
        for trace in self.traces():
            for precision in (np.float64, np.float32):
                right = recompute(trace, CRITICAL, "50", np.float64)
                right.metadata["accumulate"] = "F64" if precision == np.float64 else "F32"
                for item in self.agrees(trace, right)["tensors"]:
                    if not faults.is_judged(item) or item["layer"] != 1:
                        continue
                    for factor in (2, 0.5):
                        dump = right.copy()
                        faults.move_by_bounds(dump, item, factor)
                        with self.subTest(f"{trace.name} {precision.__name__} {item['tensor']} {factor}"):
                            if factor == 2:
                                report, _ = self.differs(trace, dump, item["tensor"])
                                found = [other for other in report["tensors"] if other["verdict"] == "differs"]
                                self.assertEqual([(other["layer"], other["tensor"], other["outside"])
                                                  for other in found], [(1, item["tensor"], 1)])
                                self.assertEqual(found[0]["worst"]["index"], item["worst"]["index"])
                            else:
                                self.agrees(trace, dump)

    def test_one_nan_or_infinity_is_found_in_any_tensor_and_type(self):
        trace = self.trace("BF16")
        for policy in (CRITICAL, "snapkv:window=8+theta-sweep"):
            right = recompute(trace, policy, "50")
            for dtype in REAL:
                for kind in right.kinds() - {"kept", "kept_offsets", "score_positions"}:
                    for bad in (np.nan, np.inf, -np.inf):
                        dump = right.stored(dtype).copy()
                        dump.array(1, kind).flat[3] = bad
                        report, stderr = self.differs(trace, dump, kind)
                        self.assertIn(f" is {str(bad)}, the reference says ", stderr)

    def test_a_kept_entry_swapped_for_a_clearly_worse_one_is_found(self):
        for policy in POLICIES:
            for trace in self.traces():
                right = recompute(trace, policy, "50")
                scores = right.array(1, "stage_two_score" if "stage_two_score" in right.kinds() else "score")[1]
                kept = faults.all_kept_sets(right)
                best, worst = faults.clear_exchange(scores, kept[1][1])
                kept[1][1] = faults.exchanged(kept[1][1], best, worst)
                for precision in (np.float64, np.float32):
                    with self.subTest(f"{policy} {trace.name} {precision.__name__}"):
                        # First a dump whose other tensors follow from the swap, then one whose other tensors
                        # follow from the correct choice.
                        consistent = recompute(trace, policy, "50", precision, kept=kept)
                        _, stderr = self.differs(trace, consistent, "kept")
                        self.assertRegex(stderr, rf"layers\.1\.kept\[\d+\]: KV head 1 kept position {worst} rather than "
                                                 if "theta" not in policy else r"layers\.1\.kept\[\d+\]: KV head 1")
                        self.assertNotIn("more tensor", stderr, "later numbers are judged on the cache as it was")
                        stale = right.copy()
                        stale.put(1, "kept", np.concatenate(kept[1]))
                        self.differs(trace, stale, "kept")

    def test_kept_sets_that_are_none_are_found(self):
        trace = self.trace("F32")
        right = recompute(trace, "snapkv:window=8", "40").only({"kept", "kept_offsets", "output"})
        for pattern, dump in faults.impossible_kept_sets(right, 1, 120):
            _, stderr = self.differs(trace, dump, "kept")
            self.assertRegex(stderr, pattern)
        dump = faults.with_one_less(right, 0, 0)
        self.differs(trace, dump, "kept_offsets")
        for layer in range(2):
            del dump.tensors[f"layers.{layer}.output"]
        report, _ = self.diff(trace, dump, MISMATCH)
        notes = [item["worst"]["note"] for item in report["tensors"] if item["tensor"] == "kept" and item["worst"]]
        self.assertEqual(notes, ["KV head 0: 39 entries are kept; the budget is 40"])

    def test_wrong_integers_are_found(self):
        trace = self.trace("F32")
        dump = self.reference(trace)
        dump.array(0, "score_positions")[7] = 8
        _, stderr = self.differs(trace, dump, "score_positions")
        self.assertIn("score_positions[7] is 8, the reference says 7", stderr)

    def test_quiet_silences_no_mismatch(self):
        trace = self.trace("F32")
        dump = self.reference(trace)
        dump.array(0, "score")[1, 5] *= 2
        dump.write(self.folder / "dump.safetensors")
        result = self.run_program("diff", trace, "dump.safetensors", "--quiet", "--threads", "1")
        self.assertEqual(result.returncode, MISMATCH)
        self.assertRegex(result.stderr, r"layers\.0\.score\[1, 5\] is [\d.e-]+, the reference says [\d.e-]+, bound "
                                        r"[\d.e-]+ \([\d.e+]+ times the bound\)")
        self.assertRegex(result.stdout, r"\n\nscore +differs|\ntensor[^\n]*\nscore +differs")

    def test_reports_do_not_depend_on_the_number_of_threads(self):
        trace = self.trace("BF16")
        recompute(trace, CRITICAL, "50", np.float32).write(self.folder / "dump.safetensors")
        reports = []
        for threads in ("1", "2", "5"):
            self.passes("diff", trace, "dump.safetensors", "--threads", threads, "--json", "out.json")
            report = read(self.folder / "out.json")
            self.assertEqual(report["provenance"].pop("threads"), int(threads))
            reports.append(report)
        self.assertEqual(reports[0], reports[1])
        self.assertEqual(reports[0], reports[2])


class UnfitDumps(DiffTest):
    def setUp(self):
        super().setUp()
        self.path = self.trace("F32")
        self.good = self.reference(self.path)

    def refuses_metadata(self, pattern, **fields):
        dump = self.good.copy()
        dump.metadata = {key: value for key, value in (dump.metadata | fields).items() if value is not None}
        with self.subTest(fields):
            self.refused(self.path, dump, r"at byte \d+: __metadata__\." + pattern)

    def test_metadata_that_does_not_fit_is_refused(self):
        for field in ("format", "version", "policy", "budget", "backend", "storage", "accumulate", "trace_sha256"):
            self.refuses_metadata(f"{field}: is missing", **{field: None})
        for field, values in (("format", ("kvbound-trace", "")), ("version", ("0", "2", "1.0")),
                              ("storage", ("", "f32", "I64", "F8_E4M3")), ("accumulate", ("BF16", "F16", "TF32")),
                              ("weights", ("I8", "")), ("layers", ("", "2", "1-2", "1,0", "0,0", "0-", "x", "0, 1"))):
            for value in values:
                self.refuses_metadata(rf'{field}: is "{value}"; expected ', **{field: value})
        for policy, pattern in (("h3o", "no host 'h3o'"), ("snapkv:pool=4", "pool=4"), ("", "")):
            self.refuses_metadata(f"policy: .*{pattern}", policy=policy)
        for budget, pattern in (("x", "expected a count"), ("7", "below the 8 of the observation window"),
                                ("121", r"outside 1\.\.120"), ("0", r"outside 1\.\.120"), ("101%", "expected")):
            self.refuses_metadata(f"budget: .*{pattern}", budget=budget)
        self.refuses_metadata("budget: .*only 12 prompt queries", policy="snapkv:window=20")

    def test_a_dump_of_another_trace_is_refused(self):
        other = self.trace("F32", seed=4)
        self.refused(other, self.good, r'at byte \d+: __metadata__\.trace_sha256: is "[0-9a-f]{64}"; expected '
                                       r'"[0-9a-f]{64}", the hash of ')

    def test_missing_layers_and_tensors_are_refused(self):
        dump = self.good.copy()
        dump.tensors = {name: value for name, value in dump.tensors.items() if not name.startswith("layers.1.")}
        self.refused(self.path, dump, r"layers\.1\.\w+: this tensor is missing, but other layers have it")
        for kind in self.good.kinds():
            dump = self.good.copy()
            del dump.tensors[f"layers.0.{kind}"]
            self.refused(self.path, dump, rf"layers\.0\.{kind}: this tensor is missing, but other layers have it")
        dump = self.good.copy()
        dump.metadata["layers"] = "0"
        self.refused(self.path, dump, r"at byte \d+: layers\.1\.\w+: the metadata says layers=0")

    def test_misshapen_tensors_are_refused(self):
        for name, (dtype, array) in self.good.tensors.items():
            for wrong in (array[:-1], array.reshape(-1)[:, None], array[None], np.concatenate([array, array[:1]])):
                dump = self.good.copy()
                dump.tensors[name] = dtype, wrong
                with self.subTest(f"{name} {wrong.shape}"):
                    kind = name.split(".")[-1]
                    other = "kept_offsets" if kind == "kept" and wrong.ndim == 1 else rf"{kind}|layers\.\d\.\w+"
                    self.refused(self.path, dump, rf"at byte \d+: layers\.\d\.({other})(\.shape)?: is \[.*; expected ")
            dump = self.good.copy()
            dump.tensors[name] = "F32" if dtype == "I64" else "I64", array
            self.refused(self.path, dump, rf"at byte \d+: {re.escape(name)}\.dtype: is \w+; expected ")

    def test_offsets_that_do_not_tile_are_refused(self):
        for offsets in ([0, 40, 79], [1, 40, 80], [0, 81, 80], [0, -1, 80]):
            dump = self.good.copy()
            dump.put(1, "kept_offsets", np.array(offsets))
            self.refused(self.path, dump, r"at byte \d+: layers\.1\.kept_offsets: is \[.*\]; expected to ascend from 0 "
                                          r"to 80, the length of layers\.1\.kept")
        dump = self.good.only({"kept"})
        dump.put(0, "kept", dump.array(0, "kept")[:-2])
        self.refused(self.path, dump, r"at byte \d+: layers\.0\.kept\.shape: is \[78\]; expected \[kv_heads \* budget\]")

    def test_unknown_tensors_are_refused(self):
        for name, pattern in (("layers.0.scores", "no tensor of a dump of snapkv.*; known: prompt_output, score_positions, score, "),
                              ("layers.2.score", "the trace has 2 layers"), ("scores", "no tensor of a dump"),
                              ("layers.00.score", "no tensor of a dump"), ("layers.-1.score", "no tensor of a dump"),
                              ("layers.0", "no tensor"), ("layers.99999999999999999999.score", "no tensor"),
                              ("layers.0.evicted", "only policies that evict while decoding have this"),
                              ("layers.1.votes", "only policies that merge"),
                              ("layers.1.merged_key", "only policies that merge")):
            dump = self.good.copy()
            dump.tensors[name] = "F64", np.zeros(3)
            self.refused(self.path, dump, rf"at byte \d+: {re.escape(name)}: .*{pattern}")
        dump = self.good.copy()
        dump.metadata["policy"] = "snapkv:window=8"
        self.refused(self.path, dump, r"at byte \d+: layers\.0\.(projected_value_norms|stage_two_score): no tensor of a "
                                      r"dump of snapkv:window=8:pool=7; known: ")

    def test_files_that_are_no_dumps_are_refused(self):
        self.refuses(INVALID, r"__metadata__\.format: is \"kvbound-trace\"; expected \"kvbound-dump\"", "diff",
                     self.path, self.path)
        self.refuses(INVALID, r"__metadata__\.format: is \"kvbound-dump\"; expected \"kvbound-trace\"", "diff",
                     "reference.safetensors", self.path)
        (self.folder / "empty").write_bytes(b"")
        self.refuses(INVALID, "empty: at byte 0: header length", "diff", self.path, "empty")
        (self.folder / "cut").write_bytes(self.good.bytes()[:-8])
        self.refuses(INVALID, "cut: at byte .*the file ends here", "diff", self.path, "cut")
        self.refuses(WORLD, "cannot open none", "diff", self.path, "none")

    def test_senseless_command_lines_are_refused(self):
        for arguments, pattern in (((), "TRACE or DUMP is missing"), ((self.path,), "is missing"),
                                   ((self.path, "a", "b"), "unexpected argument 'b'"),
                                   ((self.path, "reference.safetensors", "--policy", "snapkv"), "--policy"),
                                   ((self.path, "reference.safetensors", "--json", self.path), "is an input"),
                                   ((self.path, "reference.safetensors", "--json", "reference.safetensors"),
                                    "is an input"),
                                   ((self.path, "reference.safetensors", "--threads", "0"), "--threads")):
            self.refuses(USAGE, pattern, "diff", *arguments)


class NumpyExample(DiffTest):
    """traces/scripts/write_dump.py, unchanged and with a bug planted in it."""

    suite = "long"
    SCRIPT = REPOSITORY / "traces" / "scripts" / "write_dump.py"

    def write_dump(self, trace, *arguments, planted=None):
        text = self.SCRIPT.read_text("utf-8")
        if planted:
            self.assertEqual(text.count(planted[0]), 1, f"write_dump.py has not one {planted[0]!r}")
            text = text.replace(*planted)
        (self.folder / "script.py").write_text(text)
        subprocess.run([sys.executable, "script.py", trace, "dump.safetensors", *arguments], cwd=self.folder, check=True)
        return Dump.read(self.folder / "dump.safetensors")

    def test_its_dumps_agree(self):
        sizes = {"window-queries": 32}
        for trace, arguments in ((SAMPLES / "pocket-gqa.safetensors", ()), (SAMPLES / "pocket-mha.safetensors", ("64",)),
                                 (self.trace("F64", **sizes), ()), (self.trace("F16", "tied", **sizes), ("50",))):
            self.agrees(trace, self.write_dump(trace, *arguments))

    def test_planted_bugs_are_found(self):
        trace = SAMPLES / "pocket-gqa.safetensors"
        for tensor, planted in (
                ("score", ("best = np.argsort", "score = 1.001 * score; best = np.argsort")),
                ("score", ("WINDOW, POOL = 32, 7", "WINDOW, POOL = 32, 5")),
                ("score", ("[:, :-WINDOW].mean(axis=0)", "[1:, :-WINDOW].mean(axis=0)")),
                ("output", ("keys[g, cache], scale) @", "keys[g, cache], 1.01 * scale) @")),
                ("output", ("np.arange(n, n + step + 1)", "np.arange(n, n + step)")),
                ("kept", ("-score, kind", "-scores[0], kind"))):
            with self.subTest(planted[1]):
                dump = self.write_dump(trace, planted=planted)
                dump.metadata["policy"] = "snapkv:window=32:pool=7"
                self.differs(trace, dump, tensor)

    def test_it_says_how_it_is_used(self):
        result = subprocess.run([sys.executable, self.SCRIPT], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("write_dump.py TRACE DUMP [BUDGET]", result.stderr)


if __name__ == "__main__":
    kvbound_cli.main()
