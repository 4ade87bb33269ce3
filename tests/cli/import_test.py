"""kvbound import flashinfer: traces and dumps of recorded calls, verdicts on right and wrong kernels; records that are refused.

usage: import_test.py KVBOUND      KVBOUND: the program's path
"""
import itertools
import shutil

import numpy as np

from independent.replay import open_tensors, read_tensor
from support import kvbound_cli
from support.documents import judgement, read
from support.flashinfer_dumps import (CUDA_GRAPH, DECODE, Batch, Dumps, Tensor, Torch, attention, edit, ints, record_decode,
                                      record_prefill, record_ragged, record_single, safetensors)
from support.kvbound_cli import INCONCLUSIVE, INVALID, MISMATCH, PASS, USAGE, WORLD, CommandLineTest, file_bytes

TYPES = ("F32", "F16", "BF16")
PROMPTS = {"tokens": (9, 6, 4), "queries": (5, 6, 1)}


class ImportTest(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.trace, self.dump = self.folder / "trace.safetensors", self.folder / "kernel.safetensors"
        self.dumps = None
        self.fresh()

    def fresh(self):
        """An empty folder of dumps."""
        if self.dumps:
            shutil.rmtree(self.dumps.folder)
        self.dumps = Dumps(self.folder / "dumps")
        return self.dumps

    def imports(self, *options):
        return self.passes("import", "flashinfer", "dumps", *options, "trace.safetensors")

    def verdict(self, *options):
        """The exit code of `diff` on an imported call, and its JSON report."""
        self.imports("--dump", self.dump, *options)
        result = self.run_program("diff", self.trace, self.dump, "--json", "diff.json")
        self.assertIn(result.returncode, (PASS, MISMATCH, INCONCLUSIVE), result.stderr)
        return result.returncode, judgement(read(self.folder / "diff.json"))

    def require_verdict(self, code, *options):
        found, report = self.verdict(*options)
        self.assertEqual(found, code, report)
        (judged, *_) = report["tensors"]
        self.assertEqual((judged["tensor"], judged["judged"]), ("prompt_output", judged["elements"]))
        return report

    def require_trace_of(self, batch, request, layer=0):
        metadata, entries = open_tensors(self.trace)
        sizes = {"query_heads": batch.heads, "kv_heads": batch.kv_heads, "head_dim": batch.dim, "decode_tokens": 0,
                 "prompt_tokens": batch.tokens[request], "window_queries": batch.queries[request]}
        self.assertEqual({name: int(metadata[name]) for name in sizes}, sizes)
        for name, rows in (("key", batch.k), ("value", batch.v), ("query", batch.q)):
            dtype, *_ = entry = entries[f"layers.{layer}.{name}"]
            self.assertEqual(dtype, batch.dtype)
            np.testing.assert_array_equal(read_tensor(entry), rows[request].swapaxes(0, 1))
        projection = read_tensor(entries[f"layers.{layer}.output_projection"])
        np.testing.assert_array_equal(projection, np.tile(np.eye(batch.dim), (batch.heads, 1)))


class Imports(ImportTest):
    def test_every_request_of_a_paged_decode_in_every_layout_and_type(self):
        for (layout, both), dtype in zip(itertools.cycle(itertools.product(("NHD", "HND"), (True, False))), 2 * TYPES):
            with self.subTest(layout=layout, both=both, dtype=dtype):
                self.fresh()
                batch = Batch(dtype=dtype)
                record_decode(self.dumps, batch, layout=layout, both=both, lse=both)
                for request in range(3):
                    report = self.require_verdict(PASS, "--request", request)
                    self.require_trace_of(batch, request)
                    self.assertEqual(report["dump"]["weights"], None if dtype == "F32" else dtype)
                    self.assertEqual(report["dump"]["storage"], dtype)

    def test_paged_and_ragged_prefill(self):
        for layout, both, dtype in (("NHD", False, "F16"), ("HND", True, "BF16"), ("HND", False, "F32")):
            for record in (record_prefill, record_ragged):
                with self.subTest(layout=layout, dtype=dtype, record=record.__name__):
                    self.fresh()
                    batch = Batch(**PROMPTS, dtype=dtype)
                    record(self.dumps, batch, layout=layout, **({"both": both} if record is record_prefill else {}))
                    for request in range(3):
                        self.require_verdict(PASS, "--request", request)
                        self.require_trace_of(batch, request)

    def test_single_requests(self):
        for layout, queries, arguments in (("NHD", 1, {}), ("HND", 1, {}), ("HND", 4, {"causal": True}), ("NHD", 9, {"causal": True}),
                                           ("NHD", 1, {"causal": False})):
            with self.subTest(layout=layout, queries=queries, **arguments):
                self.fresh()
                batch = Batch(tokens=(9,), queries=(queries,))
                record_single(self.dumps, batch, layout, **arguments)
                self.require_verdict(PASS)
                self.require_trace_of(batch, 0)

    def test_several_queries_for_each_request_of_a_decode(self):
        batch = Batch(tokens=(7, 5), queries=(3, 3))
        record_decode(self.dumps, batch, plan={"q_len_per_req": 3})
        self.require_verdict(PASS, "--request", 1)
        self.require_trace_of(batch, 1)
        self.fresh()
        record_decode(self.dumps, batch, run={"q_len_per_req": 3})
        self.require_verdict(PASS, "--request", 0)

    def test_a_wrapper_for_cuda_graphs_is_a_decode_wrapper(self):
        record_decode(self.dumps, Batch(), name=CUDA_GRAPH)
        self.require_verdict(PASS, "--request", 0)

    def test_forms_of_arguments_that_flashinfer_accepts(self):
        """Pages of one token without a dimension for it, and settings by position, of which the signature has no names."""
        for both in (True, False):
            self.fresh()
            batch = Batch(page_size=1)
            record_decode(self.dumps, batch, both=both, flat=True, run={"k_scale": Tensor("F32", [1.0]), "window_left": 3})
            self.require_verdict(PASS, "--request", 1)
            self.require_trace_of(batch, 1)
        self.fresh()
        tables = np.zeros((3, 5))
        batch = Batch()
        for r, row in enumerate(tables):
            pages = batch.indices[batch.indptr[r]:batch.indptr[r + 1]]
            row[:len(pages)] = pages
        record_decode(self.dumps, batch, plan={"block_tables": ints(tables),
                                               "seq_lens": ints(np.reshape(batch.tokens, (3, 1, 1, 1)))})
        self.require_verdict(PASS, "--request", 2)
        self.fresh()
        record_prefill(self.dumps, Batch(**PROMPTS), causal=1)
        self.require_verdict(PASS, "--request", 1)
        for positions, code in ((("NONE", -1, None, Torch("torch.float16"), None, None, None, 0.3), PASS), (("NONE", 2), INVALID)):
            self.fresh()
            record_decode(self.dumps, batch := Batch(), batch.outputs(scale=0.3), positions=positions)
            if code == PASS:
                self.require_verdict(PASS, "--request", 1)
            else:
                self.refuses(INVALID, "request 1: has 4 tokens, of which a sliding window of 2 hides some", "import", "flashinfer", "dumps",
                             self.trace, "--request", 1)

    def test_a_neighbour_that_cannot_be_read(self):
        record_decode(self.dumps, batch := Batch())
        other = self.dumps.call("softmax", "(x, temperature: float = inf)", temperature=float("inf"))
        self.require_verdict(PASS, "--request", 0)
        (other / "metadata.jsonl").write_text('{"function_name": "soft', "utf-8")
        self.require_verdict(PASS, "--request", 0)
        self.require_trace_of(batch, 0)
        self.assertRegex(self.passes("import", "flashinfer", "dumps", "--list"), r"\n +4  \? +unreadable: .*is not valid JSON")

    def test_a_given_scale(self):
        batch = Batch()
        record_decode(self.dumps, batch, batch.outputs(scale=0.3), plan={"sm_scale": 0.3, "logits_soft_cap": 0.0, "seq_lens":
                                                                         ints(batch.tokens)})
        self.require_verdict(PASS, "--request", 2)
        self.assertEqual(open_tensors(self.trace)[0]["scale"], "0.3")

    def test_calls_are_layers(self):
        batches = [Batch(seed=seed) for seed in (3, 4, 5)]
        for batch in batches:
            batch.indptr, batch.indices, batch.last = batches[0].indptr, batches[0].indices, batches[0].last
            record_decode(self.dumps, batch, object=batch.k[0].sum().as_integer_ratio()[1])
        self.require_verdict(PASS, "--call", "3,9", "--request", 2)
        self.require_trace_of(batches[0], 2, 0)
        self.require_trace_of(batches[2], 2, 1)
        self.assertIn("call0001 request 2; ", open_tensors(self.trace)[0]["source"])

    def test_without_a_dump_the_outputs_are_the_traces(self):
        batch = Batch(**PROMPTS, dtype="F32")
        record_prefill(self.dumps, batch)
        self.imports("--request", 1)
        self.passes("inspect", self.trace, "--verify")
        found = read_tensor(open_tensors(self.trace)[1]["layers.0.attention_output"])
        np.testing.assert_allclose(found, batch.outputs()[5:11].swapaxes(0, 1), rtol=1e-6)

    def test_the_last_queries_may_be_decode_steps(self):
        batch = Batch(**PROMPTS)
        record_prefill(self.dumps, batch)
        report = self.require_verdict(PASS, "--request", 0, "--steps", 3)
        self.assertEqual([(item["tensor"], item["elements"]) for item in report["tensors"]], [("prompt_output", 64), ("output", 96)])
        self.assertEqual(report["tensors"][1]["judged"], 96)
        self.passes("replay", self.trace, "--policy", "snapkv:window=2,h2o:window=2", "--budget", 4)
        outputs = batch.outputs()
        outputs[4, 3, 7] += 0.05
        self.fresh()
        record_prefill(self.dumps, batch, outputs)
        report = self.verdict("--request", 0, "--steps", 3)[1]
        self.assertEqual([item["outside"] for item in report["tensors"]], [0, 1])
        self.imports("--request", 0, "--steps", 4)
        self.refuses(USAGE, "5 decode steps: the request has 5 queries, of which one", "import", "flashinfer", "dumps", self.trace,
                     "--request", 0, "--steps", 5)

    def test_it_says_what_it_wrote_and_how_to_judge_it(self):
        record_decode(self.dumps, Batch())
        said = "layers: 1; 4 query heads on 2 KV heads, head_dim 8, F16; tokens: 9; queries: 1\n"
        self.assertEqual(self.imports("--request", 2), said)
        self.assertEqual(self.imports("--request", 2, "--dump", "kernel.safetensors"),
                         f"{said}for a verdict: kvbound diff trace.safetensors kernel.safetensors\n")

    def test_a_moved_folder(self):
        record_decode(self.dumps, Batch(tokens=(7,), queries=(1,)))
        self.dumps.folder.rename(self.folder / "moved")
        self.dumps.folder = self.folder / "moved"
        self.passes("import", "flashinfer", "moved/", "trace.safetensors")

    def test_the_list_of_calls(self):
        record_decode(self.dumps, Batch())
        record_single(self.dumps, Batch(tokens=(9,), queries=(4,)))
        other = self.dumps.call("rmsnorm", "<unavailable>", ints([1]), result=ints([1]))
        edit(other, lambda record: record.update(tensor_format="torch"))
        lines = self.passes("import", "flashinfer", "dumps", "--list").splitlines()
        self.assertEqual(len(lines), 6)
        self.assertRegex(lines[2], f"^ +2  {DECODE}.plan$")
        self.assertRegex(lines[3], f"^ +3  {DECODE}.run +3 requests, 4 query heads on 2 KV heads, head_dim 8, F16$")
        self.assertRegex(lines[4], "^ +4  single_prefill_with_kv_cache +1 request, ")
        self.assertRegex(lines[5], "^ +5  rmsnorm$")
        record_decode(self.dumps, Batch(), plan={"logits_soft_cap": 30.0})
        self.assertRegex(self.passes("import", "flashinfer", "dumps", "--list"), f"  8  {DECODE}.run +refused: .*capped logits")


class Records(ImportTest):
    def test_the_last_plan_before_a_call_counts(self):
        batch, other = Batch(), Batch(tokens=(4, 8, 3))
        record_decode(self.dumps, other)
        record_decode(self.dumps, batch, constructed=False)
        record_decode(self.dumps, other, constructed=False)
        record_decode(self.dumps, other, object=100)
        self.require_verdict(PASS, "--call", 5, "--request", 2)
        self.require_trace_of(batch, 2)

    def test_a_new_object_at_the_same_address_has_no_plan(self):
        batch = Batch()
        record_decode(self.dumps, batch)
        run = record_decode(self.dumps, batch)[1]
        plan = next(self.dumps.folder.glob("*143216_005*"))
        shutil.rmtree(plan)
        self.refuses(INVALID, f"{run.name}/metadata.jsonl: .*self_id: no call of plan on this object", "import", "flashinfer", "dumps",
                     self.trace, "--call", 5, "--request", 0)

    def test_of_two_plans_in_one_millisecond_the_user_chooses(self):
        batch = Batch()
        record_decode(self.dumps, batch)
        self.dumps.now -= 1
        record_decode(self.dumps, batch, constructed=False)
        self.refuses(INVALID, "timestamp: is that of .*unknown which", "import", "flashinfer", "dumps", self.trace, "--call", 4,
                     "--request", 0)
        self.require_verdict(PASS, "--call", 5, "--request", 0, "--plan", 3)
        self.refuses(USAGE, "is no plan of the object", "import", "flashinfer", "dumps", self.trace, "--call", 4, "--request", 0,
                     "--plan", 1)

    def test_layouts_without_a_constructor(self):
        for batch, layout in ((Batch(), "HND"), (Batch(), "NHD"), (Batch(kv_heads=1, heads=2, page_size=1), "HND")):
            with self.subTest(layout=layout, page_size=batch.page_size):
                self.fresh()
                record_decode(self.dumps, batch, layout=layout, constructed=False)
                self.require_verdict(PASS, "--request", 0)
                self.require_trace_of(batch, 0)
        self.fresh()
        batch = Batch(kv_heads=4, heads=8)
        record_decode(self.dumps, batch, layout="HND", constructed=False)
        self.refuses(USAGE, "4 tokens and as many KV heads does not show its layout; give --kv-layout", "import", "flashinfer",
                     "dumps", self.trace, "--request", 0)
        self.require_verdict(PASS, "--request", 1, "--kv-layout", "HND")
        self.require_trace_of(batch, 1)
        self.fresh()
        record_ragged(self.dumps, Batch(**PROMPTS), constructed=False, layout="HND")
        self.require_verdict(PASS, "--request", 0)

    def test_what_forward_sets_is_given_by_options(self):
        batch = Batch(**PROMPTS)
        record_prefill(self.dumps, batch, batch.outputs(scale=0.5), causal=False)
        self.refuses(INVALID, "request 1: has 6 queries without a causal mask", "import", "flashinfer", "dumps", self.trace,
                     "--request", 1)
        self.require_verdict(PASS, "--request", 1, "--causal", "--sm-scale", 0.5)
        self.require_verdict(MISMATCH, "--request", 1, "--causal")

    def test_records_of_other_processes_are_apart(self):
        batch, others = Batch(), Dumps(self.folder / "others", process=5)
        record_decode(self.dumps, batch)
        record_decode(others, Batch(tokens=(3, 3, 3)), plan={"window_left": 3})
        others.now = 0
        for folder in others.folder.iterdir():
            folder.rename(self.dumps.folder / folder.name)
        self.assertEqual(len(list(self.dumps.folder.iterdir())), 6)
        self.require_verdict(PASS, "--call", 5, "--request", 0)


class Verdicts(ImportTest):
    def judge(self, code, batch, record=record_decode, request=0, **kernel):
        self.fresh()
        record(self.dumps, batch, batch.outputs(**kernel))
        return self.require_verdict(code, "--request", request)

    def test_kernels_that_round_as_tensor_cores_and_split_caches_do_are_right(self):
        for dtype in ("F16", "BF16"):
            for seed in range(3):
                batch = Batch(tokens=(40, 33), queries=(1, 1), dtype=dtype, seed=seed)
                for request in range(2):
                    self.judge(PASS, batch, request=request, weights=dtype, partials=dtype)

    def test_wrong_kernels_differ(self):
        for dtype in TYPES:
            batch, prompts = Batch(dtype=dtype), Batch(**PROMPTS, dtype=dtype)
            with self.subTest(dtype):
                self.judge(MISMATCH, batch, kv_head=lambda h, group: h % 2)
                self.judge(MISMATCH, batch, scale=1 / 8)
                self.judge(MISMATCH, prompts, record_prefill, causal=False)
                self.judge(MISMATCH, prompts, record_ragged, scale=8**-0.5 * 1.2)

    def test_a_kernel_that_takes_the_last_page_for_full_differs(self):
        batch = Batch(dtype="BF16")
        keys, values = (np.nan_to_num(batch.paged(part, "NHD"), nan=0.25) for part in (batch.k, batch.v))
        rows = []
        for r, query in enumerate(batch.q):
            pages = batch.indices[batch.indptr[r]:batch.indptr[r + 1]]
            rows.append(attention(query, keys[pages].reshape(-1, 2, 8), values[pages].reshape(-1, 2, 8)))
        record_decode(self.dumps, batch, np.concatenate(rows))
        report = self.require_verdict(MISMATCH, "--request", 0)  # 7 tokens in pages of 4
        self.assertGreater(report["tensors"][0]["outside"], 0)
        self.require_verdict(PASS, "--request", 1)  # its only page is full

    def test_one_wrong_number_differs(self):
        batch = Batch(**PROMPTS)
        outputs = batch.outputs()
        outputs[7, 3, 5] += 0.05
        record_prefill(self.dumps, batch, outputs)
        report = self.require_verdict(MISMATCH, "--request", 1)
        self.assertEqual((report["tensors"][0]["outside"], report["tensors"][0]["worst"]["index"]), (1, [2, 3, 5]))
        self.require_verdict(PASS, "--request", 0)

    def test_nan_differs_and_is_not_a_traces(self):
        batch = Batch()
        outputs = batch.outputs()
        outputs[1, 2, 3] = np.nan
        record_decode(self.dumps, batch, outputs)
        self.require_verdict(MISMATCH, "--request", 1)
        self.trace.unlink()
        self.refuses(INVALID, "outputs.safetensors: at byte [0-9]+: result: element 51 is NaN", "import", "flashinfer", "dumps",
                     self.trace, "--request", 1)


class Refusals(ImportTest):
    def refused(self, problem, *options, code=INVALID):
        self.refuses(code, problem, "import", "flashinfer", "dumps", "--request", 0, *options, self.trace)

    def test_arguments_that_change_what_is_computed(self):
        batch = Batch()
        for plan, problem in (
                ({"pos_encoding_mode": "ROPE_LLAMA"}, 'kwarg_pos_encoding_mode: is "ROPE_LLAMA"; expected "NONE"'),
                ({"pos_encoding_mode": "ALIBI"}, "ALiBi"), ({"logits_soft_cap": 30.0}, "kwarg_logits_soft_cap: is 30.0; expected none"),
                ({"window_left": 5}, "request 0: has 7 tokens, of which a sliding window of 5 hides some"), ({"jit_args": ["x"]}, "jit_args"),
                ({"custom_mask": ints([1])}, r"tensor kwarg_custom_mask: is a tensor; expected none: a trace's mask is causal"),
                ({"block_tables": ints([1])}, r"\(block_tables\).shape: is \[1\]; expected \[3 requests, pages\]"),
                ({"block_tables": ints([[0, 1, 0], [2, 0, 0], [3, 5, 4]])}, "row 0 has other pages than the page indices"), ({"new_option": 3}, "kwarg_new_option: is 3; expected none"),
                ({"sm_scale": -1.0}, "kwarg_sm_scale: is -1.0; expected a positive number"),
                ({"sm_scale": "big"}, 'sm_scale: is "big"'), ({"q_len_per_req": 2}, "expected 2 queries for each of 3 requests"),
                ({"seq_lens": ints([6, 4, 9])}, "request 0: has 7 tokens in its pages, but 6 in seq_lens"),
                ({"seq_lens": ints([6, 4])}, "seq_lens: has 2 elements; expected one for each of 3 requests")):
            with self.subTest(problem):
                self.fresh()
                record_decode(self.dumps, batch, plan=plan)
                self.refused(problem)
        for run, problem in (({"k_scale": 0.5}, "kwarg_k_scale: is 0.5; expected 1"), ({"v_scale": Tensor("F32", [0.5])}, "v_scale: is a"),
                             ({"sinks": Tensor("F32", [1.0])}, "sinks: is a tensor"), ({"window_left": 5}, "request 0: has 7 tokens, of which a sliding window")):
            with self.subTest(problem):
                self.fresh()
                record_decode(self.dumps, batch, run=run)
                self.refused(problem)
        self.fresh()
        record_decode(self.dumps, batch, run={"k_scale": 1.0, "return_lse": False, "window_left": -1})
        self.require_verdict(PASS, "--request", 0)

    def test_extra_arguments_by_position(self):
        self.dumps.call("single_decode_with_kv_cache", "(q: torch.Tensor, *args) -> torch.Tensor", ints([1]), ints([2]), result=ints([1]))
        self.refused("arg_1: is a tensor; expected none: an unknown argument")

    def test_prefill_masks_and_other_head_dims(self):
        batch = Batch(**PROMPTS)
        for plan, problem in (({"custom_mask": Tensor("I32", [1])}, "custom_mask: is a tensor"), ({"head_dim_vo": 4}, "head_dim_vo: is 4, but"),
                              ({"use_fp16_qk_reduction": True}, "use_fp16_qk_reduction: is true")):
            with self.subTest(problem):
                self.fresh()
                record_prefill(self.dumps, batch, plan=plan)
                self.refused(problem)

    def test_page_tables_that_are_wrong(self):
        batch = Batch()  # pages of the requests: 2, 1, 3
        good = {"indptr": batch.indptr, "indices": batch.indices, "last": batch.last}
        for change, problem in (
                ({"indptr": [0, 3, 2, 6]}, r"arg_1 \(indptr\): element 2 is 2 after 3; expected offsets that do not descend"),
                ({"indptr": [1, 2, 3, 6]}, "does not begin with 0"), ({"indptr": [0]}, "does not begin with 0"),
                ({"indptr": [[0, 2, 3, 6]]}, r"is \[1, 4\]; expected a vector"), ({"indptr": [0, 2, 3, 60]}, "has 6 pages; expected 60"),
                ({"indptr": [0, 0, 3, 6]}, "request 0: has no pages"), ({"indptr": [0, 2, 6]}, "has 3 elements; expected one for each of 2"),
                ({"indices": [8, 1, 2, 3, 4, 5]}, "request 0: has the page 8; the cache has pages 0 to 7"),
                ({"indices": [0, -1, 2, 3, 4, 5]}, "request 0: has the page -1"),
                ({"last": [5, 4, 1]}, "request 0: has 5 tokens in its last page; expected 1 to 4"), ({"last": [0, 4, 1]}, "has 0 tokens"),
                ({"last": [3, 4]}, "last_page_len: has 2 elements")):
            with self.subTest(problem):
                self.fresh()
                tables = {**good, **change}
                record_decode(self.dumps, batch, tables=tuple(ints(tables[name]) for name in ("indptr", "indices", "last")))
                self.refused(problem)
        self.fresh()
        record_decode(self.dumps, batch, tables=(Tensor("F32", batch.indptr), ints(batch.indices), ints(batch.last)))
        self.refused(r"arg_1.dtype: is F32; expected I64, I32 or U32")

    def test_keys_and_values_of_different_types(self):
        self.change_inputs(lambda t: t.update(arg_2__1=Tensor("BF16", t["arg_2__1"].array)), both=False)
        self.refused(r"paged_kv_cache: has values of BF16; expected the keys' F16")

    def change_inputs(self, change, **how):
        """Records a call whose tensors are then changed."""
        self.fresh()
        record_decode(self.dumps, Batch(), **how)
        inputs = next(self.dumps.folder.glob("*.run_*")) / "inputs.safetensors"
        _, entries = open_tensors(inputs)
        tensors = {name: Tensor(entry[0], read_tensor(entry)) for name, entry in entries.items()}
        change(tensors)
        inputs.write_bytes(safetensors(tensors))

    def test_shapes_that_contradict_each_other(self):
        for change, problem in (
                (lambda t: t.pop("arg_1"), r"arg_1 \(q\): this tensor is missing"),
                (lambda t: t.pop("arg_2"), r"arg_2 \(paged_kv_cache\): this tensor is missing"),
                (lambda t: t.update(arg_1=Tensor("F16", t["arg_1"].array[:2])), r"is \[2, 4, 8\]; expected 1 queries for each of 3"),
                (lambda t: t.update(arg_1=Tensor("F16", t["arg_1"].array[:, :3])), "num_qo_heads: is 4, but q of call .* has 3 query heads|"
                 "arg_4: is 4, but q of call .* has 3 query heads"),
                (lambda t: t.update(arg_1=Tensor("I32", t["arg_1"].array)), r"arg_1 \(q\).dtype: is I32; expected F32, F16 or BF16"),
                (lambda t: t.update(arg_1=Tensor("F16", t["arg_1"].array[0])), r"expected \[queries, query_heads, head_dim\]"),
                (lambda t: t.update(arg_2=Tensor("F16", t["arg_2"].array[..., :4])),
                 r"is \[8, 2, 4, 2, 4\]; expected \[pages, 2, page_size, kv_heads, head_dim\] = \[8, 2, 4, 2, 8\]"),
                (lambda t: t.update(arg_2=Tensor("F16", t["arg_2"].array[:, 0])), r"is \[8, 4, 2, 8\]; expected \[pages, 2,"),
                (lambda t: t.update(arg_2=Tensor("F16", t["arg_2"].array[:, :1])), r"is \[8, 1, 4, 2, 8\]; expected"),
                (lambda t: t["arg_1"].array.__setitem__((0, 1, 2), np.nan), "inputs.safetensors: .*arg_1: element 10 is NaN"),
                (lambda t: t["arg_1"].array.__setitem__((0, 0, 0), np.inf), "arg_1: element 0 is infinite")):
            with self.subTest(problem):
                self.change_inputs(change)
                self.refused(problem)
        self.fresh()
        batch = Batch(heads=6, kv_heads=4)
        record_decode(self.dumps, batch, outputs=np.zeros((3, 6, 8)))
        self.refused("has 6 query heads; expected a multiple of the 4 KV heads")

    def test_counts_that_are_none(self):
        for value, problem in ((0, "is 0; expected a number from 1"), (2.5, "is 2.5"), ("4", 'is "4"'), (10**12, "is 10+; expected")):
            with self.subTest(problem):
                self.fresh()
                plan, _ = record_decode(self.dumps, Batch())
                edit(plan, lambda record: record["input_metadata"].update(arg_7=value))
                self.refused(problem)

    def test_caches_of_other_types_and_tuples_that_were_not_recorded(self):
        record_decode(self.dumps, Batch(), both=False, tuples=False)
        self.refused("arg_2: is an object; expected a tensor, or a tuple of two, whose tensors older versions")
        self.fresh()
        _, run = record_decode(self.dumps, Batch())
        path = run / "inputs.safetensors"
        path.write_bytes(path.read_bytes().replace(b'"F16", "shape": [8, 2', b'"U8", "shape": [16, 2'))
        self.refused(r"arg_2 \(paged_kv_cache\).dtype: is U8; expected F32, F16 or BF16")

    def test_calls_that_did_not_finish_or_have_no_files(self):
        record_decode(self.dumps, Batch(), status="inputs_saved")
        self.refused('execution_status: is "inputs_saved": the call did not finish')
        self.fresh()
        plan, run = record_decode(self.dumps, Batch())
        (run / "outputs.safetensors").rename(self.folder / "kept")
        self.refused("outputs.safetensors: is missing")
        (run / "outputs.safetensors").symlink_to(self.folder / "kept")
        self.refused("outputs.safetensors: is a symbolic link")
        (run / "outputs.safetensors").unlink()
        (run / "outputs.safetensors").write_bytes((self.folder / "kept").read_bytes()[:-3])
        self.refused("outputs.safetensors: at byte")
        (run / "outputs.safetensors").unlink()
        (run / "outputs.pt").write_bytes(b"PK\3\4")
        self.refused("outputs.pt: is in PyTorch's format; run FlashInfer with FLASHINFER_DUMP_SAFETENSORS=1")
        shutil.rmtree(plan)
        self.refused("self_id: no call of plan on this object was recorded before")

    def test_metadata_that_are_broken(self):
        def cut(path):
            path.write_bytes(path.read_bytes()[:-40])
        for change, problem in (
                (lambda path: path.write_text("", "utf-8"), "metadata.jsonl: is empty"),
                (cut, r"metadata.jsonl: at byte [0-9]+: record: is not valid JSON"),
                (lambda path: path.write_text("[]\n", "utf-8"), "record: is an array; expected an object"),
                (lambda path: path.write_bytes(b'{"a": 1, "a": 2}\n'), "occurs twice"),
                (lambda path: path.write_bytes(b"\xef\xbb\xbf{}\n"), "byte order mark"),
                (lambda path: path.write_bytes(b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}\n"), "nested deeper"),
                (lambda path: path.write_bytes(b'{"function_name": "\xff"}\n'), "is not valid JSON"),
                (lambda path: path.write_bytes(b"{}\n"), "function_name: is missing")):
            with self.subTest(problem):
                self.fresh()
                _, run = record_decode(self.dumps, Batch())
                change(run / "metadata.jsonl")
                self.refused(problem)
        for change, problem in (
                ({"function_name": 3}, "function_name: is 3; expected a string"), ({"process_id": None}, "process_id: is null; expected an integer from 0"),
                ({"tensor_format": "torch"}, 'tensor_format: is "torch"; run FlashInfer with FLASHINFER_DUMP_SAFETENSORS=1'),
                ({"dump_dir": "../../etc"}, 'dump_dir: is "../../etc"; expected this folder'), ({"self_id": "x"}, "self_id: is"),
                ({"self_id": 12}, "self_id: no call of plan"), ({"function_signature": "run"}, 'function_signature: is "run"; expected'),
                ({"graph_capture": True}, "graph_capture: is true"), ({"input_metadata": []}, "input_metadata: is an array; expected an object"),
                ({"tensor_info": {}}, "tensor_info.input_tensor_keys: is missing"),
                ({"function_name": "BatchMLAPagedAttentionWrapper.run"}, "BatchMLAPagedAttentionWrapper.run.*; expected single_decode")):
            with self.subTest(problem):
                self.fresh()
                _, run = record_decode(self.dumps, Batch())
                edit(run, lambda record: record.update(change))
                self.refused(problem, "--call", 3)

    def test_folders_that_hold_no_calls(self):
        self.refused("dumps: holds no calls; expected FLASHINFER_DUMP_DIR")
        self.refuses(WORLD, "cannot use .*missing", "import", "flashinfer", "missing", self.trace)
        self.dumps.call("rmsnorm", "(x) -> None", result=ints([1]))
        self.refused("has no call that can be imported; expected one of single_decode")
        _, run = record_decode(self.dumps, Batch())
        self.refuses(INVALID, "is the folder of one call; expected the folder above it", "import", "flashinfer", run, self.trace)
        run.rename(self.folder / run.name)
        run.symlink_to(self.folder / run.name)
        self.refused("_call0001: is a symbolic link; expected the folder of a call")
        run.unlink()
        run.mkdir()
        (run / "metadata.jsonl").symlink_to(self.folder / run.name / "metadata.jsonl")
        self.refused("metadata.jsonl: is a symbolic link")

    def test_command_lines(self):
        record_decode(self.dumps, Batch())
        record_decode(self.dumps, Batch(), object=5)
        for arguments, problem in (
                ((), "flashinfer, DIR or OUT is missing"), (("flashinfer", "dumps"), "OUT is missing"),
                (("vllm", "dumps", "out"), "'vllm': expected flashinfer"), (("flashinfer", "dumps", "out"), "2 calls of attention kernels"),
                (("flashinfer", "dumps", "out", "--call", "7"), "--call '7': expected ascending calls or ranges such as 3,5-7 within 1..6"),
                (("flashinfer", "dumps", "out", "--call", "0"), "--call '0'"), (("flashinfer", "dumps", "out", "--call", "3"), "has 3 requests"),
                (("flashinfer", "dumps", "out", "--call", "3", "--request", "3"), "--request '3': expected an integer from 0 to 2"),
                (("flashinfer", "dumps", "out", "--call", "3", "--plan", "9"), "--plan '9': expected an integer from 1 to 6"),
                (("flashinfer", "dumps", "out", "--kv-layout", "nhd"), "--kv-layout 'nhd'"),
                (("flashinfer", "dumps", "out", "--call", "3", "--kv-layout", "HND"), "--kv-layout HND: call .* says NHD"),
                (("flashinfer", "dumps", "out", "--sm-scale", "nan"), "--sm-scale 'nan'"),
                (("flashinfer", "dumps", "--list", "--call", "3"), "--call: --list writes nothing"),
                (("flashinfer", "dumps", "--list", "out"), "unexpected argument 'out'"),
                (("flashinfer", "dumps/", "./dumps/out", "--call", "3", "--request", "0"), "'./dumps/out' is in dumps/, which is read"),
                (("flashinfer", "dumps", "dumps/out", "--call", "3", "--request", "0"), "'dumps/out' is in dumps, which is read"),
                (("flashinfer", "dumps", "out", "--call", "3", "--request", "0", "--dump", "out"), "'out' is what --OUT writes")):
            with self.subTest(problem):
                self.refuses(USAGE, problem, "import", *arguments)
        self.refuses(WORLD, "cannot create", "import", "flashinfer", "dumps", "missing/out", "--call", 3, "--request", 0)
        self.refuses(WORLD, "cannot write", "import", "flashinfer", "dumps", "out", "--call", 3, "--request", 0, file_size_limit=512)
        self.refuses(WORLD, "cannot create", "import", "flashinfer", "dumps", "out", "--call", 3, "--request", 0, "--dump", "missing/dump")
        self.refuses(WORLD, "cannot write /dev/full", "import", "flashinfer", "dumps", "out", "--call", 3, "--request", 0, "--dump", "/dev/full")

    def test_layers_that_differ(self):
        record_decode(self.dumps, Batch())
        record_decode(self.dumps, Batch(tokens=(8, 4, 9)), object=5)
        record_decode(self.dumps, Batch(dtype="BF16"), object=6)
        options = "import", "flashinfer", "dumps", self.trace, "--request", 0
        self.refuses(USAGE, "8 tokens, .*; the layers before it have .* 7 tokens", *options, "--call", "3,6")
        self.refuses(USAGE, "has other types of keys", *options, "--call", "3,9", "--dump", self.dump)
        self.passes(*options, "--call", "3,9")

    def test_a_page_that_is_repeated_absurdly_often(self):
        batch = Batch(tokens=(1,), queries=(1,), kv_heads=1, heads=1, dim=1, page_size=2**13, dtype="F16")
        pages = ints(np.zeros(2**18 + 1))
        record_decode(self.dumps, batch, tables=(ints([0, 2**18 + 1]), pages, ints([1])))
        self.refused(r"request 0: has 2147483649 tokens; a trace has at most 2\^31 - 1")

    def test_absurd_headers_are_refused_before_memory_is_taken(self):
        _, run = record_decode(self.dumps, Batch())
        header = {"arg_1": {"dtype": "F16", "shape": [2**40, 4, 8], "data_offsets": [0, 2**46]}}
        (run / "inputs.safetensors").write_bytes(file_bytes(header))
        self.refused("inputs.safetensors: .*the file ends here")


if __name__ == "__main__":
    kvbound_cli.main()
