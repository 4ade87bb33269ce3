#!/usr/bin/python3
"""Tests of the independent closed loop (independent/closed_loop.py): identities, masks, traces, single precision.

usage: independent_closed_loop_test.py      needs no program
"""
import copy
import json
import tempfile
import unittest
from pathlib import Path

import numpy as np

import independent.replay
from independent.closed_loop import ClosedRun, FullRun, Task, evaluate, judged, predictions, read_model
from independent.evaluated import Judgement
from independent.policy import parse_policy, resolve_budget
from support.closed_loop_cases import (MODELS, MORE_POLICIES, POLICIES, fitting, near_ties, tiny_model, tiny_tasks, trace_file,
                                       write_tasks)
from support.tiny_model import TinyModel


def closed_run(model, task, policy, budget, window=128):
    """The full run, and the run with this policy."""
    full, policy = FullRun(model, task, window), parse_policy(policy)
    return full, ClosedRun(model, task, full, policy, resolve_budget(budget, full.sequence, policy))


def as_json(task, name, ours):
    """What the program would write about a task: the task, and its list of runs."""
    own = ("run", "largest_logit", "lead", "policy", "budget")
    runs = [{field: value for field, value in run.items() if field not in own} for run in ours["runs"]]
    document = {"id": name, "prompt_tokens": len(task.prompt), "compress_at": task.compress_at, "steps": task.steps,
                "target": task.target, "full": ours["full"], "runs": runs}
    return json.loads(json.dumps(document)), [{field: run[field] for field in ("policy", "budget")} for run in ours["runs"]]


class ClosedLoop(unittest.TestCase):
    def test_a_cache_that_keeps_everything_changes_nothing(self):
        for name in MODELS:
            for task in tiny_tasks().values():
                found = evaluate(tiny_model(name), task, ["snapkv:window=8", "snapkv:window=8+keepkv:threshold=none"], ["100%"])
                for run in found["runs"]:
                    self.assertLess(np.abs(run["kl"]).max(), 1e-12)
                    self.assertLess(max(run["hidden_error"]), 1e-12)
                    self.assertEqual(run["top1"], found["full"]["top1"])
                    self.assertLess(run["perturbation"], 1e-10)

    def test_where_the_cache_is_compressed_does_not_matter_to_a_cache_that_keeps_everything(self):
        task, model = tiny_tasks()["end"], tiny_model("llama")
        expected = evaluate(model, task, ["tova"], ["50%"], measure=False)["full"]
        for compress_at in (len(task.prompt), 69, 40, 1):
            other = Task(task.prompt, task.target, compress_at)
            self.assertEqual(other.steps, len(task.prompt) - compress_at + len(task.target) - 1)
            found = evaluate(model, other, ["snapkv:window=1"], ["100%"], measure=False)["runs"][0]
            np.testing.assert_allclose(found["nll"], expected["nll"], atol=1e-11)

    def test_the_first_token_after_the_whole_prompt_is_predicted_by_the_full_cache(self):
        task, model = tiny_tasks()["end"], tiny_model("llama")
        found = evaluate(model, task, ["tova"], ["20%"], measure=False)["runs"][0]["kl"]
        self.assertEqual(found[0], 0)
        self.assertGreater(min(found[1:]), 1e-4)
        before = evaluate(model, Task(task.prompt, task.target, 69), ["tova"], ["20%"], measure=False)["runs"][0]["kl"]
        self.assertGreater(before[0], 1e-4)

    def test_the_full_run_is_the_chain_rule_by_hand(self):
        """One layer without attention (its values are 0) and without a feed-forward block: the next token depends on the
        token alone."""
        model = TinyModel(layers=1)
        for name in ("self_attn.v_proj", "mlp.up_proj"):
            model.layer(0, name + ".weight")[...] = 0
        task = Task([5, 9, 2], [7, 1])
        embedded = model.weights["model.embed_tokens.weight"][[2, 7]]
        normed = embedded / np.sqrt((embedded**2).mean(axis=1, keepdims=True) + 1e-5) * model.weights["model.norm.weight"]
        logits = normed @ model.weights["lm_head.weight"].T
        expected = [-np.log(np.exp(row[token] - np.logaddexp.reduce(row))) for row, token in zip(logits, task.target)]
        np.testing.assert_allclose(judged(task, predictions(task, FullRun(model, task)))["nll"], expected, rtol=1e-12)

    def test_evictions_are_masks(self):
        """A run with evicted entries is the plain forward pass in which queries do not see them: the same logits and
        hidden states."""
        for name in ("qwen2", "single-heads"):
            model = tiny_model(name)
            for task in tiny_tasks().values():
                for policy in fitting(POLICIES + MORE_POLICIES, task):
                    if parse_policy(policy).merge:
                        continue
                    full, run = closed_run(model, task, policy, "30%")
                    masked = FullRun(model, task, seen=run.seen())
                    np.testing.assert_allclose(masked.logits[task.compress_at:], run.logits, atol=1e-10, err_msg=policy)
                    np.testing.assert_allclose(np.array(masked.hidden)[:, task.compress_at:], run.hidden, atol=1e-10)
                    self.assertGreater(abs(full.logits[task.compress_at:] - run.logits).max(), 0.01, policy)
                    gone = [gone for layer in run.choices for step in layer for gone, _ in step]
                    self.assertEqual(max(gone) >= 0, parse_policy(policy).dynamic)

    def test_rebuilding_in_every_step_is_lossless_for_single_heads_that_merge_everything(self):
        """Periodic merging keeps each query's output, if no entry is dropped and no two queries share a key: then the
        model cannot tell, however small the cache is."""
        task = tiny_tasks()["before"]
        full, run = closed_run(tiny_model("single-heads"), task, "snapkv:window=8+keepkv:threshold=none:period=1", "10%")
        np.testing.assert_allclose(run.logits, full.logits[task.compress_at:], atol=1e-8)
        self.assertGreater(max(head.votes.max() for layer in run.caches for head in layer), 5)
        full, run = closed_run(tiny_model("single-heads"), task, "snapkv:window=8+keepkv:threshold=none:period=2", "10%")
        self.assertGreater(abs(run.logits - full.logits[task.compress_at:]).max(), 1e-3)

    def test_the_open_loop_is_a_replay_of_the_full_runs_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            for task in tiny_tasks().values():
                model, policies = tiny_model("qwen2"), POLICIES[:8] + POLICIES[11:]
                found = evaluate(model, task, policies, ["25%"], window=20)["runs"]
                trace = independent.replay.Trace(trace_file(FullRun(model, task, 20)).write(Path(folder) / "trace"))
                self.assertEqual(trace.window_queries, 20)
                for text, run in zip(policies, found):
                    policy, results = parse_policy(text), []
                    budgets = independent.replay.layer_budgets(trace, policy, resolve_budget("25%", trace, policy))
                    for index, entries in enumerate(budgets):
                        results.append(independent.replay.replayed_layer(trace, trace.layer(index), policy, entries)[0])
                    for kind in ("perturbation", "relative", "kept_mass", "layer_perturbation"):
                        np.testing.assert_allclose(run[kind], np.mean([part[kind] for part in results]), rtol=1e-12)

    def test_a_checkpoint_is_read_as_it_was_written(self):
        with tempfile.TemporaryDirectory() as folder:
            for dtype, shards in (("F32", 1), ("BF16", 1), ("F16", 3)):
                model = TinyModel(dtype=dtype, family="qwen3")
                read = read_model(model.write_folder(Path(folder) / dtype, shards))
                self.assertEqual(read.config, model.config)
                self.assertEqual(read.weights.keys(), model.weights.keys())
                for name, weight in model.weights.items():
                    np.testing.assert_array_equal(read.weights[name], weight)

    def test_tasks_are_read_as_they_were_written(self):
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("continuation", "answer"):
                lines = write_tasks(Path(folder) / "tasks", tiny_tasks(), kind).read_text().splitlines()
                self.assertEqual([vars(Task.read(line)) for line in lines], [vars(task) for task in tiny_tasks().values()])
                self.assertEqual(["compress_at" in line for line in lines], [False, True])


