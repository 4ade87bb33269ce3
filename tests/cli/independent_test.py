"""The program's dumps judged by an independent implementation in NumPy, independent/replay.py.

usage: independent_test.py KVBOUND      KVBOUND: the program's path
"""
import itertools
import json
import re

import numpy as np

import independent.replay
from independent.policy import parse_policy, resolve_budget
from support import kvbound_cli
from support.kvbound_cli import SAMPLES, CommandLineTest, TraceFile, write_sharded

POLICIES = ("snapkv:window={w}", "snapkv:window={w}:pool=1", "snapkv:window={w}+critical",
            "snapkv:window={w}:pool=3+critical:alpha=adaptive:gqa=product-of-means",
            "snapkv:window={w}+critical:alpha=0.25:epsilon=0:norm=l2", "snapkv:window={w}:pool=1+theta-sweep",
            "snapkv:window={w}+theta-sweep:alpha=adaptive:gqa=product-of-means:norm=l2")
# Every host, score and space; {s} sinks and {r} recent entries fit into the observation window {w}.
HOST_POLICIES = (
    "tova", "tova:sinks={s}+obcache-value:space=projected", "tova+obcache-key", "tova:sinks={s}+obcache-joint",
    "tova+exact", "tova+exact:space=projected", "tova:sinks={s}+critical:alpha=0.25",
    "tova+critical:alpha=adaptive:gqa=product-of-means:norm=l2", "tova:sinks={s}+theta-sweep",
    "h2o:window={w}", "h2o:window={w}:sinks={s}:recent={r}", "h2o:window={w}+obcache-value",
    "h2o:window={w}:recent=0+obcache-key:space=projected", "h2o:window={w}:recent={r}+obcache-joint:space=projected",
    "h2o:window={w}:sinks={s}:recent={r}+exact", "h2o:window={w}+critical",
    "h2o:window={w}:recent={r}+critical:alpha=adaptive:epsilon=0", "h2o:window={w}:recent={r}+theta-sweep:gqa=product-of-means",
    "streaming-llm:sinks={s}", "streaming-llm:sinks={w}", "random:sinks={s}:window={r}", "random:seed=5:sinks=0:window={w}",
    "snapkv:window={w}+obcache-value", "snapkv:window={w}:pool=1+obcache-key", "snapkv:window={w}:pool=3+obcache-joint",
    "snapkv:window={w}+obcache-joint:space=projected", "snapkv:window={w}+exact", "snapkv:window={w}:pool=1+exact:space=projected",
    "snapkv:window={w}+greedy")
# Every way to merge, every host with merging, every allocation, in pairs: traces with an even number replay
# the first policy of each pair, the others the second.
MERGING = (
    "snapkv:window={w}+keepkv", "snapkv:window={w}+keepkv:threshold=0.3:order=merge-first",
    "snapkv:window={w}:pool=1+keepkv-paper:threshold=none", "h2o:window={w}:sinks={s}:recent={r}+keepkv:threshold=none",
    "h2o:window={w}:recent={r}+obcache-joint+keepkv:threshold=0.5:gqa=mean:normalisation=paper",
    "h2o:window={w}:recent=0+keepkv:threshold=0.2:order=merge-first:key=convex",
    "h2o:window={w}+critical+keepkv:threshold=0.3:period=4", "tova+keepkv:threshold=none:predict=current",
    "tova:sinks={s}+exact+keepkv:threshold=none:scores=raw:ema=0.5", "tova+exact:space=projected+convex:threshold=0.2",
    "tova+obcache-key+adakv+keepkv:threshold=0.4", "tova+adakv:safeguard=0.5+keepkv:threshold=none:period=5:rank=0.01",
    "tova+critical:alpha=adaptive+keepkv-paper:threshold=0.5", "streaming-llm:sinks={s}+keepkv:threshold=0.5",
    "streaming-llm+cam", "h2o:window={w}:recent={r}+cam:neighbours=5:seed=3", "tova+d2o",
    "h2o:window={w}:recent=1+obcache-value+kvmerger:threshold=0.1", "snapkv:window={w}+adakv+d2o:threshold=none",
    "snapkv:window={w}+theta-sweep+keepkv:period=3:threshold=0.2", "snapkv:window={w}+critical+kvmerger:threshold=none",
    "snapkv:window={w}+greedy+convex:gqa=mean:threshold=none:scores=raw", "snapkv:window={w}+cam",
    "tova+theta-sweep+keepkv:threshold=none:ema=0:key=convex:gqa=mean",
    "random:sinks={s}:window={r}+keepkv:threshold=0.5", "random:seed=8:sinks=0:window=0+cam:seed=8")
