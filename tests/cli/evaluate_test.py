"""kvbound evaluate: small random models decode through compressed caches. What is the same whatever else is asked for, what
survives an interruption, what equals a replay of the same steps, and what is refused.

The numbers themselves: independent_evaluate_test.py.

usage: evaluate_test.py KVBOUND      KVBOUND: the program's path
"""
import csv
import json
import os
import signal
import time

import numpy as np

from support import kvbound_cli
from support.documents import evaluated, read, replayed
from support.kvbound_cli import INVALID, PASS, USAGE, WORLD, CommandLineTest
from support.tiny_model import TinyModel

STATIC = ("snapkv:window=4", "snapkv:window=4+critical", "snapkv:window=4+exact", "snapkv:window=4+theta-sweep",
          "snapkv:window=4+adakv", "snapkv:window=4+keepkv", "snapkv:window=4+d2o", "random:sinks=1:window=4")
DYNAMIC = ("h2o:window=4:recent=4", "tova:sinks=1", "streaming-llm:sinks=1", "h2o:window=4:recent=2+keepkv:threshold=none",
           "snapkv:window=4+keepkv:period=3", "tova+cam:neighbours=4")
TIMES = "prefill_seconds", "decode_seconds"


def tasks_of(count=3, prompt=40, target=6, vocabulary=64, seed=3):
    """Continuations and answers, some of which are compressed before the prompt's end."""
    random = np.random.default_rng(seed)
    for i in range(count):
        task = {"id": f"task {i}", "prompt": random.integers(0, vocabulary, prompt).tolist(),
                ("continuation", "answer")[i % 2]: random.integers(0, vocabulary, target).tolist()}
        yield task | ({"compress_at": prompt - 5} if i % 3 == 2 else {})


def without_times(document):
    """The tasks of a document, without run times."""
    return [{name: value for name, value in task.items() if name not in TIMES} for task in document["tasks"]]


