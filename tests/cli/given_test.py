"""The host `given`: scores and kept sets that NumPy computed, in replay, diff, evaluate and sweep.

usage: given_test.py KVBOUND      KVBOUND: the program's path
"""
import json
import subprocess
import sys

import jsonschema
import numpy as np
from support import documents, kvbound_cli
from support.kvbound_cli import INVALID, MISMATCH, USAGE, WORLD, CommandLineTest
from support.tiny_model import TinyModel

SCRIPTS = kvbound_cli.REPOSITORY / "traces" / "scripts"
sys.path.insert(0, str(kvbound_cli.REPOSITORY / "sim" / "python"))
from kvbound.recording.trace_file import Files  # noqa: E402
from kvbound.recording.trace_reader import Trace  # noqa: E402

N, LAYERS, KV_HEADS, HEADS, WINDOW = 64, 2, 2, 4, 4


def write_given(path, subject, tensors, **metadata):
    """subject    (trace_sha256 or task_id, its text)"""
    metadata = {"format": "kvbound-given", "version": "1", subject[0]: subject[1]} | metadata
    arrays = {name: np.asarray(array, "i8" if "kept" in name else "f8") for name, array in tensors.items()}
    types = {name: ("I64" if array.dtype.kind == "i" else "F64", array.shape) for name, array in arrays.items()}
    with Files(path, metadata, [types]) as file:
        for name, array in arrays.items():
            file.write(name, array)
        file.commit()