ON_SAMPLES = (
    "snapkv+keepkv", "snapkv+keepkv-paper", "h2o+keepkv", "snapkv+keepkv:order=merge-first:threshold=0.7", "tova+cam",
    "tova+adakv+keepkv:threshold=none:scores=raw", "snapkv+keepkv:period=8", "snapkv+d2o", "h2o+kvmerger", "snapkv+convex",
    "h2o:window=64+exact+keepkv-paper:predict=current:threshold=none", "streaming-llm+keepkv:threshold=0.6",
    "random+keepkv:threshold=0.6")
UNUSUAL_MERGING = (
    "snapkv:window=4+keepkv:threshold=none", "snapkv:window=4+keepkv-paper:threshold=none:predict=current",
    "snapkv:window=4+keepkv:threshold=0.1:order=merge-first", "tova+keepkv-paper:threshold=none:period=2",
    "tova+keepkv:threshold=none:rank=0.001:predict=current", "tova+exact+keepkv:threshold=none", "tova+d2o:threshold=none",
    "h2o:window=4:recent=1:sinks=2+keepkv:threshold=0", "h2o:window=4+obcache-key+keepkv-paper:threshold=none",
    "h2o:window=4+keepkv:threshold=none:period=3", "tova+adakv+convex:threshold=none", "tova+kvmerger:threshold=none",
    "h2o:window=4:recent=0+cam:neighbours=1", "snapkv:window=4+adakv:safeguard=0+keepkv", "streaming-llm:sinks=0+keepkv-paper",
    "random:seed=1:sinks=0:window=2+keepkv:threshold=none")
UNUSUAL = ("snapkv:window=4,snapkv:window=4+critical,snapkv:window=4+theta-sweep,snapkv:window=4+exact,"
           "snapkv:window=4:pool=1+obcache-key,snapkv:window=4+greedy,h2o:window=4+exact:space=projected,"
           "h2o:window=8:recent=2+obcache-joint,h2o:window=8:recent=1+critical:alpha=adaptive,tova,tova+obcache-value,"
           "tova:sinks=1+exact,tova+critical:alpha=adaptive,tova+theta-sweep,streaming-llm,random:window=4")
# kind, dtype, query heads, KV heads, head_dim, model_dim, prompt tokens, recorded queries, window
GENERATED = [
    ("power-law", "F32", 8, 2, 64, 48, 300, 32, 32), ("flat", "F64", 4, 4, 33, 20, 257, 16, 16),
    ("sink", "BF16", 8, 1, 8, 64, 256, 32, 8), ("needle", "F16", 4, 2, 64, 32, 200, 33, 33),
    ("tied", "BF16", 8, 4, 64, 32, 320, 32, 16), ("tied", "F32", 8, 1, 33, 16, 192, 64, 31),
    ("tied", "F16", 2, 2, 8, 8, 256, 32, 1), ("mixed", "BF16", 16, 4, 33, 40, 128, 128, 32),
    ("mixed", "F16", 5, 5, 1, 3, 100, 20, 20), ("power-law", "F32", 8, 1, 1, 1, 65, 9, 7),
    ("flat", "BF16", 2, 1, 8, 300, 33, 33, 33), ("mixed", "F64", 40, 5, 64, 16, 90, 32, 32)]


