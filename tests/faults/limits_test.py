"""What the system refuses a process: memory, files, bytes of a file, processes, disk, streams, folders. Each command that writes
then ends with 0, or with 4 and one line, and leaves nothing half done.

usage: limits_test.py KVBOUND      KVBOUND: the program's path

As root, parts run as another user, and on small disks of their own (tmpfs); for anybody else they are left out, which is said.
"""
import os
import resource
import subprocess
from pathlib import Path

from faults import commands
from faults.trial import MOST_SECONDS
from support import kvbound_cli
from support.kvbound_cli import NOBODY, PASS, WORLD, CommandLineTest

ROOT = os.geteuid() == 0
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}


def left_out(what):
    """Says that a part of a test is left out; a skipped test would count as failed."""
    print(f"left out, for want of {what}")


class Limits(CommandLineTest):
    def setUp(self):
        super().setUp()
        commands.write_inputs(self)
        self.inputs, self.case = self.folder / "inputs", self.folder / "case"
        self.folder.chmod(0o755)
        self.codes = set()

    def run_command(self, command, **options):
        """Runs a command in the folder as it is."""
        return kvbound_cli.run(*command.arguments, cwd=self.case, timeout=MOST_SECONDS, **{"env": ENVIRONMENT, **options})

    def ends_well(self, command, before=None, most_lines=1, **options):
        """Runs a command; requires exit code 0 and all outputs, or 4, a line and none. before: what is in its folder then."""
        if before is None:
            commands.begin(command, self.inputs, self.case, None)
            before = commands.files(self.case)
        result = self.run_command(command, **options)
        lines = [line for line in (result.stderr or "").splitlines() if line and "it counts as missing" not in line]
        self.assertIn(result.returncode, command.codes, lines)
        left = commands.files(self.case) - before
        self.assertEqual([name for name in left if "/." in name or name.startswith(".")], [])
        outputs = left & set(command.outputs)
        if result.returncode == PASS:
            self.assertEqual(outputs, set(command.outputs))
        else:
            self.assertLessEqual(len(lines), most_lines, lines)
            self.assertEqual(outputs, set())
        self.codes.add(result.returncode)
        return result

    def under(self, limit, values, chosen=commands.COMMANDS, most_lines=1, **options):
        """Runs commands under limits of the system, of which some have to suffice, and some not."""
        for command in chosen:
            for value in values:
                with self.subTest(command=command.name, value=value):
                    self.ends_well(command, most_lines=most_lines, preexec_fn=lambda: resource.setrlimit(limit, (value, value)), **options)
        self.assertEqual(self.codes & {PASS, WORLD}, {PASS, WORLD})

    def test_memory(self):
        self.under(resource.RLIMIT_AS, [mebibytes << 20 for mebibytes in (100, 250, 600, 1500)],
                   most_lines=2)  # what libgomp says, and what we do

    def test_open_files(self):
        self.under(resource.RLIMIT_NOFILE, (4, 5, 6, 8, 64), most_lines=3)

    def test_bytes_of_a_file(self):
        self.under(resource.RLIMIT_FSIZE, (0, 100, 1 << 30))

    def test_processes(self):
        if not ROOT:
            return left_out("another user, whose processes are counted")
        for command in commands.COMMANDS:
            for value in (0, 1, 2, 50):
                with self.subTest(command=command.name, value=value):
                    commands.begin(command, self.inputs, self.case, None)
                    subprocess.run(["chmod", "-R", "a+rwX", self.case], check=True)
                    self.ends_well(command, before=commands.files(self.case), most_lines=3,
                                   **self.another_user(NOBODY + value + 1),  # who has no other processes
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (value, value)))
        self.assertEqual(self.codes, {PASS, WORLD})

    def test_a_full_disk(self):
        if not ROOT:
            return left_out("permission to mount a small disk")
        self.case.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", self.case], check=False, capture_output=True)
        if mounted.returncode != 0:
            return left_out("permission to mount a small disk")
        self.addCleanup(subprocess.run, ["umount", self.case], check=True)
        for command in commands.COMMANDS:
            for free in (0, 4, 8, 16, 32):
                with self.subTest(command=command.name, free=free):
                    subprocess.run(["find", self.case, "-mindepth", "1", "-delete"], check=True)
                    if command.begin:
                        subprocess.run(["cp", "-r", f"{self.inputs}/{command.begin}/.", self.case], check=True)
                    disk = os.statvfs(self.case)
                    (self.case / "full").write_bytes(bytes(max(0, disk.f_bavail * disk.f_bsize - free * 1024)))
                    self.ends_well(command, before=commands.files(self.case))
        self.assertEqual(self.codes & {PASS, WORLD}, {PASS, WORLD})

    def test_streams_that_are_closed_or_full(self):
        for command in commands.COMMANDS:
            for stream in (0, 1, 2):
                with self.subTest(command=command.name, closed=stream):
                    result = self.ends_well(command, preexec_fn=lambda: os.close(stream))
                    self.assertTrue(result.returncode == PASS or not commands.files(self.case) & set(command.outputs))
            for stream in ("stdout", "stderr"):
                with self.subTest(command=command.name, full=stream), open("/dev/full", "w", encoding="utf-8") as full:
                    result = self.ends_well(command, **{stream: full})
                    self.assertTrue(result.returncode == PASS or not commands.files(self.case) & set(command.outputs))

    def test_a_folder_that_may_not_be_written(self):
        for command in commands.COMMANDS:
            with self.subTest(command=command.name):
                commands.begin(command, self.inputs, self.case, None)
                before = commands.files(self.case)
                subprocess.run(["chmod", "-R", "a-w", self.case], check=True)
                result = self.ends_well(command, before=before, **(self.another_user() if ROOT else {}))
                subprocess.run(["chmod", "-R", "u+w", self.case], check=True)
                self.assertEqual(result.returncode, WORLD)
                self.assertEqual(commands.files(self.case), before)

    def test_no_home_and_nothing_else(self):
        for command in commands.COMMANDS:
            with self.subTest(command=command.name):
                self.assertEqual(self.ends_well(command, env={}).returncode, PASS)

    def test_a_locale_with_a_decimal_comma(self):
        """What is written is the same as in the locale C."""
        german = self.folder / "de_DE.UTF-8"
        subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", "--no-archive", german], check=False, capture_output=True)
        name = german.name if Path(german, "LC_NUMERIC").exists() else left_out("sources of locales") or "C"
        for command in commands.COMMANDS:
            with self.subTest(command=command.name):
                printed = []
                for locale in ("C", name):
                    result = self.ends_well(command, env={**ENVIRONMENT, "LOCPATH": str(self.folder), "LC_ALL": locale})
                    self.assertEqual(result.returncode, PASS)
                    printed.append((commands.printed(result.stdout, command.measures), commands.written(command, self.case)))
                self.assertEqual(*printed)


if __name__ == "__main__":
    kvbound_cli.main()
