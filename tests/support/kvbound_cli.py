"""Shared by the tests of the command line: running the program, and making traces that may be deliberately broken."""
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SAMPLES = REPOSITORY / "traces" / "samples"
STORAGE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
PASS, MISMATCH, USAGE, INVALID, WORLD, INCONCLUSIVE = 0, 1, 2, 3, 4, 5
program = None  # the program's path, set by main()
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # waiting threads must not slow down concurrent tests
os.environ.pop("COLUMNS", None)  # text has the usual width where no test asks for another
# the program chooses its kernels, and says so where a user's choice is ignored
os.environ.pop("OPENBLAS_CORETYPE", None)


def encode(array, dtype):
    """The array's bytes as this safetensors type; BF16 is rounded to nearest even."""
    array = np.asarray(array)
    if dtype != "BF16":
        return array.astype(STORAGE[dtype]).tobytes()
    bits = array.astype("<f4").view("<u4")
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded).astype("<u2").tobytes()


def file_bytes(header, data=b"", length=None):
    """A safetensors file. header: text, bytes, or an object to be written as JSON; length: the claimed one."""
    if not isinstance(header, (bytes, str)):
        header = json.dumps(header)
    header = header if isinstance(header, bytes) else header.encode()
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


class TraceFile:
    """A small valid trace of random numbers, which can be changed before it is written.

    metadata       {field: text}
    tensors        {name: (dtype, array)}, in the order of their data in the file
    """

    def __init__(self, layers=2, query_heads=4, kv_heads=2, head_dim=4, model_dim=8, prompt_tokens=24, decode_tokens=3,
                 window_queries=8, dtype="F32", seed=1):
        sizes = dict(layers=layers, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, model_dim=model_dim,
                     prompt_tokens=prompt_tokens, decode_tokens=decode_tokens, window_queries=window_queries)
        self.metadata = {"format": "kvbound-trace", "version": "1", "model": "none", "source": "random numbers",
                         **{name: str(size) for name, size in sizes.items()}, "rope": "applied"}
        random = np.random.default_rng(seed).standard_normal
        self.tensors = {}
        for layer in range(layers):
            for name, shape in (("key", (kv_heads, prompt_tokens + decode_tokens, head_dim)),
                                ("value", (kv_heads, prompt_tokens + decode_tokens, head_dim)),
                                ("query", (query_heads, window_queries + decode_tokens, head_dim)),
                                ("output_projection", (query_heads * head_dim, model_dim))):
                self.tensors[f"layers.{layer}.{name}"] = dtype, random(shape)

    def header(self):
        """The JSON header as a dict, and the data of all tensors."""
        header, data = {"__metadata__": self.metadata}, b""
        for name, (dtype, array) in self.tensors.items():
            raw = encode(array, dtype)
            header[name] = {"dtype": dtype, "shape": list(np.shape(array)),
                            "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        return header, data

    def bytes(self):
        return file_bytes(*self.header())

    def write(self, path):
        path.write_bytes(self.bytes())
        return path


def write_sharded(trace, folder, index="trace.index.json", shards=2, metadata_in="index"):
    """Distributes the trace's tensors over shards beside an index; returns the index's path, and the index.
    metadata_in: "index", or "shard" for the first shard.
    """
    header, data = trace.header()
    del header["__metadata__"]
    weight_map = {name: f"shard-{i % shards}.safetensors" for i, name in enumerate(header)}
    for shard in sorted(set(weight_map.values())):
        first = shard == "shard-0.safetensors"
        entries, shard_data = {"__metadata__": trace.metadata} if first and metadata_in == "shard" else {}, b""
        for name in (name for name in header if weight_map[name] == shard):
            raw = data[slice(*header[name]["data_offsets"])]
            entries[name] = {**header[name], "data_offsets": [len(shard_data), len(shard_data) + len(raw)]}
            shard_data += raw
        (folder / shard).write_bytes(file_bytes(entries, shard_data))
    metadata = {"total_size": len(data), **(trace.metadata if metadata_in == "index" else {})}
    document = {"metadata": metadata, "weight_map": weight_map}
    (folder / index).write_text(json.dumps(document))
    return folder / index, document


def start(*arguments, file_size_limit=None, **options):
    """Starts the program; file_size_limit: writing beyond this many bytes fails, as on a full disk."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_limit, file_size_limit))

    if file_size_limit is not None:
        options["preexec_fn"] = limit
    return subprocess.Popen([program, *map(os.fspath, map(str, arguments))],
                            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
                               "text": True, "errors": "surrogateescape", **options})


def run(*arguments, timeout=900, **options):
    """Runs the program to its end, for at most `timeout` seconds; returns returncode, stdout, stderr."""
    process = start(*arguments, **options)
    stdout, stderr = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def component_names():
    """{kind: the names of its components}, of what policies consist of."""
    text = run("policies", env={**os.environ, "COLUMNS": "80"}).stdout
    return {kind: re.findall(r"^  ([a-z0-9-]+) ", lines, re.MULTILINE)
            for kind, lines in re.findall(r"^([a-z]+): .*\n((?:.+\n)*)", text, re.MULTILINE)}


def contents(folder):
    """Everything below a folder: {relative path: bytes of a file, None for a folder}."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


NOBODY = 65534  # the number of the user and the group of that name


class CommandLineTest(unittest.TestCase):
    """Each test has a folder of its own, in which the program runs."""

    maxDiff = 2000

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="kvbound-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name).resolve()

    def start(self, *arguments, **options):
        return start(*arguments, **{"cwd": self.folder, **options})

    def run_program(self, *arguments, **options):
        return run(*arguments, **{"cwd": self.folder, **options})

    def another_user(self, user=NOBODY):
        """Options that run the program as another user, who may not enter the folder that it was built in: as a copy of it."""
        self.folder.chmod(0o755)
        copy = self.folder / "kvbound"
        if not copy.exists():
            shutil.copy(program, copy)
        return {"user": user, "group": NOBODY, "extra_groups": [], "executable": copy}

    def passes(self, *arguments, code=PASS, **options):
        """Runs the program and requires this exit code; returns its standard output."""
        result = self.run_program(*arguments, **options)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}{result.stderr}")
        return result.stdout

    def refuses(self, code, pattern, *arguments, silent=None, **options):
        """Runs the program, which must exit with this code and one line on standard error that the pattern matches,
        print nothing else if `silent` (default: for usage errors), and leave every file as it was."""
        before = contents(self.folder)
        result = self.run_program(*arguments, **options)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}{result.stderr}")
        self.assertRegex(result.stderr, r"\Akvbound: [^\n]+\n\Z", "standard error must be one line")
        self.assertRegex(result.stderr, pattern)
        if silent if silent is not None else code == USAGE:
            self.assertEqual(result.stdout, "")
        after = contents(self.folder)
        self.assertEqual(sorted(after), sorted(before), "files came or went")
        self.assertEqual([name for name in before if after[name] != before[name]], [], "files changed")

    def generate(self, name, *arguments):
        """Generates a trace by `kvbound generate`; returns its path."""
        self.passes("generate", *arguments, name)
        return self.folder / name


SUITES = "short", "long", "counted"


class Loader(unittest.TestLoader):
    """Loads only the test classes of one suite."""

    def __init__(self, suite):
        super().__init__()
        self.suite = suite

    def loadTestsFromTestCase(self, case):
        is_wanted = getattr(case, "suite", "short") == self.suite
        return super().loadTestsFromTestCase(case) if is_wanted else self.suiteClass()


def main():
    """Runs the calling script's tests on the program named by its first argument. A skipped test fails the run."""
    global program
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} KVBOUND [{'|'.join(SUITES)}] [unittest's options]\n"
                 'long, counted: the classes that set suite = "long" or "counted"; short: the others')
    program = Path(sys.argv.pop(1)).resolve(strict=True)
    suite = sys.argv.pop(1) if sys.argv[1:] and sys.argv[1] in SUITES else None
    loader = Loader(suite) if suite else unittest.defaultTestLoader
    result = unittest.main(exit=False, testLoader=loader).result
    sys.exit(0 if result.wasSuccessful() and result.testsRun and not result.skipped else 1)
