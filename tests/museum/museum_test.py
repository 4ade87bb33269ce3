"""`kvbound check` finds every fault of the museum and calls no sound kernel wrong; README.md has the table that museum.py prints.

usage: museum_test.py KVBOUND [short|long]      KVBOUND: the program's path
"""
import re
import unittest
from pathlib import Path

import numpy as np

import attention
import museum
import sound
from support import kvbound_cli
from support.kvbound_cli import MISMATCH, PASS
from usual import TESTS, flashinfer_bench

README = Path(__file__).parent / "README.md"


class Museum(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.shown = list(museum.exhibits(kvbound_cli.program))

    def test_every_fault_is_found_and_named(self):
        self.assertGreaterEqual(len(self.shown), 25)
        for exhibit in self.shown:
            with self.subTest(exhibit.fault.name):
                self.assertEqual(exhibit.faulty.returncode, MISMATCH, exhibit.faulty.stdout + exhibit.faulty.stderr)
                self.assertRegex(exhibit.faulty.stderr, rf"\Akvbound: [^\n]*\.safetensors: {exhibit.fault.expected}")

    def test_the_same_kernels_without_the_fault_agree(self):
        for exhibit in self.shown:
            with self.subTest(exhibit.fault.name):
                self.assertEqual((exhibit.sound.returncode, exhibit.sound.stderr), (PASS, ""), exhibit.sound.stdout)

    def test_every_fault_names_public_threads(self):
        for exhibit in self.shown:
            for thread in exhibit.fault.threads:
                self.assertRegex(museum.link(thread), r"\A\[.+ \d+\]\(https://github\.com/[\w./-]+/issues/\d+\)\Z")

    def test_the_readme_has_the_table_that_is_printed(self):
        table = re.search(r"^\| fault .*?(?=\n\n[^-|])", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        written, printed = (re.sub(r"-?\d[\d.]*(e[-+]?\d+)?", "#", text.strip())
                            for text in (table[0], museum.markdown(self.shown)))
        self.assertEqual(written, printed, "README.md says by which command its table is printed")


class UsualTests(unittest.TestCase):
    """What the museum says that other tests say."""

    def test_flashinfer_bench_fails_what_is_far_away_in_both_ways(self):
        for result, reference, passes in ((0.02, 0.011, True), (0.03, 0.011, False), (2.019, 2.0, True), (2.03, 2.0, False),
                                          (np.nan, 1, False)):
            self.assertEqual(flashinfer_bench(np.array([1, result]), np.array([1, reference])), passes, (result, reference))

    def test_each_passes_sound_results(self):
        for fault in museum.FAULTS.values():
            if fault.name.startswith(("zeros", "candidates", "moved-in")):
                case = fault.case()
                right = type(case)(case.sound_file, case.right, case.right.get("out"), case.reference)
                self.assertEqual({*TESTS[fault.operation](fault, right).values()}, {True}, fault.name)


class Floor(unittest.TestCase):
    def test_what_is_too_small_to_be_proved_wrong_is_unlikely(self):
        for padding, code, said in ((16, PASS, "unlikely by rounding"), (96, PASS, "unlikely by rounding"),
                                    (128, MISMATCH, "gain 0.9")):
            result = museum.check(kvbound_cli.program, "attention", attention.padded_keys(4096, padding).file)
            self.assertEqual(result.returncode, code, padding)
            self.assertIn(said, result.stderr)


class SoundKernels(unittest.TestCase):
    count = 40

    def test_none_is_called_wrong(self):
        for number in range(self.count):
            variant = sound.variant(number)
            result = museum.check(kvbound_cli.program, variant.operation, variant.file)
            with self.subTest(variant.name):
                self.assertEqual((result.returncode, result.stderr), (PASS, ""), result.stdout)


class ManySoundKernels(SoundKernels):
    suite = "long"
    count = 1000


if __name__ == "__main__":
    kvbound_cli.main()
