"""cuda/measure.sh: A and B run whole on the emulation; they go on behind a stage that fails, and show what was left out as left
out. With stand-ins for a GPU's tools, what it asks of them is what the emulated programs can do, and their results are read. What
prepare finds out.

usage: measure_test.py FOLDER      FOLDER: the emulated programs
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

from support.documents import parts
from support.peer_file import PEER

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT, SCRIPTS = ROOT / "cuda" / "measure.sh", ROOT / "cuda" / "scripts"
sys.path.insert(0, str(SCRIPTS))
import changed_suites  # noqa: E402

STAGES = {"A": ("facts", "impulse", "parity", "anatomy", "bench", "libraries", "peers", "profile", "memcheck"),
          "B": ("rest", "sessions", "repeats", "large", "variants", "constants")}
NOT_EMULATED = {"profile", "memcheck", "constants"}
CHANGED = ("AttentionParity", "PackParity", "GroupReductionParity")
# Suites that launch no kernel, or that launch those of other suites.
WITHOUT_A_SMALL_CASE = {
    "AttentionArithmetic", "NearestKeyArithmetic", "SessionArithmeticParity", "KeepKvOverflowParity",
    "MemoryPoolTest", "RecordingTest", "SessionParity", "SessionGivenParity", "SessionErrors", "SessionRequests", "WindowArithmetic",
    "ParityComparator", "ParityStorage", "ParityBits", "ParityMemory", "All/PagedSessionsOf", "All/SessionRequestsOf",
    "All/SessionsTogetherOf",
    "StoredRowsTest/0", "StoredRowsTest/1", "StoredRowsTest/2"
}

PROFILE = '''"operation","attention"
"ID","Process ID","Kernel Name","Context","Grid Size","gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum",\
"launch__registers_per_thread","sm__warps_active.avg.pct_of_peak_sustained_active",\
"l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",\
"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",\
"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_not_selected_per_issue_active.ratio"
"","","","","","usecond","Mbyte","Kbyte","register/thread","%","","","","","inst","inst"
"0","17","void kvbound::cuda::native::<unnamed>::attention_splits::<unnamed>::attention_mma_kernel<kvbound::cuda::Bfloat16, 8, 1>(attention_splits::SplitArguments<T1>, Shape)","1",\
"(536, 1, 1)","43.25","134.5","4,250","79","37.5","1,000","16,000","50","2,000","2.5","7"
"1","17","attention_join_kernel","1","(32, 2, 1)","3.1","0.5","1","48","20","0","0","0","0","",""
'''
COUNTERS = {"schema": "kvbound-2", "command": "bench-model", "provenance": {"revision": "unknown"}, "parts": [{
    "facts": {}, "axes": {"launch": {"operation": ["attention"], "kernel": ["attention_splits::attention_mma_kernel<Bfloat16, 8, 1>"]}},
    "cubes": {"launches": {"axes": ["launch"], "columns": {
        "bytes_read": [134000000], "bytes_written": [4300000], "device_requests": [10], "sectors": [160], "conflicts": [0.05],
        "predicted_seconds": [42e-6], "occupancy": [0.375]}}}}]}
# Two steps of two kernels, behind a compression's.
STEPS = """"operation","step, h2o"
"ID","Kernel Name","gpu__time_duration.sum"
"","","usecond"
""" + "".join(f'"{at}","{kernel}(int)","{time}"\n' for at, (kernel, time) in enumerate(
    [("select_kernel", 9), ("pack_kernel", 1), ("append_kernel", 2), ("pack_kernel", 1), ("append_kernel", 3), ("pack_kernel", 1.5),
     ("append_kernel", 7)]))
NCU = f"""#!/bin/sh
echo "asked for: $*" >&2
echo '==PROF== Connected to process 17'
case "$*" in
  *"--launch-count 90 "*) sed 1d <<'EOF'
{STEPS}EOF
    ;;
  *) sed 1d <<'EOF'
{PROFILE}EOF
esac
"""
# Drops its own options, up to the program's path, which begins with a slash; one suite
# shows that the program runs.
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
# Of three libraries, one dies, one cannot run, and one has a file of times.
LIBRARIES = """#!/bin/bash
case "$*" in
  "bench flashinfer --shape llama-3.1-8b:256 "*) exit 9 ;;
  "bench flashinfer-tensor-cores --shape llama-3.1-8b:256 "*) exit 5 ;;
  "bench cub --shape llama-3.1-8b:256 "*) while [[ $1 != --json ]]; do shift; done; cp {file} "$2" ;;
  *) echo "unexpected arguments: $*" && exit 3 ;;
