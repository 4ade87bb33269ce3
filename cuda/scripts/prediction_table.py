#!/usr/bin/env python3
"""A Markdown table of predictions: the kernels of every operation, side by side for several GPUs.

usage: prediction_table.py FILE...      FILE: written by kvbound bench --backend emulated --model GPU --json FILE

All files are of the same shape and operations, one for each GPU. Nothing in them was measured. Times are the device's: waits of the
host and its copies, host_seconds in the files, are not in the table.
"""
import argparse
import json
import sys

SECTOR = 32  # bytes


def amount(number):
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def duration(seconds):
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def percent(part, whole):
    return f"{100 * part / whole:.0f} %" if whole else ""


def kernels(operation):
    """The launches of an operation, equal ones together: (launch, how many)."""
    found = {}
    for launch in operation["launches"]:
        found.setdefault((launch["kernel"], json.dumps([launch["grid"], launch["counts"]])), []).append(launch)
    return [(launches[0], len(launches)) for launches in found.values()]


def instructions_for_mma(launch):
    products = launch["counts"]["instructions"]["mma"] + launch["counts"]["instructions"]["warpgroup_mma"]
    return f"{launch['model']['instructions'] / products:.1f}" if products else ""


def row_of_kernel(launch, times, others):
    counts, model = launch["counts"], launch["model"]
    return [f"`{launch['kernel']}`" + (f", {times} times" if times > 1 else ""),
            amount(launch["bytes_read"] + launch["bytes_written"]) + "B", amount(counts["sectors"] * SECTOR) + "B",
            percent(counts["useful_bytes"], counts["sectors"] * SECTOR),
            percent(counts["wavefronts"] - counts["least_wavefronts"], counts["wavefronts"]), amount(model["instructions"]),
            instructions_for_mma(launch), str(model["registers"] or ""), f"{model['occupancy']:.2f}",
            *(f"{duration(other['model']['predicted_seconds'])}, {other['model']['limiter']}" for other in others)]


def row_of_operation(operation, others):
    name = operation["operation"] + (f", `{operation['policy']}`" if operation["policy"] else "")
    cells = []
    for other in others:
        seconds = other["predicted_seconds"]
        if other["attention_seconds"]:
            against = f", {seconds / other['attention_seconds']:.2f} times attention"
        elif other["floor_seconds"]:
            against = f", {percent(other['floor_seconds'], seconds)} of the floor's rate"
        else:
            against = f", {seconds / other['kernel_seconds']:.2f} times its kernels" if other["kernel_seconds"] else ""
        cells.append(f"**{duration(seconds)}**{against}")
    return [f"**{name}**", *[""] * 8, *cells]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("file", nargs="+")
    documents = []
    for path in arguments.parse_args().file:
        with open(path, encoding="utf-8") as file:
            documents.append(json.load(file))
        if documents[-1].get("schema") != "kvbound-bench-model-1":
            sys.exit(f"{path}: schema: expected kvbound-bench-model-1")
    if any(document["shape"] != documents[0]["shape"] for document in documents):
        sys.exit("the files are of different shapes")
    heads = ["kernel", "touched", "requested", "used", "conflicts", "instructions", "for an mma", "registers", "occupancy",
             *(document["gpu"]["name"] for document in documents)]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for same in zip(*(document["operations"] for document in documents), strict=True):
        print("| " + " | ".join(row_of_operation(same[0], same)) + " |")
        for (launch, times), *others in zip(*(kernels(operation) for operation in same), strict=True):
            print("| " + " | ".join(row_of_kernel(launch, times, [launch, *(other for other, _ in others)])) + " |")


if __name__ == "__main__":
    main()
