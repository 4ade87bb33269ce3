"""kvbound predict against NumPy: every printed quantity, computed from its definition.

usage: predict_command_test.py KVBOUND      KVBOUND: the program's path
"""
import csv
import json
import math
import os

import numpy as np

import independent.replay
from independent.policy import parse_policy, resolve_budget
from independent.selection import keep
from support import kvbound_cli
from support.documents import predicted, read
from support.kvbound_cli import INCONCLUSIVE, INVALID, SAMPLES, USAGE, WORLD, CommandLineTest, TraceFile

SCORES = ("attention", "raw")
PREDICTORS = ("ema", "ema-paper", "mean", "window-mean", "last")
TRACE = "trace.safetensors"  # 2 layers, 24 prompt tokens, 8 recorded queries, 3 decode steps
SHARES = "1%,2%,5%,10%,20%,50%"
UNIT = 2.0**-53


def amount(text, entries):
    """An option's amount: a count, or a percentage of the entries, rounded down."""
    return entries * int(text[:-1]) // 100 if text.endswith("%") else min(int(text), entries)


def logits_of(trace, layer, head):
    """For each recorded query, in order of position, its logits of all entries that it attends to."""
    keys = layer.key[head // trace.group]
    first = trace.prompt_tokens - trace.window_queries
    return [keys[:first + i + 1] @ query * trace.scale for i, query in enumerate(layer.query[head])]


def log_scores_of(kind, logits):
    if kind == "raw":
        return logits
    largest = logits.max()
    return logits - largest - math.log(np.exp(logits - largest).sum())


def log_mean(log_scores, weights, divisor):
    """ln (sum w s / divisor)"""
    largest = log_scores.max()
    return largest + math.log((weights * np.exp(log_scores - largest)).sum() / divisor)


def predict(predictor, past, ema, window, tokens):
    """ln s^, the predicted log score of one entry, from the logarithms of its past scores."""
    past = np.array(past)
    ages = np.arange(len(past))[::-1]
    if predictor in ("ema", "ema-paper"):
        weights = (1 - ema) * ema**ages
        return log_mean(past, weights, weights.sum() if predictor == "ema" else 1 - ema**tokens)
    past = past[{"mean": 0, "window-mean": -window, "last": -1}[predictor]:]
    return log_mean(past, np.ones(len(past)), len(past))


def variance_means(rows, window):
    """{name: (mean, slack)} of the entries that more than `window` queries have seen; rows: every query's attention scores so
    far. Scores that are off by a relative e move a mean by at most e times its slack, to first order: a variance by 2 e of its
    scores' mean square. None for no entry."""
    seen = [np.array([row[j] for row in rows if len(row) > j]) for j in range(len(rows[-1]))]
    seen = [scores for scores in seen if len(scores) > window]
    whole, last = (np.array([np.var(scores[part:]) for scores in seen]) for part in (0, -window))
    slack, last_slack = (np.array([2 * np.mean(scores[part:]**2) for scores in seen]) for part in (0, -window))
    positive = whole >= np.finfo(float).tiny
    ratio = last[positive] / whole[positive]
    ratio_slack = (last_slack[positive] + ratio * slack[positive]) / whole[positive]
    return {name: (numbers.mean(), slacks.mean()) if len(numbers) else None
            for name, numbers, slacks in (("whole", whole, slack), ("window", last, last_slack), ("ratio", ratio, ratio_slack))}


def step_errors(rows, step, recorded, ema, window):
    """{predictor: (relative error, entry error)} of a step counted from 0; rows: every query's log scores."""
    actual = rows[recorded + step][:-1]
    past = [[row[j] for row in rows[:recorded + step] if len(row) > j] for j in range(len(actual))]
    errors = {}
    for predictor in PREDICTORS:
        predicted = np.array([predict(predictor, scores, ema, window, len(actual)) for scores in past])
        shift = actual.max()
        with np.errstate(over="ignore"):
            differences = np.abs(np.exp(predicted - shift) - np.exp(actual - shift)).sum() / np.exp(actual - shift).sum()
            errors[predictor] = differences, np.median(np.abs(np.exp(predicted - actual) - 1))
    return errors


def in_a_word(ratios):
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    median = float(np.median(ratios))
    return {"mean": sum(finite) / len(finite) if finite else None, "median": median if math.isfinite(median) else None,
            "undefined": len(ratios) - len(finite)}


def kept_positions(trace, layer, policy, budget, group):
    scores = independent.replay.prompt_scores(trace, layer, policy, group, budget)
    return set(keep(policy, budget - scores.always.sum(), scores))


class Predict(CommandLineTest):
    def document(self, *arguments):
        self.passes("predict", *arguments, "--json", "out.json")
        return predicted(read(self.folder / "out.json"))

    def require_near(self, ours, theirs, relative):
        """Compares {mean, median, undefined}: our mean and median must be within `relative` times (1 + theirs)."""
        self.assertEqual(ours["undefined"], theirs["undefined"])
        for figure in ("mean", "median"):
            if theirs[figure] is None:
                self.assertIsNone(ours[figure])
            else:
                self.assertLessEqual(abs(ours[figure] - theirs[figure]), relative * (1 + theirs[figure]), figure)

    def rounding(self, trace, layer, head):
        """The relative rounding error of any score, recorded or predicted. A logit is off by head_dim + 1 roundings of
        the sum of its absolute terms, and normalised scores use two logits; every past query adds the error of an
        exponential of a difference of logits, and a few roundings more."""
        queries, keys = np.abs(layer.query[head]), np.abs(layer.key[head // trace.group])
        size = (queries @ keys.T).max() * trace.scale
        return UNIT * (2 * (trace.head_dim + 2) * size + len(queries) * (2 * size + 16) + keys.shape[0])

    def require_head(self, trace, layer, head, kept, options, said):
        logits = logits_of(trace, layer, head)
        # Each side contributes the errors of |s^|, |s| and their sum; a quotient doubles them; two
        # sides double them again.
        relative = 8 * self.rounding(trace, layer, head)
        self.assertLess(relative, 1e-9, "bounds so wide that they prove little")
        for item, (kind, predictor) in zip(said["predictions"], [(k, p) for k in SCORES for p in PREDICTORS], strict=True):
            self.assertEqual((item["scores"], item["predictor"]), (kind, predictor))
        items = {(item["scores"], item["predictor"]): item for item in said["predictions"]}
        for kind in SCORES:
            rows = [log_scores_of(kind, row) for row in logits]
            errors = [step_errors(rows, step, trace.window_queries, options["ema"], options["window"])
                      for step in range(options["steps"])]
            for predictor in PREDICTORS:
                for index, name in enumerate(("relative_error", "entry_error")):
                    with self.subTest(f"head {head} {kind} {predictor} {name}"):
                        self.require_near(items[kind, predictor][name],
                                          in_a_word([step[predictor][index] for step in errors]), relative)
        self.require_variances(trace, logits, options, said["variances"], relative)
        evicted = set(range(trace.prompt_tokens)) - kept
        tops = [set(np.argsort(-row[:trace.prompt_tokens], kind="stable")[:amount(options["top"], trace.prompt_tokens)])
                for row in logits[trace.window_queries:][:options["steps"]]]
        shares = [len(top & evicted) / len(evicted) if evicted else 0 for top in tops]
        self.assertEqual(said["reentering"]["evicted"], len(evicted))
        self.assertEqual(said["reentering"]["ever"], len(set.union(*tops) & evicted) / len(evicted) if evicted else 0)
        self.assertAlmostEqual(said["reentering"]["at_a_step"], sum(shares) / len(shares), delta=len(shares) * UNIT)
        weights = [np.sort(np.exp(log_scores_of("attention", row)))[::-1]
                   for row in logits[trace.window_queries:][:options["steps"]]]
        for item, share in zip(said["mass"], options["shares"].split(","), strict=True):
            self.assertEqual(item["share"], share)
            masses = [row[:amount(share, len(row))].sum() for row in weights]
            for figure, expected in (("mean", np.mean(masses)), ("median", np.median(masses)), ("least", min(masses))):
                self.assertAlmostEqual(item[figure], expected, delta=relative)

    def require_variances(self, trace, logits, options, said, relative):
        rows = [np.exp(log_scores_of("attention", row)) for row in logits]
        steps = [variance_means(rows[:trace.window_queries + step + 1], options["window"]) for step in range(options["steps"])]
        for name, figure in said.items():
            expected = [step[name] for step in steps if step[name]]
            with self.subTest(f"variance {name}"):
                if not expected:
                    self.assertIsNone(figure)
                    continue
                mean, slack = np.mean(expected, axis=0)
                self.assertLess(slack * relative, 1e-6 * (mean or 1), "bounds so wide that they prove little")
                self.assertAlmostEqual(figure, mean, delta=slack * relative)

    def require_definition(self, path, ema=0.9, window=32, steps=None, policy="snapkv", budget="20%", top="20%",
                           shares=SHARES):
        trace = independent.replay.Trace(path)
        arguments = ["--ema", ema, "--window", window, "--policy", policy, "--budget", budget, "--top", top,
                     "--shares", shares] + (["--steps", steps] if steps else [])
        document = self.document(path, *arguments)
        options = {"ema": ema, "window": window, "steps": steps or trace.decode_tokens, "top": top, "shares": shares}
        for name in ("ema", "window", "steps", "top"):
            self.assertEqual(document[name], options[name])
        parsed = parse_policy(policy)
        entries = resolve_budget(budget, trace, parsed)
        for said in document["layers"]:
            layer = trace.layer(said["layer"])
            self.assertEqual(said["budget"], entries)
            for head in range(trace.query_heads):
                kept = kept_positions(trace, layer, parsed, entries, head // trace.group)
                self.require_head(trace, layer, head, kept, options, said["query_heads"][head])
        self.assertEqual([layer["layer"] for layer in document["layers"]], list(range(trace.layers)))
        return document

    def test_figures_are_those_of_the_definitions_on_generated_traces(self):
        for kind, heads, options in (
                ("mixed", (4, 2), {"policy": "snapkv:window=4:pool=3", "window": 5}),
                ("sink", (2, 2), {"policy": "h2o:window=8:sinks=2", "budget": "30%", "top": "40", "ema": 0.5, "window": 1}),
                ("power-law", (3, 1), {"policy": "tova+critical", "steps": 3, "ema": 0, "window": 4, "shares": "1,50%,100%,1000"})):
            path = self.generate(f"{kind}.safetensors", "--kind", kind, "--tokens", 61, "--decode", 5, "--layers", 2,
                                 "--head-dim", 7, "--model-dim", 9, "--window-queries", 16, "--query-heads", heads[0],
                                 "--kv-heads", heads[1])
            with self.subTest(kind):
                document = self.require_definition(path, **options)
                said = document["layers"][0]["query_heads"][0]
                figures = {item["relative_error"]["median"] for item in said["predictions"]}
                self.assertGreater(len(figures), 7 if options.get("ema") != 0 else 5, "figures that are all alike show nothing")
                self.assertGreater(said["reentering"]["ever"], 0)
                self.assertGreater(said["variances"]["whole"], 0)

    def test_logits_of_ten_thousand_leave_only_what_no_double_holds_undefined(self):
        trace = TraceFile(layers=1, dtype="F64")
        trace.tensors["layers.0.query"][1][...] *= 3e3
        path = trace.write(self.folder / TRACE)
        document = self.require_definition(path, policy="tova", window=3)
        undefined = {item["scores"]: item["relative_error"]["undefined"] for item in document["predictions"]}
        self.assertGreater(undefined["raw"], 0)
        self.assertLess(undefined["raw"], 4 * 3)

    def test_an_allocation_over_layers_gives_each_layer_its_budget(self):
        TraceFile(layers=3, prompt_tokens=40).write(self.folder / TRACE)
        document = self.document(TRACE, "--policy", "tova+pyramid:beta=2", "--budget", "10", "--layers", "0,2")
        self.assertEqual([layer["budget"] for layer in document["layers"]], [15, 5])
        for layer in document["layers"]:
            for head in layer["query_heads"]:
                self.assertEqual(head["reentering"]["evicted"], 40 - layer["budget"])

    def test_what_is_said_of_all_is_over_what_is_said_of_each(self):
        TraceFile().write(self.folder / TRACE)
        options = TRACE, "--policy", "tova", "--shares", "10%,3", "--window", 5
        document = self.document(*options)
        heads = [head for layer in document["layers"] for head in layer["query_heads"]]
        self.assertEqual(len(heads), 8)
        mean = lambda numbers: sum(numbers) / len(numbers)
        for index, item in enumerate(document["predictions"]):
            for error in ("relative_error", "entry_error"):  # heads have equally many steps
                self.assertTrue(math.isclose(item[error]["mean"],
                                             mean([head["predictions"][index][error]["mean"] for head in heads]),
                                             rel_tol=1e-14))
        for part, figures in (("reentering", ("ever", "at_a_step")), ("variances", ("whole", "window", "ratio"))):
            for figure in figures:
                self.assertTrue(math.isclose(document[part][figure], mean([head[part][figure] for head in heads]), rel_tol=1e-14))
        for index, item in enumerate(document["mass"]):
            self.assertEqual(item["least"], min(head["mass"][index]["least"] for head in heads))
        lines = [line.split() for line in self.passes("predict", *options).splitlines()]
        for item in document["predictions"]:
            cells = [f"{item[error][figure]:#.4g}" if figure != "undefined" else "0" for error in ("relative_error", "entry_error")
                     for figure in ("mean", "median", "undefined")]
            self.assertIn([item["scores"], item["predictor"], *cells], lines)
        for item in document["mass"]:
            self.assertIn([item["share"], *(f"{item[figure]:#.4g}" for figure in ("mean", "median", "least"))], lines)
        self.assertIn([f"{document['reentering'][figure]:#.4g}" for figure in ("ever", "at_a_step")], lines)
        self.assertIn([f"{document['variances'][figure]:#.4g}" for figure in ("whole", "window", "ratio")], lines)

    def test_a_window_of_all_queries_leaves_no_variance_to_compare(self):
        TraceFile().write(self.folder / TRACE)  # of 8 recorded queries and 3 steps
        options = TRACE, "--policy", "tova", "--window"
        self.assertGreater(self.document(*options, 10)["variances"]["ratio"], 0)
        document = self.document(*options, 11)
        self.assertEqual(document["variances"], {"whole": None, "window": None, "ratio": None})
        self.assertIn("no entry is seen by more queries than the window has", self.passes("predict", *options, 11))

    def test_layers_and_steps_give_the_corresponding_part_of_the_whole(self):
        TraceFile(layers=3).write(self.folder / TRACE)
        options = TRACE, "--policy", "tova"
        whole = self.document(*options)
        self.assertEqual(self.document(*options, "--layers", "0,2")["layers"], [whole["layers"][0], whole["layers"][2]])
        first = self.document(*options, "--steps", "1")
        self.assertNotEqual(first["layers"], whole["layers"])
        short = TraceFile(layers=3)
        for layer in range(3):
            for name in ("key", "value", "query"):
                dtype, array = short.tensors[f"layers.{layer}.{name}"]
                short.tensors[f"layers.{layer}.{name}"] = dtype, array[:, :-2]
        short.metadata["decode_tokens"] = "1"
        short.write(self.folder / TRACE)
        self.assertEqual(self.document(*options)["layers"], first["layers"])

    def test_csv_has_a_row_of_each_head_predictor_and_share(self):
        TraceFile().write(self.folder / TRACE)
        document = self.document(TRACE, "--policy", "tova", "--shares", "10%,3", "--csv", "out.csv")
        with open(self.folder / "out.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 8 * (1 + 2 * len(PREDICTORS) + 2))
        heads = {(layer["layer"], h): head for layer in document["layers"] for h, head in enumerate(layer["query_heads"])}
        for row in rows:
            head = heads[int(row["layer"]), int(row["head"])]
            if row["predictor"] != "all":
                said, = (item for item in head["predictions"] if (item["scores"], item["predictor"]) == (row["scores"], row["predictor"]))
                self.assertEqual(float(row["relative_error_median"]), said["relative_error"]["median"])
            elif row["share"] != "all":
                said, = (item for item in head["mass"] if item["share"] == row["share"])
                self.assertEqual(float(row["mass"]), said["mean"])
            else:
                self.assertEqual(float(row["reentered_ever"]), head["reentering"]["ever"])

    def test_the_whole_cache_evicts_nobody(self):
        TraceFile().write(self.folder / TRACE)
        document = self.document(TRACE, "--policy", "tova", "--budget", "100%")
        self.assertEqual(document["reentering"], {"ever": 0, "at_a_step": 0})

    def test_everything_is_the_same_with_any_number_of_threads(self):
        options = SAMPLES / "pocket-gqa.safetensors", "--layers", "1", "--steps", "9"
        said = []
        for threads in (1, 2, 5):
            table = self.passes("predict", *options, "--threads", threads, "--json", "out.json")
            document = json.loads((self.folder / "out.json").read_text())
            self.assertEqual(document["provenance"].pop("threads"), threads)
            said.append((table, document))
        self.assertEqual([other == said[0] for other in said], [True] * 3)

    def test_a_trace_without_decode_steps_is_inconclusive(self):
        TraceFile(decode_tokens=0).write(self.folder / TRACE)
        options = TRACE, "--policy", "tova"
        self.refuses(INCONCLUSIVE, "no decode step", "predict", *options, "--json", "out.json", silent=True)
        result = self.run_program("predict", *options, "--quiet")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (INCONCLUSIVE, "", ""))
        self.refuses(USAGE, "has no decode steps", "predict", *options, "--steps", "1")

    def test_numbers_too_large_are_named(self):
        trace = TraceFile(dtype="F64")
        trace.tensors["layers.1.key"][1][0, 3] = 1e300
        trace.tensors["layers.1.query"][1][...] *= 1e20
        trace.write(self.folder / TRACE)
        self.refuses(INVALID, r"trace\.safetensors: layers\.1: its numbers are too large", "predict", TRACE, "--policy",
                     "tova", "--json", "out.json")

    def test_options_without_sense_are_refused(self):
        TraceFile().write(self.folder / TRACE)
        usual = "predict", TRACE, "--policy", "tova"
        huge = "99999999999999999999"
        for option, values, pattern in (
                ("--ema", ("1", "-0.1", "2", "x", "", "nan", "1e-3", ".5"), "--ema '.*': expected a decimal number from 0"),
                ("--window", ("0", "-1", "x", "", "1.5", huge), "--window '.*': expected an integer"),
                ("--steps", ("0", "4", "x", ""), "--steps '.*': expected an integer from 1 to 3"),
                ("--top", ("0", "0%", "1%", "25"), "--top .* of the 24 prompt entries"),
                ("--top", ("x", "", "1.5", "101%", "-1"), "--top '.*': expected a count"),
                ("--shares", ("", "1,", ",1"), "empty"), ("--shares", ("5,5", "5%,5.0%"), "twice"),
                ("--shares", ("x", "1.5", "101%"), "--shares '.*': expected a count"),
                ("--budget", ("0", "25", "1%"), r"trace\.safetensors: policy '.*' at budget .* outside 1\.\.24"),
                ("--budget", ("x", "101%"), "budget '.*': expected a count"),
                ("--layers", ("2", "x", "1-0"), "--layers"), ("--threads", ("0", "x"), "--threads"),
                ("--header-limit", ("0",), "--header-limit")):
            for value in values:
                with self.subTest(f"{option} {value}"):
                    self.refuses(USAGE, pattern, *usual, option, value, "--json", "out.json")
        self.refuses(USAGE, "no host 'none'", "predict", TRACE, "--policy", "none")
        self.refuses(USAGE, "policy 'snapkv:window=32:pool=7' at budget 20%", "predict", TRACE)
        self.refuses(USAGE, "TRACE is missing", "predict")
        self.refuses(USAGE, "unexpected argument 'stray'", *usual, "stray")
        self.refuses(USAGE, "--json: .*input", *usual, "--json", TRACE)
        self.refuses(WORLD, "cannot", *usual, "--json", "missing/out")
        (self.folder / "bad").write_bytes(b"no trace")
        self.refuses(INVALID, "bad", "predict", "bad", "--json", "out.json")
        with open("/dev/full", "w") as full:
            result = self.run_program(*usual, "--json", "out.json", stdout=full)
        self.assertEqual(result.returncode, WORLD)
        self.assertFalse(os.path.exists(self.folder / "out.json"))


if __name__ == "__main__":
    kvbound_cli.main()
