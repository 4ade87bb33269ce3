#!/usr/bin/python3
"""Shows that a refactoring changed no number: two programs write the same dumps and reports, and diff judges alike.

usage: same_numbers.py BEFORE AFTER [--long]      two kvbound programs

Replays   Both programs replay every method of the grammar (same_policies.py) on the samples and on generated traces.
          Their dumps must be equal tensor by tensor and bit for bit, their JSON reports value by value, provenance
          (revision, compiler, machine, times) excepted; likewise on the emulated device, and for `recall` and `predict`.
Verdicts  Both programs' `diff` judges the same dumps (changed_dumps.py), right and wrong ones. Exit codes, verdicts,
          counts, worst elements, errors and bounds must be equal, and so must the element named on standard error.

same_files.RENAMED lists renamed tensors and fields; each program gets dumps with the tensor names that it writes itself.
--long: all layers and steps of the samples, a second budget, all changed dumps of all policies, and every dump of
tests/cli/diff_*_test.py.
Both programs run with the same OPENBLAS_CORETYPE, the environment's or else Haswell: it decides how products are summed.
Exit codes: 0 all equal, 1 a difference or an empty comparison, 2 usage.
"""
import collections
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the folder of `support`
import same_policies
from changed_dumps import dumps_to_judge, in_newer_names
from same_files import (common_report, compare_dumps, compare_reports, newer_name, older_name, renamed_file)
import independent.replay
from support import kvbound_cli
from support.dumps import Dump
from support.kvbound_cli import PASS, REPOSITORY, SAMPLES

CORE_TYPE = "Haswell"
SHOWN = 3  # differences of one row
# The traces of the dumps that are judged:
JUDGED = {"tokens": 100, "layers": 2, "query-heads": 4, "kv-heads": 2, "decode": 5}
JUDGED_KINDS = (("mixed", "F64"), ("power-law", "BF16"), ("tied", "F32"), ("sink", "F16"))
TESTS = ("diff_command", "diff_hosts", "diff_merging")


class Programs(NamedTuple):
    before: Path
    after: Path
    namings: tuple  # per program the function that names a dump's tensors as the program itself does


class Result(NamedTuple):
    """One row: how much was compared, how many dumps got which verdict, and a description of every difference."""
    counts: collections.Counter
    differences: list


def run(program, *arguments, folder):
    return subprocess.run([program, *map(str, arguments)], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, errors="surrogateescape", timeout=3600)


def run_both(programs, *arguments, folder):
    """Both programs in folders of their own; returns [(folder, finished process)]."""
    folders = [folder / name for name in ("before", "after")]
    for path in folders:
        path.mkdir()
    return [(path, run(program, *arguments, folder=path)) for program, path in zip(programs, folders)]


def failures(runs):
    """Descriptions of the runs that did not pass."""
    return [f"{path.name}: exit code {process.returncode}: {process.stderr.strip()}"
            for path, process in runs if process.returncode != PASS]


def report_differences(runs):
    """Compares the out.json of both runs: (how many numbers, descriptions of the differences)."""
    reports = [json.loads((path / "out.json").read_text()) for path, _ in runs]
    numbers, differences = compare_reports(*reports)
    cores = [report.get("blas", {}).get("core") for report in reports]
    if cores[0] != cores[1]:
        differences.insert(0, f"blas.core: {cores[0]} before, {cores[1]} after, which decides how products are summed")
    return numbers, [f"out.json: {text}" for text in differences]


def replay(programs, folder, trace, policy, budget, layers, options):
    """One policy at one budget: its dumps, one per backend, and its report. layers: those that the dumps must contain."""
    dump = "dumps/" if "--backend" in options else "dump.safetensors"  # several backends need a folder
    runs = run_both(programs[:2], "replay", trace, "--policy", policy, "--budget", budget, "--dump", dump,
                    "--json", "out.json", "--threads", "1", "--quiet", *options, folder=folder)
    counts, differences = collections.Counter(), failures(runs)
    if differences:
        return Result(counts, differences)
    dumps = [{path.name: independent.replay.open_tensors(path) for path in place.rglob("*.safetensors")}
             for place, _ in runs]
    names = sorted(dumps[0].keys() & dumps[1].keys())
    if not names or dumps[0].keys() != dumps[1].keys():
        differences.append(f"dumps {sorted(dumps[0])} before, {sorted(dumps[1])} after")
    for name in names:
        compared = compare_dumps(dumps[0][name], dumps[1][name], layers)
        counts.update(dumps=1, tensors=compared.tensors, bytes=compared.bytes)
        differences += compared.differences
    numbers, of_reports = report_differences(runs)
    counts.update(numbers=numbers)
    return Result(counts, of_reports[:1] + differences + of_reports[1:])


