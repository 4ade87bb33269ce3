"""HeadKV: budgets by importances of a file, in replay, diff, evaluate, sweep and predict, against NumPy's.

usage: head_kv_test.py KVBOUND      KVBOUND: the program's path
"""
import json

import numpy as np

import independent.replay
from independent.allocation import layer_budgets
from independent.policy import parse_policy, resolve_budget
from support import documents, kvbound_cli
from support.kvbound_cli import INVALID, MISMATCH, USAGE, WORLD, CommandLineTest
from support.tiny_model import TinyModel

LAYERS = 3
POLICIES = ("snapkv:window=4+headkv:scores={}", "snapkv:window=4+critical+headkv:scores={}:beta=1.01",
            "h2o:window=4:recent=2:sinks=1+headkv:scores={}:beta=2.5:temperature=0.5", "tova+keepkv:threshold=0.3+headkv:scores={}:beta=1",
            "streaming-llm:sinks=2+headkv:scores={}", "h2o:window=8+obcache-joint+d2o+headkv:scores={}:temperature=3")


class HeadKvTest(CommandLineTest):
    def write_scores(self, scores, name="scores.json", **members):
        path = self.folder / name
        path.write_text(json.dumps({"format": "kvbound-head-scores", "version": 1, "model": "random", "scores": scores} | members), "utf-8")
        return path

    def random_scores(self, query_heads, seed=1):
        """Of very different sizes, some of them 0."""
        scores = np.random.default_rng(seed).lognormal(0, 2, (LAYERS, query_heads))
        scores[0, 1] = scores[2, 0] = 0
        return self.write_scores(scores.tolist())

    def trace(self, query_heads, kv_heads, dtype, name="trace.safetensors"):
        return self.generate(name, "--kind", "mixed", "--dtype", dtype, "--tokens", 90, "--window-queries", 16, "--decode", 6, "--layers", LAYERS,
                             "--query-heads", query_heads, "--kv-heads", kv_heads, "--head-dim", 8, "--model-dim", 24)

    def kept_counts(self, dump):
        """[layers][KV heads] of a dump."""
        _, tensors = independent.replay.open_tensors(dump)
        return {int(name.split(".")[1]): np.diff(independent.replay.read_tensor(entry)).tolist() for name, entry in tensors.items()
                if name.endswith(".kept_offsets")}


