"""What the program reads, and the commands that read it: valid files of which a generator damages one."""
import json
from dataclasses import dataclass
from pathlib import PurePosixPath

from faults.hostile import archive, cbor, extremes, gguf, json_text, raw_bytes, tensors, text_lines
from faults.hostile.inputs import MODEL, POLICY, models, npz_of
from support.peer_file import PEER
from support.tiny_model import TinyModel

REPLAY = "--policy", f"{POLICY}+critical,h2o:window=4+keepkv", "--budget", "8,50%"
EVALUATE = "--policy", f"{POLICY},tova+d2o", "--budget", "8"
RESUMED = "--policy", POLICY, "--budget", "8"
INSTANCE = {"schema": "kvbound-instance-1", "property": "ckv-3.3", "query_heads": 1, "logits": [[0.0, 0.0]], "values": [[0.0], [1.0]],
            "output_projection": [[1.0]], "stage_one": [0], "kept": [0], "epsilon": 0.0}
INSTANCES = INSTANCE, INSTANCE | {"property": "kkv-kl", "logits": [[0.0, 1.0]], "votes": [1, 1], "query_vectors": [[1.0]], "ema": 0.5}
OPERATIONS = "attention", "topk", "compact", "scores", "norms", "merge"

# Generators by a file's ending, or its folder.
GENERATORS = {".safetensors": tensors.DAMAGES, ".npz": archive.DAMAGES, ".gguf": gguf.DAMAGES, ".json": json_text.DAMAGES,
              ".jsonl": text_lines.JSON_LINES, "done": text_lines.JSON_LINES,
              "ids": text_lines.IDS, "prose.txt": text_lines.PROSE, "results": cbor.DAMAGES, "attempts": json_text.DAMAGES}


def generators_of(name):
    path = PurePosixPath(name)
    return next((damages for kind, damages in GENERATORS.items() if kind in (path.suffix, path.name) or kind in path.parts), raw_bytes.DAMAGES)


@dataclass(frozen=True)
class Surface:
    """name      of what is read
    variants  sets of valid files, {name: bytes}
    damaged   beginnings of the names of those that are damaged; all by default
    commands  of which one is run; what they write is called out.*, or is in the folder `own`
    cases     how many a whole run tries
    world     whether it may end with 4: damaged files name others
    own       files and folders that the command may change
    damages   in place of those of the files' kinds and of bytes
    script    of traces/scripts, in place of the program
    figures   whether damage is found, so that a command that passes has the figures of undamaged files
    """

    name: str
    variants: tuple
    commands: tuple
    cases: int
    damaged: tuple = ("",)
    world: bool = False
    own: tuple = ()
    damages: tuple = ()
    script: str | None = None
    figures: bool = False


def of_extremes():
    """Commands that take a trace of any size."""
    policies = ",".join(f"{host}+{component}" for host, component in (
        ("snapkv:window=1", "critical"), ("snapkv:window=1", "theta-sweep+kvmerger"), ("snapkv:window=1", "exact"), ("tova", "obcache-joint"),
        ("snapkv:window=1", "greedy"), ("h2o:window=1", "keepkv"), ("tova", "d2o"), ("snapkv:window=1", "keepkv-paper+adakv"),
                                                                      ("streaming-llm:sinks=1", "cam"),
        ("snapkv:window=1", "obcache-key+pyramid")))
    for budget, *more in (("50%",), ("1",), ("2,100%", "--merge-bounds")):
        yield "replay", "trace.safetensors", "--policy", policies, "--budget", budget, *more, "--json", "out.json", "--csv", "out.csv"
    yield "inspect", "trace.safetensors", "--heads", "--window", "1", "--json", "out.json"
    yield "recall", "trace.safetensors", "--k", "1", "--recent", "1", "--windows", "1", "--json", "out.json"
    yield "predict", "trace.safetensors", "--policy", "tova", "--budget", "1", "--top", "1", "--shares", "1", "--window", "1", "--json", "out.json"