class GivenTest(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.trace = self.generate_trace("trace.safetensors")

    def generate_trace(self, name, seed=1):
        self.passes("generate", "--kind", "mixed", "--tokens", str(N), "--decode", "3", "--layers", str(LAYERS), "--query-heads",
                    str(HEADS), "--kv-heads", str(KV_HEADS), "--head-dim", "8", "--model-dim", "16", "--window-queries", "8",
                    "--seed", str(seed), name)
        return Trace(self.folder / name)

    def subject(self, trace=None):
        return "trace_sha256", (trace or self.trace).sha256

    def replay(self, policies, budget="25%", *arguments, **options):
        """The runs of a replay's JSON."""
        self.passes("replay", "trace.safetensors", "--policy", policies, "--budget", budget, "--json", "out.json", *arguments, **options)
        return documents.replayed(documents.read(self.folder / "out.json"))["runs"]

    def dump(self, policy, budget="25%"):
        self.passes("replay", "trace.safetensors", "--policy", policy, "--budget", budget, "--dump", "dump.safetensors", "--quiet")
        return Trace(self.folder / "dump.safetensors")

    def write_kept_of(self, dump, path="kept.safetensors", **metadata):
        names = [f"layers.{layer}.{part}" for layer in range(LAYERS) for part in ("kept", "kept_offsets")]
        write_given(self.folder / path, self.subject(), {name: dump.tensor(name) for name in names}, **metadata)

    def write_scores_of(self, dump, path="scores.safetensors", **metadata):
        """SnapKV's scores of a dump: those of the window's entries, which are always kept, are worst."""
        tensors = {"always_kept": range(N - WINDOW, N)}
        for layer in range(LAYERS):
            tensors[f"layers.{layer}.score"] = np.pad(dump.tensor(f"layers.{layer}.score"), ((0, 0), (0, WINDOW)), constant_values=-9)
        write_given(self.folder / path, self.subject(), tensors, **metadata)


def validate(path):
    schema = kvbound_cli.REPOSITORY / "sim" / "schemas" / "document.schema.json"
    jsonschema.validate(documents.read(path), documents.read(schema))


def figures(run):
    """What a run's JSON says, but for its name, budget and times."""
    said = {name: value for name, value in run.items() if name not in ("run", "policy", "budget", "label") and "seconds" not in name}
    return said | {"changes": [figures(change) for change in said["changes"]]} if "changes" in said else said


class Replay(GivenTest):
    def test_scores_from_numpy_keep_what_they_rank_first_and_every_backend_agrees(self):
        result = subprocess.run([sys.executable, SCRIPTS / "knorm_press.py", "trace.safetensors", "g.safetensors"], cwd=self.folder)
        self.assertEqual(result.returncode, 0)
        budget = N // 4
        dump = self.dump("given:file=g.safetensors")
        for layer in range(LAYERS):
            norms = np.linalg.norm(self.trace.tensor(f"layers.{layer}.key")[:, :N].astype("f8"), axis=2)
            kept = [np.sort(np.argsort(row, kind="stable")[:budget]) for row in norms]
            np.testing.assert_array_equal(dump.tensor(f"layers.{layer}.kept"), np.concatenate(kept))
            np.testing.assert_array_equal(dump.tensor(f"layers.{layer}.score"), -norms)
        self.passes("diff", "trace.safetensors", "dump.safetensors")
        table = self.passes("replay", "trace.safetensors", "--policy", "snapkv:window=4,given:file=g.safetensors,given:file=g.safetensors+critical",
                            "--budget", "25%", "--backend", "reference,emulated")
        self.assertRegex(table, r"\nKnormPress +25% ")
        self.assertRegex(table, r"\nKnormPress\+critical +25% ")
        self.assertIn("  KnormPress = given:file=g.safetensors:window=32\n", table)

    def test_scores_of_another_host_give_that_hosts_figures(self):
        own = self.dump("snapkv:window=4")
        self.write_scores_of(own)
        for component in ("", "+adakv", "+pyramid:beta=2", "+keepkv", "+cam", "+keepkv:order=merge-first:threshold=none"):
            host, given = self.replay(f"snapkv:window=4{component},given:file=scores.safetensors:window=4{component}")
            self.assertEqual(figures(given), figures(host), component)

    def test_kept_sets_of_another_host_give_that_hosts_figures(self):
        self.write_kept_of(self.dump("snapkv:window=4+critical+adakv"), name="mine")
        host, = self.replay("snapkv:window=4+adakv+critical")
        given, = self.replay("given:file=kept.safetensors", "given", "--dump", "dump.safetensors")
        for layer, other in zip(host["layers"], given["layers"]):
            for name in ("entries", "kept", "perturbation", "kept_mass", "bound", "recall"):
                self.assertEqual(layer[name], other[name], name)
        validate(self.folder / "out.json")
        self.passes("diff", "trace.safetensors", "dump.safetensors")
        merged, = self.replay("given:file=kept.safetensors+d2o", "given", "--backend", "emulated")
        self.assertEqual(merged["layers"][0]["kept"], given["layers"][0]["kept"])

    def test_a_path_with_separators_stands_in_double_quotes(self):
        self.write_scores_of(self.dump("snapkv:window=4"), "a:b+c,d.safetensors")
        run, other = self.replay('given:file="a:b+c,d.safetensors"+cam:seed=1,snapkv:window=4')
        self.assertTrue(run["policy"].startswith('given:file="a:b+c,d.safetensors":window=32+cam:'))
        self.assertTrue(other["policy"].startswith("snapkv"))
        validate(self.folder / "out.json")
        self.passes("report", "out.json", "-o", "page.html", "--quiet")

    def test_a_name_that_is_no_longer_one_policys_is_not_shown(self):
        dump = self.dump("snapkv:window=4")
        self.write_scores_of(dump, "a.safetensors", name="mine")
        self.write_scores_of(dump, "b.safetensors", name="mine")
        self.write_scores_of(dump, "c.safetensors", name="h2o")
        self.write_scores_of(dump, "d.safetensors", name="\x1b[2J\n")
        table = self.passes("replay", "trace.safetensors", "--policy", ",".join(f"given:file={x}.safetensors" for x in "abcd"), "--budget", "25%")
        for x in "abc":
            self.assertRegex(table, rf"\ngiven:file={x}\.safetensors +25%")
        self.assertRegex(table, r"\n\\x1b\[2J\\x0a +25%")

    def test_every_trace_finds_its_file_in_a_folder(self):
        other = self.generate_trace("other.safetensors", seed=2)
        (self.folder / "files").mkdir()
        self.write_scores_of(self.dump("snapkv:window=4"), "files/a.safetensors", name="of one")
        scores = {f"layers.{layer}.score": np.tile(np.arange(N), (KV_HEADS, 1)) for layer in range(LAYERS)}
        write_given(self.folder / "files/b.safetensors", self.subject(other), scores, name="of the other")
        table = self.passes("replay", "trace.safetensors", "other.safetensors", "--policy", "given:file=files", "--budget", "8")
        self.assertRegex(table, r"(?s)trace\.safetensors.*\nof one +8 .*other\.safetensors.*\nof the other +8 ")

    def test_what_does_not_fit_is_refused(self):
        self.generate_trace("other.safetensors", seed=2)
        dump = self.dump("snapkv:window=4")
        self.write_scores_of(dump)
        self.write_kept_of(dump)

        def refuses(code, pattern, policy, budget="25%", trace="trace.safetensors", *arguments):
            self.refuses(code, pattern, "replay", trace, "--policy", policy, "--budget", budget, *arguments)
        scores, kept = "given:file=scores.safetensors", "given:file=kept.safetensors"
        refuses(INVALID, r"scores\.safetensors: .*trace_sha256: is .*expected .*the hash of other", scores, "25%", "other.safetensors")
        refuses(WORLD, "none.safetensors", "given:file=none.safetensors")
        refuses(INVALID, "format: is .kvbound-trace", "given:file=trace.safetensors")
        refuses(INVALID, "the folder has no .*safetensors of the format kvbound-given", "given:file=" + str(kvbound_cli.REPOSITORY / "sim"))
        refuses(USAGE, "given's file has kept sets: its budget is `given`", kept)
        refuses(USAGE, "the budget `given` is for the host given", scores, "given")
        refuses(USAGE, "the budget `given` is for the host given", "snapkv:window=4", "given")
        refuses(USAGE, "given ranks nothing", kept + "+critical", "given")
        refuses(USAGE, "below the 4 that given's file always keeps", scores, "3")
        refuses(USAGE, "window=32 but the trace records only 8", scores + "+theta-sweep")
        refuses(USAGE, "--json: .*is an input", scores, "25%", "trace.safetensors", "--json", "scores.safetensors")
        self.refuses(USAGE, "given's file is read by replay, evaluate, sweep and diff alone", "predict", "trace.safetensors", "--policy", scores)

    def test_a_file_with_more_layers_than_are_replayed_serves(self):
        self.write_scores_of(self.dump("snapkv:window=4"))
        run, = self.replay("given:file=scores.safetensors", "25%", "--layers", "1")
        self.assertEqual([layer["layer"] for layer in run["layers"]], [1])


class Diff(GivenTest):
    def test_a_dump_is_judged_by_the_file_that_it_was_computed_with(self):
        dump = self.dump("snapkv:window=4")
        self.write_scores_of(dump)
        self.dump("given:file=scores.safetensors")
        self.passes("diff", "trace.safetensors", "dump.safetensors")
        self.write_scores_of(dump, name="another")
        self.refuses(INVALID, "given_sha256: is .*; expected .*the hash of scores.safetensors", "diff", "trace.safetensors", "dump.safetensors")

    def changed(self, change):
        """The dump with some numbers changed."""
        dump = Trace(self.folder / "dump.safetensors")
        arrays = {name: dump.tensor(name).copy() for name in dump.tensors}
        change(arrays)
        with Files(self.folder / "changed.safetensors", dump.metadata, [{name: (dump.tensors[name][1], array.shape) for name, array in arrays.items()}]) as file:
            for name, array in arrays.items():
                file.write(name, array)
            file.commit()

    def test_other_kept_sets_are_wrong(self):
        self.write_kept_of(self.dump("snapkv:window=4"))
        self.passes("replay", "trace.safetensors", "--policy", "given:file=kept.safetensors", "--budget", "given", "--dump", "dump.safetensors")

        def move(arrays):
            kept = arrays["layers.1.kept"][:N // 4]
            kept[0] = np.setdiff1d(np.arange(N), kept)[0]
            kept.sort()
        self.changed(move)
        self.refuses(MISMATCH, r"layers\.1\.kept", "diff", "trace.safetensors", "changed.safetensors", silent=False)

    def test_other_scores_are_wrong_and_ties_of_single_precision_are_not(self):
        """Scores that differ in double precision alone: a dump of single precision may keep either."""
        score = np.tile(np.arange(N, dtype="f8"), (KV_HEADS, 1))
        score[:, 10] = score[:, 50] * (1 + 1e-12)
        write_given(self.folder / "g.safetensors", self.subject(), {f"layers.{layer}.score": score for layer in range(LAYERS)})
        # 51..63 and 10, which is above 50 by less than single precision tells
        self.dump("given:file=g.safetensors", "14")
        dump = Trace(self.folder / "dump.safetensors")
        self.assertEqual(dump.tensor("layers.0.kept")[0], 10)

        def declare_single(arrays, first):
            for layer in range(LAYERS):
                kept = arrays[f"layers.{layer}.kept"].reshape(KV_HEADS, -1)
                kept[:, 0] = first
                kept.sort(axis=1)
                for name in ("output", "perturbation", "kept_mass", "bound", "layer_perturbation"):
                    arrays.pop(f"layers.{layer}.{name}", None)
        self.changed(lambda arrays: declare_single(arrays, 50))
        self.refuses(MISMATCH, "kept", "diff", "trace.safetensors", "changed.safetensors", silent=False)
        text = (self.folder / "changed.safetensors").read_bytes().replace(b'"accumulate": "F64"', b'"accumulate": "F32"')
        (self.folder / "changed.safetensors").write_bytes(text)
        self.passes("diff", "trace.safetensors", "changed.safetensors")


class Evaluate(CommandLineTest):
    N, TARGET = 40, 6

    def setUp(self):
        super().setUp()
        TinyModel().write_folder(self.folder / "model")
        random = np.random.default_rng(3)
        tasks = [{"id": f"task {i}", "prompt": random.integers(0, 64, self.N).tolist(), "continuation": random.integers(0, 64, self.TARGET).tolist()}
                 for i in range(2)]
        (self.folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        (self.folder / "files").mkdir()
        for i, task in enumerate(tasks):
            self.write_kept(i, task["id"], range(self.N))

    def write_kept(self, i, task, kept, **metadata):
        kept = np.asarray(kept)
        tensors = {}
        for layer in range(2):
            tensors |= {f"layers.{layer}.kept": np.tile(kept, 2), f"layers.{layer}.kept_offsets": [0, kept.size, 2 * kept.size]}
        write_given(self.folder / "files" / f"{i}.safetensors", ("task_id", task), tensors, name="mine", **metadata)

    def evaluate(self, *arguments, **options):
        return self.passes("evaluate", "model", "tasks.jsonl", "--policy", "given:file=files", "--budget", "given", "--json", "out.json",
                           "--quiet", *arguments, **options)

    def test_every_task_has_its_kept_sets(self):
        self.write_kept(1, "task 1", range(0, self.N, 2))
        self.assertRegex(self.evaluate(), r"\nmine +given ")
        whole, half = documents.evaluated(documents.read(self.folder / "out.json"))["tasks"]
        self.assertEqual(set(whole["runs"][0]["kl"]), {0})
        validate(self.folder / "out.json")
        self.assertTrue(any(half["runs"][0]["kl"]))
        self.assertEqual(half["runs"][0]["entries"][0], self.N // 2 + 1)

    def test_scores_rank_as_in_a_replay(self):
        for i in range(2):
            score = {f"layers.{layer}.score": np.tile(np.arange(self.N), (2, 1)) for layer in range(2)}
            write_given(self.folder / "files" / f"{i}.safetensors", ("task_id", f"task {i}"), score)
        self.passes("evaluate", "model", "tasks.jsonl", "--policy", "given:file=files,streaming-llm:sinks=0", "--budget", "20", "--steps", "2",
                    "--json", "out.json", "--quiet")
        for task in documents.evaluated(documents.read(self.folder / "out.json"))["tasks"]:
            given, newest = task["runs"]
            self.assertEqual(given["kl"][:1], newest["kl"][:1], "no entry has been evicted yet")

    def test_what_does_not_fit_is_refused_and_results_of_other_files_are_no_results(self):
        self.evaluate("--resume", "r")
        self.evaluate("--resume", "r")
        self.write_kept(1, "task 1", range(1, self.N))
        run = "evaluate", "model", "tasks.jsonl", "--policy", "given:file=files", "--budget", "given", "--quiet"
        self.refuses(INVALID, "given", *run, "--resume", "r")
        self.write_kept(1, "task 2", range(self.N))
        self.refuses(INVALID, "whose task_id is .task 1., the task's", *run)


class Sweep(GivenTest):
    def setUp(self):
        super().setUp()
        (self.folder / "files").mkdir()
        self.write_scores_of(self.dump("snapkv:window=4"), "files/a.safetensors", name="mine")
        other = self.generate_trace("other.safetensors", seed=2)
        scores = {f"layers.{layer}.score": np.tile(np.arange(N), (KV_HEADS, 1)) for layer in range(LAYERS)}
        write_given(self.folder / "files/b.safetensors", self.subject(other), scores, name="mine")
        plan = {"format": "kvbound-sweep-plan", "version": 1, "traces": ["trace.safetensors", "other.safetensors"],
                "policies": ["snapkv:window=4", "given:file=files", "given:file=files+critical"], "budgets": ["25%", "8"]}
        (self.folder / "plan.json").write_text(json.dumps(plan))

    def sweep(self):
        return self.passes("sweep", "plan.json", "--out", "study", "--jobs", "2")

    def test_gives_what_a_replay_gives_and_computes_anew_what_another_file_changes(self):
        self.assertIn("4 items computed", self.sweep())
        self.check_gathered()
        self.assertIn("of which 4 are done", self.sweep())
        self.write_scores_of(self.dump("snapkv:window=4:pool=1"), "files/a.safetensors", name="mine")
        self.assertIn("of which 2 are done", self.sweep())
        self.check_gathered()

    def check_gathered(self):
        table = self.passes("gather", "study", "--json", "gathered.json")
        self.assertRegex(table, r"\nmine\+critical +25% ")
        self.passes("replay", "trace.safetensors", "other.safetensors", "--policy", "snapkv:window=4,given:file=files,given:file=files+critical",
                    "--budget", "25%,8", "--json", "replay.json")
        self.assertEqual(documents.without_times_and_hosts(self.folder / "gathered.json"), documents.without_times_and_hosts(self.folder / "replay.json"))

    def test_a_file_that_changes_meanwhile_is_not_used(self):
        self.passes("sweep", "plan.json", "--out", "study", "--list")
        self.write_scores_of(self.dump("snapkv:window=4:pool=1"), "files/a.safetensors", name="another name")
        result = self.run_program("sweep", "--out", "study", "--retries", "0")
        self.assertEqual(result.returncode, WORLD)
        self.assertRegex(result.stderr, r"given up after 1 tries; the last: .*a\.safetensors: has changed since the sweep was planned\n")


if __name__ == "__main__":
    kvbound_cli.main()
