"""Malformed traces, and files that cannot be read: one clear error line, the right exit code, no output files left.

usage: bad_input_test.py KVBOUND      KVBOUND: the program's path
"""
import json
import os
import time

import numpy as np

from support import kvbound_cli
from support.documents import read, replayed
from support.kvbound_cli import (INCONCLUSIVE, INVALID, USAGE, WORLD, CommandLineTest, TraceFile, file_bytes,
                                 write_sharded)

POLICY = ("--policy", "snapkv:window=4+critical", "--budget", "8")
OUTPUTS = ("--json", "out.json", "--csv", "out.csv", "--dump", "dump.safetensors")
KEY = "layers.0.key"


class BadTraces(CommandLineTest):
    def refuses_trace(self, pattern, name="bad.safetensors", code=INVALID, options=()):
        """Both commands, inspect and replay with all outputs, refuse the file `name`, and their message names the file.
        """
        for arguments in (("inspect", name, "--verify", "--json", "out.json"), ("replay", name, *POLICY, *OUTPUTS)):
            with self.subTest(arguments[0]):
                self.refuses(code, pattern, *arguments, *options, silent=False)

    def refuses_bytes(self, pattern, data, **options):
        (self.folder / "bad.safetensors").write_bytes(data)
        self.refuses_trace(r"bad\.safetensors: .*" + pattern, **options)

    def refuses_header(self, pattern, change, data_change=bytes):
        """Refuses a good trace whose header dict `change` has modified in place, or replaced by the dict that it
        returns."""
        header, data = TraceFile().header()
        changed = change(header)
        with self.subTest(pattern):
            self.refuses_bytes(pattern, file_bytes(header if changed is None else changed, data_change(data)))

    def refuses_metadata(self, pattern, **fields):
        """A field that is given as None is left out of the metadata."""
        trace = TraceFile()
        trace.metadata = {key: value for key, value in (trace.metadata | fields).items() if value is not None}
        with self.subTest(fields):
            self.refuses_bytes(r"at byte \d+: __metadata__\." + pattern, trace.bytes())

    def test_a_file_too_short_for_a_header_is_refused(self):
        for data in (b"", b"1", b"1234567"):
            self.refuses_bytes(f"at byte {len(data)}: header length: the file (is empty|ends after)", data)

    def test_a_header_length_beyond_the_file_or_the_limit_is_refused(self):
        for length in (3, 1000, 2**31, 2**32 + 2, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1):
            self.refuses_bytes(f"at byte 0: header length: is {length}, but the file has only 10 bytes",
                               file_bytes("{}", length=length))
        self.refuses_bytes("at byte 0: header length: .*the limit is 16777216", file_bytes(b" " * (2**24 - 1) + b"{}"))
        header, data = TraceFile().header()
        size = len(json.dumps(header))
        self.refuses_bytes(f"header length: is {size} bytes; the limit is {size - 1}", file_bytes(header, data),
                           options=("--header-limit", size - 1))
        self.passes("inspect", "bad.safetensors", "--header-limit", size)

    def test_a_header_that_is_no_strict_json_is_refused(self):
        header, data = TraceFile().header()
        good = json.dumps(header).encode()
        for pattern, bad in ((r"header: is not valid JSON", b""), (r"header: is not valid JSON", good[:-1]),
                             (r"header: is not valid JSON", good + b"}"), (r"header: is not valid JSON", good + b"\0"),
                             (r"header: is not valid JSON", good.replace(b"none", b"no\xff\xfene")),
                             (r"header: is not valid JSON", good.replace(b"none", b"no\xed\xa0\x80ne")),
                             (r"header: is not valid JSON", good.replace(b'"none"', b"'none'")),
                             (r"header: is not valid JSON", good.replace(b"[0, ", b"[NaN, ")),
                             (r"byte order mark", b"\xef\xbb\xbf" + good), (r"expected an object", b"[]"),
                             (r"expected an object", b"3"),
                             (r"nested deeper", b'{"a":' * 100000 + b"1" + b"}" * 100000),
                             (r"nested deeper", b'{"a":{"b":' + b"[" * 100000 + b"]" * 100000 + b"}}")):
            self.refuses_bytes(r"at byte \d+: .*" + pattern, file_bytes(bad, data))

    def test_duplicate_keys_are_refused_at_every_level(self):
        header, data = TraceFile().header()
        good = json.dumps(header)
        entry = json.dumps(header[KEY])
        for key, bad in ((KEY, good[:-1] + f', "{KEY}": {entry}}}'),
                         ("__metadata__", good[:-1] + ', "__metadata__": {}}'),
                         ("model", good.replace('"model": "none"', '"model": "none", "model": "none"')),
                         ("dtype", good.replace('"dtype": "F32"', '"dtype": "F32", "dtype": "F32"', 1)),
                         ("rope", good.replace('"rope"', '"rope": "applied", "\\u0072ope"'))):
            self.refuses_bytes(rf'at byte \d+: header: the key "{key}" occurs twice', file_bytes(bad, data))

    def test_dimensions_that_are_no_counts_are_refused(self):
        def shape(value):
            return lambda header: header[KEY].update(shape=value)

        for bad, found in ((-1, "-1"), (27.5, "27.5"), (27.0, "27.0"), ("27", '"27"'), (None, "null"), (True, "true"),
                           (2**63, 2**63), (2**64, "1844674407370955161[56]|1.8446744073709552e[+]?19")):
            self.refuses_header(rf"at byte \d+: layers\.0\.key\.shape\[1\]: is ({found}); expected an integer from 0 to", shape([2, bad, 4]))
        self.refuses_header(r"layers\.0\.key\.shape: is 27; expected a list", shape(27))
        self.refuses_header(r"layers\.0\.key\.shape: .*more bytes than 2\^63 - 1", shape([2**32, 2**32]))
        self.refuses_header(r"layers\.0\.key\.shape: .*more bytes than 2\^63 - 1", shape([2**61, 4]))
        self.refuses_header(r"layers\.0\.key\.data_offsets: .*needs 8589934592 bytes", shape([2**31, 1]))
        self.refuses_header(r"at byte \d+: header: .*more than 64", shape([1] * 65))

    def test_data_offsets_that_do_not_tile_the_file_are_refused(self):
        def offsets(*value, name=KEY):
            return lambda header: header[name].update(data_offsets=list(value))

        size = 2 * 27 * 4 * 4
        field = r"at byte \d+: layers\.0\.key\.data_offsets: "
        for value in ((0, size - 4), (0, size + 4), (size, 0), (0, 0)):
            self.refuses_header(field + rf"is \[{value[0]}, {value[1]}\].*needs {size} bytes", offsets(*value))
        for wrong, value in ((0, (-4, size - 4)), (0, (0.5, size + 0.5)), (1, (0, 2**64))):
            self.refuses_header(rf"layers\.0\.key\.data_offsets\[{wrong}\]: is .*; expected an integer from 0 to", offsets(*value))
        for value in ((), (0,), (0, size, size)):
            self.refuses_header(field + f"has {len(value)} items", offsets(*value))
        self.refuses_header(field + "overflows", offsets(2**63 - 1 - size, 2**63 - 1))
        second = dict(name="layers.0.value")
        self.refuses_header(r"layers\.0\.value\.data_offsets: .*an overlap", offsets(0, size, **second))
        self.refuses_header(r"layers\.0\.value\.data_offsets: .*an overlap", offsets(size - 4, 2 * size - 4, **second))
        self.refuses_header(r"\.data_offsets: .*a hole", offsets(size + 4, 2 * size + 4, **second))
        self.refuses_header(r"at byte \d+: 1 surplus bytes", dict, lambda data: data + b"\0")
        self.refuses_header(r"at byte \d+: .*the file ends here", dict, lambda data: data[:-1])
        self.refuses_header(r"at byte \d+: .*the file ends here", dict, lambda data: b"")

    def test_entries_with_wrong_fields_are_refused(self):
        field = r"at byte \d+: layers\.0\.key"
        for dtype in ("F24", "", "f32", 32, None):
            self.refuses_header(field + r"\.dtype: is", lambda header: header[KEY].update(dtype=dtype))
        self.refuses_header(field + r"\.dtype: is I32; expected F64, F32",
                            lambda header: header[KEY].update(dtype="I32"))
        for missing in ("dtype", "shape", "data_offsets"):
            self.refuses_header(field + rf"\.{missing}: is missing", lambda header: header[KEY].pop(missing) and None)
        self.refuses_header(field + ': member "extra" is unknown; the members of a tensor are dtype, ', lambda header: header[KEY].update(extra=1))
        self.refuses_header(field + ": is null; expected an object", lambda header: header.update({KEY: None}))

    def test_metadata_that_describes_no_trace_is_refused(self):
        self.refuses_header("__metadata__", lambda header: header.pop("__metadata__") and None)
        self.refuses_header("__metadata__: is 3", lambda header: header.update(__metadata__=3))
        self.refuses_header(r"__metadata__\.layers: is 2", lambda header: header["__metadata__"].update(layers=2))
        for field in TraceFile().metadata:
            self.refuses_metadata(f"{field}: is missing", **{field: None})
        for field, values in (("format", ("kvbound-dump", "")), ("version", ("0", "2", "1.0", "01")),
                              ("rope", ("none", "Applied")),
                              ("scale", ("0", "-1", "nan", "inf", "1e999", "x", "", " 1")),
                              ("query_heads", ("0", "-4", "3", "4.0", "04", "4 ", "+4", "1e1", "2147483648")),
                              ("kv_heads", ("0", "4294967298")), ("head_dim", ("0", "9" * 30)), ("model_dim", ("0",)),
                              ("layers", ("0", "x")), ("prompt_tokens", ("0",)), ("decode_tokens", ("-1",)),
                              ("window_queries", ("0", "25"))):
            for value in values:
                self.refuses_metadata(rf'{field}: is "{value}"'.replace("+", r"\+"), **{field: value})

    def test_tensors_that_contradict_the_metadata_are_refused(self):
        for field, value in (("kv_heads", "4"), ("kv_heads", "1"), ("head_dim", "2"), ("model_dim", "4"),
                             ("prompt_tokens", "25"), ("decode_tokens", "2"), ("window_queries", "7"),
                             ("query_heads", "8")):
            trace = TraceFile()
            trace.metadata[field] = value
            self.refuses_bytes(r"at byte \d+: layers\.0\.\w+\.shape: is \[.*\]; expected \[", trace.bytes())
        for name in TraceFile().tensors:
            trace = TraceFile()
            dtype, array = trace.tensors.pop(name)
            self.refuses_bytes(f"{name}: this tensor is missing", trace.bytes())
            for other in (array[:-1], array.reshape(-1), array[None], np.swapaxes(array, 0, 1)[:, :, None]):
                trace.tensors[name] = dtype, other
                self.refuses_bytes(rf"at byte \d+: {name}\.shape: is \[.*\]; expected \[", trace.bytes())
        for layers, pattern in (("3", r"layers\.2\.\w+: this tensor is missing"),
                                ("1", r"at byte \d+: layers\.1\.\w+: the metadata says that there are 1 layers")):
            trace = TraceFile()
            trace.metadata["layers"] = layers
            self.refuses_bytes(pattern, trace.bytes())
        for tokens, pattern in ((("F32", np.zeros(27)), r"tokens\.dtype"), (("I32", np.zeros(24)), r"tokens\.shape")):
            trace = TraceFile()
            trace.tensors["tokens"] = tokens
            self.refuses_bytes(pattern, trace.bytes())

    def test_nan_and_infinity_are_refused_wherever_they_are(self):
        for dtype in ("F64", "F32", "F16", "BF16"):
            for name in (name for name in TraceFile().tensors if dtype == "F32" or name.startswith("layers.1.")):
                for bad, word in ((np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")):
                    trace = TraceFile(dtype=dtype)
                    array = trace.tensors[name][1]
                    array.flat[-1] = bad
                    self.refuses_bytes(rf"at byte \d+: {name}: element {array.size - 1} is {word}", trace.bytes())
        trace = TraceFile()
        for layer in range(2):
            trace.tensors[f"layers.{layer}.attention_output"] = "F32", np.full((4, 11, 4), np.nan)
        trace.write(self.folder / "output.safetensors")
        self.refuses(INVALID, r"at byte \d+: layers\.0\.attention_output: element 0 is NaN", "inspect",
                     "output.safetensors", "--verify", "--json", "out.json")

    def test_what_is_no_safetensors_file_is_refused_and_told_apart(self):
        for magic, name in ((b"\x80\x04\x95", "pickle"), (b"PK\3\4", "ZIP"), (b"GGUF", "GGUF"), (b"\x93NUMPY", "NumPy"),
                            (b"version https://git-lfs", "Git LFS"), (b'{"metadata"', "index.json")):
            self.refuses_bytes(rf"header length: .*looks like .*{name}", magic + b"\1" * 64)
        (self.folder / "directory").mkdir()
        os.mkfifo(self.folder / "fifo")
        self.refuses_trace(r"directory: is a directory; expected a safetensors file or the index of its shards, \*\.index\.json", name="directory")
        self.refuses_trace("fifo: is a FIFO", name="fifo")
        self.refuses_trace("/dev/zero: is not a regular file", name="/dev/zero")
        (self.folder / "trace.index.json").mkdir()
        self.refuses_trace(r"trace\.index\.json: is a directory", name="trace.index.json")

    def test_a_trace_that_cannot_be_opened_is_the_worlds_fault(self):
        TraceFile().write(self.folder / "good.safetensors")
        (self.folder / "loop").symlink_to("loop")
        for name in ("missing", "missing/trace", "good.safetensors/trace", "loop"):
            self.refuses_trace(f"cannot open {name}: ", name=name, code=WORLD)
        self.refuses_trace("cannot open x{40}\\.\\.\\.x{77}: ", name="x" * 300, code=WORLD)

    def test_messages_quote_no_more_than_120_characters(self):
        long = "x" * 5000
        for arguments in ((long,), ("replay", long), ("replay", "t", long), ("replay", "t", "--" + long), ("replay", "t", "--policy", long),
                          ("replay", "t", "--policy", "snapkv:" + long), ("replay", "t", "--policy", "tova", "--budget", long),
                          ("replay", "t", "--policy", "tova", "--budget", "8", "--steps", long),
                          ("replay", "t", "--policy", "tova", "--budget", "8", "--columns", long),
                          ("inspect", long), ("report", long, "-o", "p"), ("report", "t", "-o", long), ("check", long), ("prove", long),
                          ("generate", "--kind", long, "t"), ("sweep", "--out", long), ("sweep", "--out", "s", "--engine", long),
                          ("sweep", "--out", "s", "--share", long), ("gather", long), ("import", long, "d"), ("bench", long),
                          ("diff", "--floor", "--shape", long), ("evaluate", long, "t", "--policy", "tova", "--budget", "8"),
                          ("evaluate", "t", "t", "--policy", "tova", "--budget", "8", "--resume", long)):
            with self.subTest(arguments):
                result = self.run_program(*arguments)
                self.assertIn(result.returncode, (USAGE, INVALID, WORLD))
                self.assertNotIn("x" * 121, result.stderr)
                self.assertLess(len(result.stderr), 1500)

    def test_messages_quote_no_more_than_120_characters_of_files(self):
        long = "x" * 5000

        def change(**fields):
            return lambda header: header["__metadata__"].update(fields)
        for bad in (change(model_dim=long), change(format=long), change(rope=long), lambda header: header.update({long: 1}),
                    lambda header: header[KEY].update(dtype=long), lambda header: header[KEY].update({long: {long: {}}}),
                    lambda header: header.update({"layers." + long: header[KEY]})):
            trace = TraceFile()
            header, data = trace.header()
            bad(header)
            (self.folder / "bad.safetensors").write_bytes(file_bytes(header, data))
            result = self.run_program("inspect", "bad.safetensors")
            self.assertEqual(result.returncode, INVALID, result.stderr)
            self.assertNotIn("x" * 121, result.stderr)

    def test_messages_quote_no_more_than_120_characters_of_an_index(self):
        long = "x" * 5000
        path, index = write_sharded(TraceFile(), self.folder)
        name = "y" * 240
        (self.folder / "shard-1.safetensors").rename(self.folder / name)
        renamed = {tensor: name if shard == "shard-1.safetensors" else shard for tensor, shard in index["weight_map"].items()}
        for weight_map in (renamed | {KEY: long}, renamed | {KEY: name}, renamed | {"layers.9.key": name}):
            path.write_text(json.dumps(index | {"weight_map": weight_map}))
            result = self.run_program("inspect", path.name)
            self.assertIn(result.returncode, (INVALID, WORLD), result.stderr)
            self.assertNotRegex(result.stderr, "x{121}|y{121}")

    def test_messages_stay_on_one_line_whatever_a_file_is_called(self):
        for name in ("two\nlines", "cr\r", "escape\x1b[31m", "tab\t"):
            self.refuses_trace(r"cannot open .*\\x", name=name, code=WORLD)
            (self.folder / name).write_bytes(b"")
            self.refuses_trace(r"\\x.*: at byte 0: header length", name=name)
        self.refuses_header(r"layers\.0\.\\x0akey", lambda header: header.update({"layers.0.\nkey": 1}))

    def test_an_index_that_leads_astray_is_refused(self):
        def refuses_index(pattern, change, code=INVALID):
            path, index = write_sharded(TraceFile(), self.folder)
            changed = change(index)
            path.write_text(changed if isinstance(changed, str) else json.dumps(index))
            with self.subTest(pattern):
                self.refuses_trace(pattern, name=path.name, code=code)

        def put(value, name=KEY):
            return lambda index: index["weight_map"].update({name: value})

        (self.folder / "inside").mkdir()
        for shard in ("../shard-0.safetensors", "/etc/passwd", "inside/../shard-0.safetensors", "inside/x", "..", ".",
                      "", "a\nb", "a\0b", 3, None, ["shard-0.safetensors"]):
            refuses_index(r"trace\.index\.json: at byte \d+: weight_map\.layers\.0\.key: is .*beside the index",
                          put(shard))
        refuses_index(r"cannot open shard-1\.safetensors", lambda index: (self.folder / "shard-1.safetensors").unlink(),
                      code=WORLD)
        refuses_index("inside: is a directory", put("inside"))
        refuses_index(r"shard-0\.safetensors: at byte \d+: layers\.0\.key: the index puts this tensor into "
                      r"shard-1\.safetensors", put("shard-1.safetensors"))
        refuses_index(r"weight_map\.layers\.9\.key: .*lacks this tensor", put("shard-0.safetensors", "layers.9.key"))
        refuses_index(r"layers\.0\.key: the index does not list this tensor",
                      lambda index: index["weight_map"].pop(KEY) and None)
        refuses_index('the key "layers.0.key" occurs twice', lambda index: json.dumps(index).replace(
            f'"{KEY}"', f'"{KEY}": "shard-0.safetensors", "{KEY}"'))
        refuses_index(r"weight_map: is missing", lambda index: index.pop("weight_map") and None)
        refuses_index(r"weight_map: is an object without entries", lambda index: index.update(weight_map={}))
        refuses_index(r"weight_map: is 3", lambda index: index.update(weight_map=3))
        refuses_index(r"metadata: is 3", lambda index: index.update(metadata=3))
        refuses_index(r"index: is not valid JSON", lambda index: json.dumps(index)[:-1])
        refuses_index(r"index: is not valid JSON", lambda index: "")
        refuses_index(r"trace\.index\.json: layers\.2\.\w+: this tensor is missing",
                      lambda index: index["metadata"].update(layers="7"))
        trace, shard = TraceFile(), self.folder / "shard-0.safetensors"
        path, _ = write_sharded(trace, self.folder)
        length = int.from_bytes(shard.read_bytes()[:8], "little")
        header = json.loads(shard.read_bytes()[8:8 + length])
        header["__metadata__"] = {**trace.metadata, "prompt_tokens": "23"}
        shard.write_bytes(file_bytes(header, shard.read_bytes()[8 + length:]))
        self.refuses_trace(r'shard-0\.safetensors: at byte \d+: __metadata__\.prompt_tokens: is "23", but .*says "24"',
                           name=path.name)

    def test_a_trace_cut_while_it_is_read_is_refused(self):
        layers, entry = 64, 16384 * 64 * 2  # all zeros: 256 MiB in a sparse file, which take no disk space
        header, position = {"__metadata__": TraceFile(layers, 1, 1, 64, 1, 16383, 1, 1).metadata}, 0
        for layer in range(layers):
            for name, shape, size in (("key", [1, 16384, 64], entry), ("value", [1, 16384, 64], entry),
                                      ("query", [1, 2, 64], 256), ("output_projection", [64, 1], 128)):
                header[f"layers.{layer}.{name}"] = {"dtype": "F16", "shape": shape,
                                                    "data_offsets": [position, position + size]}
                position += size
        trace = self.folder / "long.safetensors"
        trace.write_bytes(file_bytes(header))
        whole = trace.stat().st_size + position
        os.truncate(trace, whole)
        process = self.start("replay", trace.name, "--policy", "snapkv:window=1", "--budget", "2", "--json", "out.json")
        self.addCleanup(process.kill)
        self.await_file(process, ".out.json.*.tmp")
        os.truncate(trace, whole - 2 * entry)
        stdout, stderr = process.communicate(timeout=300)
        self.assertEqual((process.returncode, stdout), (INVALID, ""), stderr)
        self.assertRegex(stderr,
                         r"\Akvbound: long\.safetensors: at byte \d+: .*the file ended here while it was read.*\n\Z")
        self.assertEqual(os.listdir(self.folder), [trace.name])

    def await_file(self, process, pattern, size=0):
        """Returns as soon as a file of at least `size` bytes matches the pattern, which shows that the program has
        started."""
        while process.poll() is None:
            if any(path.stat().st_size >= size for path in self.folder.rglob(pattern)):
                return
            time.sleep(0.001)
        self.fail(
            f"the program ended with {process.returncode} before there was any {pattern}: {process.stderr.read()}")


class ValidOddities(CommandLineTest):
    def accepts(self, data, policy="snapkv:window=4+theta-sweep:alpha=adaptive", budget="4,8,100%", code=0):
        (self.folder / "odd.safetensors").write_bytes(data)
        # no recorded output to verify against
        self.passes("inspect", "odd.safetensors", "--verify", code=INCONCLUSIVE)
        self.passes("replay", "odd.safetensors", "--policy", f"{policy},{policy.split('+')[0]}", "--budget", budget,
                    "--json", "out.json", "--csv", "out.csv", "--dump", "dumps/", code=code)
        return replayed(read(self.folder / "out.json"))["runs"]

    def test_equal_and_huge_logits_and_zeros_are_valid(self):
        for key, query in ((0, 1), (1, 0), (1, 1), (2e3, 5), (-2e3, 5), (0, 0)):
            trace = TraceFile()
            for layer in range(2):
                for name, value in (("key", key), ("query", query)):
                    dtype, array = trace.tensors[f"layers.{layer}.{name}"]
                    array[...] = value
                    if abs(key) > 1 and name == "key":
                        array[:, ::2] *= -1  # logits of both signs, up to 2 * 10^4
            for run in self.accepts(trace.bytes()):
                self.assertEqual(run["violations"], 0)
        trace = TraceFile()
        for name, (_, array) in trace.tensors.items():
            array[...] = 0
        for run in self.accepts(trace.bytes()):
            self.assertEqual([run[name] for name in ("relative", "tightness", "relative_undefined", "tightness_undefined")], [0] * 4)

    def test_every_real_type_is_valid(self):
        for dtype in ("F64", "F32", "F16", "BF16"):
            self.accepts(TraceFile(dtype=dtype).bytes())

    def test_unusual_but_legal_files_are_valid(self):
        trace = TraceFile()
        header, data = trace.header()
        text = json.dumps(header)
        self.accepts(file_bytes(f" \n\t{text} \r\n  ", data))
        trace.tensors["empty"] = "F64", np.zeros((3, 0, 2))
        trace.tensors["scalar"] = "F64", np.float64(3)
        trace.tensors["other.nan"] = "F32", np.full(2, np.nan)
        self.accepts(trace.bytes())
        header, data = trace.header()
        shifted = {name: {**entry, "data_offsets": [offset + 1 for offset in entry["data_offsets"]]}
                   for name, entry in header.items() if name != "__metadata__"}
        odd = {"__metadata__": header["__metadata__"], "odd": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
        for pad in (0, 1, 2, 3):  # every alignment of the data in the file
            self.accepts(file_bytes(json.dumps(odd | shifted) + " " * pad, b"\7" + data))

    def test_the_smallest_prompt_is_valid(self):
        trace = TraceFile(layers=1, query_heads=1, kv_heads=1, head_dim=1, model_dim=1, prompt_tokens=1,
                          decode_tokens=1, window_queries=1)
        for run in self.accepts(trace.bytes(), "snapkv:window=1+critical", "1,100%"):
            self.assertEqual((run["entries"], run["perturbation"], run["kept_mass"]), (1, 0, 1))

    def test_a_whole_budget_perturbs_nothing(self):
        for run in self.accepts(TraceFile().bytes(), budget="100%,24"):
            self.assertEqual((run["entries"], run["perturbation"], run["bound"]), (24, 0, 0))
            self.assertAlmostEqual(run["kept_mass"], 1, 14)

    def test_a_trace_without_decode_steps_is_inconclusive(self):
        for run in self.accepts(TraceFile(decode_tokens=0).bytes(), code=INCONCLUSIVE):
            self.assertEqual((run["perturbation"], run["violations"]), (None, 0))

    def test_a_sharded_trace_gives_what_the_whole_one_gives(self):
        trace = TraceFile()
        path, _ = write_sharded(trace, self.folder, shards=3)
        trace.write(self.folder / "whole.safetensors")
        replay = "replay", *POLICY, "--csv"
        self.passes(*replay, "whole.csv", "whole.safetensors")
        self.passes(*replay, "sharded.csv", path.name)
        whole, sharded = ((self.folder / name).read_text() for name in ("whole.csv", "sharded.csv"))
        self.assertEqual(whole.replace("whole.safetensors", path.name), sharded)


if __name__ == "__main__":
    kvbound_cli.main()