def figures(programs, folder, *arguments):
    """A command of which only the JSON report is compared."""
    runs = run_both(programs[:2], *arguments, "--json", "out.json", "--threads", "1", "--quiet", folder=folder)
    differences = failures(runs)
    if differences:
        return Result(collections.Counter(), differences)
    numbers, differences = report_differences(runs)
    return Result(collections.Counter(reports=1, numbers=numbers), differences)


class Verdict(NamedTuple):
    exit_code: int
    report: dict  # None: the dump was refused
    named: str    # the element that standard error names first, None for none
    message: str

    @classmethod
    def of(cls, program, trace, data, naming, folder):
        """The verdict of `diff` on a dump with these bytes."""
        (folder / "dump.safetensors").write_bytes(renamed_file(data, naming))
        (folder / "out.json").unlink(missing_ok=True)
        process = run(program, "diff", trace, "dump.safetensors", "--json", "out.json", "--threads", "1", folder=folder)
        report = folder / "out.json"
        first = re.search(r"(layers\.\d+\.\w+)(\[[\d, ]+\])", process.stderr)
        return cls(process.returncode, json.loads(report.read_text()) if report.exists() else None,
                   first and newer_name(first[1]) + first[2], process.stderr.strip())

    def word(self):
        return self.report["verdict"] if self.report else f"refused, exit code {self.exit_code}"


def compare_verdicts(before, after):
    """(how many numbers were compared, descriptions of the differences)"""
    for what in ("exit_code", "named"):
        ours, theirs = getattr(before, what), getattr(after, what)
        if ours != theirs and (what == "exit_code" or before.report):
            return 0, [f"{what.replace('_', ' ')} {ours} before, {theirs} after: {before.message!r}, {after.message!r}"]
    if (before.report is None) != (after.report is None):
        return 0, ["only one of the programs wrote a report"]
    return compare_reports(before.report, after.report) if before.report else (0, [])


def judge(programs, folder, trace, data):
    """Both programs' `diff` of one dump: a Result, which counts the older program's verdict."""
    verdicts = [Verdict.of(program, trace, data, naming, folder)
                for program, naming in zip(programs[:2], programs.namings)]
    numbers, differences = compare_verdicts(*verdicts)
    counts = collections.Counter({"dumps": 1, "numbers": numbers, verdicts[0].word(): 1})
    if verdicts[0].exit_code < 0 or verdicts[0].exit_code > 5:
        differences = differences + [f"exit code {verdicts[0].exit_code}: {verdicts[0].message}"]
    return Result(counts, differences)


def judge_policy(programs, folder, trace, policy, budget, one_in, first, options):
    """Both programs' `diff` of all dumps made from one that the older program writes; one_in, first: changed_dumps.py."""
    process = run(programs.before, "replay", trace, "--policy", policy, "--budget", budget, "--dump", "right.safetensors",
                  "--threads", "1", "--quiet", *options, folder=folder)
    if process.returncode != PASS:
        return Result(collections.Counter(), [f"before: exit code {process.returncode}: {process.stderr.strip()}"])
    right = in_newer_names(Dump.read(folder / "right.safetensors"))
    verdict = Verdict.of(programs.before, trace, right.bytes(), programs.namings[0], folder)
    if not verdict.report:
        return Result(collections.Counter(), [f"the right dump is {verdict.word()}: {verdict.message}"])
    counts, differences = collections.Counter(), []
    for label, data in dumps_to_judge(right, common_report(verdict.report)["tensors"], trace, JUDGED["tokens"], one_in,
                                      first):
        result = judge(programs, folder, trace, data)
        counts += result.counts
        differences += [f"{label}: {text}" for text in result.differences]
    return Result(counts, differences)


def test_methods(name):
    """The tests of NAME_test.py of tests/cli: [(NAME, class, method)]."""
    suites = unittest.defaultTestLoader.loadTestsFromModule(test_module(name))
    return [(name, *test.id().split(".")[-2:]) for suite in suites for test in suite]


