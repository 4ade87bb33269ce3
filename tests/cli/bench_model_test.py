"""kvbound bench --backend emulated --model: what is counted and predicted instead of timed.

usage: bench_model_test.py KVBOUND      KVBOUND: the program's path
"""
import json
import subprocess
import sys

from support import kvbound_cli
from support.kvbound_cli import REPOSITORY, CommandLineTest
from support.report_documents import BENCH_MODEL

MODEL = "bench", "--backend", "emulated", "--shape", "pocket:256", "--quiet"
HEADS, HEAD_DIM, KEPT = 2, 64, 51  # of pocket; 20 % of 256 tokens


class Model(CommandLineTest):
    def document(self, *arguments, gpu="h100"):
        text = self.passes(*MODEL, "--model", gpu, *arguments, "--json", "out.json")
        return json.loads((self.folder / "out.json").read_text("utf-8")), text

    def test_a_compaction_reads_and_writes_the_kept_rows_and_nothing_else(self):
        document, _ = self.document("compact")
        launches = document["operations"][0]["launches"]
        bytes_of = [launch["bytes_written"] for launch in launches]
        self.assertEqual(sum(bytes_of), 2 * HEADS * KEPT * HEAD_DIM * 2, "keys and values, BF16")
        for launch in launches:
            counts = launch["counts"]
            self.assertEqual(counts["device_loads"]["16"], counts["device_stores"]["16"])
            self.assertGreaterEqual(counts["useful_bytes"], 0.95 * 32 * counts["sectors"])
            self.assertEqual(counts["wavefronts"], 0)

    def test_the_recorded_document_for_tests_of_pages_has_the_fields_of_a_new_one(self):
        def fields(value):
            if isinstance(value, dict):
                return {name: fields(each) for name, each in value.items()}
            return [fields(each) for each in value[:1]] if isinstance(value, list) else type(value).__name__
        document, _ = self.document("attention", "select-top")
        self.assertEqual(fields(document), fields(json.loads(BENCH_MODEL.read_text("utf-8"))))

    def test_every_line_says_that_it_is_of_a_model(self):
        _, text = self.document("compact", "step", "--policy", "h2o")
        head, operations = text.split("\n\n", 1)
        self.assertIn("a model of NVIDIA H100 SXM\nNothing here was measured", head)
        self.assertEqual([line for line in operations.splitlines() if "model" not in line], [])

    def test_counts_are_the_same_in_every_run_whatever_the_threads(self):
        runs = [self.document("attention", "select-critical", "--threads", threads)[0] for threads in ("1", "2", "2")]
        self.assertEqual(runs[0], runs[1])
        self.assertEqual(runs[1], runs[2])

    def test_a_gpu_with_more_bandwidth_takes_less_time_for_the_same_counts(self):
        counted = {}
        for gpu in ("h100", "h200"):
            document, _ = self.document("key-norms", gpu=gpu)
            launch, = document["operations"][0]["launches"]
            counted[gpu] = launch["counts"], launch["model"]["seconds_by_resource"]["memory"]
        self.assertEqual(counted["h100"][0], counted["h200"][0])
        self.assertAlmostEqual(counted["h100"][1] / counted["h200"][1], 4.22 / 3.0, places=12)

    def test_a_step_is_set_against_attention_over_the_same_cache(self):
        document, text = self.document("step", "--policy", "h2o,streaming-llm")
        for item, policy in zip(document["operations"], ("h2o", "streaming-llm"), strict=True):
            kernels = [launch["kernel"] for launch in item["launches"]]
            self.assertTrue(any("attention_portable_kernel" in kernel or "attention_mma_kernel" in kernel for kernel in kernels), kernels)
            self.assertEqual(item["requests"]["launches"], len(kernels))
            self.assertGreater(item["predicted_seconds"], item["attention_seconds"])
            self.assertIn(f"step, {item['policy']}: model: ", text)
            self.assertTrue(item["policy"].startswith(policy), item["policy"])

    def test_the_script_makes_a_table_of_predictions_for_several_gpus(self):
        for gpu in ("h100", "h200"):
            self.document("compact", "step", "--policy", "h2o", gpu=gpu)
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
