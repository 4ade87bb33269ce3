"""The compiler stops at every place that a new method has to fill in, and reference/README.md lists these places.

usage: new_method_test.py COMPILER [OPTION...]      how C++ is compiled, without -c and -o

In a copy of the sources, new_method.py adds a method of each kind, without its #errors: core gets a new alternative of
every component, a new Change and a new MergedKey, and every place of FILLERS the least code that makes it compile. Then
- the copy compiles without a warning: no other place needs a change;
- without the fillers of one function, the compiler's errors name its file, the function and the new alternative;
- the rows of "Add a method" that are marked with a dot are the places of FILLERS;
- new_method.py leaves at most 12 places in C++ to a person, each with an #error, and prints the rest of the list.
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from house.method_places import ENUMERATORS, FILLERS, NEWCOMER, PLACES, SEEN_BY, recipe
from house.new_method import SECTIONS, Stubs

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("reference", "cuda", "traces", "proofs", "sim")
SUFFIXES = (".hpp", ".cuh", ".cpp", ".cu")
COMPILER = []
PRECOMPILED = ("algorithm", "cmath", "functional", "map", "memory", "numeric", "span", "string", "variant", "vector",
               "boost/multiprecision/mpfr.hpp")


def without(file, function):
    """The macro that, when defined, leaves the function's fillers out."""
    return "without_" + re.sub(r"\W", "_", f"{file}_{function}")


class GuardedStubs(Stubs):
    """Stubs without #error, each of which a macro takes away."""

    def error(self, file, what):
        return ""

    def stub(self, file, function, code):
        return f"#ifndef {without(file, function)}\n{code}\n#endif"


def copy_with_newcomers(folder):
    """Copies the sources to folder/kvbound, and adds a method of each kind, as new_method.py does."""
    copy = folder / "kvbound"
    for path in (path for name in (*FOLDERS, "tests") for path in (ROOT / name).rglob("*")
                 if path.suffix in SUFFIXES and name != "tests" or path.name in ("CMakeLists.txt", "README.md")):
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text("utf-8"), "utf-8")
    for kind in SECTIONS:
        stubs = GuardedStubs(copy, kind, f"new-{kind}")
        stubs.make()
        stubs.write()


def includes(folder, path, seen):
    """All files of the copy that a file includes, directly or not, and the file itself."""
    if path not in seen:
        seen.add(path)
        for name in re.findall(r'^#include ["<]([\w./-]+)[">]', path.read_text("utf-8"), re.MULTILINE):
            for found in (path.parent / name, folder / name):
                if found.is_file() and folder in found.parents:
                    includes(folder, found.resolve(), seen)
    return seen


def sources(folder):
    """The files that may need a filler: those that see core/policy.hpp and visit alternatives, count them or switch on
    them."""
    policy = folder / "kvbound" / "reference" / "core" / "policy.hpp"
    return [path for path in sorted((folder / "kvbound").rglob("*")) if path.suffix in SUFFIXES and path.parts[-2] != "tests"
            if path.stem.startswith("new_") and "tests" not in path.parts or re.search(rf"\bvisit\b|\bvariant_|\bcase [\w:]*\b(?:{'|'.join(ENUMERATORS)})::", path.read_text("utf-8"))
            if policy in includes(folder, path, set())]


def precompile(folder):
    """Precompiles the third-party headers that many sources include, which halves the time of this test."""
    (folder / "precompiled.hpp").write_text("".join(f"#include <{name}>\n" for name in PRECOMPILED), "utf-8")
    subprocess.run([*COMPILER, "-x", "c++-header", "precompiled.hpp", "-o", "precompiled.hpp.gch"], check=True, cwd=folder)


def complaints(folder, file, *options):
    """The compiler's errors for a file, and its warnings about switches that lack a case."""
    run = subprocess.run([*COMPILER, "-fsyntax-only", "-Wswitch", *options, "-I.", "-include", "precompiled.hpp",
                          "-x", "c++", "-include", file, os.devnull],  # a header is compiled in the same way
                         capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, "LC_ALL": "C"})
    return run.stderr