def of_traces(made):
    trace = ({"trace.safetensors": made.trace},)
    reading = [("inspect", "{}", "--verify", "--json", "out.json"), ("inspect", "{}", "--heads", "--window", "4", "--csv", "out.csv"),
               ("inspect", "{}"),
               ("replay", "{}", *REPLAY, "--json", "out.json", "--csv", "out.csv"), ("replay", "{}", "--policy", POLICY, "--budget", "20%",
                                                                                     "--dump", "out.safetensors"),
               ("recall", "{}", "--k", "4", "--recent", "4", "--windows", "4", "--json", "out.json"), ("predict", "{}", "--policy", POLICY,
                                                                                                       "--budget", "8", "--window", "4",
                                                                                                       "--json", "out.json"),
               ("replay", "{}", "--policy", f"{POLICY}+keepkv", "--budget", "8", "--merge-bounds", "--csv", "out.csv")]
    commands = tuple(tuple(word.replace("{}", "trace.safetensors") for word in command) for command in reading)
    yield Surface("traces", trace, commands, 4000)
    yield Surface("traces in shards", (made.shards(),),
                  tuple(tuple(word.replace("{}", "trace.index.json") for word in command) for command in reading), 1500, world=True)
    yield Surface("traces of extreme sizes and numbers", trace, tuple(of_extremes()), 3000, damages=extremes.DAMAGES)
    diffs = tuple(made.dumps())
    yield Surface("dumps, by diff", diffs, (("diff", "trace.safetensors", "dump.safetensors", "--json", "out.json"),), 2400)
    scores = ",".join(f"given:file=given.safetensors:window=4{more}" for more in ("", "+critical", "+theta-sweep", "+adakv+keepkv"))
    for name, files, policy, budget in (("scores", made.given_scores(), scores, "8"), ("kept sets", made.given_kept_sets(), "given:file=given.safetensors+cam",
                                                                                     "given")):
        yield Surface(f"{name} of given, by replay", (files,), (("replay", "trace.safetensors", "--policy", policy, "--budget", budget, "--json",
                                                              "out.json"),), 400, ("given",))
    yield Surface("scores of heads, by replay", ({"trace.safetensors": made.trace, "scores.json": made.head_scores()},),
                  (("replay", "trace.safetensors", "--policy", f"{POLICY}+headkv:scores=scores.json", "--budget", "8", "--json", "out.json"),), 400,
                  ("scores",))
    twice = tuple({**files, "other.safetensors": files["dump.safetensors"]} for files in diffs)
    yield Surface("dumps, by diff --against", twice, (("diff", "dump.safetensors", "other.safetensors", "--against", "trace.safetensors",
                                                       "--json", "out.json"),), 1000, ("dump", "other"))


def of_kernels(made):
    files = {}
    for operation, case in made.kernels():
        files.setdefault(operation, []).append(case)
    for operation in OPERATIONS:
        stored = tuple({"kernel.safetensors": case.bytes(), "other.safetensors": case.bytes()} for case in files[operation])
        check = ("check", operation, "kernel.safetensors", "--json", "out.json")
        commands = (check, check, (*check, "--against", "other.safetensors")) if operation in ("attention", "topk") else (check,)
        yield Surface(f"kernels, by check {operation}", stored, commands, 700)
    packed = tuple({"kernel.npz": npz_of(case)} for case in files["attention"])
    yield Surface("kernels in .npz, by check", packed, (("check", "attention", "kernel.npz", "--json", "out.json"),), 1500)


