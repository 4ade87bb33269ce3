"""Hostile options, names of files and environments, of every command with valid files."""
import os
import random
import re

from faults.hostile import json_text, raw_bytes, things
from faults.hostile.cases import READ, Case
from faults.hostile.inputs import POLICY
from support import kvbound_cli
from support.kvbound_cli import WORLD

VALUES = (value.decode("utf-8", "surrogateescape").strip('"') for value in (*json_text.NUMBERS, *json_text.TEXTS, *json_text.OTHERS[:9])
          if len(value) < 10_000)
WORDS = tuple(dict.fromkeys((
    *VALUES, *map(str, raw_bytes.EDGES), "-0", "0-", "0-1", "1-0", "0,0", "0,,1", ",", "0/0", "0/1", "1/1", "1/2", "-1/2", "1e3", "1%", "0%", "100%",
    "100.5%", "-5%", "5%%", "\u0665", "\uff15", " 1", "1 ", "1\n", "\x1b[2J", "\u009b2J", "\udcff", "x" * 120, "x" * 5000, ",".join("1" * 2000),
    "cuda", "emulated", "reference", "F16", "F64", "pocket", "pocket:0", "pocket:-1", "slurm", "local", "NHD", "any", "none", "a" * 64, "0" * 64,
    "--json", "-", "--", "nan%")))
POLICIES = ("snapkv", "h2o", "tova", "streaming-llm", "random", "+", ":", "=", ",", "window", "pool", "critical", "alpha", "keepkv",
            "threshold", "none", "0", "4", "9", "-1", "1e400", "nan", "\x1b[2J",
            "\u009b", "\udcff", "x" * 300, "greedy", "adakv", "pyramid", "beta", "d2o", "cam", "seed", "exact", "space", "projected", "ema",
            "period", "order", "merge-first", "")
PATHS = ("FILE", "DIR", "PAGE", "FILE|DIR", "TRACE", "B")  # what --help calls values that are names of files
WRITTEN = "--json", "--csv", "--dump", "--out", "--resume"
# Numbers that commands may take by their word: cases, tokens, processes, seconds.
COSTLY = {"--search": r"\d", "--jobs": r"\d{2,18}"}
COSTLY_ELSEWHERE = r"\d{4,18}"
COSTLY_COMMANDS = "generate", "prove", "bench", "sweep", "record", "evaluate", "replay"

ENVIRONMENT = {
    "OMP_NUM_THREADS": ("0", "-1", "1", "2", "257", "1000000", "4294967297", "99999999999999999999", "x", "", "1,2", "\x1b[2J", "\udcff", "2 "),
    "OMP_THREAD_LIMIT": ("0", "1", "-1", "x"),
    "OMP_STACKSIZE": ("1", "0", "1000G", "x", "16k", "\x1b[2J"),
    "OMP_PROC_BIND": ("true", "close", "x"),
    "OMP_PLACES": ("cores", "{0}", "{99}", "x"),
    "GOMP_CPU_AFFINITY": ("0", "9-0", "x"),
    "OMP_WAIT_POLICY": ("active", "passive", "x"),
    "OMP_DYNAMIC": ("true", "x"),
    "OMP_NESTED": ("true",),
    "OMP_MAX_ACTIVE_LEVELS": ("0", "99", "-1"),
    "OMP_SCHEDULE": ("dynamic,1", "x"),
    "OPENBLAS_NUM_THREADS": ("0", "-1", "1000", "x", ""),
    "OPENBLAS_CORETYPE": ("", "Haswell", "x", "\x1b[2J", "\udcff", "y" * 5000, "\u009b"),
    "OPENBLAS_VERBOSE": ("0", "x"),
    "GOTO_NUM_THREADS": ("0", "x"),
    "TMPDIR": ("", "/nowhere", "/dev/null", "\udcff"),
    "HOME": ("", "/nowhere", "\x1b[2J"),
    "LC_ALL": ("", "C", "xx_XX.UTF-8", "\x1b[2J", "tr_TR.UTF-8"),
    "LANG": ("x", "\udcff"),
    "LANGUAGE": ("x",),
    "TZ": ("", "x", "\x1b[2J", ":/dev/zero"),
    "TERM": ("", "dumb", "\x1b[2J"),
    "NO_COLOR": ("", "1"),
    "COLUMNS": ("0", "-1", "x", "99999999999999999999"),
    "CUDA_VISIBLE_DEVICES": ("", "-1", "x", "99"),
    "SLURM_ARRAY_TASK_ID": ("-1", "x", "99999999999999999999", "\x1b[2J"),
    "SLURM_ARRAY_TASK_COUNT": ("0", "x"),
    "SLURM_JOB_ID": ("x", "\udcff"),
    "SLURM_PROCID": ("x",),
    "SLURM_CPUS_PER_TASK": ("0", "x"),
    "MALLOC_ARENA_MAX": ("0", "x"),
    "GCONV_PATH": ("/nowhere",),
    "PATH": ("", "/nowhere"),
    "PWD": ("", "/nowhere", "\x1b[2J"),
    "POSIXLY_CORRECT": ("1",),
    "KVBOUND": ("x",),
}


