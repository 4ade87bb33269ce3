"""ThreadSanitizer finds no race in any command that writes, with several threads and processes; and does find races.

usage: races_test.py KVBOUND RACY      the programs' paths, built by the preset tsan
"""
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

from faults.commands import COMMANDS, begin, write_inputs
from support import kvbound_cli
from support.kernel_files import decode, topk
from support.kvbound_cli import INCONCLUSIVE, PASS, CommandLineTest
from support.tiny_model import TinyModel

racy = None
REPORTED = 66
NO_RANDOM_ADDRESSES = 0x0040000  # personality(2)
# OpenBLAS and other libraries are not instrumented. LLVM's OpenMP runtime loads libarcher.so, which tells
# ThreadSanitizer what synchronises, and says so on standard output if it is told to be verbose. Threads that
# wait are awake, so that all take part in short loops, too.
ENVIRONMENT = {"TSAN_OPTIONS": f"ignore_noninstrumented_modules=1:exitcode={REPORTED}", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "active",
               "ARCHER_OPTIONS": "verbose=1"}
UNDERSTOOD = "Archer detected OpenMP application with TSan"
REPORT = "WARNING: ThreadSanitizer"

# Enough pieces of work for each loop that all threads take some.
LARGE = ("--kind", "mixed", "--tokens", "150", "--decode", "2", "--layers", "2", "--query-heads", "16", "--kv-heads", "8", "--head-dim", "16",
         "--model-dim", "32", "--window-queries", "16")
POLICIES = ",".join(f"snapkv:window=8{more}" for more in ("", "+critical+adakv", "+theta-sweep", "+obcache-joint", "+exact", "+keepkv", "+d2o",
                                                          "+cam", "+kvmerger", "+convex")) + ",h2o:window=8+keepkv:period=2,tova"
RUNS = "--policy", POLICIES, "--budget", "20%"
EMULATED = "--policy", "snapkv:window=8+critical+adakv,h2o:window=8+keepkv:period=2", "--budget", "20%", "--backend", "emulated"
ON_LARGE_INPUTS = (("replay", "large.safetensors", *RUNS, "--merge-bounds"), ("replay", "large.safetensors", *EMULATED),
                   ("sweep", "plan.json", "--out", "study", "--jobs", "2", "--threads", "2"),
                   ("evaluate", "model", "tasks.jsonl", *RUNS), ("evaluate", "model", "tasks.jsonl", *EMULATED),
                   ("record", "model", "--tokens", "tokens", "--steps", "4", "recorded.safetensors"), ("inspect", "recorded.safetensors", "--verify"),
                   ("predict", "large.safetensors", "--policy", "snapkv:window=8", "--budget", "20%"), ("recall", "large.safetensors"),
                   ("replay", "large.safetensors", "--policy", "snapkv:window=8", "--budget", "20%", "--backend", "emulated", "--dump", "dump"),
                   ("diff", "large.safetensors", "dump"), ("check", "attention", "attention"), ("check", "topk", "topk"),
                   ("prove", "ckv-3.3", "--cases", "200"))


class Races(CommandLineTest):
    @classmethod
    def setUpClass(cls):
        os.environ.update(ENVIRONMENT)
        # which programs inherit: with 32 random bits this ThreadSanitizer ends at once
        ctypes.CDLL(None).personality(NO_RANDOM_ADDRESSES)

    def require_none(self, *arguments, codes, **options):
        result = self.run_program(*arguments, **options)
        self.assertNotIn(REPORT, result.stderr)
        self.assertIn(result.returncode, codes, result.stderr)
        self.assertIn(UNDERSTOOD, result.stdout)

    def write_large_inputs(self):
        self.passes("generate", *LARGE, "large.safetensors")
        plan = {"format": "kvbound-sweep-plan", "version": 1, "traces": ["large.safetensors"], "policies": POLICIES.split(",")[:3],
                "budgets": ["20%", "30"], "policies_per_item": 1}
        (self.folder / "plan.json").write_text(json.dumps(plan), "utf-8")
        TinyModel(model_dim=64, heads=8, kv_heads=4).write_folder(self.folder / "model")
        tokens = [(7 * i) % 64 for i in range(60)]
        (self.folder / "tokens").write_text(" ".join(map(str, tokens)), "utf-8")
        tasks = [{"id": str(i), "prompt": tokens[i:] + tokens[:i], "answer": tokens[:3]} for i in range(2)]
        (self.folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), "utf-8")
        decode(batch=8, tokens=200, query_heads=8, kv_heads=4).write(self.folder / "attention")
        topk(64, 500, 20).write(self.folder / "topk")

    def test_in_every_command(self):
        write_inputs(self)
        self.assertGreater(len(COMMANDS), 10)
        for command in COMMANDS:
            with self.subTest(command.name):
                begin(command, self.folder / "inputs", self.folder / "own", None)
                self.require_none(*command.arguments, codes=command.codes, cwd=self.folder / "own")

    def test_on_many_threads(self):
        self.write_large_inputs()
        for arguments in ON_LARGE_INPUTS:
            with self.subTest(" ".join(arguments)):
                self.require_none(*arguments, codes=(PASS, INCONCLUSIVE))

    def test_are_found_where_they_are(self):
        for variant, code in (("sum", 0), ("race", REPORTED)):
            result = subprocess.run([racy, variant], capture_output=True, text=True)
            self.assertEqual((result.returncode, REPORT in result.stderr), (code, code != 0), result.stderr)
            self.assertIn(UNDERSTOOD, result.stdout)


if __name__ == "__main__":
    racy = Path(sys.argv.pop(2)).resolve(strict=True)
    kvbound_cli.main()
