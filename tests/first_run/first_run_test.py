"""cuda/first_run.sh runs whole on the emulation; it goes on behind a stage that fails, and shows what was left out as left
out. With stand-ins for a GPU's tools, what it asks of them is what the emulated programs can do, and their results are read.

usage: first_run_test.py FOLDER      FOLDER: the emulated programs
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support.peer_file import PEER

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT, METRICS = ROOT / "cuda" / "first_run.sh", ROOT / "cuda" / "scripts" / "kernel_metrics.py"
STAGES = ("facts", "impulse", "parity", "large", "constants", "sanitizer", "bench", "profile", "sweep", "torch")
# Suites that launch no kernel, or that launch those of other suites.
WITHOUT_A_SMALL_CASE = {
    "AttentionArithmetic", "NearestKeyArithmetic", "SessionArithmeticParity", "KeepKvOverflowParity", "MergeFirstOperations",
    "MemoryPoolTest", "RecordingTest", "SessionParity", "SessionErrors", "SessionRequests", "WindowArithmetic", "ParityComparator",
    "ParityStorage", "ParityBits", "ParityMemory", "All/SessionRequestsOf"
}

PROFILE = '''"operation","attention"
"ID","Process ID","Kernel Name","Context","Grid Size","gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum",\
"launch__registers_per_thread","sm__warps_active.avg.pct_of_peak_sustained_active",\
"l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",\
"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
"","","","","","usecond","Mbyte","Kbyte","register/thread","%","","","",""
"0","17","void kvbound::cuda::native::<unnamed>::attention_splits::<unnamed>::attention_mma_kernel<kvbound::cuda::Bfloat16, 8, 1>(attention_splits::SplitArguments<T1>, Shape)","1",\
"(536, 1, 1)","43.25","134.5","4,250","79","37.5","1,000","16,000","50","2,000"
"1","17","attention_join_kernel","1","(32, 2, 1)","3.1","0.5","1","48","20","0","0","0","0"
'''
COUNTERS = {"operations": [{"operation": "attention", "launches": [
    {"kernel": "attention_splits::attention_mma_kernel<Bfloat16, 8, 1>", "bytes_read": 134000000, "bytes_written": 4300000,
     "counts": {"device_requests": 10, "sectors": 160, "wavefronts": 100, "least_wavefronts": 95},
     "model": {"predicted_seconds": 42e-6, "registers": None, "occupancy": 0.375}}]}]}
NCU = f"""#!/bin/sh
echo '==PROF== Connected to process 17'
sed 1d <<'EOF'
{PROFILE}EOF
"""
# Drops its own options, up to the program's path, which begins with a slash; one suite shows that the program runs.
SANITIZER = """#!/bin/sh
echo "asked for: $*"
while [ "${1#/}" = "$1" ]; do shift; done
exec "$@" --gtest_filter='PoolParity.*'
"""
# Has torch, and in place of bench_torch.py's times it has a file of them, which it puts where --json says.
PYTHON = """#!/bin/bash
case "$*" in
  '-c import torch') ;;
  *bench_torch.py*" --device cuda --of device "*) while [[ $1 != --json ]]; do shift; done; cp {file} "$2" ;;
  *) echo "unexpected arguments: $*" && exit 3 ;;
esac
"""
# Two suites, of which the second ends its process.
PARITY = """#!/bin/sh
case "$*" in
  *list*) printf 'Running main() from x\\nFirst.\\n  One\\n  Two\\nSecond/BF16.  # Type = x\\n  Only  # more\\n' ;;
  *First.One:First.Two) echo '[==========] 2 tests from 1 test suite ran. (1 ms total)' ;;
  *Second/BF16.Only) echo died && kill -9 $$ ;;
  *) echo 'unexpected arguments' && exit 3 ;;
