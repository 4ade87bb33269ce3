"""Names of files until they are whole. Needs the standard library alone."""
import hashlib
import itertools
import os
from pathlib import Path

_numbers = itertools.count()


def temporary_beside(path):
    """A file's name until it is whole: one of kvbound's, .NAME.PID-N-MACHINE.tmp, which removes what killed processes left."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
        machine = hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:12]
    except OSError:
        machine = ""
    stem = os.fsdecode(os.fsencode(path.name)[:190])  # a name has at most 255 bytes
    return path.with_name(f".{stem}.{os.getpid()}-{next(_numbers)}-{machine}.tmp")
