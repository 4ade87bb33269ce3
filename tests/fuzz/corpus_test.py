"""Every input that the fuzzer starts from, whole and damaged, is read or refused in one line (tests/fuzz/reader_fuzz.cpp).

usage: corpus_test.py READER_REPLAY KVBOUND      the programs' paths
"""
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from fuzz import write_corpus

program = None
kvbound = None
DAMAGED = 6  # of each input


def damaged(content, generator):
    """The input with a few bytes changed, and perhaps cut; its letter stays."""
    changed = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        changed[generator.randrange(1, len(changed))] = generator.choice((0, 1, 0x7f, 0x80, 0xff, generator.randrange(256)))
    return bytes(changed[:generator.choice((len(changed), generator.randrange(1, len(changed))))])


class Corpus(unittest.TestCase):
    def test_is_read_or_refused(self):
        generator = random.Random(1)
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, content in write_corpus.inputs(kvbound):
                for number, part in enumerate([content, *(damaged(content, generator) for _ in range(DAMAGED))]):
                    paths.append(Path(folder) / f"{name}-{number}")
                    paths[-1].write_bytes(part)
            self.assertGreater(len(paths), 200)
            result = subprocess.run([program, *paths], capture_output=True, text=True)
            self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_starts_with_letters_of_every_reader(self):
        readers = {line.split()[1] for line in (Path(__file__).parent / "reader_fuzz.cpp").read_text().splitlines()
                   if line.startswith("//   ") and len(line.split()[1]) == 1}
        self.assertEqual({content[:1].decode() for _, content in write_corpus.inputs(kvbound)}, readers)
        self.assertGreater(len(readers), 8)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    program, kvbound = (Path(sys.argv.pop(1)).resolve(strict=True) for _ in range(2))
    unittest.main(argv=sys.argv[:1])
