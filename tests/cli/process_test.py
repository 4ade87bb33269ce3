"""The program as a process: standard streams.

usage: process_test.py KVBOUND      KVBOUND: the program's path
"""
import json

from support import kvbound_cli
from support.kvbound_cli import PASS, CommandLineTest, TraceFile


class Process(CommandLineTest):
    def test_nothing_is_printed_among_what_is_written_to_standard_output(self):
        TraceFile().write(self.folder / "trace.safetensors")
        runs = "trace.safetensors", "--policy", "snapkv:window=4", "--budget", "8"
        self.passes("replay", *runs, "--dump", "kernel.safetensors")
        for arguments in (("inspect", "trace.safetensors"), ("diff", "trace.safetensors", "kernel.safetensors"),
                          ("predict", *runs[:3]), ("recall", "trace.safetensors", "--k", "8", "--recent", "4"), ("prove", "ckv-3.2", "--cases", "30"),
                          ("bench", "selection", "--shape", "pocket:256", "--repeats", "1")):
            with self.subTest(arguments[0]):
                result = self.run_program(*arguments, "--json", "-")
                self.assertEqual(result.returncode, PASS, result.stderr)
                self.assertTrue(json.loads(result.stdout))
        result = self.run_program("replay", *runs, "--csv", "-", "--quiet")
        self.assertTrue(all(line.count(",") == result.stdout.splitlines()[0].count(",") for line in result.stdout.splitlines()))


if __name__ == "__main__":
    kvbound_cli.main()