class Replay(HeadKvTest):
    def test_budgets_and_everything_else_are_those_of_numpy(self):
        for query_heads, kv_heads, dtype in ((9, 3, "F16"), (14, 2, "BF16"), (9, 3, "BF16"), (14, 2, "F16")):
            trace, scores = self.trace(query_heads, kv_heads, dtype), self.random_scores(query_heads)
            recording = independent.replay.Trace(trace)
            for policy in (text.format(scores) for text in POLICIES):
                with self.subTest(policy, dtype=dtype, query_heads=query_heads):
                    self.passes("replay", trace, "--policy", policy, "--budget", "30%", "--dump", "dump.safetensors")
                    self.assertEqual(independent.replay.Judgement(recording, self.folder / "dump.safetensors").failures, [])
                    parsed = parse_policy(policy)
                    wanted = layer_budgets(recording, parsed, resolve_budget("30%", recording, parsed))
                    self.assertEqual(self.kept_counts(self.folder / "dump.safetensors"), dict(enumerate(wanted)))
                    self.assertEqual(np.sum(wanted), LAYERS * kv_heads * 27)
                    self.passes("diff", trace, "dump.safetensors")

    def test_the_kernels_keep_the_same_and_diff_judges_them(self):
        trace, scores = self.trace(9, 3, "F16"), self.random_scores(9)
        for policy in (text.format(scores) for text in POLICIES):
            with self.subTest(policy):
                self.passes("replay", trace, "--policy", policy, "--budget", "27", "--backend", "reference,emulated", "--json", "out.json")
                own, other = documents.replayed(documents.read(self.folder / "out.json"))["runs"]
                self.assertEqual([layer["kept"] for layer in own["layers"]], [layer["kept"] for layer in other["layers"]])
                self.assertEqual([entry["outside"] for entry in other["agreement"]], [0] * len(other["agreement"]))
                self.passes("replay", trace, "--policy", policy, "--budget", "27", "--backend", "emulated", "--dump", "dump.safetensors")
                self.passes("diff", trace, "dump.safetensors")

    def test_the_layers_that_are_replayed_share_the_budget(self):
        trace, scores = self.trace(9, 3, "F16"), self.random_scores(9)
        policy = f"tova+headkv:scores={scores}"
        self.passes("replay", trace, "--policy", policy, "--budget", "27", "--layers", "0,2", "--dump", "dump.safetensors", "--json", "out.json")
        recording = independent.replay.Trace(trace)
        wanted = layer_budgets(recording, parse_policy(policy), 27, (0, 2))
        self.assertEqual(self.kept_counts(self.folder / "dump.safetensors"), {layer: wanted[layer] for layer in (0, 2)})
        run, = documents.replayed(documents.read(self.folder / "out.json"))["runs"]
        self.assertEqual([layer["layer_entries"] for layer in run["layers"]], [np.mean(wanted[layer]) for layer in (0, 2)])
        self.passes("diff", trace, "dump.safetensors")

    def test_a_head_may_keep_nothing(self):
        trace, scores = self.trace(9, 3, "F16"), self.write_scores([[1] * 9, [0] * 9, [1] * 9])
        for policy in (f"tova+headkv:scores={scores}:beta=1", f"h2o:window=4:recent=0+headkv:scores={scores}:beta=1"):
            self.passes("replay", trace, "--policy", policy, "--budget", "20", "--backend", "reference,emulated", "--dump", "dumps")
            for dump in sorted((self.folder / "dumps").iterdir()):
                self.assertEqual(self.kept_counts(dump), {0: [30] * 3, 1: [0] * 3, 2: [30] * 3})
                self.passes("diff", trace, dump)
                dump.unlink()

    def test_what_does_not_fit_is_refused(self):
        trace, scores = self.trace(9, 3, "F16"), self.random_scores(9)

        def refuses(code, pattern, policy=f"tova+headkv:scores={scores}", *arguments):
            self.refuses(code, pattern, "replay", trace, "--policy", policy, "--budget", "20", *arguments)
        refuses(WORLD, "none.json", "tova+headkv:scores=none.json")
        refuses(USAGE, "headkv needs scores=a path", "tova+headkv")
        refuses(USAGE, "beta", f"tova+headkv:scores={scores}:beta=0.9")
        refuses(USAGE, "budget of 20 entries is below the 0 sinks and 21 recent", f"h2o:window=4:recent=21+headkv:scores={scores}")
        refuses(USAGE, "--json: .*is an input", f"tova+headkv:scores={scores}", "--json", scores)
        refuses(USAGE, "temperature makes the score .* infinite", f"tova+headkv:scores={scores}:temperature=900")
        self.write_scores([[1] * 3] * LAYERS)
        refuses(USAGE, "has scores of 3 layers of 3 query heads; expected 3 of 9")
        for wrong, pattern in ((dict(scores=[[1, -1]]), r"scores\[0\]\[1\]: is -1; expected 0, or"), (dict(scores=[[1], [1, 2]]), r"scores\[1\]: has 2 heads, but"),
                               (dict(scores=[[0, 0]]), "scores: are all 0"), (dict(scores=[[1e-305]]), "is 1e-305; expected 0, or"), (dict(scores=[[True]]), "is true; expected"),
                               (dict(version=2), "version: is 2"), (dict(format="x"), "format: is .x."), (dict(more=1), "more"), (dict(scores=[]), "scores: ")):
            self.write_scores(**{"scores": [[1] * 9] * LAYERS, **wrong})
            refuses(INVALID, pattern)
        scores.write_text('{"format": "kvbound-head-scores", "version": 1, "model": "", "scores": [[1e999]]}', "utf-8")
        refuses(INVALID, r"is not valid JSON|finite")


