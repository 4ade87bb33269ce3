"""Documents of version 2 are as their schema and `kvbound figures` say.

usage: document_test.py KVBOUND      KVBOUND: the program's path
"""
import copy
import json
import os
import re

import jsonschema
import numpy as np

from support import kvbound_cli
from support.documents import parts, read
from support.dumps import Dump
from support.kernel_files import compacted, decode, long_decode, topk
from support.kvbound_cli import INCONCLUSIVE, MISMATCH, PASS, REPOSITORY, SAMPLES, CommandLineTest, TraceFile
from support.peer_file import write_peer
from support.tiny_model import TinyModel

GQA, MHA = SAMPLES / "pocket-gqa.safetensors", SAMPLES / "pocket-mha.safetensors"
SCHEMA = jsonschema.Draft7Validator(json.loads((REPOSITORY / "sim/schemas/document.schema.json").read_text("utf-8")))
ABOVE_ONE = 1e-9  # by how much rounding may lift a share


class DocumentTest(CommandLineTest):
    @classmethod
    def setUpClass(cls):
        """figures: {(command, cube, name): its row of `kvbound figures`}."""
        part, = parts(json.loads(kvbound_cli.run("figures", "--quiet", "--json", "-").stdout))
        cls.figures = {(row["command"], row["cube"], row["name"]): row for row in part.rows("figures")}

    def document(self, *arguments, code=PASS):
        self.passes(*arguments, "--json", "out.json", code=code)
        return read(self.folder / "out.json")

    def problems(self, document):
        """What a document has that its schema, or the table of figures, does not know, or says otherwise."""
        found = [f"{list(error.absolute_path)}: {error.message}" for error in SCHEMA.iter_errors(document)]
        for part in [] if found else parts(document):
            for name, cube in part.cubes.items():
                columns = dict(cube["columns"])
                for axis in cube["axes"]:
                    columns |= part.axes[axis]
                    found += [f"{axis}: sizes of keys" for values in part.axes[axis].values() if len(values) != part.size(axis)]
                rows = int(np.prod(part.shape(name)))
                found += [f"{name}.{column}: size" for column, values in cube["columns"].items() if len(values) != rows]
                for column, values in columns.items():
                    figure = self.figures.get((document["command"], name, column))
                    found += [f"{name}.{column}: {what}" for what in self.unlike(figure, values)]
        return found

    @staticmethod
    def unlike(figure, values):
        if figure is None:
            return ["unknown"]
        numbers = [value for value in values if value is not None]
        if any(isinstance(value, str) != (figure["kind"] == "text") for value in numbers):
            return [f"is not {figure['kind']}"]
        allowed = {"text": lambda text: text, "count": lambda count: count == int(count) and (count >= 0 or figure["name"] == "step"),
                   "share": lambda share: 0 <= share <= 1 + ABOVE_ONE, "seconds": lambda seconds: seconds >= 0,
                   "bytes": lambda size: size >= 0, "number": lambda number: True}
        return [f"{value} as {figure['kind']}" for value in numbers if not allowed[figure["kind"]](value)][:1]

    def require_valid_document(self, document):
        self.assertEqual(self.problems(document), [])

    def operations_of(self, heading):
        """The operations that the help of bench lists below a heading."""
        text = self.passes("bench", "--help").partition(heading)[2].partition("\n\n")[0]
        return re.findall(r"^  ([a-z0-9-]+) ", text, re.MULTILINE)


