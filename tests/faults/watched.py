"""A program that may not use a network, and whose every process is watched: what it executes, and what code is mapped.

The system ends a process at a call that makes a network possible (seccomp), which no process can undo. ptrace stops a process when
it has executed a program, and when it ends, and follows its children and threads.
"""
import ctypes
import os
import platform
import re
import signal
import struct
from dataclasses import dataclass, field
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
# AUDIT_ARCH_* of linux/audit.h, and the first and the last call of those of sockets: socket to
# getsockopt, or to recvmsg
ARCHITECTURE, SOCKET, LAST = {"x86_64": (0xC000003E, 41, 55), "aarch64": (0xC00000B7, 198, 212)}[platform.machine()]
X32 = 0x40000000  # x86-64 has each call twice, the second time with this bit
# io_uring_setup, which opens sockets without calls; pidfd_getfd, which takes another process's
OTHERS = 425, 438
LOAD, EQUAL, AT_LEAST, GREATER, RETURN = 0x20, 0x15, 0x35, 0x25, 0x06  # instructions of linux/bpf_common.h
KILL, ALLOW = 0x80000000, 0x7FFF0000  # SECCOMP_RET_*
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2  # of prctl
TRACE_ME, CONTINUE, SET_OPTIONS = 0, 7, 0x4200  # requests of ptrace
FORKED, VFORKED, CLONED, EXECUTED, ENDS = 1, 2, 3, 4, 6  # its events
# and end all if the tracer ends
FOLLOW = 1 << 20 | sum(1 << event for event in (FORKED, VFORKED, CLONED, EXECUTED, ENDS))
ALL_THREADS = 0x40000000  # __WALL of waitpid


@dataclass
class Watched:
    """code      the exit code, or minus the signal that ended the first process
    executed  the programs that were executed, the first included, in this order
    children  how many processes were made
    mapped    the files whose code was mapped when a process ended, and "anonymous" if there was other code
    signals   those that ended a process
    """

    code: int = 0
    executed: list = field(default_factory=list)
    children: int = 0
    mapped: set = field(default_factory=set)
    signals: set = field(default_factory=set)


def network_filter():
    """The filter as instructions of BPF: every path ends with KILL, the last but one, or ALLOW, the last."""
    tests = [(EQUAL, ARCHITECTURE, None, "kill"), "number", (AT_LEAST, X32, "kill", None), *((EQUAL, call, "kill", None) for call in OTHERS),
             (GREATER, LAST, "allow", None), (AT_LEAST, SOCKET, "kill", "allow")]
    end = 1 + len(tests)  # of the instructions before KILL
    program = [struct.pack("HBBI", LOAD, 0, 0, 4)]  # the architecture, of struct seccomp_data
    for test in tests:
        at = len(program)
        if test == "number":
            program.append(struct.pack("HBBI", LOAD, 0, 0, 0))
            continue
        code, value, *targets = test
        program.append(struct.pack("HBBI", code, *({None: 0, "kill": end - at - 1, "allow": end - at}[target] for target in targets), value))
    return b"".join([*program, struct.pack("HBBI", RETURN, 0, 0, KILL), struct.pack("HBBI", RETURN, 0, 0, ALLOW)])


def forbid_network():
    instructions = network_filter()
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(instructions) // 8, ctypes.addressof(buffer)))
    if LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or LIBC.prctl(SECCOMP, FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def begin(arguments, folder, environment, output):
    """What the child does; never returns."""
    try:
        os.chdir(folder)
        for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_CREAT), (2, os.O_WRONLY | os.O_CREAT)):
            os.dup2(os.open(os.devnull if number == 0 else f"{output}.{number}", mode, 0o666), number)
        os.closerange(3, 256)
        if LIBC.ptrace(TRACE_ME, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "ptrace")
        os.kill(os.getpid(), signal.SIGSTOP)
        forbid_network()
        os.execve(arguments[0], arguments, environment)
    except BaseException as error:  # pylint: disable=broad-except
        os.write(2, repr(error).encode())
    finally:
        os._exit(126)


def look(process, event, watched):
    """Notes what a process that has stopped at an event has done."""
    if event in (FORKED, VFORKED):
        watched.children += 1
    elif event == EXECUTED:
        watched.executed.append(os.readlink(f"/proc/{process}/exe"))
    elif event == ENDS:
        with open(f"/proc/{process}/maps", encoding="utf-8", errors="surrogateescape") as lines:
            for access, name in re.findall(r"^\S+ (\S{4}) \S+ \S+ \S+ *(.*)$", lines.read(), re.MULTILINE):
                if "x" in access and name not in ("[vdso]", "[vsyscall]"):
                    watched.mapped.add(name or "anonymous")


def watch(arguments, folder, environment, output):
    """Runs a program in a folder to its end; its output goes to the files `output`.1 and .2."""
    first = os.fork()
    if first == 0:
        begin(list(map(str, arguments)), folder, environment, output)
    watched = Watched()
    if not os.WIFSTOPPED(os.waitpid(first, ALL_THREADS)[1]):
        raise OSError(f"programs cannot be watched here: {Path(f'{output}.2').read_text('utf-8')}")
    LIBC.ptrace(SET_OPTIONS, first, 0, FOLLOW)
    process, sent = first, 0
    while True:
        LIBC.ptrace(CONTINUE, process, 0, sent)
        while True:  # those that end need no continuing
            try:
                process, status = os.waitpid(-1, ALL_THREADS)
            except ChildProcessError:
                return watched
            if os.WIFSTOPPED(status):
                break
            if os.WIFSIGNALED(status):
                watched.signals.add(os.WTERMSIG(status))
            if process == first:
                watched.code = os.waitstatus_to_exitcode(status)
        sent = os.WSTOPSIG(status)
        if sent == signal.SIGTRAP:
            look(process, status >> 16, watched)
        if sent in (signal.SIGTRAP, signal.SIGSTOP):  # of ptrace: SIGSTOP when a process or thread begins
            sent = 0
