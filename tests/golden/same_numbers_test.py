#!/usr/bin/python3
"""same_numbers.py finds every difference, an empty comparison is one, and its list of policies covers the grammar.

usage: same_numbers_test.py      needs no program
"""
import collections
import copy
import re
import tempfile
import unittest
from pathlib import Path

import numpy as np

import same_numbers
import same_policies
from same_files import (RENAMED, compare_dumps, compare_reports, newer_name, older_name, renamed_file, required_tensors,
                        tensor_difference)
from same_numbers import Job, Programs, Verdict, compare_verdicts, finished
import independent.policy
import independent.replay
from support.dumps import Dump

POLICY = "tova:sinks=0"
STORAGE = {8: "F64", 4: "F32", 2: "F16"}


def entry(array, dtype=None):
    array = np.asarray(array)
    return dtype or ("I64" if array.dtype.kind == "i" else STORAGE[array.itemsize]), array.shape, array.tobytes()


def dump():
    """(metadata, tensors) of two layers, of all kinds that the policy has."""
    random, tensors = np.random.default_rng(1).standard_normal, {}
    for layer in range(2):
        for kind in required_tensors(POLICY):
            integral = kind in ("kept", "kept_offsets", "score_positions", "evicted")
            tensors[f"layers.{layer}.{kind}"] = entry(np.arange(6).reshape(2, 3) if integral else random((2, 3)))
    return {"format": "kvbound-dump", "policy": POLICY, "budget": "3"}, tensors


def flipped(tensor, element, bit):
    dtype, shape, data = tensor
    bits = np.frombuffer(data, f"<u{len(data) // int(np.prod(shape))}").copy()
    bits[element] ^= np.array(1 << bit, bits.dtype)
    return dtype, shape, bits.tobytes()