class IndependentTest(CommandLineTest):
    def dump(self, trace, policies, budgets, *options):
        self.passes("replay", trace, "--policy", policies, "--budget", budgets, "--dump", "dumps/", *options)
        paths = sorted((self.folder / "dumps").iterdir())
        self.assertEqual(len(paths), len(policies.split(",")) * len(budgets.split(",")))
        return paths

    def require_agreement(self, trace, paths, layers=None):
        """Every dump agrees with the independent implementation; returns how many entries were merged, according to the
        dumps."""
        recording, merged = independent.replay.Trace(trace), 0
        for path in paths:
            with self.subTest(path.name):
                judged = independent.replay.Judgement(recording, path, layers)
                self.assertEqual([text for _, text in judged.failures], [])
                policy = judged.metadata["policy"]
                merging = {"votes", "merged_key", "merged_value"} if parse_policy(policy).merge else {"bound"}
                self.assertLessEqual({"kept_offsets", "output", "perturbation", "kept_mass"} | merging, set(judged.worst))
                for name, entry in judged.tensors.items():
                    if name.endswith((".votes", ".merged_into")):
                        merged += (independent.replay.read_tensor(entry) > (1 if name.endswith("votes") else -1)).sum()
                kinds = {name.split(".")[-1] for name in judged.tensors}
                self.assertEqual("evicted" in kinds, parse_policy(policy).dynamic)
                self.assertEqual("score" in kinds, parse_policy(policy).ranks)
        return merged

    def require_wrong_numbers_to_be_found(self, trace, policy):
        path = self.dump(trace, policy, "9")[0]
        good = path.read_bytes()
        length = 8 + int.from_bytes(good[:8], "little")
        header = json.loads(good[8:length])
        recording = independent.replay.Trace(trace)
        self.assertEqual(independent.replay.Judgement(recording, path).failures, [])
        for name in (name for name in header if name.startswith("layers.1.")):
            for change in (lambda x: x + 1, lambda x: x * (1 + 1e-6), lambda x: np.nan):
                begin = length + header[name]["data_offsets"][0]
                integers = header[name]["dtype"] == "I64"
                number = np.frombuffer(good[begin:begin + 8], "<i8" if integers else "<f8")[0]
                changed = change(number)
                if integers and changed != number + 1:
                    continue
                raw = np.array([changed], "<i8" if integers else "<f8").tobytes()
                path.write_bytes(good[:begin] + raw + good[begin + 8:])
                failures = independent.replay.Judgement(recording, path).failures
                self.assertTrue(failures, f"{name}: {changed} instead of {number} went unnoticed")
        path.unlink()


