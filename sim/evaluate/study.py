#!/usr/bin/env python3
"""What the policies of CriticalKV, OBCache and KeepKV, and their hosts, do to one model: needles of one and of several values, and
continuations of prose and of code, through compressed caches; how many heads CriticalKV improves, by decode step; how often its
Assumption 3.4 holds, by head.

    study.py MODEL.gguf OUT --prose FILE --code FILE

OUT is a folder. What is there already is not computed again: after Ctrl-C the same command goes on. At the end OUT has
tables.md, page.html (kvbound report) and the documents of which both are made. Traces and CSV files are most of its bytes.

MODEL is what download_model.py writes, or another GGUF with byte-level BPE; for these the Python packages tokenizers and gguf are
needed (traces/scripts/requirements.txt). With --bytes it is a model whose tokens are bytes, such as traces/samples/pocket.

A change is that of the mean over tasks, of which the same ones are compared; its 95 % interval is by 2,000 resamples of the tasks.
The share of heads that a policy improves is that of (layer, query head) with a smaller L, at one step or in the mean over steps;
its interval is Student's over the traces.

Exit codes: 0; 2 usage; 3 a folder of another study; 4 I/O; of what it runs.
"""
import csv
import json
import math
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "traces" / "scripts"
sys.path.insert(0, str(SCRIPTS))
from script_options import Parser, count, run  # noqa: E402

from kvbound.errors import InvalidInput  # noqa: E402
from kvbound.recording.temporary_name import temporary_beside  # noqa: E402

BUDGETS = ("10%", "20%", "40%")
HEADS = "headkv:scores=heads.json"
# What is compared: a name, a policy, and the one that it is to be better than.
PAIRS = (
    ("CriticalKV", "snapkv+critical", "snapkv"),
    ("CriticalKV, ε = 1e-2", "snapkv+critical:epsilon=1e-2", "snapkv"),
    ("CriticalKV, without pooling", "snapkv:pool=1+critical", "snapkv:pool=1"),
    ("CriticalKV in AdaKV", "snapkv+critical+adakv", "snapkv+adakv"),
    ("CriticalKV in HeadKV", f"snapkv+critical+{HEADS}", f"snapkv+{HEADS}"),
    ("OBCache, value", "h2o+obcache-value", "h2o"),
    ("OBCache, key", "h2o+obcache-key", "h2o"),
    ("OBCache, joint", "h2o+obcache-joint", "h2o"),
    ("KeepKV", "snapkv+keepkv", "snapkv"),
    ("KeepKV, without pooling", "snapkv:pool=1+keepkv", "snapkv:pool=1"),
    ("KeepKV in H2O", "h2o+keepkv", "h2o"),
    ("D2O's merges", "snapkv+d2o", "snapkv"),
    ("AdaKV", "snapkv+adakv", "snapkv"),
    ("HeadKV", f"snapkv+{HEADS}", "snapkv"),
    ("SnapKV without pooling", "snapkv:pool=1", "snapkv"),
    ("H2O", "h2o", "snapkv"),
    ("TOVA", "tova", "snapkv"),
    ("StreamingLLM", "streaming-llm", "snapkv"),
    ("chance", "random", "snapkv"),
)
POLICIES = tuple(dict.fromkeys(policy for _, *pair in PAIRS for policy in reversed(pair)))
# Those whose heads are looked at one by one, on traces.
OF_HEADS = PAIRS[:4]
RESAMPLES = 2000
# Student's t of 95 %, by degrees of freedom.
STUDENT = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)
ANSWERS = ("needle", "values")  # kinds of tasks
STEPS = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 32), (33, 64))  # decode steps that are counted together


