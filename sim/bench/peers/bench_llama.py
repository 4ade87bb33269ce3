#!/usr/bin/env python3
"""Times `kvbound record` beside llama.cpp on the same GGUF file, in one run.

    bench_llama.py KVBOUND MODEL.gguf --prompt 1024 --steps 16 --threads 2 --rounds 5

In every round llama.cpp (PyPI's llama-cpp-python) and `kvbound record` read the same tokens, those of a text, and decode
greedily, in turn; ratios are taken per round, and their median is printed with the least and the most of them. A step
of kvbound is the time of a recording with steps less that of one without, through the steps. llama.cpp is loaded, and
warmed up, before the first round; kvbound's time is that of the whole program, with the trace that it writes (one
layer). Times are by the wall clock and, where other programs run, better by the processor time of all threads, which
llama.cpp's threads also spend waiting for each other: with --threads 1 they do not.

llama.cpp multiplies activations rounded to 8 bits, kvbound single precision.

Needs llama-cpp-python, compiled for the processor: CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python. Exit codes:
0; 2 usage; 3 a run of kvbound that fails; 4 I/O; 5 no llama_cpp, or a model that it cannot load.
"""
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).resolve().parents[3] / "traces" / "scripts"))

from script_options import InvalidInput, Parser, count, run, whole_file  # noqa: E402

DEFAULT_TEXT = Path(__file__).resolve().parents[3] / "README.md"


class Times:
    """Seconds by the wall clock and of the processor."""

    def __init__(self, wall, processor):
        self.wall, self.processor = wall, processor

    def __sub__(self, other):
        return Times(self.wall - other.wall, self.processor - other.processor)

    def __truediv__(self, count_):
        return Times(self.wall / count_, self.processor / count_)


def now():
    """The clocks of this process and of the processes that it has waited for."""
    usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return Times(time.perf_counter(), sum(usage.ru_utime + usage.ru_stime for usage in usages))


class LlamaCpp:
    """A model in llama.cpp, with room for a prompt and steps."""

    def __init__(self, model, text, options):
        from llama_cpp import Llama
        size = options.prompt + options.steps
        self.model = Llama(str(model), n_ctx=size, n_batch=options.prompt, n_threads=options.threads,
                           n_threads_batch=options.threads, verbose=False)
        tokens = self.model.tokenize(text, add_bos=False)
        if not tokens:
            raise InvalidInput("--text: has no tokens")
        self.tokens = (tokens * (options.prompt // len(tokens) + 1))[:options.prompt]

    def measure(self, steps):
        """Times of the prompt and of a step, and what was decoded."""
        self.model.reset()
        start = now()
        self.model.eval(self.tokens)
        read, decoded = now(), []
        for _ in range(steps):
            decoded.append(self.model.sample(temp=0, repeat_penalty=1))
            self.model.eval(decoded[-1:])
        return read - start, (now() - read) / steps, decoded


class Kvbound:
    """The program, which reads a file of tokens."""

    def __init__(self, program, model, tokens, threads, folder):
        self.arguments = [program, "record", model, "--layers", "0", "--threads", str(threads), "--quiet", "--tokens",
                          folder / "tokens.txt", folder / "trace.safetensors"]
        (folder / "tokens.txt").write_text(" ".join(map(str, tokens)))

    def record(self, steps):
        start = now()
        done = subprocess.run([*self.arguments, "--steps", str(steps)], capture_output=True, text=True)
        if done.returncode:
            raise InvalidInput(done.stderr.strip() or f"kvbound record ended with {done.returncode}")
        decoded = re.search(r"decoded:\n([\d ]*)", done.stdout)[1]
        return now() - start, [int(token) for token in decoded.split()]

    def measure(self, steps):
        prompt, _ = self.record(0)
        whole, decoded = self.record(steps)
        return prompt, (whole - prompt) / steps, decoded


def ratio_line(name, theirs, ours, unit):
    """Medians, and llama.cpp's time over kvbound's by both clocks: above 1 kvbound is faster."""
    line = f"{name:24}"
    for clock in ("wall", "processor"):
        pairs = [(getattr(one, clock), getattr(other, clock)) for one, other in zip(theirs, ours)]
        ratios = sorted(one / other for one, other in pairs)
        times = [median(pair[i] for pair in pairs) * (1000 if unit == "ms" else 1) for i in (0, 1)]
        line += f"  {clock}: {times[0]:.3g} and {times[1]:.3g} {unit}, {median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    return line


def main():
    parser = Parser(__doc__)
    parser.add_argument("kvbound", type=Path, metavar="KVBOUND")
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--text", type=Path, default=DEFAULT_TEXT, help="whose tokens are read (default: README.md)")
    for name, value in (("prompt", 1024), ("steps", 16), ("threads", 1), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=count(1), default=value, help=f"default: {value}")
    options = parser.parse_args()
    text = whole_file(options.text)
    for path in (options.kvbound, options.model):
        path.open("rb").close()
    try:
        llama = LlamaCpp(options.model, text, options)
    except (ImportError, ValueError) as error:
        print(f"bench_llama: {error}", file=sys.stderr)
        sys.exit(5)
    llama.measure(1)  # touches the file's pages
    with tempfile.TemporaryDirectory() as folder:
        kvbound = Kvbound(options.kvbound.resolve(), options.model, llama.tokens, options.threads, Path(folder))
        rounds = [(llama.measure(options.steps), kvbound.measure(options.steps)) for _ in range(options.rounds)]
    theirs, ours = zip(*rounds)
    print(f"llama.cpp and kvbound, and how many times as long llama.cpp takes; {options.threads} threads, "
          f"{options.rounds} rounds")
    print(ratio_line(f"prompt of {options.prompt} tokens", [one[0] for one in theirs], [one[0] for one in ours], "s"))
    print(ratio_line("a decode step", [one[1] for one in theirs], [one[1] for one in ours], "ms"))
    alike = next((i for i, pair in enumerate(zip(theirs[0][2], ours[0][2])) if pair[0] != pair[1]), options.steps)
    print(f"the first {alike} of {options.steps} decoded tokens are the same")


if __name__ == "__main__":
    run("bench_llama", main)
