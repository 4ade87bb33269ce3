#!/usr/bin/python3
"""The inputs with which the fuzzer reached all that it reached, in one file that is the same whoever writes it.

usage: corpus.py pack FOLDER      FOLDER/LETTER/* for each input: replaces corpus.tar.xz
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


def pack(folder):
    """Sorted by letters and contents, so that what is alike stands together."""
    contents = sorted({path.read_bytes() for path in Path(folder).glob("*/*")})
    with lzma.open(PATH, "wb", preset=9 | lzma.PRESET_EXTREME) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for content in contents:
            member = tarfile.TarInfo(f"{content[:1].decode()}-{hashlib.sha256(content).hexdigest()[:12]}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    print(f"{len(contents)} inputs, {PATH.stat().st_size} bytes")


def unpack(folder):
    for name, content in inputs():
        (Path(folder) / name[0]).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name[0] / name).write_bytes(content)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("pack", "unpack"):
        sys.exit(__doc__)
    {"pack": pack, "unpack": unpack}[sys.argv[1]](sys.argv[2])