esac
"""
LLAMA = {"name": "llama-3.1-8b", "tokens": 256, "query_heads": 32, "kv_heads": 8, "head_dim": 128, "model_dim": 4096}
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

# Hangs with several operations, fails at the first and at the last of them.
BENCH = """#!/bin/bash
case "$*" in
  *"attention projected-value-norms select-critical"*|*"bench attention --"*) exec sleep 60 ;;
  *"bench compact --"*) exit 1 ;;
esac
while [[ $1 != --json ]]; do operation=${operation:-$2} && shift; done
printf '{"operation": {"operation": ["%s"]}}' "$operation" >"$2"
"""


def run(*arguments, **variables):
    return subprocess.run(["bash", SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False,
                          env={**os.environ, **variables})


class MeasureTest(unittest.TestCase):
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
        """A program with one test that passes in place of those of the primitives."""
        self.planted(folder / f"primitives{ending}", "#!/bin/sh\n[ $1 = --gtest_list_tests ] && echo Fragments. && exit\n"
                     "echo '[==========] 1 test from 1 test suite ran.'\necho '[  PASSED  ] 1 test.'\n")

    def planted(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text, "utf-8")
        path.chmod(0o755)
        return path

    def emulated(self, verb, programs, *arguments):
        return run(verb, "--backend", "emulated", "--tiny", "--out", self.out, *arguments, programs)

    def summary(self):
        """{stage: (verdict, what is said of it)}, of a summary that fits a screen, among at most eight files."""
        text = (self.out / "summary.txt").read_text("utf-8")
        self.assertLessEqual(len(text.splitlines()), 24)
        self.assertLessEqual(max(map(len, text.splitlines())), 180)
        self.assertLessEqual(len(list(self.out.iterdir())), 8)
        lines = re.findall(r"^(\w+) +(passed|skipped|failed|no time) +\d+ s  (.*)$", text, re.MULTILINE)
        self.assertEqual(len(lines), len(text.splitlines()) - 1, text)
        return {stage: (verdict, said) for stage, verdict, said in lines}


class Emulated(MeasureTest):
    def runs_whole(self, verb):
        suites = self.folder / "suites.txt"
        suites.write_text("\n".join(CHANGED), "utf-8")
        done = self.emulated(verb, PROGRAMS, "--suites", suites)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        summary = self.summary()
        self.assertTrue(done.stdout.endswith((self.out / "summary.txt").read_text("utf-8")))
        self.assertEqual(tuple(summary), STAGES[verb])
        for stage, (verdict, said) in summary.items():
            left_out = stage in NOT_EMULATED or said.startswith("no PyTorch: ")
            self.assertEqual(verdict, "skipped" if left_out else "passed", stage)
            self.assertNotEqual(said, "")
        ran = set(re.findall(r"\[ SUITE PASSED \] (?:\w+/)?([A-Za-z]+)[/.]", done.stdout))
        return summary, ran

    def test_a_runs_whole(self):
        summary, ran = self.runs_whole("A")
        self.assertRegex(summary["impulse"][1], "^[1-9][0-9]+ tests, [1-9][0-9]* suites, 0 of them failed$")
        self.assertRegex(summary["parity"][1], "^[1-9][0-9]* tests, [1-9][0-9]* suites, 0 of them failed$")
        self.assertEqual(ran, set(CHANGED))
        self.assertRegex(summary["anatomy"][1], "^1 policies; h2o: [0-9.]+ times attention; together, [0-9.]+ [mun]?s a layer, attention [0-9.]+ [mun]?s a layer$")
        self.assertRegex(summary["libraries"][1], r"^1 operations judged right and timed; attention: processor takes .* times as long$")
        documents = [json.loads(line) for line in (self.out / "bench.jsonl").read_text("utf-8").splitlines()]
        self.assertEqual([[one["operation"] for one in parts(document)[0].rows("operations")] for document in documents],
                         [["step"], ["attention", "projected-value-norms", "select-critical", "compact"]])

    def test_b_runs_whole(self):
        summary, ran = self.runs_whole("B")
        self.assertIn("SnapKvParity", ran)
        self.assertEqual(ran & set(CHANGED), set())
        self.assertRegex(summary["repeats"][1], "^13 tests$")
        self.assertRegex(summary["large"][1], "^6 tests, 14 comparisons; cuBLAS not done: the emulation has none$")
        self.assertRegex(summary["variants"][1], "^K1: .*%; K2: .*%$")

    def test_a_library_whose_results_are_wrong_is_a_failure_without_times(self):
        programs = self.programs()
        peers = (PROGRAMS / "kvbound_peers_emulated").resolve()
        self.planted(programs / "kvbound_peers_emulated", f'#!/bin/bash\nexec {peers} "${{@/#processor/faulty}}"\n')
        done = self.emulated("A", programs, "--only", "libraries")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.summary()["libraries"], ("failed", "error: attention of faulty is wrong, so it is not timed"))
        self.assertFalse((self.out / "libraries.jsonl").exists())

    def test_goes_on_behind_a_failure(self):
        programs = self.programs()
        self.planted(programs / "primitives_test", "#!/bin/sh\n[ $1 = --gtest_list_tests ] && echo Fragments. && exit\n"
                     "echo '[  FAILED  ] Fragments.AreThere (1 ms)'\nexit 1\n")
        self.planted(programs / "kvbound_parity_emulated", "#!/bin/sh\nsleep 60\n")
        done = self.emulated("A", programs, "--only", "parity,facts,impulse", "--seconds", "3")
        self.assertEqual(done.returncode, 1, done.stdout)
        summary = self.summary()
        self.assertEqual([(stage, verdict) for stage, (verdict, _) in summary.items()],
                         [("facts", "passed"), ("impulse", "failed"), ("parity", "no time")])
        self.assertEqual(summary["impulse"][1], "[  FAILED  ] Fragments.AreThere (1 ms)")

    def parity(self, program, *arguments):
        """The verdict and the log of the stage, by another program of tests."""
        programs = self.programs()
        self.planted(programs / "kvbound_parity_emulated", program)
        done = self.emulated("A", programs, "--only", "parity", *arguments)
        self.assertEqual(done.returncode, 1, done.stdout)
        return self.summary()["parity"][0], (self.out / "log.txt").read_text("utf-8")

    def test_a_suite_that_ends_its_process_is_seen(self):
        verdict, log = self.parity(PARITY)
        self.assertEqual(verdict, "failed")
        self.assertEqual(log.count("[ SUITE FAILED ] Second/BF16."), 1, log)
        self.assertIn("figure: 2 tests, 2 suites, 1 of them failed", log)

    def test_a_test_that_hangs_is_stopped_and_named(self):
        verdict, log = self.parity(HANGS, "--seconds", "8")
        self.assertEqual(verdict, "failed")
        self.assertIn("[ SUITE PASSED ] First.", log)
        self.assertIn("[ RUN      ] Second/BF16.Only\n[ SUITE FAILED ] Second/BF16.", log)
        self.assertIn("figure: 2 tests, 2 suites, 1 of them failed", log)

    def test_repeats_go_on_behind_a_suite_that_fails(self):
        programs = self.programs()
        self.planted(programs / "kvbound_measure_emulated", "#!/bin/sh\ncase $1 in *Cluster*) exit 1 ;; esac\n"
                     "echo '[==========] 2 tests from 1 test suite ran. (1 ms total)'\n")
        done = self.emulated("B", programs, "--only", "repeats")
        self.assertEqual((done.returncode, self.summary()["repeats"]), (1, ("failed", "error: *ClusterRepeats ends with status 1")))
        self.assertIn("figure: 4 tests\n", done.stdout)

    def test_operations_behind_one_that_hangs_are_timed(self):
        programs = self.programs()
        self.planted(programs / "kvbound", BENCH)
        done = self.emulated("A", programs, "--only", "bench", "--seconds", "20")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.summary()["bench"], ("failed", "error: bench attention ends with status 124"))
        self.assertRegex(done.stdout, "figure: 2 of 4 operations")
        self.assertEqual(len((self.out / "bench.jsonl").read_text("utf-8").splitlines()), 2)

    def test_a_whole_run_on_a_gpu_is_replaced_by_no_other(self):
        begins = "measure.sh A, --backend cuda, 2026-12-01: "
        for verb, text, code in (("A", begins + " ".join(STAGES["A"]), 2), ("B", begins + " ".join(STAGES["A"]), 2),
                                 ("A", begins + "facts bench", 0), ("A", begins.replace("cuda", "cuda, --tiny"), 0)):
            with self.subTest(verb=verb, text=text):
                self.planted(self.out / verb / "summary.txt", text + "\n")
                self.planted(self.out / verb / "torch.json", "{}")
                done = run(verb, "--backend", "emulated", "--tiny", "--only", "facts" if verb == "A" else "constants", PROGRAMS,
                           OUT=str(self.out))
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                kept = (self.out / verb / "summary.txt").read_text("utf-8") == text + "\n"
                self.assertEqual((kept, (self.out / verb / "torch.json").exists()), (code == 2, code == 2))
                if kept:
                    self.assertEqual(done.stderr, f"measure.sh: --out {self.out / verb}: has a whole run of A on a GPU, which "
                                     "stays: take another folder; see --help\n")

    def test_names_what_it_does_not_know(self):
        for arguments, said in ((["A", "--only", "facts,fact"], "--only fact: known: facts impulse"),
                                (["C"], "'C': prepare, A, B or take"), ([], "'': prepare, A, B or take"),
                                (["A", "--onyl"], "no option --onyl"), (["B", "--out"], "--out needs a value"),
                                (["A", "--backend", "cpu"], "--backend cpu: cuda or emulated"),
                                (["A", self.folder], f"no program kvbound in {self.folder}"),
                                (["A", "--seconds", "0"], "--seconds 0: a number"),
                                (["A", "--suites", "gone"], "--suites gone: cannot be read"),
                                (["A", "a", "b"], "more than one folder: a and b")):
            with self.subTest(arguments=arguments):
                done = run(*arguments, OUT=str(self.out))
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertTrue(done.stderr.startswith(f"measure.sh: {said}"), done.stderr)

    def test_help_has_every_stage_and_their_limits_hold(self):
        text = run("--help").stdout
        limits = dict(re.findall(r"\[(\w+)\]=(\d+)", re.search(r"^declare -A limits=\((.*?)\)", SCRIPT.read_text("utf-8"),
                                                               re.MULTILINE | re.DOTALL)[1]))
        for verb, most in (("A", 540), ("B", 180)):
            self.assertEqual(sum(int(limits[stage]) for stage in STAGES[verb]), most)
            for stage in STAGES[verb]:
                self.assertRegex(text, rf"(?m)^  {stage} ")

    def test_every_suite_of_an_operation_has_a_small_case(self):
        cases = "".join(re.findall(r"^small_cases\+?='(.*)'$", (SCRIPTS / "measure_stages.sh").read_text("utf-8"), re.MULTILINE))

        def suites(tests):
            said = subprocess.run([PROGRAMS / "kvbound_parity_emulated", "--gtest_list_tests", f"--gtest_filter={tests}"],
                                  capture_output=True, text=True, check=True).stdout
            return {re.sub(r"/(BF16|F16|F32)$", "", suite) for suite in re.findall(r"^(\S+)\.(?:  #.*)?$", said, re.MULTILINE)}

        self.assertEqual(suites("*") - suites(cases), WITHOUT_A_SMALL_CASE)


class WithStandInsForAGpu(MeasureTest):
    """The tools of a GPU's machine are scripts, and its programs the emulated ones."""

    def setUp(self):
        super().setUp()
        self.tools = self.folder / "tools"
        self.planted(self.tools / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 580.1, 81559 MiB'\n")
        self.planted(self.tools / "ncu", NCU)
        self.planted(self.tools / "compute-sanitizer", SANITIZER)
        self.native = self.programs(lambda name: re.sub("_test$", "_gpu_test", name).replace("_emulated", "_native"))
        self.impulses(self.native, "_gpu_test")
        self.planted(self.native / "kvbound_measure_native",
                     "#!/bin/sh\nfor blocks in 2 4 8; do\n"
                     "  echo \"clusters of $blocks: $((128 / blocks)) together (blocks of a whole multiprocessor)\"\ndone\n")
        kvbound = (PROGRAMS / "kvbound").resolve()
        self.planted(self.native / "kvbound",
                     # --backend cuda is --backend emulated
                     f'#!/bin/bash\nexec {kvbound} "${{@/#cuda/emulated}}"\n')

    def cuda(self, *arguments):
        return run("A", "--tiny", "--out", self.out, *arguments, self.native, PATH=f"{self.tools}:{os.environ['PATH']}")

    def test_it_asks_its_tools_for_what_they_know(self):
        done = self.cuda("--only", "facts,impulse,anatomy,memcheck,profile")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        summary = self.summary()
        self.assertEqual({verdict for verdict, _ in summary.values()}, {"passed"}, summary)
        self.assertEqual(summary["impulse"][1], "1 tests, 1 suites, 0 of them failed")
        self.assertRegex(summary["facts"][1], "^NVIDIA H100 80GB HBM3, 580.1, 81559 MiB; cuBLAS .*; clusters of 4: 32,clusters of 8: 16$")
        self.assertRegex(summary["memcheck"][1], "^clean: [1-9][0-9]* tests$")
        self.assertIn("asked for: --tool memcheck --error-exitcode 9 ", done.stdout)
        self.assertRegex(summary["profile"][1], "^24 kernels$")
        self.assertRegex(done.stdout, r"step, h2o +append_kernel +3\nstep, h2o +pack_kernel +1.5\nstep, h2o +2 kernels +4.5\n")

    def test_times_of_torch_are_shown_beside_its_own(self):
        operations = [{"operation": name, "policy": policy, "calls": 1, "bytes": 4096, "seconds": [2.0]}
                      for name, policy in (("attention", None), ("step", "snapkv"))]
        file = self.folder / "peer.json"
        file.write_text(json.dumps({**PEER, "device": "cuda", "operations_of": "device", "operations": operations}), "utf-8")
        self.planted(self.tools / "python3", PYTHON.format(file=file))
        done = self.cuda("--only", "peers")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(self.summary()["peers"][1], r"^2 operations; attention: torch takes [0-9.]+ \(.*\) times as long$")
        self.assertTrue((self.out / "torch.json").exists())

    def test_every_library_is_asked_whatever_happens_to_another(self):
        file = self.folder / "peer.json"
        file.write_text(json.dumps({**PEER, "name": "cub", "device": "cuda", "operations_of": "device", "operations": [
            {"operation": "attention", "policy": None, "seconds": [2.0]}], "shape": LLAMA}, indent=2), "utf-8")
        self.planted(self.native / "kvbound_peers_native", LIBRARIES.format(file=file))
        done = self.cuda("--only", "libraries")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.summary()["libraries"], ("failed", "error: the kernels of flashinfer: status 9"))
        self.assertIn("error: the kernels of flashinfer-tensor-cores: status 5\n", done.stdout)
        self.assertRegex(done.stdout, r"figure: 1 operations judged right and timed; attention: cub takes \S+ \(\S+\) times as long\n")
        self.assertEqual([json.loads(line)["name"] for line in (self.out / "libraries.jsonl").read_text("utf-8").splitlines()], ["cub"])

    def test_without_their_program_libraries_are_skipped(self):
        (self.native / "kvbound_peers_native").unlink()
        self.assertEqual(self.cuda("--only", "libraries").returncode, 0)
        self.assertEqual(self.summary()["libraries"], (
            "skipped", "no program kvbound_peers_native: prepare's steps headers and build make it"))

    def test_what_its_tools_find_is_a_failure(self):
        self.planted(self.tools / "compute-sanitizer",
                     "#!/bin/sh\necho '========= Invalid __global__ write of size 4 bytes'\nexit 9\n")
        self.planted(self.tools / "ncu", "#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n")
        done = self.cuda("--only", "memcheck,profile")
        self.assertEqual(done.returncode, 1)
        self.assertEqual({verdict for verdict, _ in self.summary().values()}, {"failed"}, done.stdout)

    def test_a_program_without_tests_is_not_skipped(self):
        suites, stages = self.folder / "suites.txt", ("parity", "memcheck")

        def ends(program, text):
            self.planted(self.native / "kvbound_parity_native", program)
            suites.write_text(text, "utf-8")
            self.cuda("--only", ",".join(stages), "--suites", suites)
            return self.summary()

        dies = PARITY.replace("# more\\n'", "# more\\n'; kill -9 $$")
        for program, text in (("#!/bin/sh\nexit 127\n", ""), ("#!/bin/sh\n", "First\n"), (dies, "First\n"), (dies, "")):
            self.assertEqual(ends(program, text), dict.fromkeys(stages, ("failed", "error: kvbound_parity_native lists no tests")))
        self.assertEqual(ends(PARITY, ""), dict.fromkeys(stages, ("skipped", "no suites: see suites.txt")))
        suites.write_text("Gone\n", "utf-8")
        run("A", "--only", "parity", "--suites", suites, "--out", self.out, self.native)
        self.assertEqual(self.summary()["parity"], ("failed", f"error: no suite of {suites} is known"))

    def test_a_tool_that_hangs_ends_with_what_it_started_before_its_stage(self):
        started = self.folder / "started"
        self.planted(self.tools / "ncu", f"#!/bin/sh\nsleep 60 &\necho $$ $! >>{started}\nwait\n")
        done = self.cuda("--only", "profile", "--seconds", "8")
        self.assertEqual((done.returncode, self.summary()["profile"][0]), (1, "failed"), done.stdout)
        self.assertIn("error: no time for ncu: weighted-means\n", done.stdout)
        processes = started.read_text("utf-8").split()
        self.assertEqual(len(processes), 2)
        for process in (Path(f"/proc/{process}/cmdline") for process in processes):
            self.assertFalse(process.exists() and process.read_bytes(), process)

    def test_a_driver_that_does_not_answer_is_a_failure(self):
        self.planted(self.tools / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
        self.assertEqual(self.cuda("--only", "facts").returncode, 1)


class Prepare(MeasureTest):
    def test_every_kernel_belongs_to_a_suite_of_its_own(self):
        of_sessions = {"AttentionParity", "AttentionArithmetic", "SessionArithmeticParity", "SessionParity", "SessionErrors",
                       "SessionRequests", "SessionRequestsOf", "SessionHeadDims", "SessionsTogether", "SessionsTogetherOf"}
        sources = changed_suites.sources_of_suites()
        kernels = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cuda").rglob("*.cu")} - {"cuda/roofline/roofline.cu"}
        self.assertGreater(len(kernels), 40)
        for kernel in kernels:
            self.assertTrue({suite for suite, files in sources.items() if kernel in files} - of_sessions, kernel)
        self.assertIn("cuda/native/device.cpp", sources["SelectionParity"])
        self.assertNotIn("cuda/merging/keep_kv_keys.cu", sources["SelectionParity"])

    def test_suites_are_those_whose_sources_changed(self):
        root = self.folder / "tree"
        for path, text in {"cuda/eviction/critical_kv.hpp": "", "cuda/eviction/critical_kv_selection.cu": "",
                           "cuda/primitives/kernel.hpp": "", "cuda/CMakeLists.txt": "", "tests/support/message_of.hpp": "",
                           "cuda/attention.hpp": "#include <kvbound/reference/core/view.hpp>\n", "reference/core/view.hpp": "",
                           "cuda/attention.cu": '#include "primitives/kernel.hpp"\n', "reference/attention.hpp": "",
                           "reference/attention.cpp": "#include <kvbound/reference/attention.hpp>\n",
                           "tests/parity/selection_parity_test.cpp": "#include <kvbound/cuda/eviction/critical_kv.hpp>\n"
                               '#include "support/message_of.hpp"\nTEST_F(One, A) {}\n',
                           "tests/parity/attention_parity_test.cpp": "#include <kvbound/cuda/attention.hpp>\n"
                               "#include <kvbound/reference/attention.hpp>\nTYPED_TEST(Two, A) {}\n"}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, "utf-8")
        self.assertEqual(changed_suites.changed_suites("HEAD", root), ["One", "Two"], "no git")
        for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
            subprocess.run(["git", "-C", root, *command], check=True)
        self.assertEqual(changed_suites.changed_suites("HEAD", root), [])
        self.assertEqual(changed_suites.changed_suites(None, root), ["One", "Two"], "no measurement")
        self.assertEqual(changed_suites.changed_suites("0123456789ab", root), ["One", "Two"], "git does not know it")
        for path, suites in (("cuda/CMakeLists.txt", ["One", "Two"]), ("reference/core/view.hpp", ["Two"]),
                             ("reference/attention.cpp", ["Two"]), ("tests/support/message_of.hpp", ["One"])):
            text = (root / path).read_text("utf-8")
            (root / path).write_text(f"{text}# changed\n", "utf-8")
            self.assertEqual(changed_suites.changed_suites("HEAD", root), suites, path)
            (root / path).write_text(text, "utf-8")
        (root / "cuda/eviction/critical_kv_adaptive.cu").write_text("", "utf-8")
        self.assertEqual(changed_suites.changed_suites("HEAD", root), ["One"], "a new file")
        (root / "cuda/primitives/kernel.hpp").write_text("// changed\n", "utf-8")
        self.assertEqual(changed_suites.changed_suites("HEAD", root), ["One", "Two"])

    def test_the_last_measurement_is_the_latest(self):
        self.assertEqual(changed_suites.last_revision(), json.loads(
            (ROOT / "sim/roofline/h200.json").read_text("utf-8"))["last_run"]["revision"])

    def test_what_is_copied_has_to_be_small(self):
        programs = self.folder / "programs"
        programs.mkdir()
        for size, code in ((1 << 20, 0), (62 << 20, 1)):
            with open(programs / "kvbound", "wb") as file:
                file.truncate(size)
            done = run("prepare", "--only", "size", "--programs", programs)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            counted, most = map(int, re.search(r"checkout and programs: (\d+) bytes, of (\d+)\n", done.stdout).groups())
            self.assertGreater(counted, size + (1 << 20), "the checkout counts, too")
            self.assertEqual((most, counted < most), (62 << 20, code == 0))
        self.assertEqual(done.stderr, "measure.sh: prepare: size failed\n")

    def headers(self, **variables):
        """What is said where no other library's headers can be had, with these variables of pip."""
        done = run("prepare", "--only", "headers", "--peers", self.folder / "peers", PIP_NO_CACHE_DIR="1", **variables)
        said = f"error: no headers of FlashInfer and CUB in {self.folder / 'peers'}: this needs PyPI and Python's module venv\n"
        self.assertEqual((said in done.stdout, done.returncode), (True, 1), done.stdout + done.stderr)
        self.assertTrue(done.stderr.endswith("\nmeasure.sh: prepare: headers failed\n"), done.stderr)
        return done.stderr

    def test_headers_that_are_not_those_pinned_are_refused(self):
        name = re.search(r"^flashinfer-python==(\S+)", (ROOT / "tests/peers/requirements.txt").read_text("utf-8"), re.MULTILINE)[1]
        info = f"flashinfer_python-{name}.dist-info"
        with zipfile.ZipFile(self.folder / f"flashinfer_python-{name}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("flashinfer/data/include/flashinfer/topk.cuh", "")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {name}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        said = self.headers(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(self.folder))
        self.assertIn("THESE PACKAGES DO NOT MATCH THE HASHES", said)

    def test_headers_without_a_network_are_a_failure(self):
        nowhere = "http://127.0.0.1:9"
        said = self.headers(PIP_INDEX_URL=f"{nowhere}/simple", PIP_RETRIES="0", http_proxy=nowhere, https_proxy=nowhere)
        self.assertIn("No matching distribution found for flashinfer-python==", said)

    def test_a_build_without_kernels_is_a_failure(self):
        tools = self.folder / "tools"
        for tool in ("cmake", "ctest"):
            self.planted(tools / tool, "#!/bin/sh\n")
        for planted, code in ((False, 1), (True, 0)):
            if planted:
                self.planted(self.out / "primitives_gpu_test", "")
            done = run("prepare", "--only", "build", "--programs", self.out, PATH=f"{tools}:{os.environ['PATH']}")
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            self.assertEqual("error: no programs for a GPU in " in done.stdout, not planted)

    def test_the_commands_are_literal(self):
        done = run("prepare", "--only", "commands")
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in ("timeout 560 cuda/measure.sh A --suites build/gpu-measure/suites.txt build/gpu-measure/portable",
                     "timeout 200 cuda/measure.sh B --suites build/gpu-measure/suites.txt build/gpu-measure/portable",
                     "cuda/measure.sh take FOLDER"):
            self.assertIn(f"  {line}\n", done.stdout)


class KernelMetrics(MeasureTest):
    def metrics(self, profile, *arguments):
        path = self.folder / "profile.csv"
        path.write_text(profile, "utf-8")
        done = subprocess.run([sys.executable, SCRIPTS / "kernel_metrics.py", path, *map(str, arguments)], capture_output=True,
                              text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_are_numbers_with_their_units(self):
        code, out, _ = self.metrics(PROFILE)
        self.assertEqual(code, 0)
        split, join = (line.split() for line in out.splitlines()[1:])
        self.assertEqual(split, ["attention", "attention_mma_kernel", "43.25", "134.5", "4.25", "79", "37.5", "16", "-",
                                 "2.5", "-", "barrier", "2.5"])
        self.assertEqual(join[:3] + join[7:], ["attention", "attention_join_kernel", "3.1", "-", "-", "-", "-", "-"])

    def test_stand_beside_what_was_counted(self):
        counters = self.folder / "counters.json"
        counters.write_text(json.dumps(COUNTERS), "utf-8")
        code, out, _ = self.metrics(PROFILE, "--counters", counters)
        self.assertEqual(code, 0)
        self.assertRegex(out, r"attention +attention_mma_kernel +43.2 / 42 +134 / 134 +4\.25 / 4\.3 +79 / - "
                         r"+37\.5 / 37\.5 +16 / 16 +2\.5 / 5\n")
        self.assertRegex(out, r"attention +attention_join_kernel +not counted\n")

    def test_a_step_without_an_end_is_a_failure(self):
        self.assertEqual(self.metrics(PROFILE, "--steps")[0], 1)

    def test_of_nothing_are_a_failure(self):
        self.assertEqual(self.metrics('"operation","attention"\n')[0], 1)

    def test_counters_that_are_none_are_named(self):
        for text in ("", "[]", "{}", '{"operations": [3]}', json.dumps({**COUNTERS, "parts": [{}]})):
            path = self.folder / "counters.json"
            path.write_text(text, "utf-8")
            code, _, err = self.metrics(PROFILE, "--counters", path)
            self.assertEqual(code, 4)
            self.assertRegex(err, f"^kernel_metrics: {re.escape(str(path))}: not what")


if __name__ == "__main__":
    # of a hook's or a rebase's repository, which is not a test's
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        os.environ.pop(name, None)
    PROGRAMS = Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
