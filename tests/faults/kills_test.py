"""Sweeps and evaluations that are killed at drawn moments, and go on: they end with the results of one that was not disturbed.

usage: kills_test.py KVBOUND      KVBOUND: the program's path
KVBOUND_FAULTS=K/N in the environment: other moments for each K
"""
import json
import random
import signal
import time

from faults import commands
from faults.trial import MOST_SECONDS
from support import kvbound_cli
from support.documents import without_times_and_hosts
from support.kvbound_cli import PASS, CommandLineTest
from support.share import asked_for
from support.tiny_model import TinyModel

KILLS = 12  # of each program and signal, before it may end


class Kills(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.moments = random.Random(f"{asked_for('KVBOUND_FAULTS')}")

    def kill(self, number, seconds, *arguments):
        """Starts the program, and sends the signal at a moment before so many seconds; returns whether it was killed."""
        process = self.start(*arguments)
        time.sleep(self.moments.uniform(0, seconds))
        process.send_signal(number)
        _, stderr = process.communicate(timeout=MOST_SECONDS)
        self.assertIn(process.returncode, (PASS, -number), stderr)
        return process.returncode == -number

    def seconds_of(self, *arguments):
        begin = time.monotonic()
        self.passes(*arguments)
        return time.monotonic() - begin

    def hidden(self):
        """Temporary files and folders."""
        return [path.name for path in self.folder.rglob(".*")]

    def kill_often(self, number, seconds, *arguments):
        """Kills the program again and again; requires that some were killed, and that a signal that can be caught leaves nothing."""
        killed = 0
        for _ in range(KILLS):
            killed += self.kill(number, seconds, *arguments)
            if number == signal.SIGTERM:
                self.assertEqual(self.hidden(), [])
        self.assertGreater(killed, 0, "all ended before")

    def test_a_sweep_goes_on(self):
        for i, layers in enumerate((3, 2)):
            self.generate(f"{i}.safetensors", "--kind", "mixed", "--tokens", 256, "--decode", 2, "--layers", layers, "--query-heads", 4,
                          "--kv-heads", 2, "--head-dim", 16, "--model-dim", 32, "--seed", i)
        plan = {"format": "kvbound-sweep-plan", "version": 1, "traces": ["?.safetensors"], "budgets": ["10%", "40"],
                "policies": [commands.POLICY, f"{commands.POLICY}+critical", "h2o:window=4+keepkv"]}
        (self.folder / "plan.json").write_text(json.dumps(plan), "utf-8")
        outputs = "--json", "out.json", "--csv", "out.csv"
        seconds = self.seconds_of("sweep", "plan.json", "--out", "undisturbed", *outputs)
        expected = without_times_and_hosts(self.folder / "out.json"), (self.folder / "out.csv").read_bytes()
        for number in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(number.name):
                for name in ("out.json", "out.csv"):
                    (self.folder / name).unlink()
                study = number.name
                self.kill_often(number, seconds, "sweep", "plan.json", "--out", study, "--jobs", 2, *outputs)
                self.passes("sweep", "plan.json", "--out", study, "--jobs", 2, *outputs)
                self.assertEqual((without_times_and_hosts(self.folder / "out.json"), (self.folder / "out.csv").read_bytes()), expected)
                self.assertEqual(self.hidden(), [])
                self.passes("gather", study, "--quiet", "--csv", "out.csv")
                self.assertEqual((self.folder / "out.csv").read_bytes(), expected[1])

    def test_an_evaluation_goes_on(self):
        TinyModel(layers=4, model_dim=32).write_folder(self.folder / "model")
        tasks = [{"id": f"task {i}", "prompt": [(7 * i + j) % 64 for j in range(64)], "answer": [i, i + 1, i + 2]} for i in range(10)]
        (self.folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), "utf-8")
        arguments = "evaluate", "model", "tasks.jsonl", "--policy", f"{commands.POLICY},h2o:window=4+keepkv", "--budget", "8,50%", "--csv", "out.csv"
        seconds = self.seconds_of(*arguments, "--json", "out.json", "--resume", "undisturbed")
        expected = commands.content(self.folder / "out.json"), (self.folder / "out.csv").read_bytes()
        for number in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(number.name):
                for name in ("out.json", "out.csv"):
                    (self.folder / name).unlink()
                resumed = *arguments, "--json", "out.json", "--resume", number.name
                self.kill_often(number, seconds, *resumed)
                self.passes(*resumed)
                self.assertEqual((commands.content(self.folder / "out.json"), (self.folder / "out.csv").read_bytes()), expected)
                self.assertEqual(self.hidden(), [])


if __name__ == "__main__":
    kvbound_cli.main()
