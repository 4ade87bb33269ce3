"""Results do not depend on the number of threads, to the last bit.

usage: thread_identity_test.py KVBOUND      KVBOUND: the program's path
"""
import json
import os

from support import kvbound_cli
from support.documents import provenance
from support.kvbound_cli import INCONCLUSIVE, SAMPLES, CommandLineTest, contents

THREADS = (1, 2, 3, 7)
POLICIES = ",".join((
    "snapkv", "snapkv:pool=1+critical:alpha=adaptive", "snapkv+critical:norm=l2", "snapkv+theta-sweep",
    "snapkv+exact", "snapkv+obcache-joint:space=projected", "snapkv+greedy", "h2o:recent=8", "h2o:recent=8+obcache-key",
    "h2o:sinks=4:recent=8+critical:alpha=adaptive", "tova+exact:space=projected", "tova+obcache-value", "tova+theta-sweep",
    "streaming-llm", "random:seed=1:window=16"))
MERGING = ",".join((
    "snapkv+keepkv:threshold=0.3", "snapkv+keepkv-paper:threshold=none", "snapkv+keepkv:order=merge-first:threshold=0.3",
    "h2o:recent=8+keepkv:threshold=none:predict=current", "tova+exact:space=projected+adakv+keepkv:threshold=0.2:period=4",
    "h2o:recent=8+critical+convex:threshold=none:gqa=mean", "tova+d2o:threshold=0.3", "h2o:recent=8+kvmerger:threshold=none",
    "tova+cam:neighbours=5", "streaming-llm+keepkv:threshold=none:scores=raw", "snapkv+pyramid+keepkv:threshold=0.3",
    "random:window=16+keepkv:threshold=none"))


def without_what_may_differ(document):
    """Removes the thread count, and of a replay the times, from a report; a missing one raises KeyError. Returns
    (thread count, report)."""
    threads = provenance(document).pop("threads")
    for part in document["parts"] if document["command"] == "replay" else ():
        del part["cubes"]["times"]["columns"]["seconds"]
        for name in ("compress_seconds", "step_seconds"):
            del part["cubes"]["runs"]["columns"][name]
    return threads, document


class ThreadIdentity(CommandLineTest):
    def outputs(self, threads, trace, budgets, *options, policies=POLICIES, environment=None):
        """Everything that a replay writes (standard output, JSON report, files), without the report's thread count and
        times."""
        folder = self.folder / f"threads-{threads}"
        folder.mkdir()
        count = () if environment else ("--threads", threads)
        stdout = self.passes("replay", trace, "--policy", policies, "--budget", budgets, "--json", folder / "out.json",
                             "--csv", folder / "out.csv", "--dump", folder / "dumps/", "--merge-bounds", *count, *options,
                             env=environment)
        files = contents(folder)
        said, report = without_what_may_differ(json.loads(files.pop("out.json")))
        self.assertEqual(said, threads, "the report is to name the threads that worked")
        return stdout, report, files

    def require_identity(self, trace, budgets, *options, policies=POLICIES):
        first = self.outputs(THREADS[0], trace, budgets, *options, policies=policies)
        self.assertEqual(len(first[2]), 2 + len(policies.split(",")) * len(budgets.split(",")))
        for threads in THREADS[1:]:
            other = self.outputs(threads, trace, budgets, *options, policies=policies)
            self.assertEqual(other[:2], first[:2])
            self.assertEqual(sorted(other[2]), sorted(first[2]))
            self.assertEqual([name for name in first[2] if other[2][name] != first[2][name]], [],
                             f"differs with {threads} threads")

    def test_a_sample_gives_the_same_bits_with_any_number_of_threads(self):
        self.require_identity(SAMPLES / "pocket-gqa.safetensors", "5%,20%", "--layers", "1-2")

    def test_a_generated_trace_gives_the_same_bits_with_any_number_of_threads(self):
        trace = self.generate("trace.safetensors", "--kind", "mixed", "--dtype", "BF16", "--query-heads", 10,
                              "--kv-heads", 5, "--head-dim", 33, "--model-dim", 70, "--tokens", 777, "--decode", 37,
                              "--layers", 2)
        self.require_identity(trace, "32,50%")

    def test_merging_gives_the_same_bits_with_any_number_of_threads(self):
        trace = self.generate("merging.safetensors", "--kind", "mixed", "--dtype", "F32", "--query-heads", 10, "--kv-heads", 5,
                              "--head-dim", 9, "--model-dim", 20, "--tokens", 300, "--decode", 11, "--layers", 3)
        self.require_identity(trace, "25%", policies=MERGING)

    def test_the_environment_may_set_the_number_of_threads(self):
        trace = SAMPLES / "pocket-mha.safetensors"
        first = self.outputs(1, trace, "12.5%")
        self.assertEqual(self.outputs(3, trace, "12.5%", environment={**os.environ, "OMP_NUM_THREADS": "3"}), first)

    def test_generated_traces_have_the_same_bits_with_any_number_of_threads(self):
        for kind in ("power-law", "mixed", "tied"):
            files = {
                self.generate(f"{kind}-{threads}", "--kind", kind, "--tokens", 1000, "--threads", threads).read_bytes()
                for threads in THREADS
            }
            self.assertEqual(len(files), 1, kind)

    def test_inspect_says_the_same_with_any_number_of_threads(self):
        said = []
        for threads in THREADS:
            stdout = self.passes("inspect", SAMPLES / "pocket-gqa.safetensors", "--verify", "--threads", threads,
                                 "--json", "out")
            said.append((stdout, without_what_may_differ(json.loads((self.folder / "out").read_text()))[1]))
        self.assertEqual([other for other in said if other != said[0]], [])
        trace = self.generate("trace", "--kind", "flat", "--tokens", 100)
        self.passes("inspect", trace, "--verify", "--threads", 7, code=INCONCLUSIVE)


if __name__ == "__main__":
    kvbound_cli.main()
