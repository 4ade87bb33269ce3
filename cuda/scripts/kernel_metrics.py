#!/usr/bin/env python3
"""What ncu measured of the main kernels, as a table; beside what the emulation counted, if there is a file of it.

    kernel_metrics.py profile.csv
    kernel_metrics.py profile.csv --counters counters.json
    kernel_metrics.py steps.csv --steps

profile.csv: results of `ncu --csv --page raw` one behind the other, each behind a line "operation",NAME; the stages `profile` and
`anatomy` of cuda/measure.sh write such files. A metric that ncu did not report is shown as -. What a kernel's warps wait for is
ncu's reason of most stalls, with the warps that it holds for each instruction issued.

--counters: a file of `kvbound bench --backend emulated --model h100 --json`, of the same shape: what the emulation counted of
the same kernel of the same operation, and the time that its model predicts.

--steps: of each decode step's launches the last whole step, which ends with pack_kernel, and its sum.

Exit codes: 0; 1 no kernel was measured; 2 usage; 4 a file that cannot be read.
"""
import argparse
import csv
import json
import re
import sys
from dataclasses import dataclass

from bench_document import read

UNITS = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1, "us": 1, "msecond": 1e3, "ms": 1e3, "second": 1e6, "s": 1e6,
         "byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1, "Gbyte": 1e3}  # to microseconds and to MB
LOADED, STORED = "l1tex__t_{}_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_{}_pipe_lsu_mem_global_op_st.sum"
CONFLICTS = ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",)
WAVEFRONTS = ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",)
TENSOR = ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
          "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active")
COLUMNS = ("us", "MB read", "MB written", "registers", "occupancy %", "sectors/load", "sectors/store", "conflicts %", "tensor %")
STALLED = re.compile(r"issue_stalled_(?!selected|not_selected)(\w+?)_per_")
COUNTED = ("us / model", "MB read", "MB written", "registers", "occupancy %", "sectors/request", "conflicts %")


class Invalid(Exception):
    """A file that is not what it should be."""


@dataclass
class Launch:
    operation: str
    kernel: str
    metrics: dict  # name -> number; times in microseconds, bytes in MB, others as they are

    def first(self, names):
        """The first of these metrics that there is."""
        return next((self.metrics[name] for name in names if name in self.metrics), None)

    def ratio(self, above, below, factor=1):
        numbers = self.first(above), self.first(below)
        return factor * numbers[0] / numbers[1] if None not in numbers and numbers[1] else None

    def row(self):
        return (self.first(("gpu__time_duration.sum",)), self.first(("dram__bytes_read.sum",)),
                self.first(("dram__bytes_write.sum",)), self.first(("launch__registers_per_thread",)),
                self.first(("sm__warps_active.avg.pct_of_peak_sustained_active",)),
                *(self.ratio([of.format("sectors")], [of.format("requests")]) for of in (LOADED, STORED)),
                self.ratio(CONFLICTS, WAVEFRONTS, 100), self.first(TENSOR))

    def waits_for(self):
        stalls = [(warps, STALLED.search(name)[1]) for name, warps in self.metrics.items() if STALLED.search(name)]
        return "{1} {0:.2g}".format(*max(stalls)) if stalls else "-"


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def short(name):
    """A kernel's name without namespaces, template arguments and parameters: all kernels here are called ..._kernel."""
    found = re.search(r"\b\w+_kernel\b", name)
    return found[0] if found else name


def launches(lines):
    """Every launch of a profile, in its order."""
    operation = names = units = None
    for row in csv.reader(lines):
        if row[:1] == ["operation"]:
            operation, names, units = row[1], None, None
        elif row[:1] == ["ID"]:
            names, units = row, None
        elif names and units is None:  # the line behind the names
            units = row
        elif names and len(row) == len(names):
            values = dict(zip(names, row))
            metrics = {name: number(text) * UNITS.get(unit, 1) for name, text, unit in zip(names, row, units)
                       if "__" in name and number(text) is not None}
            yield Launch(operation, short(values["Kernel Name"]), metrics)


def table(found):
    lines = [f"{'':<24}{'kernel':<34}" + "".join(f"{name:>14}" for name in COLUMNS) + "  waits for"]
    for launch in found:
        cells = ("-" if cell is None else f"{cell:.4g}" for cell in launch.row())
        lines.append(f"{launch.operation:<24}{launch.kernel:<34}" + "".join(f"{cell:>14}" for cell in cells) +
                     f"  {launch.waits_for()}")
    return "\n".join(lines)


def steps_table(found):
    """The kernels of the last whole step of each policy, in microseconds."""
    lines = []
    for operation in dict.fromkeys(launch.operation for launch in found):
        own = [launch for launch in found if launch.operation == operation]
        ends = [at for at, launch in enumerate(own) if launch.kernel == "pack_kernel"]
        if len(ends) > 1:
            step = [(launch.kernel, launch.row()[0] or 0) for launch in own[ends[-2] + 1:ends[-1] + 1]]
            step.append((f"{len(step)} kernels", sum(time for _, time in step)))
            lines += [f"{operation:<30}{name:<34}{time:>10.4g}" for name, time in step]
    return "\n".join(lines)


def counted(path):
    """What the emulation counted: {(operation, kernel): a row of COUNTED}, of the first launch of each."""
    try:
        with open(path, encoding="utf-8") as file:
            launches_counted = read(json.load(file), "bench-model")["launches"]
        rows = {}
        for launch in launches_counted:
            rows.setdefault((launch["operation"], short(launch["kernel"])), counted_row(launch))
        return rows
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid(f"{path}: not what kvbound bench --model writes ({type(error).__name__}: {error})") from None


def counted_row(launch):
    requests, conflicts = launch["device_requests"], launch["conflicts"]
    return (1e6 * launch["predicted_seconds"], 1e-6 * launch["bytes_read"], 1e-6 * launch["bytes_written"], launch["registers"],
            100 * launch["occupancy"], launch["sectors"] / requests if requests else None,
            None if conflicts is None else 100 * conflicts)


def measured_row(launch):
    sectors, requests = (sum(launch.metrics.get(of.format(what), 0) for of in (LOADED, STORED))
                         for what in ("sectors", "requests"))
    return (*launch.row()[:5], sectors / requests if requests else None, launch.ratio(CONFLICTS, WAVEFRONTS, 100))


def comparison(found, counters):
    """Measured and counted side by side."""
    lines = [f"{'measured / counted':<58}" + "".join(f"{name:>18}" for name in COUNTED)]
    for launch in found:
        row = counters.get((launch.operation, launch.kernel))
        cells = ["not counted"]
        if row:
            pairs = zip(measured_row(launch), row)
            cells = [" / ".join("-" if cell is None else f"{cell:.3g}" for cell in pair) for pair in pairs]
        lines.append(f"{launch.operation:<24}{launch.kernel:<34}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def perform():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", metavar="profile.csv")
    parser.add_argument("--counters", metavar="FILE", help="what the emulation counted")
    parser.add_argument("--steps", action="store_true", help="the last whole step of each policy")
    options = parser.parse_args()
    with open(options.profile, encoding="utf-8") as file:
        found = list(launches(file))
    if options.steps:
        print(steps := steps_table(found))
        return 0 if steps else 1
    print(table(found))
    if options.counters:
        print(f"\n{comparison(found, counted(options.counters))}")
    return 0 if found else 1


def main():
    try:
        sys.exit(perform())
    except (OSError, Invalid) as error:
        print(f"kernel_metrics: {error}", file=sys.stderr)
        sys.exit(4)


if __name__ == "__main__":
    main()
