"""The tasks on which `kvbound evaluate` is compared with the independent closed loop."""
import json
import os
from pathlib import Path

import numpy as np

from independent.closed_loop import Task, evaluate
from independent.policy import parse_policy
from independent.replay import Trace, read_tensor
from support.kvbound_cli import REPOSITORY, SAMPLES, TraceFile
from support.tiny_model import TinyModel

VOCABULARY = 64
MODELS = {  # of seeds without near ties: independent_evaluate_test.py
    "llama": {"seed": 2}, "qwen2": {"family": "qwen2", "seed": 1}, "qwen3-tied": {"family": "qwen3", "tied": True, "seed": 1},
    "one-kv-head": {"kv_heads": 1, "layers": 3, "seed": 1}, "single-heads": {"kv_heads": 4, "tied": True, "seed": 11}}
POLICIES = (
    "snapkv:window=8", "snapkv:window=8+critical", "snapkv:window=8+exact", "snapkv:window=8+obcache-joint",
    "snapkv:window=8+theta-sweep", "snapkv:window=8+pyramid:beta=4", "snapkv:window=8+keepkv:threshold=0.3",
    "snapkv:window=8+cam", "snapkv:window=8+d2o:threshold=0.3", "snapkv:window=8+keepkv:threshold=0.3:period=3",
    "snapkv:window=8+keepkv:threshold=0.3:order=merge-first", "h2o:window=16:recent=4", "tova", "streaming-llm",
    "h2o:window=16:recent=4+keepkv:threshold=none", "tova+adakv:safeguard=0.4")
MORE_POLICIES = (
    "snapkv:window=8:pool=1+critical:alpha=adaptive:gqa=product-of-means", "snapkv:window=8+greedy",
    "snapkv:window=8+obcache-value:space=projected", "snapkv:window=8+obcache-key",
    "snapkv:window=8+adakv+convex:threshold=0.3",
    "snapkv:window=8+keepkv:gqa=mean:scores=raw:ema=0.99:threshold=0.5", "snapkv:window=8+kvmerger:threshold=0.3",
    "h2o:window=128:sinks=2:recent=2+exact:space=projected", "h2o:window=16:recent=4+critical",
    "h2o:window=16:recent=4+obcache-joint",
    "h2o:window=16:recent=4+keepkv:order=merge-first:threshold=0.3", "h2o:window=16:recent=4+d2o:threshold=0.3",
    "tova+critical:alpha=0.25", "tova+exact", "tova:sinks=2+theta-sweep", "tova+keepkv:threshold=none:predict=current:period=4",
    "tova+cam:seed=3", "streaming-llm:sinks=2+pyramid:shape=cosine", "streaming-llm+keepkv:threshold=0.2")


def tiny_model(name):
    return TinyModel(vocabulary=VOCABULARY, **MODELS[name])


def fitting(policies, task):
    """The policies whose window fits into the recorded queries."""
    return [policy for policy in policies if parse_policy(policy).window <= min(128, task.compress_at)]


def tiny_tasks(seed=7):
    """{id: Task}: one compressed at the prompt's end; one before it, with more tokens than queries are recorded."""
    random = np.random.default_rng(seed)
    return {name: Task(random.integers(0, VOCABULARY, tokens), random.integers(0, VOCABULARY, target), compress_at)
            for name, tokens, target, compress_at in (("end", 70, 8, None), ("before", 146, 7, 137))}


def write_tasks(path, tasks, kind="continuation"):
    """A task file: one JSON object per line; compress_at only where it is not the prompt's end."""
    lines = []
    for name, task in tasks.items():
        line = {"id": name, "prompt": task.prompt, kind: task.target}
        if task.compress_at != len(task.prompt):
            line["compress_at"] = task.compress_at
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def trace_file(full):
    """A closed_loop.FullRun as a trace in double precision, to be written."""
    s = full.sequence
    trace = TraceFile(s.layers, s.query_heads, s.kv_heads, s.head_dim, s.model_dim, s.prompt_tokens, s.decode_tokens,
                      s.window_queries, dtype="F64")
    for name in trace.tensors:
        _, index, kind = name.split(".")
        part = getattr(s.layer(int(index)), kind)
        trace.tensors[name] = "F64", part.reshape(-1, s.model_dim) if kind == "output_projection" else part
    return trace


def pocket_folder():
    """The model `pocket`: KVBOUND_POCKET/pocket, or shared/data/pocket beside the repository; None if it is not there."""
    folders = [Path(os.environ[name]) for name in ("KVBOUND_POCKET",) if os.environ.get(name)]
    folders.append(REPOSITORY.parent / "shared" / "data")
    return next((folder / "pocket" for folder in folders if (folder / "pocket" / "config.json").exists()), None)


def pocket_tasks():
    """{id: Task}: the end of the sample's prompt, and what the model makes of it: 1,024 and 64 bytes; and a short text."""
    tokens = read_tensor(Trace(SAMPLES / "pocket-gqa.safetensors").tensors["tokens"])
    return {"prose": Task(tokens[960:1984], tokens[1984:2048]), "before": Task(tokens[:420], tokens[420:440], 400)}


def same_choices(run, other):
    """Whether two of closed_loop.ClosedRun kept, evicted and merged the same entries."""
    def clusters(run):
        return [head.clusters for layer in run.caches for head in layer if head.policy.merge]

    return run.choices == other.choices and clusters(run) == clusters(other) and all(
        np.array_equal(ours, theirs) for layers in zip(run.kept, other.kept) for ours, theirs in zip(*layers))


def moved_model(model, random):
    """The model with other errors of rounding."""
    def move(x):
        return x * (1 + 2.0**-20 * random.standard_normal(x.shape))

    moved = model.in_precision(float, move)
    exact = moved.embedded
    moved.embedded = lambda tokens: move(exact(tokens))
    return moved


def near_ties(model, task, ours, seeds):
    """The runs of closed_loop.evaluate's result `ours` in which rounding may decide what is kept, evicted or merged: where
    weights and embedded tokens that are off by 16 units in the last place of single precision, far more than its
    arithmetic errs, change a choice. Each place's token errs by itself: products round the rows of equal tokens
    differently. "POLICY @ BUDGET" each."""
    found = []
    for seed in seeds:
        moved = moved_model(model, np.random.default_rng(seed))
        for run in ours["runs"]:
            other, = evaluate(moved, task, [run["policy"]], [run["budget"]], measure=False)["runs"]
            if not same_choices(run["run"], other["run"]):
                found.append(f"{run['policy']} @ {run['budget']}")
    return found
