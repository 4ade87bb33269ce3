#!/usr/bin/env python3
"""The suites of tests/parity whose sources changed since the last measurement of a GPU, one a line.

usage: changed_suites.py [REVISION]      REVISION: instead of that of the latest last_run in sim/roofline/*.json

A suite's sources are what its test includes, the code that implements these headers, and so on, of the kernels, of the reference
that they are held to and of what tests share. How kernels are built concerns all suites. Where git does not know the revision, or
there is no git, all suites are listed. Changes without a commit, and new files, count.
"""
import json
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"\n]+)"|<kvbound/([^>\n]+)>)', re.MULTILINE)
SUITE = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+)", re.MULTILINE)
CODE, HEADER = (".cu", ".cpp"), ".hpp"
FOLDERS = ("cuda", "reference", "traces", "tests/parity", "tests/support")
OTHER_BUILDS = ("cuda/emulation/", "cuda/counting/")
OF_ALL_SUITES = {"CMakeLists.txt", "cuda/CMakeLists.txt"}


def includes(file, text, files):
    """The files of the tree that a file includes, in its order."""
    for beside, below in INCLUDE.findall(text):
        places = [below] if below else [str(PurePosixPath(file).parent / beside), f"tests/{beside}"]
        yield from (place for place in places if place in files)


def implemented(file, included):
    """The headers that a source implements. Of its folder those whose names its own continues, and of those that it includes
    the first one and those that begin with the same word; native code implements what it includes first."""
    code = PurePosixPath(file)
    words = code.stem.split("_")
    for at, header in enumerate(map(PurePosixPath, included)):
        beside = header.parent == code.parent and (at == 0 or header.stem.split("_")[0] == words[0])
        if beside or (at == 0 and code.parent.name == "native"):
            yield str(header)
    yield from (str(code.with_name("_".join(words[:count]) + HEADER)) for count in range(1, len(words) + 1))


def sources_of_suites(root=ROOT):
    """{suite: the files that it depends on}."""
    files = {path.relative_to(root).as_posix(): path.read_text("utf-8") for folder in FOLDERS
             for path in (root / folder).rglob("*") if path.suffix in (*CODE, HEADER)}
    files = {file: text for file, text in files.items() if not file.startswith(OTHER_BUILDS)}
    needs = {file: list(includes(file, text, files)) for file, text in files.items()}
    code = {file: list(needs[file]) for file in files if file.endswith(CODE) and not file.endswith("_test.cpp")}
    for file, included in code.items():
        for header in implemented(file, included):
            if header in needs:
                needs[header].append(file)
    found = {}
    for file, text in files.items():
        for suite in SUITE.findall(text) if file.startswith("tests/parity/") else ():
            found.setdefault(suite, set(OF_ALL_SUITES)).update(reached(file, needs))
    return found


def reached(start, needs):
    seen, todo = {start}, [start]
    while todo:
        new = set(needs[todo.pop()]) - seen
        seen |= new
        todo += new
    return seen


def last_revision(root=ROOT):
    """The revision of the latest measurement; None if there is none."""
    runs = [json.loads(path.read_text("utf-8")).get("last_run") for path in sorted((root / "sim" / "roofline").glob("*.json"))]
    return max((run["date"], run["revision"]) for run in runs if run)[1] if any(runs) else None


def changed_files(revision, root=ROOT):
    """The files that changed; None if git cannot tell."""
    def git(*arguments):
        return subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True, text=True).stdout.split("\0")
    try:
        return {*git("diff", "--name-only", "-z", "--no-renames", revision, "--"),
                *git("ls-files", "-z", "--others", "--exclude-standard")}
    except (OSError, subprocess.CalledProcessError):
        return None


def changed_suites(revision, root=ROOT):
    changed = changed_files(revision, root) if revision else None
    return sorted(suite for suite, sources in sources_of_suites(root).items() if changed is None or sources & changed)


if __name__ == "__main__":
    sys.stdout.writelines(f"{suite}\n" for suite in changed_suites(sys.argv[1] if len(sys.argv) > 1 else last_revision()))
