#!/usr/bin/env python3
"""A Markdown table of predictions: the kernels of every operation, side by side for several GPUs.

usage: prediction_table.py FILE...      FILE: written by kvbound bench --backend emulated --model GPU --json FILE

All files are of the same shape and operations, one for each GPU. Nothing in them was measured. Times are the device's: waits of the
host and its copies, host_seconds in the files, are not in the table.
"""
import argparse
import json
import sys

from bench_document import key, read

# Launches of a kernel that have the same of these are equal.
NUMBERS = ("kernel", "grid", "requested", "used", "conflicts", "mma_flop", "warpgroup_mma_flop", "instructions")


def amount(number):
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def duration(seconds):
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def percent(share):
    return "" if share is None else f"{100 * share:.0f} %"


def kernels(document, operation):
    """The launches of an operation, equal ones together: (launch, how many)."""
    found = {}
    products = [row["instructions"] for row in document["instructions"] if row["instruction"] in ("mma", "warpgroup_mma")]
    for launch, mma, warpgroup_mma in zip(document["launches"], products[::2], products[1::2], strict=True):
        if key(launch) == key(operation):
            launch["products"] = mma + warpgroup_mma
            found.setdefault(tuple(launch[number] for number in NUMBERS), []).append(launch)
    return [(launches[0], len(launches)) for launches in found.values()]


def row_of_kernel(launch, times, others):
    return [f"`{launch['kernel']}`" + (f", {times} times" if times > 1 else ""),
            amount(launch["bytes_read"] + launch["bytes_written"]) + "B", amount(launch["requested"]) + "B", percent(launch["used"]),
            percent(launch["conflicts"]), amount(launch["instructions"]),
            f"{launch['instructions'] / launch['products']:.1f}" if launch["products"] else "", f"{launch['registers'] or ''}",
            f"{launch['occupancy']:.2f}", *(f"{duration(other['predicted_seconds'])}, {other['limiter']}" for other in others)]


def row_of_operation(operation, others):
    name = operation["operation"] + (f", `{operation['policy']}`" if operation["policy"] else "")
    cells = []
    for other in others:
        seconds = other["predicted_seconds"]
        if other["attention_seconds"]:
            against = f", {seconds / other['attention_seconds']:.2f} times attention"
        elif other["floor_seconds"]:
            against = f", {percent(other['floor_share'])} of the floor's rate"
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
            try:
                documents.append(read(json.load(file), "bench-model"))
            except ValueError as error:
                sys.exit(f"{path}: {error}")
    if any(document["shape"] != documents[0]["shape"] for document in documents):
        sys.exit("the files are of different shapes")
    heads = ["kernel", "touched", "requested", "used", "conflicts", "instructions", "for an mma", "registers", "occupancy",
             *(document["gpu"] for document in documents)]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for same in zip(*(document["operations"] for document in documents), strict=True):
        print("| " + " | ".join(row_of_operation(same[0], same)) + " |")
        for (launch, times), *others in zip(*map(kernels, documents, same), strict=True):
            print("| " + " | ".join(row_of_kernel(launch, times, [launch, *(other for other, _ in others)])) + " |")


if __name__ == "__main__":
    main()
