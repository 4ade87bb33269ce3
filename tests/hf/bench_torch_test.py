"""sim/bench/peers/bench_torch.py: PyTorch computes what kvbound's reference computes, and its times are what
`kvbound bench --peer` reads.

usage: bench_torch_test.py KVBOUND      KVBOUND: the program's path. Needs traces/scripts/requirements.txt.
"""
import contextlib
import importlib.util
import io
import json
import os
import resource
import subprocess
import sys
import unittest.mock

import torch
from support import kvbound_cli
from support.documents import parts, read
from support.kvbound_cli import INCONCLUSIVE, INVALID, MISMATCH, PASS, SAMPLES, USAGE, WORLD, CommandLineTest

PEERS = kvbound_cli.REPOSITORY / "sim" / "bench" / "peers"
SCHEMA = kvbound_cli.REPOSITORY / "sim" / "schemas" / "bench_peer.schema.json"
sys.path.insert(0, str(PEERS))
import bench_torch  # noqa: E402
import torch_operations  # noqa: E402
import torch_work  # noqa: E402

SMALL = "--shape", "pocket:256", "--threads", "2", "--rounds", "3", "--quiet"


def script(*arguments):
    """Runs bench_torch.py in this process; returns its exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), \
            unittest.mock.patch.object(sys, "argv", ["bench_torch.py", *map(str, arguments)]):
        try:
            bench_torch.main()
            code = PASS
        except SystemExit as error:
            code = error.code
    return code, out.getvalue(), err.getvalue()


class BenchTorchTest(CommandLineTest):
    def runs(self, *arguments):
        code, out, err = script(*arguments)
        self.assertEqual((code, err), (PASS, ""))
        return out

    def refused(self, code, pattern, *arguments):
        found, _, err = script(*arguments)
        self.assertEqual(found, code, err)
        self.assertRegex(err, rf"\Abench_torch: [^\n]*{pattern}[^\n]*\n\Z")

    def results(self, *arguments):
        """The file that a run writes."""
        self.runs(*SMALL, *arguments, "--json", self.folder / "torch.json")
        return json.loads((self.folder / "torch.json").read_text("utf-8"))


class Results(BenchTorchTest):
    """Of the same operations: judged by diff, whose bounds are derived."""

    def verdict(self, trace, policy, *arguments, code=PASS):
        dump = self.folder / "dump.safetensors"
        self.runs("--replay", trace, dump, "--policy", policy, *arguments)
        return self.passes("diff", trace, dump, code=code)

    def test_agree_with_the_reference_by_every_policy(self):
        generated = self.generate("generated.safetensors", "--kind", "power-law", "--tokens", "300",
                                  "--decode", "5", "--layers", "2", "--query-heads", "12", "--kv-heads", "3",
                                  "--head-dim", "16", "--model-dim", "48", "--window-queries", "40",
                                  "--dtype", "F64")
        tensors = {"snapkv": {"kept", "score", "output"},
                   "snapkv+critical": {"stage_two_score", "projected_value_norms"},
                   "snapkv+keepkv": {"votes", "merged_key", "merged_value"},
                   "h2o": {"evicted"}, "h2o:sinks=4": {"evicted"}}
        self.assertEqual(tensors.keys(), torch_operations.POLICIES.keys())
        for trace in (SAMPLES / "pocket-gqa.safetensors", SAMPLES / "pocket-mha.safetensors", generated):
            for policy, names in tensors.items():
                for dtype in ("fp64", "fp32"):
                    with self.subTest(f"{trace.name} {policy} {dtype}"):
                        report = self.verdict(trace, policy, "--dtype", dtype, "--budget", "25%")
                        for name in names:
                            self.assertRegex(report, rf"\n{name} +agrees ")

    def test_of_other_operations_do_not(self):
        trace = SAMPLES / "pocket-gqa.safetensors"
        for policy, name, value in (("snapkv", "max_pool", lambda scores, width: scores),
                                    ("snapkv+critical", "EPSILON", 1e-2), ("snapkv+critical", "ALPHA", 0.25),
                                    ("snapkv+keepkv", "THRESHOLD", 0.9), ("snapkv+keepkv", "EMA", 0.5),
                                    ("snapkv+keepkv", "RANK", 0.9)):
            with self.subTest(f"{policy} {name}"), unittest.mock.patch.object(torch_operations, name, value):
                self.verdict(trace, policy, code=MISMATCH)

    def test_need_a_trace_that_does(self):
        dump = self.folder / "dump"
        (self.folder / "empty").touch()
        self.refused(INVALID, "is no safetensors file", "--replay", self.folder / "empty", dump, "--policy", "snapkv")
        self.refused(WORLD, "No such file", "--replay", self.folder / "missing", dump, "--policy", "snapkv")
        for budget, entries in (("1%", 19), ("32", 32), ("1985", 1985)):
            self.refused(INVALID, f"--budget {budget}: {entries} entries; expected 33 to 1984", "--replay",
                         SAMPLES / "pocket-gqa.safetensors", dump, "--policy", "snapkv", "--budget", budget)
        self.refused(USAGE, "--replay needs one --policy", "--replay", "a", "b")
        short = self.generate("short", "--kind", "flat", "--tokens", "64", "--window-queries", "8",
                              "--layers", "1", "--query-heads", "2", "--kv-heads", "1", "--head-dim", "8",
                              "--model-dim", "16")
        self.refused(INVALID, "records 8 prompt queries; h2o needs 32", "--replay", short, dump, "--policy",
                     "h2o")
        self.assertFalse(dump.exists())


class Times(BenchTorchTest):
    def test_are_a_peer_of_the_reference_and_of_devices(self):
        for of, backend in (("reference", "reference"), ("device", "emulated")):
            document = self.results("--of", of, "--dtype", "fp32")
            policies = "snapkv,snapkv+critical,snapkv+keepkv,h2o"
            names = list(dict.fromkeys(item["operation"] for item in document["operations"]))
            self.assertEqual(names, list(torch_work.OPERATIONS[of]))
            self.passes("bench", *names, "--backend", backend, "--shape", "pocket:256", "--repeats", "1",
                        "--threads", "2", "--policy", policies, "--peer", "torch.json", "--json", "out.json")
            ours, = parts(read(self.folder / "out.json"))
            self.assertEqual([row["operation"] for row in ours.rows("operations") if row["peer_seconds"] is None], [])
            self.assertEqual(ours.facts["peer"]["not_measured"], [])
            self.assertEqual((ours.facts["peer"]["version"], ours.facts["peer"]["storage"]), (torch.__version__, "F32"))

    def test_are_written_as_the_schema_describes(self):
        def described(node, value, path):
            self.assertEqual(node.keys() - {"name"}, value.keys() - {"name"}, path)

        document = self.results("selection", "compress")
        schema = json.loads(SCHEMA.read_text("utf-8"))["properties"]
        described(schema, document, "")
        described(schema["shape"]["properties"], document["shape"], "shape")
        for item in document["operations"]:
            described(schema["operations"]["items"]["properties"], item, "operations")
            self.assertEqual(len(item["seconds"]), 3)
        self.assertEqual((document["schema"], document["storage"], document["threads"], document["device"]),
                         (schema["schema"]["const"], "F64", 2, "cpu"))

    def test_are_of_the_work_that_bench_does(self):
        document = self.results("--of", "device", "--dtype", "bf16", "compact", "attention", "step",
                                "--policy", "h2o")
        attention, compact, step = document["operations"]
        budget, row = 256 // 5, 2 * 64 * 2  # entries; bytes of all KV heads' keys or values at a position
        self.assertEqual(compact["bytes"], 2 * 256 * row + 2 * budget * row + 2 * budget * 8)
        self.assertEqual(attention["bytes"], 2 * 256 * row + 2 * 8 * 64 * 2)
        self.assertEqual(step["policy"], "h2o")
        setup = torch_work.Setup(torch, bench_torch.bench_shape("pocket:256"),
                                  unittest.mock.Mock(device="cpu", dtype="fp64", seed=1))
        numbers = setup.numbers(1000, 1000)
        self.assertAlmostEqual((numbers.abs() > 8).double().mean().item() * 1024, 0.6, delta=0.2)  # spikes
        steps = torch_work.steps(5)(torch_operations, setup, "h2o")
        with unittest.mock.patch.object(torch_operations, "step", wraps=torch_operations.step) as counted:
            steps.run(*steps.arguments)
        self.assertEqual((counted.call_count, steps.steps), (5, 5))

    def test_of_one_step_are_those_of_all_over_their_number(self):
        clock = unittest.mock.Mock(seconds=lambda call, calls: 8.0 * calls)
        with unittest.mock.patch.object(bench_torch, "Clock", lambda torch, device: clock):
            step, compress = (self.results(name)["operations"][0]["seconds"]
                              for name in ("step-attention", "compress"))
        self.assertEqual((step, compress), ([8.0 / torch_work.REFERENCE_STEPS] * 3, [8.0] * 3))

    def test_depend_on_nothing_but_the_numbers_of_the_seed(self):
        shape = bench_torch.bench_shape("pocket:256")
        options = (unittest.mock.Mock(device="cpu", dtype="fp32", seed=seed) for seed in (1, 1, 2))
        draws = [torch_work.Setup(torch, shape, each).numbers(9) for each in options]
        self.assertTrue(torch.equal(draws[0], draws[1]))
        self.assertFalse(torch.equal(draws[0], draws[2]))


class Options(BenchTorchTest):
    def test_that_are_unknown_are_refused(self):
        for pattern, *arguments in (
                ("no operation 'none' of the reference; known: projected-value-norms,.*step-", "none"),
                ("no operation 'compact' of the reference", "compact"),
                ("operation 'selection' is given twice", "selection", "selection"),
                ("no operation 'selection' of the device; known: attention,", "--of", "device", "selection"),
                ("--policy 'tova': known policies: snapkv, snapkv.critical,", "--policy", "snapkv,tova"),
                ("--policy: 'h2o' is given twice", "--policy", "h2o,h2o"),
                ("'pocket:255': known shapes: llama-3.1-8b:32768", "--shape", "pocket:255"),
                ("known shapes", "--shape", "pocket:"), ("known shapes", "--shape", "gpt-2"),
                ("--rounds", "--rounds", "0"), ("--threads", "--threads", "-1"), ("--seed", "--seed", "x"),
                ("--dtype", "--dtype", "int8"), ("--device", "--device", "tpu"),
                ("--budget", "--budget", "101%"), ("unrecognized", "--frobnicate")):
            with self.subTest(pattern=pattern):
                self.refused(USAGE, pattern, *arguments)

    def test_are_explained_without_torch(self):
        self.assertEqual(set(bench_torch.POLICY_NAMES), set(torch_operations.POLICIES))
        (self.folder / "torch.py").write_text("raise ImportError('none here')\n")
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        for arguments, code in ((["--help"], PASS), (["--list"], PASS), ([*SMALL], INCONCLUSIVE)):
            result = subprocess.run([sys.executable, PEERS / "bench_torch.py", *arguments], env=environment,
                                    text=True, capture_output=True)
            self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stderr,
                         "bench_torch: torch cannot be imported (none here); pip install torch\n")

    def test_that_the_machine_cannot_meet_are_one_line(self):
        if not torch.cuda.is_available():
            self.refused(INCONCLUSIVE, "finds no CUDA device", "--device", "cuda")
        output = self.folder / "missing" / "out.json"
        self.refused(WORLD, f"{output}: No such file or directory", *SMALL, "selection", "--json", output)
        limit = 8 << 30  # bytes of addresses: the layer fits, a product of all values with W^O does not

        def limited():
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        result = subprocess.run([
            sys.executable, PEERS / "bench_torch.py", "compress", "--policy", "snapkv+critical", "--shape",
            "qwen2.5-32b:131072", "--threads", "1", "--json", self.folder / "out.json"
        ], preexec_fn=limited, text=True, capture_output=True)
        self.assertEqual(result.returncode, WORLD, result.stderr)
        self.assertRegex(result.stderr,
                         r"\Abench_torch: not enough memory for qwen2.5-32b:131072 in fp64: [^\n]+\n\Z")
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    assert importlib.util.find_spec("safetensors")
    print(f"torch {torch.__version__}", flush=True)
    kvbound_cli.main()
