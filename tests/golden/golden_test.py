#!/usr/bin/python3
"""Replays of the samples against golden numbers by the independent implementation (tests/golden/README.md).

usage: golden_test.py KVBOUND          KVBOUND: the program's path
       golden_test.py --regenerate     write tests/golden/*.json anew, without the program
"""
import contextlib
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import independent.replay
from independent.allocation import head_budgets, layer_budgets
from support import kvbound_cli
from support.documents import read, replayed
from support.kvbound_cli import SAMPLES, CommandLineTest

GOLDEN = Path(__file__).resolve().parent
POLICIES = ("snapkv:window=32:pool=7",
            "snapkv:window=32:pool=7+critical:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1",
            "snapkv:window=32:pool=7+critical:alpha=adaptive:epsilon=1e-4:gqa=product-of-means:norm=l1",
            "snapkv:window=16:pool=1+critical:alpha=0.25:epsilon=0:gqa=mean-of-products:norm=l2",
            "snapkv:window=32:pool=7+theta-sweep:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1")
BUDGETS = ("32", "10%", "20%", "40%", "80%")
# Other scores, and hosts that evict while decoding.
MORE_POLICIES = ("snapkv:window=32:pool=7+exact:space=head",
                 "snapkv:window=16:pool=1+obcache-key:space=projected",
                 "h2o:window=32:sinks=0:recent=32",
                 "h2o:window=32:sinks=4:recent=16+obcache-joint:space=head",
                 "h2o:window=16:sinks=2:recent=0+exact:space=projected",
                 "h2o:window=32:sinks=0:recent=8+critical:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1",
                 "tova:sinks=0",
                 "tova:sinks=4+exact:space=head",
                 "tova:sinks=2+obcache-value:space=head",
                 "streaming-llm:sinks=4",
                 "snapkv:window=32:pool=7+critical:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1+headkv:scores=heads.json:beta=1.2:temperature=1",
                 "h2o:window=32:sinks=0:recent=8+headkv:scores=heads.json:beta=2:temperature=0.5")


def keep_kv(**changes):
    """The canonical text of keepkv with these options."""
    options = {"threshold": "0.5", "predict": "ema", "ema": "0.9", "scores": "attention", "normalisation": "exact",
               "key": "min-norm", "gqa": "joint", "rank": "0.3", "order": "evict-first", "period": "none"}
    assert changes.keys() <= options.keys()
    return "keepkv" + "".join(f":{name}={option}" for name, option in (options | changes).items())


# Policies that merge, at the prompt's end and while decoding.
MERGING_POLICIES = (f"snapkv:window=32:pool=7+{keep_kv(threshold='0.8')}",
                    f"snapkv:window=32:pool=7+{keep_kv(scores='raw', normalisation='paper', key='zip', gqa='mean')}",
                    f"snapkv:window=16:pool=1+{keep_kv(order='merge-first', gqa='mean')}",
                    f"snapkv:window=32:pool=7+{keep_kv(period='8')}",
                    f"h2o:window=32:sinks=0:recent=8+{keep_kv(threshold='none', rank='0.1')}",
                    f"h2o:window=16:sinks=4:recent=4+exact:space=head+{keep_kv(predict='current', key='convex')}",
                    f"tova:sinks=0+adakv:safeguard=0.2+{keep_kv(threshold='none', predict='current')}",
                    "tova:sinks=2+convex:threshold=0.5:predict=ema:ema=0.9:scores=attention:normalisation=exact:gqa=joint",
                    "tova:sinks=0+d2o:threshold=none",
                    "snapkv:window=32:pool=7+kvmerger:threshold=0.5",
                    "h2o:window=32:sinks=0:recent=8+cam:neighbours=8:seed=3")
# With a cache for every query head.
QUERY_HEAD_POLICIES = ("h2o:window=32:sinks=4:recent=16+obcache-joint:space=head",
                       "snapkv:window=32:pool=7+critical:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1")
# Policies, budgets, layers (None: all), heads that have a cache
GROUPS = ((POLICIES, BUDGETS, None, "kv"), (MORE_POLICIES, ("15%",), None, "kv"),
          # high budgets: NumPy is slow for every evicted entry
          (("snapkv:window=8:pool=7+greedy",), ("90%",), None, "kv"),
          (MERGING_POLICIES, ("15%",), (1,), "kv"),  # and for every merged one
          (QUERY_HEAD_POLICIES, ("15%",), (1,), "query"))
FIGURES = ("perturbation", "bound", "relative", "kept_mass")  # means over the decode steps, per query head
# the cache after the prompt: the mean of their absolute values, per KV head
MERGED = ("merged_key", "merged_value")
FIGURES_OF_MERGING = ("perturbation", "relative", "kept_mass", *MERGED)
RELATIVE = 1e-9  # as in independent/replay.py
RELATIVE_MERGED = 1e-8  # as in independent/merged_cache.py


