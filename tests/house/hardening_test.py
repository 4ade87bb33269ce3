"""The program and the libraries are hardened, as their ELF files say, and each check notices one that is not.

usage: hardening_test.py COMPILER KVBOUND LIBRARY...      LIBRARY: a static library of ours

Not for builds with sanitizers, which are not hardened. What is required:

PIE                    the program is loaded at an address that is not known before
no executable stack    nor another part that can be written and executed
RELRO, BIND_NOW        the tables of functions that it takes from libraries are read-only once it runs
no RPATH, no TEXTREL   libraries come from the system's folders alone; code is not changed to be loaded
stack protector        functions with arrays look whether the return address was overwritten
fortified functions    those of libc know the size of what they write to, where the compiler does
no shadow stack        is promised, as the emulation of kernels switches stacks itself; for branches, each object of ours has marks
"""
import platform
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

compiler, program, libraries = None, None, []  # set below
IS_X86 = platform.machine() == "x86_64"


def readelf(*arguments):
    return subprocess.run(["readelf", "--wide", *arguments], check=True, text=True, capture_output=True, env={"LC_ALL": "C"}).stdout


def weaknesses(file):
    """What an executable lacks or should not have."""
    header, segments, dynamic = (readelf(option, file) for option in ("--file-header", "--segments", "--dynamic"))
    symbols, notes = readelf("--dyn-syms", file), readelf("--notes", file)
    parts = re.findall(r"^ +(\w+) +(?:0x\w+ +){5}([RWE ]+) +0x\w+$", segments, re.MULTILINE)
    flags = " ".join(re.findall(r"\((?:FLAGS|FLAGS_1)\) +(.*)", dynamic))
    found = {
        "PIE": not re.search(r"Type: +DYN", header) or "PIE" not in flags,
        "no executable stack": "E" in dict(parts).get("GNU_STACK", "E") or any("W" in access and "E" in access for _, access in parts),
        "RELRO": "GNU_RELRO" not in dict(parts),
        "BIND_NOW": not re.search(r"\b(?:BIND_)?NOW\b", flags),
        "no RPATH, no TEXTREL": re.search(r"\b(?:RPATH|RUNPATH|TEXTREL)\b", dynamic),
        "stack protector": "__stack_chk_fail" not in symbols,
        "fortified functions": not re.search(r"\b__\w+_chk@", symbols),
        "no shadow stack": "SHSTK" in notes,
    }
    return [name for name, is_found in found.items() if is_found]


def unmarked(library):
    """The objects of a static library that have code without marks of where branches may go, so not our flags."""
    objects = re.split(r"^File: .*\((.*)\)$", readelf("--notes", "--sections", library), flags=re.MULTILINE)[1:]
    return [name for name, said in zip(objects[::2], objects[1::2])
            if re.search(r" \.text\S* +PROGBITS +\w+ +\w+ +(?!0+ )\w+", said) and "x86 feature: IBT" not in said]


class Hardening(unittest.TestCase):
    def test_the_program(self):
        self.assertEqual(weaknesses(program), [])

    def test_each_object_of_the_libraries(self):
        self.assertGreater(len(libraries), 4)
        for library in libraries:
            with self.subTest(library.name):
                self.assertIn("__stack_chk_fail", readelf("--symbols", library))
                if IS_X86:
                    self.assertEqual(unmarked(library), [])


class Controls(unittest.TestCase):
    """Programs that are built so that all is missing, or one thing."""

    HARDENED = ("-O2", "-fPIC", "-pie", "-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now,-z,noexecstack")
    SOURCE = "#include <unistd.h>\nint main(int n, char**) { char text[9]; return read(0, text, unsigned(n)) > 0 ? text[n % 9] : 0; }\n"

    def build(self, *options):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        subprocess.run([compiler, "-x", "c++", "-", *options, "-o", f"{folder.name}/program"], input=self.SOURCE, text=True, check=True)
        return f"{folder.name}/program"

    def test_all_is_there(self):
        self.assertEqual(weaknesses(self.build(*self.HARDENED, *(["-fcf-protection=branch"] if IS_X86 else []))), [])

    def test_one_thing_is_missing(self):
        for name, *options in (("PIE", "-no-pie", "-fno-pie"), ("no executable stack", "-Wl,-z,execstack"), ("RELRO", "-Wl,-z,norelro"),
                               ("BIND_NOW", "-Wl,-z,lazy"), ("no RPATH, no TEXTREL", "-Wl,-rpath,/tmp"),
                               ("stack protector", "-fno-stack-protector"), ("fortified functions", "-U_FORTIFY_SOURCE")):
            with self.subTest(name):
                self.assertEqual(weaknesses(self.build(*self.HARDENED, *options)), [name])

    if IS_X86:  # which has such marks
        def test_a_shadow_stack_is_promised(self):
            self.assertEqual(weaknesses(self.build(*self.HARDENED, "-fcf-protection=full", "-Wl,-z,shstk")), ["no shadow stack"])

        def test_an_object_without_marks(self):
            with tempfile.TemporaryDirectory() as folder:
                for name, kind in (("marked", "branch"), ("plain", "none")):
                    subprocess.run([compiler, "-x", "c++", "-", "-c", f"-fcf-protection={kind}", "-o", f"{folder}/{name}.o"],
                                   input=self.SOURCE, text=True, check=True)
                subprocess.run(["ar", "qc", f"{folder}/lib.a", f"{folder}/marked.o", f"{folder}/plain.o"], check=True)
                self.assertEqual(unmarked(Path(folder, "lib.a")), ["plain.o"])


if __name__ == "__main__":
    compiler, program, *libraries = sys.argv[1], *map(Path, sys.argv[2:])
    result = unittest.main(argv=sys.argv[:1], exit=False).result
    sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
