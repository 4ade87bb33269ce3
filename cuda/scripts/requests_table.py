#!/usr/bin/env python3
"""A Markdown table of what sessions ask of the device: one compression, and sixteen decode steps together.

usage: requests_table.py KVBOUND POLICY...      KVBOUND: the program's path
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

from bench_document import read

COLUMNS = {"compress": ("launches", "synchronisations", "downloads", "allocations"),
           "step": ("launches", "synchronisations", "uploads", "downloads", "allocations")}
NAMES = {"synchronisations": "waits", "step": "16 steps"}


def requests_of(program, policy):
    """What a compression and sixteen steps ask for: {operation: {request: number}}."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "requests.json"
        subprocess.run([program, "bench", *COLUMNS, "--backend", "emulated", "--policy", policy, "--repeats", "1", "--quiet",
                        "--json", path], check=True, stdout=subprocess.DEVNULL)
        return {row["operation"]: row for row in read(json.loads(path.read_text("utf-8")), "bench")["operations"]}


def shown(requests, what):
    if what in ("uploads", "downloads"):
        return f"{requests[what]}, {requests[what[:-1] + '_bytes']:,}"
    return str(requests[what])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("policy", nargs="+")
    arguments = parser.parse_args()
    heads = [(f"{NAMES.get(operation, operation)}: " if what == columns[0] else "") + NAMES.get(what, what)
             for operation, columns in COLUMNS.items() for what in columns]
    print("| policy | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for policy in arguments.policy:
        asked = requests_of(arguments.program.resolve(), policy)
        cells = [shown(asked[operation], what) for operation, columns in COLUMNS.items() for what in columns]
        print(f"| `{policy}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
