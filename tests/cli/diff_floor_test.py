"""`kvbound diff --floor`: how small a fault is always found.

usage: diff_floor_test.py KVBOUND      KVBOUND: the program's path
"""
import re

import numpy as np

from support import kvbound_cli
from support.diffs import DiffTest
from support.documents import parts, read
from support.kvbound_cli import USAGE, WORLD


class Floors(DiffTest):
    SHAPE = "head_dim=8:query_heads=2:window=2"

    def floors(self, *arguments):
        self.passes("diff", "--floor", *arguments, "--json", "floor.json")
        part, = parts(read(self.folder / "floor.json"))
        return {(item["operation"], item["layer"] or 0, item["tokens"]): item for item in part.rows("floors")}, part.facts

    def test_the_table_has_a_row_for_each_operation_and_number_of_tokens(self):
        text = self.passes("diff", "--floor", self.SHAPE, "--tokens", "30,60", "--storage", "BF16", "--weights", "BF16",
                           "--partials", "F16", "--splits", "2", "--tile", "16")
        lines = text.splitlines()
        self.assertEqual(lines[0], "random numbers, head_dim=8:query_heads=2:kv_heads=1:window=2:seed=1")
        self.assertEqual(lines[1], "  storage BF16, accumulate F32, weights BF16, partials F16, 2 splits, tile 16")
        rows = [re.split("  +", line) for line in lines[3:]]
        self.assertEqual(rows[0], ["operation", "tokens", "factor", "logits", "missing", "their weight", "padding",
                                   "their weight", "swaps", "of", "base 2", "halved", "zeros"])
        self.assertEqual([row[1] for row in rows[1:]], ["30"] * 13 + ["60"] * 13)
        self.assertRegex(lines[4], r"^prompt_output +30 +0\.\d+ +0\.\d+ +\d+ +\d+\.\d %  +\d+ +\d+\.\d % +1 +1 +found")
        self.assertEqual(rows[2][0], "score")
        self.assertEqual(rows[2][3:], ["-"] * 8 + ["found", "found"])

    def test_rougher_arithmetic_and_more_tokens_find_less(self):
        def factor(tokens, *arguments):
            return self.floors(self.SHAPE, "--tokens", tokens, *arguments)[0]["prompt_output", 0, int(tokens)]["factor"]

        fine = factor("40", "--storage", "F64")
        self.assertLess(fine, 1e-12)
        self.assertLess(1e8 * fine, factor("40", "--storage", "F64", "--accumulate", "F32"))
        stored = factor("40", "--storage", "BF16")
        self.assertLess(2e-3, stored)
        rounded = factor("40", "--storage", "BF16", "--weights", "BF16")
        self.assertLess(1.2 * stored, rounded)
        self.assertLess(1.1 * rounded, factor("40", "--storage", "BF16", "--weights", "BF16", "--partials", "BF16"))
        self.assertLess(1.5 * rounded, factor("400", "--storage", "BF16", "--weights", "BF16"))

    def test_figures_of_a_trace_are_those_of_its_dumps(self):
        trace = self.trace("F32")
        floors, report = self.floors(trace, "--storage", "F32", "--layers", "1")
        self.assertEqual({key[1:] for key in floors}, {(1, 120)})
        self.assertEqual((report["shape"], report["trace"]["prompt_tokens"]), (None, 120))
        dump = self.reference(trace, "snapkv:window=12:pool=1+critical").only({"projected_value_norms"})
        dump.metadata.update(storage="F32", accumulate="F32")
        floor = floors["projected_value_norms", 1, 120]["factor"]
        right = dump.array(1, "projected_value_norms").copy()
        # the rest is for the rounding of a faulty implementation
        for share, finds in ((0.45, False), (0.55, True)):
            dump.array(1, "projected_value_norms")[...] = (1 + share * floor) * right
            (self.differs if finds else self.agrees)(trace, *((dump.stored("F32"), "projected_value_norms") if finds
                                                              else (dump.stored("F32"),)))

    def test_figures_of_merged_entries_are_those_of_dumps(self):
        trace = self.trace("F32")
        floors, _ = self.floors(trace, "--storage", "F32", "--layers", "1")
        merged = None
        for method in ("keepkv", "d2o"):  # both merge the same entries; only KeepKV counts them
            dump = self.reference(trace, f"snapkv:window=12:pool=1+{method}:threshold=none", "20%")
            merged = dump.array(1, "votes") > 1 if merged is None else merged
            dump.metadata.update(storage="F32", accumulate="F32")
            for tensor in ("merged_key", "merged_value"):
                with self.subTest(f"{tensor} of {method}"):
                    floor, own = floors[f"{tensor}, {method}", 1, 120], dump.only({"kept", tensor})
                    self.assertEqual(floor["judged"], 16 * np.count_nonzero(merged))
                    right = own.array(1, tensor).copy()
                    # the rest is for the rounding of a faulty one
                    for share, finds in ((0.45, False), (0.55, True)):
                        own.array(1, tensor)[merged] = (1 + share * floor["factor"]) * right[merged]
                        (self.differs if finds else self.agrees)(trace, *((own.stored("F32"), tensor) if finds
                                                                          else (own.stored("F32"),)))

    def test_results_do_not_depend_on_threads(self):
        arguments = ("diff", "--floor", self.SHAPE, "--tokens", "200", "--storage", "F16")
        self.assertEqual(self.passes(*arguments, "--threads", "1"), self.passes(*arguments, "--threads", "3"))

    def test_senseless_command_lines_are_refused(self):
        trace = self.trace("F32")
        for arguments, pattern in (
                (("--floor", self.SHAPE), "--storage"),
                (("--floor", self.SHAPE, "--storage", "I64"), "--storage 'I64': expected F64, F32, F16 or BF16"),
                (("--floor", self.SHAPE, "--storage", "F"), "--storage 'F': expected"),
                (("--floor", self.SHAPE, "--storage", "F16", "--accumulate", "F16"), "--accumulate 'F16': expected F64 or F32"),
                (("--floor", self.SHAPE, "--storage", "F16", "--splits", "0"), "--splits"),
                (("--floor", self.SHAPE, "--storage", "F16", "--tile", "none"), "--tile"),
                (("--floor", self.SHAPE, "--storage", "F16", "--tokens", "5,0"), "--tokens '5,0': expected integers"),
                (("--floor", "tokens=5", "--storage", "F16", "--tokens", "5"), "expected one of them"),
                (("--floor", "tokens=5:heads=2", "--storage", "F16"), "no option 'heads'"),
                (("--floor", self.SHAPE, "--storage", "F16", "--layers", "0"), "--layers needs a trace"),
                (("--floor", trace, "--storage", "F16", "--tokens", "5"), "--tokens is for random numbers"),
                (("--floor", trace, "--storage", "F16", "--layers", "2"), "--layers"),
                (("--floor", trace, "--storage", "F16", "--json", trace), "is an input"),
                (("--floor", self.SHAPE, "--storage", "F16", "extra"), "unexpected argument 'extra'"),
                ((trace, "dump.safetensors", "--storage", "F16"), "--storage needs --floor")):
            self.refuses(USAGE, pattern, "diff", *arguments)
        self.refuses(WORLD, "cannot open none", "diff", "--floor", "none", "--storage", "F16")


if __name__ == "__main__":
    kvbound_cli.main()
