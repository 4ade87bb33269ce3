"""kvbound inspect --heads against NumPy: every figure, computed from its definition; its table, JSON and CSV.

usage: inspect_command_test.py KVBOUND      KVBOUND: the program's path
"""
import csv
import io
import json
import math
import re

import numpy as np

import independent.replay
from support import documents, kvbound_cli
from support.kvbound_cli import INCONCLUSIVE, INVALID, SAMPLES, USAGE, CommandLineTest, TraceFile

TRACE = "trace.safetensors"  # 2 layers, 24 prompt tokens, 8 recorded queries, 3 decode steps
ATTENTION = ("sink_mass", "top_position", "top_mass", "entropy", "effective_entries", "relative_entropy")
TIES = ("share", "cut_tied", "cut_selected", "tie_break")
# sums of up to 2,000 terms and logits below 100, in double precision on both sides, differ by less
RELATIVE = 1e-11


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def weights_of(trace, layer, head):
    """[queries, n + T]: the attention of a head's recorded queries, 0 for entries in their future. Equal keys get equal
    logits to the last bit."""
    keys = layer.key[head // trace.group]
    first = trace.prompt_tokens - trace.window_queries
    weights = np.zeros((len(layer.query[head]), len(keys)))
    for i, query in enumerate(layer.query[head]):
        weights[i, :first + i + 1] = softmax((keys[:first + i + 1] * query).sum(axis=1) * trace.scale)
    return weights


def attention_figures(trace, weights, sinks):
    first = trace.prompt_tokens - trace.window_queries
    with np.errstate(divide="ignore", invalid="ignore"):
        entropies = -np.where(weights > 0, weights * np.log(weights), 0).sum(axis=1)
    largest = np.log(first + 1 + np.arange(len(weights)))
    received = weights.mean(axis=0)
    return {"sink_mass": weights[:, :sinks].sum(axis=1).mean(), "top_position": int(received.argmax()),
            "top_mass": received.max(), "entropy": entropies.mean(), "effective_entries": math.exp(entropies.mean()),
            "relative_entropy": np.divide(entropies, largest, np.zeros(len(weights)), where=largest > 0).mean()}


def bfloat16(numbers):
    """Rounded once, to nearest, ties to even, to 8 significant bits or a multiple of 2^-133. Rounding to float32 first
    would round some of the sample's scores to another number."""
    units = 2.0**(np.maximum(np.frexp(numbers)[1] - 1, -126) - 7)
    return np.rint(numbers / units) * units


def snap_kv_scores(trace, weights, window, pool):
    """The scores of the entries before the window; weights: those of each query head of a KV head."""
    rows = []
    for head in weights:
        mean = head[trace.window_queries - window:trace.window_queries, :trace.prompt_tokens - window].mean(axis=0)
        rows.append([mean[max(0, j - pool // 2):j + pool // 2 + 1].max() for j in range(len(mean))])
    return np.mean(rows, axis=0)


def tie_figures(scores, k):
    twins = [(scores == score).sum() > 1 for score in scores]
    share = sum(twins) / len(scores) if len(scores) else 0
    if k == 0:
        return {"share": share, "cut_tied": None, "cut_selected": None, "tie_break": 0}
    selected = np.argsort(-scores, kind="stable")[:k]
    tied = np.flatnonzero(scores == scores[selected[-1]])
    kept = len(set(tied) & set(selected))
    return {"share": share, "cut_tied": len(tied), "cut_selected": kept,
            "tie_break": kept / k if kept < len(tied) else 0}


def rank_figures(values):
    sigmas = np.linalg.svd(values, compute_uv=False)
    if not sigmas.any():
        return 0, 0
    shares = sigmas[sigmas > 0] / sigmas.sum()
    return math.exp(-(shares * np.log(shares)).sum()), (sigmas**2).sum() / sigmas[0]**2


class Layers(CommandLineTest):
    """Of a sample with the layers 0, 11 and 20 of its model."""
    TRACE = SAMPLES / "smollm2-135m.safetensors"

    def test_have_the_model_s_own_numbers(self):
        text = self.passes("inspect", self.TRACE, "--verify", "--heads", "--layers", "11-20", "--json", "out.json", "--csv", "out.csv")
        self.assertRegex(text, r"(?m)^  layers +3, of the model 0,11,20$")
        self.assertEqual(re.findall(r"(?m)^(\d+) +agrees", text), ["0", "11", "20"])
        self.assertEqual(re.findall(r"(?m)^(\d+) +0\.", text), ["11", "20"])
        said = documents.inspected(documents.read(self.folder / "out.json"))
        self.assertEqual(said["model_layers"], [0, 11, 20])
        self.assertEqual([layer["layer"] for layer in said["verified"]], [0, 11, 20])
        self.assertEqual([layer["layer"] for layer in said["layers"]], [11, 20])
        rows = list(csv.DictReader(io.StringIO((self.folder / "out.csv").read_text("utf-8"))))
        self.assertEqual({row["layer"] for row in rows}, {"11", "20"})

    def test_are_chosen_by_them(self):
        for command in (("inspect", "--heads"), ("recall",), ("predict",), ("replay", "--policy", "snapkv:window=8", "--budget", "10%"),
                        ("diff", "--storage", "F16", "--floor")):
            for layers in ("1", "0-10,12-19", "21", "0-21"):
                self.refuses(USAGE, r"--layers '\S+': expected layers or ranges such as 0,3-5 among 0,11,20, which .*smollm2",
                             *command, self.TRACE, "--layers", layers)
        self.passes("predict", self.TRACE, "--layers", "20", "--steps", "1")

    def test_of_a_trace_that_does_not_say_which_they_are_are_numbered_from_0(self):
        TraceFile().write(self.folder / "trace")
        self.passes("inspect", "trace", "--json", "out.json")
        self.assertEqual(documents.inspected(documents.read(self.folder / "out.json"))["model_layers"], [0, 1])

    def test_that_are_not_as_many_as_it_has_are_refused(self):
        for numbers in ("3", "0-2", "0,0", "1,0", "all", "0-2147483646"):
            trace = TraceFile()
            trace.metadata["model_layers"] = numbers
            trace.write(self.folder / "trace")
            self.refuses(INVALID, r"trace: at byte \d+: __metadata__\.model_layers: is .*; expected 2 layers, ascending, such as 0,3-5$",
                         "inspect", "trace")


class Heads(CommandLineTest):
    def inspect(self, *arguments, code=0):
        """What the document says, the CSV's rows, and the printed text."""
        text = self.passes("inspect", *arguments, "--heads", "--json", "out.json", "--csv", "out.csv", code=code)
        said = documents.inspected(documents.read(self.folder / "out.json"))
        rows = list(csv.DictReader(io.StringIO((self.folder / "out.csv").read_text()), strict=True))
        return said, rows, text

    def require_near(self, ours, theirs, names):
        for name in names:
            if theirs[name] is None:
                self.assertIsNone(ours[name], name)
            else:
                self.assertLessEqual(abs(ours[name] - theirs[name]), RELATIVE * (1 + abs(theirs[name])), name)

    def require_csv(self, rows, said):
        """The CSV's rows have the numbers of the JSON: of query heads, then KV heads, then their ties."""
        expected = [{"layer": layer["layer"]} | head for layer in said["layers"] for head in layer["query_heads"]]
        kv_heads = [{"layer": layer["layer"]} | head for layer in said["layers"] for head in layer["kv_heads"]]
        expected += [{name: value for name, value in head.items() if name != "ties"} for head in kv_heads]
        expected += [{"layer": head["layer"]} | ties for head in kv_heads for ties in head["ties"]]
        self.assertEqual(len(rows), len(expected))
        for row, of_json in zip(rows, expected):
            written = {name: value if name == "storage" else float(value) for name, value in row.items()
                       if value not in ("", "all") and name != "trace"}
            self.assertEqual(written, {name: value for name, value in of_json.items() if value is not None})

    def require_definition(self, path, *arguments, sinks=4, window=8, pool=7, budget="20%", layers=None):
        trace = independent.replay.Trace(path)
        n = trace.prompt_tokens
        k = max(0, (n * int(budget[:-1]) // 100 if budget.endswith("%") else int(budget)) - window)
        said, rows, text = self.inspect(path, *arguments)
        self.assertEqual({name: said[name] for name in ("sinks", "window", "pool", "budget", "candidates", "selected")},
                         {"sinks": sinks, "window": window, "pool": pool, "budget": budget, "candidates": n - window,
                          "selected": k})
        layers = range(trace.layers) if layers is None else layers
        self.assertEqual([item["layer"] for item in said["layers"]], list(layers))
        self.require_csv(rows, said)
        for item in said["layers"]:
            layer = trace.layer(item["layer"])
            weights = [weights_of(trace, layer, head) for head in range(trace.query_heads)]
            for head, ours in enumerate(item["query_heads"]):
                self.assertEqual(list(ours), ["head", *ATTENTION])
                self.require_near(ours, attention_figures(trace, weights[head], sinks), ATTENTION)
            for g, ours in enumerate(item["kv_heads"]):
                effective, stable = rank_figures(layer.value[g])
                self.require_near(ours, {"effective_rank": effective, "stable_rank": stable},
                                  ("effective_rank", "stable_rank"))
                kinds = [(width, storage) for width in sorted({1, pool}) for storage in ("F64", "BF16")]
                self.assertEqual([(ties["pool"], ties["storage"]) for ties in ours["ties"]], kinds)
                for ties in ours["ties"]:
                    scores = snap_kv_scores(trace, weights[g * trace.group:(g + 1) * trace.group], window, ties["pool"])
                    expected = tie_figures(scores if ties["storage"] == "F64" else bfloat16(scores), k)
                    self.assertEqual({name: ties[name] for name in expected}, expected)
        return said, text

    def test_every_figure_is_what_its_definition_says(self):
        path = TraceFile(query_heads=6, prompt_tokens=60).write(self.folder / TRACE)
        said, _ = self.require_definition(path, "--budget", "50%", budget="50%")
        ties = [ties for layer in said["layers"] for head in layer["kv_heads"] for ties in head["ties"]]
        self.assertGreater(sum(item["tie_break"] for item in ties), 0, "nothing ties at the cut")
        self.assertGreater(sum(item["share"] for item in ties if (item["pool"], item["storage"]) == (1, "BF16")), 0)
        self.require_definition(path, "--sinks", 1, "--window", 3, "--pool", 5, "--budget", 20, "--layers", "1", sinks=1,
                                window=3, pool=5, budget="20", layers=[1])
        self.require_definition(path, "--pool", 1, "--sinks", 1000, pool=1, sinks=1000)

    def test_the_sample_s_figures_are_what_their_definitions_say(self):
        self.require_definition(SAMPLES / "pocket-gqa.safetensors", "--layers", "0,3", window=32, layers=[0, 3])

    def test_a_generated_sink_is_found(self):
        path = self.generate(TRACE, "--kind", "sink", "--tokens", 300, "--decode", 4, "--layers", 1, "--query-heads", 4,
                             "--kv-heads", 2, "--head-dim", 8, "--model-dim", 16)
        said, _ = self.require_definition(path, window=32)
        self.assertGreater(min(head["sink_mass"] for head in said["layers"][0]["query_heads"]), 0.3)

    def test_degenerate_traces_have_figures(self):
        zero = TraceFile(layers=1)
        zero.tensors["layers.0.value"][1][0] = 0
        said, text = self.require_definition(zero.write(self.folder / "zero"))
        self.assertNotIn("tie-break\n", text, "no entry is selected, so none by a tie-break")
        self.assertEqual([said["layers"][0]["kv_heads"][0][name] for name in ("effective_rank", "stable_rank")], [0, 0])
        self.assertEqual([item["cut_tied"] for item in said["layers"][0]["kv_heads"][0]["ties"]], [None] * 4,
                         "the budget is spent on the window")
        equal = TraceFile(layers=1)
        equal.tensors["layers.0.key"][1][...] = 0.5
        said, _ = self.require_definition(equal.write(self.folder / "equal"), "--budget", "12", budget="12")
        for head in said["layers"][0]["kv_heads"]:
            self.assertEqual({tuple(item[name] for name in TIES) for item in head["ties"]}, {(1, 16, 4, 1)})
        self.assertEqual({head["relative_entropy"] for head in said["layers"][0]["query_heads"]}, {1})
        large = TraceFile(layers=1, dtype="F64")
        large.tensors["layers.0.query"][1][...] = 1
        # logits of 1e4
        large.tensors["layers.0.key"][1][...] = np.where(np.arange(27) == 5, 1, -1)[None, :, None] * 5e3
        said, _ = self.require_definition(large.write(self.folder / "large"), "--budget", "12", budget="12")
        for head in said["layers"][0]["query_heads"]:
            self.assertEqual([head[name] for name in ATTENTION], [0, 5, 1, 0, 1, 0])

    def test_a_prompt_of_one_or_two_tokens_has_figures(self):
        for tokens, steps in ((1, 0), (1, 1), (2, 3)):
            path = TraceFile(layers=1, prompt_tokens=tokens, window_queries=1, decode_tokens=steps).write(self.folder / TRACE)
            said, text = self.require_definition(path, window=1)
            self.assertIn("sink mass", text)
            if steps < 3:
                self.assertEqual({head["sink_mass"] for head in said["layers"][0]["query_heads"]}, {1.0})

    def test_the_table_has_the_means_and_extremes_of_its_heads(self):
        TraceFile(query_heads=6, prompt_tokens=60).write(self.folder / TRACE)
        said, _, text = self.inspect(TRACE, "--budget", "50%")
        for line, layers in zip(said["means"], ([said["layers"][0]], [said["layers"][1]], said["layers"])):
            query_heads, kv_heads = ([head for layer in layers for head in layer[kind]] for kind in ("query_heads", "kv_heads"))
            for names, heads in ((ATTENTION, query_heads), (("effective_rank", "stable_rank"), kv_heads)):
                for name in set(names) - {"top_position"}:
                    numbers = [head[name] for head in heads]
                    self.assertAlmostEqual(line[name], np.mean(numbers), delta=1e-12)
                    self.assertEqual((line[f"{name}_least"], line[f"{name}_most"]), (min(numbers), max(numbers)))
            tops = [head["top_position"] for head in query_heads]
            self.assertEqual(line["top_position"], max(sorted(set(tops)), key=tops.count))
            self.assertEqual(line["top_heads"], tops.count(line["top_position"]))
            for kind, before in ((1, ""), (3, "pooled_")):
                for name, of_ties in (("ties", "share"), ("tie_break", "tie_break")):
                    self.assertAlmostEqual(line[before + name], np.mean([head["ties"][kind][of_ties] for head in kv_heads]), delta=1e-12)
        headings = ["sink mass", "top position", "of heads", "top mass", "entropy", "eff. entries", "eff. rank of V", "stable rank",
                    "ties", "tie-break", "pooled ties", "pooled tie-break"]
        lines = [re.split(r"  +", line.strip()) for line in text.splitlines()]
        at = lines.index(["layer", *headings])
        self.assertEqual([line[0] for line in lines[at + 1:at + 3]], ["0", "1"])
        self.assertIn(headings, lines[at + 3:])
        self.assertIn("the 22 entries that a budget of 50% selects", " ".join(text.split()))
        _, _, alone = self.inspect(TRACE, "--pool", "1")
        self.assertNotIn("pooled ties", alone)

    def test_without_the_option_nothing_is_measured(self):
        TraceFile().write(self.folder / TRACE)
        text = self.passes("inspect", TRACE, "--json", "out.json")
        self.assertEqual(list(documents.read(self.folder / "out.json")["parts"][0]["cubes"]), [])
        self.assertNotIn("sink", text)
        self.assertTrue(self.passes("inspect", TRACE, "--heads").startswith(text))

    def test_heads_are_measured_beside_a_verification(self):
        TraceFile().write(self.folder / TRACE)
        said, _, _ = self.inspect(TRACE, "--verify", code=INCONCLUSIVE)
        self.assertEqual(len(said["layers"]), 2)

    def test_quiet_has_no_messages_and_the_same_results(self):
        TraceFile().write(self.folder / TRACE)
        loud, quiet = (self.run_program("inspect", TRACE, "--heads", *more) for more in ((), ("--quiet",)))
        self.assertEqual((quiet.returncode, quiet.stdout, quiet.stderr), (0, loud.stdout, ""))

    def test_results_have_the_same_bits_with_any_number_of_threads(self):
        results = set()
        for threads in (1, 2, 5):
            heads, rows, text = self.inspect(SAMPLES / "pocket-mha.safetensors", "--threads", threads)
            results.add((json.dumps(heads), json.dumps(rows), text))
        self.assertEqual(len(results), 1)

    def test_options_without_sense_are_refused(self):
        TraceFile().write(self.folder / TRACE)
        for option, values, pattern in (
                ("--sinks", ("0", "-1", "x", "", "1.5", "99999999999999999999"), "--sinks '.*': expected an integer"),
                ("--window", ("0", "9", "x"), "--window '.*': expected an integer from 1 to 8"),
                ("--pool", ("0", "-7", "x"), "--pool '.*': expected an integer"), ("--pool", ("2",), "expected an odd width"),
                ("--budget", ("0", "0%", "25"), "--budget .*: .* of the 24 prompt entries"),
                ("--budget", ("x", "-1", "", "100.5%"), "budget '"), ("--layers", ("2", "1-0"), "--layers")):
            for value in values:
                with self.subTest(f"{option} {value}"):
                    self.refuses(USAGE, pattern, "inspect", TRACE, "--heads", option, value, "--json", "out.json")
        for option, value in (("--sinks", "1"), ("--window", "4"), ("--pool", "3"), ("--budget", "9"), ("--layers", "0"),
                              ("--csv", "out.csv")):
            self.refuses(USAGE, f"{option} needs --heads", "inspect", TRACE, option, value)
        self.refuses(USAGE, "--csv: .*what --json writes", "inspect", TRACE, "--heads", "--json", "out", "--csv", "out")
        self.refuses(USAGE, "--csv: .*input", "inspect", TRACE, "--heads", "--csv", TRACE)

    def test_numbers_that_overflow_are_invalid(self):
        trace = TraceFile(dtype="F64")
        trace.tensors["layers.1.key"][1][0, 3] = 1e308
        trace.tensors["layers.1.query"][1][...] = 1e3
        trace.write(self.folder / TRACE)
        self.refuses(INVALID, r"layers\.1: its numbers are too large", "inspect", TRACE, "--heads", "--json", "out.json",
                     "--csv", "out.csv", silent=False)
        self.inspect(TRACE, "--layers", "0")


if __name__ == "__main__":
    kvbound_cli.main()
