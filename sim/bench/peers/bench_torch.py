#!/usr/bin/env python3
"""Times what `kvbound bench` times, in eager PyTorch, for `kvbound bench --peer`.

    bench_torch.py compress --shape llama-3.1-8b:4096 --threads 2 --json torch.json
    kvbound bench compress --shape llama-3.1-8b:4096 --threads 2 --peer torch.json

    bench_torch.py --shape pocket --dtype fp32                  # every operation; a table, no file
    bench_torch.py --device cuda --json torch.json              # operations of a device, in BF16
    bench_torch.py --device cpu --of device --shape pocket:256  # the same on a processor
    bench_torch.py --list
    bench_torch.py --replay TRACE DUMP --policy snapkv+critical --budget 20%   # its results, for kvbound diff

The operations are those of torch_operations.py, written as public code writes them. They work on random
numbers of the shape asked for. Every round times as many calls as take 10 ms, after calls that do not count:
on a GPU by events, on sets of arguments in turn that together are four times as large as the L2 cache; on a
processor by the wall clock. All rounds are kept. sim/schemas/bench_peer.schema.json describes the file.

--replay measures nothing: it compresses and decodes every layer of a trace by the same functions and writes
what `kvbound diff TRACE DUMP` compares with the reference.

Needs torch; --replay also safetensors and NumPy. Exit codes: 0; 2 usage; 3 a trace that does not do; 4 I/O,
or not enough memory; 5 no torch, or no CUDA device.
"""
import argparse
import contextlib
import json
import math
import os
import platform
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

# Last, because a script there has the name of a module of the standard library.
sys.path.append(str(Path(__file__).resolve().parents[3] / "traces" / "scripts"))

from script_options import Parser, Progress, count, run  # noqa: E402
from torch_replay import replay  # noqa: E402
from torch_work import BY_POLICY, DTYPES, OPERATIONS, Setup  # noqa: E402

SHAPES = {  # query heads, KV heads, head_dim, model_dim, tokens: those of `kvbound bench`
    "llama-3.1-8b": (32, 8, 128, 4096, 32768), "mistral-7b": (32, 8, 128, 4096, 32768),
    "qwen2.5-32b": (40, 8, 128, 5120, 32768), "pocket": (8, 2, 64, 256, 1984)
}
LEAST_TOKENS, MOST_TOKENS = 256, 131072
LEAST_SECONDS = 0.01  # of the calls that a round times
POLICY_NAMES = ("snapkv", "snapkv+critical", "snapkv+keepkv", "h2o", "h2o:sinks=4")  # those of POLICIES
DEFAULT_POLICIES = "snapkv,snapkv+critical,snapkv+keepkv,h2o"


class Unavailable(Exception):
    """What the machine lacks: exit code 5."""


class NoMemory(Exception):
    """Exit code 4."""


@dataclass
class Shape:
    name: str
    tokens: int
    query_heads: int
    kv_heads: int
    head_dim: int
    model_dim: int

    @property
    def budget(self):
        return self.tokens // 5


@dataclass
class Measured:
    operation: str
    policy: str
    calls: int  # in a round
    bytes: int  # of arguments and results
    seconds: list = field(default_factory=list)  # of one call, or of one decode step: one a round


# ---- measurement -------------------------------------------------------------------------------------------


class Clock:
    """Seconds that calls take: on a GPU by its events, else by the wall clock."""

    def __init__(self, torch, device):
        self.torch, self.on_gpu = torch, device == "cuda"

    def seconds(self, call, calls):
        if not self.on_gpu:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            return time.perf_counter() - start
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000