class Dumps(unittest.TestCase):
    def differences(self, change, before=None, layers=(0, 1)):
        before, after = before or dump(), dump()
        change(after[1])
        return compare_dumps(before, after, layers).differences

    def test_equal_dumps_are_equal_and_counted(self):
        compared = compare_dumps(dump(), dump(), (0, 1))
        self.assertEqual(compared.differences, [])
        self.assertEqual(compared.tensors, 2 * len(required_tensors(POLICY)))
        self.assertEqual(compared.bytes, 48 * compared.tensors)

    def test_any_flipped_bit_is_found_and_named(self):
        for name in dump()[1]:
            for element, bit in ((0, 0), (4, 51), (5, 63)):
                with self.subTest(f"{name} {element} {bit}"):
                    found = self.differences(lambda tensors: tensors.update({name: flipped(tensors[name], element, bit)}))
                    self.assertEqual(len(found), 1)
                    self.assertTrue(found[0].startswith(f"{name}[{element // 3}, {element % 3}]: "), found)
                    self.assertTrue(found[0].endswith("; 1 of 6 elements differ"), found)

    def test_both_numbers_are_printed_with_all_digits_and_bits(self):
        one = entry([1.0, 2.0])
        self.assertEqual(tensor_difference("t", one, flipped(one, 0, 0)),
                         "t[0]: 1 (0x3ff0000000000000) before, 1.0000000000000002 (0x3ff0000000000001) after; 1 of 2 elements differ")
        self.assertEqual(tensor_difference("t", entry([7]), entry([-1])),
                         "t[0]: 7 (0x0000000000000007) before, -1 (0xffffffffffffffff) after; 1 of 1 elements differ")
        half = ("BF16", (), b"\x80\x3f")
        self.assertEqual(tensor_difference("t", half, ("BF16", (), b"\x80\xbf")),
                         "t[]: 1 (0x3f80) before, -1 (0xbf80) after; 1 of 1 elements differ")

    def test_nans_of_equal_bits_are_equal_and_others_are_not(self):
        nan = entry([np.nan, 1.0])
        self.assertIsNone(tensor_difference("t", nan, entry([np.nan, 1.0])))
        self.assertRegex(tensor_difference("t", nan, flipped(nan, 0, 3)), r"t\[0\]: nan \(0x7ff8\w+0\) before, nan \(0x7ff8\w+8\)")
        self.assertRegex(tensor_difference("t", nan, entry([0.0, 1.0])), r"t\[0\]: nan .* before, 0 ")
        self.assertRegex(tensor_difference("t", entry([0.0]), entry([-0.0])), r"t\[0\]: 0 .* before, -0 ")

    def test_another_type_shape_or_length_is_found(self):
        name, array = "layers.1.output", np.arange(6.0).reshape(2, 3)
        for other, said in ((entry(array.astype("f4")), "type F64 before, F32 after"),
                            (entry(array.reshape(3, 2)), "shape (2, 3) before, (3, 2) after"),
                            (entry(array.view("i8")), "type F64 before, I64 after"),
                            (("F64", (2, 3), array.tobytes()[:-8]), "40 bytes after")):
            self.assertIn(said, tensor_difference(name, entry(array), other))
            found = self.differences(lambda tensors: tensors.update({name: other}))
            self.assertEqual(len(found), 1)

    def test_a_missing_tensor_is_found_also_where_both_lack_it(self):
        for name in dump()[1]:
            self.assertEqual(self.differences(lambda tensors: tensors.pop(name)), [f"{name}: missing after"])
            less = dump()
            del less[1][name]
            self.assertEqual(self.differences(lambda tensors: None, less), [f"{name}: missing before"])
            self.assertEqual(self.differences(lambda tensors: tensors.pop(name), less), [f"{name}: missing before and after"])
        self.assertEqual(self.differences(lambda tensors: tensors.update({"layers.0.more": entry([1.0])})),
                         ["layers.0.more: missing before"])

    def test_a_missing_layer_and_an_empty_tensor_are_found_also_where_both_lack_it(self):
        found = compare_dumps(dump(), dump(), (0, 1, 2)).differences
        expected = {f"layers.2.{kind}: missing before and after" for kind in required_tensors(POLICY)}
        self.assertEqual(set(found), expected)
        empty = dump()
        empty[1]["layers.0.output"] = entry(np.zeros((0, 3)))
        self.assertEqual(compare_dumps(empty, copy.deepcopy(empty), (0, 1)).differences, ["layers.0.output: empty"])
        self.assertIn("no tensor to compare", compare_dumps(({}, {}), ({}, {}), ()).differences)

    def test_metadata_must_be_equal_but_for_the_revision(self):
        for change, found in (({"revision": "1"}, []), ({"budget": "4"}, ["__metadata__.budget: '3' before, '4' after"]),
                              ({"new": "x"}, ["__metadata__.new: None before, 'x' after"])):
            before, after = dump(), dump()
            after[0].update(change)
            self.assertEqual(compare_dumps(before, after, (0, 1)).differences, found)

    def test_renamed_tensors_are_compared_under_one_name(self):
        older = dump()
        older = older[0], {older_name(name): tensor for name, tensor in older[1].items()}
        self.assertIn("layers.1.left", older[1])
        self.assertEqual(self.differences(lambda tensors: None, older), [])
        name = "layers.1.evicted"
        self.assertEqual(len(self.differences(lambda tensors: tensors.update({name: flipped(tensors[name], 2, 0)}), older)), 1)
        older[1]["layers.1.evicted"] = older[1]["layers.1.left"]
        self.assertEqual(self.differences(lambda tensors: None, older), ["layers.1.evicted: twice before"])

    def test_files_are_given_the_names_that_a_program_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("left", "evicted"):
                file = Dump({"policy": POLICY}, {f"layers.0.{name}": ("I64", np.arange(4)),
                                                 "layers.0.score": ("F64", np.ones(3))})
                for naming, kind in ((older_name, "left"), (newer_name, "evicted")):
                    (Path(folder) / "dump").write_bytes(renamed_file(file.bytes(), naming))
                    metadata, tensors = independent.replay.open_tensors(Path(folder) / "dump")
                    self.assertEqual(metadata, {"policy": POLICY})
                    self.assertEqual({name: bytes(tensor[2]) for name, tensor in tensors.items()},
                                     {f"layers.0.{kind}": np.arange(4).tobytes(), "layers.0.score": np.ones(3).tobytes()})
        both = Dump({}, {f"layers.0.{name}": ("I64", np.arange(4)) for name in ("left", "evicted")}).bytes()
        for data in (b"", b"1234567", b"\xff" * 20, b"\1" + bytes(7) + b"5", both):
            self.assertEqual(renamed_file(data, older_name), data)


REPORT = {"schema": "kvbound-diff-1", "revision": "a", "blas": {"core": "Haswell"}, "verdict": "differs", "threads": 1,
          "dump": {"path": "d", "tensors": ["left", "score"]},
          "tensors": [{"layer": 0, "tensor": "left", "outside": 1,
                       "worst": {"index": [1, 0], "error": 0.0, "note": "none evicted"}},
                      {"layer": 0, "tensor": "score", "outside": 0, "worst": None}]}


