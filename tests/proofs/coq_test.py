"""Tests of proofs/coq: that Coq checks the proofs, that none has an axiom, and that each is a statement's of the catalogue.

usage: coq_test.py
"""
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "proofs" / "coq"
PAGES = ["critical_kv.md", "obcache.md", "keep_kv.md"]
COQC = ["coqc", "-q", "-w", "-notation-overridden,-ambiguous-paths", "-R", ".", "kvbound"]


def catalogue():
    """The ids of the written proofs' statements."""
    return [name for page in PAGES for name in re.findall(r'<a id="([^"]+)"', (ROOT / "proofs" / page).read_text("utf-8"))]


def theorem_of(name):
    return re.sub(r"[-.]", "_", name)


def sources():
    return {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.v"))}


def required_by(text):
    """The files of this folder that one requires."""
    return re.findall(r"\w+", " ".join(re.findall(r"^From kvbound Require Import ([\w ]+)\.", text, re.MULTILINE)))


def in_order(texts):
    """The files, each behind those that it requires."""
    order = []

    def add(name):
        for other in required_by(texts[name]):
            add(other)
        if name not in order:
            order.append(name)
    for name in texts:
        add(name)
    return order


def theorems(text):
    return re.findall(r"^Theorem (\w+)", text, re.MULTILINE)


class Names(unittest.TestCase):
    def test_a_theorem_is_a_statement_whose_sentence_stands_before_it(self):
        known = {theorem_of(name): name for name in catalogue()}
        for name, text in sources().items():
            for theorem in theorems(text):
                with self.subTest(file=name, theorem=theorem):
                    self.assertIn(theorem, known)
                    before = text[:re.search(rf"\nTheorem {theorem}\b", text).start()]
                    self.assertRegex(before[before.rindex("(*"):], rf"^\(\* {re.escape(known[theorem])}[:,] [^*]+\. \*\)$")

    def test_the_table_says_of_every_other_statement_why_it_has_none(self):
        proved = {theorem for text in sources().values() for theorem in theorems(text)}
        page = (FOLDER / "README.md").read_text("utf-8")
        without = set(re.findall(r"^\| `([^`]+)` \| [^|]{20,} \|$", page, re.MULTILINE))
        self.assertEqual(without, {name for name in catalogue() if theorem_of(name) not in proved})
        self.assertIn(f"{len(catalogue()) - len(without)} of the {len(catalogue())} statements", page)

    def test_no_theorem_stands_in_two_files(self):
        found = [theorem for text in sources().values() for theorem in theorems(text)]
        self.assertEqual(len(found), len(set(found)))


class Proofs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        for path in FOLDER.glob("*.v"):
            shutil.copy(path, cls.folder)
        files, done = sources(), {}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for name in in_order(files):
                done[name] = pool.submit(cls.run_coq, f"{name}.v", [done[other] for other in required_by(files[name])])
        for each in done.values():
            each.result()

    @classmethod
    def run_coq(cls, name, behind=()):
        for each in behind:
            each.result()
        run = subprocess.run([*COQC, name], cwd=cls.folder, capture_output=True, text=True, check=False, timeout=300)
        if run.returncode != 0:
            raise AssertionError(f"coqc {name}:\n{run.stdout}{run.stderr}")
        return run.stdout

    def test_no_theorem_depends_on_an_axiom(self):
        files = sources()
        names = [f"{name}.{theorem}" for name, text in files.items() for theorem in theorems(text)]
        lines = [f"From kvbound Require {name}." for name in files]
        lines += [f"Print Assumptions {name}." for name in names]
        (self.folder / "assumptions.v").write_text("\n".join(lines) + "\n", "utf-8")
        said = self.run_coq("assumptions.v").splitlines()
        self.assertEqual(said, ["Closed under the global context"] * len(names))

    def test_the_laws_of_the_exponential_are_laws_of_coqs_real_numbers(self):
        (self.folder / "reals.v").write_text("From Coq Require Import Reals.\nOpen Scope R_scope.\n"
                                             "Check exp_plus : forall x y, exp (x + y) = exp x * exp y.\n"
                                             "Check exp_ineq1_le : forall x, 1 + x <= exp x.\n"
                                             "Check exp_ln : forall x, 0 < x -> exp (ln x) = x.\n", "utf-8")
        self.run_coq("reals.v")

    def test_an_axiom_would_be_found(self):
        (self.folder / "assumed.v").write_text("Axiom assumed : False.\nTheorem wrong : 1 = 2.\nProof. destruct assumed. Qed.\n"
                                               "Print Assumptions wrong.\n", "utf-8")
        self.assertIn("assumed : False", self.run_coq("assumed.v"))

    def test_a_wrong_proof_is_refused(self):
        text = (FOLDER / "critical_kv.v").read_text("utf-8")
        weaker = text.replace("0 < mass K -> perturbation K <= theta K", "perturbation K <= theta K")
        self.assertNotEqual(weaker, text)
        (self.folder / "weaker.v").write_text(weaker, "utf-8")
        with self.assertRaisesRegex(AssertionError, "coqc weaker.v"):
            self.run_coq("weaker.v")


if __name__ == "__main__":
    unittest.main(verbosity=2)