class Study:
    """The steps of a study, each of which makes files of its folder from others, if they are missing."""

    def __init__(self, options):
        self.options, self.out = options, options.out
        (self.out / "traces").mkdir(parents=True, exist_ok=True)
        asked = {name: str(value) for name, value in vars(options).items() if name not in ("out", "kvbound")}
        begun = self.out / "study.json"
        if not begun.exists():
            self.write(begun, json.dumps(asked, indent=1))
        for name, value in json.loads(begun.read_text("utf-8")).items():
            if value != asked.get(name):
                raise InvalidInput(f"{begun}: is of another study: {name} was {value}, and is {asked.get(name)}")

    @staticmethod
    def write(path, text):
        """A whole file or none."""
        temporary = temporary_beside(path)
        temporary.write_text(text, "utf-8")
        temporary.replace(path)

    def call(self, *command):
        print("$", *command, file=sys.stderr, flush=True)
        code = subprocess.run([*map(str, command)], cwd=self.out, stdout=subprocess.DEVNULL).returncode
        if code:
            sys.exit(code if code > 0 else 128 - code)

    def kvbound(self, *arguments):
        self.call(self.options.kvbound, *arguments)

    def make_tasks(self, name, text, *options):
        """The tasks of a file of the folder, which is made of a text."""
        path = self.out / f"{name}.jsonl"
        if not path.exists():
            tokenizer = "bytes" if self.options.bytes else self.options.model.resolve()
            self.call(sys.executable, SCRIPTS / "make_tasks.py", text.resolve(), tokenizer, path.resolve(), "--lengths", self.options.length,
                      *options)
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    def tasks(self):
        """{kind: its tasks}, and all of them in one file."""
        many, needles = ("--tasks", self.options.tasks), ("--make", "needle", "--needles", 1, "--answer", 5)
        continuation = "--make", "continuation", "--continuation", self.options.continuation
        prose, code = self.options.prose, self.options.code
        kinds = {"needle": self.make_tasks("needle", prose, *many, *needles),
                 "values": self.make_tasks("values", prose, *many, *needles, "--values", 3),
                 "prose": self.make_tasks("prose", prose, *many, *continuation), "code": self.make_tasks("code", code, *many, *continuation)}
        every = self.out / "tasks.jsonl"
        if not every.exists():
            self.write(every, "".join(json.dumps(task | {"id": f"{kind}-{number}", "kind": kind}) + "\n"
                                      for kind, tasks in kinds.items() for number, task in enumerate(tasks, 1)))
        return kinds

    def record(self, name, task, steps):
        """The trace of a task, whose target are its decode steps."""
        trace = self.out / "traces" / f"{name}.safetensors"
        if not trace.exists():
            tokens = self.out / "traces" / f"{name}.tokens"
            prompt, target = ids(task, "prompt"), ids(task, "answer") or ids(task, "continuation")
            self.write(tokens, " ".join(map(str, prompt + target[:steps])))
            self.kvbound("record", self.options.model.resolve(), "--tokens", tokens.resolve(), "--prompt", len(prompt), "--steps",
                         min(steps, len(target)), "--dtype", "BF16", trace.resolve(), "--quiet")
        return trace

    def score_heads(self):
        """heads.json: importances by needles that no task has."""
        if (self.out / "heads.json").exists():
            return
        examples = self.make_tasks("examples", self.options.prose, "--tasks", 4, "--make", "needle", "--needles", 1, "--answer", 5,
                                   "--seed", 2)
        traces, needles = [], []
        for number, task in enumerate(examples, 1):
            answer = ids(task, "answer")
            traces.append(self.record(f"example-{number}", task, len(answer)))
            first = place_of(answer, ids(task, "prompt"))
            needles.append(f"{first}-{first + len(answer) - 1}")
        self.kvbound("predict", *(trace.resolve() for trace in traces), "--head-scores", "heads.json", "--needle", ",".join(needles), "--quiet")

    def evaluate(self):
        if not (self.out / "evaluate.json").exists():
            self.kvbound("evaluate", self.options.model.resolve(), "tasks.jsonl", "--policy", ",".join(POLICIES), "--base", "snapkv", "--budget",
                         ",".join(BUDGETS), "--json", "evaluate.json", "--resume", "evaluate.results")

    def replay(self, kinds):
        """The documents of traces of some tasks of each kind but several values."""
        policies = dict.fromkeys(policy for _, *pair in OF_HEADS for policy in reversed(pair))
        replays = {}
        for kind in ("needle", "prose", "code"):
            for number, task in enumerate(kinds[kind][:self.options.traces], 1):
                name = f"{kind}-{number}"
                replays[name] = self.out / f"replay-{name}.json"
                if not (replays[name].exists() and replays[name].with_suffix(".csv").exists()):
                    trace = self.record(name, task, self.options.continuation)
                    self.kvbound("replay", trace.resolve(), "--policy", ",".join(policies), "--base", "snapkv", "--budget", ",".join(BUDGETS),
                                 "--csv", f"replay-{name}.csv", "--json", replays[name].name, "--quiet")
        return replays

    def report(self, replays):
        self.kvbound("report", "evaluate.json", *(path.name for path in replays.values()), "-o", "page.html", "--quiet")


def ids(task, member):
    """The tokens of a task's member; none, if it has no such member."""
    return task.get(member) or list(task.get(f"{member}_text", "").encode())


