"""Base class for tests of `kvbound diff`: traces to compare dumps with, and the expected verdicts."""
import importlib
from unittest import mock

import numpy as np

import independent.replay
from support.documents import comparison, judgement, read
from support.dumps import Dump, recompute
from support.kvbound_cli import INCONCLUSIVE, INVALID, MISMATCH, PASS, CommandLineTest

CRITICAL = "snapkv:window=8:pool=7+critical"
REAL = ("F64", "F32", "F16", "BF16")


class DiffTest(CommandLineTest):
    def trace(self, dtype="F32", kind="mixed", tokens=120, seed=3, **sizes):
        """A generated trace of two layers."""
        sizes = {"layers": 2, "query-heads": 4, "kv-heads": 2, "head-dim": 16, "model-dim": 24, "window-queries": 12,
                 "decode": 4, **sizes}
        name = f"{kind}-{dtype}-{tokens}-{seed}.safetensors"
        return self.generate(name, "--kind", kind, "--dtype", dtype, "--tokens", tokens, "--seed", seed,
                             *(word for size, count in sizes.items() for word in (f"--{size}", count)))

    def diff(self, trace, dump, code=PASS):
        """Runs `diff` on a Dump and requires this exit code; returns (JSON report, standard error)."""
        dump.write(self.folder / "dump.safetensors")
        result = self.run_program("diff", trace, "dump.safetensors", "--json", "out.json")
        self.assertEqual(result.returncode, code, f"{result.stdout}{result.stderr}")
        return judgement(read(self.folder / "out.json")), result.stderr

    def agrees(self, trace, dump, may_be_unlikely=False):
        """may_be_unlikely: whether its numbers were moved, within their bounds but by more than chance may."""
        report, stderr = self.diff(trace, dump)
        self.assertEqual(report["verdict"], "agrees")
        self.assertRegex(stderr, r"\A(kvbound: [^\n]* is unlikely by rounding [^\n]*\n)*\Z" if may_be_unlikely else r"\A\Z")
        self.assertEqual({item["tensor"] for item in report["tensors"]}, dump.kinds())
        return report

    def differs(self, trace, dump, tensor):
        """Requires that the dump differs, and that the message on standard error names this tensor first."""
        report, stderr = self.diff(trace, dump, MISMATCH)
        self.assertRegex(stderr, rf"\Akvbound: dump\.safetensors: layers\.\d+\.{tensor}\[\d+(, \d+)*\]:? [^\n]+\n\Z")
        self.assertEqual(report["verdict"], "differs")
        return report, stderr

    def refused(self, trace, dump, pattern, code=INVALID):
        dump.write(self.folder / "dump.safetensors")
        self.refuses(code, r"dump\.safetensors: " + pattern, "diff", trace, "dump.safetensors", "--json", "none.json",
                     silent=True)

    def reference(self, trace, policy=CRITICAL, budget="40", *options):
        """The program's own dump."""
        self.passes("replay", trace, "--policy", policy, "--budget", budget, "--dump", "reference.safetensors",
                    *options)
        return Dump.read(self.folder / "reference.safetensors")

    def traces(self):
        yield self.trace("BF16", "mixed", tokens=160)
        yield self.trace("F32", "power-law", tokens=161)
        yield self.trace("F16", "sink", tokens=162)

    def finds(self, tensor, policy=CRITICAL, change=None, patch=None, precisions=(np.float64, np.float32),
              kinds=None, **options):
        """Requires that a dump with a fault differs in this tensor, whatever the arithmetic.

        change(dump)         changes the dump's numbers
        patch                (name, function(right one) -> wrong one) of independent.replay, or of MODULE where it is MODULE.name
        """
        for trace in self.traces():
            for precision in precisions:
                with self.subTest(f"{trace.name} {precision.__name__}"):
                    right = recompute(trace, policy, "50", precision)
                    self.agrees(trace, right)
                    if patch:
                        (module, _, name), wrong = patch[0].rpartition("."), patch[1]
                        module = importlib.import_module(module) if module else independent.replay
                        with mock.patch.object(module, name, wrong(getattr(module, name))):
                            dump = recompute(trace, policy, "50", precision, **options)
                    else:
                        dump = recompute(trace, policy, "50", precision, **options)
                    if change:
                        change(dump)
                    self.differs(trace, dump if kinds is None else dump.only(kinds), tensor)


ROW_COUNTS = {"identical": "identical", "reordered": "reordered", "other_cache": "other cache", "undecided": "undecided",
              "wrong_a": "wrong: A", "wrong_b": "wrong: B", "both_wrong": "both wrong"}


class RowsTest(CommandLineTest):
    def compare_rows(self, one, other, code, *arguments):
        """Runs a command that compares a.safetensors, `one`, with b.safetensors; returns (its report, whose counts fit, the result)."""
        one.write(self.folder / "a.safetensors")
        other.write(self.folder / "b.safetensors")
        result = self.run_program(*arguments, "--json", "out.json")
        self.assertEqual(result.returncode, code, f"{result.stdout}{result.stderr}")
        report = comparison(read(self.folder / "out.json"))
        self.assertEqual(report["verdict"], {PASS: "agrees", MISMATCH: "differs", INCONCLUSIVE: "no evidence"}[code])
        for item in report["tensors"]:
            self.assertEqual(sum(item[count] for count in ROW_COUNTS), item["rows"])
            for count, verdict in ROW_COUNTS.items():
                self.assertEqual(item[count], sum(row["verdict"] == verdict for row in item["differing"])
                                 if verdict != "identical" else item["rows"] - len(item["differing"]))
        return report, result
