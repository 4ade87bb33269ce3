"""Hostile inputs of every kind that the program reads, made by generators: it ends by an exit code of the right kind, soon, within
2 GiB of memory, with one line that names the file or the option and has no control characters, and leaves nothing half done.

usage: hostile_test.py KVBOUND [short|long] [unittest's options]
       KVBOUND: the program's path
       short: a part of each surface's inputs, others for each K of KVBOUND_FAULTS=K/N
       long: all of them, or the K-th of every N of KVBOUND_SHARE=K/N
KVBOUND_HOSTILE=SURFACE:NUMBER in the environment: only this one, whose folder is kept

It ends with a table of the inputs by surface: how many were refused, accepted, and ended otherwise than they may.
"""
import multiprocessing
import os
import tempfile
from collections import Counter
from pathlib import Path

from faults.hostile import cases, surfaces
from faults.hostile.arguments import Arguments
from faults.hostile.inputs import Inputs
from faults.hostile.judge import Judge
from support import kvbound_cli
from support.kvbound_cli import INCONCLUSIVE, MISMATCH, PASS, CommandLineTest
from support.share import SIDE_BY_SIDE, asked_for, share_of

SHORT = 24  # of so many inputs of a surface one is tried
judge, made, arguments = None, {}, None  # set below


def begin(folder):
    """In each process that tries cases."""
    global judge
    judge = Judge(Path(folder) / str(os.getpid()))


def case_of(name, number):
    return cases.case_of(made[name], number) if name in made else arguments.case_of(name, number)


def outcome(item):
    name, number = item
    case = case_of(name, number)
    found, ended = judge.problem(case)
    problem = f"{name}:{number}: {case.what}, {' '.join(map(str, case.arguments))[:200]}: {found}" if found else None
    return name, problem, ended.code in (PASS, MISMATCH, INCONCLUSIVE)


class HostileTest(CommandLineTest):
    maxDiff = None

    def setUp(self):
        super().setUp()
        global arguments
        inputs = Inputs(self)
        made.update((surface.name, surface) for surface in surfaces.all_surfaces(inputs))
        arguments = Arguments(inputs)
        self.counts = {name: surface.cases for name, surface in made.items()} | arguments.COUNTS
        self.pass_without_damage()

    def pass_without_damage(self):
        """Otherwise a refusal would say nothing."""
        begin(self.folder)
        undamaged = [cases.undamaged(surface, files, command) for surface in made.values() for files in surface.variants
                     for command in surface.commands]
        undamaged += [arguments.case("", "", command, files) for command, files in arguments.bases]
        for case in undamaged:
            found, ended = judge.problem(case)
            self.assertEqual((found, ended.code), (None, PASS), f"{case.surface} {case.arguments}: {ended.stderr}")
            if (judge.case_folder / "out.csv").exists():
                Judge.figures[case.surface, case.arguments] = judge.csv()

    def try_all(self, items):
        """Tries the cases [(surface, number)], prints the table, and requires that there is no problem with any."""
        counts, problems = Counter(), []
        with multiprocessing.get_context("fork").Pool(SIDE_BY_SIDE, begin, (self.folder,)) as pool:
            for name, problem, accepted in pool.imap_unordered(outcome, items, 16):
                counts[name, "problems" if problem else "accepted" if accepted else "refused"] += 1
                problems += [problem] if problem else []
        print(self.table(counts))
        self.assertEqual(sorted(problems), [], f"{len(problems)} of {len(items)}")

    def table(self, counts):
        ends = "refused", "accepted", "problems"
        rows = [["", "inputs", *ends], ["---"] * 5]
        for name in [*(name for name in self.counts if any(name == key[0] for key in counts)), "all"]:
            ended = [sum(count for key, count in counts.items() if name in ("all", key[0]) and key[1] == end) for end in ends]
            rows.append([name, str(sum(ended)), *map(str, ended)])
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)


class SomeInputs(HostileTest):
    def test_a_part_of_them(self):
        if "KVBOUND_HOSTILE" in os.environ:
            return self.only(*os.environ["KVBOUND_HOSTILE"].rsplit(":", 1))
        share, _ = asked_for("KVBOUND_FAULTS")
        self.try_all([(name, number) for name, count in self.counts.items() for number in range(share % SHORT, count, SHORT)])

    def only(self, name, number):
        folder = tempfile.mkdtemp(prefix="kvbound-hostile-")
        begin(folder)
        case = case_of(name, int(number))
        found, ended = judge.problem(case)
        print(f"{case.what}\n{folder}\n{case.arguments} {case.environment}")
        print(f"exit code {ended.code}, {ended.memory >> 20} MiB\n{ended.stderr!r}")
        self.assertIsNone(found)


class EveryInput(HostileTest):
    suite = "long"

    def test_all_of_them(self):
        self.try_all([(name, number) for name, count in self.counts.items() for number in share_of(range(count))])


if __name__ == "__main__":
    kvbound_cli.main()
