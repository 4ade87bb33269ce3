"""Whole decode replays run by the reference and by the device kernels, whose results are compared.

usage: backend_test.py KVBOUND      KVBOUND: the program's path
With KVBOUND_REQUIRE_GPU=1 it fails where there is no GPU.
"""
import os
import re

import numpy as np

from support import kvbound_cli
from support.documents import read, replayed
from support.dumps import Dump
from support.kvbound_cli import INCONCLUSIVE, SAMPLES, USAGE, CommandLineTest, TraceFile

POLICIES = "snapkv,snapkv+critical,snapkv:pool=1+critical:alpha=adaptive,snapkv+critical:norm=l2:gqa=product-of-means"
EVICTING = "h2o,h2o:window=16:sinks=4:recent=8,tova,tova:sinks=4,streaming-llm"
MERGES = ("keepkv", "keepkv:threshold=none:gqa=mean", "keepkv-paper:threshold=0.5", "keepkv:threshold=none:predict=current",
          "keepkv:key=convex:normalisation=paper", "convex:threshold=none", "d2o:threshold=none", "kvmerger:threshold=0.5",
          "cam", "cam:neighbours=3:seed=7")
REBUILDS = ("snapkv+keepkv:order=merge-first", "tova+keepkv:order=merge-first:threshold=none", "snapkv+keepkv:period=3",
            "h2o+critical+keepkv:period=4:threshold=none", "h2o+keepkv:order=merge-first:period=3")
CHANGES = "obcache-value", "obcache-key", "obcache-joint", "exact"
OPERATIONS = {"window_attention", "projected_value_norms", "stage_two_scores", "selection", "compaction", "attention"}


