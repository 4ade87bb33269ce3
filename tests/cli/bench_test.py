"""kvbound bench --peer: another program's times beside its own, and files that are refused.

usage: bench_test.py KVBOUND      KVBOUND: the program's path
"""
import csv
import hashlib
import json

from support import kvbound_cli
from support.documents import parts, read
from support.kvbound_cli import INVALID, USAGE, WORLD, CommandLineTest
from support.peer_file import PEER, SNAPKV, changed, write_peer

SMALL = "bench", "--shape", "pocket:256", "--repeats", "2", "--threads", "2"


def put(*path_and_value):
    """A change that sets the member at a path."""
    *path, name, value = path_and_value

    def change(document):
        for key in path:
            document = document[key]
        document[name] = value

    return change


def without(*path):
    def change(document):
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return change


class Host(CommandLineTest):
    def test_what_the_processor_does_for_a_device_is_timed(self):
        result = self.run_program(*SMALL, "upload", "step-host", "--json", "out.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        upload, step = parts(read(self.folder / "out.json"))[0].rows("operations")
        stored = 2 * 2 * 256 * 64 * 2  # keys and values of two heads
        self.assertEqual(upload["work"], 2 * stored, "read and written")
        self.assertEqual(step["work"], 8)
        for row in upload, step:
            self.assertGreater(row["seconds"], 0)
            self.assertGreater(row["ratio"], 0)


class Peer(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.peer = write_peer(self.folder / "torch.json")

    def part(self, *arguments, threads="2"):
        result = self.run_program(*SMALL[:-1], threads, *arguments, "--peer", self.peer, "--json", "out.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return parts(read(self.folder / "out.json"))[0], result

    @staticmethod
    def spread(row, figure):
        return [row[figure + end] for end in ("", "_least", "_most")]

    def test_times_are_shown_beside_those_of_the_same_operation(self):
        part, result = self.part("selection", "step-attention", "exponential")
        exponential, selection, step = part.rows("operations")
        self.assertEqual(self.spread(exponential, "peer_seconds"), [None] * 3)
        self.assertEqual(self.spread(selection, "peer_seconds"), [0.25, 0.125, 1])
        self.assertEqual(step["work"], 8)
        self.assertEqual(self.spread(step, "peer_seconds"), [8 * 0.5] * 3, "seconds of a peer are those of one step")
        self.assertEqual(result.stderr, "")
        self.assertIn("beside torch 2.15.0, F32, 2 threads on a processor\n", result.stdout)
        self.assertIn("  -> torch has no counterpart\n", result.stdout)
        self.assertRegex(result.stdout, r"\n  torch 2.15.0, F32, 2 threads +250 ms +125 ms +1.00 s   ")
        for item in (selection, step):
            ours, theirs, ratio = (self.spread(item, figure) for figure in ("seconds", "peer_seconds", "peer_ratio"))
            for found, above, below in zip(ratio, theirs, (ours[0], ours[2], ours[1]), strict=True):
                self.assertAlmostEqual(found / (above / below), 1, places=12)
            self.assertIn("-> torch takes {:.2f} ({:.2f}-{:.2f}) times as long\n".format(*ratio), result.stdout)

    def test_a_policy_has_its_own_times_whatever_its_text(self):
        part, result = self.part("compress", "--policy", f"snapkv+critical,{SNAPKV}")
        critical, snapkv = part.rows("operations")
        self.assertEqual((critical["peer_seconds"], snapkv["policy"]), (None, SNAPKV))
        self.assertEqual(self.spread(snapkv, "peer_seconds"), [4, 0.2, 8])
        self.assertIn("compress, snapkv+critical, 2 threads ", result.stdout)

    def test_what_it_measured_alone_is_named(self):
        part, result = self.part("selection")
        peer = part.facts["peer"]
        alone = ["step-attention", f"compress, {SNAPKV}", "nearest-key"]
        self.assertEqual(peer.pop("not_measured"), alone)
        self.assertTrue(result.stdout.endswith(f"\ntorch also has: {'; '.join(alone)}\n"), result.stdout)
        self.assertEqual(peer.pop("sha256"), hashlib.sha256(self.peer.read_bytes()).hexdigest())
        self.assertEqual(peer, {name: PEER[name] for name in peer})
        write_peer(self.peer, changed(put("operations", PEER["operations"][:1])))
        part, result = self.part("selection")
        self.assertEqual(part.facts["peer"]["not_measured"], [])
        self.assertNotIn("also has", result.stdout)

    def test_without_a_peer_there_is_none(self):
        self.passes(*SMALL, "selection", "--json", "out.json")
        part, = parts(read(self.folder / "out.json"))
        self.assertEqual((part.facts["peer"], part.rows("operations")[0]["peer_seconds"]), (None, None))

    def test_a_table_and_csv_have_the_figures_of_the_document(self):
        part, result = self.part("selection", "exponential", "--csv", "out.csv", "--columns", "rounds,peer_seconds")
        self.assertRegex(result.stdout, r"\noperation +peer's time +rounds\nexponential +- +2\nselection +250 ms +2\n")
        with open(self.folder / "out.csv", newline="", encoding="utf-8") as file:
            found = [(row["operation"], row["timed"], float(row["seconds"]), row["ratio"]) for row in csv.DictReader(file)]
        rows = part.rows("operations") + part.rows("against")
        self.assertEqual(found, [(row["operation"], row["timed"], row["seconds"], str(row["ratio"] or "")) for row in rows])
        self.assertEqual(len(found), 4)
        self.assertIn("| selection |", self.passes(*SMALL, "selection", "--markdown"))
        self.assertRegex(self.passes(*SMALL, "compress", "--columns", "policy,seconds"), r"\noperation +policy +[a-z ]+\ncompress +snapkv")
        self.refuses(USAGE, "--columns: no column 'limiter'", *SMALL, "selection", "--columns", "limiter")

    def test_a_peer_is_no_output(self):
        self.refuses(USAGE, "--json: .*torch.json' is an input", *SMALL, "selection", "--peer", self.peer, "--json", self.peer)

    def test_another_number_of_threads_is_a_warning(self):
        _, result = self.part("selection", threads="1")
        self.assertEqual(result.stderr,
                         "kvbound: warning: torch used 2 threads, and this run uses 1: --threads\n")
        _, result = self.part("selection", "--quiet", threads="1")
        self.assertEqual(result.stderr, "")

    def test_names_are_printed_on_their_line_whatever_they_are(self):
        write_peer(self.peer, changed(put("name", "a\n\x1b[31mb")))
        _, result = self.part("selection")
        self.assertIn(r"-> a\x0a\x1b[31mb takes", result.stdout)
        self.assertNotIn("\x1b", result.stdout)

    def test_members_that_are_not_known_and_other_names_of_a_shape_are_no_matter(self):
        def change(document):
            document["shape"]["name"] = "of my own"
            document["comment"], document["operations"][0]["stream"] = {"deep": [1]}, 7

        write_peer(self.peer, changed(change))
        self.part("selection")

    def test_a_device_is_shown_beside_a_device_alone(self):
        device = "--backend", "emulated", "compact", "--peer", self.peer
        self.refuses(
            INVALID,
            "torch.json: operations_of: is reference; expected device, whose operations --backend emulated",
            *SMALL, *device)
        compact = {**PEER["operations"][0], "operation": "compact"}
        write_peer(self.peer, {**PEER, "device": "cuda", "operations_of": "device", "operations": [compact]})
        self.assertIn("torch takes", self.passes(*SMALL, *device))
        self.refuses(
            INVALID,
            "torch.json: operations_of: is device; expected reference, whose operations --backend reference",
            *SMALL, "selection", "--peer", self.peer)


class BadPeers(CommandLineTest):
    """Each is refused before anything is measured or written."""

    def refuses_peer(self, pattern, code=INVALID, path="torch.json"):
        self.refuses(code, pattern, *SMALL, "selection", "--peer", path, "--json", "out.json", silent=True)

    def test_of_another_shape(self):
        sizes = "8 query heads, 2 KV heads, head_dim 64, model_dim 256"
        for name, value in (("tokens", 512), ("query_heads", 4), ("kv_heads", 1), ("head_dim", 32),
                            ("model_dim", 128)):
            write_peer(self.folder / "torch.json", changed(put("shape", name, value)))
            self.refuses_peer(
                rf"torch.json: shape: is .*{value}.*; expected that of pocket:256: 256 tokens, {sizes}\n")

    def test_that_are_no_strict_json(self):
        good = json.dumps(PEER).encode()
        number, seed = b"0.25", b'"seed": 1'
        self.assertTrue(good.count(number) == good.count(seed) == 1)
        for bad in (b"", b" ", b"{", good[:-1], good + b"}", good + b"\0", b"\xef\xbb\xbf" + good,
                    b"[]", b"7", b'"torch"', b"null", good.replace(b'"F32"', b"'F32'"),
                    good.replace(b"F32", b"F\xff2"), good.replace(seed, seed + b", " + seed),
                    *(good.replace(number, bad) for bad in (b"NaN", b"Infinity", b".25", b"1e999", b"0x1",
                                                            b"[" * 5000 + b"]" * 5000))):
            (self.folder / "torch.json").write_bytes(bad)
            self.refuses_peer(r"torch.json: (at byte \d+: )?\S")

    def test_that_lack_a_member(self):
        paths = [(name,) for name in PEER if name != "python"]
        for path in paths + [("shape", name) for name in PEER["shape"] if name != "name"]:
            write_peer(self.folder / "torch.json", changed(without(*path)))
            self.refuses_peer(rf"torch.json: at byte \d+: {'.'.join(path)}: is missing\n")
        for name in ("operation", "policy", "seconds"):
            write_peer(self.folder / "torch.json", changed(without("operations", 2, name)))
            self.refuses_peer(rf"torch.json: at byte \d+: operations\[2\].{name}: is missing\n")

    def test_with_a_wrong_value(self):
        for pattern, *path in (
                ('schema: is "kvbound-bench-peer-2"; expected kvbound-bench-peer-1',
                 "schema", "kvbound-bench-peer-2"),
                ("schema: is 1; expected kvbound-bench-peer-1", "schema", 1),
                ('name: is ""; expected a string that is not empty', "name", ""),
                ("version: is null; expected a string", "version", None),
                ('device: is "tpu"; expected cpu or cuda', "device", "tpu"),
                ("device_name: is 7", "device_name", 7),
                ('storage: is "fp32"; expected F64 or F32 or F16 or BF16', "storage", "fp32"),
                ("threads: is 0; expected an integer from 1", "threads", 0),
                ("threads: is 1.5; expected an integer", "threads", 1.5),
                ("seed: is -1; expected an integer from 0", "seed", -1),
                ("seed: is 18446744073709551615; expected an integer from 0 to 9223372036854775807",
                 "seed", 2**64 - 1),
                ('operations_of: is "cuda"; expected reference or device', "operations_of", "cuda"),
                ("shape: is an array; expected an object", "shape", []),
                ("shape.tokens: is -256", "shape", "tokens", -256),
                ('shape.head_dim: is "64"', "shape", "head_dim", "64"),
                ("shape.kv_heads: is 2.5", "shape", "kv_heads", 2.5),
                ("shape.tokens: is 2147483648; expected an integer from 1 to 2147483647",
                 "shape", "tokens", 2**31),
                ("operations: is an array; expected a list that is not empty", "operations", []),
                ("operations: is an object; expected a list", "operations", {}),
                (r"operations\[1\]: is 3; expected an object", "operations", 1, 3),
                (r'operations\[1\].operation: is ""', "operations", 1, "operation", ""),
                (r'operations\[1\].operation: is "selection" again',
                 "operations", 1, "operation", "selection"),
                (r"operations\[2\].policy: .*fifo", "operations", 2, "policy", "fifo"),
                (r"operations\[2\].policy: is 7; expected a string", "operations", 2, "policy", 7),
                (r"operations\[0\].seconds: is an array; expected a list that is not empty",
                 "operations", 0, "seconds", []),
                (r"operations\[0\].seconds: is 0.5; expected a list", "operations", 0, "seconds", 0.5),
                *((rf"operations\[0\].seconds\[1\]: is {text}; expected a number > 0",
                   "operations", 0, "seconds", 1, value)
                  for text, value in (("0", 0), ("-0.5", -0.5), ("null", None), ("true", True)))):
            write_peer(self.folder / "torch.json", changed(put(*path)))
            self.refuses_peer(rf"\Akvbound: torch.json: at byte \d+: {pattern}")

    def test_that_are_no_files_to_be_read(self):
        self.refuses_peer("cannot open missing.json", WORLD, "missing.json")
        (self.folder / "folder").mkdir()
        self.refuses_peer("folder: is a directory", path="folder")
        self.refuses_peer("/dev/null: .*is not valid JSON", path="/dev/null")
        with open(self.folder / "large", "wb") as file:
            file.truncate((16 << 20) + 1)
        self.refuses_peer("large: has 16777217 bytes; expected at most 16 MiB", path="large")

    def test_without_a_name(self):
        self.refuses(USAGE, "--peer: an empty file name", *SMALL, "selection", "--peer", "")


if __name__ == "__main__":
    kvbound_cli.main()
