"""kvbound recall and the column recall@K of replay, against NumPy: true errors by deleting entries, scores by formula.

usage: recall_command_test.py KVBOUND      KVBOUND: the program's path
"""
import csv
import io
import itertools
import json
import math
import os

import numpy as np

import independent.replay
from support import kvbound_cli
from support.documents import parts, read, replayed
from support.kvbound_cli import INCONCLUSIVE, INVALID, SAMPLES, USAGE, WORLD, CommandLineTest, TraceFile

SCORES = ("attention", "value", "key", "joint", "exact", "eq-1")
FIGURES = ("first_step", "first_step_recent", "mean_step", "mean_step_recent")
TRACE = "trace.safetensors"  # 2 layers, 24 prompt tokens, 8 recorded queries, 3 decode steps


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def attend(query, keys, values, scale):
    """Logits, weights and output of one query over all of a cache."""
    logits = keys @ query * scale
    weights = softmax(logits)
    return logits, weights, weights @ values


def eviction_errors(query, keys, values, scale):
    """|| o - o(-j) ||^2 of every entry j, computed by deleting the entry."""
    _, _, output = attend(query, keys, values, scale)
    without = (attend(query, np.delete(keys, j, 0), np.delete(values, j, 0), scale)[2] for j in range(len(keys)))
    return np.array([((output - other)**2).sum() for other in without])


def zeroing_errors(query, keys, values, scale):
    """|| o - o' ||^2 of every entry, computed by zeroing its key and value but leaving the entry in the cache."""
    _, _, output = attend(query, keys, values, scale)
    errors = []
    for j in range(len(keys)):
        zeroed_keys, zeroed_values = keys.copy(), values.copy()
        zeroed_keys[j], zeroed_values[j] = 0, 0
        errors.append(((output - attend(query, zeroed_keys, zeroed_values, scale)[2])**2).sum())
    return np.array(errors)


def query_scores(query, keys, values, scale):
    """Every kind of score, for every entry that the query attends to."""
    logits, weights, output = attend(query, keys, values, scale)
    squares = lambda rows: (rows**2).sum(axis=1)
    distances = values - output
    return {"attention": weights, "value": weights**2 * squares(values),
            "key": weights**2 * logits**2 * squares(distances),
            "joint": weights**2 * squares(values + logits[:, None] * distances),
            "exact": eviction_errors(query, keys, values, scale), "eq-1": zeroing_errors(query, keys, values, scale)}


def top(numbers, k):
    """The indices of the k largest numbers; among equals the smaller index wins."""
    return set(np.argsort(-numbers, kind="stable")[:k])


def head_parts(trace, layer, head):
    group = head // trace.group
    return layer.query[head], layer.key[group], layer.value[group]


def step_errors(trace, layer, head, step):
    """The eviction error of every prompt entry at a decode step; steps count from 1."""
    queries, keys, values = head_parts(trace, layer, head)
    there = trace.prompt_tokens + step
    return eviction_errors(queries[trace.window_queries + step - 1], keys[:there], values[:there],
                           trace.scale)[:trace.prompt_tokens]


def window_scores(trace, layer, head, window):
    queries, keys, values = head_parts(trace, layer, head)
    sums = {score: np.zeros(trace.prompt_tokens) for score in SCORES}
    for row in range(trace.window_queries - window, trace.window_queries):
        seen = trace.prompt_tokens - trace.window_queries + row + 1
        for score, numbers in query_scores(queries[row], keys[:seen], values[:seen], trace.scale).items():
            sums[score][:seen] += numbers
    return sums


def head_recalls(trace, layer, head, windows, k, recent):
    """{(score, window): recalls in the order of FIGURES} of one query head."""
    errors = [step_errors(trace, layer, head, step) for step in range(1, trace.decode_tokens + 1)]
    old = trace.prompt_tokens - recent
    recalls = {}
    for window in windows:
        for score, numbers in window_scores(trace, layer, head, window).items():
            recalls[score, window] = [len(top(numbers[:many], k) & top(truth[:many], k)) / k
                                      for truth in (errors[0], np.mean(errors, axis=0))
                                      for many in (trace.prompt_tokens, old)]
    return recalls


