"""A cache for every query head (--heads query): the numbers are those of multi-head attention on repeated KV heads.

usage: heads_test.py KVBOUND      KVBOUND: the program's path
"""
import contextlib
import json

import numpy as np

import independent.replay
from support import documents, kvbound_cli
from support.kvbound_cli import INVALID, USAGE, CommandLineTest, TraceFile
from support.tiny_model import TinyModel

POLICIES = ("snapkv:window=4+critical", "h2o:window=8:recent=2:sinks=1+obcache-joint", "h2o:window=4+obcache-key:space=projected",
            "tova+obcache-value+adakv", "snapkv:window=4:pool=1+theta-sweep", "h2o:window=4:recent=2+keepkv:threshold=0.3",
            "snapkv:window=4+keepkv:threshold=none:period=2", "random:window=4", "tova+headkv:scores=heads.json", "h2o:window=8+cam:neighbours=4")
SHAPES = ((9, 3, "F16"), (14, 2, "BF16"), (6, 2, "F32"))


def tensors_of(path):
    return {name: independent.replay.read_tensor(entry) for name, entry in independent.replay.open_tensors(path)[1].items()}


class HeadsTest(CommandLineTest):
    def write_traces(self, query_heads, kv_heads, dtype):
        """A trace, and the same with every KV head repeated for its query heads; importances of their heads."""
        sizes = dict(query_heads=query_heads, prompt_tokens=60, decode_tokens=5, window_queries=16, head_dim=8, model_dim=12, dtype=dtype)
        grouped, repeated = TraceFile(kv_heads=kv_heads, **sizes), TraceFile(kv_heads=query_heads, **sizes)
        for name, (kind, array) in grouped.tensors.items():
            copies = query_heads // kv_heads if name.endswith((".key", ".value")) else 1
            repeated.tensors[name] = kind, np.repeat(array, copies, axis=0)
        scores = np.random.default_rng(1).lognormal(0, 1, (2, query_heads)).tolist()
        (self.folder / "heads.json").write_text(json.dumps({"format": "kvbound-head-scores", "version": 1, "model": "", "scores": scores}), "utf-8")
        return grouped.write(self.folder / "grouped.safetensors"), repeated.write(self.folder / "repeated.safetensors")


class Replay(HeadsTest):
    def test_everything_is_that_of_multi_head_attention(self):
        for query_heads, kv_heads, dtype in SHAPES:
            grouped, repeated = self.write_traces(query_heads, kv_heads, dtype)
            for policy in POLICIES:
                with self.subTest(policy, query_heads=query_heads):
                    self.passes("replay", grouped, "--policy", policy, "--budget", "20", "--heads", "query", "--json", "own.json", "--dump", "own.safetensors")
                    self.passes("replay", repeated, "--policy", policy, "--budget", "20", "--json", "other.json", "--dump", "other.safetensors")
                    own, other = tensors_of(self.folder / "own.safetensors"), tensors_of(self.folder / "other.safetensors")
                    self.assertEqual(own.keys(), other.keys())
                    for name, tensor in own.items():
                        np.testing.assert_array_equal(tensor, other[name], name)
                    own, other = (documents.replayed(documents.read(self.folder / name)) for name in ("own.json", "other.json"))
                    self.assertEqual(own["runs"][0]["layers"], other["runs"][0]["layers"])
                    self.assertEqual((own["heads"], own["kv_heads"], other["heads"], other["kv_heads"]), ("query", kv_heads, "kv", query_heads))

    def test_everything_is_that_of_numpy(self):
        for query_heads, kv_heads, dtype in SHAPES:
            grouped, _ = self.write_traces(query_heads, kv_heads, dtype)
            recording = independent.replay.Trace(grouped, heads="query")
            for policy in POLICIES:
                with self.subTest(policy, query_heads=query_heads), contextlib.chdir(self.folder):
                    self.passes("replay", grouped, "--policy", policy, "--budget", "30%", "--heads", "query", "--dump", "dump.safetensors")
                    self.assertEqual(independent.replay.Judgement(recording, self.folder / "dump.safetensors").failures, [])

    def test_the_kernels_do_the_same_and_diff_judges_them(self):
        grouped, _ = self.write_traces(9, 3, "F16")
        for policy in POLICIES:
            with self.subTest(policy):
                self.passes("replay", grouped, "--policy", policy, "--budget", "20", "--heads", "query", "--backend", "emulated", "--dump", "dump.safetensors")
                self.passes("diff", grouped, "dump.safetensors")

    def test_bytes_are_as_many_times_as_query_heads_share_a_kv_head(self):
        grouped, _ = self.write_traces(14, 2, "BF16")
        bytes_of = {}
        for heads in ("kv", "query"):
            self.passes("replay", grouped, "--policy", "tova,snapkv:window=4+keepkv:period=2", "--budget", "20", "--heads", heads, "--json", "out.json")
            bytes_of[heads] = [run["bytes"] for run in documents.replayed(documents.read(self.folder / "out.json"))["runs"]]
        of_head = 2 * 2 * 8 * 2  # layers, keys and values, head_dim, bytes of a number
        self.assertEqual(bytes_of["kv"], [2 * 20 * of_head, 2 * (20 + 60) * of_head], "with the full cache where it is rebuilt from that")
        self.assertEqual(bytes_of["query"], [7 * number for number in bytes_of["kv"]])

    def test_the_table_says_it(self):
        grouped, _ = self.write_traces(9, 3, "F16")
        text = self.passes("replay", grouped, "--policy", "tova", "--budget", "20", "--heads", "query", "--columns", "bytes")
        self.assertIn("9 query heads on 3 KV heads (a cache for each query head)", text)
        self.assertIn("stored", text)
        self.refuses(USAGE, "--heads 'both': expected kv or query", "replay", grouped, "--policy", "tova", "--budget", "20", "--heads", "both")


