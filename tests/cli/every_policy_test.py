"""Every host, score, selection, allocation and merging method on the reference and on the device kernels' emulation.

usage: every_policy_test.py KVBOUND [unittest's options]     KVBOUND: the program's path
KVBOUND_SHARE=K/N in the environment: only the K-th of every N policies
"""

from support import kvbound_cli
from support.documents import read, replayed
from support.kvbound_cli import SAMPLES, CommandLineTest
from support.share import share_of

HOSTS = "snapkv", "h2o", "tova"
SCORES = "", "+obcache-value", "+obcache-key", "+obcache-joint", "+exact"
COMPONENTS = ("critical", "theta-sweep", "greedy", "adakv", "pyramid", "keepkv", "keepkv:threshold=none",
              "keepkv:key=zip:gqa=mean", "keepkv:period=8", "keepkv:order=merge-first", "convex", "d2o", "cam", "kvmerger")
POLICIES = (*(host + score for host in HOSTS for score in SCORES), "streaming-llm", "random",
            *(f"snapkv+{component}" for component in COMPONENTS), "h2o+keepkv", "tova+keepkv",
            "random+keepkv", "random+pyramid")
# of one policy: the emulation of snapkv+greedy takes minutes, and longer beside other programs
MOST_SECONDS = 1200
CHOICES = "kept", "evicted", "merged_into", "target_of", "rebuilt_target_of"


class EveryPolicy(CommandLineTest):
    def require_agreement(self, trace, *options):
        """The same entries are kept, evicted and merged at every step but for near ties, no number is outside its bound, and
        the numbers of every run are judged."""
        for policy in share_of(POLICIES):
            with self.subTest(policy):
                self.passes("replay", trace, "--policy", policy, "--backend", "reference,emulated", "--json", "out.json", *options,
                            timeout=MOST_SECONDS)
                run = replayed(read(self.folder / "out.json"))
                (agreement,) = (run["agreement"] for run in run["runs"] if run["backend"] == "emulated")
                found = {entry["tensor"] for entry in agreement}
                self.assertIn("output", found)
                self.assertEqual("evicted" in found, not policy.startswith(("snapkv", "random")))
                for entry in agreement:
                    self.assertEqual(entry["outside"], 0, entry)
                    if entry["tensor"] in CHOICES:
                        self.assertEqual((entry["judged"], entry["undecided"]), (entry["elements"], 0), entry)

    def test_every_policy_agrees_on_a_recorded_model(self):
        self.require_agreement(SAMPLES / "pocket-gqa.safetensors", "--budget", "20%")

    def test_every_policy_agrees_on_a_generated_model_for_every_storage_and_nine_heads_on_three(self):
        for dtype, head_dim in (("F32", 8), ("F16", 64), ("BF16", 8), ("BF16", 64)):
            with self.subTest(dtype=dtype, head_dim=head_dim):
                trace = self.generate(f"{dtype}-{head_dim}.safetensors", "--kind", "mixed", "--dtype", dtype, "--tokens", 110,
                                      "--decode", 10, "--layers", 2, "--query-heads", 9, "--kv-heads", 3, "--head-dim",
                                      head_dim, "--model-dim", 48)
                self.require_agreement(trace, "--budget", "44")


if __name__ == "__main__":
    kvbound_cli.main()