class Recall(CommandLineTest):
    def document(self, *arguments):
        self.passes("recall", *arguments, "--json", "out.json", "--csv", "out.csv")
        part, = parts(read(self.folder / "out.json"))
        return part

    @staticmethod
    def figures(part):
        """[layer, head, score and window, figure]"""
        return np.stack([part.column("heads", name) for name in FIGURES], axis=-1)

    def require_definition(self, path, windows, k, recent):
        """Returns the figures."""
        part = self.document(path, "--k", k, "--recent", recent, "--windows", ",".join(map(str, windows)))
        self.assertEqual([part.facts[name] for name in ("k", "recent", "windows")], [k, recent, list(windows)])
        trace, scored, found = independent.replay.Trace(path), part.axes["scored"], self.figures(part)
        self.assertEqual(part.axes["layer"]["layer"], list(range(trace.layers)))
        self.assertEqual(list(zip(scored["score"], scored["window"])), list(itertools.product(SCORES, windows)))
        for index, head in itertools.product(range(trace.layers), range(trace.query_heads)):
            recalls = head_recalls(trace, trace.layer(index), head, windows, k, recent)
            for figures, (score, window) in zip(found[index, head], itertools.product(SCORES, windows), strict=True):
                with self.subTest(f"layer {index} head {head} {score} {window}"):
                    self.assertEqual(figures.tolist(), recalls[score, window])
        return found

    def test_recalls_are_those_of_the_definitions_on_generated_traces(self):
        for kind, options in (("mixed", ("--query-heads", 4, "--kv-heads", 2)), ("sink", ("--query-heads", 2, "--kv-heads", 2)),
                              ("power-law", ("--query-heads", 3, "--kv-heads", 1))):
            path = self.generate(f"{kind}.safetensors", "--kind", kind, "--tokens", 61, "--decode", 5, "--layers", 2,
                                 "--head-dim", 7, "--model-dim", 9, "--window-queries", 16, *options)
            found = self.require_definition(path, (1, 5, 16), 8, 11)
            self.assertGreater(len(np.unique(found[:, 0])), 3, f"{kind}: recalls that are all alike show nothing")

    def test_scores_that_differ_have_recalls_that_differ(self):
        """Otherwise one score could be reported in place of another without failing a test."""
        trace = TraceFile(prompt_tokens=60, window_queries=20, decode_tokens=4, dtype="F64")
        for layer in range(2):  # negative logits, so that a zeroed key (logit 0) has a noticeable weight
            trace.tensors[f"layers.{layer}.query"][1][...] += 2
            trace.tensors[f"layers.{layer}.key"][1][...] -= 2
        path = trace.write(self.folder / TRACE)
        found = self.require_definition(path, (3, 20), 7, 10)
        for one, other in itertools.combinations(range(len(SCORES)), 2):
            self.assertTrue((found[:, :, 2 * one:2 * one + 2] != found[:, :, 2 * other:2 * other + 2]).any(),
                            f"{SCORES[one]} and {SCORES[other]}")

    def test_means_csv_and_table_agree_with_the_layers(self):
        path = TraceFile().write(self.folder / TRACE)
        part = self.document(TRACE, "--k", 6, "--recent", 3, "--windows", "8,2")
        rows = list(csv.DictReader(io.StringIO((self.folder / "out.csv").read_text()), strict=True))
        self.assertEqual(len(rows), 2 * 4 * len(SCORES) * 2)
        for row, said in zip(rows, part.rows("heads"), strict=True):
            self.assertEqual([row[name] for name in ("trace", "k", "recent")], [TRACE, "6", "3"])
            self.assertEqual({name: row[name] if name == "score" else float(row[name]) for name in said}, said)
        table = self.passes("recall", TRACE, "--k", 6, "--recent", 3, "--windows", "8,2")
        self.assertIn("recall@6", table)
        self.assertIn("the newest 3 prompt positions", table)
        lines = [line.split() for line in table.splitlines()]
        for mean in part.rows("scores"):
            same = [row for row in rows if (row["score"], row["window"]) == (mean["score"], str(mean["window"]))]
            for name in FIGURES:
                self.assertTrue(math.isclose(mean[name], sum(float(row[name]) for row in same) / 8, rel_tol=1e-14))
            self.assertIn([mean["score"], str(mean["window"])] + [f"{mean[name]:#.4g}" for name in FIGURES], lines)
        self.assertEqual(part.facts["path"], path.name)

    def test_layers_give_the_corresponding_part_of_the_whole(self):
        TraceFile(layers=3).write(self.folder / TRACE)
        options = "--k", "5", "--recent", "2"
        whole = self.document(TRACE, *options)
        part = self.document(TRACE, *options, "--layers", "2,0")
        self.assertEqual(part.axes["layer"]["layer"], [0, 2])
        np.testing.assert_array_equal(self.figures(part), self.figures(whole)[[0, 2]])

    def test_what_is_not_said_is_40_entries_32_recent_and_the_windows_that_are_recorded(self):
        TraceFile(prompt_tokens=72, window_queries=17, layers=1).write(self.folder / TRACE)
        facts = self.document(TRACE).facts
        self.assertEqual((facts["k"], facts["recent"], facts["windows"]), (40, 32, [1, 8, 16]))

    def test_columns_choose_what_the_table_shows(self):
        TraceFile().write(self.folder / TRACE)
        table = self.passes("recall", TRACE, "--k", 6, "--recent", 3, "--columns", "mean_step,step 1")
        self.assertIn(["score", "window", "step", "1", "all", "steps"], [line.split() for line in table.splitlines()])
        self.refuses(USAGE, "--columns: no column 'L'; known columns: first_step,", "recall", TRACE, "--k", 6, "--recent", 3, "--columns", "L")

    def test_everything_is_the_same_with_any_number_of_threads(self):
        options = SAMPLES / "pocket-gqa.safetensors", "--layers", "1", "--windows", "1,16"
        said = []
        for threads in (1, 2, 5):
            table = self.passes("recall", *options, "--threads", threads, "--json", "out.json", "--csv", "out.csv")
            document = json.loads((self.folder / "out.json").read_text())
            self.assertEqual(document["provenance"].pop("threads"), threads)
            said.append((table, document, (self.folder / "out.csv").read_bytes()))
        self.assertEqual([other == said[0] for other in said], [True] * 3)

    def test_a_trace_without_decode_steps_is_inconclusive(self):
        TraceFile(decode_tokens=0).write(self.folder / TRACE)
        options = TRACE, "--k", "5", "--recent", "2"
        self.refuses(INCONCLUSIVE, "no decode step", "recall", *options, "--json", "out.json", silent=True)
        result = self.run_program("recall", *options, "--quiet")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (INCONCLUSIVE, "", ""))

    def test_numbers_too_large_are_named_and_weights_of_nearly_one_are_none(self):
        trace = TraceFile(dtype="F64")
        trace.tensors["layers.1.value"][1][0, 3] = 1e200
        trace.write(self.folder / TRACE)
        self.refuses(INVALID, r"trace\.safetensors: layers\.1: its numbers are too large", "recall", TRACE, "--k", "5",
                     "--recent", "2", "--json", "out.json")
        trace = TraceFile(dtype="F64", layers=1)
        trace.tensors["layers.0.query"][1][...] *= 1000  # some query gives one entry all but 1e-300
        trace.write(self.folder / TRACE)
        self.document(TRACE, "--k", "5", "--recent", "2")

    def test_options_without_sense_are_refused(self):
        TraceFile().write(self.folder / TRACE)
        good = {"--k": "5", "--recent": "2", "--windows": "1,8"}
        huge = "99999999999999999999"
        for option, values, pattern in (
                ("--k", ("0", "-1", "25", "x", "", "1.5", "nan", huge), "--k '.*': expected an integer from 1 to 24"),
                ("--k", ("23", "24"), r"--k .* and --recent 2: trace\.safetensors has 24 prompt tokens, so 22 candidates"),
                ("--recent", ("-1", "24", "25", "x", "", "1e1", huge), "--recent '.*': expected an integer from 0 to 23"),
                ("--recent", ("20", "23"), "--k 5 and --recent"),
                ("--windows", ("0", "-1", "9", "1,9", "x", "1.5", huge),
                 "--windows '.*': expected integers from 1 to the 8 prompt queries"),
                ("--windows", ("", ",", "1,", "1,,8"), "empty"), ("--windows", ("8,8", "1,08,8"), "twice"),
                ("--layers", ("2", "x", "1-0"), "--layers"), ("--threads", ("0", "x"), "--threads"),
                ("--header-limit", ("0",), "--header-limit")):
            for value in values:
                words = itertools.chain.from_iterable({**good, option: value}.items())
                with self.subTest(f"{option} {value}"):
                    self.refuses(USAGE, pattern, "recall", TRACE, *words, "--json", "out.json", "--csv", "out.csv")
        usual = "recall", TRACE, "--k", "5", "--recent", "2"
        self.refuses(USAGE, "--k 40 and --recent 32|--recent|--k", "recall", TRACE)
        self.refuses(USAGE, "TRACE is missing", "recall")
        self.refuses(USAGE, "unexpected argument 'stray'", *usual, "stray")
        self.refuses(USAGE, "unrecognised", *usual, "--policy", "snapkv")
        self.refuses(USAGE, "--json: .*input", *usual, "--json", TRACE)
        self.refuses(USAGE, "--csv: .*--json writes", *usual, "--json", "out", "--csv", "out")
        self.refuses(WORLD, "cannot", *usual, "--json", "missing/out")
        self.refuses(WORLD, "cannot write /dev/full", *usual, "--json", "out", "--csv", "/dev/full", silent=False)
        (self.folder / "bad").write_bytes(b"no trace")
        self.refuses(INVALID, "bad", "recall", "bad", "--json", "out.json")
        with open("/dev/full", "w") as full:
            result = self.run_program(*usual, "--json", "out.json", stdout=full)
        self.assertEqual(result.returncode, WORLD)
        self.assertFalse(os.path.exists(self.folder / "out.json"))