def bytes_of(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def rotation(torch, work, on_gpu):
    """Sets of the work's arguments: on a GPU as many as are four times as large as its L2 cache together."""
    cached = 4 * torch.cuda.get_device_properties(0).L2_cache_size if on_gpu else 0
    copies = math.ceil(cached / bytes_of(work.arguments))
    return [work.arguments, *(tuple(tensor.clone() for tensor in work.arguments) for _ in range(1, copies))]


def measure(torch, name, work, rounds, device, progress):
    clock, sets, turn = Clock(torch, device), rotation(torch, work, device == "cuda"), 0

    def call():
        nonlocal turn
        turn = (turn + 1) % len(sets)
        return work.run(*sets[turn])

    results = call()
    results = results if isinstance(results, tuple) else (results,)
    warm = clock.seconds(call, 1)  # the second call: the first one loads kernels and allocates
    calls = max(1, math.ceil(LEAST_SECONDS / max(warm, 1e-9)))
    if calls > 1:
        clock.seconds(call, calls)
    measured = Measured(name, work.policy, calls, bytes_of((*work.arguments, *results)))
    del results
    for index in range(rounds):
        progress(f"{name}{f', {work.policy}' if work.policy else ''}: round {index + 1} of {rounds}")
        measured.seconds.append(clock.seconds(call, calls) / calls / work.steps)
    return measured


def measure_all(torch, shape, options, progress):
    import torch_operations as ops
    for name in options.operations:
        prepare = OPERATIONS[options.of][name]
        for policy in options.policy if name in BY_POLICY else [None]:
            progress(f"{name}: drawing numbers")
            setup = Setup(torch, shape, options)
            work = prepare(ops, setup, policy) if policy else prepare(ops, setup)
            yield measure(torch, name, work, options.rounds, options.device, progress)


# ---- the report --------------------------------------------------------------------------------------------


def device_name(torch, device):
    if device == "cuda":
        return torch.cuda.get_device_name(0)
    try:
        return re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)[1]
    except (OSError, TypeError):
        return platform.machine() or "unknown"


def document(torch, shape, options, results):
    return {
        "schema": "kvbound-bench-peer-1", "name": "torch", "version": torch.__version__,
        "python": platform.python_version(), "device": options.device,
        "device_name": device_name(torch, options.device), "storage": DTYPES[options.dtype][0],
        "threads": torch.get_num_threads(), "seed": options.seed, "operations_of": options.of,
        "shape": vars(shape), "operations": [vars(result) for result in results]
    }


@contextlib.contextmanager
def written_whole(path):
    """A file that has its name only once all is written; None for no path."""
    if not path:
        yield None
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def heading(torch, shape, options):
    threads = torch.get_num_threads()
    return (
        f"{shape.name}:{shape.tokens}, torch {torch.__version__} on {device_name(torch, options.device)}, "
        f"{DTYPES[options.dtype][0]}, {threads} thread{'s' * (threads > 1)}, seed {options.seed}\n\n"
        f"{'':<32}{'median':>13}{'least':>13}{'most':>13}   rounds x calls")


def row(result):
    name = f"{result.operation}, {result.policy}" if result.policy else result.operation
    spread = median(result.seconds), min(result.seconds), max(result.seconds)
    times = (f"{1000 * seconds:10.4g} ms" for seconds in spread)
    return f"{name:<32}{''.join(times)}   {len(result.seconds)} x {result.calls}"


def bench(torch, options):
    shape, results = options.shape, []
    progress = Progress("bench_torch", options.quiet)
    with written_whole(options.json) as file, torch.inference_mode(), progress:
        print(heading(torch, shape, options), flush=True)
        for result in measure_all(torch, shape, options, progress):
            progress.end()
            print(row(result), flush=True)
            results.append(result)
        if file:
            json.dump(document(torch, shape, options, results), file, indent=2, allow_nan=False)
            file.write("\n")


# ---- the command line --------------------------------------------------------------------------------------


def bench_shape(text):
    name, _, tokens = text.partition(":")
    known = SHAPES.get(name)
    if known and (":" not in text or re.fullmatch("[0-9]{1,6}", tokens)):
        *sizes, default = known
        tokens = int(tokens) if tokens else default
        if LEAST_TOKENS <= tokens <= MOST_TOKENS:
            return Shape(name, tokens, *sizes)
    shapes = ", ".join(f"{known}:{sizes[-1]}" for known, sizes in SHAPES.items())
    raise argparse.ArgumentTypeError(
        f"{text!r}: known shapes: {shapes}; or with other tokens, {LEAST_TOKENS} to {MOST_TOKENS}")