def test_module(name):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "tests" / "cli" / f"{name}_test.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judge_test(programs, folder, name, case, method):
    """Runs one test with the newer program, and gives every dump that the test passes to `diff` to both programs.

    The test must pass: after a failure its remaining dumps would not be judged.
    """
    counts, differences = collections.Counter(), []

    def run_program(test, *arguments, **options):
        paths = [test.folder / str(argument) for argument in arguments[1:3]]
        if arguments[:1] == ("diff",) and len(paths) == 2 and all(path.is_file() for path in paths):
            result = judge(programs, folder, paths[0], paths[1].read_bytes())
            counts.update(result.counts)
            differences.extend(result.differences)
        return run_test_program(test, *arguments, **options)

    run_test_program, kvbound_cli.program = kvbound_cli.CommandLineTest.run_program, programs.after
    kvbound_cli.CommandLineTest.run_program = run_program
    try:
        outcome = unittest.TestResult()
        getattr(test_module(name), case)(method).run(outcome)
    finally:
        kvbound_cli.CommandLineTest.run_program = run_test_program
    if outcome.errors or outcome.failures:
        text = (outcome.errors + outcome.failures)[0][1].strip().splitlines()[-1]
        differences.append(f"this test fails with AFTER, so some of its dumps may not have been judged: {text}")
    return Result(counts, differences)


class Job(NamedTuple):
    cells: tuple  # its trace, policy and budget, as printed
    work: object  # function(programs, folder, *arguments) -> Result
    arguments: tuple


def finished(job, programs):
    """The job's Result; an exception is a difference."""
    with tempfile.TemporaryDirectory(prefix="kvbound-same-") as folder:
        try:
            return job.work(programs, Path(folder).resolve(), *job.arguments)
        except Exception as error:
            return Result(collections.Counter(), [f"{type(error).__name__}: {error}"])


def generate(program, folder, name, **options):
    """A trace by the older program; returns its path."""
    path = folder / f"{name}.safetensors"
    process = run(program, "generate", *(word for option, value in (same_policies.SIZES | options).items()
                                         for word in (f"--{option}", value)), path, folder=folder)
    if process.returncode != PASS:
        sys.exit(f"{program} generate: {process.stderr.strip()}")
    return path


def replay_jobs(programs, folder, long):
    traces = {name: (SAMPLES / f"{name}.safetensors", range(4) if long else (0, 3),
                     () if long else ("--layers", "0,3", "--steps", "16")) for name in same_policies.SAMPLES}
    for name, options in same_policies.GENERATED.items():
        traces[name] = generate(programs.before, folder, name, **options), range(options["layers"]), ()
    for name, (trace, layers, options) in traces.items():
        sample = name in same_policies.SAMPLES
        for budget in ("15%" if sample else "25%", *(("60%",) if long else ())):
            for policy in same_policies.POLICIES:
                more = ("--merge-bounds",) if policy in same_policies.MERGING and not sample else ()
                yield Job((name, policy, budget), replay, (trace, policy, budget, layers, options + more))
        for policy in same_policies.GREEDY:
            few = ("--layers", "0", "--steps", "8") if sample else ()
            yield Job((name, policy, "95%"), replay, (trace, policy, "95%", (0,) if sample else layers, few))
        for policy in () if sample else same_policies.EMULATED:
            yield Job((name, policy + " emulated", "25%"), replay,
                      (trace, policy, "25%", layers, ("--backend", "reference,emulated")))
        for command in (("recall", trace, *options[:2]), ("predict", trace, *options)):  # recall has no --steps
            yield Job((name, f"({command[0]})", ""), figures, command)
        several = ",".join(same_policies.PLAIN[:8] + same_policies.MERGING[:3])
        yield Job((name, "(several, --base snapkv)", "30%"), figures,
                  ("replay", trace, "--policy", several, "--base", "snapkv", "--budget", "30%", *options))