def kept_hash(positions):
    """SHA-256 of one KV head's kept positions, ascending (or evicted ones, by steps), as little-endian 64-bit integers."""
    return hashlib.sha256(np.asarray(positions, "<i8").tobytes()).hexdigest()


def rounded(numbers):
    return [float(f"{number:.13g}") for number in numbers]


def by_kv_head(tensors, name):
    """The tensor's parts, one per KV head."""
    return np.split(tensors[name], tensors["kept_offsets"][1:-1])


def merged_figures(tensors):
    return {name: [abs(part).mean() for part in by_kv_head(tensors, name)] for name in MERGED}


def golden_merging(trace, layer, policy, budget):
    """The golden numbers of one layer of a policy that merges."""
    results, tensors = independent.replay.replayed_layer(trace, layer, policy, budget)
    hashes = {f"{name}_sha256": [kept_hash(positions) for positions in by_kv_head(tensors, name)]
              for name in ("kept", "votes")}
    hashes |= {f"{name}_sha256": [kept_hash(steps) for steps in tensors[name].T]
               for name in ("evicted", "merged_into") if name in tensors}
    figures = {kind: part.mean(axis=0) for kind, part in results.items()} | merged_figures(tensors)
    return hashes | {kind: rounded(figures[kind]) for kind in FIGURES_OF_MERGING}


def golden_run(trace, layers, policy_text, budget_text):
    """The golden numbers of one policy at one budget, by the independent implementation: one object per layer. layers:
    by index."""
    policy = independent.replay.parse_policy(policy_text)
    budget = independent.replay.resolve_budget(budget_text, trace, policy)
    if policy.merge:
        return [{"layer": index, **golden_merging(trace, layer, policy, budget)} for index, layer in layers.items()]
    golden, shared = [], layer_budgets(trace, policy, budget)
    for index, layer in layers.items():
        heads = [independent.replay.prompt_scores(trace, layer, policy, group, shared[index]) for group in range(trace.kv_heads)]
        budgets = head_budgets(policy, shared[index], heads)
        kept = [independent.replay.keep(policy, own - scores.always.sum(), scores) for own, scores in zip(budgets, heads)]
        left, hashes = None, {"kept_sha256": [kept_hash(positions) for positions in kept]}
        if policy.dynamic:
            left = independent.replay.decode(trace, layer, policy, budgets, heads, kept)[0]
            hashes["evicted_sha256"] = [kept_hash(steps) for steps in left.T]
        results, _ = independent.replay.replay_layer(trace, layer, kept, left)
        named = {"layer": index} if len(layers) < trace.layers else {}
        golden.append({**named, **hashes, **{kind: rounded(results[kind].mean(axis=0)) for kind in FIGURES}})
    return golden


def write_head_scores(layers, query_heads):
    """heads.json of headkv's policies, in the folder in which the program runs: no two layers or heads alike."""
    scores = [[(7 * layer + 3 * head) % 11 / 10 for head in range(query_heads)] for layer in range(layers)]
    Path("heads.json").write_text(json.dumps({"format": "kvbound-head-scores", "version": 1, "model": "", "scores": scores}), "utf-8")


def regenerate():
    for golden in sorted(GOLDEN.glob("*.json")):
        path = SAMPLES / f"{golden.stem}.safetensors"
        runs = []
        for policies, budgets, chosen, heads in GROUPS:
            trace = independent.replay.Trace(path, heads)
            write_head_scores(trace.layers, trace.query_heads)
            layers = {index: trace.layer(index) for index in chosen or range(trace.layers)}
            runs += [{"policy": policy, "budget": budget, **({"heads": heads} if heads != "kv" else {}),
                      "layers": golden_run(trace, layers, policy, budget)}
                     for budget in budgets for policy in policies]
        text = json.dumps({"sample": path.name, "sha256": trace.sha256, "runs": runs}, indent=1)
        golden.write_text(text + "\n")
        print(f"{path.stem}: {len(runs)} runs")


def is_near(ours, golden, relative=RELATIVE):
    return abs(ours - golden) <= relative * abs(golden)  # false for NaN


