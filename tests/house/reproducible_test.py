"""The same sources give the same bytes: a second build, in folders of other names, without ccache and without the tests, in another
time zone and with other permissions of files, of the program and of every library that it consists of.

usage: reproducible_test.py BUILD      BUILD: the folder of a build of the sources as they are
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
build = None  # set below
DECIDES = re.compile(r"^(KVBOUND_\w+|CMAKE_(?:BUILD_TYPE|(?:CXX|CUDA)_(?:COMPILER|FLAGS\w*)|UNITY_BUILD|DISABLE_PRECOMPILE_HEADERS)):\w+=(.*)$",
                     re.MULTILINE)


def run(*command, **options):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}: {done.stdout[-4000:]}")
    return done.stdout


def section_at(file, offset):
    """The name of the section of an ELF file that this byte is in; "" if there is none."""
    said = subprocess.run(["readelf", "--wide", "--sections", file], text=True, capture_output=True, check=False).stdout
    for name, begin, size in re.findall(r"\] (\S+) +(?!NOBITS)\w+ +[0-9a-f]{16} ([0-9a-f]+) ([0-9a-f]+)", said):
        if int(begin, 16) <= offset < int(begin, 16) + int(size, 16):
            return name
    return ""


def difference(one, other):
    """Where two files differ first, and what is there; None if they do not."""
    contents = [path.read_bytes() for path in (one, other)]
    if contents[0] == contents[1]:
        return None
    at = next((i for i, (a, b) in enumerate(zip(*contents)) if a != b), min(map(len, contents)))
    around = [content[max(0, at - 60):at + 60] for content in contents]
    return f"{one.name}: {len(contents[0])} and {len(contents[1])} bytes, from byte {at} on, {section_at(one, at)}:\n  {around[0]}\n  {around[1]}"


def copy_sources(folder):
    """Copies what git knows or would add; without git, all but what is built. Returns the environment in which the copy has the
    revision of the original."""
    if not (ROOT / ".git").exists():
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns("build", "out"))
        return {}
    for name in filter(None, run("git", "ls-files", "-z", "-c", "-o", "--exclude-standard", cwd=ROOT).split("\0")):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    git = Path(run("git", "rev-parse", "--absolute-git-dir", cwd=ROOT).strip())
    index = shutil.copy(git / "index", folder.parent / "index")  # git writes the times of files into it
    return {"GIT_DIR": str(git), "GIT_INDEX_FILE": str(index)}


class Reproducible(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="kvbound-elsewhere-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name).resolve()

    def test_a_second_build_elsewhere(self):
        self.addCleanup(os.umask, os.umask(0o077))
        sources, second = self.folder / "copy" / "of-the-sources", self.folder / "b"
        sources.mkdir(parents=True)
        revision = copy_sources(sources)
        options = [f"-D{name}={value}" for name, value in DECIDES.findall((build / "CMakeCache.txt").read_text("utf-8"))]
        environment = {**os.environ, **revision, "CCACHE_DISABLE": "1", "TZ": "Pacific/Chatham", "LC_ALL": "C", "HOME": str(self.folder)}
        run("cmake", "-S", sources, "-B", second, "-G", "Ninja", *options, "-DKVBOUND_TESTS=OFF", env=environment)
        run("cmake", "--build", second, "--target", "kvbound", "--parallel", str(os.cpu_count()), env=environment)
        names = [path.relative_to(second) for path in [second / "kvbound", *sorted(second.rglob("*.a"))]]
        self.assertGreater(len(names), 5)
        self.assertEqual([found for name in names if (found := difference(build / name, second / name))], [])

    def test_a_difference_is_found(self):
        """Programs that tell their folder, and whether that is taken out."""
        programs = []
        for name in ("one", "two", "mapped", "too"):
            source = self.folder / name / "program.cpp"
            source.parent.mkdir()
            source.write_text("#include <cstdio>\nint main() { std::puts(__FILE__); }\n", "utf-8")
            options = [] if len(programs) < 2 else [f"-ffile-prefix-map={source.parent}/="]
            run("c++", *options, source, "-o", source.with_suffix(""))
            programs.append(source.with_suffix(""))
        self.assertRegex(difference(*programs[:2]), r"\Aprogram: \d+ and \d+ bytes, from byte \d+ on, ")
        self.assertEqual(section_at(programs[0], programs[0].read_bytes().index(bytes(self.folder))), ".rodata")
        self.assertIsNone(difference(*programs[2:]))


if __name__ == "__main__":
    build = Path(sys.argv.pop(1)).resolve(strict=True)
    unittest.main()
