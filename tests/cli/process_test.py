"""The program as a process: standard streams, and threads that cannot be started.

usage: process_test.py KVBOUND      KVBOUND: the program's path
"""
import json
import os
import resource
import signal
import subprocess
import time

from support import kvbound_cli
from support.documents import evaluated, read
from support.kvbound_cli import PASS, WORLD, CommandLineTest, TraceFile
from support.tiny_model import TinyModel


class Process(CommandLineTest):
    def test_nothing_is_printed_among_what_is_written_to_standard_output(self):
        TraceFile().write(self.folder / "trace.safetensors")
        runs = "trace.safetensors", "--policy", "snapkv:window=4", "--budget", "8"
        self.passes("replay", *runs, "--dump", "kernel.safetensors")
        for arguments in (("inspect", "trace.safetensors"), ("diff", "trace.safetensors", "kernel.safetensors"),
                          ("predict", *runs[:3]), ("recall", "trace.safetensors", "--k", "8", "--recent", "4"), ("prove", "ckv-3.2", "--cases", "30"),
                          ("bench", "selection", "--shape", "pocket:256", "--repeats", "1")):
            with self.subTest(arguments[0]):
                result = self.run_program(*arguments, "--json", "-")
                self.assertEqual(result.returncode, PASS, result.stderr)
                self.assertTrue(json.loads(result.stdout))
        result = self.run_program("replay", *runs, "--csv", "-", "--quiet")
        self.assertTrue(all(line.count(",") == result.stdout.splitlines()[0].count(",") for line in result.stdout.splitlines()))

    def test_tasks_may_come_from_a_pipe(self):
        model = TinyModel(vocabulary=256).write_folder(self.folder / "model")
        text = json.dumps({"id": "a", "prompt_text": "some prose", "answer_text": "an end"}) + "\n"
        options = "--policy", "snapkv:window=2", "--budget", "6", "--json"
        (self.folder / "tasks.jsonl").write_text(text, "utf-8")
        self.passes("evaluate", model, "tasks.jsonl", *options, "file.json")
        for name in ("-", "/dev/stdin"):
            process = self.start("evaluate", model, name, *options, "piped.json", stdin=subprocess.PIPE)
            _, stderr = process.communicate(text, timeout=300)
            self.assertEqual(process.returncode, PASS, stderr)
            file, piped = (evaluated(read(self.folder / path))["tasks_file"] for path in ("file.json", "piped.json"))
            self.assertEqual(piped["sha256"], file["sha256"])

    def test_streams_that_are_closed(self):
        """No file gets the number of a closed stream, so that nothing is printed into it."""
        model = TinyModel().write_folder(self.folder / "model")
        (self.folder / "tokens").write_text("1 2 3", "utf-8")
        arguments = "record", model, "--tokens", "tokens", "--steps", 2, "--quiet", "out.safetensors"
        self.passes(*arguments)
        expected = (self.folder / "out.safetensors").read_bytes()
        for descriptors, code in (((0,), PASS), ((2,), PASS), ((0, 2), PASS), ((1,), WORLD), ((0, 1, 2), WORLD)):
            with self.subTest(descriptors):
                (self.folder / "out.safetensors").unlink(missing_ok=True)
                result = self.run_program(*arguments, preexec_fn=lambda closed=descriptors: [os.close(one) for one in closed])
                self.assertEqual(result.returncode, code, result.stderr)
                written = (self.folder / "out.safetensors").exists() and (self.folder / "out.safetensors").read_bytes()
                self.assertEqual(written, expected if code == PASS else False)
        result = self.run_program(*arguments[:3], "-", *arguments[4:], preexec_fn=lambda: os.close(0))
        self.assertEqual(result.returncode, WORLD, result.stderr)

    def test_limits_of_virtual_memory_end_the_program_or_suffice(self):
        """OpenBLAS's own threads would try for ever to get their 128 MiB, and keep the program from ending."""
        TraceFile().write(self.folder / "trace.safetensors")
        arguments = "replay", "trace.safetensors", "--policy", "snapkv:window=4", "--budget", "8", "--quiet", "--json", "out.json"
        codes = set()
        for waiting in ({"OMP_WAIT_POLICY": "passive"}, {"GOMP_SPINCOUNT": "0"}, {}):
            silent = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
            for threads in (1, 7):
                for mebibytes in (100, 180, 400, 1400):
                    with self.subTest(waiting=waiting, threads=threads, mebibytes=mebibytes):
                        limit = mebibytes << 20, mebibytes << 20
                        result = self.run_program(*arguments, timeout=60, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
                                                  env={**silent, **waiting, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "7"})
                        self.assertIn(result.returncode, (PASS, WORLD), result.stderr)
                        self.assertRegex(result.stderr, r"\A(kvbound: the limit of virtual memory \(ulimit -v\), \d+ MiB, [^\n]*\n)?\Z")
                        self.assertEqual((self.folder / "out.json").exists(), result.returncode == PASS)
                        (self.folder / "out.json").unlink(missing_ok=True)
                        codes.add((threads, mebibytes, result.returncode))
        self.assertLessEqual({(1, 400, PASS), (7, 180, WORLD), (7, 1400, PASS)}, codes)

    def writing(self):
        """A process that has begun to write `out`, and will for a while."""
        before = list(self.folder.glob(".out.*.tmp"))
        process = self.start("generate", "--kind", "mixed", "--tokens", "131072", "--layers", "64", "out",
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        while not [path for path in self.folder.glob(".out.*.tmp") if path not in before]:
            self.assertIsNone(process.poll())
            time.sleep(0.001)
        return process

    def test_every_signal_that_can_be_caught_leaves_nothing(self):
        for number in ("ABRT", "SEGV", "BUS", "FPE", "ILL", "TRAP", "SYS", "XCPU", "QUIT", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "IO", "PWR",
                       "STKFLT", "RTMIN", "RTMAX"):
            with self.subTest(number):
                process = self.writing()
                process.send_signal(getattr(signal, "SIG" + number))
                self.assertEqual(process.wait(timeout=300), -getattr(signal, "SIG" + number), "it ends by the signal all the same")
                self.assertEqual(list(self.folder.iterdir()), [])

    def test_signals_that_are_ignored_remain_ignored(self):
        process = self.start("generate", "--kind", "mixed", "--tokens", "4096", "out", preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN))
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=300)
        self.assertEqual(process.returncode, PASS)

    def test_a_later_run_removes_what_a_killed_one_left(self):
        process = self.writing()
        process.kill()
        process.wait()
        left, living = next(self.folder.glob(".out.*.tmp")), self.writing()
        self.assertFalse(left.exists())
        writes = next(self.folder.glob(".out.*.tmp"))
        self.passes("generate", "--kind", "mixed", "--tokens", "64", "next")
        self.assertTrue(writes.exists(), "that process lives")
        living.terminate()
        living.wait()
        self.assertEqual([path.name for path in self.folder.iterdir()], ["next"])

    def test_a_recording_whose_tokens_cannot_be_printed_leaves_no_trace(self):
        model = TinyModel().write_folder(self.folder / "model")
        (self.folder / "tokens").write_text("1 2 3", "utf-8")
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = self.run_program("record", model, "--tokens", "tokens", "--steps", 2, "--quiet", "out", stdout=full)
        self.assertEqual(result.returncode, WORLD)
        self.assertIn("cannot write to standard output", result.stderr)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["model", "tokens"])

    def test_threads_that_cannot_be_started(self):
        TraceFile().write(self.folder / "trace.safetensors")
        arguments = "replay", "trace.safetensors", "--policy", "snapkv:window=4", "--budget", "8"

        def limit():  # no room for stacks of 16 GiB, and for products of eight threads only without them
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        for variables, problem in (({"OMP_NUM_THREADS": "8", "OMP_STACKSIZE": "16G"}, "Thread creation failed.*want of threads or memory"),
                                   ({"OMP_NUM_THREADS": "200"}, r"limit of virtual memory \(ulimit -v\), 8192 MiB, leaves no room .* 200"),
                                   ({"OMP_NUM_THREADS": "100000"}, "cannot start 100000 threads, as OMP_NUM_THREADS says; expected 1 to"),
                                   ({"OMP_NUM_THREADS": "1000000000"}, "cannot start 1000000000 threads"),
                                   ({"OMP_NUM_THREADS": "4294967297"}, "cannot start 4294967297 threads")):
            with self.subTest(variables):
                result = self.run_program(*arguments, "--json", "out.json", env={**os.environ, **variables}, preexec_fn=limit)
                self.assertEqual(result.returncode, WORLD, result.stderr)
                self.assertRegex(" ".join(result.stderr.split()), problem)
                self.assertEqual([path.name for path in self.folder.iterdir()], ["trace.safetensors"])


if __name__ == "__main__":
    kvbound_cli.main()
