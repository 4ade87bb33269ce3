"""C++ and CUDA files are formatted as clang-format-14 does it, by the file .clang-format.

usage: format_test.py      needs the package clang-format-14: other versions format differently

To format a file: clang-format-14 -i FILE
"""
import concurrent.futures
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from house import rules

ROOT = Path(__file__).resolve().parent.parent.parent
FILES_PER_RUN = 40


def unformatted(root, files):
    """Those of the files, paths below root, that clang-format would change."""
    def complaints(some):
        run = subprocess.run(["clang-format-14", "--dry-run", "--ferror-limit=1", *some], cwd=root, text=True, capture_output=True)
        assert run.returncode == 0, run.stderr
        return re.findall(r"^(\S+?):\d+:\d+: warning: code should be clang-formatted", run.stderr, re.MULTILINE)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        parts = (files[i:i + FILES_PER_RUN] for i in range(0, len(files), FILES_PER_RUN))
        return sorted({file for found in pool.map(complaints, parts) for file in found})


class Formatting(unittest.TestCase):
    def test_of_every_file(self):
        files = [path.relative_to(ROOT).as_posix() for folder in rules.FOLDERS
                 for path in sorted((ROOT / folder).rglob("*")) if path.suffix in rules.SOURCES]
        self.assertGreater(len(files), 1000)
        self.assertEqual(unformatted(ROOT, files), [], "to format a file: clang-format-14 -i FILE")

    def test_that_is_wrong_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / ".clang-format").write_text((ROOT / ".clang-format").read_text("utf-8"), "utf-8")
            for name, text in (("good.cpp", "int a = 1;\n"), ("bad.cpp", "int  a = 1;\n"), ("bad.cuh", "int* a, b;\nint *c;\n"),
                               ("long.hpp", f"int a = {' + '.join(['1000'] * 20)};\n")):
                (root / name).write_text(text, "utf-8")
            self.assertEqual(unformatted(root, ["good.cpp", "bad.cpp", "bad.cuh", "long.hpp"]), ["bad.cpp", "bad.cuh", "long.hpp"])


if __name__ == "__main__":
    unittest.main()