def bases(made):
    """(arguments, files) of every command, so that it passes."""
    trace, evaluation, sweep = {"trace.safetensors": made.trace}, made.evaluation(), made.sweep()
    dump, calls, checkpoint = made.dumps()[0], made.calls()[0], made.checkpoints()[0]
    kernel = {"kernel.safetensors": made.kernels()[0][1].bytes()}
    document = {"document.json": made.document()}
    policy = "--policy", POLICY, "--budget", "8"
    yield ("inspect", "trace.safetensors", "--heads", "--window", "4", "--json", "out.json", "--csv", "out.csv"), trace
    yield ("replay", "trace.safetensors", *policy, "--json", "out.json", "--csv", "out.csv", "--dump", "out.safetensors"), trace
    yield ("recall", "trace.safetensors", "--k", "4", "--recent", "4", "--windows", "4", "--json", "out.json"), trace
    yield ("predict", "trace.safetensors", *policy, "--window", "4", "--json", "out.json"), trace
    yield ("diff", "trace.safetensors", "dump.safetensors", "--json", "out.json"), dump
    yield ("diff", "--floor", "trace.safetensors", "--storage", "BF16", "--json", "out.json"), trace
    yield ("check", "attention", "kernel.safetensors", "--json", "out.json"), kernel
    yield ("record", "model", "--tokens", "ids", "--steps", "2", "out.safetensors"), {**checkpoint, "ids": b"1 2 3 4"}
    yield ("import", "flashinfer", "calls", "--request", "0", "--dump", "out.dump.safetensors", "out.safetensors"), calls
    yield ("evaluate", "model", "tasks.jsonl", *policy, "--json", "out.json", "--csv", "out.csv", "--resume", "done"), evaluation
    yield ("sweep", "plan.json", "--out", "study", "--json", "out.json", "--jobs", "1"), sweep
    yield ("gather", "study", "--partial", "--json", "out.json", "--csv", "out.csv"), sweep
    yield ("report", "document.json", "-o", "out.html"), document
    yield ("prove", "ckv-3.2", "--cases", "50", "--json", "out.json"), {}
    yield ("bench", "selection", "--shape", "pocket:256", "--repeats", "1", "--json", "out.json"), {}
    yield ("generate", "--kind", "sink", "--tokens", "16", "--decode", "2", "--layers", "1", "--head-dim", "4", "--model-dim", "8",
           "--window-queries", "8", "out.safetensors"), {}


def options_of(command):
    """{option: what --help calls its value; None of a flag}"""
    found = {}
    for line in kvbound_cli.run(command, "--help").stdout.splitlines():
        match = re.match(r"  (?:-\w \[ )?(--[a-z0-9-]+)(?: \])?(?: ([A-Z]\S*))?(?:\s|$)", line)
        if match and match[1] != "--help":
            found[match[1]] = match[2]
    return found