def of_models(made):
    ids = {"ids": b"1 2 3 4 5 6"}
    record = ("--tokens", "ids", "--steps", "2", "--quiet", "out.safetensors")
    yield Surface("models of Hugging Face", tuple({**files, **ids} for files in made.checkpoints()), (("record", "model", *record),), 2000,
                  ("model/",), world=True)
    yield Surface("models in GGUF", tuple({"model.gguf": model, "ids": b"1 2 3 4"} for model in models()),
                  (("record", "model.gguf", *record[:-1], "out.safetensors"),), 2400, ("model",))
    parts = {**TinyModel(**MODEL).gguf_parts(2), **ids}
    yield Surface("models in GGUF, in parts", (parts,), (("record", "model-00001-of-00002.gguf", *record),), 800, ("model",), world=True)
    evaluation = made.evaluation()
    tokens = {**{name: content for name, content in evaluation.items() if name.startswith("model/")}, **ids}
    yield Surface("token ids", (tokens,), (("record", "model", *record), ("record", "model", "--bytes", "ids", "--prompt", "3", "--steps",
                                                                          "2", "out.safetensors")), 700, ("ids",))
    yield Surface("tasks", (evaluation,), (("evaluate", "model", "tasks.jsonl", *EVALUATE, "--json", "out.json", "--csv", "out.csv"),),
                  1500, ("tasks",))
    yield Surface("results, by evaluate --resume", (evaluation,), (("evaluate", "model", "tasks.jsonl", *RESUMED, "--resume", "done",
                                                                    "--json", "out.json"),), 1500, ("done",), own=("done",))
    yield Surface("calls of FlashInfer", tuple(made.calls()), (("import", "flashinfer", "calls", "--request", "0", "--dump",
                                                                "out.dump.safetensors", "out.safetensors"),
                                                              ("import", "flashinfer", "calls", "--request", "0", "out.safetensors"),
                                                               ("import", "flashinfer", "calls", "--list")), 2000)


def of_sweeps(made):
    files = made.sweep()
    alone = {name: content for name, content in files.items() if "/" not in name}
    outputs = "--json", "out.json", "--csv", "out.csv"
    yield Surface("plans", (alone,), (("sweep", "plan.json", "--out", "study", *outputs), ("sweep", "plan.json", "--out", "study",
                                                                                           "--list")), 1000, ("plan",), own=("study",))
    study = ("sweep", "--out", "study", *outputs), ("sweep", "plan.json", "--out", "study"), ("sweep", "--out", "study",
                                                                                              "--list"), ("sweep", "--out", "study",
                                                                                                          "--simulate", "50")
    yield Surface("folders of sweeps, by sweep", (made.begun_sweep(),), study, 1500, ("study/",), world=True, own=("study",), figures=True)
    gather = ("gather", "study", *outputs), ("gather", "study", "--partial", *outputs), ("gather", "study", "--partial", "--mixed", *outputs)
    yield Surface("folders of sweeps, by gather", (files,), gather, 1500, ("study/",), own=("study",), figures=True)


def of_documents(made):
    for name, content in made.documents().items():
        content = json.dumps(json.loads(content)).encode()
        yield Surface(f"documents, by report: {name.removesuffix('.json')}", ({"document.json": content},),
                      (("report", "document.json", "-o", "out.html"),), 300)


    instances = tuple({"instance.json": json.dumps(instance).encode()} for instance in INSTANCES)
    yield Surface("instances, by prove --replay", instances, (("prove", "--replay", "instance.json", "--json", "out.json"),), 600)
    bench = "bench", "selection", "--shape", "pocket:256", "--repeats", "1", "--peer", "peer.json", "--json", "out.json"
    yield Surface("times, by bench --peer", ({"peer.json": json.dumps(PEER).encode()},), (bench,), 400)


def of_scripts(made):
    prose = {"prose.txt": ("The king went to town. He saw a black horse, and \u201cthe horse\u201d looked away from the river.\n" * 40).encode()}
    make = (("prose.txt", "bytes", "out.jsonl", "--make", "needle", "--lengths", "200", "--tasks", "2"), ("prose.txt", "bytes", "out.jsonl",
                                                                                                          "--make", "continuation",
                                                                                                          "--lengths", "100", "--tasks", "2"))
    yield Surface("prose, by make_tasks.py", (prose,), make, 300, script="make_tasks.py")
    made.run("generate", "--kind", "mixed", "--tokens", "60", "--decode", "2", "--layers", "1", "--query-heads", "2", "--kv-heads", "1",
             "--head-dim", "4", "--model-dim", "8", "--window-queries", "40",
             "of_script.safetensors")
    trace = {"trace.safetensors": (made.folder / "of_script.safetensors").read_bytes()}
    yield Surface("traces, by write_dump.py", (trace,), (("trace.safetensors", "out.safetensors"),), 300, script="write_dump.py")


def all_surfaces(made):
    for surfaces in (of_traces, of_kernels, of_models, of_sweeps, of_documents, of_scripts):
        yield from surfaces(made)
