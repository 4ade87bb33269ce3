"""JSON of all subcommands that `kvbound report` reads, of small problems; and of a large replay, made up."""
import json
import shutil
from pathlib import Path

import numpy as np

from support.documents import read
from support.kvbound_cli import TraceFile
from support.tiny_model import TinyModel

# Of `kvbound bench attention select-top --backend emulated --model h100 --shape
# pocket`, which needs kernels that count.
BENCH_MODEL = Path(__file__).with_name("bench_model.json")
BASE = "snapkv:window=4"
POLICIES = f"{BASE},{BASE}+critical,{BASE}+adakv,{BASE}+keepkv"


def write_documents(test):
    """Runs the subcommands in the folder of `test`, a CommandLineTest; returns {what: the document's name}."""
    TraceFile(layers=3, prompt_tokens=60).write(test.folder / "trace.safetensors")
    trace = "trace.safetensors"
    test.passes("replay", trace, "--policy", POLICIES, "--base", BASE, "--budget", "40%,20%", "--json", "replay.json", "--quiet")
    test.passes("replay", trace, "--policy", BASE, "--budget", "40%", "--backend", "reference,emulated", "--json", "backends.json",
                "--quiet")
    test.passes("recall", trace, "--k", "8", "--recent", "4", "--json", "recall.json", "--quiet")
    test.passes("predict", trace, "--budget", "20%", "--policy", BASE, "--window", 6, "--json", "predict.json", "--quiet")
    test.passes("replay", trace, "--policy", f"{BASE}+critical", "--budget", "40%", "--backend", "emulated", "--dump", "dump.safetensors",
                "--quiet")
    test.passes("diff", trace, "dump.safetensors", "--json", "diff.json", "--quiet")
    test.passes("prove", "ckv-3.3", "kkv-8", "--cases", "20", "--json", "prove.json", "--quiet", code=5)
    test.passes("bench", "selection", "projected-value-norms", "--shape", "pocket", "--json", "bench.json", "--quiet")
    scores = np.random.default_rng(5).standard_normal((2, 30)).astype("f4")
    np.savez(test.folder / "call.npz", scores=scores, indices=np.argsort(-scores, axis=1)[:, :4])
    test.passes("check", "topk", "call.npz", "--json", "check.json", "--quiet")
    shutil.copy(BENCH_MODEL, test.folder / "model.json")
    write_evaluation(test)
    names = ("replay", "backends", "recall", "predict", "diff", "prove", "bench", "model", "evaluate", "check")
    return {name: f"{name}.json" for name in names}


def write_evaluation(test):
    TinyModel().write_folder(test.folder / "model")
    random = np.random.default_rng(3)
    tasks = [{"id": f"task {i}", "kind": "needle", "depth": depth, "prompt": random.integers(0, 64, length).tolist(),
              "answer": random.integers(0, 64, 3).tolist()}
             for i, (depth, length) in enumerate((depth, length) for depth in (0.1, 0.5, 0.9) for length in (40, 60))]
    tasks += [{"id": f"prose {i}", "kind": "prose", "prompt": random.integers(0, 64, 40).tolist(),
               "continuation": random.integers(0, 64, 6).tolist()} for i in range(3)]
    (test.folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), "utf-8")
    test.passes("evaluate", "model", "tasks.jsonl", "--policy", f"{BASE},{BASE}+critical", "--base", BASE, "--budget", "20%,40%", "--json",
                "evaluate.json", "--quiet")


def write_large_replay(small, path, layers, heads, policies, budgets):
    """Writes a replay of so many layers, query heads, policies and budgets, like the document `small` but of random numbers."""
    random = np.random.default_rng(1)
    document = read(small)
    part = document["parts"][0]
    entries = np.repeat(100 * np.arange(1, budgets + 1), policies)
    texts = [part["facts"]["base"], *(f"{BASE.replace('4', str(w))}:pool=7" for w in range(5, 4 + policies))]
    part["facts"] |= {"layers": layers, "replayed_layers": list(range(layers)), "query_heads": heads, "kv_heads": heads // 8}
    part["axes"] |= {"layer": {"layer": list(range(layers))}, "head": {"head": list(range(heads))},
                     "kv_head": {"kv_head": list(range(heads // 8))},
                     "run": {"policy": texts * budgets, "label": texts * budgets, "backend": ["reference"] * policies * budgets,
                             "budget": [f"{5 * budget}%" for budget in range(1, budgets + 1) for _ in texts], "entries": entries.tolist()}}
    shape = policies * budgets, layers, heads
    bound = random.lognormal(4, 1, shape)
    columns = {"bound": bound, "perturbation": 0.8 * bound * random.random(shape),
               **{name: random.random(shape) for name in ("relative", "tightness", "kept_mass", "stage_one_mass", "stage_one_low")}}
    kept = [random.integers(count // 2, count, layers * heads // 8) for count in entries]
    part["cubes"] = {
        "runs": {"axes": ["run"], "columns": {"violations": [0] * shape[0],
                                              "base_run": [r - r % policies if r % policies else None for r in range(shape[0])]}},
        "heads": {"axes": ["run", "layer", "head"], "columns": {name: values.ravel().tolist() for name, values in columns.items()}},
        "kv_heads": {"axes": ["run", "layer", "kv_head"], "columns": {"kept": np.concatenate(kept).tolist()}}}
    path.write_text(json.dumps(document), "utf-8")
    return document
