"""Every input of the corpus, every well-formed one, and mutations of these are read or refused in one line (README.md).

usage: corpus_test.py READER_REPLAY KVBOUND      the programs' paths
"""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from fuzz import corpus, write_corpus

program = None
kvbound = None
MUTATIONS = 20  # of each well-formed input


def replayed(inputs, *mutations):
    """What the program says of {name: content}: {letter: (inputs that were read, inputs that were refused)}."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in inputs.items():
            (Path(folder) / name).write_bytes(content)
        result = subprocess.run([program, folder, *map(str, mutations)], capture_output=True, text=True)
    if result.returncode or result.stderr:
        raise AssertionError(f"status {result.returncode}: {result.stderr}")
    return {letter: (int(read), int(refused)) for letter, read, refused in map(str.split, result.stdout.splitlines())}


class Corpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        listing = subprocess.run([program], capture_output=True, text=True, check=True).stdout
        cls.readers = {line[0] for line in listing.splitlines()}
        cls.seeds = {f"{content[:1].decode()}-{name}": content for name, content in write_corpus.inputs(kvbound)}

    def test_well_formed_inputs_of_every_reader_are_read(self):
        found = replayed(self.seeds)
        self.assertEqual(set(found), self.readers)
        self.assertEqual({letter: refused for letter, (_, refused) in found.items() if refused}, {})

    def test_mutations_are_read_or_refused(self):
        found = replayed(self.seeds, MUTATIONS, 1)
        for letter, counts in found.items():
            self.assertTrue(all(counts), f"{letter}: read {counts[0]}, refused {counts[1]}: all mutations end alike")

    def test_what_the_fuzzer_found_is_read_or_refused(self):
        inputs = dict(corpus.inputs())
        found = replayed(inputs)
        self.assertEqual(set(found), self.readers)
        self.assertEqual(sum(map(sum, found.values())), len(inputs))

    def test_is_small(self):
        self.assertLess(corpus.PATH.stat().st_size, 3e6)

    def test_the_dictionary_has_keys_types_and_names(self):
        words = set(write_corpus.words())
        self.assertLessEqual({"data_offsets", "BF16", "kv_indptr", "snapkv", "critical", "split.count", "kvbound-trace", "general.alignment"}, words)
        self.assertTrue(all(re.fullmatch(r"[\x21-\x7e]+", word) and '"' not in word for word in words))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    program, kvbound = (Path(sys.argv.pop(1)).resolve(strict=True) for _ in range(2))
    unittest.main(argv=sys.argv[:1])