class Golden(CommandLineTest):
    def require_golden(self, sample):
        golden = json.loads((GOLDEN / f"{sample}.json").read_text())
        self.assertEqual(len(golden["runs"]), sum(len(policies) * len(budgets) for policies, budgets, *_ in GROUPS))
        metadata, _ = independent.replay.open_tensors(SAMPLES / golden["sample"])
        numbers = [int(number) for number in metadata["model_layers"].split(",")] if "model_layers" in metadata else None
        runs, dumps = {}, {}
        with contextlib.chdir(self.folder):
            write_head_scores(int(metadata["layers"]), int(metadata["query_heads"]))
        for policies, budgets, layers, heads in GROUPS:
            self.passes("replay", SAMPLES / golden["sample"], "--policy", ",".join(policies), "--budget", ",".join(budgets),
                        "--json", "out.json", "--heads", heads, "--dump", f"dumps-{heads}/",
                        *(("--layers", ",".join(str(numbers[layer] if numbers else layer) for layer in layers)) if layers else ()))
            trace = replayed(read(self.folder / "out.json"))
            self.assertEqual(trace["sha256"], golden["sha256"], "another sample: see tests/golden/README.md")
            runs |= {(run["policy"], run["budget"], heads, numbers.index(layer["layer"]) if numbers else layer["layer"]): layer
                     for run in trace["runs"] for layer in run["layers"]}
        for path in self.folder.glob("dumps-*/*"):
            metadata, tensors = independent.replay.open_tensors(path)
            dumps[metadata["policy"], metadata["budget"], metadata.get("heads", "kv")] = tensors
        for run in golden["runs"]:
            key = run["policy"], run["budget"], run.get("heads", "kv")
            for number, layer in enumerate(run["layers"]):
                index = layer.get("layer", number)
                with self.subTest(f"{' '.join(key)} layer {index}"):
                    self.require_layer(runs[*key, index], dumps[key], index, layer)

    def require_layer(self, ours, tensors, index, golden):
        """Compares a layer's numbers in the report and its tensors in the dump with the golden ones."""
        self.require_kept(tensors, index, golden["kept_sha256"])
        self.require_evicted(tensors, index, golden.get("evicted_sha256"))
        merges = "votes_sha256" in golden
        if merges:
            ours = ours | self.require_merges(tensors, index, golden)
        for kind in FIGURES_OF_MERGING if merges else FIGURES:
            for head, pair in enumerate(zip(ours[kind], golden[kind], strict=True)):
                self.assertTrue(is_near(*pair, RELATIVE_MERGED if merges else RELATIVE),
                                f"{kind} of head {head}: {pair[0]}, golden {pair[1]}")

    def require_merges(self, tensors, layer, golden):
        """Compares the targets of merges and the votes; returns the merged cache's numbers."""
        ours = {name.split(".")[-1]: independent.replay.read_tensor(tensor) for name, tensor in tensors.items()
                if name.startswith(f"layers.{layer}.")}
        self.assertEqual([kept_hash(votes) for votes in by_kv_head(ours, "votes")], golden["votes_sha256"], "votes")
        self.assertEqual("merged_into" in ours, "merged_into_sha256" in golden)
        if "merged_into" in ours:
            self.assertEqual([kept_hash(steps) for steps in ours["merged_into"].T], golden["merged_into_sha256"], "merged into")
        return merged_figures(ours)

    def require_kept(self, tensors, layer, golden):
        kept, offsets = (independent.replay.read_tensor(tensors[f"layers.{layer}.{name}"])
                         for name in ("kept", "kept_offsets"))
        heads = [kept[slice(*ends)] for ends in zip(offsets[:-1], offsets[1:])]
        self.assertEqual([kept_hash(positions) for positions in heads], golden, "kept sets")

    def require_evicted(self, tensors, layer, golden):
        left = tensors.get(f"layers.{layer}.evicted")
        self.assertEqual(left is None, golden is None, "hosts that only grow evict nothing")
        if golden:
            self.assertEqual([kept_hash(steps) for steps in independent.replay.read_tensor(left).T], golden, "evictions")

    def test_the_recorded_model_with_grouped_queries_gives_golden_figures(self):
        self.require_golden("pocket-gqa")

    def test_the_recorded_model_with_a_query_head_per_kv_head_gives_golden_figures(self):
        self.require_golden("pocket-mha")

    def test_the_recorded_model_with_attention_sinks_gives_golden_figures(self):
        self.require_golden("smollm2-135m")

    def test_golden_figures_are_no_zeros(self):
        for path in GOLDEN.glob("*.json"):
            for run in json.loads(path.read_text())["runs"]:
                for layer in run["layers"]:
                    kinds = FIGURES_OF_MERGING if "votes_sha256" in layer else FIGURES
                    self.assertTrue(all(number > 0 for kind in kinds for number in layer[kind]), path)

    def test_the_comparison_refuses_nan_and_small_differences(self):
        self.assertFalse(is_near(float("nan"), 1.0) or is_near(1.0, float("nan")) or is_near(0.0, 1.0))
        self.assertFalse(is_near(1 + 2e-9, 1.0) or is_near(float("inf"), 1.0))
        self.assertTrue(is_near(1 + 1e-10, 1.0))

    def test_every_golden_policy_that_merges_does_merge(self):
        none = kept_hash(np.full(64, -1))  # while decoding
        for path in GOLDEN.glob("*.json"):
            for run in json.loads(path.read_text())["runs"]:
                for layer in run["layers"]:
                    self.assertNotIn(none, layer.get("merged_into_sha256", ()), run["policy"])


if __name__ == "__main__":
    if sys.argv[1:] == ["--regenerate"]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            regenerate()
    else:
        kvbound_cli.main()