class Diff(HeadKvTest):
    def test_a_dump_is_judged_by_the_file_that_it_was_computed_with(self):
        trace, scores = self.trace(9, 3, "F16"), self.random_scores(9)
        self.passes("replay", trace, "--policy", f"tova+headkv:scores={scores}", "--budget", "27", "--dump", "dump.safetensors")
        self.random_scores(9, seed=2)
        self.refuses(INVALID, "head_scores_sha256: is .*; expected .*the hash of .*scores.json", "diff", trace, "dump.safetensors")

    def test_another_budget_of_a_head_is_found(self):
        """A dump that says another power: its heads keep other numbers of entries than that policy's."""
        trace, scores = self.trace(9, 3, "F16"), self.random_scores(9)
        policy = f"tova+headkv:scores={scores}"
        self.passes("replay", trace, "--policy", policy, "--budget", "27", "--dump", "dump.safetensors")
        raw = (self.folder / "dump.safetensors").read_bytes()
        for text in (b"temperature=1", b"beta=1.2"):
            self.assertIn(text, raw)
            (self.folder / "changed.safetensors").write_bytes(raw.replace(text, text[:-1] + b"3"))
            self.passes("diff", trace, "changed.safetensors", code=MISMATCH)


class Evaluate(HeadKvTest):
    N = 40

    def setUp(self):
        super().setUp()
        TinyModel(layers=2, heads=4, kv_heads=2, head_dim=8).write_folder(self.folder / "model")
        task = {"id": "a", "prompt": [(7 * i) % 64 for i in range(self.N)], "answer": [1, 2, 3]}
        (self.folder / "tasks.jsonl").write_text(json.dumps(task) + "\n", "utf-8")

    def evaluate(self, policies, *arguments):
        return self.passes("evaluate", "model", "tasks.jsonl", "--policy", policies, "--budget", "12", "--json", "out.json", "--quiet", *arguments)

    def test_heads_keep_what_their_importance_says(self):
        """All importance on one head: it keeps everything, and the others what 1/beta of the budget leaves them."""
        self.write_scores([[1, 1, 1, 1]] * 2)
        self.write_scores([[1, 0, 0, 0], [0] * 4], "one.json")
        self.evaluate("tova,tova+headkv:scores=scores.json,tova+headkv:scores=one.json:beta=1.2,tova+headkv:scores=one.json:beta=100")
        (task,) = documents.evaluated(documents.read(self.folder / "out.json"))["tasks"]
        plain, same, one, kept = task["runs"]
        self.assertEqual(plain["kl"], same["kl"], "equal importances are no allocation")
        self.assertEqual(plain["kl"], kept["kl"], "a hundredth of 12 entries is none")
        self.assertNotEqual(plain["kl"], one["kl"])
        self.assertEqual(one["entries"][0], 13, "in the mean, with the step's own")

    def test_results_of_another_file_are_no_results(self):
        self.write_scores([[1, 1, 1, 1]] * 2)
        self.evaluate("tova+headkv:scores=scores.json", "--resume", "r")
        self.evaluate("tova+headkv:scores=scores.json", "--resume", "r")
        self.write_scores([[1, 1, 1, 2]] * 2)
        self.refuses(INVALID, "given", "evaluate", "model", "tasks.jsonl", "--policy", "tova+headkv:scores=scores.json", "--budget", "12",
                     "--quiet", "--resume", "r")


class Sweep(HeadKvTest):
    def setUp(self):
        super().setUp()
        self.trace(9, 3, "F16")
        self.random_scores(9)
        self.policies = ["tova", "tova+headkv:scores=scores.json"]
        self.write_plan()

    def write_plan(self, **members):
        plan = {"format": "kvbound-sweep-plan", "version": 1, "traces": ["trace.safetensors"], "policies": self.policies, "budgets": ["27"]}
        (self.folder / "plan.json").write_text(json.dumps(plan | members), "utf-8")

    def check_gathered(self, *arguments):
        self.passes("gather", "study", "--json", "gathered.json")
        self.passes("replay", "trace.safetensors", "--policy", ",".join(self.policies), "--budget", "27", "--json", "replay.json", *arguments)
        self.assertEqual(documents.without_times_and_hosts(self.folder / "gathered.json"), documents.without_times_and_hosts(self.folder / "replay.json"))

    def test_items_of_some_layers_share_the_budget_of_all(self):
        self.assertIn("3 items computed", self.passes("sweep", "plan.json", "--out", "study"))
        (self.folder / "scores.json").rename(self.folder / "moved.json")  # the study has what the file had
        self.passes("gather", "study", "--json", "gathered.json")
        (self.folder / "moved.json").rename(self.folder / "scores.json")
        self.check_gathered()

    def test_another_file_or_other_layers_compute_anew_what_they_change(self):
        self.passes("sweep", "plan.json", "--out", "study")
        self.assertIn("of which 3 are done", self.passes("sweep", "plan.json", "--out", "study"))
        self.random_scores(9, seed=2)
        self.assertIn("of which 0 are done", self.passes("sweep", "plan.json", "--out", "study"))
        self.check_gathered()
        self.write_plan(layers="0-1")
        self.assertIn("of which 0 are done", self.passes("sweep", "plan.json", "--out", "study"))
        self.check_gathered("--layers", "0-1")