def marked(section):
    """The (file, function) pairs that a dot marks in a section's table; each function of a row with each C++ file of
    the row."""
    rows = recipe((ROOT / "reference" / "README.md").read_text("utf-8"), section)
    return {(file, function) for files, what in rows for file in re.findall(r"`([\w./]+\.[ch]pp)`", files)
            for function in re.findall(r"`([\w:]+)(?:\([^`]*\))?` ●", what)}


class NewMethods(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name).resolve()
        copy_with_newcomers(cls.folder)
        precompile(cls.folder)
        cls.pool = concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()
        cls.scratch.cleanup()

    def test_the_compiler_needs_nothing_but_the_fillers(self):
        files = sources(self.folder)
        places = {self.folder / "kvbound" / SEEN_BY.get(file, file) for file, _, _ in PLACES}
        self.assertLessEqual(places, set(files), "this test does not find all sources any more")
        for file, said in zip(files, self.pool.map(lambda file: complaints(self.folder, file), files)):
            self.assertEqual(said, "", f"{file}: is a place missing in FILLERS?")

    def test_the_compiler_names_every_place_without_its_filler(self):
        def named(place):
            file = SEEN_BY.get(place[0], place[0])
            return complaints(self.folder, self.folder / "kvbound" / file, f"-D{without(*place)}")
        functions = sorted({(file, function) for file, function, _ in PLACES})
        words = dict(zip(functions, self.pool.map(named, functions)))
        for file, function, filler in PLACES:
            newcomer = NEWCOMER.search(filler)[0]
            for what in (f"/kvbound/{file}:", function.split("::")[-1], newcomer):
                self.assertIn(what, words[file, function], f"{file}: the compiler does not ask {function} for {newcomer}")

    def test_the_recipe_marks_the_places_that_the_compiler_names(self):
        for section, places in FILLERS.items():
            with self.subTest(section):
                self.assertEqual(marked(section), {(file, function) for file, function, _ in places})


class Script(unittest.TestCase):
    def test_few_places_are_left_to_a_person_and_each_is_named(self):
        counts = {}
        for kind in SECTIONS:
            with self.subTest(kind):
                stubs = Stubs(ROOT, kind, "my-dummy")
                stubs.make()
                for file, what in stubs.places:
                    self.assertIn(f'#error "my-dummy: {what}"\n', stubs.written[file])
                errors = sum(text.count('#error "my-dummy: ') for text in stubs.written.values())
                self.assertEqual(errors, len(stubs.places))
                for files, what in stubs.rows:  # of the list nothing is forgotten
                    named = [file.replace("my_kv", "my_dummy") for file in re.findall(r"`([\w./]+\.\w+)`", files)]
                    there = any(file in stubs.written or file.replace("eviction", "merging") in stubs.written for file in named)
                    self.assertTrue(there or (files, what) in stubs.left() or kind == "score", files)
                counts[kind] = len(stubs.places), len(stubs.left())
        self.assertLessEqual(max(places for places, _ in counts.values()), 12)
        table = re.findall(r"^\| ([a-z ]+) \| (\d+) \| (\d+) \|$", (ROOT / "reference/README.md").read_text("utf-8"), re.MULTILINE)
        self.assertEqual([(int(places), int(rows)) for _, places, rows in table], list(counts.values()))

    def test_bad_names_are_refused(self):
        for words in (("hosts", "my-kv"), ("host", "MyKv"), ("host", "my_kv"), ("host", "snap-kv")):
            with self.subTest(words):
                run = subprocess.run([sys.executable, ROOT / "tests/house/new_method.py", *words, "/nonexistent" if words[1] != "snap-kv" else ROOT],
                                     capture_output=True, text=True, check=False)
                self.assertNotEqual(run.returncode, 0)
                self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)


if __name__ == "__main__":
    COMPILER += sys.argv[1:]
    del sys.argv[1:]
    unittest.main()
