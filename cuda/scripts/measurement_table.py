#!/usr/bin/env python3
"""A Markdown table of what a GPU measured beside what the model predicts.

    measurement_table.py bench.jsonl model.json
    measurement_table.py bench.jsonl model.json --json

bench.jsonl: a line for each run of `kvbound bench --backend cuda --json`, as cuda/first_run.sh writes it.
model.json: written by `kvbound bench --backend emulated --model GPU --json`, of the same shape. Operations that it lacks are shown
as measured alone. A decode step's time is that of one of those that are queued together; a layer's compression is measured with waits
for every operation, and has no prediction of that.

--json: the list `measured` of a file of sim/roofline.

Exit codes: 0; 2 usage; 4 a file that cannot be read, or of another shape.
"""
import argparse
import json
import sys

from prediction_table import duration


class Invalid(Exception):
    """A file that is not what it should be."""


def documents_of(path, schema):
    """The JSON documents of a file, one a line, or the file as one."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        try:
            documents = [json.loads(text)]
        except ValueError:
            documents = [json.loads(line) for line in text.splitlines()]
    except (OSError, ValueError) as error:
        raise Invalid(f"{path}: {error}") from error
    for document in documents:
        if not isinstance(document, dict) or document.get("schema") != schema:
            raise Invalid(f"{path}: schema: expected {schema}")
    return documents


def key(operation):
    return operation["operation"] + (f", {operation['policy']}" if operation["policy"] else "")


def seconds_of(operation):
    """Of one call, or of one of the steps that are queued together."""
    times = {time["name"]: time for time in operation["times"]}
    time = times.get("queued together", operation["times"][0])
    return time["seconds"]["median"] / (time["work"] if time["unit"] == "steps" else 1)


def row(name, measured, model):
    if model is None:
        return [f"`{name}`", duration(measured), "", "", "", ""]
    floor = model["floor_seconds"]
    return [f"`{name}`", duration(measured), duration(model["predicted_seconds"]),
            f"{measured / model['predicted_seconds']:.2f}", model["limiter"],
            f"{100 * floor / measured:.0f} %" if floor else ""]


def entry(name, measured, run, model):
    shape, gpu = run["shape"], run["accelerator"]
    return {"operation": f"{name}, {shape['name']}:{shape['tokens']}", "seconds": float(f"{measured:.3g}"),
            "predicted": float(f"{model['predicted_seconds']:.3g}"),
            "from": f"{gpu['name']}, driver {gpu['driver']}, revision {run['revision']}"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("measured")
    arguments.add_argument("model")
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args()
    runs = documents_of(given.measured, "kvbound-bench-1")
    model, = documents_of(given.model, "kvbound-bench-model-1")
    if any(run["shape"] != model["shape"] for run in runs):
        raise Invalid(f"{given.measured}: of another shape than {given.model}")
    if any(run["accelerator"] is None or run["backend"] != "cuda" for run in runs):
        raise Invalid(f"{given.measured}: backend: expected cuda; other times say nothing about a GPU")
    predicted = {key(operation): operation for operation in model["operations"]}
    measured = {key(operation): (seconds_of(operation), run) for run in runs for operation in run["operations"]
                if operation["operation"] != "compress"}
    if given.json:
        print(json.dumps([entry(name, seconds, run, predicted[name]) for name, (seconds, run) in measured.items()
                          if name in predicted], indent=2, ensure_ascii=False))
        return
    heads = ["operation", "measured", "model", "measured / model", "limited by, says the model", "of the floor's rate, measured"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for name, (seconds, _) in measured.items():
        print("| " + " | ".join(row(name, seconds, predicted.get(name))) + " |")


if __name__ == "__main__":
    try:
        main()
    except Invalid as error:
        print(f"measurement_table: {error}", file=sys.stderr)
        sys.exit(4)