class Backends(CommandLineTest):
    devices = ["emulated"]  # setUpClass adds "cuda" where there is a GPU

    @classmethod
    def setUpClass(cls):
        sample = SAMPLES / "pocket-gqa.safetensors"
        found = kvbound_cli.run("replay", sample, "--policy", "snapkv", "--budget", "5%", "--backend", "cuda",
                                "--layers", "0", "--steps", 1)
        if found.returncode == kvbound_cli.PASS:
            cls.devices = ["emulated", "cuda"]
        elif found.returncode != INCONCLUSIVE or os.environ.get("KVBOUND_REQUIRE_GPU") == "1":
            raise AssertionError(found.stderr)

    def replay(self, trace, *options, backends=None):
        """The report on the only trace, after a replay that passed. backends: by default the reference and all devices
        """
        backends = backends or ",".join(["reference", *self.devices])
        self.passes("replay", trace, "--backend", backends, "--json", "out.json", *options)
        report = read(self.folder / "out.json")
        (self.folder / "out.json").unlink()
        return replayed(report)

    def require_agreement(self, trace, policies=POLICIES, budgets="20%", *options):
        """Requires that every run on a device agrees with the reference in all its tensors, and that some elements were
        judged."""
        runs = self.replay(trace, "--policy", policies, "--budget", budgets, *options)["runs"]
        on_devices = [run for run in runs if run["backend"] != "reference"]
        self.assertEqual({run["backend"] for run in on_devices}, set(self.devices))
        for run in on_devices:
            entries = run["agreement"]
            expected = {"kept", "output"}
            if not run["policy"].startswith(("streaming-llm", "random")):
                expected.add("score")
            if not run["policy"].startswith(("snapkv", "random")):
                expected.add("evicted")
            if "critical" in run["policy"] or "theta-sweep" in run["policy"]:
                expected.add("projected_value_norms")
            if "critical" in run["policy"]:
                expected.add("stage_two_score")
            if any(method in run["policy"] for method in ("keepkv", "convex", "d2o", "kvmerger", "cam")):
                expected |= {"votes", "merged_value"}
                if "merge-first" in run["policy"]:
                    expected -= {"kept", "evicted"}  # all may be kept where few roots are left
            if re.search(r"period=\d", run["policy"]):
                expected |= {"rebuilt_target_of"}
            self.assertLessEqual(expected, {entry["tensor"] for entry in entries})
            for entry in entries:
                self.assertEqual(entry["outside"], 0, (run["policy"], entry))
                if entry["tensor"] in expected:
                    self.assertGreater(entry["judged"], 0)

    def test_a_recorded_model_agrees_on_every_layer_and_step(self):
        self.require_agreement(SAMPLES / "pocket-gqa.safetensors", "snapkv,snapkv+critical")

    def test_another_recorded_model_agrees_without_groups(self):
        self.require_agreement(SAMPLES / "pocket-mha.safetensors", POLICIES, "10%,60%", "--layers", "0", "--steps", "8")

    def test_hosts_that_evict_while_decoding_agree(self):
        self.require_agreement(SAMPLES / "pocket-gqa.safetensors", EVICTING)
        self.require_agreement(SAMPLES / "pocket-mha.safetensors", EVICTING, "10%,60%", "--layers", "0")
        self.require_agreement(SAMPLES / "pocket-gqa.safetensors",
                               "h2o+critical,tova:sinks=4+critical:alpha=adaptive,h2o+critical:gqa=product-of-means:norm=l2",
                               "20%", "--layers", "3", "--steps", "24")

    def test_entries_kept_at_random_are_the_same_and_all_that_enter_stay(self):
        self.require_agreement(SAMPLES / "pocket-gqa.safetensors",
                               "random,random:seed=7:sinks=0:window=0,random:window=8+pyramid", "5%,100%", "--steps", 16)
        trace = self.generate("heads.safetensors", "--kind", "mixed", "--dtype", "BF16", "--tokens", 140, "--decode", 6,
                              "--layers", 3, "--query-heads", 9, "--kv-heads", 3, "--head-dim", 17, "--model-dim", 48)
        runs = {}
        for budget in (20, 50, 140):
            for seed in (0, 1):
                for backend in ("reference", "emulated"):
                    self.passes("replay", trace, "--policy", f"random:seed={seed}:sinks=2:window=8", "--budget", budget,
                                "--backend", backend, "--dump", "dump.safetensors")
                    dump = Dump.read(self.folder / "dump.safetensors")
                    runs[budget, seed, backend] = [np.split(dump.array(layer, "kept"), 3) for layer in range(3)]
                self.assertTrue(np.array_equal(runs[budget, seed, "reference"], runs[budget, seed, "emulated"]))
                self.assertNotIn("evicted", dump.kinds())
                self.assertNotIn("score", dump.kinds())
        few, many, other = (np.reshape(runs[key], (9, -1)) for key in ((20, 0, "emulated"), (50, 0, "emulated"),
                                                                       (20, 1, "emulated")))
        self.assertEqual(len({tuple(row) for row in few}), 9, "layers and KV heads differ")
        self.assertTrue(all(set(less) < set(more) for less, more in zip(few, many)))
        self.assertTrue((few != other).any(axis=1).all(), "seeds differ")
        self.assertTrue((np.reshape(runs[140, 0, "emulated"], (9, -1)) == np.arange(140)).all())

    def test_scores_that_measure_a_change_agree(self):
        for space in ("head", "projected"):
            policies = ",".join(f"{host}+{score}:space={space}" for host in ("snapkv", "h2o", "tova") for score in CHANGES)
            with self.subTest(space=space):
                self.require_agreement(SAMPLES / "pocket-gqa.safetensors", policies, "20%", "--layers", "1", "--steps", 16)

    def test_theta_sweeps_agree(self):
        self.require_agreement(SAMPLES / "pocket-gqa.safetensors",
                               "snapkv+theta-sweep,h2o:sinks=4+theta-sweep:alpha=adaptive,tova+theta-sweep:norm=l2", "20%",
                               "--steps", 4)

    def test_budgets_that_differ_between_heads_agree(self):
        self.require_agreement(SAMPLES / "pocket-gqa.safetensors",
                               "snapkv+adakv,h2o+critical+adakv:safeguard=0.05,tova+exact+adakv", "20%", "--steps", 8)

    def test_budgets_that_differ_between_heads_agree_beyond_a_tile_of_entries(self):
        trace = self.generate("heads.safetensors", "--kind", "mixed", "--dtype", "BF16", "--tokens", 300, "--decode", 6,
                              "--layers", 1, "--query-heads", 6, "--kv-heads", 3, "--head-dim", 24, "--model-dim", 48)
        self.require_agreement(trace, "snapkv+adakv:safeguard=0.05,h2o+adakv:safeguard=0.05+keepkv:threshold=none", "64,129")

    def test_budgets_that_differ_between_layers_agree(self):
        self.require_agreement(SAMPLES / "pocket-gqa.safetensors", "snapkv+pyramid,h2o+pyramid:shape=cosine", "20%", "--steps", 8)

    def test_merges_agree(self):
        hosts = "snapkv", "h2o", "tova:sinks=4", "streaming-llm", "random:seed=2"
        self.require_agreement(SAMPLES / "pocket-gqa.safetensors",
                               ",".join(f"{hosts[i % 5]}+{merge}" for i, merge in enumerate(MERGES)), "20%", "--layers", "1",
                               "--steps", 8)
        self.require_agreement(SAMPLES / "pocket-mha.safetensors", "h2o+keepkv,snapkv+adakv+keepkv,tova+critical+d2o",
                               "10%,60%", "--layers", "0", "--steps", 4)

    def test_merges_of_single_heads_need_not_be_lossless_in_single_precision(self):
        policies = "snapkv+keepkv:predict=current:threshold=none", "h2o+keepkv:period=3", "h2o+keepkv:predict=current"
        runs = self.replay(SAMPLES / "pocket-mha.safetensors", "--policy", ",".join(policies), "--budget", "20%", "--layers",
                           "0", "--steps", 8, "--merge-bounds")["runs"]
        for run in runs:
            self.assertEqual(run["lossless"] > 0, run["backend"] == "reference", run["policy"])
        self.require_agreement(SAMPLES / "pocket-mha.safetensors", ",".join(policies), "20%", "--layers", "0", "--steps", 8)

    def test_merges_before_the_selection_and_rebuilds_agree(self):
        self.require_agreement(SAMPLES / "pocket-gqa.safetensors", ",".join(REBUILDS), "20%", "--layers", "2", "--steps", 8)

    def test_merges_agree_for_every_storage_and_odd_groups(self):
        for dtype, head_dim in (("F32", 8), ("F16", 64), ("BF16", 17)):
            with self.subTest(dtype=dtype, head_dim=head_dim):
                trace = self.generate(f"{dtype}.safetensors", "--kind", "mixed", "--dtype", dtype, "--tokens", 110, "--decode",
                                      4, "--layers", 1, "--query-heads", 9, "--kv-heads", 3, "--head-dim", head_dim,
                                      "--model-dim", 48)
                policies = ",".join((*(f"h2o+{merge}" for merge in MERGES), *REBUILDS))
                self.require_agreement(trace, policies, "44")

    def test_a_device_dump_of_every_kind_of_merge_passes_diff(self):
        trace = SAMPLES / "pocket-gqa.safetensors"
        for policy in ("h2o+kvmerger", "tova+cam", "snapkv+d2o", "random+d2o", "snapkv+keepkv:key=zip:gqa=mean:period=2",
                       "snapkv+keepkv:order=merge-first:key=convex"):
            with self.subTest(policy):
                self.passes("replay", trace, "--policy", policy, "--budget", "10%", "--backend", "emulated", "--layers", "2",
                            "--steps", 4, "--dump", "dump.safetensors")
                self.passes("diff", trace, "dump.safetensors")

    def test_every_storage_and_kind_of_attention_agrees(self):
        for dtype, kind in (("F32", "mixed"), ("F16", "mixed"), ("BF16", "mixed"), ("F64", "power-law"),
                            ("BF16", "tied"), ("F32", "sink")):
            with self.subTest(dtype=dtype, kind=kind):
                trace = self.generate(f"{dtype}-{kind}.safetensors", "--kind", kind, "--dtype", dtype, "--tokens", 300,
                                      "--decode", 5, "--layers", 1, "--query-heads", 6, "--kv-heads", 2,
                                      "--head-dim", 40, "--model-dim", 96)
                self.require_agreement(trace, f"{POLICIES},{EVICTING},snapkv+greedy,snapkv+obcache-joint:space=projected,h2o+exact")

    def test_heads_of_eight_and_of_odd_sizes_agree(self):
        for head_dim in (8, 10, 17):
            with self.subTest(head_dim=head_dim):
                trace = self.generate(f"{head_dim}.safetensors", "--kind", "mixed", "--dtype", "BF16", "--tokens", 90,
                                      "--decode", 3, "--layers", 1, "--query-heads", 4, "--kv-heads", 4,
                                      "--head-dim", head_dim, "--model-dim", 33)
                self.require_agreement(trace, f"{POLICIES},{EVICTING}", "60%")

    def test_tensors_of_several_types_agree_though_they_are_stored_as_one(self):
        trace = TraceFile(dtype="BF16", prompt_tokens=60, window_queries=40)
        for name, (_, numbers) in trace.tensors.items():
            if name.endswith("output_projection"):
                trace.tensors[name] = "F32", numbers
        self.require_agreement(trace.write(self.folder / "several.safetensors"), POLICIES, "40")

    def test_a_whole_prompt_kept_agrees(self):
        trace = TraceFile(prompt_tokens=40, window_queries=32).write(self.folder / "small.safetensors")
        self.require_agreement(trace, POLICIES, "40,32")

    def test_a_cache_outgrows_the_room_it_began_with(self):
        trace = self.generate("long.safetensors", "--kind", "power-law", "--tokens", 40, "--decode", 300, "--layers", 1,
                              "--query-heads", 2, "--kv-heads", 1, "--head-dim", 8, "--model-dim", 8)
        self.require_agreement(trace, "snapkv", "32")

    def test_results_are_the_same_bits_at_every_run_and_for_any_number_of_threads(self):
        trace = SAMPLES / "pocket-gqa.safetensors"
        dumps = []
        for threads in (1, 2):
            self.passes("replay", trace, "--policy", "snapkv+critical", "--budget", "5%", "--backend", "emulated",
                        "--layers", "1", "--steps", 4, "--dump", f"{threads}.safetensors", "--threads", threads)
            dumps.append((self.folder / f"{threads}.safetensors").read_bytes())
        self.assertEqual(dumps[0], dumps[1])

    def test_a_device_dump_passes_diff(self):
        trace = SAMPLES / "pocket-gqa.safetensors"
        self.passes("replay", trace, "--policy", "snapkv+critical", "--budget", "10%", "--backend", "emulated",
                    "--layers", "2", "--steps", 6, "--dump", "dump.safetensors")
        self.passes("diff", trace, "dump.safetensors")

    def test_pages_change_no_bit(self):
        trace = SAMPLES / "pocket-gqa.safetensors"
        for backend in self.devices:
            for policy in ("snapkv+critical", "h2o+obcache-joint", "tova+adakv"):
                dumps = []
                for pages in ((), ("--page-size", 64), ("--page-size", 128)):
                    self.passes("replay", trace, "--policy", policy, "--budget", "20%", "--backend", backend, "--layers", "0-1",
                                "--steps", 4, "--dump", "dump.safetensors", *pages)
                    dumps.append((self.folder / "dump.safetensors").read_bytes())
                    (self.folder / "dump.safetensors").unlink()
                self.assertEqual(dumps, dumps[:1] * 3, policy)

    def test_pages_that_no_cache_has_are_refused(self):
        trace = TraceFile(window_queries=8).write(self.folder / "trace.safetensors")
        policy = "replay", trace, "--budget", "12", "--policy"
        device = "--backend", "emulated", "--page-size"
        self.refuses(USAGE, "--page-size: 96 is not a power of two", *policy, "snapkv:window=8", *device, 96)
        self.refuses(USAGE, "--page-size '63': expected an integer from 64 to 65536", *policy, "snapkv:window=8", *device, 63)
        self.refuses(USAGE, "--page-size: the reference has no pages; name a device in --backend", *policy, "snapkv:window=8",
                     "--page-size", 64)
        self.refuses(USAGE, "policy 'snapkv:window=8.keepkv' at budget 12: a cache whose entries merge is not stored in pages",
                     *policy, "snapkv:window=8+keepkv", *device, 64)

    def test_times_name_the_operations_of_every_backend(self):
        trace = self.replay(SAMPLES / "pocket-gqa.safetensors", "--policy", "snapkv+critical", "--budget", "5%",
                            "--layers", "0", "--steps", 2, "--times")
        backends = list(dict.fromkeys(entry["backend"] for entry in trace["times"]))
        self.assertEqual(backends, ["reference", *self.devices])
        for backend in backends:
            operations = [entry for entry in trace["times"] if entry["backend"] == backend]
            self.assertLessEqual(OPERATIONS, {entry["operation"] for entry in operations})
            self.assertTrue(all(entry["seconds"] >= 0 and entry["calls"] > 0 for entry in operations))

    def test_devices_are_not_waited_for_after_every_operation_unless_times_are_wanted(self):
        trace = self.replay(SAMPLES / "pocket-gqa.safetensors", "--policy", "snapkv", "--budget", "5%", "--layers", "0",
                            "--steps", 2)
        self.assertEqual({entry["backend"] for entry in trace["times"]}, {"reference"})

    def test_one_backend_alone_is_compared_with_nothing(self):
        trace = self.replay(SAMPLES / "pocket-gqa.safetensors", "--policy", "snapkv", "--budget", "5%", "--layers", "0",
                            "--steps", 1, backends="emulated")
        self.assertIsNone(trace["runs"][0]["agreement"])

    def test_unknown_backends_are_refused(self):
        trace = TraceFile(window_queries=8).write(self.folder / "trace.safetensors")
        self.refuses(USAGE, "known backends: reference, emulated, cuda", "replay", trace, "--policy", "snapkv:window=8",
                     "--budget", "12", "--backend", "gpu")

    def test_numbers_that_overflow_single_precision_are_named(self):
        trace = TraceFile(dtype="F32", prompt_tokens=40, window_queries=32)
        dtype, numbers = trace.tensors["layers.0.key"]
        trace.tensors["layers.0.key"] = dtype, np.full_like(numbers, 3e38)
        self.refuses(kvbound_cli.INVALID, r"layers\.0: .*single precision", "replay",
                     trace.write(self.folder / "huge.safetensors"), "--policy", "snapkv", "--budget", "36", "--backend",
                     "emulated")

    def test_without_a_device_cuda_is_inconclusive(self):
        trace = TraceFile(window_queries=8).write(self.folder / "trace.safetensors")
        options = "replay", trace, "--policy", "snapkv:window=8", "--budget", "12", "--backend", "cuda"
        if "cuda" in self.devices:
            self.passes(*options)
        else:
            self.refuses(INCONCLUSIVE, "no CUDA device: ", *options)


if __name__ == "__main__":
    kvbound_cli.main()
