"""What `kvbound diff` says of outputs beside its verdict: that they are unlikely by rounding, or which fault explains them.

usage: diff_outputs_test.py KVBOUND      KVBOUND: the program's path
"""
import re

import numpy as np

from support import kvbound_cli
from support.diffs import DiffTest
from support.kernels import Kernel
from support.kvbound_cli import MISMATCH, PASS, SAMPLES, TraceFile

PARTS = {"weights": "BF16", "partials": "BF16", "splits": 8}
LINE = (r"\Akvbound: dump\.safetensors: layers\.0\.(prompt_)?output\[(\d+|:), (\d+|:)\]: {functional} (\d\.\d+)( of all rows)? is "
        r"unlikely by rounding \((0\.\d+) to (1\.\d+); probability below 1e-\d+\){explained}(; so is 1 more layer)?\n")


class UnlikelyTest(DiffTest):
    def normal(self, tokens, dtype="BF16", seed=1, **sizes):
        """A trace of normal numbers: attention that is spread out."""
        trace = TraceFile(**{"layers": 1, "query_heads": 8, "kv_heads": 2, "head_dim": 64, "model_dim": 8, "prompt_tokens": tokens,
                             "decode_tokens": 16, "window_queries": 16, "dtype": dtype, "seed": seed, **sizes})
        return trace.write(self.folder / f"normal-{tokens}-{dtype}-{seed}.safetensors")

    def found(self, trace, dump, functional, explained=None):
        """Requires that the first line names this functional, and its explanation; returns the factor, and the report."""
        report, stderr = self.diff(trace, dump)
        self.assertEqual(report["verdict"], "agrees")
        match = self.assertRegex(stderr, LINE.format(functional=functional,
                                                     explained=f"; {re.escape(explained)} would explain it" if explained else ""))
        found = report["unlikely"]
        self.assertEqual([item["explained_by"] for item in found], [explained] * len(found), match)
        return float(found[0]["value"]), report


    def finds_small_factors(self, trace):
        right = Kernel(**PARTS).dump(trace)
        self.agrees(trace, right)
        factor, report = self.found(trace, Kernel(**PARTS, logits=1.003).dump(trace), "logit scale")
        self.assertAlmostEqual(factor, 1.003, delta=0.0005)
        self.assertEqual(report["unlikely"][0]["index"], "[:, :]")
        for _, array in right.tensors.values():
            array *= 1.002
        factor, _ = self.found(trace, right, "gain")
        self.assertAlmostEqual(factor, 1.002, delta=0.0005)


class SoundKernels(UnlikelyTest):
    def test_kernels_with_declared_roundings_are_likely(self):
        random = np.random.default_rng(1)
        for number in range(9):
            tokens = (60, 300, 1200)[number % 3]
            kernel = Kernel(**(PARTS if number % 2 else {}), tile=int(random.choice([16, 64, 4096])),
                            stored=random.choice(["F32", "F16", "BF16"]), base2=bool(random.integers(2)),
                            online=bool(random.integers(2)), rounded_sum=bool(random.integers(2)),
                            divided_first=bool(random.integers(4) == 0))
            with self.subTest(f"{tokens} {kernel}"):
                trace = self.normal(tokens, ("BF16", "F16", "F32")[number % 3], seed=number)
                self.agrees(trace, kernel.dump(trace))

    def test_heads_of_every_kind_are_likely(self):
        for number, kind in enumerate(("flat", "sink", "tied", "power-law")):
            trace = self.trace("BF16", kind, 500, number, **{"window-queries": 32, "decode": 16})
            for kernel in (Kernel(**PARTS, stored="BF16"), Kernel(weights="F16", stored="F16", tile=128), Kernel()):
                with self.subTest(f"{kind} {kernel}"):
                    self.agrees(trace, kernel.dump(trace))

    # A head of pocket-mha attends to one token: parts are on the grid of BF16, near which
    # outputs are rounded back to it.
    def test_nearly_equal_logits_are_likely(self):
        for logits in (0.0005, 0.004):
            trace = TraceFile(layers=1, query_heads=8, head_dim=32, prompt_tokens=200, decode_tokens=24, dtype="F32")
            for name, (_, array) in trace.tensors.items():
                array *= logits if name.endswith("query") else 1
                array += 3 if name.endswith("value") else 0
            path = trace.write(self.folder / "near.safetensors")
            self.agrees(path, Kernel(weights="BF16", stored="BF16").dump(path))