def verdict_jobs(programs, folder, long):
    traces = [(f"{kind}-{dtype}", generate(programs.before, folder, f"judged-{kind}-{dtype}", kind=kind, dtype=dtype,
                                           **JUDGED)) for kind, dtype in JUDGED_KINDS]
    policies = [(policy, ()) for policy in same_policies.POLICIES + same_policies.GREEDY]
    policies += [(policy, ("--backend", "emulated")) for policy in same_policies.EMULATED]
    for number, (policy, options) in enumerate(policies):
        one_in = 1 if long or (policy in same_policies.THOROUGH and not options) else same_policies.ONE_IN
        for name, trace in traces if long else [traces[number % len(traces)]]:
            yield Job((name, " ".join((policy, *options[1:])), "50"), judge_policy,
                      (trace, policy, "50", one_in, number, options))


def test_jobs(*_):
    for test in (test for name in TESTS for test in test_methods(name)):
        yield Job((test[0], ".".join(test[1:]), ""), judge_test, test)


def work_off(title, jobs, measures, pool, programs):
    """Runs these jobs and prints a row for each; returns (rows with differences, sum of the counts, rows)."""
    print(f"\n{title}")
    head = ("trace", "policy", "budget")
    widths = [max(map(len, column)) for column in zip(*(job.cells for job in jobs), head)]
    print("  ".join([*map(str.ljust, head, widths), *(f"{name:>9}" for name in measures), "equal?"]))
    unequal, counts = 0, collections.Counter()
    futures = [pool.submit(finished, job, programs) for job in jobs]
    for number, (job, future) in enumerate(zip(jobs, futures)):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(jobs)}\r", end="", file=sys.stderr, flush=True)
        result = future.result()
        counts += result.counts
        unequal += bool(result.differences)
        print("  ".join([*map(str.ljust, job.cells, widths), *(f"{result.counts[name]:9}" for name in measures),
                         "NO" if result.differences else "yes"]))
        for text in result.differences[:SHOWN]:
            print(f"    {text}")
        if len(result.differences) > SHOWN:
            print(f"    and {len(result.differences) - SHOWN} more differences")
        sys.stdout.flush()
    return unequal, counts, len(jobs)


def naming(program, folder):
    """How this program names the tensors of its dumps: newer_name or older_name."""
    trace = generate(program, folder, "naming", kind="flat", tokens=60)
    dump = folder / "naming-dump.safetensors"
    process = run(program, "replay", trace, "--policy", "tova", "--budget", "20", "--dump", dump, folder=folder)
    if process.returncode != PASS:
        sys.exit(f"{program} replay: {process.stderr.strip()}")
    return newer_name if "evicted" in Dump.read(dump).kinds() else older_name


def main(before, after, long):
    os.environ.setdefault("OPENBLAS_CORETYPE", CORE_TYPE)
    processors = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="kvbound-same-") as name, ProcessPoolExecutor(processors) as pool:
        folder = Path(name).resolve()
        programs = Programs(before, after, tuple(naming(program, folder) for program in (before, after)))
        parts = [("Replays: dumps bit for bit, reports", replay_jobs, ("tensors", "bytes", "numbers")),
                 ("Verdicts of diff", verdict_jobs, ("dumps", "numbers"))]
        if long:
            parts.append(("Verdicts of diff on the dumps of its tests", test_jobs, ("dumps", "numbers")))
        totals = [work_off(title, list(jobs(programs, folder, long)), measures, pool, programs)
                  for title, jobs, measures in parts]
    replays, verdicts = totals[0][1], sum((counts for _, counts, _ in totals[1:]), collections.Counter())
    words = {word: count for word, count in verdicts.items() if word not in ("dumps", "numbers")}
    print(f"\nverdicts: {', '.join(f'{count} {word}' for word, count in sorted(words.items()))}")
    unequal = sum(rows for rows, _, _ in totals)
    print(f"{sum(rows for _, _, rows in totals)} rows, {unequal} with differences: {replays['dumps']} dumps, "
          f"{replays['tensors']} tensors, {replays['bytes']} bytes, {replays['numbers']} numbers of reports; "
          f"{verdicts['dumps']} dumps judged, {verdicts['numbers']} numbers of verdicts; "
          f"OPENBLAS_CORETYPE={os.environ['OPENBLAS_CORETYPE']}")
    return bool(unequal or len(words) < 4 or not replays["bytes"])


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--long"]
    if len(arguments) != 2 or not all(map(os.path.isfile, arguments)):
        print(__doc__[__doc__.index("usage"):].splitlines()[0], file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*(Path(argument).resolve() for argument in arguments), "--long" in sys.argv))
