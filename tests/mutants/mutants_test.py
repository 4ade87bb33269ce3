"""Mutation tests: each wrong formula must be noticed by the tests that its entry in a mutants.json names.

usage: mutants_test.py [CMAKE BUILD [NAME...]]
CMAKE: the program that builds; BUILD: the build folder; NAME: a mutant to test; all by default
Without arguments only the lists are checked: every mutant changes exactly one place, and every theorem kills a mutant.
KVBOUND_MUTANTS=K/N in the environment: only the K-th of N parts of all mutants, K = 0, 1, ..., N - 1, and of those whose
file's code or entry has changed in the two and a half hours before the last commit at most 48, evenly spread
"""
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutants.program import Programs, source_of
from support.share import part_of

ROOT = Path(__file__).resolve().parent.parent.parent
JOBS = 2
SECONDS = 300  # limit for one test on one mutant, which may have become an endless loop
LATELY = 9000  # seconds before the last commit
MOST_LATELY = 48  # of those that have changed since, so that a change of many files does not take hours
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GTEST_COLOR": "no", "RC_PARAMS": "seed=1"}
ENVIRONMENT.pop("GTEST_FILTER", None)
FIELDS = {"name", "file", "original", "mutated", "wrong", "killed_by"}


def entries(path, text):
    """The entries of one list, `path` from the top folder; `file` is below the top folder."""
    folder = Path(path).parent.relative_to("tests")
    return [{**mutant, "file": str(folder / mutant.get("file", ""))} for mutant in json.loads(text)]


def all_mutants():
    """The entries of all lists, by folder."""
    lists = sorted((ROOT / "tests").rglob("mutants.json"))
    return [mutant for path in lists for mutant in entries(path.relative_to(ROOT), path.read_text("utf-8"))]


def theorems():
    """The ids of the catalogue; theorem_test.cpp requires that they are the anchors of the written proofs."""
    return [theorem for page in sorted((ROOT / "proofs").glob("*.md"))
            for theorem in re.findall(r'<a id="([^"]+)"', page.read_text("utf-8"))]


def test_of(killer):
    """The full name of the test for a theorem's id; the name of a test is returned as it is."""
    if killer not in theorems():
        return killer
    return "Catalogue/TheoremProperty.HasNoCounterexample/" + re.sub(r"[^0-9A-Za-z]", "_", killer)


def outcome(program, killer):
    """The result of one test: "passed", "failed", or a description of any other outcome."""
    test = test_of(killer)
    command = [program, f"--gtest_filter={test}"]
    try:
        run = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, timeout=SECONDS, errors="replace", text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"ran for more than {SECONDS} s"
    said = {word for word, name in re.findall(r"^\[ +(OK|FAILED) +\] ([^\s,]+)", run.stdout, re.MULTILINE)
            if name == test}
    if run.returncode == 0 and said == {"OK"}:
        return "passed"
    if run.returncode == 1 and said == {"FAILED"}:
        return "failed"
    return "no such test" if run.returncode == 0 else f"ended with status {run.returncode}"


def faults_of_the_lists(mutants):
    faults = [f"{mutant.get('name')}: fields are {sorted(mutant)}" for mutant in mutants
              if set(mutant) - {"compiled_in"} != FIELDS]
    faults += [f"{mutant.get('name')}: only a header's mutant, and each of them, is compiled in a source"
               for mutant in mutants if ("compiled_in" in mutant) != str(mutant.get("file")).endswith(".hpp")]
    if faults:
        return faults
    faults += [f"{name}: more than one mutant of this name"
               for name, count in Counter(mutant["name"] for mutant in mutants).items() if count > 1]
    faults += [f"{mutant['name']}: nothing is said to kill it" for mutant in mutants if not mutant["killed_by"]]
    faults += [f"{mutant['name']}: it changes nothing" for mutant in mutants if mutant["original"] == mutant["mutated"]]
    faults += [f"{mutant['name']}: its original text is not once in {mutant['file']}"
               for mutant in mutants if (ROOT / mutant["file"]).read_text("utf-8").count(mutant["original"]) != 1]
    killers = {killer for mutant in mutants for killer in mutant["killed_by"]}
    faults += [f"{theorem}: no mutant is said to violate this theorem"
               for theorem in theorems() if theorem not in killers]
    return faults