class Faults(UnlikelyTest):
    def test_factors_too_small_for_any_bound_are_found(self):
        self.finds_small_factors(self.normal(2048))

    def test_undeclared_weights_of_16_bits_are_named(self):
        trace = self.normal(2048)
        self.found(trace, Kernel(weights="F16").dump(trace, weights=None), "(gain|logit scale)", "weights of 16 bits (FP16)")
        self.found(trace, Kernel(weights="BF16").dump(trace, weights=None), "(gain|logit scale)", "weights of 16 bits (BF16)")

    # Factors of 10 bits round weights like FP16, and logits not by much more.
    def test_undeclared_products_in_tf32_are_found(self):
        trace = self.normal(2048, "F32")
        self.found(trace, Kernel(products="TF32").dump(trace), "(gain|logit scale)", "weights of 16 bits (FP16)")

    def test_strict_is_a_mismatch(self):
        trace = self.normal(600)
        for kernel, code in ((Kernel(gain=1.0002), MISMATCH), (Kernel(), PASS)):
            kernel.dump(trace).write(self.folder / "dump.safetensors")
            result = self.run_program("diff", trace, "dump.safetensors", "--strict", "--quiet")
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertEqual("unlikely by rounding" in result.stderr, code == MISMATCH)
            self.assertEqual("unlikely by rounding" in result.stdout, code == MISMATCH)


class Diagnoses(UnlikelyTest):
    def explained(self, trace, dump, fault, tensors=("prompt_output", "output"), rows=8):
        """Requires that rows of these tensors differ, and that this fault explains them."""
        report, stderr = self.diff(trace, dump, MISMATCH)
        found = {item["tensor"]: item["diagnosis"] for item in report["tensors"]}
        for tensor in tensors:
            self.assertEqual(found[tensor], {"fault": fault, "rows": rows})
        self.assertIn(f"; {fault} (that explains all {rows} rows that were tried)", stderr)
        self.assertIn(f"  layers.0.{tensors[0]}: {fault} (that explains", self.run_program("diff", trace, "dump.safetensors").stdout)

    def test_one_fault_is_said_in_words(self):
        trace = self.normal(500)
        kernel = Kernel(weights="BF16")
        self.explained(trace, Kernel(weights="BF16", gain=0.5).dump(trace), "outputs are 0.500 of what they should be")
        self.explained(trace, Kernel(weights="BF16", logits=np.log(2)).dump(trace), "exponentials are to base 2")
        swapped = kernel.dump(trace)
        for _, array in swapped.tensors.values():
            array[:, [1, 2]] = array[:, [2, 1]]
        self.explained(trace, swapped, "query heads 1, 2 hold the outputs of 2, 1")
        zeros = kernel.dump(trace)
        zeros.array(0, "output")[2:4] = 0
        self.explained(trace, zeros, "rows are zero", ("output",))

    def test_missing_entries_are_named(self):
        class Holed(Kernel):
            def __call__(self, queries, keys, values, scale):
                there = np.r_[:128, 192:len(keys)]
                return super().__call__(queries, keys[there], values[there], scale)

        class Short(Kernel):
            def __call__(self, queries, keys, values, scale):
                return super().__call__(queries, keys[:-1], values[:-1], scale)

        trace = self.normal(500)
        self.explained(trace, Holed().dump(trace), "entries 128-191 are missing")
        self.explained(trace, Short().dump(trace), "the last entry is missing")

    def test_nothing_is_made_up(self):
        trace = self.normal(500)
        dump = Kernel().dump(trace)
        random = np.random.default_rng(5)
        for _, array in dump.tensors.values():
            array += 0.01 * random.standard_normal(array.shape)
        report, stderr = self.diff(trace, dump, MISMATCH)
        self.assertEqual([item["diagnosis"] for item in report["tensors"]], [None, None])
        self.assertNotIn("explains", stderr)


class RecordedModels(UnlikelyTest):
    suite = "long"

    def test_a_models_heads_are_likely(self):
        for sample in ("pocket-mha", "smollm2-135m"):
            trace = SAMPLES / f"{sample}.safetensors"
            for kernel in (Kernel(partials="BF16", stored="BF16", splits=8, online=False), Kernel(**PARTS)):
                with self.subTest(f"{sample} {kernel}"):
                    self.agrees(trace, kernel.dump(trace))

    # All weights are rounded to 1, and all outputs alike.


class LongCaches(UnlikelyTest):
    suite = "long"

    def test_factors_too_small_for_any_bound_are_found(self):
        self.finds_small_factors(self.normal(16384, query_heads=4, kv_heads=1, decode_tokens=24, window_queries=24))


if __name__ == "__main__":
    kvbound_cli.main()
