#!/usr/bin/env python3
"""Takes what `cuda/measure.sh A` measured into the file of the GPU in sim/roofline and the table of cuda/README.md.

    cuda/measure.sh take FOLDER
    cuda/measure.sh take FOLDER --model model.json

FOLDER: the files of a run of A, whose parity has to have passed: summary.txt, bench.jsonl, and PyTorch's times (torch.json) and
ncu's metrics (profile.csv) if they are there. What is taken replaces earlier times of the same operations and shape. Printed are
the goals, which of them are met, and ncu's metrics beside what the emulation counted.

--model: written by `kvbound bench --backend emulated --model GPU --json`, of the same shape; `cuda/measure.sh prepare` makes it.

A decode step's time is that of one of those that are queued together. A compression is measured with waits for every operation,
of which the model says nothing; it is printed alone.

Exit codes: 0; 2 usage; 4 results that cannot be taken.
"""
import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

from bench_document import key, read
from prediction_table import duration

ROOT = Path(__file__).resolve().parent.parent.parent
BEGIN, END = "<!-- begin: cuda/measure.sh take -->\n", "<!-- end: cuda/measure.sh take -->\n"
HEADS = ["operation", "measured", "model", "measured / model", "of the goal's measure", "goal", "PyTorch", "GPU, day, revision"]


class Invalid(Exception):
    """Results that cannot be taken."""