def code(text):
    """C++ without its comments and white space."""
    return re.sub(r"//[^\n]*|\s", "", text)


def lately_changed(mutants):
    """Those whose file's code or whose entry the latest commits have changed, or differs from the last one; none without git."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    last = git("log", "-1", "--format=%ct")
    before = last and git("rev-list", "-1", "--first-parent", f"--before={int(last) - LATELY}", "HEAD")
    if not before:
        return []
    files = {file for mutant in mutants for file in (mutant["file"], mutant.get("compiled_in")) if file}
    changed = {file for file in files.intersection(git("diff", "--name-only", before).splitlines())
               if code(git("show", f"{before}:{file}")) != code((ROOT / file).read_text("utf-8"))}
    lists = git("ls-tree", "-r", "--name-only", before, "tests").splitlines()
    old = [mutant for path in lists if path.endswith("/mutants.json")
           for mutant in entries(path, git("show", f"{before}:{path}"))]
    return [mutant for mutant in mutants if {mutant["file"], mutant.get("compiled_in")} & changed or mutant not in old]


def chosen(mutants):
    """The part of the mutants that the environment asks for, and those that have changed lately."""
    part = part_of(mutants, "KVBOUND_MUTANTS")
    lately = lately_changed(mutants) if "KVBOUND_MUTANTS" in os.environ else []
    lately = lately[::max(1, -(-len(lately) // MOST_LATELY))]
    return [mutant for mutant in mutants if mutant in part or mutant in lately]


def check_lists():
    mutants = all_mutants()
    faults = faults_of_the_lists(mutants)
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(mutants)} mutants, each of which changes one place")


def main(cmake, folder, *names):
    mutants = all_mutants()
    faults = faults_of_the_lists(mutants)
    unknown = set(names) - {mutant["name"] for mutant in mutants}
    if unknown:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in mutants if mutant["name"] in names] if names else chosen(mutants)
    start = time.monotonic()
    programs = Programs(cmake, Path(folder).resolve())
    with ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(programs.compile_unmutated, programs.beside_any(map(source_of, mutants))))
        built = dict(zip((mutant["name"] for mutant in mutants), pool.map(programs.build, mutants)))
    seconds = time.monotonic() - start

    pairs = [(mutant, killer) for mutant in mutants for killer in mutant["killed_by"]]
    killers = sorted({(programs.unmutated(mutant), killer) for mutant, killer in pairs})
    start = time.monotonic()
    with ThreadPoolExecutor(JOBS) as pool:
        control = list(pool.map(lambda pair: outcome(*pair), killers))
        faults += [f"{killer}: on the program as it is: {result}"
                   for (_, killer), result in zip(killers, control) if result != "passed"]
        results = list(pool.map(lambda pair: outcome(built[pair[0]["name"]], pair[1]), pairs))

    width = max(len(mutant["name"]) for mutant in mutants)
    print(f"{'mutant':{width}}  {'file':36}  killed by")
    for (mutant, killer), result in zip(pairs, results):
        killed = result == "failed"
        told = killer if killed else f"NOT by {killer}: {result}"
        print(f"{mutant['name']:{width}}  {mutant['file']:36}  {told}")
        if not killed:
            faults.append(f"{mutant['name']} ({mutant['wrong']}): not killed by {killer}: {result}")
    by_theorems = sum(any(killer in theorems() for killer in mutant["killed_by"]) for mutant in mutants)
    print(f"\n{len(mutants)} mutants, {by_theorems} of them killed by theorems, {len(killers)} killers; "
          f"built in {seconds:.0f} s, run in {time.monotonic() - start:.0f} s")
    if faults:
        sys.exit("\n" + "\n".join(faults))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(__doc__)
    if len(sys.argv) == 1:
        check_lists()
    else:
        main(*sys.argv[1:])