class Diff(HeadsTest):
    def test_dumps_of_other_heads_are_not_compared(self):
        grouped, repeated = self.write_traces(9, 3, "F16")
        for heads in ("kv", "query"):
            self.passes("replay", grouped, "--policy", "tova", "--budget", "20", "--heads", heads, "--dump", f"{heads}.safetensors")
        self.passes("diff", "query.safetensors", "query.safetensors", "--against", grouped, "--identical")
        self.refuses(INVALID, "kv.safetensors.*heads: the dump is of caches of kv heads, the trace was opened with those of query heads",
                     "diff", "query.safetensors", "kv.safetensors", "--against", grouped)
        raw = (self.folder / "query.safetensors").read_bytes()
        (self.folder / "other.safetensors").write_bytes(raw.replace(b'"heads":"query"', b'"heads":"every"'))
        self.refuses(INVALID, "other.safetensors.*heads: is .every.; expected kv or query", "diff", grouped, "other.safetensors")


class Sweep(HeadsTest):
    def test_a_sweep_is_the_same_as_a_replay(self):
        self.write_traces(9, 3, "F16")
        plan = {"format": "kvbound-sweep-plan", "version": 1, "traces": ["grouped.safetensors"], "policies": list(POLICIES[:3]), "budgets": ["20"]}

        def write_plan(**members):
            (self.folder / "plan.json").write_text(json.dumps(plan | members), "utf-8")
        write_plan()
        self.passes("sweep", "plan.json", "--out", "study")
        write_plan(heads="query")
        self.assertIn("of which 0 are done", self.passes("sweep", "plan.json", "--out", "study"))
        self.passes("gather", "study", "--json", "gathered.json")
        self.passes("replay", "grouped.safetensors", "--policy", ",".join(POLICIES[:3]), "--budget", "20", "--heads", "query", "--json", "replay.json")
        self.assertEqual(documents.without_times_and_hosts(self.folder / "gathered.json"), documents.without_times_and_hosts(self.folder / "replay.json"))
        write_plan(heads="both")
        self.refuses(INVALID, "plan.json.*heads: is .both.", "sweep", "plan.json", "--out", "study")


class Evaluate(HeadsTest):
    def test_it_is_what_a_model_with_repeated_kv_heads_does(self):
        """Products of repeated weights may be rounded otherwise: they are compared within what float32 explains."""
        grouped = TinyModel(layers=2, heads=6, kv_heads=2, head_dim=8)
        repeated = TinyModel(layers=2, heads=6, kv_heads=6, head_dim=8)
        repeated.weights = {name: np.repeat(array.reshape(2, 8, -1), 3, axis=0).reshape(48, -1) if ".k_proj." in name or ".v_proj." in name else array
                            for name, array in grouped.weights.items()}
        grouped.write_folder(self.folder / "grouped")
        repeated.write_folder(self.folder / "repeated")
        task = {"id": "a", "prompt": [(7 * i) % 64 for i in range(40)], "continuation": [1, 2, 3, 4]}
        (self.folder / "tasks.jsonl").write_text(json.dumps(task) + "\n", "utf-8")
        found = {}
        for model, heads in (("grouped", "query"), ("repeated", "kv"), ("grouped", "kv")):
            self.passes("evaluate", model, "tasks.jsonl", "--policy", "h2o:window=8+obcache-joint,snapkv:window=4+critical,tova+keepkv:threshold=none", "--budget", "12",
                        "--heads", heads, "--json", "out.json", "--quiet")
            found[model, heads] = documents.evaluated(documents.read(self.folder / "out.json"))["tasks"][0]["runs"]
        for own, other, shared in zip(*found.values(), strict=True):
            for figure in ("kl", "nll"):
                np.testing.assert_allclose(own[figure], other[figure], rtol=1e-3, atol=1e-5, err_msg=figure)
            self.assertEqual(own["entries"], other["entries"])
            self.assertNotEqual(own["kl"], shared["kl"])
        self.refuses(USAGE, "--heads 'all': expected kv or query", "evaluate", "grouped", "tasks.jsonl", "--policy", "tova", "--budget", "12", "--heads", "all")


if __name__ == "__main__":
    kvbound_cli.main()