class ReplayRecall(CommandLineTest):
    """The column recall@K."""

    POLICIES = "snapkv:window=4,snapkv:window=4+exact,h2o:window=4,tova+obcache-joint,streaming-llm,random:sinks=1:window=4"

    def replay(self, *arguments, code=0):
        table = self.passes("replay", TRACE, *arguments, "--json", "out.json", code=code)
        return replayed(read(self.folder / "out.json")), table

    def test_it_is_the_share_kept_of_the_entries_that_would_be_missed_most(self):
        path = TraceFile(prompt_tokens=50, query_heads=6).write(self.folder / TRACE)
        trace = independent.replay.Trace(path)
        document, table = self.replay("--policy", self.POLICIES, "--budget", "10,16", "--recall", "7", "--dump", "dumps/")
        self.assertIn("recall@7", table)
        self.assertEqual(document["recall_of"], 7)
        errors = [[sum(step_errors(trace, trace.layer(index), head, 1) for head in range(3 * g, 3 * g + 3))
                   for g in range(2)] for index in range(2)]
        seen = set()
        for run in document["runs"]:
            name = f"{run['policy']}@{run['budget']}@reference.safetensors".replace(":", "_")
            _, tensors = independent.replay.open_tensors(self.folder / "dumps" / name)
            shares = []
            for index in range(2):
                kept, ends = (independent.replay.read_tensor(tensors[f"layers.{index}.{kind}"])
                              for kind in ("kept", "kept_offsets"))
                expected = [len(top(errors[index][g], 7) & set(kept[ends[g]:ends[g + 1]])) / 7 for g in range(2)]
                self.assertEqual(run["layers"][index]["recall"], expected)
                shares += expected
            self.assertEqual(run["recall_undefined"], 0)
            self.assertTrue(math.isclose(run["recall"], sum(shares) / 4, rel_tol=1e-14))
            (line,) = (line for line in table.splitlines() if line.split()[:2] == [self.label(run), run["budget"]])
            self.assertIn(f"{run['recall']:#.4g}", line)
            seen.update(shares)
        self.assertGreater(len(seen), 3, "recalls that are all alike show nothing")

    def label(self, run):
        """The element of the list POLICIES that stands for this run's policy."""
        (label,) = (label for label in self.POLICIES.split(",")
                    if independent_words(label) <= independent_words(run["policy"])
                    and len(label.split("+")) == len(run["policy"].split("+")))
        return label

    def test_the_whole_cache_has_all_and_a_large_k_is_all_entries(self):
        TraceFile().write(self.folder / TRACE)
        document, table = self.replay("--policy", "snapkv:window=4", "--budget", "6,100%", "--recall", "1000")
        self.assertIn("recall@24", table)
        self.assertEqual(document["recall_of"], 24)
        for run, share in zip(document["runs"], (0.25, 1)):
            self.assertEqual((run["recall"], run["recall_undefined"]), (share, 0))

    def test_without_decode_steps_there_is_none(self):
        TraceFile(decode_tokens=0).write(self.folder / TRACE)
        document, _ = self.replay("--policy", "snapkv:window=4", "--budget", "6", code=INCONCLUSIVE)
        self.assertEqual((document["runs"][0]["recall"], document["runs"][0]["recall_undefined"]), (None, 0))
        self.assertEqual([layer["recall"] for layer in document["runs"][0]["layers"]], [None, None])

    def test_errors_too_large_for_a_double_leave_it_undefined(self):
        trace = TraceFile(dtype="F64", layers=1)
        trace.tensors["layers.0.value"][1][0, 3] = 1e200
        trace.write(self.folder / TRACE)
        document, table = self.replay("--policy", "snapkv:window=4", "--budget", "6")
        self.assertEqual((document["runs"][0]["recall"], document["runs"][0]["recall_undefined"]), (None, 2))
        self.assertGreater(document["runs"][0]["perturbation"], 1e100, "what can be measured is")

    def test_columns_choose_what_the_table_shows_and_nothing_else(self):
        TraceFile().write(self.folder / TRACE)
        replay = "--policy", "snapkv:window=4,snapkv:window=4+critical", "--budget", "8"
        whole, table = self.replay(*replay)
        part, narrow = self.replay(*replay, "--columns", "recall,perturbation")
        for document in (whole, part):
            del document["times"]
            for run in document["runs"]:
                del run["compress_seconds"], run["step_seconds"]
        self.assertEqual(part, whole)
        rows = [[cell for cell in line.split("  ") if cell] for line in narrow.splitlines()]
        self.assertIn(["policy", "budget", "L", "recall@24"], [[cell.strip() for cell in row] for row in rows])
        wide = next(line for line in table.splitlines() if line.startswith("snapkv:window=4 "))
        short = next(line for line in narrow.splitlines() if line.startswith("snapkv:window=4 "))
        self.assertTrue(set(short.split()) <= set(wide.split()))
        self.assertEqual(len(short.split()), 4)

    def test_options_without_sense_are_refused(self):
        TraceFile().write(self.folder / TRACE)
        replay = "replay", TRACE, "--policy", "snapkv:window=4", "--budget", "8"
        for option, values, pattern in (
                ("--recall", ("0", "-1", "x", "", "1.5", "99999999999999999999"), "--recall '.*': expected an integer"),
                ("--columns", ("mass", "policy", "recall@40", "kept mass "), "no column '.*'; (did you mean \w+\? )?known columns: entries, backend"),
                ("--columns", ("", "recall,"), "empty"), ("--columns", ("recall,recall",), "twice")):
            for value in values:
                with self.subTest(f"{option} {value}"):
                    self.refuses(USAGE, pattern, *replay, option, value)


def independent_words(policy):
    return set(policy.replace("+", ":").split(":"))


if __name__ == "__main__":
    kvbound_cli.main()