esac
"""
# Hangs in the test of its second suite.
HANGS = PARITY.replace("echo died && kill -9 $$", "echo '[ RUN      ] Second/BF16.Only' && exec sleep 60")


def run(*arguments, **variables):
    return subprocess.run(["bash", SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False,
                          env={**os.environ, **variables})


class FirstRunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "results"

    def programs(self, renamed=lambda name: name):
        """A folder with links to the programs, under other names if need be."""
        folder = self.folder / "programs"
        folder.mkdir()
        for program in PROGRAMS.iterdir():
            (folder / renamed(program.name)).symlink_to(program.resolve())
        return folder

    def impulses(self, folder, ending):
        """Programs with one test that passes in place of those of the primitives."""
        for program in folder.glob(f"*{ending}"):
            self.planted(program, "#!/bin/sh\n"
                         "echo '[==========] 1 test from 1 test suite ran.'\necho '[  PASSED  ] 1 test.'\n")

    def planted(self, path, text):
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text, "utf-8")
        path.chmod(0o755)
        return path

    def summary(self):
        """{stage: (verdict, what is said of it)}, of a summary that fits a screen, among at most eight files."""
        text = (self.out / "summary.txt").read_text("utf-8")
        self.assertLessEqual(len(text.splitlines()), 24)
        self.assertLessEqual(max(map(len, text.splitlines())), 180)
        self.assertLessEqual(len(list(self.out.iterdir())), 8)
        lines = re.findall(r"^(\w+) +(passed|skipped|failed|no time) +\d+ s  (.*)$", text, re.MULTILINE)
        self.assertEqual(len(lines), len(text.splitlines()) - 1, text)
        return {stage: (verdict, said) for stage, verdict, said in lines}


class Emulated(FirstRunTest):
    def test_runs_whole(self):
        done = run("--backend", "emulated", "--tiny", "--out", self.out, PROGRAMS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        summary = self.summary()
        self.assertTrue(done.stdout.endswith((self.out / "summary.txt").read_text("utf-8")))
        self.assertEqual(tuple(summary), STAGES)
        for stage, (verdict, said) in summary.items():
            if stage in ("constants", "sanitizer", "profile") or said.startswith("no PyTorch: "):
                self.assertEqual(verdict, "skipped", stage)
            else:
                self.assertEqual(verdict, "passed", stage)
            self.assertNotEqual(said, "")
        self.assertRegex(summary["impulse"][1], "^[1-9][0-9]+ tests, 7 programs, 0 of them failed$")
        self.assertRegex(summary["parity"][1], "^[1-9][0-9]+ tests, [1-9][0-9]+ suites, 0 of them failed; sessions agree$")
        self.assertRegex(summary["large"][1], "^6 tests, 14 comparisons; cuBLAS not done: the emulation has none$")
        self.assertRegex(summary["sweep"][1], "^K1: .*%; K2: .*%$")
        documents = [json.loads(line) for line in (self.out / "bench.jsonl").read_text("utf-8").splitlines()]
        self.assertEqual([document["operations"][0]["operation"] for document in documents],
                         ["attention", "projected-value-norms", "select-critical", "compact", "step"])

    def test_goes_on_behind_a_failure(self):
        programs = self.programs()
        self.impulses(programs, "_test")
        self.planted(programs / "fragments_test",
                     "#!/bin/sh\necho '[  FAILED  ] Fragments.AreThere (1 ms)'\nexit 1\n")
        self.planted(programs / "kvbound_first_run_emulated", "#!/bin/sh\nsleep 60\n")
        done = run("--backend", "emulated", "--tiny", "--only", "sweep,large,facts,impulse", "--seconds", "3",
                   "--out", self.out, programs)
        self.assertEqual(done.returncode, 1, done.stdout)
        summary = self.summary()
        self.assertEqual([(stage, verdict) for stage, (verdict, _) in summary.items()],
                         [("facts", "passed"), ("impulse", "failed"), ("large", "no time"), ("sweep", "no time")])
        self.assertEqual(summary["impulse"][1], "[  FAILED  ] Fragments.AreThere (1 ms)")

    def test_a_suite_that_ends_its_process_is_seen(self):
        programs = self.programs()
        self.planted(programs / "kvbound_parity_emulated", PARITY)
        done = run("--backend", "emulated", "--tiny", "--only", "parity", "--out", self.out, programs)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.summary()["parity"][0], "failed")
        log = (self.out / "log.txt").read_text("utf-8")
        self.assertEqual(log.count("[ SUITE FAILED ] Second/BF16."), 1, log)
        self.assertIn("figure: 2 tests, 2 suites, 1 of them failed; sessions agree", log)

    def test_a_test_that_hangs_is_stopped_and_named(self):
        programs = self.programs()
        self.planted(programs / "kvbound_parity_emulated", HANGS)
        self.planted(programs / "kvbound", "#!/bin/sh\n")  # whole sessions agree
        done = run("--backend", "emulated", "--tiny", "--only", "parity", "--seconds", "8", "--out", self.out, programs)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.summary()["parity"][0], "failed")
        log = (self.out / "log.txt").read_text("utf-8")
        self.assertIn("[ SUITE PASSED ] First.", log)
        self.assertIn("[ RUN      ] Second/BF16.Only\n[ SUITE FAILED ] Second/BF16.", log)
        self.assertIn("figure: 2 tests, 2 suites, 1 of them failed; sessions agree", log)

    def test_names_what_it_does_not_know(self):
        for arguments, said in ((["--only", "facts,fact"], "--only fact: known stages: facts impulse"),
                                (["--onyl"], "no option --onyl"), (["--out"], "--out needs a value"),
                                (["--backend", "cpu"], "--backend cpu: cuda or emulated"),
                                ([self.folder], f"no program kvbound in {self.folder}"),
                                (["--seconds", "0"], "--seconds 0: a number"),
                                (["--counters", "gone"], "--counters gone: cannot be read"),
                                (["a", "b"], "more than one folder: a and b")):
            with self.subTest(arguments=arguments):
                done = run(*arguments, OUT=str(self.out))
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertTrue(done.stderr.startswith(f"first_run.sh: {said}"), done.stderr)

    def test_help_has_every_stage_and_examples(self):
        text = run("--help").stdout
        for stage in STAGES:
            self.assertRegex(text, rf"(?m)^  {stage} ")
        self.assertEqual(text.count("\n  cuda/first_run.sh "), 4)

    def test_every_suite_of_an_operation_has_a_small_case(self):
        cases = "".join(re.findall(r"^small_cases\+?='(.*)'$", SCRIPT.read_text("utf-8"), re.MULTILINE))

        def suites(tests):
            said = subprocess.run([PROGRAMS / "kvbound_parity_emulated", "--gtest_list_tests", f"--gtest_filter={tests}"],
                                  capture_output=True, text=True, check=True).stdout
            return {re.sub(r"/(BF16|F16|F32)$", "", suite) for suite in re.findall(r"^(\S+)\.(?:  #.*)?$", said, re.MULTILINE)}

        self.assertEqual(suites("*") - suites(cases), WITHOUT_A_SMALL_CASE)


class WithStandInsForAGpu(FirstRunTest):
    """The tools of a GPU's machine are scripts, and its programs the emulated ones."""

    def setUp(self):
        super().setUp()
        self.tools = self.folder / "tools"
        self.planted(self.tools / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 580.1, 81559 MiB'\n")
        self.planted(self.tools / "ncu", NCU)
        self.planted(self.tools / "compute-sanitizer", SANITIZER)
        self.native = self.programs(lambda name: re.sub("_test$", "_gpu_test", name).replace("_emulated", "_native"))
        self.impulses(self.native, "_gpu_test")
        kvbound = (PROGRAMS / "kvbound").resolve()
        self.planted(self.native / "kvbound",
                     f'#!/bin/bash\nexec {kvbound} "${{@/#cuda/emulated}}"\n')  # --backend cuda is --backend emulated

    def cuda(self, *arguments):
        return run("--tiny", "--out", self.out, *arguments, self.native, PATH=f"{self.tools}:{os.environ['PATH']}")

    def test_it_asks_its_tools_for_what_they_know(self):
        counters = self.folder / "counters.json"
        counters.write_text(json.dumps(COUNTERS), "utf-8")
        done = self.cuda("--only", "facts,impulse,sanitizer,profile", "--counters", counters)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        summary = self.summary()
        self.assertEqual({verdict for verdict, _ in summary.values()}, {"passed"}, summary)
        self.assertEqual(summary["impulse"][1], "7 tests, 7 programs, 0 of them failed")
        self.assertRegex(summary["facts"][1], "^NVIDIA H100 80GB HBM3, 580.1, 81559 MiB; cuBLAS ")
        self.assertEqual(summary["sanitizer"][1], "clean: memcheck racecheck synccheck")
        self.assertEqual(len(re.findall("asked for: --tool (mem|race|sync)check --error-exitcode 9 ", done.stdout)), 3)
        self.assertRegex(summary["profile"][1], "^[1-9][0-9]* kernels$")
        self.assertRegex(done.stdout, r"attention +attention_mma_kernel +43.2 / 42 +134 / 134 +4\.25 / 4\.3 +79 / - "
                         r"+37\.5 / 37\.5 +16 / 16 +2\.5 / 5\n")
        self.assertRegex(done.stdout, r"attention +attention_join_kernel +not counted\n")

    def test_times_of_torch_are_shown_beside_its_own(self):
        operations = [{"operation": name, "policy": policy, "calls": 1, "bytes": 4096, "seconds": [2.0]}
                      for name, policy in (("attention", None), ("step", "snapkv"))]
        file = self.folder / "peer.json"
        file.write_text(json.dumps({**PEER, "device": "cuda", "operations_of": "device", "operations": operations}), "utf-8")
        self.planted(self.tools / "python3", PYTHON.format(file=file))
        done = self.cuda("--only", "torch")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(self.summary()["torch"][1], r"^2 operations; attention: torch takes [0-9.]+ \(.*\) times as long$")
        self.assertTrue((self.out / "torch.json").exists())

    def test_what_its_tools_find_is_a_failure(self):
        self.planted(self.tools / "compute-sanitizer",
                     "#!/bin/sh\necho '========= Invalid __global__ write of size 4 bytes'\nexit 9\n")
        self.planted(self.tools / "ncu", "#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n")
        done = self.cuda("--only", "sanitizer,profile")
        self.assertEqual(done.returncode, 1)
        self.assertEqual({verdict for verdict, _ in self.summary().values()}, {"failed"}, done.stdout)

    def test_a_driver_that_does_not_answer_is_a_failure(self):
        self.planted(self.tools / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
        self.assertEqual(self.cuda("--only", "facts").returncode, 1)


class KernelMetrics(FirstRunTest):
    def metrics(self, profile, *arguments):
        path = self.folder / "profile.csv"
        path.write_text(profile, "utf-8")
        done = subprocess.run([sys.executable, METRICS, path, *map(str, arguments)], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_are_numbers_with_their_units(self):
        code, out, _ = self.metrics(PROFILE)
        self.assertEqual(code, 0)
        split, join = (line.split() for line in out.splitlines()[1:])
        self.assertEqual(split, ["attention", "attention_mma_kernel", "43.25", "134.5", "4.25", "79", "37.5", "16", "-",
                                 "2.5", "-"])
        self.assertEqual(join[:3] + join[7:], ["attention", "attention_join_kernel", "3.1", "-", "-", "-", "-"])

    def test_of_nothing_are_a_failure(self):
        self.assertEqual(self.metrics('"operation","attention"\n')[0], 1)

    def test_counters_that_are_none_are_named(self):
        for text in ("", "[]", "{}", '{"operations": [3]}'):
            path = self.folder / "counters.json"
            path.write_text(text, "utf-8")
            code, _, err = self.metrics(PROFILE, "--counters", path)
            self.assertEqual(code, 4)
            self.assertRegex(err, f"^kernel_metrics: {re.escape(str(path))}: not what")


if __name__ == "__main__":
    PROGRAMS = Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
