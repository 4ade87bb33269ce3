"""Merges that claim to be lossless, on a trace of a real model with one query head per KV head.

usage: lossless_merge_test.py KVBOUND      KVBOUND: the program's path
"""

import numpy as np

from support import kvbound_cli
from support.documents import read, replayed
from support.kvbound_cli import SAMPLES, CommandLineTest

MHA = SAMPLES / "pocket-mha.safetensors"
LAYERS, HEADS, STEPS = 4, 2, 64


class LosslessMerges(CommandLineTest):
    def changes(self, policy, budget="10%"):
        """What every merge of every layer and head changed, as a list, and the run's summary of its merges."""
        self.passes("replay", MHA, "--policy", policy, "--budget", budget, "--json", "out.json")
        run = replayed(read(self.folder / "out.json"))["runs"][0]
        return run["changes"], run

    def require_lossless(self, changes, label):
        for change in changes:
            self.assertLessEqual(change["merge_perturbation"], change["rounding"], label)
        changed = [change for change in changes if change["merge_perturbation"] > 0]
        slack = [change["rounding"] / change["merge_perturbation"] for change in changed]
        print(f"{label}: {len(changes)} merges; bound/change: least {min(slack):.3g}, median {np.median(slack):.3g}; "
              f"largest change {max(change['merge_perturbation'] for change in changes):.3g}")
        self.assertLess(max(change["rounding"] for change in changes), 1e-10, "or it would say little")

    def test_merges_by_current_scores_change_no_output_at_the_prompts_end_and_in_decoding(self):
        for host, merges in (("snapkv", 1), ("h2o", 1 + STEPS), ("tova", 1 + STEPS)):
            for key in ("min-norm", "zip:gqa=mean"):
                policy = f"{host}+keepkv:predict=current:threshold=none:key={key}"
                changes, summary = self.changes(policy)
                self.assertEqual(len(changes), LAYERS * HEADS * merges)
                self.assertEqual([summary["lossless"], summary["lossy"]], [len(changes), 0])
                self.assertEqual(summary["found_target"], 1)
                self.assertEqual(summary["zip_singular"] or 0, 0)
                self.require_lossless([change for change in changes], policy)

    def test_every_eighth_step_is_lossless_with_a_period_of_eight(self):
        for host in ("snapkv", "h2o"):
            policy = f"{host}+keepkv:threshold=none:period=8"
            changes, summary = self.changes(policy)
            rebuilt = [change for change in changes if change["rounding"] is not None]
            self.assertEqual(sorted({change["step"] for change in rebuilt}), list(range(7, STEPS, 8)))
            self.assertEqual([summary["lossless"], summary["lossy"]], [LAYERS * HEADS * STEPS // 8, 0])
            self.require_lossless(rebuilt, policy)
            others = [change["merge_perturbation"] for change in changes if change["rounding"] is None]
            self.assertGreater(max(others), 1e-3, "merges by moving averages are not lossless, nor claimed to be")

    def test_what_is_not_lossless_changes_outputs_by_far_more(self):
        for merge in ("keepkv:predict=current:key=convex", "convex:predict=current", "d2o", "kvmerger"):
            changes, summary = self.changes(f"h2o+{merge}:threshold=none")
            self.assertEqual([summary["lossless"], summary["lossy"]], [0, None])
            self.assertGreater(np.median([change["merge_perturbation"] for change in changes]), 1e-6, merge)


if __name__ == "__main__":
    kvbound_cli.main()
