"""kvbound sweep and gather: the numbers of one replay, whoever computed them, whatever was killed meanwhile."""
import hashlib
import json
import os
import re
import signal
import time
from pathlib import Path

from support import kvbound_cli
from support.documents import read, without_times_and_hosts
from support.kvbound_cli import INCONCLUSIVE, INVALID, PASS, USAGE, WORLD, CommandLineTest

POLICIES = ("snapkv:window=4", "snapkv:window=4+critical", "random:seed=0:sinks=4:window=4", "h2o:window=4+keepkv")
BUDGETS = ("30%", "16")


def without_time_lines(table):
    """A table without the lines that end in times, which only devices have."""
    return [line for line in table.splitlines() if not re.search(r" [0-9.]+ (ns|us|ms|s)( |$)", line)]


class SweepTest(CommandLineTest):
    LAYERS = 3

    def setUp(self):
        super().setUp()
        self.traces = []
        for name, layers in (("a", self.LAYERS), ("b", 2), ("c", 1)):
            self.passes("generate", "--kind", "mixed", "--tokens", "64", "--decode", "3", "--layers", str(layers), "--query-heads",
                        "4", "--kv-heads", "2", "--head-dim", "8", "--model-dim", "16", "--window-queries", "8", f"{name}.safetensors")
            self.traces.append(f"{name}.safetensors")
        self.write_plan()

    def write_plan(self, name="plan.json", **members):
        plan = {"format": "kvbound-sweep-plan", "version": 1, "traces": ["?.safetensors"], "policies": list(POLICIES),
                "budgets": list(BUDGETS), "base": POLICIES[0]} | members
        (self.folder / name).write_text(json.dumps(plan))

    def replayed(self, policies=POLICIES, budgets=BUDGETS, *arguments):
        """JSON, CSV and tables of one replay of everything."""
        table = self.passes("replay", *self.traces, "--policy", ",".join(policies), "--budget", ",".join(budgets), "--base",
                            POLICIES[0], "--json", "replay.json", "--csv", "replay.csv", *arguments)
        return (self.folder / "replay.json").read_text(), (self.folder / "replay.csv").read_text(), table

    def check_gathered(self, out="study", *arguments, replayed=None):
        """The sweep's results are those of one replay."""
        table = self.passes("gather", out, "--json", "gathered.json", "--csv", "gathered.csv", *arguments)
        document, csv, expected_table = replayed or self.replayed()
        self.assertEqual(without_times_and_hosts(self.folder / "gathered.json"), without_times_and_hosts(self.folder / "replay.json"))
        self.assertGreater(len(document), 10000)
        self.assertEqual((self.folder / "gathered.csv").read_text(), csv)
        for text in (table, expected_table):
            self.assertIn("improved heads", text)
        self.assertEqual(without_time_lines(table), without_time_lines(expected_table))

    def results(self, out="study"):
        return {path.name for path in (self.folder / out / "results").glob("*/*") if not path.name.startswith(".")}

    def temporaries(self, out="study"):
        return [str(path) for path in (self.folder / out).rglob(".*")]

    def workers_of(self, process):
        """The worker processes of a sweep."""
        children = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == process.pid:
                children.append(int(status.parent.name))
        return children


