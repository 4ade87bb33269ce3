"""sim/evaluate/study.py: a small study of pocket, whose tables are those of the documents that kvbound wrote.

usage: study_test.py KVBOUND      KVBOUND: the program's path
"""
import csv
import json
import subprocess
import sys

import numpy as np
from support import kvbound_cli
from support.documents import parts, read
from support.kvbound_cli import REPOSITORY, SAMPLES, CommandLineTest

STUDY = REPOSITORY / "sim" / "evaluate" / "study.py"
TASKS, LENGTH = 3, 400


def tables_of(text):
    """{title: (headings, {first cells: the others})} of Markdown."""
    found, blocks = {}, text.strip().split("\n\n")
    for title, table in zip(blocks[::2], blocks[1::2], strict=True):
        headings, _, *rows = ([cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.strip().splitlines())
        found[title.strip()] = headings, [dict(zip(headings, row, strict=True)) for row in rows]
    return found


class Study(CommandLineTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        prose = " ".join(f"The {word} was {other} and the other {other} {word} said so." for word in ("garden", "letter", "window", "morning", "castle")
                         for other in ("quiet", "golden", "broken", "distant", "yellow")) * 4
        cls.texts = {"prose.txt": prose, "code.txt": "\n".join(f"def f{i}(x):\n    return x * {i}\n" for i in range(150))}

    def study(self, *options, code=0):
        for name, text in self.texts.items():
            (self.folder / name).write_text(text, "utf-8")
        done = subprocess.run([sys.executable, STUDY, SAMPLES / "pocket", self.folder / "out", "--bytes", "--prose", "prose.txt", "--code", "code.txt",
                               "--length", str(LENGTH), "--tasks", str(TASKS), "--traces", "1", "--continuation", "4", "--kvbound", kvbound_cli.program,
                               *map(str, options)], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_tables_are_those_of_the_documents_and_nothing_is_computed_twice(self):
        done = self.study()
        tables = tables_of(done.stdout)
        self.assertEqual((self.folder / "out" / "tables.md").read_text("utf-8") + "\n", done.stdout)
        self.check_divergence(tables)
        self.check_heads(tables)
        self.assertIn("<!DOCTYPE html>", (self.folder / "out" / "page.html").read_text("utf-8")[:100])

        again = self.study()
        self.assertEqual(again.stdout, done.stdout)
        self.assertEqual([line.split()[2] for line in again.stderr.splitlines()], ["report"])
        self.assertIn("study: ", self.study("--seed", 7, code=2).stderr)
        refused = self.study("--length", LENGTH + 1, code=3)
        self.assertRegex(refused.stderr, rf"\Astudy: .*study.json: is of another study: length was {LENGTH}, and is {LENGTH + 1}\n\Z")

    def check_divergence(self, tables):
        evaluation, = parts(read(self.folder / "out" / "evaluate.json"))
        runs, kinds = evaluation.axes["run"], evaluation.axes["kind"]["kind"]
        self.assertEqual(sorted(kinds), ["code", "needle", "prose", "values"])
        _, rows = tables["Kullback-Leibler divergence of the next token, in thousandths of a nat"]
        self.assertEqual(len(rows), 20)
        means = evaluation.column("runs", "kl")
        by_policy = {row["policy"]: row for row in rows}
        for r, (label, budget) in enumerate(zip(runs["label"], runs["budget"])):
            for k, kind in enumerate(kinds):
                if label != "full cache":
                    self.assertAlmostEqual(float(by_policy[label][f"{kind}, {budget}"]) / (1000 * means[k, r]), 1, places=2)
        _, changes = tables["Change of the divergence against the policy's host, in % of the mean [95 %]"]
        place = {(label, budget): r for r, (label, budget) in enumerate(zip(runs["label"], runs["budget"]))}
        own, low, high = self.numbers(next(row for row in changes if row[""] == "CriticalKV in AdaKV")["prose, 20%"])
        k = kinds.index("prose")
        expected = 100 * (means[k, place["snapkv+critical+adakv", "20%"]] / means[k, place["snapkv+adakv", "20%"]] - 1)
        self.assertAlmostEqual(own, expected, delta=0.51)
        self.assertLessEqual(low, own)
        self.assertLessEqual(own, high)

    def check_heads(self, tables):
        """The share of heads that CriticalKV improves, from the rows of the CSV files."""
        shares, firsts = [], []
        for kind in ("needle", "prose", "code"):
            numbers = {}
            with open(self.folder / "out" / f"replay-{kind}-1.csv", encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    if row["budget"] == "20%" and row["perturbation"] and row["head"]:
                        numbers.setdefault(row["label"], {}).setdefault(int(row["step"]), []).append(float(row["perturbation"]))
            own, base = (np.array([numbers[label][step] for step in sorted(numbers[label])]) for label in ("snapkv+critical", "snapkv"))
            shares.append(100 * np.mean(own.mean(axis=0) < base.mean(axis=0)))
            firsts.append(100 * np.mean(own[0] < base[0]))
        _, rows = tables["Heads of smaller L than with the host, of all layers, ± half a 95 % interval over traces"]
        row = next(row for row in rows if (row[""], row["budget"]) == ("CriticalKV", "20%"))
        for cell, expected in ((row["mean over steps"], shares), (row["step 1"], firsts)):
            mean, reach = self.numbers(cell)
            self.assertAlmostEqual(mean, np.mean(expected), delta=0.51)
            self.assertAlmostEqual(reach, 4.303 * np.std(expected, ddof=1) / np.sqrt(3), delta=0.51)
        self.assertEqual(row["steps 33 to 64"], "-")
        replay, = parts(json.loads((self.folder / "out" / "replay-prose-1.json").read_text("utf-8")))
        self.assertEqual(len(tables["Where Assumption 3.4 fails, by (layer, query head, trace)"][1]), 12)
        self.assertEqual(replay.facts["replayed_steps"], 4)

    @staticmethod
    def numbers(cell):
        return [float(part) for part in cell.replace("%", " ").replace("±", " ").translate(str.maketrans("[],", "   ")).split()]


if __name__ == "__main__":
    kvbound_cli.main()