class EvaluateTest(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.model = TinyModel().write_folder(self.folder / "model")
        self.write_tasks(tasks_of())

    def write_tasks(self, tasks, name="tasks.jsonl"):
        (self.folder / name).write_text("".join(json.dumps(task) + "\n" for task in tasks), "utf-8")

    def evaluate(self, policies, *arguments, budget="50%", code=PASS):
        self.passes("evaluate", "model", "tasks.jsonl", "--policy", ",".join(policies), "--budget", budget, "--json", "out.json",
                    "--quiet", *arguments, code=code)
        return evaluated(read(self.folder / "out.json"))


class Evaluations(EvaluateTest):
    def test_a_policy_that_keeps_everything_changes_nothing(self):
        document = self.evaluate(STATIC, budget="100%")
        for task in document["tasks"]:
            for run, named in zip(task["runs"], document["runs"]):
                with self.subTest(f"{task['id']} {named['policy']}"):
                    self.assertEqual(run["kl"], [0] * len(task["target"]))
                    self.assertEqual(run["nll"], task["full"]["nll"])
                    self.assertEqual(run["top1"], task["full"]["top1"])
                    self.assertEqual(run["hidden_error"], [0, 0])
                    self.assertEqual(run["kept_mass"], 1)
                    self.assertLess(run["perturbation"], 1e-12)

    def test_a_policy_that_evicts_changes_something(self):
        document = self.evaluate(STATIC + DYNAMIC, budget="30%")
        for task in document["tasks"]:
            for run, named in zip(task["runs"], document["runs"]):
                with self.subTest(f"{task['id']} {named['policy']}"):
                    self.assertGreater(max(run["kl"]), 1e-6)
                    self.assertGreater(min(run["hidden_error"]), 1e-6)
                    self.assertGreater(run["perturbation"], 1e-3)
                    self.assertLess(run["kept_mass"], 0.999)
                    merges = named["policy"].count("keepkv") or "cam" in named["policy"] or "d2o" in named["policy"]
                    self.assertEqual(run["bound"] is None, bool(merges))
                    self.assertEqual(run["violations"], 0)

    def test_the_first_token_behind_a_prompt_that_is_compressed_whole_is_the_full_caches(self):
        document = self.evaluate(STATIC + DYNAMIC, budget="20%")
        for task in document["tasks"]:
            for run in task["runs"]:
                whole = task["compress_at"] == task["prompt_tokens"]
                self.assertEqual(run["kl"][0] == 0, whole)
                self.assertEqual(task["steps"], task["prompt_tokens"] - task["compress_at"] + len(task["target"]) - 1)

    def test_a_runs_numbers_do_not_depend_on_what_else_is_evaluated(self):
        policies = STATIC[:2] + DYNAMIC[:4]
        together = self.evaluate(policies, "--threads", "2", budget="40%")
        for i, policy in enumerate(policies):
            alone = self.evaluate([policy], "--threads", "1", budget="40%")
            for one, all_of_them in zip(without_times(alone), without_times(together)):
                self.assertEqual(one["full"], all_of_them["full"])
                self.assertEqual(one["runs"], [all_of_them["runs"][i]], policy)
        self.write_tasks(list(tasks_of())[1:2])
        self.assertEqual(without_times(self.evaluate(policies, budget="40%")), without_times(together)[1:2])

    def test_open_loop_figures_are_a_replays_of_the_same_steps(self):
        task = next(tasks_of())
        self.write_tasks([task])
        policies = STATIC + DYNAMIC
        document = self.evaluate(policies, budget="40%")
        tokens = task["prompt"] + task["continuation"][:-1]
        (self.folder / "ids").write_text(" ".join(map(str, tokens)))
        self.passes("record", "model", "--tokens", "ids", "--prompt", len(task["prompt"]), "--steps", len(tokens) - len(task["prompt"]),
                    "--window", len(task["prompt"]), "--dtype", "F32", "trace.safetensors", "--quiet")
        self.passes("replay", "trace.safetensors", "--policy", ",".join(policies), "--budget", "40%", "--json", "replay.json",
                    "--quiet")
        runs = replayed(read(self.folder / "replay.json"))["runs"]
        for own, theirs, named in zip(document["tasks"][0]["runs"], runs, document["runs"], strict=True):
            self.assertEqual(named["policy"], theirs["policy"])
            for name in ("perturbation", "relative", "bound", "kept_mass", "layer_perturbation", "layer_relative", "recall"):
                with self.subTest(f"{named['policy']} {name}"):
                    value = theirs[name]
                    # evaluate has no bound of merges
                    if value is None or name == "bound" and theirs["merged"] is not None:
                        self.assertIsNone(own[name])
                    # their attention is in single precision, ours in double: layers behind the
                    # first differ by rounding
                    else:
                        self.assertAlmostEqual(own[name], value, delta=2e-5 * abs(value) + 1e-9)

    def test_entries_are_counted_at_every_step(self):
        document = self.evaluate(("snapkv:window=4", "tova", "snapkv:window=4+keepkv:period=2"), budget="16")
        for task in document["tasks"]:
            steps = np.arange(1, task["steps"] + 1)
            self.assertEqual(task["runs"][0]["entries"], list(16 + steps))
            self.assertEqual(task["runs"][1]["entries"], [17] * task["steps"])
            self.assertEqual(task["runs"][2]["entries"], list(16 + steps))
            self.assertEqual(task["runs"][2]["stored_entries"], list(16 + steps + task["compress_at"] + steps))
        summary = document["summaries"][0]
        self.assertEqual(summary["bytes"], summary["entries"] * 2 * 2 * 2 * 8 * 4)

    def test_only_the_first_steps_of_continuations_count(self):
        whole = self.evaluate(STATIC[:1])
        cut = self.evaluate(STATIC[:1], "--steps", "3")
        self.assertEqual(cut["step_limit"], 3)
        for long, short in zip(whole["tasks"], cut["tasks"]):
            count = len(long["target"]) if long["form"] == "answer" else 3
            self.assertEqual(short["target"], long["target"][:count])
            np.testing.assert_allclose(short["full"]["nll"], long["full"]["nll"][:count], rtol=1e-5)

    def test_the_table_and_csv_have_the_documents_figures(self):
        document = self.evaluate(("snapkv:window=4", "tova"), "--csv", "out.csv", "--base", "tova")
        with open(self.folder / "out.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        expected = [(task["id"], i, target, policy, own["kl"][i] if policy else None, own["nll"][i], own["top1"][i])
                    for task in document["tasks"] for i, target in enumerate(task["target"])
                    for policy, own in [("", task["full"]), *zip((run["policy"] for run in document["runs"]), task["runs"])]]
        self.assertEqual([(row["task"], int(row["token"]), int(row["target"]), row["policy"], float(row["kl"]) if row["kl"] else None,
                           float(row["nll"]), int(row["top1"])) for row in rows], expected)
        table = self.passes("evaluate", "model", "tasks.jsonl", "--policy", "snapkv:window=4,tova", "--budget", "50%", "--base",
                            "tova")
        for text in ("continuation: 2 tasks", "answer: 1 task\n", "KL - base", "snapkv:window=4", "other_half"):
            self.assertIn(text, table)

    def test_differences_from_the_base_are_paired(self):
        document = self.evaluate(("snapkv:window=4", "tova"), "--base", "tova")
        kinds = {summary["kind"] for summary in document["summaries"]}
        self.assertEqual(kinds, {"continuation", "answer"})
        for summary in document["summaries"]:
            is_base = summary["policy"].startswith("tova")
            self.assertEqual(summary["kl_less_base"] is None, is_base)
            if is_base:
                continue
            tasks = [task for task in document["tasks"] if task["kind"] == summary["kind"]]
            differences = [np.mean(task["runs"][0]["kl"]) - np.mean(task["runs"][1]["kl"]) for task in tasks]
            self.assertAlmostEqual(summary["kl_less_base"], np.mean(differences), places=12)
            if len(tasks) > 1:
                self.assertAlmostEqual(summary["kl_less_base_error"],
                                       np.std(differences, ddof=1) / len(tasks)**0.5, places=12)

    def test_the_emulated_device_chooses_the_same_tokens(self):
        policies = "snapkv:window=4", "snapkv:window=4+critical", "h2o:window=4:recent=2", "snapkv:window=4+keepkv"
        reference = self.evaluate(policies)
        emulated = self.evaluate(policies, "--backend", "emulated")
        self.assertEqual(emulated["backend"], "emulated")
        for ours, theirs in zip(emulated["tasks"], reference["tasks"]):
            for own, other in zip(ours["runs"], theirs["runs"]):
                self.assertEqual(own["top1"], other["top1"])
                np.testing.assert_allclose(own["nll"], other["nll"], rtol=1e-4)

    def test_texts_are_tokens_of_models_of_bytes(self):
        TinyModel(vocabulary=256).write_folder(self.folder / "model")
        self.write_tasks([{"id": "a", "prompt_text": "the quick brown fox jumps over", "answer_text": " the dög"}])
        task, = self.evaluate(STATIC[:1])["tasks"]
        self.assertEqual(bytes(task["target"]).decode(), " the dög")
        self.assertEqual(task["prompt_tokens"], 30)


class Resumptions(EvaluateTest):
    POLICIES = "snapkv:window=4", "tova"

    def test_finished_tasks_are_not_evaluated_again(self):
        whole = self.evaluate(self.POLICIES, "--resume", "results")
        lines = (self.folder / "results").read_text().splitlines(keepends=True)
        self.assertEqual(len(lines), 1 + len(whole["tasks"]))
        for kept in range(1, 4):
            with self.subTest(kept):
                (self.folder / "results").write_text("".join(lines[:kept]) + lines[1][:50])
                again = self.evaluate(self.POLICIES, "--resume", "results")
                self.assertEqual(without_times(again), without_times(whole))
                self.assertEqual([task["decode_seconds"] for task in again["tasks"][:kept - 1]],
                                 [task["decode_seconds"] for task in whole["tasks"][:kept - 1]], "these were not run again")
                self.assertEqual(again["summaries"], whole["summaries"])
                self.assertEqual(again["correlations"], whole["correlations"])

    def test_results_survive_signals(self):
        self.write_tasks(tasks_of(count=400, prompt=60))
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(sent):
                arguments = ("evaluate", "model", "tasks.jsonl", "--policy", ",".join(self.POLICIES), "--budget", "50%",
                             "--json", "out.json", "--resume", "results", "--quiet")
                process = self.start(*arguments)
                self.addCleanup(process.communicate)
                self.addCleanup(process.kill)
                results = self.folder / "results"
                before = results.read_text().count("\n") if results.exists() else 0
                deadline = time.monotonic() + 60
                while not results.exists() or results.read_text().count("\n") < before + 3:
                    self.assertLess(time.monotonic(), deadline)
                    self.assertIsNone(process.poll(), "ended by itself")
                    time.sleep(0.005)
                process.send_signal(sent)
                process.wait()
                self.assertFalse((self.folder / "out.json").exists())
                self.assertGreaterEqual(results.read_text().count("\n"), before + 3)
        interrupted = self.evaluate(self.POLICIES, "--resume", "results")
        self.assertEqual(without_times(interrupted), without_times(self.evaluate(self.POLICIES)))

    def test_results_of_another_evaluation_are_refused(self):
        self.evaluate(self.POLICIES, "--resume", "results")
        (self.folder / "out.json").unlink()

        def refused(pattern, *arguments, policy="snapkv:window=4,tova", budget="50%"):
            self.refuses(INVALID, rf"^kvbound: results: {pattern}", "evaluate", "model", "tasks.jsonl", "--policy", policy,
                         "--budget", budget, "--resume", "results", *arguments)
        refused(r'runs\[1\]: is "tova.* 50%" in these results and none now: they are of another evaluation',
                policy="snapkv:window=4")
        refused(r'runs\[0\]: is "snapkv.* 50%" in these results and "snapkv.* 60%" now', budget="60%")
        refused("window: is 128 in these results and 20 now", "--window", "20")
        refused("dtype: ", "--dtype", "F16")
        refused("backend: ", "--backend", "emulated")
        refused("recall_of: is 40 in these results and 5 now", "--recall", "5")
        refused("step_limit: ", "--steps", "4")
        self.write_tasks(tasks_of(seed=4))
        refused("tasks: ")
        self.write_tasks(tasks_of())
        TinyModel(seed=9).write_folder(self.folder / "model")
        refused("model: ")

    def test_results_that_do_not_fit_their_task_are_refused(self):
        self.evaluate(self.POLICIES, "--resume", "results")
        (self.folder / "out.json").unlink()
        header, *lines = (self.folder / "results").read_text().splitlines()

        def refused(pattern, results):
            (self.folder / "results").write_text("\n".join([header, *results]) + "\n")
            self.refuses(INVALID, f"^kvbound: results: {pattern}", "evaluate", "model", "tasks.jsonl", "--policy",
                         ",".join(self.POLICIES), "--budget", "50%", "--resume", "results")
        for name in ("hidden_error", "entries", "stored_entries", "kl", "nll", "top1"):
            changed = json.loads(lines[0])
            changed["runs"][1][name].pop()
            refused('task "task 0": has other tokens, steps, layers or runs', [json.dumps(changed), *lines[1:]])
        refused('task "task 0": has other', [json.dumps(json.loads(lines[0]) | {"steps": 99})])
        refused("at byte .*line 5: has a task that an earlier line has", [*lines, lines[1]])

    def test_results_that_are_nested_deeply_or_large_are_refused(self):
        self.evaluate(self.POLICIES, "--resume", "results")
        (self.folder / "out.json").unlink()
        header, *lines = (self.folder / "results").read_text().splitlines()
        deep = "[" * 200_000 + "]" * 200_000

        def refused(pattern, text):
            (self.folder / "results").write_text(text + "\n")
            self.refuses(INVALID, f"^kvbound: results: {pattern}", "evaluate", "model", "tasks.jsonl", "--policy",
                         ",".join(self.POLICIES), "--budget", "50%", "--resume", "results")
        refused("at byte 0: line 1: .*: the header is nested deeper than 32 levels",
                json.dumps(json.loads(header) | {"evaluation": "@"}).replace(" ", "").replace('"@"', deep))
        refused("at byte [0-9]+: line 2: .*: the task is nested deeper", header + '\n{"id":' + deep + "}")
        refused("at byte [0-9]+: line 2: .*: the task takes more than 512 MiB of memory", header + '\n{"id":[' + "0," * 20_000_000 + "0]}")

    def test_names_that_are_not_utf_8_may_be_resumed(self):
        os.rename(self.folder / "model", os.fsencode(self.folder) + b"/mod\xe8le")
        arguments = ("evaluate", os.fsdecode(b"mod\xe8le"), "tasks.jsonl", "--policy", "tova", "--budget", "50%", "--resume", "results")
        self.passes(*arguments)
        before = (self.folder / "results").read_bytes()
        self.passes(*arguments, "--json", "out.json")
        self.assertEqual((self.folder / "results").read_bytes(), before)

    def test_other_files_are_refused_and_left(self):
        (self.folder / "results").write_text("a letter\n")
        self.refuses(INVALID, "results: .*line 1.*is not of a results file", "evaluate", "model", "tasks.jsonl", "--policy", "tova",
                     "--budget", "50%", "--resume", "results")


class Refusals(EvaluateTest):
    def refused(self, code, pattern, *arguments, model="model", tasks="tasks.jsonl", policy="tova", budget="50%"):
        self.refuses(code, pattern, "evaluate", model, tasks, "--policy", policy, "--budget", budget, *arguments)

    def test_files_that_are_not_there(self):
        self.refused(WORLD, "cannot open none", model="none")
        self.refused(WORLD, "cannot open none.jsonl", tasks="none.jsonl")
        self.refused(INVALID, "tasks.jsonl", model="tasks.jsonl")

    def test_invalid_policies_name_the_task(self):
        self.refused(USAGE, "task \"task 0\": policy 'snapkv' at budget 50%: budget of 20 entries is below the 32",
                     policy="snapkv")
        self.refused(USAGE, "window", "--window", "3", policy="snapkv:window=4")
        self.refused(USAGE, "budget", budget="41")
        self.refused(USAGE, "task \"task 2\": policy 'tova' at budget 36", budget="36")
        self.refused(USAGE, "no backend 'gpu'", "--backend", "gpu")

    def test_options(self):
        self.refused(USAGE, "--steps", "--steps", "1")
        self.refused(USAGE, "--dtype 'F64'", "--dtype", "F64")
        self.refused(USAGE, "given twice", policy="tova,tova")
        self.refused(USAGE, "unexpected argument 'more'", "more")
        for option in ("json", "csv", "resume"):
            self.refused(USAGE, f"--{option}", f"--{option}", "tasks.jsonl")

    def test_tasks_with_unknown_tokens(self):
        self.write_tasks([{"id": "a", "prompt": [1] * 40, "answer": [64, 1]}])
        self.refused(INVALID, "tasks.jsonl.*line 1.*64")
        self.write_tasks([{"id": "a", "prompt_text": "x" * 40, "answer_text": "ab"}])
        self.refused(INVALID, "256")

    def test_numbers_that_overflow_name_task_and_model(self):
        model = TinyModel()
        model.weights["model.layers.0.self_attn.v_proj.weight"] = model.rounded(
            model.weights["model.layers.0.self_attn.v_proj.weight"] * 1e6)
        model.write_folder(self.folder / "model")
        self.refused(INVALID, "task \"task 0\": its numbers are too large.*value", "--dtype", "F16")

    def test_outputs_that_cannot_be_written(self):
        self.refused(WORLD, "none/out.json", "--json", "none/out.json")
        self.refused(WORLD, "none/results", "--resume", "none/results")

    def test_more_tokens_than_the_model_was_made_for_are_warned_of(self):
        TinyModel(max_position_embeddings=30).write_folder(self.folder / "model")
        result = self.run_program("evaluate", "model", "tasks.jsonl", "--policy", "tova", "--budget", "50%")
        self.assertEqual(result.returncode, PASS)
        self.assertIn("warning: 46 tokens are more than the 30", result.stderr)


if __name__ == "__main__":
    kvbound_cli.main()