def retrieval_scores(trace, first, last, top):
    """[layers, query heads]: the attention of all steps on the needle's positions that are among the top of a step's."""
    scores = np.zeros((trace.layers, trace.query_heads))
    for index in range(trace.layers):
        layer = trace.layer(index)
        for head in range(trace.query_heads):
            keys = layer.key[head * trace.kv_heads // trace.query_heads]
            for step in range(trace.decode_tokens):
                logits = trace.scale * keys[:trace.prompt_tokens + step + 1] @ layer.query[head, trace.window_queries + step]
                weights = np.exp(logits - logits.max())
                weights /= weights.sum()
                best = np.argsort(-weights, kind="stable")[:top]
                scores[index, head] += weights[best[(first <= best) & (best <= last)]].sum()
    return scores


class Predict(HeadKvTest):
    def test_scores_are_the_mean_attention_on_the_needle_and_serve_as_importances(self):
        traces = [self.trace(9, 3, "F32", f"{seed}.safetensors") for seed in (1, 2)]
        recordings = [independent.replay.Trace(trace) for trace in traces]
        for needles, top, expected in (("40-44,3-9", (), ((40, 44, 5), (3, 9, 7))), ("40-44", ("--top", "20"), ((40, 44, 20), (40, 44, 20)))):
            self.passes("predict", *traces, "--head-scores", "scores.json", "--needle", needles, *top)
            written = json.loads((self.folder / "scores.json").read_text("utf-8"))
            wanted = np.mean([retrieval_scores(recording, *one) for recording, one in zip(recordings, expected)], axis=0)
            np.testing.assert_allclose(written["scores"], wanted, rtol=1e-9)
            self.assertEqual(written["model"], independent.replay.open_tensors(traces[0])[0]["model"])
        self.passes("replay", traces[0], "--policy", "tova+headkv:scores=scores.json", "--budget", "30%")
        self.passes("predict", traces[0], "--policy", "tova+headkv:scores=scores.json", "--budget", "30%", "--json", "out.json")

    def test_what_does_not_fit_is_refused(self):
        trace = self.trace(9, 3, "F32")

        def refuses(code, pattern, *arguments):
            self.refuses(code, pattern, "predict", trace, *arguments)
        scores = "--head-scores", "scores.json"
        refuses(USAGE, "--needle is missing|--needle", *scores)
        refuses(USAGE, "--needle: is for --head-scores", "--needle", "3-4")
        refuses(USAGE, "--needle: '4-3' is no range of positions such as 900-915", *scores, "--needle", "4-3")
        refuses(USAGE, "--needle: 3 ranges for 1 traces", *scores, "--needle", "1-2,3-4,5-6")
        refuses(USAGE, "the needle ends at position 90 of a prompt of 90 tokens", *scores, "--needle", "3-90")
        refuses(USAGE, "no top of 91 of the prompt's 90 entries", *scores, "--needle", "3-4", "--top", "91")
        refuses(USAGE, "--head-scores: .*is an input", "--head-scores", trace, "--needle", "3-4")
        self.generate("other.safetensors", "--kind", "flat", "--tokens", 90, "--decode", 2, "--layers", 1, "--query-heads", 9, "--kv-heads", 3, "--head-dim", 8)
        refuses(USAGE, "1 layers of 9 query heads, but the first trace has 3 of 9", "other.safetensors", *scores, "--needle", "3-4")
        self.assertFalse((self.folder / "scores.json").exists())


if __name__ == "__main__":
    kvbound_cli.main()
