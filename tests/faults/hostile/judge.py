"""Runs a case, and says what is wrong with how it ended."""
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from support import kvbound_cli
from support.kvbound_cli import INCONCLUSIVE, MISMATCH, PASS, USAGE

MOST_CPU_SECONDS = 20
MOST_SECONDS = 120  # on a machine with other work
MOST_BYTES = 2 << 30  # of memory
MOST_ADDRESSES = 6 << 30  # so that the machine survives a program that takes more
MOST_OF_A_FILE = 64 << 20
MOST_CHARACTERS = 1500  # of a line
MOST_NOTES = 8  # lines on standard error that are no refusal
# C0 but for the end of a line, DEL and C1; what orders text from right to left, and separates lines
CONTROL = re.compile("[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
TEMPORARY = re.compile(r"^\..*\.tmp$")
NOTES = re.compile(r"libgomp: |OMP: |.*it counts as missing$|.*: warning: ")
SCRIPTS = kvbound_cli.REPOSITORY / "traces" / "scripts"


class Ended(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes
    is_late: bool
    memory: int  # bytes

    def lines(self):
        return self.stderr.decode("utf-8", "replace").splitlines()


def end_of_stream(path, ended):
    """Whoever reads from a FIFO, if it is one, finds its end: where pipes may be read, they are waited for."""
    while path.is_fifo() and not ended.is_set():
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            ended.wait(0.01)


def state(folder):
    """{path: what changes if it is written} of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[path.relative_to(folder).as_posix()] = (status.st_mode, status.st_ino, status.st_size,
                                                      status.st_mtime_ns) if not path.is_dir() or path.is_symlink() else None
    return found


class Judge:
    """Cases in a folder of its own, beside which nothing may be written.

    figures  {(surface, arguments): the CSV of undamaged files}
    """

    figures = {}

    def __init__(self, folder):
        self.folder, self.case_folder, self.streams = folder, folder / "case", folder / "streams"
        for made in (folder, self.streams, folder / "home"):
            made.mkdir()

    def prepare(self, case):
        shutil.rmtree(self.case_folder, ignore_errors=True)
        self.case_folder.mkdir()
        for name, content in case.files.items():
            path = self.case_folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name, place in case.things.items():
            path = self.case_folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            place(path)

    def run(self, case):
        home = str(self.folder / "home")
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": home, "TMPDIR": home, "OMP_NUM_THREADS": "1",
                       "OPENBLAS_NUM_THREADS": "1",
                       "OMP_WAIT_POLICY": "passive", "PYTHONDONTWRITEBYTECODE": "1", **case.environment}
        command = [kvbound_cli.program] if case.script is None else [sys.executable, SCRIPTS / case.script]
        streams = [self.streams / name for name in ("stdout", "stderr")]
        with open(streams[0], "wb") as stdout, open(streams[1], "wb") as stderr:
            process = subprocess.Popen([*command, *case.arguments], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=self.case_folder,
                                       env=environment, start_new_session=True)
        for limit, most in ((resource.RLIMIT_CPU, MOST_CPU_SECONDS), (resource.RLIMIT_AS, MOST_ADDRESSES),
                            (resource.RLIMIT_FSIZE, MOST_OF_A_FILE), (resource.RLIMIT_CORE, 0)):
            try:
                resource.prlimit(process.pid, limit, (most, most))
            except ProcessLookupError:
                pass
        late, ended = [], threading.Event()
        for name in case.things:
            threading.Thread(target=end_of_stream, args=(self.case_folder / name, ended)).start()
        watchdog = threading.Timer(MOST_SECONDS, lambda: (late.append(1), os.killpg(process.pid, signal.SIGKILL)))
        watchdog.start()
        _, status, usage = os.wait4(process.pid, 0)
        watchdog.cancel()
        ended.set()
        process.returncode = os.waitstatus_to_exitcode(status)
        return Ended(process.returncode, *(path.read_bytes() for path in streams), bool(late), usage.ru_maxrss * 1024)

    def problem(self, case):
        """What is wrong, or None; and the exit code."""
        self.prepare(case)
        before = state(self.case_folder)
        beside = {path.name for path in self.folder.iterdir()}
        ended = self.run(case)
        found = (wrong_end(case, ended) or wrong_message(case, ended) or wrong_text(case, ended) or self.wrong_files(case, ended, before))
        if not found and ({path.name for path in self.folder.iterdir()} != beside or any((self.folder / "home").iterdir())):
            found = "writes beside its folder"
        return found, ended

    def csv(self):
        return (self.case_folder / "out.csv").read_bytes()

    def wrong_files(self, case, ended, before):
        after = state(self.case_folder)
        left = [name for name in after if TEMPORARY.match(Path(name).name) and name not in before and name not in case.own]
        if left:
            return f"leaves {left}"
        passed = ended.code in (PASS, MISMATCH, INCONCLUSIVE)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name, 0) == after.get(name, 0) or any(f"{name}/".startswith(f"{own}/") or own.startswith(f"{name}/") for own in case.own):
                continue
            if not passed or not Path(name).name.startswith("out"):
                return f"{'changes' if name in before else 'leaves'} {name}"
        if case.sound and ended.code == PASS and "out.csv" in after and self.csv() != self.figures[case.surface, case.arguments]:
            return "has other figures"
        if passed:
            for path in self.case_folder.glob("out*"):
                torn = torn_output(path)
                if torn:
                    return f"{path.name} is torn: {torn}"
        return None


def torn_output(path):
    """Why an output is not whole; None if it is, or is no file."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    try:
        if path.suffix == ".json":
            json.loads(content, parse_constant=no_json)
        elif path.suffix == ".html":
            return None if content.rstrip().endswith(b"</html>") else "has no end"
        elif path.suffix == ".csv":
            return None if content.endswith(b"\n") else "has no last line"
        elif path.suffix == ".safetensors":
            length = int.from_bytes(content[:8], "little")
            ends = [entry["data_offsets"][1] for name, entry in json.loads(content[8:8 + length]).items() if name != "__metadata__"]
            return None if 8 + length + max(ends, default=0) == len(content) else "has another length"
    except (ValueError, UnicodeDecodeError) as error:
        return str(error)
    return None


def no_json(constant):
    raise ValueError(f"has {constant}")


def wrong_end(case, ended):
    said = ended.lines()[:3]
    if ended.is_late:
        return f"does not end in {MOST_SECONDS} s: {said}"
    if ended.code < 0:
        return f"ends by {signal.Signals(-ended.code).name}: {said}"
    if ended.code not in case.codes:
        return f"exit code {ended.code}: {said}"
    if ended.memory > MOST_BYTES:
        return f"takes {ended.memory >> 20} MiB of memory: {said}"
    return None


def wrong_message(case, ended):
    of_openmp = b"libgomp: " in ended.stderr  # which begins with an empty line
    lines = [line for line in ended.lines() if not NOTES.match(line) and not (of_openmp and not line)]
    long = [line[:200] for line in lines if len(line) > MOST_CHARACTERS]
    if long:
        return f"a line of too many characters: {long}"
    if ended.code in (PASS, MISMATCH, INCONCLUSIVE):
        return f"{len(lines)} lines: {lines[:3]}" if len(lines) > MOST_NOTES and not case.prints_a_file() else None
    # items of a sweep, a line each
    if len(lines) != 1 and not (lines and all("given up after" in line for line in lines)):
        return f"{len(lines)} lines: {lines[:4]}"
    # as the damaged file says
    of_another = lines[0].startswith("kvbound: cannot open ") or ended.code == USAGE and re.search("--|policy ", lines[0])
    if case.named and not of_another and not any(name in lines[0] for name in case.named):
        return f"names neither file nor option: {lines[0]}"
    return None


def wrong_text(case, ended):
    """What was printed is UTF-8 without control characters."""
    for name, printed in (("standard error", ended.stderr), ("standard output", b"" if case.prints_a_file() else ended.stdout)):
        try:
            text = printed.decode("utf-8")
        except UnicodeDecodeError as error:
            return f"{name} is not UTF-8: {printed[max(0, error.start - 80):error.end + 40]!r}"
        control = CONTROL.search(text)
        if control:
            return f"{name} has a control character: {text[max(0, control.start() - 80):control.end() + 40]!r}"
    return None