class Documents(DocumentTest):
    def test_every_figure_says_what_it_means(self):
        for figure in self.figures.values():
            self.assertTrue(figure["heading"] and figure["meaning"], figure)

    def test_the_documentation_has_every_figure(self):
        readme = (REPOSITORY / "sim/figures/README.md").read_text("utf-8")
        listed = readme.split("<!-- kvbound figures --markdown -->\n")[1].split("<!-- end -->")[0]
        self.assertEqual(listed, self.passes("figures", "--markdown"), "write it anew by the command that it names")

    def test_what_is_not_as_described_is_found(self):
        TraceFile(layers=1, query_heads=2).write(self.folder / "trace.safetensors")
        document = self.document("replay", "trace.safetensors", "--policy", "snapkv:window=4+critical", "--base", "snapkv:window=4",
                                 "--budget", "8")
        self.require_valid_document(document)
        runs = lambda changed: changed["parts"][0]["cubes"]["runs"]["columns"]
        for change in (lambda d: d.pop("provenance"), lambda d: d.update(schema="kvbound-3"), lambda d: d.update(more=1),
                       lambda d: d["provenance"].update(threads=0), lambda d: d["parts"][0].pop("axes"),
                       lambda d: runs(d)["relative"].append(1), lambda d: runs(d).update(unknown=[1, 1]),
                       lambda d: runs(d).update(violations=[0.5, 0]), lambda d: runs(d).update(improved_heads=[2, 0]),
                       lambda d: runs(d).update(tightest=[1, 2]), lambda d: runs(d).update(relative=["x", "y"]),
                       lambda d: d["parts"][0]["axes"]["run"]["budget"].pop()):
            changed = copy.deepcopy(document)
            change(changed)
            self.assertNotEqual(self.problems(changed), [])

    def test_replays_of_both_samples(self):
        document = self.document("replay", GQA, MHA, "--policy", "snapkv,snapkv+critical,snapkv+theta-sweep:norm=l2",
                                 "--base", "snapkv", "--budget", "64,12.5%", "--layers", "0,2-3", "--steps", "3")
        self.assertEqual([part.size("run") for part in parts(document)], [6, 6])
        self.require_valid_document(document)

    def test_degenerate_replays(self):
        trace = TraceFile()
        for name in ("layers.0.output_projection", "layers.1.value"):
            trace.tensors[name][1][...] = 0
        trace.write(self.folder / "zero.safetensors")
        TraceFile(decode_tokens=0).write(self.folder / "short.safetensors")
        for name, code in (("zero", PASS), ("short", INCONCLUSIVE)):
            document = self.document("replay", f"{name}.safetensors", "--policy",
                                     "snapkv:window=1,snapkv:window=1+critical", "--base", "snapkv:window=1",
                                     "--budget", "1,100%", code=code)
            self.require_valid_document(document)

    def test_a_small_replay(self):
        TraceFile(layers=1, query_heads=2).write(self.folder / "trace.safetensors")
        document = self.document("replay", "trace.safetensors", "--policy", "snapkv:window=4+critical", "--base",
                                 "snapkv:window=4", "--budget", "8")
        self.require_valid_document(document)

    def test_replays_that_merge(self):
        TraceFile(layers=1, query_heads=2).write(self.folder / "mha.safetensors")
        TraceFile(layers=1, decode_tokens=0).write(self.folder / "short.safetensors")
        policies = [f"{host}+{merge}:threshold=none" for host in ("snapkv:window=4", "h2o:window=4:recent=2")
                    for merge in ("keepkv", "keepkv-paper", "keepkv:period=2", "convex", "d2o", "kvmerger")]
        policies += ["h2o:window=4:recent=2+cam", "h2o:window=4:recent=2+keepkv:threshold=1", "h2o:window=4:recent=2"]
        for bounds in ((), ("--merge-bounds",)):
            for trace, code in (("mha", PASS), ("short", INCONCLUSIVE)):
                self.require_valid_document(self.document("replay", f"{trace}.safetensors", "--policy",
                                                         ",".join(policies), "--budget", "8", *bounds, code=code))
        document = self.document("replay", "mha.safetensors", "--policy",
                                 "h2o:window=4:recent=2+keepkv:threshold=none:predict=current", "--budget", "8",
                                 "--merge-bounds")
        self.require_valid_document(document)

    def test_replays_of_devices_beside_the_reference(self):
        TraceFile(layers=1, query_heads=2).write(self.folder / "trace.safetensors")
        policies = ("snapkv:window=4+critical", "h2o:window=4:recent=2+keepkv:threshold=none",
                    "h2o:window=4:recent=2+keepkv:period=2", "tova+cam", "streaming-llm+d2o", "random:sinks=1:window=4+d2o")
        for times in ((), ("--times",)):
            document = self.document("replay", "trace.safetensors", "--policy", ",".join(policies), "--budget", "8",
                                     "--backend", "reference,emulated", *times)
            self.require_valid_document(document)
            named = {row["tensor"] for row in parts(document)[0].rows("tensors")}
            self.assertLessEqual({"stage_two_score", "merged_key", "merged_into", "rebuilt_target_of"}, named)

    def test_checks_of_every_operation(self):
        copied = compacted()
        for operation, file, options in (("attention", decode("BF16", weights="BF16", tile="any"), ()),
                                         ("attention", decode("F32"), ("--splits", "4", "--tile", "64")),
                                         ("topk", topk(), ()), ("compact", copied, ()), ("compact", copied, ("--poison", "0"))):
            file.write(self.folder / "kernel.safetensors")
            document = self.document("check", operation, "kernel.safetensors", *options)
            self.require_valid_document(document)
        for file in (long_decode(2048, factor=1.02), long_decode(2048, factor=0.5)):
            file.write(self.folder / "kernel.safetensors")
            result = self.run_program("check", "attention", "kernel.safetensors", "--json", "out.json")
            document = json.loads((self.folder / "out.json").read_text("utf-8"))
            self.assertEqual(bool(parts(document)[0].rows("unlikely")), result.returncode == PASS)
            self.require_valid_document(document)
        wrong = topk()
        wrong.changed(indices=wrong.array("indices") * 0).write(self.folder / "kernel.safetensors")
        self.require_valid_document(self.document("check", "topk", "kernel.safetensors", code=MISMATCH))

    def test_checks_of_two_kernels(self):
        against = "check", "attention", "a.safetensors", "--against", "b.safetensors"
        right = decode("BF16", weights="BF16", tile="any")
        out = right.array("out")
        right.write(self.folder / "a.safetensors")
        right.changed(out=out + 1e-9 * np.arange(out.size).reshape(out.shape)).write(self.folder / "b.safetensors")
        document = self.document(*against, "--splits", "2")
        self.require_valid_document(document)
        out[1, 2] *= np.inf
        right.changed(out=out).write(self.folder / "b.safetensors")
        self.require_valid_document(self.document(*against, code=MISMATCH))
        other = right.array("q")
        other[0, 0, 0] += 1
        right.changed(q=other).write(self.folder / "b.safetensors")
        self.require_valid_document(self.document(*against, code=MISMATCH))
        topk().write(self.folder / "a.safetensors")
        self.require_valid_document(self.document("check", "topk", "a.safetensors", "--against", "a.safetensors"))

    def test_dumps_that_agree_that_differ_and_that_say_nothing(self):
        trace = TraceFile(layers=1).write(self.folder / "trace.safetensors")
        for policy in ("h2o:window=4:recent=2+keepkv:period=2:key=convex", "h2o:window=4:recent=2+d2o", "tova+cam",
                       "h2o:window=4:recent=2", "streaming-llm", "random:sinks=1:window=4", "snapkv:window=4+greedy", "snapkv:window=4",
                       "snapkv:window=4+critical", "snapkv:window=4+theta-sweep"):
            self.passes("replay", trace, "--policy", policy, "--budget", "8", "--dump", "dump.safetensors")
            self.require_valid_document(self.document("diff", trace, "dump.safetensors"))
            dump = Dump.read(self.folder / "dump.safetensors")
            if "evicted" in dump.kinds():
                dump.array(0, "evicted")[0] = 10**6
                dump.write(self.folder / "changed.safetensors")
                self.require_valid_document(self.document("diff", trace, "changed.safetensors", code=MISMATCH))
        dump = Dump.read(self.folder / "dump.safetensors")
        for kind, number in (("kept", -1), ("output", np.nan), ("perturbation", np.inf), ("kept_mass", -1),
                             ("score_positions", 5), ("score", -np.inf), ("kept", 10**6)):
            changed = dump.copy()
            changed.array(0, kind).flat[1] = number
            changed.write(self.folder / "changed.safetensors")
            self.require_valid_document(self.document("diff", trace, "changed.safetensors", code=MISMATCH))
        dump.only(set()).write(self.folder / "empty.safetensors")
        self.require_valid_document(self.document("diff", trace, "empty.safetensors", code=INCONCLUSIVE))
        TraceFile(decode_tokens=0).write(self.folder / "short.safetensors")
        self.passes("replay", "short.safetensors", "--policy", "snapkv:window=4", "--budget", "8", "--dump", "dump.safetensors",
                    code=INCONCLUSIVE)
        self.require_valid_document(self.document("diff", "short.safetensors", "dump.safetensors"))

    def test_a_dump_that_differs(self):
        trace = TraceFile(layers=1).write(self.folder / "trace.safetensors")
        self.passes("replay", trace, "--policy", "snapkv:window=4", "--budget", "8", "--dump", "dump.safetensors")
        dump = Dump.read(self.folder / "dump.safetensors")
        kept = dump.array(0, "kept")
        kept[:8] = np.sort(np.append(kept[4:8], np.setdiff1d(np.arange(20), kept[:4])[:4]))
        dump.metadata["weights"] = "BF16"
        dump.write(self.folder / "dump.safetensors")
        self.require_valid_document(self.document("diff", trace, "dump.safetensors", code=MISMATCH))

    def test_floors_of_random_numbers_and_traces(self):
        options = ("--storage", "BF16", "--weights", "BF16", "--partials", "F16", "--splits", "2", "--tile", "16")
        found = self.document("diff", "--floor", "head_dim=4", "--tokens", "40", *options)
        self.require_valid_document(found)
        self.require_valid_document(found)
        self.require_valid_document(self.document("diff", "--floor", "head_dim=4:query_heads=1", "--tokens", "1",
                                                 "--storage", "F64", "--tile", "any"))
        TraceFile(layers=1, query_heads=2).write(self.folder / "trace.safetensors")
        self.require_valid_document(self.document("diff", "--floor", "trace.safetensors", "--storage", "F32"))
        hopeless = self.document("diff", "--floor", "head_dim=2", "--tokens", "30000", "--storage", "F16", "--weights",
                                 "BF16", "--partials", "BF16", "--tile", "any")
        floors = parts(hopeless)[0].rows("floors")
        self.assertIsNone(floors[0]["factor"])
        self.assertNotIn("merged_value, d2o", [floor["operation"] for floor in floors])  # of so many tokens
        self.require_valid_document(hopeless)

    def test_two_dumps(self):
        trace = TraceFile(layers=2).write(self.folder / "trace.safetensors")
        against = "diff", "a.safetensors", "b.safetensors", "--against", trace
        for policy in ("h2o:window=4:recent=2+keepkv:period=2:key=convex", "h2o:window=4:recent=2", "tova+cam", "snapkv:window=4+critical"):
            for name, backend in (("a", "reference"), ("b", "emulated")):
                self.passes("replay", trace, "--policy", policy, "--budget", "8", "--backend", backend, "--dump", f"{name}.safetensors")
            self.require_valid_document(self.document(*against))
            self.require_valid_document(self.document(*against, "--identical", code=MISMATCH))
        dump = Dump.read(self.folder / "b.safetensors")
        kept = dump.array(0, "kept")
        kept[:8] = np.sort(np.append(kept[4:8], np.setdiff1d(np.arange(20), kept[:4])[:4]))
        dump.array(0, "score")[1, 2] = np.inf
        dump.metadata["layers"] = "0"
        for name in [name for name in dump.tensors if name.startswith("layers.1.")]:
            del dump.tensors[name]
        dump.write(self.folder / "b.safetensors")
        document = self.document(*against, code=MISMATCH)
        self.require_valid_document(document)
        self.assertGreater(len(parts(document)[0].rows("apart")), 0)
        dump.only(set()).write(self.folder / "b.safetensors")
        self.require_valid_document(self.document(*against, code=INCONCLUSIVE))

    def test_inspections(self):
        for sample in (GQA, MHA):
            self.require_valid_document(self.document("inspect", sample, "--verify", "--heads", "--layers", "0,2"))
        trace = TraceFile(prompt_tokens=2, window_queries=2, decode_tokens=0, dtype="F16")
        trace.tensors["layers.0.value"][1][...] = 0
        trace.write(self.folder / "trace.safetensors")
        self.require_valid_document(self.document("inspect", "trace.safetensors", "--heads", "--pool", "1"))
        self.require_valid_document(self.document("inspect", "trace.safetensors", "--verify", code=INCONCLUSIVE))

    def test_proofs_searches_and_replays(self):
        self.require_valid_document(self.document("prove", "ckv-3.3", "ckv-3.2", "--cases", "60", "--search", "0.1"))
        (self.folder / "out.json").rename(self.folder / "found.json")
        self.require_valid_document(self.document("prove", "--replay", "found.json"))
        self.require_valid_document(self.document("prove", "kkv-8", "--cases", "1", code=INCONCLUSIVE))

    def test_recalls_and_predictions(self):
        TraceFile(layers=1, query_heads=2).write(self.folder / "trace.safetensors")
        self.require_valid_document(self.document("recall", "trace.safetensors", "--k", "5", "--recent", "0", "--windows", "1"))
        self.require_valid_document(self.document("predict", "trace.safetensors", "--policy", "tova", "--shares", "2"))
        for sample in (GQA, MHA):
            self.require_valid_document(self.document("recall", sample, "--layers", "0,2", "--windows", "1,32"))
            self.require_valid_document(self.document("predict", sample, "--layers", "0,2", "--steps", "3"))

    def test_predictions_of_ratios_that_no_double_holds(self):
        trace = TraceFile(layers=1, dtype="F64")
        trace.tensors["layers.0.query"][1][...] *= 1e4
        trace.write(self.folder / "trace.safetensors")
        document = self.document("predict", "trace.safetensors", "--policy", "tova")
        self.require_valid_document(document)
        self.assertGreater(max(parts(document)[0].cubes["predictors"]["columns"]["relative_error_undefined"]), 0)

    def evaluation(self, tasks, *arguments):
        (self.folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), "utf-8")
        model = TinyModel().write_folder(self.folder / "model")
        return self.document("evaluate", model, "tasks.jsonl", "--quiet", *arguments)

    def test_evaluations_of_answers(self):
        prompts = np.random.default_rng(2).integers(0, 64, (3, 30)).tolist()
        tasks = [{"id": str(i), "prompt": prompt, "answer": [5, 6, 7], "depth": 0.25, "compress_at": 20}
                 for i, prompt in enumerate(prompts)]
        self.require_valid_document(self.evaluation(tasks[:2], "--policy", "h2o:window=4", "--base", "tova", "--budget", "8"))

    def test_an_evaluation_of_a_single_task_and_run(self):
        self.require_valid_document(self.evaluation([{"id": "a", "prompt": list(range(9)), "answer": [1, 2]}], "--policy", "tova",
                                                    "--budget", "9"))

    def test_evaluations_of_continuations_merges_and_several_budgets(self):
        tasks = [{"id": str(i), "prompt": list(range(30)), "continuation": [5, 6, i], "kind": f"kind {i}"} for i in range(2)]
        self.require_valid_document(self.evaluation(tasks, "--policy", "snapkv:window=4+keepkv,tova,random:sinks=1:window=4",
                                                    "--budget", "8,50%", "--steps", "3"))

    def test_benches_beside_a_peer(self):
        document = self.document("bench", "selection", "exponential", "--shape", "pocket:256", "--repeats", "2", "--peer",
                                 write_peer(self.folder / "torch.json"))
        self.require_valid_document(document)
        self.assertEqual(len(parts(document)[0].facts["peer"]["not_measured"]), 3)


