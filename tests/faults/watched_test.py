"""No command that reads or writes files uses a network, executes anything but the program itself, or maps code of other files than
the libraries that it is linked with. (Not here: `sweep --engine slurm`, which calls sbatch, and GPUs, whose driver is loaded.)

usage: watched_test.py KVBOUND      KVBOUND: the program's path
"""
import os
import re
import signal
import subprocess

from faults import commands
from faults.watched import watch
from support import kvbound_cli
from support.kvbound_cli import PASS, CommandLineTest

QUIET = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}
PYTHON = "/usr/bin/python3"
CALL = "import ctypes; ctypes.CDLL(None).syscall"


def linked(file):
    """The files of an executable and of the libraries that it is linked with, the dynamic loader among them."""
    said = subprocess.run(["ldd", file], check=True, capture_output=True, text=True).stdout
    return {os.path.realpath(path) for path in [file, *re.findall(r"(/\S+)", said)]}


class WatchedTest(CommandLineTest):
    def watch(self, *arguments, environment=None, folder=None):
        return watch(arguments, folder or self.folder, QUIET if environment is None else environment, self.folder / "said")


class Commands(WatchedTest):
    def setUp(self):
        super().setUp()
        commands.write_inputs(self)

    def watch_command(self, command, environment=None):
        commands.begin(command, self.folder / "inputs", self.folder / "case", None)
        watched = self.watch(kvbound_cli.program, *command.arguments, environment=environment, folder=self.folder / "case")
        self.assertEqual((watched.code, watched.signals), (PASS, set()), (self.folder / "said.2").read_text("utf-8"))
        self.assertEqual(set(watched.executed), {str(kvbound_cli.program)})
        self.assertLessEqual(watched.mapped, linked(kvbound_cli.program))
        return watched

    def test_each_uses_no_network_and_executes_nothing_else(self):
        for command in commands.COMMANDS:
            with self.subTest(command.name):
                watched = self.watch_command(command)
                self.assertEqual(len(watched.executed), 1 + watched.children, "each process is the program")
                self.assertEqual(watched.children > 0, command.name.startswith("sweep"))

    def test_the_program_executes_itself_once_more_to_set_its_environment(self):
        watched = self.watch_command(next(command for command in commands.COMMANDS if command.name == "inspect --json"), environment={})
        self.assertEqual((len(watched.executed), watched.children), (2, 0))


class Controls(WatchedTest):
    """What must be noticed."""

    def run_python(self, code):
        return self.watch(PYTHON, "-S", "-c", code)  # without site, which asks for the user by a socket

    def test_nothing(self):
        watched = self.run_python("")
        self.assertEqual((watched.code, watched.signals, watched.children), (PASS, set(), 0))
        self.assertLessEqual(linked(PYTHON), watched.mapped)

    def test_calls_that_make_a_network_possible(self):
        for code in ("import socket; socket.socket()", "import socket; socket.socketpair()", f"{CALL}(425, 1, 0)", f"{CALL}(438, 0, 0, 0)",
                     f"{CALL}({'0x40000029' if os.uname().machine == 'x86_64' else 198}, 1, 1, 0)",
                     "import os, socket, time; os.fork() or socket.socket()", "import threading, socket; threading.Thread(target=socket.socket).start()"):
            with self.subTest(code):
                self.assertEqual(self.run_python(code).signals, {signal.SIGSYS})

    def test_other_programs(self):
        watched = self.run_python("import os; os.system('exec true')")
        self.assertEqual(watched.children, 1)
        self.assertEqual(watched.executed[0], os.path.realpath(PYTHON))
        self.assertEqual(watched.executed[-1], os.path.realpath("/usr/bin/true"))
        self.assertEqual(self.run_python("import os; os.execv('/usr/bin/true', ['true'])").executed[1:], [os.path.realpath("/usr/bin/true")])

    def test_other_code(self):
        library = next(path for path in linked(kvbound_cli.program) - linked(PYTHON) if "/libfmt" in path or "/libgomp" in path)
        self.assertIn(library, self.run_python(f"import ctypes; ctypes.CDLL({library!r})").mapped)
        self.assertIn("anonymous", self.run_python("import mmap; memory = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, prot=7); import os; os._exit(0)").mapped)


if __name__ == "__main__":
    kvbound_cli.main()
