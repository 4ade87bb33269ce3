#!/usr/bin/env python3
"""Measures what the README of sim/sweep says: scaling over processes, overhead per item, gathering of a million items, the speed
of the reference, and a replay of 131,072 tokens.

usage: sim/sweep/measure.py KVBOUND [scaling] [overhead] [gathering] [reference] [long] [--rounds N] [--folder DIR]

With no part named, all are measured. Times are of this machine, which should have nothing else to do: each is the median of
N rounds (3), least and most in brackets. `long` needs 4 GB of disk and 8 GB of memory, `gathering` 10 GB of disk and 10^6 inodes.
"""
import argparse
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = ("--query-heads", "32", "--kv-heads", "8", "--head-dim", "128", "--model-dim", "4096", "--dtype", "BF16", "--window-queries", "32")

TEN_POLICIES = ("snapkv", "snapkv+critical", "snapkv+obcache-value", "snapkv+obcache-joint", "snapkv+exact", "snapkv+keepkv", "h2o",
                "h2o+critical", "tova", "streaming-llm")


class Bench:
    def __init__(self, program, folder, rounds):
        self.program, self.folder, self.rounds = Path(program).resolve(strict=True), Path(folder), rounds

    def run(self, *arguments):
        """The program's output, seconds of wall time, and its largest resident set in bytes."""
        start = time.monotonic()
        process = subprocess.Popen([self.program, *map(str, arguments)], cwd=self.folder, stdout=subprocess.PIPE, text=True)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        if status:
            sys.exit(f"kvbound {' '.join(map(str, arguments))}: failed with status {status}")
        return output, seconds, usage.ru_maxrss * 1024

    def generate(self, name, layers, tokens, decode, *model):
        if not (self.folder / name).exists():
            self.run("generate", "--kind", "mixed", "--tokens", tokens, "--decode", decode, "--layers", layers, *model, name)
        return name

    def plan(self, name, **members):
        plan = {"format": "kvbound-sweep-plan", "version": 1} | members
        (self.folder / name).write_text(json.dumps(plan))
        return name

    def sweep_seconds(self, plan, jobs):
        """Of a sweep into a new folder, as the program prints it: planning and hashing left out."""
        with tempfile.TemporaryDirectory(dir=self.folder) as out:
            output, _, _ = self.run("sweep", plan, "--out", out, "--jobs", jobs, "--threads", 1)
            return float(re.search(r"computed in ([0-9.]+) s", output)[1])


def shown(values, unit=" s", digits=3):
    return f"{statistics.median(values):.{digits}g}{unit} ({min(values):.{digits}g}-{max(values):.{digits}g})"


def scaling(bench):
    """Strong: the same items by 1 and 2 processes. Weak: as many items a process."""
    policies = ["snapkv", "snapkv+critical", "h2o", "tova"]
    whole = bench.generate("whole.safetensors", 16, 2048, 16, *MODEL[:6], "--model-dim", "1024")
    ratios = {"strong": [], "weak": []}
    times = {"one": [], "two": [], "half": []}
    all_of = bench.plan("all.json", traces=[whole], policies=policies, budgets=["20%"])
    half_of = bench.plan("half.json", traces=[whole], policies=policies, budgets=["20%"], layers="0-7")
    for _ in range(bench.rounds):
        one, two, half = bench.sweep_seconds(all_of, 1), bench.sweep_seconds(all_of, 2), bench.sweep_seconds(half_of, 1)
        for name, seconds in (("one", one), ("two", two), ("half", half)):
            times[name].append(seconds)
        ratios["strong"].append(one / (2 * two))
        ratios["weak"].append(half / two)
    print("16 items (a layer of 2,048 tokens, 4 policies) of one thread each")
    print(f"  1 process, 16 items    {shown(times['one'])}")
    print(f"  2 processes, 16 items  {shown(times['two'])}")
    print(f"  1 process, 8 items     {shown(times['half'])}")
    print(f"  strong scaling         {shown(ratios['strong'], '')}   goal at least 0.95")
    print(f"  weak scaling           {shown(ratios['weak'], '')}   goal at least 0.95\n")


def overhead(bench):
    """What the sweep adds to an item: many small ones against one replay of the same, and the simulation's own measurement."""
    small = bench.generate("small.safetensors", 400, 64, 1, "--query-heads", "4", "--kv-heads", "2", "--head-dim", "16", "--model-dim", "32",
                           "--window-queries", "8")
    plan = bench.plan("small.json", traces=[small], policies=["snapkv:window=8"], budgets=["30%"])
    added = []
    for _ in range(bench.rounds):
        sweep = bench.sweep_seconds(plan, 1)
        _, replay, _ = bench.run("replay", small, "--policy", "snapkv:window=8", "--budget", "30%", "--threads", 1)
        added.append(1e3 * (sweep - replay) / 400)
    print(f"overhead of an item, 400 items less a replay   {shown(added, ' ms')}   goal at most 5 ms")
    with tempfile.TemporaryDirectory(dir=bench.folder) as out:
        bench.run("sweep", plan, "--out", out)
        print(bench.run("sweep", "--out", out, "--simulate", 100000)[0])


