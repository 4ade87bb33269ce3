"""Every command that writes, with one call of the system or of the allocator failing, whichever it is: the command ends soon, by
exit code 0 or 4, with at most few lines, leaves no temporary file, and its outputs are whole, old or not there.

usage: faults_test.py KVBOUND LIBRARY [short|long] [unittest's options]
       KVBOUND: the program's path; LIBRARY: that of the library built from fault.cpp
       short: MOST_OF_IT faults of each command and function, others for each K of KVBOUND_FAULTS=K/N
       long: all of them, or those of the K-th of every N commands of KVBOUND_SHARE=K/N; of allocations only as many of each
       command as KVBOUND_FAULT_ALLOCATIONS says, evenly spread

It ends with a table of the faults by command and function: how many ended with 0, and with another exit code.
"""
import os
import queue
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults import commands
from faults.trial import KINDS, Trials
from support import kvbound_cli
from support.kvbound_cli import PASS, CommandLineTest
from support.share import SIDE_BY_SIDE, asked_for, share_of

# that fail of each command, of 5,000 to 180,000
ALLOCATIONS = int(os.environ.get("KVBOUND_FAULT_ALLOCATIONS", "800"))
MOST_OF_IT = 8
library = None  # the path of the library built from fault.cpp, set below


class FaultTest(CommandLineTest):
    def setUp(self):
        super().setUp()
        commands.write_inputs(self)
        self.trials = queue.SimpleQueue()  # as many as run side by side
        self.first = Trials(library, self.folder / "0", self.folder / "inputs")
        for number in range(SIDE_BY_SIDE):
            trials = Trials(library, self.folder / str(number), self.folder / "inputs")
            trials.undisturbed = self.first.undisturbed
            self.trials.put(trials)
        self.counts = Counter()

    def try_all(self, faults):
        """Requires that there is no problem with any of the faults."""
        def outcome(fault):
            trials = self.trials.get()
            found, code = trials.problem(fault)
            self.trials.put(trials)
            return found, code
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            outcomes = list(pool.map(outcome, faults))
        self.counts.update((fault.command.name, fault.function, code == PASS) for fault, (_, code) in zip(faults, outcomes) if code is not None)
        problems = [f"{fault}: {found}" for fault, (found, _) in zip(faults, outcomes) if found]
        self.assertEqual(problems, [], f"{len(problems)} of {len(faults)}")

    def table(self):
        names = [command.name for command in commands.COMMANDS if any(command.name == key[0] for key in self.counts)]
        rows = [["", *KINDS, "all"], ["---"] * (len(KINDS) + 2)]
        for name in [*names, "all"]:
            def ended(passed, function, name=name):
                return sum(count for key, count in self.counts.items()
                           if name in ("all", key[0]) and function in ("all", key[1]) and key[2] == passed)
            rows.append([name, *(f"{ended(True, function)} / {ended(False, function)}" for function in [*KINDS, "all"])])
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)


class SomeFaults(FaultTest):
    def test_a_part_of_them(self):
        share, shares = asked_for("KVBOUND_FAULTS")
        chosen, faults = random.Random(f"{share}/{shares}"), []
        for command in commands.COMMANDS:
            self.first.expect(command)
            all_of_them = list(self.first.faults(command))
            for function in KINDS:
                of_it = [fault for fault in all_of_them if fault.function == function]
                faults += chosen.sample(of_it, min(len(of_it), MOST_OF_IT))
        self.try_all(faults)
        print(self.table())


class EveryFault(FaultTest):
    suite = "long"

    def test_all_of_them(self):
        for command in share_of(commands.COMMANDS):
            self.first.expect(command)
            with self.subTest(command.name):
                self.try_all(list(self.first.faults(command, ALLOCATIONS)))
        print(self.table())


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} KVBOUND LIBRARY [short|long] [unittest's options]")
    library = Path(sys.argv.pop(2)).resolve(strict=True)
    kvbound_cli.main()
