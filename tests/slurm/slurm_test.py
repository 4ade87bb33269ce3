"""Sweeps on a real Slurm: the same bytes as one process gives, also when nodes and daemons are killed under way."""
import json
import signal
import sys
import time

from slurm.cluster import Cluster, missing_programs
from support import kvbound_cli
from support.kvbound_cli import INCONCLUSIVE, PASS, CommandLineTest

POLICIES = ["snapkv:window=4", "snapkv:window=4+critical", "snapkv:window=4+critical:alpha=adaptive", "snapkv:window=4+exact",
            "snapkv:window=4+theta-sweep", "snapkv:window=4+keepkv", "snapkv:window=4+adakv", "h2o:window=4", "tova", "streaming-llm",
            "random:window=4", "h2o:window=4+keepkv"]
BUDGETS = ["10%", "20%", "30%", "40%", "50%"]


def without_times_and_hosts(document):
    if isinstance(document, dict):
        return {key: without_times_and_hosts(value) for key, value in document.items()
                if key not in ("seconds", "times", "device", "threads")}
    return [without_times_and_hosts(item) for item in document] if isinstance(document, list) else document


class Slurm(CommandLineTest):
    """Three traces through 12 policies at 5 budgets."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster().__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()

    def setUp(self):
        super().setUp()
        self.cluster.recover()
        for name, layers in (("a", 12), ("b", 9), ("c", 7)):
            self.generate(f"{name}.safetensors", "--kind", "mixed", "--tokens", "512", "--decode", "8", "--layers", str(layers),
                          "--query-heads", "8", "--kv-heads", "2", "--head-dim", "32", "--model-dim", "64")
        plan = {"format": "kvbound-sweep-plan", "version": 1, "traces": ["?.safetensors"], "policies": POLICIES, "budgets": BUDGETS,
                "base": POLICIES[0]}
        (self.folder / "plan.json").write_text(json.dumps(plan))
        self.items = 28

    def on_cluster(self, *arguments, code=PASS):
        return self.passes(*arguments, code=code, env=self.cluster.environment)

    def results(self, out):
        return sum(not path.name.startswith(".") for path in (self.folder / out / "results").glob("*/*"))

    def gathered(self, out):
        """The results of a sweep as text, without times and hosts."""
        self.passes("gather", out, "--json", f"{out}.json", "--quiet")
        return json.dumps(without_times_and_hosts(json.loads((self.folder / f"{out}.json").read_text())), indent=2)

    def logs(self, out):
        return "\n".join(path.read_text() for path in (self.folder / out / "slurm").glob("*.log"))

    def wait_for(self, condition, what):
        self.cluster.wait_for(condition, what, seconds=180)

    def test_results_are_those_of_processes_though_a_node_dies_and_all_are_resumed(self):
        self.passes("sweep", "plan.json", "--out", "one", "--quiet")
        killed = self.start("sweep", "plan.json", "--out", "two", "--jobs", "2", "--quiet")
        self.wait_for(lambda: self.results("two") >= 3, "results of two processes")
        killed.kill()
        killed.communicate()
        self.assertLess(self.results("two"), self.items)
        self.passes("sweep", "--out", "two", "--jobs", "2", "--quiet")

        said = self.on_cluster("sweep", "plan.json", "--out", "three", "--engine", "slurm", "--jobs", "3", "--json", "behind.json")
        self.assertRegex(said, r"\njob [0-9]+: 3 tasks for 28 items; logs in three/slurm\n\Z")
        self.wait_for(lambda: self.results("three") >= 3, "results of Slurm's tasks")
        self.assertLess(self.results("three"), self.items)
        self.cluster.kill_node("node1")
        self.wait_for(lambda: "down" in " ".join(self.cluster.states()), "node that is down")
        self.cluster.start_node("node1")
        self.wait_for(lambda: (self.folder / "behind.json").exists(), f"gathered document\n{self.logs('three')}")
        self.assertEqual(self.results("three"), self.items)

        self.passes("replay", *(f"{name}.safetensors" for name in "abc"), "--policy", ",".join(POLICIES), "--budget", ",".join(BUDGETS),
                    "--base", POLICIES[0], "--json", "replay.json")
        expected = json.dumps(without_times_and_hosts(json.loads((self.folder / "replay.json").read_text())), indent=2)
        for out in ("one", "two", "three"):
            self.assertEqual(self.gathered(out), expected, out)
        behind = json.loads((self.folder / "behind.json").read_text())
        self.assertEqual(json.dumps(without_times_and_hosts(behind), indent=2), expected)

    def test_a_sweep_whose_array_was_cancelled_goes_on(self):
        said = self.on_cluster("sweep", "plan.json", "--out", "study", "--engine", "slurm", "--jobs", "3")
        job = said.split("job ")[1].split(":")[0]
        self.wait_for(lambda: self.results("study") >= 2, "results")
        self.cluster.run("scancel", job)
        self.wait_for(lambda: not self.cluster.run("squeue", "--noheader"), "end of the array")
        before = self.results("study")
        if before < self.items:
            self.passes("gather", "study", code=INCONCLUSIVE)
        said = self.on_cluster("sweep", "plan.json", "--out", "study", "--engine", "slurm", "--jobs", "2", "--wait")
        self.assertIn(f"for {self.items - before} items", said)
        self.assertEqual(self.results("study"), self.items)

    def test_the_controller_may_be_killed_under_way(self):
        process = self.start("sweep", "plan.json", "--out", "study", "--engine", "slurm", "--jobs", "3", env=self.cluster.environment)
        said, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, PASS, said + errors)
        self.wait_for(lambda: self.results("study") >= 1, "results")
        self.cluster.stop("slurmctld", signal.SIGKILL)
        time.sleep(1)
        self.cluster.start("slurmctld", "-D")
        self.wait_for(lambda: self.results("study") == self.items, f"all results\n{self.logs('study')}")
        self.passes("gather", "study", "--quiet")

    def test_what_sbatch_says_against_a_job_is_said(self):
        self.passes("sweep", "plan.json", "--out", "study", "--list")
        result = self.run_program("sweep", "plan.json", "--out", "study", "--engine", "slurm", "--sbatch", "--partition=none",
                                  env=self.cluster.environment)
        self.assertEqual(result.returncode, kvbound_cli.WORLD)
        self.assertRegex(result.stderr, r"\Akvbound: sbatch failed \(1\): .*invalid partition.*\n\Z")


if __name__ == "__main__":
    if missing := missing_programs():
        print(f"not installed: {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge")
        sys.exit(77)
    kvbound_cli.main()