def gathering(bench):
    """Memory and time of gathering a million items, of 1,000 traces of 1,000 tiny layers."""
    layers, traces = 1000, 1000
    for i in range(traces):
        bench.run("generate", "--kind", "power-law", "--tokens", 12, "--decode", 1, "--layers", layers, "--query-heads", 1,
                  "--kv-heads", 1, "--head-dim", 4, "--model-dim", 4, "--window-queries", 2, "--seed", i, f"tiny-{i}.safetensors")
    plan = bench.plan("million.json", traces=["tiny-*.safetensors"], policies=["snapkv:window=2"], budgets=["4"])
    _, seconds, _ = bench.run("sweep", plan, "--out", "million", "--threads", 1)
    print(f"a sweep of {layers * traces} items            {seconds:.0f} s, {1e3 * seconds / layers / traces:.2f} ms an item")
    _, seconds, memory = bench.run("gather", "million", "--json", "million-gathered.json", "--csv", "million-gathered.csv")
    print(f"gathering them, with JSON and CSV   {seconds:.0f} s, {memory / 1e9:.2f} GB   goal at most 1 GB\n")


def reference(bench):
    """The reference's operations against what this machine can do, by `kvbound bench`, and how often a replay runs them."""
    operations = ("window-attention", "nearest-key", "projected-value-norms", "projected-value-norms-l2", "replay")
    bench.run("bench", *operations, "--json", "bench.json", "--repeats", max(7, bench.rounds))
    for item in json.loads((bench.folder / "bench.json").read_text())["operations"]:
        ratio, goal = item["ratio"], item["goal"]
        bound = "".join(f"   goal {kind.replace('_', ' ')} {value}" for kind, value in (goal or {}).items())
        print(f"{item['operation']:<25} {ratio['median']:.3g} ({ratio['least']:.3g}-{ratio['most']:.3g}) {item['ratio_meaning']}{bound}")
    trace = bench.generate("shared.safetensors", 2, 2048, 16, *MODEL[:6], "--model-dim", "1024")
    counts = []
    for policies in (TEN_POLICIES[:1], TEN_POLICIES):
        bench.run("replay", trace, "--policy", ",".join(policies), "--budget", "20%", "--json", "shared.json")
        document = json.loads((bench.folder / "shared.json").read_text())
        counts.append({entry["operation"]: entry["calls"] for entry in document["traces"][0]["times"][0]["operations"]})
    print("\noperations of a replay of 2 layers     one policy  ten policies")
    for operation, calls in counts[1].items():
        print(f"  {operation:<35} {counts[0].get(operation, 0):>10}  {calls:>12}")
    print()


def long(bench):
    """Time and memory of replays of one layer of 8 KV heads, from 8,192 to 131,072 tokens."""
    for policy in ("snapkv", "snapkv+critical"):
        lengths, seconds = [2**k for k in range(13, 18)], []
        print(f"{policy} at 5%, one layer of 8 KV heads, 32 query heads, head_dim 128, model_dim 4096, 8 steps")
        for tokens in lengths:
            trace = bench.generate(f"long-{tokens}.safetensors", 2, tokens, 8, *MODEL)
            runs = [bench.run("replay", trace, "--policy", policy, "--budget", "5%") for _ in range(bench.rounds)]
            seconds.append(statistics.median(run[1] for run in runs))
            layer = 8 * (2 * 8 * 128 * (tokens + 8) + 32 * 128 * (32 + 8) + 32 * 128 * 4096)
            allowed, most = 3 * layer + 200e6, max(run[2] for run in runs)
            print(f"  {tokens:>7} tokens, 2 layers   {shown([run[1] for run in runs]):<24} {most / 1e9:.2f} GB, a layer in double precision "
                  f"{layer / 1e9:.2f} GB: {'within' if most <= allowed else 'MORE THAN'} 3 layers + 200 MB")
            (bench.folder / trace).unlink()
        x, y = [math.log(tokens) for tokens in lengths], [math.log(s) for s in seconds]
        print(f"  exponent of time over tokens {statistics.linear_regression(x, y).slope:.3f}   goal at most 1.05\n")


PARTS = {"scaling": scaling, "overhead": overhead, "gathering": gathering, "reference": reference, "long": long}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", metavar="KVBOUND")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="for traces and results (default: a temporary one)")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(options.program, folder, options.rounds)
        for part in options.parts or PARTS:
            PARTS[part](bench)


if __name__ == "__main__":
    main()
