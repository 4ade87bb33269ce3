#!/usr/bin/python3
"""The inputs with which the fuzzer reached all that it reached, in one file that is the same whoever writes it.

usage: corpus.py pack FOLDER FOUND     FOLDER/LETTER/* for each input, and FOUND/* with which faults were found: replaces corpus.tar.xz,
                                       but for inputs with which faults were found before
       corpus.py unpack FOLDER
"""
import hashlib
import io
import lzma
import sys
import tarfile
from pathlib import Path

PATH = Path(__file__).with_name("corpus.tar.xz")


def inputs():
    """(name, content) of each."""
    with tarfile.open(PATH) as archive:
        for member in archive:
            yield member.name, archive.extractfile(member).read()


def named(kind, paths):
    return {f"{content[:1].decode()}-{kind}{hashlib.sha256(content).hexdigest()[:12]}": content for content in (path.read_bytes() for path in paths)}


def pack(folder, found):
    """Sorted by letters and contents, so that what is alike stands together."""
    before = {name: content for name, content in inputs() if "-fault-" in name} if PATH.exists() else {}
    contents = before | named("fault-", Path(found).glob("*")) | named("", Path(folder).glob("*/*"))
    with lzma.open(PATH, "wb", preset=9 | lzma.PRESET_EXTREME) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(contents.items(), key=lambda item: (item[0][0], item[1])):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    print(f"{len(contents)} inputs, {PATH.stat().st_size} bytes")


def unpack(folder):
    for name, content in inputs():
        (Path(folder) / name[0]).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name[0] / name).write_bytes(content)


if __name__ == "__main__":
    commands = {("pack", 4): pack, ("unpack", 3): unpack}
    if (*sys.argv[1:2], len(sys.argv)) not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1], len(sys.argv)](*sys.argv[2:])
