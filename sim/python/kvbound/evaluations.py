"""A model that reads and decodes through compressed caches."""
import json
import os

from kvbound import _native
from kvbound.cubes import Result
from kvbound.errors import InvalidOption
from kvbound.runs import Runs


class Evaluation(Result):
    """What evaluate() found. Cubes: runs, layers, depths, correlations, tasks, task_runs, task_layers, tokens, steps."""


def evaluate(model, tasks, policies, *, budget=None, compression_ratio=None, base=None, backend="reference", steps=None, dtype="F32",
             heads="kv", window=128, recall=40, seed=1, progress=None) -> Evaluation:
    """Divergence of the next token, likelihood and answers of a model whose caches policies have compressed.

    model               a checkpoint: a folder of Hugging Face's format, or a .gguf (Llama, Qwen2 and the like)
    tasks               a path of JSON lines, or dicts: {"id": "a", "prompt": [ids], "continuation": [ids]} and others that
                        `kvbound evaluate --help` lists
    policies, budget, compression_ratio, base   as replay(); a budget counts tokens before compression. A method is
                        asked for every layer of every task
    backend             "reference" or "emulated"
    steps               the first so many tokens of every continuation
    dtype               "F32", "F16" or "BF16": what caches store
    heads               "kv", or "query": every query head has a cache of its own
    window              queries that policies are given: of the last so many tokens before compression
    seed                of the bootstrap
    progress            called with the work done, and all of it

    returns             Evaluation; print() it, or result.to_pandas()
    raises              InvalidOption, InvalidInput, OSError; what a method raises; KeyboardInterrupt
    """
    if dtype not in ("F32", "F16", "BF16"):
        raise InvalidOption(f"dtype: is {dtype!r}; expected \"F32\", \"F16\" or \"BF16\"")
    for name, number, least in (("window", window, 1), ("recall", recall, 1), ("seed", seed, 0), ("steps", steps or 2, 2)):
        if number < least:
            raise InvalidOption(f"{name}: is {number}; expected {least} or more")
    if isinstance(tasks, (str, os.PathLike)):
        with open(tasks, encoding="utf-8", newline="") as file:
            path, text = os.fspath(tasks), file.read()
    else:
        path, text = "tasks", "".join(json.dumps(task) + "\n" for task in tasks)
    runs = Runs(policies, budget, compression_ratio, base, [backend])
    return Evaluation(_native.evaluate(os.fspath(model), path, text, runs.native, runs.methods, steps, dtype, heads, window, recall,
                                       seed, progress))
