"""kvbound bench --backend emulated --model: what is counted and predicted instead of timed.

usage: bench_model_test.py KVBOUND      KVBOUND: the program's path
"""
import re
import subprocess
import sys

from support import kvbound_cli
from support.documents import parts, read
from support.kvbound_cli import REPOSITORY, USAGE, CommandLineTest
from support.report_documents import BENCH_MODEL

MODEL = "bench", "--backend", "emulated", "--shape", "pocket:256", "--quiet"
HEADS, HEAD_DIM, KEPT = 2, 64, 51  # of pocket; 20 % of 256 tokens


class Model(CommandLineTest):
    def part(self, *arguments, gpu="h100"):
        text = self.passes(*MODEL, "--model", gpu, *arguments, "--json", "out.json")
        return parts(read(self.folder / "out.json"))[0], text

    def test_a_compaction_reads_and_writes_the_kept_rows_and_nothing_else(self):
        part, _ = self.part("compact")
        self.assertEqual(part.column("launches", "bytes_written").sum(), 2 * HEADS * KEPT * HEAD_DIM * 2, "keys and values, BF16")
        accesses = {(row["access"], row["width"]): row["accesses"] for row in part.rows("accesses")}
        self.assertEqual(accesses["device_loads", 16], accesses["device_stores", 16])
        self.assertEqual(part.size("launch"), 1)
        for launch in part.rows("launches"):
            self.assertGreaterEqual(launch["used"], 0.95)
            self.assertAlmostEqual(launch["used"], launch["useful_bytes"] / (32 * launch["sectors"]), places=12)
            self.assertEqual(launch["wavefronts"], 0)

    def test_the_recorded_document_for_tests_of_pages_has_the_fields_of_a_new_one(self):
        def fields(value):
            if isinstance(value, dict):
                return {name: fields(each) for name, each in value.items()}
            return type(value).__name__
        self.part("attention", "select-top")
        self.assertEqual(fields(read(self.folder / "out.json")), fields(read(BENCH_MODEL)))

    def test_tables_say_that_nothing_was_measured_and_join_launches_of_equal_numbers(self):
        part, text = self.part("compact", "step", "--policy", "h2o", "--plot")
        head, operations, kernels, _ = text.split("\n\n", 3)
        self.assertIn("a model of NVIDIA H100 SXM\nNothing here was measured", head)
        self.assertRegex(operations, r"\Aoperation +policy +predicted +limiter .*\ncompact +- ")
        lines = kernels.splitlines()
        self.assertEqual(lines[0].split()[:4], ["operation", "policy", "kernel", "times"])
        self.assertEqual(sum(int(re.split("  +", line)[3]) for line in lines[1:] if line.startswith("step")),
                         sum(row["operation"] == "step" for row in part.rows("launches")))
        self.assertIn("floor_seconds", self.passes("figures", "bench-model"))
        self.refuses(USAGE, "--columns: no column 'verdict'", *MODEL, "--model", "h100", "compact", "--columns", "verdict")

    def test_counts_are_the_same_in_every_run_whatever_the_threads(self):
        runs = []
        for threads in ("1", "2", "2"):
            self.part("attention", "select-critical", "--threads", threads)
            runs.append(read(self.folder / "out.json")["parts"])
        self.assertEqual(runs[0], runs[1])
        self.assertEqual(runs[1], runs[2])

    def test_a_gpu_with_more_bandwidth_takes_less_time_for_the_same_counts(self):
        h100, h200 = (self.part("key-norms", gpu=gpu)[0] for gpu in ("h100", "h200"))
        for cube in ("instructions", "accesses"):
            self.assertEqual(h100.rows(cube), h200.rows(cube))
        memory = h100.axes["resource"]["resource"].index("memory")
        seconds = [part.column("resources", "seconds")[0, memory] for part in (h100, h200)]
        self.assertAlmostEqual(seconds[0] / seconds[1], 4.22 / 3.0, places=12)

    def test_a_step_is_set_against_attention_over_the_same_cache(self):
        part, text = self.part("step", "--policy", "h2o,streaming-llm")
        for item, policy in zip(part.rows("operations"), ("h2o", "streaming-llm"), strict=True):
            kernels = [launch["kernel"] for launch in part.rows("launches") if launch["policy"] == item["policy"]]
            self.assertTrue(any(re.search("attention_(portable|mma|tma)_kernel", kernel) for kernel in kernels), kernels)
            self.assertEqual(item["launches"], len(kernels))
            self.assertGreater(item["predicted_seconds"], item["attention_seconds"])
            self.assertRegex(text, rf"(?m)^step +{item['label']} ")
            self.assertTrue(item["policy"].startswith(policy), item["policy"])

    def test_the_script_makes_a_table_of_predictions_for_several_gpus(self):
        for gpu in ("h100", "h200"):
            self.part("compact", "step", "--policy", "h2o", gpu=gpu)
            (self.folder / "out.json").rename(self.folder / f"{gpu}.json")
        script = REPOSITORY / "cuda" / "scripts" / "prediction_table.py"
        made = subprocess.run([sys.executable, script, "h100.json", "h200.json"], cwd=self.folder, check=True, capture_output=True,
                              text=True).stdout.splitlines()
        self.assertIn("| NVIDIA H100 SXM | NVIDIA H200 SXM |", made[0])
        self.assertEqual({line.count("|") for line in made}, {made[0].count("|")})
        self.assertRegex(made[2], r"^\| \*\*compact\*\* .*of the floor's rate \|$")
        self.assertRegex(made[3], r"^\| `compact_kernel<8>` \| 53.1 kB \|")
        step = [line for line in made if line.startswith("| **step")]
        self.assertEqual(len(step), 1)
        self.assertIn("times attention", step[0])


if __name__ == "__main__":
    kvbound_cli.main()