class Reports(unittest.TestCase):
    def differences(self, change, report=REPORT):
        after = copy.deepcopy(report)
        change(after)
        numbers, differences = compare_reports(report, after)
        self.assertGreater(numbers, 0)
        return differences

    def test_provenance_wording_and_names_do_not_matter(self):
        def change(report):
            report.update(schema="kvbound-diff-2", revision="b", blas={}, compiler="another", times=[1])
            report["dump"] = {"path": "e", "tensors": ["evicted", "score"]}
            report["tensors"][0].update(tensor="evicted")
            report["tensors"][0]["worst"]["note"] = "no entry was evicted"
            report["tensors"].reverse()

        self.assertEqual(self.differences(change), [])

    def test_any_other_difference_is_found(self):
        first = "tensors.layers.0.evicted"
        for change, found in (
                (lambda report: report.update(verdict="agrees"), "verdict: 'differs' before, 'agrees' after"),
                (lambda report: report["tensors"][0].update(outside=2), f"{first}.outside: 1 before, 2 after"),
                (lambda report: report["tensors"][0]["worst"].update(error=-0.0), f"{first}.worst.error: 0.0 before, -0.0 after"),
                (lambda report: report["tensors"][0]["worst"].update(error=5e-324), f"{first}.worst.error: 0.0 before, 5e-324 after"),
                (lambda report: report["tensors"][0]["worst"].update(note=None), f"{first}.worst.note: True before, False after"),
                (lambda report: report["tensors"][0]["worst"].pop("error"), f"{first}.worst.error: 0.0 before, missing after"),
                (lambda report: report.update(more=[]), "more: missing before, [] after"),
                (lambda report: report["dump"]["tensors"].reverse(), "dump.tensors.0: 'evicted' before, 'score' after")):
            self.assertIn(found, self.differences(change))
        self.assertEqual(len(self.differences(lambda report: report["tensors"].pop())), 4)

    def test_a_report_without_numbers_is_no_comparison(self):
        self.assertEqual(compare_reports({"verdict": "agrees"}, {"verdict": "agrees"}), (0, ["a report without numbers"]))
        self.assertEqual(compare_reports({}, {}), (0, ["a report without numbers"]))

    def test_names_that_changed_map_to_other_names(self):
        self.assertFalse(RENAMED.keys() & set(RENAMED.values()))
        with self.assertRaises(ValueError):
            compare_reports({"left": 1, "evicted": 1}, {"evicted": 1})

    def test_verdicts_differ_by_exit_code_first_named_tensor_or_report(self):
        right = Verdict(1, REPORT, "layers.0.evicted[1, 0]", "")
        self.assertEqual(compare_verdicts(right, right._replace(message="other words"))[1], [])
        for change in ({"exit_code": 5}, {"named": "layers.0.score[1, 0]"}, {"report": None}, {"report": {**REPORT, "threads": 2}}):
            self.assertEqual(len(compare_verdicts(right, right._replace(**change))[1]), 1, change)
        refused = Verdict(3, None, "layers.0.score[0]", "")
        self.assertEqual(compare_verdicts(refused, refused._replace(named=None)), (0, []))


class Runs(unittest.TestCase):
    def test_programs_that_do_nothing_are_no_pass(self):
        for program, said in (("/bin/false", "before: exit code 1: "), ("/bin/true", "FileNotFoundError: ")):
            programs = Programs(Path(program), Path(program), (newer_name, newer_name))
            for work, arguments in ((same_numbers.replay, ("trace", "tova", "9", (0,), ())),
                                    (same_numbers.figures, ("recall", "trace")),
                                    (same_numbers.judge_policy, ("trace", "tova", "9", 1, 0, ()))):
                differences = finished(Job(("trace", "tova", "9"), work, arguments), programs).differences
                self.assertEqual(differences[0][:len(said)], said)

    def test_an_exception_in_a_row_is_a_difference(self):
        def wrong(*_):
            raise ValueError("no such thing")

        self.assertEqual(finished(Job((), wrong, ()), None), (collections.Counter(), ["ValueError: no such thing"]))


class Grammar(unittest.TestCase):
    """Every component, each of its options with another value than the default, and each named choice."""

    def test_no_method_is_left_out(self):
        components = collections.defaultdict(lambda: collections.defaultdict(set))
        for policy in same_policies.POLICIES + same_policies.GREEDY:
            independent.policy.parse_policy(policy)  # raises an error for an invalid policy
            for component in policy.split("+"):
                name, *options = component.split(":")
                values = components[name]
                for option, value in (pair.split("=") for pair in options):
                    values[option].add(value)
        known = {name: options for names in (independent.policy.HOSTS, *independent.policy.KINDS.values())
                 for name, options in names.items()}
        self.assertEqual(components.keys(), known.keys())
        for name, options in known.items():
            for option, (default, form) in options.items() if name != "keepkv-paper" else ():  # a keepkv with other defaults
                used = components[name][option] | {default}
                self.assertGreater(len(used), 1, f"{name}:{option}")
                named = {choice for choice in form.split("|") if re.fullmatch(r"[a-z][a-z0-9-]+", choice)}
                self.assertLessEqual(named, used, f"{name}:{option}")

    def test_every_host_meets_every_score_and_kind_of_component(self):
        pairs = {(policy.split("+")[0].split(":")[0], component.split(":")[0])
                 for policy in same_policies.POLICIES for component in policy.split("+")[1:]}
        scored = ("snapkv", "h2o", "tova")
        for host in scored:
            for name in (*same_policies.SCORES, "critical", "theta-sweep", "adakv", "pyramid", "keepkv", "keepkv-paper", "d2o",
                         "cam"):
                self.assertIn((host, name), pairs)
        self.assertGreaterEqual(len(same_policies.POLICIES), 60)
        self.assertLessEqual(set(same_policies.THOROUGH), set(same_policies.POLICIES))

    def test_generated_traces_are_of_every_kind_and_type(self):
        traces = same_policies.GENERATED.values()
        self.assertEqual({options["kind"] for options in traces}, {"power-law", "flat", "sink", "needle", "tied", "mixed"})
        self.assertEqual({options["dtype"] for options in traces}, {"F64", "F32", "F16", "BF16"})
        self.assertEqual({options["query-heads"] // options["kv-heads"] for options in traces}, {1, 2, 3, 4})


if __name__ == "__main__":
    unittest.main()