class ModelsOfBench(DocumentTest):
    suite = "counted"

    def test_have_every_operation_of_a_device(self):
        document = self.document("bench", "--backend", "emulated", "--model", "h100", "--shape", "pocket:256")
        self.require_valid_document(document)
        part, = parts(document)
        self.assertEqual([*dict.fromkeys(row["operation"] for row in part.rows("operations"))], self.operations_of("Operations of a device"))
        for row in part.rows("operations"):
            self.assertEqual(row["floor_seconds"] is None, row["operation"] == "compress")
            self.assertEqual(row["attention_seconds"] is not None, row["operation"] == "step")
        for row in part.rows("launches"):
            self.assertIsNotNone(row["registers"], row["kernel"])


class WholeBenches(DocumentTest):
    suite = "long"

    def test_of_a_device_have_its_rooflines_and_no_goals(self):
        document = self.document("bench", "--backend", "emulated", "--shape", "pocket:256", "--repeats", "1")
        self.require_valid_document(document)
        part, = parts(document)
        ceilings, rows = [row["ceiling"] for row in part.rows("ceilings")], part.rows("operations")
        self.assertEqual(len(ceilings), 2)
        self.assertEqual([*dict.fromkeys(row["operation"] for row in rows)], self.operations_of("Operations of a device"))
        for row in rows:
            self.assertEqual(row["policy"] is not None, row["operation"] in ("compress", "step"))
            self.assertEqual(row["launches"] is not None, row["policy"] is not None)
            if row["policy"] is None:
                against = [one["timed"] for one in part.rows("against") if one["operation"] == row["operation"]]
                self.assertEqual(against, ceilings)
                self.assertIsNotNone(row["copy_bandwidth"])
                self.assertIsNone(row["verdict"], "an emulation has no goals")

    def test_of_the_reference_have_every_operation(self):
        model = TinyModel().write_folder(self.folder / "model")
        for threads in ("1", "2"):
            document = self.document("bench", "--shape", "pocket:256", "--repeats", "2", "--threads", threads, "--model", model,
                                     "--prompt", "32")
            self.require_valid_document(document)
            part, = parts(document)
            rows = {row["operation"]: row for row in part.rows("operations")}
            self.assertEqual([*rows], self.operations_of("Operations of the reference"))
            self.assertEqual(document["provenance"]["threads"], int(threads))
            self.assertEqual(part.facts["processors"], len(os.sched_getaffinity(0)))
            self.assertIn(part.facts["blas_threads"], (1, int(threads)))
            if threads == "1":
                self.assertEqual([rows["compress"][name] for name in ("ratio", "verdict")], [None, None])
                self.assertIn("one thread", rows["compress"]["no_ratio"])


if __name__ == "__main__":
    kvbound_cli.main()