def place_of(part, whole):
    """Where a list first stands in another."""
    return next(i for i in range(len(whole)) if whole[i:i + len(part)] == part)


# Figures


def bootstrap(pairs, figure, seed=1):
    """figure(own, base), and its 95 % interval by resamples of the pairs."""
    draw = random.Random(seed)
    def of(chosen):
        return figure([own for own, _ in chosen], [base for _, base in chosen])
    found = sorted(of(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return of(pairs), found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]


def change_of_means(own, base):
    return 100 * (sum(own) / sum(base) - 1) if sum(base) else 0.0


def difference_of_sums(own, base):
    return sum(own) - sum(base)


def student(numbers):
    """The mean, and half its 95 % interval."""
    mean = sum(numbers) / len(numbers)
    if len(numbers) < 2:
        return mean, math.nan
    variance = sum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
    return mean, STUDENT[min(len(numbers), len(STUDENT)) - 1] * math.sqrt(variance / len(numbers))


class Evaluation:
    """{(kind, policy, budget): [a number of each task]} of evaluate.json; the full cache's policy is None."""

    def __init__(self, path):
        part, = json.loads(path.read_text("utf-8"))["parts"]
        self.axes, cube = part["axes"], part["cubes"]["task_runs"]
        assert cube["axes"] == ["task", "run"], cube["axes"]
        self.columns = cube["columns"]
        self.kinds = dict.fromkeys(self.axes["task"]["kind"])

    def of(self, figure, kind, policy, budget):
        runs = self.axes["run"]
        place = next(r for r, (label, share) in enumerate(zip(runs["label"], runs["budget"])) if (label, share) == (policy, budget))
        numbers = self.columns[figure][place::len(runs["label"])]
        return [number or 0 for number, own in zip(numbers, self.axes["task"]["kind"]) if own == kind]


def improved_heads(path):
    """{(name, budget, step or "mean"): share of heads that the first of a pair of policies improves} of a replay's rows."""
    runs = defaultdict(dict)
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["head"] and row["step"] and row["perturbation"]:
                runs[row["label"], row["budget"]][row["layer"], row["head"], int(row["step"])] = float(row["perturbation"])
    shares = {}
    for name, policy, base in OF_HEADS:
        for budget in BUDGETS:
            own, other = runs[policy, budget], runs[base, budget]
            better, sums = defaultdict(list), defaultdict(float)
            for place, number in own.items():
                better[place[2]].append(number < other[place])
                sums[place[:2]] += number - other[place]
            for step, found in better.items():
                shares[name, budget, step] = sum(found) / len(found)
            shares[name, budget, "mean"] = sum(change < 0 for change in sums.values()) / len(sums)
    return shares


def failures_of_heads(path):
    """{(policy, budget): [share of steps in which Assumption 3.4 fails, of every layer and head]} of a replay."""
    part, = json.loads(path.read_text("utf-8"))["parts"]
    cube, runs = part["cubes"]["heads"], part["axes"]["run"]
    failed = cube["columns"]["stage_one_low"]
    size = len(failed) // len(runs["label"])
    return {(label, budget): failed[r * size:(r + 1) * size] for r, (label, budget) in enumerate(zip(runs["label"], runs["budget"]))
            if "+critical" in label}


# Tables


def table(headings, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (headings, ["---"] * len(headings), *rows)) + "\n"


def interval(numbers):
    return "{:+.0f} [{:+.0f}, {:+.0f}]".format(*numbers)


def divergence_table(evaluation):
    """KL of every policy, and the answers."""
    rows = []
    for policy in POLICIES:
        row = [f"`{policy}`"]
        for kind in evaluation.kinds:
            for budget in BUDGETS:
                numbers = evaluation.of("kl", kind, policy, budget)
                row.append(f"{1000 * sum(numbers) / len(numbers):.3g}")
        rows.append(row)
    return table(["policy", *(f"{kind}, {budget}" for kind in evaluation.kinds for budget in BUDGETS)], rows)


def answer_table(evaluation):
    rows = []
    for policy in (None, *POLICIES):
        row = [f"`{policy}`" if policy else "full cache"]
        for kind in ANSWERS:
            for budget in BUDGETS:
                exact, hits = (evaluation.of(figure, kind, policy or "full cache", budget if policy else "100%") for figure in ("exact", "hits"))
                row.append(f"{sum(exact):.0f} of {len(exact)} ({100 * sum(hits) / len(hits):.0f} %)")
        rows.append(row)
    return table(["policy", *(f"{kind}, {budget}" for kind in ANSWERS for budget in BUDGETS)], rows)


def pair_table(evaluation, figure, change, kinds):
    rows = []
    for name, policy, base in PAIRS:
        row = [name]
        for kind in kinds:
            for budget in BUDGETS:
                pairs = list(zip(evaluation.of(figure, kind, policy, budget), evaluation.of(figure, kind, base, budget)))
                row.append(interval(bootstrap(pairs, change)))
        rows.append(row)
    return table(["", *(f"{kind}, {budget}" for kind in kinds for budget in BUDGETS)], rows)


def improved_table(replays):
    """By pair and budget: in the mean over steps, then at steps."""
    of_traces = [improved_heads(path.with_suffix(".csv")) for path in replays.values()]
    rows = []
    for name, *_ in OF_HEADS:
        for budget in BUDGETS:
            def cell(steps):
                found = [[shares[name, budget, step] for step in steps if (name, budget, step) in shares] for shares in of_traces]
                means = [100 * sum(own) / len(own) for own in found if own]
                if not means:
                    return "-"
                mean, reach = student(means)
                return f"{mean:.0f} % ± {reach:.0f}" if len(means) > 1 else f"{mean:.0f} %"
            rows.append([name, budget, cell(["mean"]), *(cell(range(first - 1, last)) for first, last in STEPS)])
    return table(["", "budget", "mean over steps", *(f"step {first}" if first == last else f"steps {first} to {last}" for first, last in STEPS)],
                 rows)


def assumption_table(replays):
    of_traces = [failures_of_heads(path) for path in replays.values()]
    rows = []
    for policy, budget in of_traces[0]:
        heads = [share for found in of_traces for share in found[policy, budget]]
        counted = [sum(low <= share <= high for share in heads) for low, high in ((0, 0), (1e-12, 0.5), (0.5 + 1e-12, 1))]
        rows.append([f"`{policy}`", budget, f"{100 * sum(heads) / len(heads):.1f} %", *(f"{100 * number / len(heads):.0f} %" for number in counted)])
    return table(["policy", "budget", "steps", "heads: in no step", "in up to half", "in more than half"], rows)


def tables(evaluation, replays):
    return "\n".join((
        "Kullback-Leibler divergence of the next token, in thousandths of a nat\n", divergence_table(evaluation),
        "Answers that are exact, and the share of their tokens that are right\n", answer_table(evaluation),
        "Change of the divergence against the policy's host, in % of the mean [95 %]\n", pair_table(evaluation, "kl", change_of_means, evaluation.kinds),
        "Change of L against the policy's host, in % of the mean [95 %]\n", pair_table(evaluation, "perturbation", change_of_means, evaluation.kinds),
        "More answers that are exact than with the host [95 %]\n", pair_table(evaluation, "exact", difference_of_sums, ANSWERS),
        "Heads of smaller L than with the host, of all layers, ± half a 95 % interval over traces\n", improved_table(replays),
        "Where Assumption 3.4 fails, by (layer, query head, trace)\n", assumption_table(replays)))


def main():
    parser = Parser(__doc__)
    parser.add_argument("model", metavar="MODEL", type=Path)
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("--prose", metavar="FILE", type=Path, required=True, help="a text in UTF-8, for needles and continuations")
    parser.add_argument("--code", metavar="FILE", type=Path, required=True, help="source code, for continuations")
    parser.add_argument("--bytes", action="store_true", help="the model's tokens are bytes")
    parser.add_argument("--length", metavar="N", type=count(400), default=1024, help="tokens of a prompt, 400 or more (default: 1024)")
    parser.add_argument("--tasks", metavar="N", type=count(1), default=8, help="tasks of each kind (default: 8)")
    parser.add_argument("--continuation", metavar="N", type=count(2), default=48, help="tokens of a continuation (default: 48)")
    parser.add_argument("--traces", metavar="N", type=count(1), default=2, help="traces of each kind (default: 2)")
    parser.add_argument("--kvbound", metavar="PROGRAM", default="kvbound", help="the program (default: kvbound in the path)")
    study = Study(parser.parse_args())
    kinds = study.tasks()
    study.score_heads()
    study.evaluate()
    replays = study.replay(kinds)
    study.report(replays)
    text = tables(Evaluation(study.out / "evaluate.json"), replays)
    study.write(study.out / "tables.md", text)
    print(text)


if __name__ == "__main__":
    run("study", main)