class IndependentReplay(IndependentTest):
    def test_generated_traces_of_every_kind_type_and_shape_agree(self):
        for number, (kind, dtype, query_heads, kv_heads, head_dim, model_dim, tokens, recorded,
                     window) in enumerate(GENERATED):
            name = f"{number}-{kind}-{dtype}-{query_heads}-{kv_heads}-{head_dim}.safetensors"
            with self.subTest(name):
                trace = self.generate(name, "--kind", kind, "--dtype", dtype, "--query-heads", query_heads,
                                      "--kv-heads", kv_heads, "--head-dim", head_dim, "--model-dim", model_dim,
                                      "--tokens", tokens, "--window-queries", recorded, "--decode", 4, "--layers", 1,
                                      "--seed", number + 1)
                policies = ",".join(POLICIES).format(w=window)
                for path in self.dump(trace, policies,
                                      ",".join(map(str, sorted({window, (window + tokens) // 2, tokens})))):
                    self.require_agreement(trace, [path])
                    path.unlink()

    def test_h2o_over_all_queries_agrees(self):
        trace = self.generate("all.safetensors", "--kind", "mixed", "--query-heads", 4, "--kv-heads", 2, "--head-dim", 16,
                              "--model-dim", 24, "--tokens", 120, "--window-queries", 120, "--decode", 20, "--layers", 2)
        for score in ("", "+obcache-value", "+obcache-key", "+obcache-joint", "+exact", "+critical:alpha=adaptive",
                      "+theta-sweep"):
            paths = self.dump(trace, f"h2o:window=120:sinks=1:recent=4{score}", "5,40,120")
            self.require_agreement(trace, paths)
            if score == "+exact":  # the first query attends to the first entry only
                _, tensors = independent.replay.open_tensors(paths[0])
                score = independent.replay.read_tensor(tensors["layers.0.score"])
                self.assertTrue(np.isinf(score[:, 0]).all() and np.isfinite(score[:, 1:]).all())
            for path in paths:
                path.unlink()

    def test_greedy_agrees_where_one_entry_has_nearly_all_the_weight(self):
        for gap, second in itertools.product((10, 20, 38, 100, 800), (0, 0.5, 0.9)):
            trace = TraceFile(layers=1, dtype="F64", prompt_tokens=12, window_queries=2, decode_tokens=1, query_heads=1,
                              kv_heads=1, head_dim=1, seed=gap)
            for name, numbers in (("key", [gap, 0, -gap, second * gap, *[0] * 9]), ("query", 1)):
                trace.tensors[f"layers.0.{name}"][1].reshape(-1)[...] = numbers
            path = trace.write(self.folder / f"{gap}-{second}.safetensors")
            for dump in self.dump(path, "snapkv:window=1+greedy", "2,6,11"):
                self.require_agreement(path, [dump])
                dump.unlink()

    def test_unusual_numbers_and_files_agree(self):
        def fill(trace, kind, number):
            for layer in range(2):
                trace.tensors[f"layers.{layer}.{kind}"][1][...] = number

        def oddities():
            yield TraceFile()
            for kind, number in (("key", 0), ("query", 0), ("value", 0), ("output_projection", 0), ("value", 1)):
                trace = TraceFile()
                fill(trace, kind, number)
                yield trace
            huge = TraceFile(dtype="F64")
            for layer in range(2):
                for kind in ("key", "query"):
                    huge.tensors[f"layers.{layer}.{kind}"][1][...] *= 70  # logits of about 10^4
            yield huge
            scaled = TraceFile()
            scaled.metadata["scale"] = "2.5e-1"
            yield scaled

        for number, trace in enumerate(oddities()):
            with self.subTest(number):
                path = trace.write(self.folder / f"{number}.safetensors")
                for dump in self.dump(path, ",".join((UNUSUAL, *UNUSUAL_MERGING)), "9"):
                    self.require_agreement(path, [dump])
                    dump.unlink()
        index, _ = write_sharded(TraceFile(), self.folder, metadata_in="shard")
        self.require_agreement(index, self.dump(index, "snapkv:window=4+critical", "50%,7"))

    def test_a_dump_with_one_wrong_number_disagrees(self):
        trace = TraceFile().write(self.folder / "trace.safetensors")
        for policy in ("snapkv:window=4+critical", "h2o:window=4+exact", "tova+critical", "snapkv:window=4+keepkv:threshold=0",
                       "h2o:window=4+obcache-value+adakv+keepkv:gqa=mean:threshold=none", "tova+d2o:threshold=none"):
            self.require_wrong_numbers_to_be_found(trace, policy)


class IndependentSweeps(IndependentTest):
    suite = "long"

    def test_every_host_and_score_agrees_on_generated_traces(self):
        for number, (kind, dtype, query_heads, kv_heads, head_dim, model_dim, tokens, recorded,
                     window) in enumerate(GENERATED):
            name = f"{number}-{kind}-{dtype}-{query_heads}-{kv_heads}-{head_dim}.safetensors"
            trace = self.generate(name, "--kind", kind, "--dtype", dtype, "--query-heads", query_heads, "--kv-heads", kv_heads,
                                  "--head-dim", head_dim, "--model-dim", model_dim, "--tokens", tokens, "--window-queries",
                                  recorded, "--decode", 12, "--layers", 1, "--seed", number + 101)
            policies = ",".join(HOST_POLICIES).format(w=window, s=min(4, window // 4), r=window // 2)
            budget = (window, (window + tokens) // 2, tokens)[number % 3]
            with self.subTest(name):
                for path in self.dump(trace, policies, str(budget)):
                    self.require_agreement(trace, [path])
                    path.unlink()

    def test_every_way_to_merge_agrees_on_generated_traces(self):
        for number, (kind, dtype, query_heads, kv_heads, head_dim, model_dim, tokens, recorded,
                     window) in enumerate(GENERATED):
            name = f"{number}-{kind}-{dtype}-{query_heads}-{kv_heads}-{head_dim}.safetensors"
            trace = self.generate(name, "--kind", kind, "--dtype", dtype, "--query-heads", query_heads, "--kv-heads", kv_heads,
                                  "--head-dim", head_dim, "--model-dim", model_dim, "--tokens", tokens, "--window-queries",
                                  recorded, "--decode", 12, "--layers", 1, "--seed", number + 301)
            policies = ",".join(MERGING[number % 2::2]).format(w=window, s=min(4, window // 4), r=window // 2)
            merged = 0
            for path in self.dump(trace, policies, str((3 * window + tokens) // 4)):
                merged += self.require_agreement(trace, [path])
                path.unlink()
            self.assertGreater(merged, 0, name)

    def test_allocations_agree_with_and_without_merging(self):
        trace = self.generate("layers.safetensors", "--kind", "mixed", "--query-heads", 6, "--kv-heads", 3, "--head-dim", 8,
                              "--model-dim", 12, "--tokens", 90, "--window-queries", 16, "--decode", 6, "--layers", 4)
        policies = [f"{host}+{allocation}{merge}" for (host, merge), allocation in itertools.product(
            (("snapkv:window=4+critical", ""), ("tova+exact", "+keepkv:threshold=0.3"), ("h2o:window=8:recent=2", "+d2o"),
             ("h2o:window=4:sinks=1", "+keepkv:order=merge-first:threshold=0.3")),
            ("pyramid", "pyramid:beta=3:shape=cosine", "adakv", "adakv:safeguard=0.45"))]
        policies += ["streaming-llm:sinks=2+pyramid:shape=cosine+keepkv", "streaming-llm+pyramid:beta=1",
                     "random:window=4+pyramid+d2o:threshold=0.3"]
        for path in self.dump(trace, ",".join(policies), "17,30"):
            self.require_agreement(trace, [path])
            path.unlink()

    def test_merging_agrees_on_the_samples(self):
        for sample, budget, layers in (("pocket-gqa", "10%", [1]), ("pocket-mha", "12.5%", [0, 2])):
            trace = SAMPLES / f"{sample}.safetensors"
            for path in self.dump(trace, ",".join(ON_SAMPLES), budget, "--layers", ",".join(map(str, layers))):
                self.require_agreement(trace, [path], layers)
                path.unlink()

    def test_samples_agree(self):
        for sample, budgets, policies in (
                ("pocket-gqa", "5%", "snapkv,snapkv+critical:alpha=adaptive,snapkv+theta-sweep"),
                ("pocket-gqa", "10%", "snapkv+obcache-joint,snapkv+exact:space=projected,h2o,h2o:sinks=4+exact,tova+obcache-key,"
                                      "tova+exact,tova+critical,streaming-llm,random:seed=1"),
                ("pocket-mha", "12.5%", "snapkv,snapkv+critical:alpha=adaptive,snapkv+theta-sweep,"
                                        "h2o:window=512:recent=16+obcache-joint,"
                                        + ",".join(HOST_POLICIES).format(w=32, s=4, r=16))):
            trace = SAMPLES / f"{sample}.safetensors"
            policies = ",".join(dict.fromkeys(policies.split(",")))
            paths = self.dump(trace, policies, budgets)
            self.require_agreement(trace, paths)
            for path in paths:
                path.unlink()

    def test_every_perturbation_in_the_readme_is_the_independent_one_to_all_its_digits(self):
        """The column L of the two tables, with which nothing of the program is compared here: documentation_test.py has the
        program print them."""
        tables = re.findall(r"^policy .*?(?=^```)", (kvbound_cli.REPOSITORY / "README.md").read_text("utf-8"),
                            re.MULTILINE | re.DOTALL)
        rows = [[line.split() for line in table.splitlines() if "%" in line] for table in tables]
        column = [re.split("  +", table.splitlines()[0]).index("L") for table in tables]
        self.assertEqual([len(table) for table in rows], [10, 8])
        for sample, table, at in zip(("pocket-gqa", "smollm2-135m"), rows, column):
            trace = independent.replay.Trace(SAMPLES / f"{sample}.safetensors")
            for policy, budget, printed in ((row[0], row[1], row[at]) for row in table):
                with self.subTest(f"{sample} {policy} {budget}"):
                    entries = resolve_budget(budget, trace, parse_policy(policy))
                    layers = [independent.replay.replayed_layer(trace, trace.layer(index), parse_policy(policy), entries)[0]
                              for index in range(trace.layers)]
                    self.assertEqual(f"{np.mean([layer['perturbation'] for layer in layers]):#.4g}", printed)


if __name__ == "__main__":
    kvbound_cli.main()
