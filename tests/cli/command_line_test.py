"""What the command line promises: help texts, reports that agree with each other, subsets, names, terminals.

usage: command_line_test.py KVBOUND      KVBOUND: the program's path
"""
import csv
import hashlib
import io
import json
import math
import os
import pty
import re
import subprocess
import time
from pathlib import Path

import numpy as np

import independent.replay
from support import kvbound_cli
from support.documents import inspected, parts, read, replayed
from support.kvbound_cli import INCONCLUSIVE, MISMATCH, PASS, SAMPLES, USAGE, WORLD, CommandLineTest, TraceFile
from support.tiny_model import TinyModel

CRITICAL = "snapkv:window=4:pool=7+critical:alpha=0.5:epsilon=1e-4:gqa=mean-of-products:norm=l1"
OPTIONS = {"policies": ("help",), "help": ("help",),
           "replay": ("policy", "budget", "base", "backend", "heads", "layers", "steps", "recall", "merge-bounds", "centred-bound", "times", "page-size", "columns",
                      "json", "csv", "dump", "plot", "markdown", "threads", "header-limit", "quiet", "help"),
           "recall": ("k", "windows", "recent", "layers", "columns", "json", "csv", "plot", "markdown", "threads", "header-limit", "quiet",
                      "help"),
           "predict": ("ema", "window", "policy", "budget", "top", "head-scores", "needle", "shares", "layers", "steps", "columns", "json", "csv", "plot", "markdown", "threads",
                       "header-limit", "quiet", "help"),
           "inspect": ("verify", "heads", "sinks", "window", "pool", "budget", "layers", "columns", "json", "csv", "plot",
                       "markdown", "threads", "header-limit", "quiet", "help"),
           "record": ("tokens", "bytes", "prompt", "steps", "window", "layers", "dtype", "threads", "quiet", "help"),
           "import": ("list", "call", "request", "steps", "dump", "plan", "kv-layout", "sm-scale", "causal", "quiet", "help"),
           "generate": ("kind", "tokens", "decode", "layers", "query-heads", "kv-heads", "head-dim", "model-dim",
                        "window-queries", "dtype", "seed", "threads", "quiet", "help"),
           "prove": ("cases", "seed", "list", "search", "replay", "columns", "json", "csv", "plot", "markdown", "threads", "quiet", "help"),
           "report": ("out", "quiet", "help"),
           "bench": ("backend", "shape", "policy", "repeats", "blas-core", "model", "prompt", "layers", "requests", "seed", "peer", "columns", "json", "csv",
                     "plot", "markdown", "threads", "quiet", "help")}


class Help(CommandLineTest):
    def test_help_is_there_for_the_program_and_names_every_subcommand(self):
        for option in ("--help", "-h"):
            help_text = self.passes(option)
            for word in (*OPTIONS, "--version", "Exit codes"):
                self.assertIn(word, help_text)

    def test_help_of_a_subcommand_names_every_option_and_no_other(self):
        for command, options in OPTIONS.items():
            for arguments in ((command, "--help"), (command, "-h"), (command, "some", "thing", "--help")):
                help_text = self.passes(*arguments)
                listed = re.findall(r"^  (?:-\w \[ )?--([a-z-]+)", help_text, re.MULTILINE)
                self.assertEqual(sorted(listed), sorted(options), command)

    def test_the_version_is_one_line_with_the_revision(self):
        self.assertRegex(self.passes("--version"), r"\Akvbound \d+\.\d+\.\d+ \(\S+\)\n\Z")