def text_of(path):
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise Invalid(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def parsed(path, text):
    try:
        return json.loads(text)
    except ValueError as error:
        raise Invalid(f"{path}: is torn: {error}") from error


def document(path, text, command):
    found = parsed(path, text)
    try:
        return read(found, command)
    except ValueError as error:
        raise Invalid(f"{path}: {error}") from error


def day_of(path):
    """The day of a run on a GPU whose kernels were right."""
    text = text_of(path)
    found = re.match(r"measure\.sh A, --backend (\w+)(, --tiny)?, (\d{4}-\d\d-\d\d): ", text)
    if not found:
        raise Invalid(f"{path}: not what cuda/measure.sh A writes")
    if found[1] != "cuda" or found[2]:
        raise Invalid(f"{path}: of --backend {found[1]}{' with --tiny' if found[2] else ''}, whose times say nothing about a GPU")
    if not re.search(r"^parity +(passed|skipped) ", text, re.MULTILINE):  # skipped where nothing has changed
        raise Invalid(f"{path}: parity has not passed; how fast wrong kernels are says nothing")
    return found[3]


def runs_of(path):
    """The documents of bench, of one device, build and shape."""
    runs = [document(path, line, "bench") for line in text_of(path).splitlines()]
    if not runs:
        raise Invalid(f"{path}: is empty")
    for run in runs:
        if run["backend"] != "cuda" or not run["accelerator"]:
            raise Invalid(f"{path}: backend: expected cuda; other times say nothing about a GPU")
        if any(run[what] != runs[0][what] for what in ("accelerator", "revision", "shape")):
            raise Invalid(f"{path}: of different devices, revisions or shapes")
    return runs


def gpu_file(accelerator, root):
    """The file of a GPU: its name's word stands in the device's name, and they have as many multiprocessors."""
    files = sorted((root / "sim" / "roofline").glob("*.json"))
    for path in files:
        chip = parsed(path, text_of(path))["constants"]["multiprocessors"]["value"]
        if re.search(rf"\b{path.stem}\b", accelerator["name"], re.IGNORECASE) and accelerator["multiprocessors"] == chip:
            return path
    raise Invalid(f"{accelerator['name']}, {accelerator['multiprocessors']} multiprocessors: no file of it in sim/roofline: "
                  + ", ".join(path.name for path in files))


def seconds_of(operation, run):
    """Of one call, or of one of the steps that are queued together."""
    time = next((one for one in run["against"] if one["timed"] == "queued together" and key(one) == key(operation)), operation)
    return time["seconds"] / (time["work"] if time["unit"] == "steps" else 1)


def entry(operation, run, day, model, torch):
    """An operation as it stands in the list `measured`."""
    shape, gpu = run["shape"], run["accelerator"]
    found = {"operation": f"{key(operation)}, {shape['name']}:{shape['tokens']}", "seconds": float(f"{seconds_of(operation, run):.3g}"),
             "predicted": float(f"{model['predicted_seconds']:.3g}")}
    if operation["ratio"]:
        found |= {"ratio": float(f"{operation['ratio']:.3g}"), "of": operation["ratio_of"]}
    for bound in ("at_least", "at_most"):
        if operation[bound]:
            found |= {"goal": f"{bound.replace('_', ' ')} {operation[bound]:g}", "met": operation["verdict"].startswith("met")}
    if torch:
        found["torch"] = float(f"{torch:.3g}")
    return found | {"from": f"{day}, {gpu['name']}, driver {gpu['driver']}, revision {run['revision']}"}


def torch_times(path):
    if not path.exists():
        return {}
    peer = parsed(path, text_of(path))
    if not isinstance(peer, dict) or peer.get("schema") != "kvbound-bench-peer-1":
        raise Invalid(f"{path}: schema: expected kvbound-bench-peer-1")
    return {key(one): median(one["seconds"]) for one in peer["operations"]}


def with_entries(path, entries, day, revision):
    """The text of a GPU's file with these entries; its constants keep their text."""
    text = text_of(path)
    known = {one["operation"]: one for one in parsed(path, text)["measured"]} | {one["operation"]: one for one in entries}
    lines = ",\n".join("    " + json.dumps(one, ensure_ascii=False) for one in known.values())
    last_run = json.dumps({"date": day, "revision": revision})
    constants = text.partition('  "measured": [')[0]
    return f'{constants}  "measured": [\n{lines}\n  ],\n  "last_run": {last_run}\n}}\n'


def row(one):
    try:
        day, gpu, _, revision = one["from"].split(", ")
    except ValueError:
        raise Invalid(f"{one['operation']}: from: expected day, GPU, driver and revision, not {one['from']}") from None
    ratio = f"{one['ratio']:.2f} {one['of']}" if "ratio" in one else ""
    goal = f"{one['goal']}: {'met' if one['met'] else 'missed'}" if "goal" in one else ""
    return ["`{}`, {}".format(*one["operation"].rsplit(", ", 1)), duration(one["seconds"]), duration(one["predicted"]),
            f"{one['seconds'] / one['predicted']:.2f}", ratio, goal, duration(one["torch"]) if "torch" in one else "",
            f"{gpu.removeprefix('NVIDIA ')}, {day}, {revision.removeprefix('revision ')}"]


def table(root=ROOT, changed=None):
    """The table of cuda/README.md: what every GPU's file has in `measured`; changed: {file: its text to be}."""
    texts = {path: text_of(path) for path in sorted((root / "sim" / "roofline").glob("*.json"))} | (changed or {})
    rows = [HEADS, ["---"] * len(HEADS)] + [row(one) for path, text in texts.items() for one in parsed(path, text)["measured"]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def around_table(path):
    """The text of cuda/README.md before the table and behind it."""
    before, begin, behind = text_of(path).partition(BEGIN)
    _, end, behind = behind.partition(END)
    if not begin or not end:
        raise Invalid(f"{path}: has no place for the table, between {BEGIN.strip()} and {END.strip()}")
    return before + begin, end + behind


def replace(texts):
    """Writes all of these files; if one cannot be written, none is changed."""
    drafts = {path: path.with_name(f"{path.name}.new") for path in texts}
    try:
        for path, draft in drafts.items():
            draft.write_text(texts[path], "utf-8")
        for path, draft in drafts.items():
            draft.replace(path)
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)


def take(folder, model_path, root):
    day, runs = day_of(folder / "summary.txt"), runs_of(folder / "bench.jsonl")
    path = gpu_file(runs[0]["accelerator"], root)
    model_path = model_path or root / "build" / "gpu-measure" / path.name
    model = document(model_path, text_of(model_path), "bench-model")
    if model["shape"] != runs[0]["shape"]:
        raise Invalid(f"{folder / 'bench.jsonl'}: of another shape than {model_path}")
    predicted, torch = {key(one): one for one in model["operations"]}, torch_times(folder / "torch.json")
    operations = {key(one): (one, run) for run in runs for one in run["operations"]}
    entries = [entry(*one, day, predicted[name], torch.get(name)) for name, one in operations.items() if name in predicted]
    readme = root / "cuda" / "README.md"
    before, behind = around_table(readme)
    texts = {path: with_entries(path, entries, day, runs[0]["revision"])}
    replace(texts | {readme: before + table(root, texts) + behind})
    for one in entries:
        print(" | ".join(row(one)))
    for name in operations.keys() - predicted.keys():
        print(f"not predicted: {name}: {duration(seconds_of(*operations[name]))}")
    judged = [one["met"] for one in entries if "goal" in one]
    print(f"{path.name}: {len(entries)} operations; goals: {sum(judged)} met, {len(judged) - sum(judged)} missed", flush=True)
    if (folder / "profile.csv").exists():
        metrics = Path(__file__).with_name("kernel_metrics.py")
        subprocess.run([sys.executable, metrics, folder / "profile.csv", "--counters", model_path], check=False)


def main():
    parser = argparse.ArgumentParser(prog="cuda/measure.sh take", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--model", metavar="FILE", type=Path)
    parser.add_argument("--into", metavar="DIR", type=Path, default=ROOT, help="the checkout that is changed (default: this one)")
    given = parser.parse_args()
    try:
        take(given.folder, given.model, given.into)
    except (Invalid, OSError) as error:
        print(f"take: {error}", file=sys.stderr)
        sys.exit(4)
    except KeyError as error:
        print(f"take: {given.folder}: lacks {error}", file=sys.stderr)
        sys.exit(4)
    except (ValueError, TypeError, ArithmeticError) as error:
        print(f"take: {given.folder}: has a value that cannot be taken: {error}", file=sys.stderr)
        sys.exit(4)


if __name__ == "__main__":
    main()
