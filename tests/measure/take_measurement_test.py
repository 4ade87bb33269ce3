"""cuda/measure.sh take: what it writes of a run's results, and what it refuses.

usage: take_measurement_test.py KVBOUND      KVBOUND: the program's path
"""
import copy
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support.peer_file import PEER
from support.report_documents import BENCH_MODEL

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "cuda" / "scripts"))
import take_measurement  # noqa: E402


def run(*arguments):
    return subprocess.run(["bash", ROOT / "cuda" / "measure.sh", "take", *map(str, arguments)], capture_output=True, text=True,
                          check=False)


class Take(unittest.TestCase):
    """What a run on an H200 would leave that measured the same as the last ones."""
    FILE = Path("sim/roofline/h200.json")

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            def bench(*arguments):
                subprocess.run([PROGRAM, "bench", "compact", *arguments, "--backend", "emulated", "--quiet", "--json",
                                f"{folder}/json"], check=True, stdout=subprocess.DEVNULL)
                return json.loads(Path(folder, "json").read_text("utf-8"))
            cls.document = bench("--repeats", "1")
        cls.model = json.loads(BENCH_MODEL.read_text("utf-8"))
        cls.model["parts"][0]["facts"]["gpu"] = "NVIDIA H200 SXM"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out, self.root = self.folder / "results", self.folder / "checkout"
        for path in (*(ROOT / "sim/roofline").glob("*.json"), ROOT / "cuda/README.md"):
            (self.root / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, self.root / path.relative_to(ROOT))
        self.measured = json.loads((self.root / self.FILE).read_text("utf-8"))["measured"]
        self.run, self.predicted = copy.deepcopy(self.document), copy.deepcopy(self.model)
        self.facts = self.run["parts"][0]["facts"]
        shape = {**self.facts["shape"], "name": "llama-3.1-8b", "tokens": 32768}
        gpu = {**self.facts["accelerator"], "name": "NVIDIA H200", "multiprocessors": 132, "driver": "580.159.04"}
        self.facts |= {"backend": "cuda", "shape": shape, "accelerator": gpu}
        self.run["provenance"]["revision"] = "0123456789ab"
        self.put(self.run, "operations", [self.operation(one) for one in self.measured])
        self.predicted["parts"][0]["facts"]["shape"] = shape
        self.put(self.predicted, "operations", [{**self.named(one), "predicted_seconds": one["predicted"]} for one in self.measured])
        self.torch = {**PEER, "operations": [
            {"operation": one["operation"].rsplit(", ", 1)[0], "policy": None, "calls": 1, "bytes": 1, "seconds": [one["torch"]]}
            for one in self.measured if "torch" in one]}
        self.text = "measure.sh A, --backend cuda, 2026-12-01: facts\nparity     passed     40 s  848 tests\n"

    @staticmethod
    def named(one):
        return {"operation": one["operation"].rsplit(", ", 1)[0], "policy": None}

    def operation(self, one):
        *goal, bound = one.get("goal", "at_least nan").split(" ")
        return {**self.named(one), "unit": "FLOP", "work": 1, "seconds": one["seconds"], "ratio": one["ratio"], "ratio_of": one["of"],
                "at_least": None, "at_most": None, "_".join(goal): float(bound) if "goal" in one else None,
                "verdict": {True: "met", False: "missed by the median", None: None}[one.get("met")]}

    @staticmethod
    def put(document, cube, rows):
        """Puts these rows into a document as a cube of one axis."""
        part, keys = document["parts"][0], ("operation", "policy", "timed")
        columns = {name: [row.get(name) for row in rows] for name in rows[0]}
        part["axes"][cube] = {name: values for name, values in columns.items() if name in keys}
        part["cubes"][cube] = {"axes": [cube], "columns": {name: values for name, values in columns.items() if name not in keys}}

    def take(self, lines=None):
        self.out.mkdir(exist_ok=True)
        for name, text in (("summary.txt", self.text), ("torch.json", json.dumps(self.torch)),
                           ("bench.jsonl", json.dumps(self.run) + "\n" if lines is None else lines)):
            (self.out / name).write_text(text, "utf-8")
        model = self.folder / "model.json"
        model.write_text(json.dumps(self.predicted), "utf-8")
        return run(self.out, "--model", model, "--into", self.root)

    def test_the_same_times_change_their_day_and_revision_alone(self):
        before = self.texts()
        done = self.take()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertEqual(self.texts().keys(), before.keys())
        self.assertRegex(done.stdout, r"h200.json: \d+ operations; goals: \d+ met, \d+ missed\n$")
        new = "2026-12-01, NVIDIA H200, driver 580.159.04, revision 0123456789ab"
        wanted = re.sub(r'"from": "[^"]*"', f'"from": "{new}"', before[self.root / self.FILE])
        wanted = re.sub(r'"last_run": .*', '"last_run": {"date": "2026-12-01", "revision": "0123456789ab"}', wanted)
        self.assertEqual((self.root / self.FILE).read_text("utf-8"), wanted)
        self.assertEqual((self.root / "sim/roofline/h100.json").read_text("utf-8"), before[self.root / "sim/roofline/h100.json"])
        readme = (self.root / "cuda/README.md").read_text("utf-8")
        self.assertEqual(re.sub("2026-12-01, 0123456789ab", "", readme),
                         re.sub(r"2026-11-27, \w{12} \|", " |", before[self.root / "cuda/README.md"]))

    def test_steps_are_those_queued_together_and_stand_behind_what_was_there(self):
        step = {**self.operation(self.measured[0]), "operation": "step", "policy": "h2o", "unit": "steps", "work": 16, "seconds": 9.0}
        rows = [step, {**step, "operation": "pack", "policy": None}]
        self.put(self.run, "operations", rows)
        self.put(self.run, "against", [{**row, "timed": "queued together", "seconds": 8e-4} for row in rows])
        self.put(self.predicted, "operations", [{"operation": "step", "policy": "h2o", "predicted_seconds": 2e-5}])
        done = self.take()
        self.assertIn("not predicted: pack: 50 µs\n", done.stdout)
        measured = json.loads((self.root / self.FILE).read_text("utf-8"))["measured"]
        self.assertEqual(measured[:-1], self.measured)
        self.assertEqual((measured[-1]["operation"], measured[-1]["seconds"]), ("step, h2o, llama-3.1-8b:32768", 5e-5))

    def test_the_readme_has_what_the_files_of_gpus_have(self):
        self.assertIn(f"{take_measurement.BEGIN}{take_measurement.table()}{take_measurement.END}",
                      (ROOT / "cuda/README.md").read_text("utf-8"))

    def texts(self):
        return {path: path.read_text("utf-8") for path in self.root.rglob("*") if path.is_file()}

    def refuses(self, pattern, lines=None):
        before = self.texts()
        done = self.take(lines)
        self.assertEqual((done.returncode, done.stdout), (4, ""))
        self.assertRegex(done.stderr, rf"\Atake: .*{pattern}.*\n\Z")
        self.assertEqual(self.texts(), before)

    def test_of_two_files_one_alone_is_never_changed(self):
        good = copy.deepcopy(self.run)
        self.facts["accelerator"]["driver"] = "580.159, or later"
        self.refuses("attention, llama-3.1-8b:32768: from: expected day, GPU, driver and revision, not 2026-12-01, NVIDIA H200, ")
        self.run = copy.deepcopy(good)
        self.run["parts"][0]["cubes"]["operations"]["columns"]["seconds"][0] = "soon"
        self.refuses("results: has a value that cannot be taken: ")
        self.run = good
        (self.root / "cuda/README.md.new").mkdir()  # where the text is written first
        self.refuses("README.md.new")

    def test_results_that_say_nothing_are_refused(self):
        good, part = self.run, self.run["parts"][0]

        def refuses(pattern, **facts):
            self.run = {**good, "parts": [{**part, "facts": self.facts | facts}]}
            self.refuses(pattern)

        refuses("bench.jsonl: backend: expected cuda", backend="emulated")
        refuses("bench.jsonl: backend: expected cuda", accelerator=None)
        refuses("bench.jsonl: of another shape than .*model.json", shape={})
        for name, chips in (("NVIDIA B200", 132), ("NVIDIA H200 NVL", 114), ("NVIDIA GH200 480GB", 132)):
            refuses(rf"{name}, {chips} multiprocessors: no file of it in sim/roofline: h100.json, h200.json",
                    accelerator={**self.facts["accelerator"], "name": name, "multiprocessors": chips})
        for change in ({"schema": "3"}, {"command": "bench-model"}):
            self.run = good | change
            self.refuses("bench.jsonl: schema: expected kvbound-2, of the command bench")
        self.run, text = good, self.text
        for text, pattern in ((text.replace("cuda", "emulated"), "summary.txt: of --backend emulated, whose times say nothing"),
                              (text.replace("cuda,", "cuda, --tiny,"), "summary.txt: of --backend cuda with --tiny"),
                              (text.replace("passed ", "failed "), "summary.txt: parity has not passed"),
                              (text.replace(" A,", " B,"), "summary.txt: not what cuda/measure.sh A writes")):
            self.text = text
            self.refuses(pattern)

    def test_torn_and_missing_files_are_refused(self):
        line = json.dumps(self.run)
        self.refuses("bench.jsonl: is torn: ", line[:len(line) // 2])
        self.refuses("bench.jsonl: is empty", "")
        self.refuses("bench.jsonl: of different devices, revisions or shapes",
                     f"{line}\n{line.replace('0123456789ab', 'another')}\n")
        for options, name in ((["--model", "gone.json"], "gone.json"), ([], "h200.json")):
            self.take()
            done = run(self.out, *options, "--into", self.root)
            self.assertRegex(done.stderr, rf"\Atake: .*{name}: No such file or directory\n\Z")
        (self.out / "summary.txt").unlink()
        done = run(self.out, "--into", self.root)
        self.assertEqual((done.returncode, done.stderr), (4, f"take: {self.out}/summary.txt: No such file or directory\n"))
        (self.root / "cuda/README.md").write_text("no table\n", "utf-8")
        self.refuses("cuda/README.md: has no place for the table")


if __name__ == "__main__":
    PROGRAM = Path(sys.argv.pop(1)).resolve(strict=True)
    unittest.main()