class Arguments:
    """Cases of every command's options, names and environment."""

    COUNTS = {"options": 4000, "names of files": 3000, "environment": 1000}

    def __init__(self, made):
        self.bases = list(bases(made))
        self.options = {arguments[0]: options_of(arguments[0]) for arguments, _ in self.bases}

    def case_of(self, kind, number):
        draw = random.Random(f"{kind} {number}")
        arguments, files = draw.choice(self.bases)
        return {"options": self.option, "names of files": self.name, "environment": self.variable}[kind](draw, kind, list(arguments), files)

    def option(self, draw, kind, arguments, files):
        """One option of the command, or two, with another value, or twice, or without one."""
        named = []
        for option, value in draw.sample(sorted(self.options[arguments[0]].items()), draw.choice((1, 1, 1, 2))):
            if value in PATHS and option in WRITTEN:
                return self.name(draw, kind, arguments, files)
            arguments = self.with_option(draw, arguments, option, value)
            named.append(option.removeprefix("--"))
        named += "--", "polic", "budget", "argument", "option", "is missing", "no operation", "no theorem", *files
        return self.case(kind, " ".join(named[:2]), arguments, files, named=tuple(named))

    def with_option(self, draw, arguments, option, value):
        word = self.word(draw, option)
        if re.search(COSTLY.get(option, COSTLY_ELSEWHERE), word) and arguments[0] in COSTLY_COMMANDS:
            word = "-" + word
        if option in arguments:
            at = arguments.index(option)
            del arguments[at:at + 1 + (value is not None)]
        usual = [option, word], [f"{option}={word}"]
        unusual = *usual, [option], [option, option], [option[:-1], word]
        at = draw.choice((1, len(arguments)))
        return arguments[:at] + draw.choice(unusual if value is None or draw.random() < 0.1 else usual) + arguments[at:]

    @staticmethod
    def word(draw, option):
        if option in ("--policy", "--base"):
            return "".join(draw.choice(POLICIES) + draw.choice(("", "", ":", "=", "+", ",")) for _ in range(draw.randrange(1, 9)))
        return draw.choice(WORDS)

    def name(self, draw, kind, arguments, files):
        """Another name in the place of a file's, and maybe something of that name."""
        places = [i for i, word in enumerate(arguments) if i and (word in files or word in ("model", "calls",
                                                                                            "study") or word.startswith(("out.", "done")))]
        at = draw.choice(places)
        old, name = arguments[at], os.fsdecode(draw.choice(things.NAMES))
        written = old.startswith("out.") or arguments[at - 1] in WRITTEN
        if written and name in ("..", "/", ".", "./"):
            name = "\x1b[2J"
        place = os.path.normpath(name.removeprefix("../case/"))
        put = {}
        if name and not name.startswith(("/", "-", "../", ".")) and len(name) < 250 and "/" not in name and draw.random() < 0.5:
            # which waits for a reader
            put[name] = draw.choice([thing for thing in things.THINGS if not (written and thing is things.fifo)])
        arguments[at] = name
        is_name = name == place and "/" not in name and name not in (".", "..") and 0 < len(os.fsencode(name)) < 255
        if draw.random() < 0.3 and is_name and old in files and not put:
            files = {**files, name: files[old]}
        what = f"{name[:80]!r} for {old}, {[thing.__name__ for thing in put.values()]}"
        own = (place, "nowhere") if written else ()  # the latter by a link
        return self.case(kind, what, arguments, {"sub/file": b"", **files}, put, own=own)

    def variable(self, draw, kind, arguments, files):
        chosen = draw.sample(sorted(ENVIRONMENT), draw.choice((1, 1, 2, 4)))
        environment = {name: draw.choice(ENVIRONMENT[name]) for name in chosen}
        return self.case(kind, str(environment), arguments, files, environment=environment)

    @staticmethod
    def case(kind, what, arguments, files, put=None, environment=None, own=(), named=()):
        owned = {"sweep": ("study",), "evaluate": ("done",)}.get(arguments[0], ())
        return Case(kind, what, tuple(arguments), files, put or {}, environment or {}, named,
                    READ | {WORLD}, own=(*own, *owned))
