"""Every command that writes, on inputs so small that it ends within a moment, and what it wrote."""
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from support.flashinfer_dumps import Batch, Dumps, record_decode
from support.kernel_files import decode
from support.kvbound_cli import INCONCLUSIVE, PASS, WORLD
from support.tiny_model import TinyModel

POLICY = "snapkv:window=4"
RUNS = "--policy", f"{POLICY},{POLICY}+critical", "--budget", "8"
EVALUATE = "evaluate", "../inputs/model", "../inputs/tasks.jsonl", *RUNS
TASKS = [{"id": f"task {i}", "prompt": [(7 * i + j) % 64 for j in range(14)], "answer": [i, i + 1]} for i in range(3)]
MEASURED = re.compile(r"\b[0-9]+ items computed in |\b(?:[0-9.]+(?:e-?\d+)? (?:ns|us|ms|s|min|h)\b|[0-9.]+ [GM]B/s)")
# Members of documents that are times, or say where they were taken.
TIMES_AND_HOSTS = {"times", "compress_seconds", "step_seconds", "prefill_seconds", "decode_seconds", "device", "threads"}


@dataclass(frozen=True)
class Command:
    """arguments  of the program, in a folder of its own beside `inputs`
    outputs    the files that it replaces, or writes where there are none
    begin      what is in its folder before: the name of a folder of `inputs`
    goes_on    whether its folder keeps what was computed before a failure: the same command computes the rest
    measures   whether most of what it writes are times
    codes      exit codes with which it may end if something fails
    """

    name: str
    arguments: tuple
    outputs: tuple
    begin: str = ""
    goes_on: bool = False
    measures: bool = False
    codes: tuple = PASS, WORLD


COMMANDS = (
    Command("generate", ("generate", "--kind", "sink", "--tokens", "16", "--decode", "2", "--layers", "1", "--head-dim", "4", "--model-dim", "8",
                         "--window-queries", "8", "out.safetensors"), ("out.safetensors",)),
    Command("replay --json --csv", ("replay", "../inputs/trace.safetensors", *RUNS, "--json", "out.json", "--csv", "out.csv"),
            ("out.json", "out.csv")),
    Command("replay --dump", ("replay", "../inputs/trace.safetensors", "--policy", POLICY, "--budget", "8", "--dump", "out.safetensors"),
            ("out.safetensors",)),
    Command("diff --json", ("diff", "../inputs/trace.safetensors", "../inputs/dump.safetensors", "--json", "out.json"), ("out.json",)),
    Command("check --json", ("check", "attention", "../inputs/kernel.safetensors", "--json", "out.json"), ("out.json",)),
    Command("record", ("record", "../inputs/model", "--tokens", "../inputs/tokens", "--steps", "2", "out.safetensors"), ("out.safetensors",)),
    Command("import", ("import", "flashinfer", "../inputs/calls", "--request", "0", "--dump", "dump.safetensors", "out.safetensors"),
            ("out.safetensors", "dump.safetensors")),
    Command("predict --json", ("predict", "../inputs/trace.safetensors", "--policy", POLICY, "--budget", "8", "--json", "out.json"), ("out.json",)),
    Command("recall --json", ("recall", "../inputs/trace.safetensors", "--k", "8", "--recent", "4", "--json", "out.json"), ("out.json",)),
    Command("inspect --json", ("inspect", "../inputs/trace.safetensors", "--json", "out.json"), ("out.json",)),
    Command("evaluate --json --csv", (*EVALUATE, "--json", "out.json", "--csv", "out.csv"), ("out.json", "out.csv")),
    Command("evaluate --resume", (*EVALUATE, "--resume", "done", "--json", "out.json"), ("out.json",), "begun", goes_on=True),
    Command("sweep", ("sweep", "../inputs/plan.json", "--out", "study", "--json", "out.json"), ("out.json",), goes_on=True),
    Command("sweep, damaged", ("sweep", "--out", "study", "--csv", "out.csv"), ("out.csv",), "damaged", goes_on=True),
    Command("gather", ("gather", "../inputs/swept/study", "--json", "out.json", "--csv", "out.csv"), ("out.json", "out.csv"),
            codes=(PASS, WORLD, INCONCLUSIVE)),  # a result that cannot be read counts as missing
    Command("report", ("report", "../inputs/replay.json", "../inputs/evaluate.json", "-o", "out.html"), ("out.html",)),
    Command("prove --json", ("prove", "ckv-3.2", "--cases", "30", "--json", "out.json"), ("out.json",)),
    Command("bench --json", ("bench", "selection", "--shape", "pocket:256", "--repeats", "1", "--json", "out.json"), ("out.json",), measures=True),
)


