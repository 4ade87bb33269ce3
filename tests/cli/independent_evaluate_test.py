"""`kvbound evaluate` compared, number by number, with an independent implementation in NumPy, independent/closed_loop.py.

usage: independent_evaluate_test.py KVBOUND      KVBOUND: the program's path
The model `pocket` is evaluated if it is in KVBOUND_POCKET/pocket or in shared/data/pocket beside the repository.
KVBOUND_SHARE=K/N in the environment: only the K-th of every N pairs of model and task, and of the policies of pocket
"""
import sys
from itertools import product

import numpy as np

from independent.closed_loop import MEASURES, FullRun, evaluate, read_model
from independent.evaluated import ROUNDING, Judgement
from independent.policy import parse_policy
from support import kvbound_cli
from support.closed_loop_cases import (MODELS, MORE_POLICIES, POLICIES, fitting, near_ties, pocket_folder, pocket_tasks,
                                       tiny_model, tiny_tasks, trace_file, write_tasks)
from support.documents import evaluated, read, replayed
from support.kvbound_cli import CommandLineTest
from support.share import share_of

POCKET_POLICIES = ("snapkv", "snapkv+critical", "snapkv+exact", "snapkv+obcache-joint", "snapkv+theta-sweep", "snapkv+keepkv",
                   "snapkv+cam", "snapkv+d2o", "h2o", "tova", "streaming-llm", "snapkv+pyramid", "tova+adakv",
                   "snapkv+keepkv:period=8", "h2o+keepkv:order=merge-first")


class EvaluateTest(CommandLineTest):
    def evaluated(self, model, tasks, policies, budgets, kind):
        """The program's JSON."""
        path = write_tasks(self.folder / "tasks.jsonl", tasks, kind)
        out = self.folder / "out.json"
        self.passes("evaluate", model, path, "--policy", ",".join(policies), "--budget", ",".join(budgets), "--json", out,
                    "--quiet")
        document = evaluated(read(out))
        self.assertEqual([task["id"] for task in document["tasks"]], list(tasks))
        return document

    def require_agreement(self, model, tasks, policies, budgets, kind="continuation", no_near_ties=False):
        """Every number of every task and run agrees; every run differs from the full cache.
        no_near_ties: requires also that rounding cannot decide what is kept, evicted or merged."""
        document = self.evaluated(model, tasks, policies, budgets, kind)
        model = read_model(model)
        for theirs in document["tasks"]:
            task = tasks[theirs["id"]]
            ours = evaluate(model, task, policies, budgets)
            judgement = Judgement(task, ours, theirs, document["runs"])
            ties = near_ties(model, task, ours, range(2 if judgement.failures else no_near_ties))
            if judgement.failures:
                self.fail("\n".join([*judgement.failures[:20], f"{len(judgement.failures)} failures; runs in which rounding "
                                     f"may decide what is kept, evicted or merged: {ties}"]))
            self.assertEqual(ties, [], "near ties")
            self.assertEqual(theirs["form"], kind)
            self.assertEqual(judgement.undecided, 0, "tokens whose top1 is a near tie")
            self.require_effects(task, ours)

    def require_effects(self, task, ours):
        """The comparison is not empty: compression, merging and the choice of the policy can be seen in the numbers."""
        bounds = 100 * ROUNDING * np.array(ours["runs"][0]["largest_logit"]).max()
        kls = {(run["policy"], run["budget"]): np.array(run["kl"]) for run in ours["runs"]}
        for run in ours["runs"]:
            name = f"{run['policy']} @ {run['budget']}"
            self.assertGreater(max(run["kl"]), bounds, name)
            self.assertGreater(run["hidden_error"][-1], 1e-3, name)
            self.assertGreater(run["perturbation"], 1e-3, name)
            merge = parse_policy(run["policy"]).merge
            self.assertEqual(run["bound"] is None, merge is not None, name)
            if merge:
                self.assertTrue(any(self.has_merged(head) for layer in run["run"].caches for head in layer), name)
            if task.compress_at == len(task.prompt):
                self.assertEqual(run["kl"][0], 0, name)
        for first, second in zip(kls, list(kls)[1:]):
            self.assertGreater(abs(kls[first] - kls[second]).max(), bounds, f"{first} and {second}")

    @staticmethod
    def has_merged(head):
        """Whether an entry of the cache is not what the model computed."""
        now, keys, values = head.positions, head.layer.key[head.group], head.layer.value[head.group]
        return (head.key[now] != keys[now]).any() or (head.value[now] != values[now]).any()


class Evaluate(EvaluateTest):
    def test_tasks_of_continuations_agree(self):
        tasks = tiny_tasks()
        for name in ("llama", "qwen3-tied"):
            with self.subTest(name):
                self.require_agreement(tiny_model(name).write_folder(self.folder / name), tasks, POLICIES, ["30%"])

    def test_tasks_of_answers_agree(self):
        self.require_agreement(tiny_model("qwen2").write_folder(self.folder / "model"), {"end": tiny_tasks()["end"]},
                               POLICIES[:8], ["20%", "50"], "answer")


class OpenLoop(CommandLineTest):
    def test_replay_of_the_full_caches_trace_measures_the_same(self):
        """Trace and arithmetic are in double precision: evaluate's open loop is replay's."""
        for name, task in tiny_tasks().items():
            full, policies = FullRun(tiny_model("qwen3-tied"), task, 40), fitting(POLICIES + MORE_POLICIES, task)
            policies = [policy for policy in policies if parse_policy(policy).window <= 40]
            trace = trace_file(full).write(self.folder / f"{name}.safetensors")
            self.passes("replay", trace, "--policy", ",".join(policies), "--budget", "30%", "--json", "out.json", "--quiet")
            theirs = replayed(read(self.folder / "out.json"))["runs"]
            ours = evaluate(tiny_model("qwen3-tied"), task, policies, ["30%"], window=40)["runs"]
            for run, found in zip(ours, theirs, strict=True):
                self.assertEqual(parse_policy(run["policy"]), parse_policy(found["policy"]))
                for kind in (*MEASURES, "layer_relative", "recall"):
                    expected, mean = run[kind], found[kind]
                    if kind == "bound" and parse_policy(run["policy"]).merge:  # NumPy has it for evictions
                        self.assertGreaterEqual(mean, found["perturbation"])
                        continue
                    self.assertTrue(mean is None if expected is None else abs(mean - expected) <= 1e-9 * expected,
                                    f"{name}, {run['policy']}: {kind} is {mean} where {expected} is expected")


class EvaluateSweeps(EvaluateTest):
    suite = "long"

    def test_every_model_and_policy_agrees(self):
        tasks = tiny_tasks()
        for name, task_name in share_of(list(product(MODELS, tasks))):
            with self.subTest(f"{name} {task_name}"):
                model, task = tiny_model(name).write_folder(self.folder / name), tasks[task_name]
                self.require_agreement(model, {task_name: task}, fitting(POLICIES + MORE_POLICIES, task), ["30%"],
                                       no_near_ties=True)


if pocket_folder():
    class EvaluatePocket(EvaluateTest):
        suite = "long"

        def test_a_trained_model_agrees_on_prose(self):
            self.require_agreement(pocket_folder(), pocket_tasks(), share_of(POCKET_POLICIES), ["10%", "30%"])
else:
    print("the model pocket is not here: it is not evaluated", file=sys.stderr)


if __name__ == "__main__":
    kvbound_cli.main()
