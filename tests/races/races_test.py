"""ThreadSanitizer finds no race in any command that writes, with several threads and processes; and does find races.

usage: races_test.py KVBOUND RACY      the programs' paths, built by the preset tsan
"""
import os
import subprocess
import sys
from pathlib import Path

from faults.commands import COMMANDS, POLICY, begin, write_inputs
from support import kvbound_cli
from support.kvbound_cli import CommandLineTest

racy = None
REPORTED = 66
THREADS = 4
# OpenBLAS and other libraries are not instrumented. LLVM's OpenMP runtime loads libarcher.so, which tells ThreadSanitizer what
# synchronises, and says so if it is told to be verbose.
ENVIRONMENT = {"TSAN_OPTIONS": f"ignore_noninstrumented_modules=1:exitcode={REPORTED}", "OMP_NUM_THREADS": str(THREADS), "ARCHER_OPTIONS": "verbose=1"}
UNDERSTOOD = "Archer detected OpenMP application with TSan"
REPORT = "WARNING: ThreadSanitizer"
ON_DEVICES = (("replay", "../inputs/trace.safetensors", "--policy", f"{POLICY},{POLICY}+critical,{POLICY}+keepkv,h2o:window=4", "--budget", "8",
               "--backend", "reference,emulated"),
              ("evaluate", "../inputs/model", "../inputs/tasks.jsonl", "--policy", f"{POLICY},{POLICY}+critical", "--budget", "8", "--backend", "emulated"),
              ("inspect", "../inputs/trace.safetensors", "--verify"))


class Races(CommandLineTest):
    @classmethod
    def setUpClass(cls):
        os.environ.update(ENVIRONMENT)

    def require_none(self, *arguments, codes=(0,), **options):
        result = self.run_program(*arguments, **options)
        self.assertNotIn(REPORT, result.stderr)
        self.assertIn(result.returncode, codes, result.stderr)
        self.assertIn(UNDERSTOOD, result.stderr)

    def test_in_every_command(self):
        write_inputs(self)
        self.assertGreater(len(COMMANDS), 10)
        for command in COMMANDS:
            with self.subTest(command.name):
                folder = self.folder / "own"
                begin(command, self.folder / "inputs", folder, None)
                jobs = ("--jobs", "2", "--threads", "2") if command.arguments[0] == "sweep" else ()
                self.require_none(*command.arguments, *jobs, codes=command.codes, cwd=folder)
        for arguments in ON_DEVICES:
            with self.subTest(" ".join(arguments)):
                self.require_none(*arguments, cwd=folder)

    def test_are_found_where_they_are(self):
        for variant, code in (("sum", 0), ("race", REPORTED)):
            result = subprocess.run([racy, variant], capture_output=True, text=True)
            self.assertEqual((result.returncode, REPORT in result.stderr), (code, code != 0), result.stderr)
            self.assertIn(UNDERSTOOD, result.stderr)


if __name__ == "__main__":
    racy = Path(sys.argv.pop(2)).resolve(strict=True)
    kvbound_cli.main(__doc__)