class SinglePrecision(unittest.TestCase):
    """The model in single precision stands for the program."""

    def test_agrees_within_the_bounds_and_no_choice_is_a_near_tie(self):
        for name, task_name in (("llama", "end"), ("qwen3-tied", "before")):
            model, task = tiny_model(name), tiny_tasks()[task_name]
            single = model.in_precision(np.float32)
            ours = evaluate(model, task, POLICIES, ["30%"])
            judgement = Judgement(task, ours, *as_json(task, task_name, evaluate(single, task, POLICIES, ["30%"])))
            self.assertEqual(judgement.failures, [])
            self.assertEqual(judgement.undecided, 0)
            self.assertGreater(judgement.worst["nll"], 1e-3, "single precision is not single")
            self.assertEqual(near_ties(model, task, ours, seeds=[0]), [], f"{name} {task_name}")

    def test_a_wrong_number_is_noticed(self):
        task = tiny_tasks()["end"]
        ours = evaluate(tiny_model("llama"), task, POLICIES[:7], ["30%"])
        document, runs = as_json(task, "end", ours)
        self.assertEqual(Judgement(task, ours, document, runs).failures, [])

        def places(value, path=()):
            children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            if not children and path[-1] not in ("id",) and "largest_logit" not in path and "lead" not in path:
                yield path
            for key, child in children:
                yield from places(child, (*path, key))

        for path in places(document):
            changed = copy.deepcopy(document)
            place = changed
            for key in path[:-1]:
                place = place[key]
            number = place[path[-1]]
            for wrong in (None if number is not None else 1.0, "NaN", *([] if number is None else [
                    number + 1 if isinstance(number, int) else number * (1 + 1e-3) + 1e-4])):
                place[path[-1]] = wrong
                failures = Judgement(task, ours, changed, runs).failures
                self.assertEqual(len(failures), 1, f"{path}: {wrong} instead of {number}")
                self.assertIn(str(path[-2] if isinstance(path[-1], int) else path[-1]), failures[0])

    def test_missing_and_unknown_runs_are_noticed(self):
        task = tiny_tasks()["end"]
        ours = evaluate(tiny_model("llama"), task, POLICIES[:3], ["30%"])
        document, runs = as_json(task, "end", ours)
        for change in (lambda: runs.pop(), lambda: document["runs"].pop(), lambda: runs[0].update(policy="tova")):
            before = copy.deepcopy((document, runs))
            change()
            self.assertTrue(Judgement(task, ours, document, runs).failures)
            document, runs = before


if __name__ == "__main__":
    unittest.main()
