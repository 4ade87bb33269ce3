#!/usr/bin/python3
"""Replays of the samples against golden figures, which another implementation produced (tests/golden/README.md).

usage: golden_test.py KVBOUND          KVBOUND: the program's path
       golden_test.py --regenerate     write tests/golden/*.json anew, without the program
"""
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from support import independent_replay, kvbound_cli
from support.kvbound_cli import SAMPLES, CommandLineTest

GOLDEN = Path(__file__).resolve().parent / "golden"
POLICIES = ("snapkv:window=32:pool=7",
            "snapkv:window=32:pool=7+critical:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1",
            "snapkv:window=32:pool=7+critical:alpha=adaptive:epsilon=1e-4:gqa=product-of-means:norm=l1",
            "snapkv:window=16:pool=1+critical:alpha=0.25:epsilon=0:gqa=mean-of-products:norm=l2",
            "snapkv:window=32:pool=7+theta-sweep:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1")
BUDGETS = ("32", "10%", "20%", "40%", "80%")
# Other scores, and hosts that go on evicting.
MORE_POLICIES = ("snapkv:window=32:pool=7+exact:space=head",
                 "snapkv:window=16:pool=1+obcache-key:space=projected",
                 "h2o:window=32:sinks=0:recent=32",
                 "h2o:window=32:sinks=4:recent=16+obcache-joint:space=head",
                 "h2o:window=16:sinks=2:recent=0+exact:space=projected",
                 "h2o:window=32:sinks=0:recent=8+critical:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1",
                 "tova:sinks=0",
                 "tova:sinks=4+exact:space=head",
                 "tova:sinks=2+obcache-value:space=head",
                 "streaming-llm:sinks=4")
GROUPS = ((POLICIES, BUDGETS), (MORE_POLICIES, ("15%",)),
          (("snapkv:window=8:pool=7+greedy",), ("90%",)))  # NumPy takes its time for every entry that leaves
FIGURES = ("perturbation", "bound", "relative", "kept_mass")  # means over the decode steps, per query head
RELATIVE = 1e-9  # as in support/independent_replay.py


def kept_hash(positions):
    """SHA-256 of one KV head's kept positions, ascending (or who left, by steps), as little-endian 64-bit integers."""
    return hashlib.sha256(np.asarray(positions, "<i8").tobytes()).hexdigest()


def golden_run(trace, layers, policy_text, budget_text):
    """One policy at one budget by the independent implementation: a list of one object per layer."""
    policy = independent_replay.parse_policy(policy_text)
    budget = independent_replay.resolve_budget(budget_text, trace, policy)
    golden = []
    for layer in layers:
        heads = [independent_replay.prompt_scores(trace, layer, policy, group, budget) for group in range(trace.kv_heads)]
        kept = [independent_replay.keep(policy, budget - scores.always.sum(), scores) for scores in heads]
        left, hashes = None, {"kept_sha256": [kept_hash(positions) for positions in kept]}
        if policy.dynamic:
            left = independent_replay.decode(trace, layer, policy, budget, heads, kept)[0]
            hashes["left_sha256"] = [kept_hash(steps) for steps in left.T]
        results, _ = independent_replay.replay_layer(trace, layer, kept, left)
        golden.append({**hashes, **{kind: [float(f"{mean:.13g}") for mean in results[kind].mean(axis=0)]
                                    for kind in FIGURES}})
    return golden


def regenerate():
    for path in sorted(SAMPLES.glob("*.safetensors")):
        trace = independent_replay.Trace(path)
        layers = [trace.layer(index) for index in range(trace.layers)]
        runs = [{"policy": policy, "budget": budget, "layers": golden_run(trace, layers, policy, budget)}
                for policies, budgets in GROUPS
                for budget in budgets for policy in policies]
        text = json.dumps({"sample": path.name, "sha256": trace.sha256, "runs": runs}, indent=1)
        (GOLDEN / f"{path.stem}.json").write_text(text + "\n")
        print(f"{path.stem}: {len(runs)} runs")


def is_near(ours, golden):
    return abs(ours - golden) <= RELATIVE * abs(golden)  # false for NaN


class Golden(CommandLineTest):
    def require_golden(self, sample):
        golden = json.loads((GOLDEN / f"{sample}.json").read_text())
        self.assertEqual(len(golden["runs"]), sum(len(policies) * len(budgets) for policies, budgets in GROUPS))
        runs, dumps = {}, {}
        for policies, budgets in GROUPS:
            self.passes("replay", SAMPLES / golden["sample"], "--policy", ",".join(policies), "--budget", ",".join(budgets),
                        "--json", "out.json", "--dump", "dumps/")
            trace = json.loads((self.folder / "out.json").read_text())["traces"][0]
            self.assertEqual(trace["sha256"], golden["sha256"], "another sample: see tests/golden/README.md")
            runs |= {(run["policy"], run["budget"]): run for run in trace["runs"]}
        for path in (self.folder / "dumps").iterdir():
            metadata, tensors = independent_replay.open_tensors(path)
            dumps[metadata["policy"], metadata["budget"]] = tensors
        for run in golden["runs"]:
            key = run["policy"], run["budget"]
            for index, layer in enumerate(run["layers"]):
                with self.subTest(f"{' '.join(key)} layer {index}"):
                    self.require_kept(dumps[key], index, layer["kept_sha256"])
                    self.require_left(dumps[key], index, layer.get("left_sha256"))
                    for kind in FIGURES:
                        ours = runs[key]["layers"][index][kind]
                        self.assertEqual(len(ours), len(layer[kind]))
                        for head, pair in enumerate(zip(ours, layer[kind])):
                            self.assertTrue(is_near(*pair), f"{kind} of query head {head}: {pair[0]}, golden {pair[1]}")

    def require_kept(self, tensors, layer, golden):
        kept, offsets = (independent_replay.read_tensor(tensors[f"layers.{layer}.{name}"])
                         for name in ("kept", "kept_offsets"))
        heads = [kept[slice(*ends)] for ends in zip(offsets[:-1], offsets[1:])]
        self.assertEqual([kept_hash(positions) for positions in heads], golden, "kept sets")

    def require_left(self, tensors, layer, golden):
        left = tensors.get(f"layers.{layer}.left")
        self.assertEqual(left is None, golden is None, "hosts that only grow have nobody who left")
        if golden:
            self.assertEqual([kept_hash(steps) for steps in independent_replay.read_tensor(left).T], golden, "who left")

    def test_the_recorded_model_with_grouped_queries_gives_golden_figures(self):
        self.require_golden("pocket-gqa")

    def test_the_recorded_model_with_a_query_head_per_kv_head_gives_golden_figures(self):
        self.require_golden("pocket-mha")

    def test_golden_figures_are_no_zeros(self):
        for path in GOLDEN.glob("*.json"):
            for run in json.loads(path.read_text())["runs"]:
                for layer in run["layers"]:
                    self.assertTrue(all(number > 0 for kind in FIGURES for number in layer[kind]), path)

    def test_the_comparison_refuses_nan_and_small_differences(self):
        self.assertFalse(is_near(float("nan"), 1.0) or is_near(1.0, float("nan")) or is_near(0.0, 1.0))
        self.assertFalse(is_near(1 + 2e-9, 1.0) or is_near(float("inf"), 1.0))
        self.assertTrue(is_near(1 + 1e-10, 1.0))


if __name__ == "__main__":
    if sys.argv[1:] == ["--regenerate"]:
        regenerate()
    else:
        kvbound_cli.main()