def percent_or_count(text):
    if not re.fullmatch("[0-9]{1,9}|[0-9]{1,2}%|100%", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of entries nor a percentage such as 20%")
    return text


def parse_options():
    parser = Parser(__doc__)
    parser.add_argument("operations", metavar="OPERATION", nargs="*",
                        help="operations of `kvbound bench` (default: all known)")
    parser.add_argument("--shape", metavar="NAME[:TOKENS]", type=bench_shape, default="llama-3.1-8b",
                        help="the layer, as for kvbound bench (default: llama-3.1-8b)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="where torch works (default: cpu)")
    parser.add_argument(
        "--of", choices=tuple(OPERATIONS), help="whose operations: kvbound's reference or its devices' "
        "(default: reference on cpu, device on cuda)")
    parser.add_argument("--dtype", choices=tuple(DTYPES),
                        help="of the cache (default: fp64 on cpu, bf16 on cuda)")
    parser.add_argument("--policy", metavar="P[,P]", default=None,
                        help=f"of compress and step (default: {DEFAULT_POLICIES})")
    parser.add_argument("--threads", metavar="N", type=count(1),
                        help="of torch on a processor (default: torch's own)")
    parser.add_argument("--rounds", metavar="N", type=count(1), default=7, help="counted rounds (default: 7)")
    parser.add_argument("--seed", metavar="N", type=count(0), default=1,
                        help="of the random numbers (default: 1)")
    parser.add_argument("--json", metavar="FILE", type=Path,
                        help="also write all rounds, for kvbound bench --peer")
    parser.add_argument("--replay", metavar=("TRACE", "DUMP"), nargs=2,
                        help="write what is computed from a trace")
    parser.add_argument("--budget", metavar="B", type=percent_or_count, default="20%",
                        help="entries per KV head with --replay (default: 20%%)")
    parser.add_argument("--list", action="store_true", help="list the operations and policies")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    options = parser.parse_args()
    options.of = options.of or ("device" if options.device == "cuda" else "reference")
    options.dtype = options.dtype or ("bf16" if options.device == "cuda" else "fp64")
    require_names(parser, options)
    return options


def require_names(parser, options):
    known = OPERATIONS[options.of]
    for name in options.operations:
        if name not in known:
            parser.error(f"no operation {name!r} of the {options.of}; known: {', '.join(known)}")
        if options.operations.count(name) > 1:
            parser.error(f"operation {name!r} is given twice")
    options.operations = [name for name in known if name in options.operations or not options.operations]
    policies, options.policy = POLICY_NAMES, (options.policy or DEFAULT_POLICIES).split(",")
    for policy in options.policy:
        if policy not in policies:
            parser.error(f"--policy {policy!r}: known policies: {', '.join(policies)}")
        if options.policy.count(policy) > 1:
            parser.error(f"--policy: {policy!r} is given twice")
    if options.replay and len(options.policy) > 1:
        parser.error("--replay needs one --policy")


def listing():
    names = (f"{of}: {', '.join(operations)}" for of, operations in OPERATIONS.items())
    return "\n".join([*names, f"policies: {', '.join(POLICY_NAMES)}"])


def load_torch(options):
    try:
        import torch
    except ImportError as error:
        raise Unavailable(f"torch cannot be imported ({error}); pip install torch") from None
    if options.device == "cuda" and not torch.cuda.is_available():
        raise Unavailable(f"torch {torch.__version__} finds no CUDA device")
    if options.threads:
        torch.set_num_threads(options.threads)
    return torch


def perform(options):
    if options.list:
        return print(listing())
    torch = load_torch(options)
    try:
        if not options.replay:
            return bench(torch, options)
        with torch.inference_mode():
            replay(torch, options)
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError, too
        text = str(error).strip().splitlines()[0] if str(error).strip() else "out of memory"
        if not isinstance(error, MemoryError) and not re.search(
                "out of memory|allocate memory|not enough memory", str(error)):
            raise
        raise NoMemory(
            f"not enough memory for {options.shape.name}:{options.shape.tokens} in {options.dtype}: {text}"
        ) from None


def main():
    def action():
        try:
            perform(parse_options())
        except (Unavailable, NoMemory) as error:
            print(f"bench_torch: {error}", file=sys.stderr)
            sys.exit(5 if isinstance(error, Unavailable) else 4)

    run("bench_torch", action)


if __name__ == "__main__":
    main()