class Sweeps(SweepTest):
    def test_gathered_results_are_those_of_one_replay(self):
        for jobs in ("1", "3"):
            with self.subTest(jobs=jobs):
                out = f"study{jobs}"
                said = self.passes("sweep", "plan.json", "--out", out, "--jobs", jobs)
                self.assertRegex(said, r"\A3 traces, 8 runs, 6 items, of which 0 are done\n6 items computed in [0-9.]+ s\n\Z")
                self.check_gathered(out)

    def test_nothing_is_computed_twice(self):
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        times = {path: path.stat().st_mtime_ns for path in (self.folder / "study" / "results").glob("*/*")}
        self.assertIn("0 items computed", self.passes("sweep", "plan.json", "--out", "study"))
        self.assertIn("0 items computed", self.passes("sweep", "--out", "study"))
        self.write_plan(policies=[POLICIES[2], POLICIES[0]], budgets=[BUDGETS[1]])
        self.assertIn("0 items computed", self.passes("sweep", "plan.json", "--out", "study"), "a part of what is there")
        self.assertEqual({path: path.stat().st_mtime_ns for path in (self.folder / "study" / "results").glob("*/*")}, times)
        self.write_plan(policies=[*POLICIES, "tova"])
        self.assertIn("6 items computed", self.passes("sweep", "plan.json", "--out", "study"))
        self.check_gathered(replayed=self.replayed((*POLICIES, "tova")))

    def test_results_may_be_written_at_once(self):
        self.passes("sweep", "plan.json", "--out", "study", "--json", "one.json", "--csv", "one.csv")
        document, csv, _ = self.replayed()
        self.assertEqual(without_times_and_hosts(self.folder / "one.json"), without_times_and_hosts(self.folder / "replay.json"))
        self.assertGreater(len(document), 10000)
        self.assertEqual((self.folder / "one.csv").read_text(), csv)

    def test_seeds_backends_and_blocks_are_as_the_plan_says(self):
        self.write_plan(seeds=[0, 5], backends=["reference", "emulated"], layers="0", steps=2, recall=7, merge_bounds=True,
                        layers_per_item=2, policies_per_item=2, policies=[POLICIES[0], "random:window=4", POLICIES[3]])
        self.passes("sweep", "plan.json", "--out", "study", "--jobs", "2", "--quiet")
        seeded = [f"random:seed={seed}:sinks=4:window=4" for seed in (0, 5)]
        self.check_gathered(replayed=self.replayed((POLICIES[0], *seeded, POLICIES[3]), BUDGETS, "--backend", "reference,emulated",
                                                   "--layers", "0", "--steps", "2", "--recall", "7", "--merge-bounds"))

    def test_the_list_has_every_item_with_its_cost(self):
        listed = self.passes("sweep", "plan.json", "--out", "study", "--list")
        self.assertEqual(listed.count("to do  "), 6)
        self.assertIn("b.safetensors, layer 1, 8 runs", listed)
        self.assertIn("not known before items are finished", listed)
        listed = self.passes("sweep", "plan.json", "--out", "study", "--list", "--calibrate", "2")
        self.assertRegex(listed, r"6 items, 2 done; to do: [0-9.e-]+ s of one process, by rates of 2 finished items")
        self.assertEqual(len(self.results()), 2)

    def test_a_simulation_is_no_shorter_than_its_bound(self):
        self.passes("sweep", "plan.json", "--out", "study", "--list")
        self.refuses(USAGE, "no item is finished", "sweep", "--out", "study", "--simulate", "100")
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        rows = [line.split() for line in self.passes("sweep", "--out", "study", "--simulate", "5000").splitlines()[3:]]
        self.assertEqual([int(row[0]) for row in rows], [2**i for i in range(11)])
        for workers, makespan, bound, ratio in rows:
            self.assertGreaterEqual(float(ratio), 1)
            self.assertGreaterEqual(float(makespan), float(bound))

    def test_nothing_of_a_sweep_that_has_not_begun_is_gathered(self):
        self.passes("sweep", "plan.json", "--out", "study", "--list")
        result = self.run_program("gather", "study", "--partial", "--json", "out.json")
        self.assertEqual(result.returncode, INCONCLUSIVE)
        self.assertIn("no results of 6 items:", result.stderr)
        self.assertEqual(read(self.folder / "out.json")["parts"], [])

    def test_results_go_to_pipes_too(self):
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        self.passes("gather", "study", "--json", "out.json", "--quiet")
        piped = self.passes("gather", "study", "--json", "/dev/stdout", "--quiet")
        self.assertEqual(json.loads(piped), json.loads((self.folder / "out.json").read_text()))

    def test_outputs_do_not_replace_inputs(self):
        self.refuses(USAGE, "--json: 'plan.json' is an input", "sweep", "plan.json", "--out", "study", "--json", "plan.json")
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        self.refuses(USAGE, "--csv: 'study/plan.json' is an input", "gather", "study", "--csv", "study/plan.json")

    def test_damaged_results_are_missing_and_computed_again(self):
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        path = next((self.folder / "study/results").glob("*/*"))
        sound = path.read_bytes()
        # of the environment, with its right hash
        body = sound[64:].replace(b"\x67version\x65", b"\x67wersion\x65", 1)
        self.assertNotEqual(body, sound[64:])
        flipped = bytearray(sound)
        flipped[len(sound) // 2] ^= 1
        for kind, damage in (("cut", sound[:-1]), ("a bit", bytes(flipped)), ("empty", b""), ("text", b"{}"), ("folder", None),
                             ("environment", hashlib.sha256(body).hexdigest().encode() + body)):
            with self.subTest(kind):
                path.unlink()
                if damage is None:
                    path.mkdir()
                    (path / "inside").touch()
                else:
                    path.write_bytes(damage)
                line = rf"\Akvbound: study/results/../{path.name}: [^\n]*; it counts as missing\n"
                if kind == "environment":
                    self.refuses(INVALID, rf"results/../{path.name}: is no result of a sweep: version is missing", "gather", "study",
                                 "--json", "out.json", silent=True)
                for arguments, code, rest in ((("gather", "study", "--json", "out.json"), INCONCLUSIVE, "no results of 1 item:"),
                                              (("gather", "study", "--partial", "--json", "part.json"), INCONCLUSIVE, "no results of 1 item:"),
                                              (("sweep", "--out", "study", "--list"), PASS, r"\Z"),
                                              (("sweep", "--out", "study", "--simulate", "10"), PASS, r"\Z")):
                    if kind == "environment" and "out.json" in arguments:
                        continue
                    result = self.run_program(*arguments)
                    self.assertEqual(result.returncode, code, result.stderr)
                    self.assertRegex(result.stderr, line + ("" if rest == r"\Z" else "kvbound: study: ") + rest)
                    if "--list" in arguments:
                        self.assertEqual(result.stdout.count("to do  "), 1)
                self.assertFalse((self.folder / "out.json").exists())
                self.assertEqual(len(read(self.folder / "part.json")["parts"]), 2)
                self.assertTrue(path.exists(), "who only looks removes nothing")
                result = self.run_program("sweep", "--out", "study", "--resume")
                self.assertRegex(result.stderr, line + r"\Z")
                self.assertIn("1 items computed", result.stdout)
                self.assertEqual(result.returncode, PASS)
                self.check_gathered()

    def test_many_damaged_results_are_not_all_named(self):
        self.write_plan(policies_per_item=1)
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        for path in (self.folder / "study/results").glob("*/*"):
            path.write_bytes(b"")
        result = self.run_program("sweep", "--out", "study", "--list")
        self.assertEqual((result.returncode, result.stderr.count("counts as missing")), (PASS, 20))
        self.assertIn("kvbound: and 4 more damaged results\n", result.stderr)
        self.assertIn("24 items computed", self.run_program("sweep", "--out", "study").stdout)
        self.check_gathered()

    def test_a_task_of_an_array_leaves_damage_to_whoever_submitted_it(self):
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        path = next((self.folder / "study/results").glob("*/*"))
        path.write_bytes(b"")
        sweep = next((self.folder / "study/plans").iterdir()).stem
        self.assertIn("0 items computed", self.passes("sweep", "--out", "study", "--sweep", sweep, "--share", "0/1"))
        self.assertIn("1 items computed", self.run_program("sweep", "--out", "study", "--sweep", sweep).stdout)
        self.check_gathered()

    def test_a_sweep_is_named_by_its_hash_and_nothing_else(self):
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        plan = next((self.folder / "study/plans").iterdir())
        plan.with_name("x;touch pwned;x.json").write_bytes(plan.read_bytes())
        (self.folder / "elsewhere.json").write_bytes(plan.read_bytes())
        for name in ("x;touch pwned;x", "../../elsewhere", "../plan", plan.stem[:-1], plan.stem + "0", plan.stem.upper(), "", "a\nb"):
            self.refuses(USAGE, "--sweep .*expected a hash, 64 hexadecimal digits", "sweep", "--out", "study", "--sweep", name)
            self.refuses(USAGE, "--sweep .*expected a hash", "sweep", "--out", "study", "--sweep", name, "--worker", "0/1")
            self.refuses(USAGE, "--sweep .*expected a hash", "gather", "study", "--sweep", name)
        plan.write_bytes(plan.read_bytes().replace(b'"30%"', b'"31%"'))
        self.refuses(INVALID, f"{plan.name}: was damaged: its hash is another", "gather", "study", "--sweep", plan.stem)

    def test_job_scripts_hold_nothing_that_runs(self):
        """With commands that take the place of Slurm's."""
        (self.folder / "bin").mkdir()
        for name, text in (("sbatch", 'PATH=$TRUE_PATH SLURM_ARRAY_TASK_ID=0 bash "${@: -1}" >log 2>&1; echo 12'),
                           ("srun", 'while [[ "$1" == --* ]]; do shift; done; exec "$@"')):
            (self.folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
            (self.folder / "bin" / name).chmod(0o755)
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "TRUE_PATH": path}
        odd = "it's $(touch pwned)`touch pwned`; touch pwned;"
        result = self.run_program("sweep", "plan.json", "--out", odd, "--engine", "slurm", "--json", odd + ".json", env=environment)
        self.assertEqual(result.returncode, PASS, result.stderr)
        self.assertEqual(len(self.results(odd)), 6, "the script is whole")
        self.assertEqual(len(read(self.folder / (odd + ".json"))["parts"]), 3)
        for options in (("--sbatch", "--time=1\ntouch pwned"), ("--sbatch", "\x1b"), ("--json", "a\nb"), ("--csv", "a\rb")):
            result = self.run_program("sweep", "plan.json", "--out", "study", "--engine", "slurm", *options, env=environment)
            self.assertEqual((result.returncode, result.stdout), (USAGE, ""))
            self.assertRegex(result.stderr, rf"\Akvbound: {options[0]} .*control characters do not go with --engine slurm\n\Z")
        result = self.run_program("sweep", "plan.json", "--out", "a\nb", "--engine", "slurm", env=environment)
        self.assertEqual(result.returncode, USAGE)
        self.assertFalse((self.folder / "study").exists() or (self.folder / "a\nb").exists(), "nothing was begun")
        self.assertFalse([name for name in self.folder.rglob("pwned*")])

    def test_shares_of_machines_complete_each_other(self):
        self.passes("sweep", "plan.json", "--out", "study", "--list")
        processes = [self.start("sweep", "--out", "study", "--share", f"{i}/3", "--quiet") for i in range(3)]
        for process in processes:
            self.assertEqual(process.wait(), PASS, process.communicate())
        self.check_gathered()

    def test_plans_and_folders_that_are_none_are_refused(self):
        self.refuses(USAGE, "--out", "sweep", "plan.json")
        self.refuses(USAGE, "--out: an empty text", "sweep", "plan.json", "--out", "")
        self.refuses(USAGE, "no PLAN, and none in study", "sweep", "--out", "study")
        self.refuses(INVALID, "is no folder of a sweep", "gather", "nowhere")
        self.refuses(WORLD, "missing.json", "sweep", "missing.json", "--out", "study")
        self.write_plan(policies=["snapkv:windows=4"])
        self.refuses(INVALID, r"^kvbound: plan.json: .*policies: ", "sweep", "plan.json", "--out", "study")
        self.write_plan(policies=["snapkv:window=9"])
        self.refuses(USAGE, r"a.safetensors: policy 'snapkv:window=9' at budget 30%", "sweep", "plan.json", "--out", "study")
        self.write_plan(policies=[POLICIES[0]], backends=["reference", "gpu"])
        self.refuses(INVALID, r'plan.json: at byte \d+: backends\[1\]: is "gpu"; expected reference, emulated or cuda', "sweep", "plan.json",
                     "--out", "study")
        self.write_plan(policies=["random:window=4"], base=None, seeds=list(range(10_000)), budgets=[str(8 + i) for i in range(11)])
        plan = json.loads((self.folder / "plan.json").read_text())
        del plan["base"]
        (self.folder / "plan.json").write_text(json.dumps(plan))
        self.refuses(INVALID, "plan.json: .*makes more than 100000 runs", "sweep", "plan.json", "--out", "study")
        self.write_plan(traces=["x" * 5000])
        result = self.run_program("sweep", "plan.json", "--out", "study")
        self.assertEqual(result.returncode, INVALID)
        self.assertNotIn("x" * 121, result.stderr)
        self.write_plan()
        for option, value in (("--share", "3/3"), ("--share", "a"), ("--jobs", "0"), ("--engine", "pbs"), ("--retries", "-1")):
            self.refuses(USAGE, option, "sweep", "plan.json", "--out", "study", option, value)
        self.refuses(USAGE, "--sbatch is for --engine slurm", "sweep", "plan.json", "--out", "study", "--sbatch", "x")


    def test_plans_and_results_that_are_nested_deeply_are_refused(self):
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        deep, plan = "[" * 200_000 + "]" * 200_000, self.folder / "study/plan.json"
        good = plan.read_text()
        plan.write_text(good.replace('"layers": ', f'"deep": {deep}, "layers": ', 1))
        for arguments in (("gather", "study"), ("sweep", "--out", "study")):
            self.refuses(INVALID, r"plan\.json: is no sweep of kvbound: it is nested deeper than 32 levels", *arguments)
        for layers in (2**28, 2**62):
            plan.write_text(re.sub(r'"layers": \d+', f'"layers": {layers}', good))
            self.refuses(INVALID, rf"plan\.json: .*layers is {layers}; expected 1 to 1048576", "gather", "study")
        plan.write_text(good)
        for path in (self.folder / "study/results").glob("*/*"):
            lists = b"\x81" * 1_000_000
            path.write_bytes(hashlib.sha256(lists).hexdigest().encode() + lists)
        self.refuses(INVALID, r"is no result of a sweep: it is nested deeper than 32 levels", "gather", "study")

    def test_notes_and_attempts_that_are_nested_deeply_are_passed_over(self):
        self.passes("sweep", "plan.json", "--out", "study", "--calibrate", "1", "--list")
        deep = "[" * 200_000 + "]" * 200_000
        (self.folder / "study/rates.json").write_text(deep)
        done = self.results()
        self.passes("sweep", "--out", "study", "--quiet")
        # to be computed again, after an attempt that cannot be read
        for path in (self.folder / "study/results").glob("*/*"):
            if path.name not in done:
                path.unlink()
                (self.folder / "study/attempts" / path.name).write_text(deep)
        self.passes("sweep", "--out", "study", "--quiet")
        self.check_gathered()

    def test_names_that_are_not_utf_8_are_refused_where_they_are_planned(self):
        (self.folder / "c.safetensors").rename(os.fsdecode(os.fsencode(self.folder) + b"/\xe8.safetensors"))
        self.refuses(INVALID, r"^kvbound: plan.json: traces: .*/\\xe8.safetensors is not UTF-8", "sweep", "plan.json", "--out", "study")

    def test_a_folder_that_may_only_be_read_is_listed(self):
        self.passes("sweep", "plan.json", "--out", "study", "--list", "--calibrate", "2")
        for path in (self.folder / "study").rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)
        (self.folder / "study").chmod(0o555)
        self.addCleanup(lambda: [path.chmod(0o755) for path in [self.folder / "study", *(self.folder / "study").rglob("*")]])
        nobody = self.another_user() if os.geteuid() == 0 else {}
        before = kvbound_cli.contents(self.folder)
        for arguments in (("--out", "study", "--list"), ("plan.json", "--out", "study", "--list")):
            listed = self.passes("sweep", *arguments, **nobody)
            self.assertRegex(listed, r"6 items, 2 done; to do: [0-9.e-]+ s of one process, by rates of 2 finished items")
        self.refuses(WORLD, "study/plan", "sweep", "--out", "study", **nobody)
        self.assertEqual(kvbound_cli.contents(self.folder), before)


