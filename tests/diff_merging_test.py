"""`kvbound diff` of policies that share budgets out and of policies that merge.

usage: diff_merging_test.py KVBOUND      KVBOUND: the program's path
"""
import numpy as np

from support import kvbound_cli
from support.diffs import DiffTest

ALLOCATIONS = ("snapkv:window=8+pyramid", "snapkv:window=8+adakv", "h2o:window=8+adakv:safeguard=0",
               "tova:sinks=2+adakv:safeguard=0.5", "streaming-llm+pyramid:beta=3:shape=cosine",
               "snapkv:window=8+critical+adakv", "h2o:window=8+critical:alpha=adaptive+adakv:safeguard=0",
               "snapkv:window=8+theta-sweep+adakv:safeguard=0", "tova+theta-sweep+pyramid", "h2o:window=8+exact+adakv",
               "snapkv:window=8+obcache-joint:space=projected+adakv:safeguard=0", "snapkv:window=8+greedy+adakv",
               "tova+critical+pyramid:beta=2")


class Allocations(DiffTest):
    def test_the_references_dumps_agree_in_double_and_rounded_to_single_precision(self):
        for dtype, kind in (("F64", "mixed"), ("BF16", "power-law"), ("F32", "tied")):
            trace = self.trace(dtype, kind)
            for policy in ALLOCATIONS:
                with self.subTest(f"{dtype} {kind} {policy}"):
                    dump = self.reference(trace, policy, "30%")
                    self.agrees(trace, dump)
                    self.agrees(trace, dump.stored("F32"))

    def test_layers_have_budgets_of_their_own_and_so_do_heads(self):
        trace = self.trace("F64", layers=3)
        dump = self.reference(trace, "snapkv:window=8+pyramid", "40")
        sizes = [dump.array(layer, "kept_offsets") for layer in range(3)]
        self.assertEqual([list(offsets) for offsets in sizes], [[0, 72, 144], [0, 40, 80], [0, 8, 16]])
        dump = self.reference(trace, "h2o:window=8+adakv:safeguard=0", "40")
        sizes = [np.diff(dump.array(layer, "kept_offsets")) for layer in range(3)]
        self.assertTrue(all(sum(size) == 80 and min(size) >= 8 for size in sizes))
        self.assertTrue(any(size[0] != size[1] for size in sizes), "heads were to differ")
        self.agrees(trace, self.reference(trace, "snapkv:window=8+pyramid", "40", "--layers", "1-2"))

    def test_any_subset_of_the_tensors_may_be_there(self):
        trace = self.trace("BF16")
        dump = self.reference(trace, "h2o:window=8+adakv:safeguard=0", "40")
        for kind in dump.kinds():
            if kind != "kept":
                self.agrees(trace, dump.only({kind}))
        self.agrees(trace, dump.only({"kept", "kept_offsets", "left"}))
        self.refused(trace, dump.only(dump.kinds() - {"kept_offsets"}),
                     r"at byte \d+: layers\.0\.kept: needs layers\.0\.kept_offsets: with adakv KV heads keep different numbers")
        pyramid = self.reference(trace, "snapkv:window=8+pyramid", "40")
        self.agrees(trace, pyramid.only(pyramid.kinds() - {"kept_offsets"}))

    def test_budgets_shared_out_otherwise_are_found(self):
        for kind in ("mixed", "power-law"):
            trace = self.trace("F64", kind)
            for policy in ("h2o:window=8+adakv", "snapkv:window=8+adakv:safeguard=0", "tova+exact+adakv"):
                with self.subTest(f"{kind} {policy}"):
                    right = self.reference(trace, policy, "40")
                    sizes = [tuple(np.diff(right.array(layer, "kept_offsets"))) for layer in range(2)]
                    self.assertNotEqual(sizes, [(40, 40), (40, 40)])
                    host = policy[:policy.index("+adakv")]
                    report, _ = self.differs(trace, self.claiming(self.reference(trace, host, "40"), right), "kept_offsets")
                    kept = [item for item in report["tensors"] if item["tensor"] == "kept"]
                    self.assertTrue(all(item["verdict"] == "differs" for item, size in zip(kept, sizes) if size != (40, 40)))

    def test_another_pyramid_is_found(self):
        trace = self.trace("F32")
        dump = self.reference(trace, "snapkv:window=8+pyramid:shape=cosine:beta=2", "40")
        right = self.reference(trace, "snapkv:window=8+pyramid", "40")
        self.differs(trace, self.claiming(dump, right), "kept_offsets")

    @staticmethod
    def claiming(dump, other):
        """The dump as if it were of the other's policy."""
        dump.metadata["policy"] = other.metadata["policy"]
        return dump


if __name__ == "__main__":
    kvbound_cli.main()
