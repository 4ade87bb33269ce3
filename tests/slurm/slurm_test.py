"""Sweeps on a real Slurm: the same bytes as one process gives, also when nodes and daemons are killed under way."""
import json
import signal
import sys
import time

from slurm.cluster import Cluster, missing_programs
from support import kvbound_cli
from support.documents import without_times_and_hosts
from support.kvbound_cli import INCONCLUSIVE, PASS, CommandLineTest

POLICIES = ["snapkv:window=4", "snapkv:window=4+critical", "snapkv:window=4+critical:alpha=adaptive", "snapkv:window=4+exact",
            "snapkv:window=4+theta-sweep", "snapkv:window=4+keepkv", "snapkv:window=4+adakv", "h2o:window=4", "tova", "streaming-llm",
            "random:window=4", "h2o:window=4+keepkv"]
BUDGETS = ["10%", "20%", "30%", "40%", "50%"]


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
        return without_times_and_hosts(self.folder / f"{out}.json")

    def logs(self, out):
        return "\n".join(path.read_text() for path in (self.folder / out / "slurm").glob("*.log"))

    def wait_for(self, condition, what):
        self.cluster.wait_for(condition, what, seconds=600)

    def kill_and_resume(self, out, jobs):
        """A sweep by processes whose driver is killed under way, and which is called again."""
        process = self.start("sweep", "plan.json", "--out", out, "--jobs", jobs, "--quiet")
        self.wait_for(lambda: self.results(out) >= 3, "results of processes")
        process.kill()
        process.communicate()
        self.assertLess(self.results(out), self.items)
        self.passes("sweep", "--out", out, "--jobs", jobs, "--quiet")

    def submit(self, *arguments):
        """Submits a sweep in the folder `three`; returns its job."""
        said = self.on_cluster("sweep", "plan.json", "--out", "three", "--engine", "slurm", "--jobs", "3", *arguments)
        self.assertRegex(said, r"\njob [0-9]+: 3 tasks for [0-9]+ items; logs in three/slurm\n\Z")
        return said.split("job ")[1].split(":")[0]

    def test_results_are_equal_by_one_process_two_and_three_nodes_of_which_one_dies_each_killed_and_resumed(self):
        self.kill_and_resume("one", "1")
        self.kill_and_resume("two", "2")

        job = self.submit()
        self.wait_for(lambda: self.results("three") >= 2, "results of Slurm's tasks")
        self.cluster.run("scancel", job)
        self.wait_for(lambda: not self.cluster.run("squeue", "--noheader"), "end of the array")
        self.assertLess(self.results("three"), self.items)
        before = self.results("three")
        self.submit("--json", "behind.json")
        self.wait_for(lambda: self.results("three") >= before + 2, "more results")
        self.assertLess(self.results("three"), self.items)
        self.cluster.kill_node("node1")
        self.wait_for(lambda: "down" in " ".join(self.cluster.states()), "node that is down")
        self.cluster.start_node("node1")
        self.wait_for(lambda: (self.folder / "behind.json").exists(), f"gathered document\n{self.logs('three')}")
        self.assertEqual(self.results("three"), self.items)

        self.passes("replay", *(f"{name}.safetensors" for name in "abc"), "--policy", ",".join(POLICIES), "--budget", ",".join(BUDGETS),
                    "--base", POLICIES[0], "--json", "replay.json")
        expected = without_times_and_hosts(self.folder / "replay.json")
        for out in ("one", "two", "three"):
            self.assertEqual(self.gathered(out), expected, out)
        self.assertEqual(without_times_and_hosts(self.folder / "behind.json"), expected)

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
        process = self.start("sweep", "plan.json", "--out", "study", "--engine", "slurm", "--jobs", "3", "--sbatch", "--begin=now+10",
                             env=self.cluster.environment)
        said, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, PASS, said + errors)
        # a job that the controller has not written to disk is lost with it, whoever submitted it
        self.wait_for(lambda: self.cluster.has_saved(str(self.folder)), "saved job")
        self.wait_for(lambda: self.results("study") >= 1, "results")
        self.assertLess(self.results("study"), self.items)
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
        sys.exit(f"not installed: {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge")
    kvbound_cli.main()
