#!/usr/bin/python3
"""Writes well-formed inputs of every reader (readers/reader.cpp), which the fuzzer starts from, and its dictionary.

usage: write_corpus.py KVBOUND FOLDER     FOLDER/LETTER/NAME for each input, FOLDER/dictionary
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzz.seeds import documents, models, tensors, texts

REPOSITORY = Path(__file__).resolve().parent.parent.parent
LITERAL = re.compile(r'"([A-Za-z][A-Za-z0-9_.:-]{1,39})"')


def inputs(program):
    """(name, content) of each input."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def run(*arguments):
            subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)
        yield from tensors.inputs(run, folder)
        yield from documents.inputs(run, folder)
    yield from models.inputs()
    yield from texts.inputs()


def words():
    """What sources compare texts with: literals that look like keys, types or names."""
    found = set()
    for folder in ("reference/core", "traces", "sim", "proofs/theorems"):
        for path in sorted((REPOSITORY / folder).rglob("*.[ch]pp")):
            found.update(LITERAL.findall(path.read_text("utf-8")))
    return sorted(word for word in found if not word.endswith((".hpp", ".cpp")))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    target = Path(sys.argv[2])
    for name, content in inputs(Path(sys.argv[1]).resolve(strict=True)):
        (target / content[:1].decode()).mkdir(parents=True, exist_ok=True)
        (target / content[:1].decode() / name).write_bytes(content)
    (target / "dictionary").write_text("".join(f'"{word}"\n' for word in words()), "utf-8")
