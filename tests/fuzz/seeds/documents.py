"""Documents that the program writes and reads again, of problems so small that they have few numbers."""
import json

from support.report_documents import BENCH_MODEL
from support.tiny_model import TinyModel

BASE = "snapkv:window=2"
MERGING = f"{BASE}+keepkv"
PLAN = {"format": "kvbound-sweep-plan", "version": 1, "traces": ["small.safetensors"], "budgets": ["50%", "5"], "layers": "0",
        "policies": ["snapkv:window=2+critical", "h2o:window=2:recent=1:sinks=0+keepkv", "random:window=1:sinks=1"], "seeds": [1, 2], "recall": 3,
        "base": "tova", "backends": ["reference", "emulated"], "merge_bounds": True, "policies_per_item": 9}
EVALUATION = {"model": "m", "runs": ["snapkv 20%"]}  # of read_results in readers/documents.cpp


def sweep(run, folder):
    """A plan, what the program made of it, and items' results: of merging and two-stage policies, on two backends."""
    (folder / "plan.json").write_text(json.dumps(PLAN), "utf-8")
    run("sweep", "plan.json", "--out", "out", "--jobs", "1", "--quiet")
    yield "plan", b"P" + (folder / "plan.json").read_bytes()
    yield "sweep", b"S" + (folder / "out" / "plan.json").read_bytes()
    for number, result in enumerate(sorted((folder / "out" / "results").glob("*/*"))):
        yield f"results-{number}", b"R" + result.read_bytes()[64:]  # without the hash


def evaluation(run, folder):
    """The document of an evaluation, and the file of results with which it would go on."""
    TinyModel(layers=1, model_dim=4, heads=2, kv_heads=1, head_dim=2, feed_forward=4, vocabulary=5).write_folder(folder / "model")
    tasks = [{"id": "task 0", "prompt": [1, 2, 3, 4, 0, 1], "answer": [2, 3], "depth": 0.5},
             {"id": "task 1", "prompt": [4, 3, 2, 1, 0, 4], "continuation": [1, 2]}]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), "utf-8")
    run("evaluate", "model", "tasks.jsonl", "--policy", f"{BASE},{MERGING}", "--base", BASE, "--budget", "4", "--json", "document.json", "--resume",
        "results", "--quiet")
    yield "document-evaluate", b"J" + (folder / "document.json").read_bytes()
    header, *lines = (folder / "results").read_text("utf-8").splitlines(keepends=True)
    header = json.loads(header) | {"evaluation": EVALUATION}
    yield "results-of-tasks", b"N" + json.dumps(header, separators=(",", ":")).encode() + b"\n" + "".join(lines).encode()


def inputs(run, folder):
    """run(*arguments) runs the program in `folder`, which has small.safetensors."""
    yield from sweep(run, folder)
    yield from evaluation(run, folder)
    trace, runs = "small.safetensors", ("--policy", f"{BASE},{MERGING}", "--budget", "4", "--quiet")
    for name, arguments in (("replay", ("replay", trace, *runs, "--base", BASE, "--merge-bounds")),
                            ("backends", ("replay", trace, *runs, "--backend", "reference,emulated")),
                            ("recall", ("recall", trace, "--k", "2", "--recent", "1")),
                            ("predict", ("predict", trace, "--policy", BASE, "--budget", "4")),
                            ("diff", ("diff", trace, "dump.safetensors")), ("prove", ("prove", "ckv-3.2", "--cases", "30")),
                            ("bench", ("bench", "selection", "--shape", "pocket:256", "--repeats", "1"))):
        run(*arguments, "--json", "document.json")
        yield f"document-{name}", b"J" + (folder / "document.json").read_bytes()
    yield "document-bench-model", b"J" + json.dumps(json.loads(BENCH_MODEL.read_bytes())).encode()
