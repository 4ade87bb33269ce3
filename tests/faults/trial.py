"""A command with one fault, and what is wrong with how it ended."""
import errno
import os
import re
import subprocess
from collections import Counter
from typing import NamedTuple

from faults import commands
from support import kvbound_cli
from support.kvbound_cli import PASS

SHORT = 0  # instead of an errno: a call that transfers one byte
KINDS = {"malloc": (errno.ENOMEM,), "open": (errno.EMFILE, errno.EINTR), "open-folder": (errno.EMFILE,), "read": (errno.EIO, errno.EINTR, SHORT),
         "pread": (errno.EIO, errno.EINTR, SHORT), "write": (errno.ENOSPC, errno.EINTR, SHORT), "fsync": (errno.EIO, errno.EINTR),
         "close": (errno.EIO, errno.EINTR), "rename": (errno.EIO,), "ftruncate": (errno.EIO,), "unlink": (errno.EIO,), "mkdir": (errno.ENOSPC,),
         "stat": (errno.EIO,), "thread": (errno.EAGAIN,)}
# numbers of calls that are not the same each time: what workers say arrives in pieces
VARYING = "malloc", "read", "thread"
# The latter of glibc's own, such as realpath's; and libgomp's line with that of ours behind it.
NO_MEMORY = re.compile("kvbound: (out of memory|cannot [^:]+: Cannot allocate memory|a library ended the program for want of [^:]+)|"
                       r"libgomp: Out of memory allocating \d+ bytes|")
MOST_SECONDS = 120
MOST_LINES = 3  # on standard error, beyond those of an undisturbed run


class Fault(NamedTuple):
    command: commands.Command
    function: str
    error: int
    call: int
    exists: bool  # whether the command makes so many calls
    old: str | None  # the text of the outputs that are to be replaced

    def __str__(self):
        kind = errno.errorcode[self.error] if self.error else "a byte"
        return f"{self.command.name}{', replacing outputs' if self.old else ''}: {kind} of {self.function}, call {self.call}"

    @property
    def codes(self):
        """The exit codes with which it may end. What is no error, an interruption or a transfer of less, is met by going on."""
        return (PASS,) if self.error in (errno.EINTR, SHORT) else self.command.codes


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: list  # lines
    met: bool  # whether the call that fails was made
    calls: Counter  # of each function, by the process that made most


class Trials:
    """Commands in a folder of their own, beside `inputs`, with faults by a library built from fault.cpp."""

    def __init__(self, library, folder, inputs):
        self.library, self.folder, self.inputs = library, folder, inputs
        self.undisturbed = {}

    def run(self, command, function="close", error=0, call=0):
        """Runs a command in its folder as it is; without a call of that number nothing fails."""
        log = self.folder.with_suffix(".log")
        log.unlink(missing_ok=True)
        environment = {**os.environ, "LD_PRELOAD": str(self.library), "KVBOUND_FAULT": f"{function}:{call}:{error}", "KVBOUND_FAULT_LOG": str(log),
                       "OMP_NUM_THREADS": "2" if function == "thread" else "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.run([kvbound_cli.program, *command.arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                 errors="surrogateescape", cwd=self.folder, env=environment, timeout=MOST_SECONDS, check=False)
        calls = Counter()
        for line in log.read_text("utf-8").splitlines() if log.exists() else []:
            calls |= Counter({line.split()[0]: int(line.split()[1])})
        return Ended(process.returncode, process.stdout, process.stderr.splitlines(), calls.pop("failed", 0) > 0, calls)

    def expect(self, command):
        """Runs the command without faults, and keeps what it wrote and printed."""
        commands.begin(command, self.inputs, self.folder, None)
        ended = self.run(command)
        if ended.code != PASS:
            raise AssertionError(f"{command.name}: exit code {ended.code}, {ended.stderr}")
        self.undisturbed[command] = ended, commands.written(command, self.folder)

    def faults(self, command, allocations=None):
        """All faults of a command's calls, or of at most so many allocations, and one behind the last call of each function; of a
        command that replaces outputs, and of one that makes them."""
        for old in (None, "old"):
            calls = self.calls(command, old)
            for function, errors in KINDS.items():
                last = calls[function]
                stride = 1 if function != "malloc" or allocations is None else max(1, -(-2 * last // allocations))
                for call in [*range(1, last + 1, stride), last + last // 10 + 1]:
                    yield from (Fault(command, function, error, call, call <= last, old) for error in errors)

    def calls(self, command, old):
        """How many calls of each function a command makes; of threads, when it may start some."""
        calls = Counter()
        for function in ("close", "thread"):
            commands.begin(command, self.inputs, self.folder, old)
            found = self.run(command, function).calls
            calls = found if not calls else calls | Counter(thread=found["thread"])
        return calls

    def problem(self, fault):
        """Runs a command with a fault. Returns what is wrong with how it ended, or None; and the exit code, None if there was no
        such call."""
        commands.begin(fault.command, self.inputs, self.folder, fault.old)
        try:
            ended = self.run(fault.command, fault.function, fault.error, fault.call)
        except subprocess.TimeoutExpired:
            return "does not end", None
        found = (self.wrong_end(fault, ended) or self.left_behind(fault, ended) or self.wrong_output(fault.command, ended, fault.old)
                 or self.wrong_continuation(fault.command, ended))
        return found, ended.code if ended.met else None

    def wrong_end(self, fault, ended):
        if ended.met != fault.exists and fault.function not in VARYING:
            return "is met" if ended.met else "is not met"
        usual, _ = self.undisturbed[fault.command]
        lines = [line for line in ended.stderr if line not in usual.stderr]
        if ended.code not in (fault.codes if ended.met else (PASS,)):
            return f"exit code {ended.code}: {lines[:MOST_LINES]}"
        if len(lines) > MOST_LINES or not lines and ended.code != PASS:
            return f"{len(lines)} lines: {lines[:MOST_LINES]}"
        if fault.function == "malloc" and ended.code != PASS and not all(NO_MEMORY.fullmatch(line) for line in lines):
            return f"says {lines}"
        return None

    def left_behind(self, fault, ended):
        """Files that an undisturbed run does not leave, but for a sweep's notes of items that it tried in vain. What cannot be
        removed stays."""
        surplus = {name for name in commands.files(self.folder) - set(self.undisturbed[fault.command][1])
                   if ended.code == PASS or not name.startswith("study/attempts/") or "/." in name}
        return f"leaves {sorted(surplus)}" if surplus and fault.function != "unlink" else None

    def wrong_output(self, command, ended, old):
        usual, expected = self.undisturbed[command]
        if ended.code == PASS:
            if commands.printed(ended.stdout, command.measures) != commands.printed(usual.stdout, command.measures):
                return f"prints {ended.stdout!r}"
            written = commands.written(command, self.folder)
            different = [name for name in expected if written.get(name) != expected[name]]
            return f"writes other {different}" if different else None
        for name in commands.files(self.folder) & set(command.outputs):
            path = self.folder / name
            if (old is None or path.read_bytes() != old.encode()) and commands.content(path, command.measures) != expected[name]:
                return f"tears {name}"
        return None

    def wrong_continuation(self, command, ended):
        """Whether the command, called again, does not end as if nothing had happened."""
        if ended.code == PASS or not command.goes_on:
            return None
        again = self.run(command)
        if again.code != PASS:
            return f"does not go on: {again.stderr}"
        return None if commands.written(command, self.folder) == self.undisturbed[command][1] else "goes on to other outputs"