def write_inputs(test):
    """Makes the folder `inputs` in that of `test`, a CommandLineTest."""
    inputs = test.folder / "inputs"
    inputs.mkdir()

    def run(*arguments):
        test.passes(*arguments, cwd=inputs)
    run("generate", "--kind", "mixed", "--tokens", "24", "--decode", "2", "--layers", "2", "--query-heads", "4", "--kv-heads", "2", "--head-dim", "4",
        "--model-dim", "8", "--window-queries", "8", "trace.safetensors")
    run("replay", "trace.safetensors", "--policy", POLICY, "--budget", "8", "--json", "replay.json", "--dump", "dump.safetensors")
    decode(batch=1, tokens=9, head_dim=4).write(inputs / "kernel.safetensors")
    record_decode(Dumps(inputs / "calls"), Batch())
    TinyModel(layers=1, model_dim=16, heads=2, kv_heads=1, feed_forward=8).write_folder(inputs / "model")
    (inputs / "tokens").write_text("1 2 3 4 5 6", "utf-8")
    (inputs / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS), "utf-8")
    write_begun(inputs, run)
    plan = {"format": "kvbound-sweep-plan", "version": 1, "traces": ["../inputs/trace.safetensors"], "policies": [POLICY], "budgets": ["8"]}
    (inputs / "plan.json").write_text(json.dumps(plan), "utf-8")
    (test.folder / "beside").mkdir()  # a plan's traces are relative to the folder in which the program runs
    for folder in ("swept", "damaged"):
        (inputs / folder).mkdir()
        test.passes("sweep", "../inputs/plan.json", "--out", f"../inputs/{folder}/study", cwd=test.folder / "beside")
    next((inputs / "damaged").glob("study/results/*/*")).write_bytes(b"torn")


def write_begun(inputs, run):
    """A results file whose last line is torn, which has to be cut off, and the document of the whole evaluation."""
    (inputs / "begun").mkdir()
    run("evaluate", "model", "tasks.jsonl", *RUNS, "--resume", "all", "--json", "evaluate.json")
    lines = (inputs / "all").read_text("utf-8").splitlines(keepends=True)
    (inputs / "begun" / "done").write_text("".join(lines[:2]) + lines[2][:20], "utf-8")


def begin(command, inputs, folder, old):
    """Makes a command's folder anew; old: the text of the outputs that are to be replaced, or None."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(inputs / command.begin, folder) if command.begin else folder.mkdir()
    for name in command.outputs if old is not None else ():
        (folder / name).write_text(old, "utf-8")


def comparable(value, measures):
    """A document without times and hosts; if it measures, without numbers and without whether goals are met."""
    if isinstance(value, dict):
        return {name: comparable(member, measures) for name, member in value.items()
                if name not in TIMES_AND_HOSTS and not (measures and name == "verdict")}
    if isinstance(value, list):
        return [comparable(member, measures) for member in value]
    # "number" for int and float: a rate that happens to be whole is printed without a point
    return "number" if measures and isinstance(value, (int, float)) and not isinstance(value, bool) else value


def printed(text, measures=False):
    """What was printed, but for times and the width of the columns in which they are; of measurements only whether anything."""
    return bool(text) if measures else re.sub(r"\s+|-{3,}", " ", MEASURED.sub("TIME", text))


def content(path, measures=False):
    """What a file says, whoever computed it and however long it took."""
    try:
        if path.suffix == ".json" and path.name != "rates.json":
            return comparable(json.loads(path.read_bytes()), measures)
        if path.name == "done":
            return [comparable(json.loads(line), measures) for line in path.read_text("utf-8").splitlines()]
    except ValueError as error:
        return f"torn: {error}"
    if path.name == "rates.json" or path.parent.parent.name == "results":
        return "depends on times"
    return path.read_bytes()


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def written(command, folder):
    """{file: what it says} of a command's folder."""
    return {name: content(Path(folder, name), command.measures) for name in files(folder)}
