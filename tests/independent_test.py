"""Dumps against an implementation that shares no code with the program: support/independent_replay.py (NumPy).

usage: independent_test.py KVBOUND      KVBOUND: the program's path
"""
import json

import numpy as np

from support import independent_replay, kvbound_cli
from support.kvbound_cli import SAMPLES, CommandLineTest, TraceFile, write_sharded

POLICIES = ("snapkv:window={w}", "snapkv:window={w}:pool=1", "snapkv:window={w}+critical",
            "snapkv:window={w}:pool=3+critical:alpha=adaptive:gqa=product-of-means",
            "snapkv:window={w}+critical:alpha=0.25:epsilon=0:norm=l2", "snapkv:window={w}:pool=1+theta-sweep",
            "snapkv:window={w}+theta-sweep:alpha=adaptive:gqa=product-of-means:norm=l2")
GENERATED = [  # kind, dtype, query heads, KV heads, head_dim, model_dim, prompt tokens, recorded queries, window
    ("power-law", "F32", 8, 2, 64, 48, 300, 32, 32), ("flat", "F64", 4, 4, 33, 20, 257, 16, 16),
    ("sink", "BF16", 8, 1, 8, 64, 256, 32, 8), ("needle", "F16", 4, 2, 64, 32, 200, 33, 33),
    ("tied", "BF16", 8, 4, 64, 32, 320, 32, 16), ("tied", "F32", 8, 1, 33, 16, 192, 64, 31),
    ("tied", "F16", 2, 2, 8, 8, 256, 32, 1), ("mixed", "BF16", 16, 4, 33, 40, 128, 128, 32),
    ("mixed", "F16", 5, 5, 1, 3, 100, 20, 20), ("power-law", "F32", 8, 1, 1, 1, 65, 9, 7),
    ("flat", "BF16", 2, 1, 8, 300, 33, 33, 33), ("mixed", "F64", 40, 5, 64, 16, 90, 32, 32)]


class IndependentReplay(CommandLineTest):
    def dump(self, trace, policies, budgets, *options):
        self.passes("replay", trace, "--policy", policies, "--budget", budgets, "--dump", "dumps/", *options)
        paths = sorted((self.folder / "dumps").iterdir())
        self.assertEqual(len(paths), len(policies.split(",")) * len(budgets.split(",")))
        return paths

    def require_agreement(self, trace, paths):
        recording = independent_replay.Trace(trace)
        for path in paths:
            with self.subTest(path.name):
                judged = independent_replay.Judgement(recording, path)
                self.assertEqual([text for _, text in judged.failures], [])
                self.assertLessEqual({"kept_offsets", "output", "perturbation", "bound", "kept_mass"},
                                     set(judged.worst))

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

    def test_samples_agree(self):
        for sample, budgets in (("pocket-gqa", "5%,20%"), ("pocket-mha", "12.5%")):
            trace = SAMPLES / f"{sample}.safetensors"
            paths = self.dump(trace, "snapkv,snapkv+critical:alpha=adaptive,snapkv+theta-sweep", budgets)
            self.require_agreement(trace, paths)
            for path in paths:
                path.unlink()

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
                    huge.tensors[f"layers.{layer}.{kind}"][1][...] *= 70  # logits of some 10^4
            yield huge
            scaled = TraceFile()
            scaled.metadata["scale"] = "2.5e-1"
            yield scaled

        for number, trace in enumerate(oddities()):
            with self.subTest(number):
                path = trace.write(self.folder / f"{number}.safetensors")
                for dump in self.dump(path, "snapkv:window=4,snapkv:window=4+critical,snapkv:window=4+theta-sweep",
                                      "9"):
                    self.require_agreement(path, [dump])
                    dump.unlink()
        index, _ = write_sharded(TraceFile(), self.folder, metadata_in="shard")
        self.require_agreement(index, self.dump(index, "snapkv:window=4+critical", "50%,7"))

    def test_a_dump_with_one_wrong_number_disagrees(self):
        trace = TraceFile().write(self.folder / "trace.safetensors")
        path = self.dump(trace, "snapkv:window=4+critical", "9")[0]
        good = path.read_bytes()
        length = 8 + int.from_bytes(good[:8], "little")
        header = json.loads(good[8:length])
        recording = independent_replay.Trace(trace)
        self.assertEqual(independent_replay.Judgement(recording, path).failures, [])
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
                failures = independent_replay.Judgement(recording, path).failures
                self.assertTrue(failures, f"{name}: {changed} instead of {number} went unnoticed")


if __name__ == "__main__":
    kvbound_cli.main()