class Faults(SweepTest):
    LAYERS = 60

    def sweeping(self, *arguments):
        """A sweep in the background of which some items are done."""
        process = self.start("sweep", "plan.json", "--out", "study", "--jobs", "2", *arguments)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.wait_for(lambda: len(self.results()) >= 4, process)
        return process

    def wait_for(self, condition, process=None):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            if process:
                self.assertIsNone(process.poll(), "ended by itself")
            time.sleep(0.002)

    def test_workers_that_are_killed_are_replaced(self):
        process = self.sweeping("--retries", "9")
        killed = 0
        while process.poll() is None and killed < 4:
            for worker in self.workers_of(process)[:1]:
                os.kill(worker, signal.SIGKILL)
                killed += 1
            time.sleep(0.02)
        self.assertEqual(process.wait(), PASS)
        self.assertGreater(killed, 0)
        self.check_gathered()
        left = {path.name for path in (self.folder / "study" / "attempts").iterdir()}
        self.assertLessEqual(left, self.results(), "of workers that were killed between an item's result and its end")

    def test_a_sweep_that_was_killed_goes_on(self):
        for sent in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
            process = self.sweeping()
            workers = self.workers_of(process)
            process.send_signal(sent)
            process.wait()
            self.wait_for(lambda: not any(Path(f"/proc/{worker}/cmdline").exists() and
                                          Path(f"/proc/{worker}/cmdline").read_bytes() for worker in workers))
            before = self.results()
            self.assertLess(len(before), 63)
            for name in before:
                self.assertGreater(len((self.folder / "study/results" / name[:2] / name).read_bytes()), 0)
            if sent != signal.SIGTERM:
                for name in sorted(before)[4:]:  # so that the next one has something to do, too
                    (self.folder / "study/results" / name[:2] / name).unlink()
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        self.check_gathered()

    def test_two_drivers_share_the_work(self):
        processes = [self.start("sweep", "plan.json", "--out", "study", "--jobs", "2") for _ in range(2)]
        computed = []
        for process in processes:
            said, errors = process.communicate(timeout=600)
            self.assertEqual((process.returncode, errors), (PASS, ""))
            computed.append(int(said.split("\n")[1].split()[0]))
        self.assertEqual(sum(computed), 63, "each item once")
        self.check_gathered()

    def test_a_trace_that_vanished_is_named_and_the_rest_is_computed(self):
        self.passes("sweep", "plan.json", "--out", "study", "--list")
        (self.folder / "b.safetensors").rename(self.folder / "elsewhere")
        result = self.run_program("sweep", "--out", "study", "--jobs", "2", "--retries", "1")
        self.assertEqual(result.returncode, WORLD)
        self.assertEqual(result.stderr.count("b.safetensors, layer"), 2)
        self.assertRegex(result.stderr, r"kvbound: b.safetensors, layer 0, 8 runs: given up after 2 tries; the last: cannot open ")
        self.assertEqual(len(self.results()), 61)
        refused = self.run_program("gather", "study", "--json", "out.json")
        self.assertEqual(refused.returncode, INCONCLUSIVE)
        self.assertRegex(refused.stderr, r"no results of 2 items:\n  b.safetensors, layer 0, 8 runs: failed 2 times, the last: ")
        self.assertFalse((self.folder / "out.json").exists())
        partial = self.run_program("gather", "study", "--partial", "--json", "out.json", "--quiet")
        self.assertEqual(partial.returncode, INCONCLUSIVE)
        paths = [trace["facts"]["path"] for trace in read(self.folder / "out.json")["parts"]]
        self.assertEqual(paths, ["a.safetensors", "c.safetensors"])
        (self.folder / "elsewhere").rename(self.folder / "b.safetensors")
        self.assertIn("2 items computed", self.passes("sweep", "--out", "study"))
        self.check_gathered()

    def test_a_full_disk_loses_nothing(self):
        self.passes("sweep", "plan.json", "--out", "study", "--list")
        sweep = next((self.folder / "study/plans").iterdir()).stem
        result = self.run_program("sweep", "--sweep", sweep, "--out", "study", "--jobs", "2", file_size_limit=3000)
        self.assertEqual(result.returncode, WORLD, result.stderr)
        self.assertIn("cannot write", result.stderr)
        self.assertEqual(self.results(), set())
        self.assertEqual(self.temporaries(), [])
        # no room for a try
        result = self.run_program("sweep", "--sweep", sweep, "--out", "study", file_size_limit=20)
        self.assertEqual(result.returncode, WORLD, result.stderr)
        self.assertEqual(self.temporaries(), [])
        self.passes("sweep", "--out", "study", "--quiet")
        self.check_gathered()

    def end_simulation(self, number):
        """Sends the signal to a simulation while its copies are there."""
        for _ in range(100):  # as often as it is faster
            process = self.start("sweep", "--out", "study", "--simulate", "1000000")
            while process.poll() is None and not list((self.folder / "study").glob(".overhead*/results/*/*")):
                time.sleep(0.0005)
            process.send_signal(number)
            process.communicate()
            if process.returncode == -number:
                return
        self.fail("no simulation was caught")

    def test_a_simulation_that_ends_early_leaves_nothing(self):
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGXCPU) * 2:
            self.end_simulation(number)
            self.assertEqual(self.temporaries(), [])

    def test_what_killed_processes_left_goes_with_the_next_sweep(self):
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        for _ in range(100):  # as often as its copies were gone before the signal
            self.end_simulation(signal.SIGKILL)
            left = next((self.folder / "study").glob(".overhead*"), None)
            if left:
                break
        ending = left.name.removeprefix(".overhead")  # of a process that has ended, on this machine
        others = ending[:-5] + "x.tmp"                # on another one
        for place in ("attempts/.ab-1", "runs/.1", "plans/.x", f"results/{next(iter(self.results()))[:2]}/.ab-1"):
            for name in (ending, others):
                (self.folder / "study" / (place + name)).touch()
        self.passes("sweep", "--out", "study", "--quiet")
        self.assertEqual(len(self.temporaries()), 4)
        self.assertTrue(all(name.endswith(others) for name in self.temporaries()))

    def test_no_clock_decides_anything(self):
        """On a shared file system, other machines' and the server's clocks may say anything."""
        self.write_plan(layers="0")
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        days = 24 * 3600
        for number, path in enumerate(sorted((self.folder / "study").rglob("*"))):
            skewed = time.time() + (-300, -0.5, 0.5, 300)[number % 4] * days
            os.utime(path, (skewed, skewed))
        self.write_plan()
        self.assertIn("60 items computed", self.passes("sweep", "plan.json", "--out", "study"), "all but the first layers")
        self.check_gathered()

    def test_a_trace_that_changed_is_not_mixed_with_its_former_self(self):
        self.passes("sweep", "plan.json", "--out", "study", "--list")
        self.passes("generate", "--kind", "flat", "--tokens", "64", "--decode", "3", "--layers", "2", "--query-heads", "4",
                    "--kv-heads", "2", "--head-dim", "8", "--model-dim", "16", "--window-queries", "8", "b.safetensors")
        result = self.run_program("sweep", "--out", "study", "--retries", "0")
        self.assertEqual(result.returncode, WORLD)
        self.assertIn("b.safetensors: has changed since the sweep was planned", result.stderr)
        self.passes("sweep", "plan.json", "--out", "study", "--quiet")
        self.check_gathered()


if __name__ == "__main__":
    kvbound_cli.main()
