"""The program that judges and times other libraries' kernels, with stand-ins for them that compute what is asked for, or not.

usage: peers_test.py PEERS KVBOUND      PEERS: the path of kvbound_peers_emulated; KVBOUND: that of kvbound
"""
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import jsonschema
from support import kvbound_cli
from support.documents import parts, read
from support.kvbound_cli import MISMATCH, PASS, USAGE, WORLD, CommandLineTest

SCHEMA = json.loads((kvbound_cli.REPOSITORY / "sim/schemas/bench_peer.schema.json").read_text("utf-8"))
OPERATIONS = ["attention", "attention-compressed", "select-top", "rank-top"]


class PeersTest(CommandLineTest):
    def bench(self, *arguments, code=PASS):
        """What is printed, of the shape pocket, whose judged calls and times are files of the test's folder."""
        return self.passes("bench", *arguments, "--shape", "pocket", "--repeats", "2", "--judge", KVBOUND, "--calls", ".", "--json", "peer.json", code=code)

    def kvbound(self, *arguments):
        return subprocess.run([KVBOUND, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)


class Times(PeersTest):
    def test_are_what_bench_shows_beside_its_own(self):
        out = self.bench("processor")
        self.assertEqual(re.findall(r"^(\S+) of processor: \S+ .s \(.*\)$", out, re.MULTILINE), OPERATIONS)
        document = json.loads((self.folder / "peer.json").read_text("utf-8"))
        jsonschema.validate(document, SCHEMA)
        self.assertEqual((document["name"], document["version"], document["storage"]), ("processor", "1", "BF16"))
        self.assertEqual([(one["operation"], len(one["seconds"])) for one in document["operations"]], [(name, 2) for name in OPERATIONS])
        done = self.kvbound("bench", "rank-top", "--backend", "emulated", "--shape", "pocket", "--repeats", "1", "--peer", "peer.json",
                            "--json", "bench.json", "--quiet")
        self.assertEqual(done.returncode, PASS, done.stderr)
        self.assertRegex(done.stdout, r"-> processor takes \S+ \(\S+\) times as long\n")
        row, = parts(read(self.folder / "bench.json"))[0].rows("operations")
        self.assertEqual(row["peer_seconds"], median(document["operations"][3]["seconds"]))

    def test_are_of_the_operations_that_are_named(self):
        self.bench("processor", "rank-top", "attention-compressed")
        document = json.loads((self.folder / "peer.json").read_text("utf-8"))
        self.assertEqual([one["operation"] for one in document["operations"]], ["rank-top", "attention-compressed"])

    def test_are_of_random_numbers_by_their_seed(self):
        calls = []
        for seed in ("1", "1", "2"):
            self.bench("processor", "rank-top", "--seed", seed)
            calls.append((self.folder / "rank-top.safetensors").read_bytes())
        self.assertEqual((calls[0] == calls[1], calls[0] == calls[2]), (True, False))


class WrongResults(PeersTest):
    def test_have_no_times(self):
        done = self.run_program("bench", "faulty", "--shape", "pocket", "--repeats", "1", "--judge", KVBOUND, "--calls", ".", "--json", "peer.json")
        self.assertEqual(done.returncode, MISMATCH, done.stderr)
        self.assertEqual(re.findall(r"^error: (\S+) of faulty is wrong, so it is not timed$", done.stdout, re.MULTILINE), OPERATIONS[:3])
        self.assertEqual(re.findall(r"^(\S+) of faulty: ", done.stdout, re.MULTILINE), OPERATIONS[3:])
        document = json.loads((self.folder / "peer.json").read_text("utf-8"))
        self.assertEqual([one["operation"] for one in document["operations"]], OPERATIONS[3:])
        self.assertIn("the last entry is missing", done.stderr)

    def test_alone_leave_no_file_of_times(self):
        (self.folder / "peer.json").write_text("{}", "utf-8")
        self.bench("faulty", "select-top", code=MISMATCH)
        self.assertFalse((self.folder / "peer.json").exists(), "an older one's times are not of this run")

    def test_may_be_judged_again(self):
        for library, code in (("processor", PASS), ("faulty", MISMATCH)):
            self.bench(library, "attention", "select-top", code=code)
            for operation, file in (("attention", "attention.safetensors"), ("topk", "select-top.safetensors")):
                self.assertEqual(self.kvbound("check", operation, file, "--quiet").returncode, code)

    def test_and_those_that_cannot_be_judged_have_none(self):
        for judge in ("missing", "/bin/ls"):
            done = self.run_program("bench", "processor", "rank-top", "--shape", "pocket", "--judge", judge, "--calls", ".", "--json", "peer.json")
            self.assertEqual(done.returncode, WORLD, done.stderr)
            self.assertIn(f"kvbound: {judge} could not judge ./rank-top.safetensors: exit code ", done.stderr)
            self.assertFalse((self.folder / "peer.json").exists())


class Refusals(PeersTest):
    def test_name_what_is_wrong(self):
        files = "--judge", KVBOUND, "--calls", ".", "--json", "peer.json"
        for pattern, *arguments in (("no library 'cup'; known: processor, faulty", "cup", *files),
                                    ("LIBRARY", *files),
                                    ("processor has no operation 'step'; known: attention, ", "processor", "step", *files),
                                    ("--shape 'pocked': known shapes: llama", "processor", "--shape", "pocked", *files),
                                    ("--shape llama-3.1-8b has head_dim 128; faulty is compiled for 64", "faulty", *files),
                                    ("--repeats '0': expected", "processor", "--repeats", "0", *files),
                                    ("--calls", "processor", "--judge", KVBOUND, "--json", "peer.json"),
                                    ("--json", "processor", "--judge", KVBOUND, "--calls", "."),
                                    ("--judge", "processor", "--calls", ".", "--json", "peer.json")):
            with self.subTest(pattern):
                self.refuses(USAGE, pattern, "bench", *arguments)
        self.refuses(WORLD, "missing/rank-top.safetensors", "bench", "processor", "rank-top", "--shape", "pocket", "--judge", KVBOUND,
                     "--calls", "missing", "--json", "peer.json")
        self.assertFalse((self.folder / "peer.json").exists())


if __name__ == "__main__":
    KVBOUND = Path(sys.argv.pop(2)).resolve(strict=True)
    kvbound_cli.main()