class Reports(CommandLineTest):
    def replay(self, *arguments, code=0):
        """Replays with every output; returns the JSON report, the CSV's rows, {dump's name: tensors}, and the printed
        table."""
        table = self.passes("replay", *arguments, "--json", "out.json", "--csv", "out.csv", "--dump", "dumps/",
                            code=code)
        document = read(self.folder / "out.json")
        rows = list(csv.DictReader(io.StringIO((self.folder / "out.csv").read_text()), strict=True))
        dumps = {
            path.name: independent.replay.open_tensors(path)[1]
            for path in (self.folder / "dumps").rglob("*.safetensors")
        }
        dumps = {name: {tensor: independent.replay.read_tensor(entry) for tensor, entry in tensors.items()}
                 for name, tensors in dumps.items()}
        return document, rows, dumps, table

    def test_csv_and_json_agree_with_the_dump(self):
        trace = TraceFile()
        trace.write(self.folder / "trace.safetensors")
        document, rows, dumps, _ = self.replay("trace.safetensors", "--policy", "snapkv:window=4+critical", "--budget",
                                               "8")
        (tensors,), (run,) = dumps.values(), replayed(document)["runs"]
        self.assertEqual(len(rows), 2 * 3 * (4 + 1))
        for row in rows:
            layer, step = int(row["layer"]), int(row["step"])
            self.assertEqual([row[name] for name in ("trace", "policy", "budget", "entries", "backend")],
                             ["trace.safetensors", CRITICAL, "8", "8", "reference"])
            if row["head"] == "all":
                self.assertEqual(float(row["layer_perturbation"]), tensors[f"layers.{layer}.layer_perturbation"][step])
                self.assertEqual(float(row["layer_relative"]), run["layers"][layer]["layer_relative"][step])
                self.assertEqual(
                    {row[name] for name in ("perturbation", "relative", "bound", "tightness", "kept_mass", "stage_one_mass", "violations")},
                    {""})
                continue
            figures = {
                name: tensors[f"layers.{layer}.{name}"][step, int(row["head"])]
                for name in ("perturbation", "bound", "kept_mass")
            }
            self.assertEqual({name: float(row[name]) for name in figures}, figures)
            self.assertEqual(float(row["tightness"]), figures["perturbation"] / figures["bound"])
            self.assertEqual(row["violations"], "0")
            self.assertLessEqual(float(row["stage_one_mass"]), figures["kept_mass"] + 1e-12)
        for name in ("perturbation", "bound", "kept_mass"):
            stacked = np.stack([tensors[f"layers.{layer}.{name}"] for layer in range(2)])
            for layer in range(2):
                np.testing.assert_allclose(run["layers"][layer][name], stacked[layer].mean(axis=0), rtol=1e-14)
            self.assertTrue(math.isclose(run[name], stacked.mean(), rel_tol=1e-14))
        heads = [row for row in rows if row["head"] != "all"]
        for name in ("relative", "tightness", "stage_one_mass"):
            mean = sum(float(row[name]) for row in heads) / len(heads)
            self.assertTrue(math.isclose(run[name], mean, rel_tol=1e-14), name)
        tightest = max(heads, key=lambda row: float(row["tightness"]))
        self.assertEqual(run["max_tightness"], float(tightest["tightness"]))
        self.assertEqual(run["tightest"], "layer {layer}, step {step}, query head {head}".format_map(tightest))
        low = sum(float(row["stage_one_mass"]) <= 0.5 for row in heads)
        self.assertEqual(run["stage_one_low"], low / len(heads))

    def test_csv_and_json_and_the_dump_agree_on_merges(self):
        trace = TraceFile(decode_tokens=5)
        trace.write(self.folder / "trace.safetensors")
        document, rows, dumps, _ = self.replay("trace.safetensors", "--policy",
                                               "h2o:window=4:recent=2+keepkv:threshold=none", "--budget", "8",
                                               "--merge-bounds")
        (tensors,), (run,) = dumps.values(), replayed(document)["runs"]
        heads = [row for row in rows if row["head"] != "all"]
        self.assertEqual([run["leaving"], run["merged"], run["found_target"]], [4 * (16 + 5)] * 2 + [1])
        self.assertNotIn("layers.0.bound", tensors)
        for name in ("centred_bound", "later_bound", "later_shared_bound"):
            self.assertEqual({row[name] for row in heads}, {""}, name)
        self.assertEqual({row["violations"] for row in heads}, {"0"})
        self.assertTrue(all(float(row["perturbation"]) <= float(row["bound"]) for row in heads))
        self.assertTrue(math.isclose(run["max_tightness"], max(float(row["tightness"]) for row in heads)))
        self.assertEqual(run["violations"], 0)
        changes = run["changes"]
        self.assertEqual(len(changes), 2 * 4 * (1 + 5), "at the prompt's end and at every step, for every query head")
        self.assertEqual({change["rounding"] for change in changes}, {None}, "a moving average is not lossless")
        self.assertTrue(math.isclose(run["merge_perturbation"], np.mean([change["merge_perturbation"] for change in changes])))
        self.assertEqual(run["max_merge_perturbation"], max(change["merge_perturbation"] for change in changes))
        self.assertEqual(sorted(change["merge_perturbation"] for change in changes if change["step"] >= 0),
                         sorted(float(row["merge_perturbation"]) for row in heads))
        for name in ("later_perturbation", "sag", "value_distance"):
            self.assertTrue(math.isclose(run[name], np.mean([float(row[name]) for row in heads]), rel_tol=1e-12))
        errors = [float(row["prediction_error"]) for row in heads]
        self.assertEqual(run["predictable"], sum(error < 1 for error in errors) / len(heads))
        self.assertEqual([row["later_joint_bound"] != "" for row in heads], [error < 1 for error in errors])
        for row in heads:
            if row["later_joint_bound"]:
                self.assertLessEqual(float(row["later_perturbation"]), float(row["later_joint_bound"]))
        for row in heads:
            layer, step, head = (int(row[name]) for name in ("layer", "step", "head"))
            query, key, value, projection = (trace.tensors[f"layers.{layer}.{name}"][1]
                                             for name in ("query", "key", "value", "output_projection"))
            weights = np.exp(key[head // 2, :25 + step] @ query[head, 8 + step] / 2)
            output = weights @ value[head // 2, :25 + step] / weights.sum()
            change = (output - tensors[f"layers.{layer}.output"][step, head]) @ projection[4 * head:4 * head + 4]
            self.assertTrue(math.isclose(float(row["perturbation"]), np.abs(change).sum(), rel_tol=1e-5))

    def test_json_has_the_budget_of_every_layer_and_what_every_kv_head_keeps(self):
        TraceFile(layers=3).write(self.folder / "trace.safetensors")
        # 12 of 24 entries; a pyramid from 12 + 6 to 12 - 6.
        policies = "snapkv:window=4,snapkv:window=4+pyramid:beta=2,snapkv:window=4+adakv"
        arguments = "trace.safetensors", "--budget", "12", "--policy", policies
        document, _, dumps, _ = self.replay(*arguments)
        plain, pyramid, adakv = ([(layer["layer_entries"], layer["kept"]) for layer in run["layers"]]
                                 for run in replayed(document)["runs"])
        self.assertEqual(plain, [(12, [12, 12])] * 3)
        self.assertEqual(pyramid, [(18, [18, 18]), (12, [12, 12]), (6, [6, 6])])
        self.assertEqual({run["entries"] for run in replayed(document)["runs"]}, {12})
        (shared,) = (tensors for name, tensors in dumps.items() if "adakv" in name)
        self.assertEqual(adakv, [(12, np.diff(shared[f"layers.{layer}.kept_offsets"]).tolist()) for layer in range(3)])
        self.assertTrue(any(first != second for _, (first, second) in adakv), "or the heads' own are not told")
        part = replayed(self.replay(*arguments, "--layers", "2")[0])["runs"][1]["layers"]
        self.assertEqual([(layer["layer"], layer["layer_entries"]) for layer in part], [(2, 6)])

    def test_tables_have_columns_about_merges_where_something_merges(self):
        TraceFile().write(self.folder / "trace.safetensors")
        arguments = "replay", "trace.safetensors", "--budget", "8", "--policy"
        plain = self.passes(*arguments, "snapkv:window=4", "--merge-bounds")
        merging = self.passes(*arguments, "snapkv:window=4,snapkv:window=4+convex:threshold=none")
        bounds = self.passes(*arguments, "snapkv:window=4+keepkv:threshold=none", "--merge-bounds")
        for heading, where in (("merge change", (merging, bounds)), ("found target", (merging, bounds)),
                               ("epsilon < 1", (bounds,)), ("later change", (bounds,)), ("sag", (bounds,))):
            for table in (plain, merging, bounds):
                self.assertEqual(heading in table, table in where, heading)
        named = self.passes(*arguments, "snapkv:window=4+d2o:threshold=none", "--columns", "found-target,lossy")
        heading, row = (line.split() for line in named.splitlines()[4:6])
        self.assertEqual(heading, ["policy", "budget", "found", "target"], "and no merge that should be lossless")
        self.assertEqual(row, ["snapkv:window=4+d2o:threshold=none", "8", "100.0", "%"])

    def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(self):
        silent = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
        for said, spins in (({}, 0), ({"OMP_WAIT_POLICY": "active"}, 30_000_000_000), ({"GOMP_SPINCOUNT": "7"}, 7)):
            with self.subTest(said=said):
                result = self.run_program("--version", env={**silent, **said, "OMP_DISPLAY_ENV": "verbose"})
                self.assertEqual((result.returncode, len(result.stdout.splitlines())), (PASS, 1))
                self.assertEqual(int(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", result.stderr)[-1]), spins)
        loader = next(Path("/").glob("lib*/ld-linux-*.so.*"))
        started = subprocess.run([loader, kvbound_cli.program, "--version"], env=silent, capture_output=True, check=True)
        self.assertIn(b"kvbound", started.stdout)

    def test_lossless_merges_are_counted_where_they_are_claimed(self):
        TraceFile(query_heads=2).write(self.folder / "one.safetensors")
        TraceFile(query_heads=4).write(self.folder / "two.safetensors")
        for name, lossless in (("one", 4 * (1 + 3)), ("two", 0)):
            document, _, _, _ = self.replay(f"{name}.safetensors", "--policy",
                                            "h2o:window=4:recent=2+keepkv:threshold=none:predict=current", "--budget",
                                            "8")
            run = replayed(document)["runs"][0]
            self.assertEqual([run["lossless"], run["lossy"]], [lossless, 0 if lossless else None])
            self.assertIsNone(run["later_perturbation"])

    def test_the_report_says_what_was_replayed(self):
        path = TraceFile(dtype="BF16").write(self.folder / "trace.safetensors")
        document, _, _, table = self.replay("trace.safetensors", "--policy", "snapkv:window=4+critical", "--budget",
                                            "50%")
        trace = replayed(document)
        self.assertEqual(trace["sha256"], hashlib.sha256(path.read_bytes()).hexdigest())
        said = dict(layers=2, query_heads=4, kv_heads=2, head_dim=4, model_dim=8, prompt_tokens=24, decode_tokens=3,
                    window_queries=8, scale=0.5, storage="BF16", model="none", source="random numbers")
        self.assertEqual({name: trace[name] for name in said}, said)
        self.assertEqual((trace["base"], document["provenance"]["seed"]), (None, None))
        run = trace["runs"][0]
        self.assertEqual([run[name] for name in ("policy", "budget", "entries", "backend")],
                         [CRITICAL, "50%", 12, "reference"])
        for word in ("snapkv:window=4+critical", CRITICAL, " 50% ", " 12 ", "reference", "trace.safetensors"):
            self.assertIn(word, table)

    def test_layers_and_steps_give_the_corresponding_part_of_the_whole(self):
        TraceFile(layers=5).write(self.folder / "trace.safetensors")
        policies = "--policy", "snapkv:window=4,snapkv:window=4+critical", "--budget", "8,30%"
        whole, whole_rows, whole_dumps, _ = self.replay("trace.safetensors", *policies)
        for layers, steps, chosen in (("0,3-4", 2, (0, 3, 4)), ("3", 1, (3,)), ("4,1,1-2", 3, (1, 2, 4)),
                                      ("0-4", 3, range(5))):
            part, rows, dumps, _ = self.replay("trace.safetensors", *policies, "--layers", layers, "--steps", steps)
            self.assertEqual(replayed(part)["replayed_layers"], list(chosen))
            self.assertEqual(replayed(part)["replayed_steps"], steps)
            self.assertEqual(rows, [row for row in whole_rows
                                    if int(row["layer"]) in chosen and int(row["step"]) < steps])
            self.assertEqual(sorted(dumps), sorted(whole_dumps))
            for name, tensors in dumps.items():
                expected = {tensor for tensor in whole_dumps[name] if int(tensor.split(".")[1]) in chosen}
                self.assertEqual(set(tensors), expected)
                for tensor in expected:
                    per_step = tensor.split(".")[2] in ("output", "perturbation", "kept_mass", "bound",
                                                        "layer_perturbation")
                    whole_tensor = whole_dumps[name][tensor]
                    np.testing.assert_array_equal(tensors[tensor], whole_tensor[:steps] if per_step else whole_tensor)

    def test_a_base_counts_the_heads_that_each_policy_improves(self):
        TraceFile().write(self.folder / "trace.safetensors")
        document, rows, _, table = self.replay("trace.safetensors", "--policy",
                                               "snapkv:window=4+critical,snapkv:window=4:pool=1", "--budget", "8,50%",
                                               "--base", "snapkv:window=4")
        trace = replayed(document)
        runs = trace["runs"]
        self.assertEqual(trace["base"], "snapkv:window=4:pool=7")
        self.assertEqual([run["budget"] for run in runs], ["8"] * 3 + ["50%"] * 3)
        self.assertEqual(runs[0]["policy"], trace["base"], "a base that is no --policy is replayed, too, first")
        for first in (0, 3):
            base, others = runs[first], runs[first + 1:first + 3]
            self.assertIsNone(base["improved_heads"])
            for run in others:
                improved = sum(ours < theirs for layer, base_layer in zip(run["layers"], base["layers"])
                               for ours, theirs in zip(layer["perturbation"], base_layer["perturbation"]))
                self.assertEqual((run["improved_heads"], run["base_run"]), (improved / 8, first))
                self.assertIn(f"{100 * improved / 8:.1f} %", table)
        document, _, _, _ = self.replay("trace.safetensors", "--policy", "snapkv:window=4+critical,snapkv:window=4",
                                        "--budget", "8", "--base", "snapkv:pool=7:window=4")
        self.assertEqual([run["improved_heads"] is None for run in replayed(document)["runs"]], [False, True])

    def test_an_undefined_ratio_is_empty_in_csv_null_in_json_and_counted(self):
        trace = TraceFile(layers=1, query_heads=1, kv_heads=1, prompt_tokens=2, decode_tokens=1, window_queries=1,
                          dtype="F64")
        for name in ("key", "query"):
            # equal weights, so that values 1, -1, 0 add up to 0
            trace.tensors[f"layers.0.{name}"][1][...] = 0
        trace.tensors["layers.0.value"][1][0] = [[1] * 4, [-1] * 4, [0] * 4]
        trace.write(self.folder / "trace.safetensors")
        document, rows, _, _ = self.replay("trace.safetensors", "--policy", "snapkv:window=1", "--budget", "1")
        run = replayed(document)["runs"][0]
        self.assertEqual([row["relative"] for row in rows], ["", ""])
        self.assertEqual((run["relative"], run["layer_relative"]), (None, None))
        self.assertEqual((run["relative_undefined"], run["layer_relative_undefined"]), (1, 1))
        self.assertEqual((run["layers"][0]["relative"], run["layers"][0]["layer_relative"]), (None, None))
        self.assertGreater(run["perturbation"], 0)

    def test_several_traces_are_reported_in_order_and_dumped_to_folders(self):
        TraceFile().write(self.folder / "b.safetensors")
        TraceFile(layers=1, seed=2, prompt_tokens=30).write(self.folder / 'a "quoted", name.safetensors')
        document, rows, _, table = self.replay("b.safetensors", 'a "quoted", name.safetensors', "--policy",
                                               "snapkv:window=4", "--budget", "50%")
        paths = ["b.safetensors", 'a "quoted", name.safetensors']
        self.assertEqual([part.facts["path"] for part in parts(document)], paths)
        self.assertEqual([part.rows("runs")[0]["entries"] for part in parts(document)], [12, 15])
        self.assertEqual(list(dict.fromkeys(row["trace"] for row in rows)), paths)
        self.assertEqual([line for line in table.splitlines() if line in paths], paths)
        dump = "snapkv_window=4_pool=7@50%@reference.safetensors"
        self.assertEqual(
            sorted(str(path.relative_to(self.folder)) for path in (self.folder / "dumps").rglob("*.safetensors")),
            [f'dumps/a "quoted", name/{dump}', f"dumps/b/{dump}"])

    def test_dumps_are_named_by_policy_budget_and_backend(self):
        TraceFile().write(self.folder / "trace.safetensors")
        _, _, dumps, _ = self.replay("trace.safetensors", "--policy", "snapkv:window=4,snapkv:window=4+critical",
                                     "--budget", "8,37.50%")
        names = [f"{policy}@{budget}@reference.safetensors" for budget in ("8", "37.5%")
                 for policy in ("snapkv_window=4_pool=7", CRITICAL.replace(":", "_"))]
        self.assertEqual(sorted(dumps), sorted(names))
        metadata, _ = independent.replay.open_tensors(self.folder / "dumps" / names[3])
        sha256 = hashlib.sha256((self.folder / "trace.safetensors").read_bytes()).hexdigest()
        self.assertEqual(metadata, {"format": "kvbound-dump", "version": "1", "policy": CRITICAL, "budget": "37.5%",
                                    "backend": "reference", "storage": "F32", "accumulate": "F64",
                                    "trace_sha256": sha256})

    def test_outputs_may_be_standard_output_and_may_replace_files_and_links(self):
        TraceFile().write(self.folder / "trace.safetensors")
        policies = "replay", "trace.safetensors", "--policy", "snapkv:window=4", "--budget", "8"
        for name in ("-", "/dev/stdout", "/dev/fd/1"):
            result = self.run_program(*policies, "--json", name)
            self.assertEqual((result.returncode, json.loads(result.stdout)["schema"]), (PASS, "kvbound-2"))
            self.assertEqual(result.stderr, "", "no table anywhere")
        self.refuses(USAGE, "'-' is what --json writes", *policies, "--json", "/dev/stdout", "--csv", "-")
        (self.folder / "target.json").write_text("old")
        os.chmod(self.folder / "target.json", 0o640)
        (self.folder / "link.json").symlink_to("target.json")
        self.passes(*policies, "--json", "link.json")
        self.assertTrue((self.folder / "link.json").is_symlink())
        self.assertEqual(json.loads((self.folder / "target.json").read_text())["schema"], "kvbound-2")
        self.assertEqual((self.folder / "target.json").stat().st_mode & 0o777, 0o640)

    def test_names_that_are_no_utf8_are_no_obstacle(self):
        name = os.fsdecode(b"tr\xff\xe9ce.safetensors")
        TraceFile().write(self.folder / name)
        self.passes("replay", name, "--policy", "snapkv:window=4", "--budget", "8", "--json", "out.json", "--csv",
                    "out.csv", "--dump", "d/")
        path = replayed(read(self.folder / "out.json"))["path"]
        self.assertEqual(path, "tr\ufffd\ufffdce.safetensors")

    def test_inspect_verifies_the_recorded_attention_output(self):
        for sample in ("pocket-gqa", "pocket-mha", "smollm2-135m"):
            self.assertIn("agrees", self.passes("inspect", SAMPLES / f"{sample}.safetensors", "--verify"))
        data = bytearray((SAMPLES / "pocket-mha.safetensors").read_bytes())
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        begin = 8 + int.from_bytes(data[:8], "little") + header["layers.2.attention_output"]["data_offsets"][0]
        element = np.frombuffer(data[begin + 400:begin + 404], "<f4")[0]
        data[begin + 400:begin + 404] = np.float32(element + 1e-3).tobytes()
        (self.folder / "changed.safetensors").write_bytes(data)
        stdout = self.passes("inspect", "changed.safetensors", "--verify", "--json", "out.json", code=MISMATCH)
        self.assertRegex(stdout, r"\n2 +DIFFERS +0\.001000 .* 0 +1 +36\n")
        verified = inspected(read(self.folder / "out.json"))["verified"]
        self.assertEqual([layer["verdict"] for layer in verified], ["agrees", "agrees", "DIFFERS", "agrees"])


class Terminals(CommandLineTest):
    REPLAY = ("replay", SAMPLES / "pocket-mha.safetensors", "--policy", "snapkv,snapkv+critical", "--budget", "10%",
              "--steps", "2")

    def on_terminal(self, *arguments, streams=("stdout",), **environment):
        """What the program prints, with `streams` connected to a terminal, and its exit code."""
        master, slave = pty.openpty()
        outputs = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **{name: slave for name in streams}}
        without = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        process = self.start(*arguments, **outputs, env=without | environment)
        os.close(slave)
        printed = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # EIO: the last process that had the terminal open has closed it
                break
            if not piece:
                break
            printed += piece
        os.close(master)
        return printed.decode(), process.wait(timeout=300)

    def test_no_escapes_and_no_progress_when_nothing_is_a_terminal(self):
        result = self.run_program(*self.REPLAY)
        self.assertNotIn("\x1b", result.stdout)
        self.assertEqual(result.stderr, "")

    def test_headings_are_marked_on_a_terminal_unless_no_color_is_set(self):
        printed, code = self.on_terminal(*self.REPLAY)
        self.assertEqual(code, 0)
        self.assertIn("\x1b[1m", printed)
        self.assertNotIn("\x1b", self.on_terminal(*self.REPLAY, NO_COLOR="1")[0])
        self.assertIn("\x1b[1m",
                      self.on_terminal(*self.REPLAY, NO_COLOR="")[0], "as no-color.org has it: set and not empty")
        plain = re.sub(r"\x1b\[[0-9;]*m", "", printed).replace("\r\n", "\n")
        self.assertEqual(plain, self.passes(*self.REPLAY))

    def test_progress_shows_on_a_terminal_only_and_is_wiped(self):
        budgets, policies, seconds = ",".join(map(str, range(32, 512, 16))), [], 0
        while seconds < 3:  # progress shows after two seconds: double the work until it takes that long
            policies += [f"snapkv:pool={2 * i + 1}+theta-sweep" for i in range(len(policies), 2 * len(policies) + 1)]
            long = "replay", SAMPLES / "pocket-mha.safetensors", "--policy", ",".join(policies), "--budget", budgets
            start = time.monotonic()
            printed, code = self.on_terminal(*long, streams=("stderr",))
            self.assertEqual(code, 0)
            seconds = time.monotonic() - start
        self.assertRegex(printed, r"replaying .*pocket-mha.*: \d+ % after \d+ s, about \d+ s left")
        self.assertTrue(printed.endswith("\r\x1b[K"), repr(printed[-80:]))
        self.assertNotIn("\n", printed)
        self.assertEqual(self.on_terminal(*long, "--quiet", streams=("stderr",)), ("", 0))

    def test_quiet_silences_warnings_but_not_errors(self):
        TraceFile(decode_tokens=0).write(self.folder / "short.safetensors")
        replay = "replay", "short.safetensors", "--policy", "snapkv:window=4", "--budget", "8"
        loud, quiet = self.run_program(*replay), self.run_program(*replay, "--quiet")
        self.assertEqual((loud.returncode, quiet.returncode), (INCONCLUSIVE,) * 2)
        self.assertRegex(loud.stderr, r"\Akvbound: short\.safetensors: no decode step[^\n]*\n\Z")
        self.assertEqual(quiet.stderr, "")
        self.refuses(USAGE, "budget", "replay", "short.safetensors", "--policy", "snapkv:window=4", "--budget", "0",
                     "--quiet")


class Bench(CommandLineTest):
    """The output of bench, whatever the measured times are."""

    SMALL = "bench", "--shape", "pocket:256", "--repeats", "2", "--json", "out.json"

    def part(self, *arguments, **environment):
        """Its facts, with the provenance, the rows of `operations`, each with those of `against`, and what was printed."""
        result = self.run_program(*self.SMALL, *arguments, env={**os.environ, **environment})
        self.assertEqual(result.returncode, 0, result.stderr)
        document = read(self.folder / "out.json")
        part, = parts(document)
        operations = part.rows("operations")
        for item in operations:
            item["against"] = [row for row in part.rows("against") if all(row[key] == item[key] for key in ("operation", "policy"))]
        return part.facts | document["provenance"], operations, result

    def test_operations_are_measured_in_one_order_whatever_was_asked_for_first(self):
        facts, items, result = self.part("selection", "exponential")
        self.assertEqual([item["operation"] for item in items], ["exponential", "selection"])
        self.assertLess(result.stdout.index("std::exp"), result.stdout.index("std::nth_element"))
        self.assertEqual(facts["shape"]["tokens"], 256)
        self.assertIn(f"{facts['instruction_set']} loops", result.stdout)
        self.assertIn(f"{facts['blas']['name'].split()[0]} for {facts['blas']['core']}", result.stdout)

    def test_what_is_printed_is_what_the_document_says(self):
        _, items, result = self.part("--threads", "2")
        self.assertEqual(len(items), 18)
        for item in items:
            for row in (item, *item["against"]):
                self.assertRegex(result.stdout, rf"(?m)^ *{re.escape(row['timed'])} +[\d.]+ [mun]?s ")
            ratios = item["ratio"], item["ratio_least"], item["ratio_most"]
            if item["ratio"]:
                self.assertIn("-> {:.2f} ({:.2f}-{:.2f}) ".format(*ratios) + item["ratio_of"], result.stdout)
            self.assertEqual(item["verdict"] is None, item["ratio"] is None or item["at_least"] == item["at_most"])
            if item["verdict"]:
                kind = "at_least" if item["at_least"] else "at_most"
                met, *ends = [number >= item[kind] if kind == "at_least" else number <= item[kind] for number in ratios]
                self.assertEqual(item["verdict"], ("met" if met else "missed") + (" by the median" if len({*ends}) > 1 else ""))
                self.assertEqual(item["of_goal"] >= 1, met)
                self.assertIn(f"goal {kind.replace('_', ' ')} {item[kind]:g}: {item['verdict']}; {item['rounds']} rounds", result.stdout)

    def test_prefill_counts_the_work_of_the_model_that_it_names(self):
        model = TinyModel(layers=2, model_dim=24, heads=4, kv_heads=2, head_dim=8, feed_forward=40, vocabulary=64)
        _, (prefill,), result = self.part("prefill", "--model", model.write_folder(self.folder / "tiny"), "--prompt", "33")
        product, = prefill["against"]
        weights = 24 * (32 + 16 + 16 + 32 + 3 * 40)
        self.assertEqual(prefill["work"], 2 * (2 * weights * 33 + 4 * 32 * 33 * 34 / 2) + 2 * 64 * 24)
        self.assertEqual(prefill["timed"], "prefill, 33 tokens")
        self.assertIn("SGEMM", product["timed"])
        self.assertIn("share of the SGEMM rate by tiny; goal at least 0.7", result.stdout)
        missing = self.run_program("bench", "prefill", "--model", self.folder / "missing")
        self.assertEqual(missing.returncode, WORLD)
        self.assertRegex(missing.stderr, r"\Akvbound: [^\n]*missing[^\n]*\n\Z")

    def test_a_models_step_counts_the_bytes_of_its_matrices(self):
        model = TinyModel(layers=2, model_dim=24, heads=4, kv_heads=2, head_dim=8, feed_forward=40, vocabulary=64)
        _, (step,), _ = self.part("model-step", "--model", model.write_folder(self.folder / "tiny"))
        reading, = step["against"]
        weights = 2 * 24 * (32 + 16 + 16 + 32 + 3 * 40) + 64 * 24
        self.assertEqual(reading["work"], 16 * weights * 4)
        self.assertEqual(step["work"], reading["work"])
        self.assertEqual(step["unit"], "bytes")

    def test_what_compressions_and_steps_ask_of_a_device_is_counted_by_policy(self):
        policies = ("snapkv", "h2o+critical", "h2o+keepkv:key=zip:gqa=mean", "tova+obcache-key:space=projected+cam",
                    "streaming-llm+d2o", "snapkv+keepkv:period=8", "snapkv+adakv+kvmerger")
        _, items, result = self.part("compress", "step", "--backend", "emulated", "--policy", ",".join(policies))
        self.assertEqual([item["operation"] for item in items],
                         ["compress"] * len(policies) + ["step"] * len(policies))
        for item, policy in zip(items[len(policies):], policies):
            with self.subTest(policy=policy):
                self.assertIn(f"step, {policy}", result.stdout)
                self.assertIn(f"asks for {item['launches']} launches", result.stdout)
                self.assertTrue(item["policy"].startswith(policy.split("+")[0] + ":"))
                self.assertGreater(item["launches"], 2)
                self.assertEqual(item["synchronisations"], 1)
                self.assertEqual(item["uploads"] == 1 and item["downloads"] == 1 and item["allocations"] == 0, "period" not in policy, item)
        self.assertEqual(*([item["policy"] for item in items[start:start + len(policies)]] for start in (0, len(policies))))

    def test_openblas_core_type_is_what_the_option_says_and_not_what_the_environment_says(self):
        facts, _, result = self.part("selection", OPENBLAS_CORETYPE="Prescott")
        self.assertIsNone(facts["blas"]["core_type_override"])
        if facts["blas"]["name"].startswith("Eigen"):  # a portable program, which has only Eigen's kernels
            self.assertEqual(result.stderr, "")
            self.refuses(USAGE, "--blas-core is for OpenBLAS; this program has Eigen", *self.SMALL, "--blas-core",
                         "Haswell")
            return
        self.assertIn("kvbound: OPENBLAS_CORETYPE=Prescott of the environment is ignored", result.stderr)
        # A core that this OpenBLAS certainly has, with the case of its letters swapped.
        core = facts["blas"]["core"].swapcase()
        facts, _, result = self.part("selection", "--blas-core", core, "--quiet", OPENBLAS_CORETYPE="Prescott")
        self.assertEqual(facts["blas"]["core_type_override"], core)
        self.assertEqual(facts["blas"]["core"].lower(), core.lower())
        self.assertEqual(result.stderr, "")

    def test_repeats_are_the_rounds_that_count(self):
        _, items, _ = self.part("exponential", "selection")
        self.assertEqual([(item["rounds"], item["warm_up"]) for item in items], [(2, 1)] * 2)

    def test_compress_is_measured_on_two_threads_however_many_there_are(self):
        facts, (compress,), _ = self.part("compress", "--threads", "3")
        self.assertEqual(facts["threads"], 3)
        if facts["processors"] > 1 and facts["blas"]["flavour"] != "serial":
            self.assertEqual([row["timed"].split(", ")[-1] for row in (compress, *compress["against"])], ["2 threads", "1 thread"] * 2)
            self.assertIsNone(compress["no_ratio"])
        else:
            self.assertIsNone(compress["ratio"])

    def test_compress_goes_by_every_policy_asked_for(self):
        policies = "h2o", "snapkv+keepkv", "snapkv+critical"
        _, items, _ = self.part("compress", "--policy", ",".join(policies), "--threads", "1")
        self.assertEqual([item["timed"] for item in items], [f"compress, {policy}, 1 thread" for policy in policies])
        for item, policy in zip(items, policies):
            self.assertTrue(item["policy"].startswith(policy.split("+")[0] + ":window=32:"))
        _, default, _ = self.part("compress", "--threads", "1")
        self.assertEqual([item["policy"] for item in default], [items[2]["policy"]])

    def test_a_blas_without_threads_is_no_roofline(self):
        facts, (norms,), _ = self.part("projected-value-norms", "--threads", "2")
        if facts["blas_threads"] == 2:
            self.assertIsNone(norms["no_ratio"])
        else:
            self.assertEqual((norms["ratio"], norms["verdict"]), (None, None))
            self.assertEqual(norms["no_ratio"], f"{facts['blas']['name'].split()[0]} works on 1 thread")
        self.assertIn(f"DGEMM, 256-cube, {facts['blas_threads']} thread", norms["against"][0]["timed"])

    def test_an_emulation_says_that_its_times_are_not_a_gpus(self):
        facts, items, result = self.part("select-top", "compact", "--backend", "emulated")
        self.assertIn("Its times say nothing about any GPU.", result.stdout)
        self.assertNotRegex(result.stdout, "goal (at|met|missed)")
        self.assertEqual([item["verdict"] for item in items], [None, None])
        self.assertEqual((facts["accelerator"]["name"], facts["accelerator"]["driver"]), ("emulated", None))

    def test_a_device_operation_is_given_as_shares_of_the_rooflines_of_its_rounds(self):
        _, (item,), result = self.part("window-attention", "--backend", "emulated")
        copy, product = item["against"]
        for share, work, roofline in (("copy_bandwidth", item["bytes"], copy), ("matrix_rate", item["work"], product)):
            best = work / item["seconds_least"] / (roofline["work"] / roofline["seconds_most"])
            worst = work / item["seconds_most"] / (roofline["work"] / roofline["seconds_least"])
            for end in ("", "_least", "_most"):
                self.assertTrue(worst <= item[share + end] * (1 + 1e-9) and item[share + end] <= best * (1 + 1e-9), share)
        self.assertEqual(item["ratio"], item["copy_bandwidth"])
        self.assertIn(f"medians: {item['copy_bandwidth']:.3g} of the copy bandwidth", result.stdout)

    def test_without_a_device_there_is_no_bench_on_one(self):
        result = self.run_program("bench", "--backend", "cuda", "compact", "--repeats", "1", "--json", "out.json")
        if result.returncode != PASS:
            self.assertEqual(result.returncode, INCONCLUSIVE)
            self.assertRegex(result.stderr, r"\Akvbound: no CUDA device: [^\n]+\n\Z")
            self.assertFalse((self.folder / "out.json").exists())

    def test_an_output_that_cannot_be_written_is_noticed_before_anything_is_measured(self):
        self.refuses(WORLD, "missing", "bench", "--quiet", "--json", "missing/out.json", silent=True)


if __name__ == "__main__":
    kvbound_cli.main()
