"""What an implementation did on a recorded trace, held against the reference step by step: `kvbound diff`."""
import os

from kvbound import _native
from kvbound.arrays import exported
from kvbound.cubes import Result
from kvbound.judgement import Judgement
from kvbound.policies import budget_text
from kvbound.trace import Trace


class Diff(Judgement, Result):
    """What diff() found. It prints as the command does. Cubes: agreement, tensors, functionals, unlikely."""


def diff(trace, results, *, policy=None, budget=None, compression_ratio=None, storage=None, accumulate="F32", weights=None,
         partials=None, splits=None, tile=None, products=None, name="kernel", progress=None) -> Diff:
    """Judges kept sets, scores, outputs, evictions and merges of an implementation that ran a policy on a trace.

    trace         a Trace, or its path
    results       the path of a dump, which says the rest of itself; or arrays by the names of dumps, of any layers:
                  "layers.3.output" [steps, num_qo_heads, head_dim]; "layers.3.kept" and "layers.3.kept_offsets"; score,
                  evicted and others that sim/README.md of the project lists
    policy, budget, compression_ratio   what was run
    storage       "F16", "BF16", "F32" or "F64": of the implementation's cache; by default the trace's
    accumulate    "F32" or "F64"
    weights, partials, splits, tile, products   the rest of its arithmetic, as check_attention
    name          of the implementation, for people

    returns       Diff
    raises        InvalidInput, InvalidOption, OSError
    source        reference/bounds/error_bounds.md of the project
    """
    trace = trace if isinstance(trace, Trace) else Trace(os.fspath(trace))
    if isinstance(results, (str, os.PathLike)):
        return Diff(_native.diff_file(trace._native, os.fspath(results), progress))
    layers = sorted({int(tensor.split(".")[1]) for tensor in results if tensor.count(".") == 2 and tensor.split(".")[1].isdecimal()})
    texts = {"format": "kvbound-dump", "version": "1", "policy": policy, "budget": budget_text(budget, compression_ratio),
             "backend": name, "storage": storage or trace.storage, "accumulate": accumulate,
             "weights": weights, "partials": partials, "splits": splits, "tile": tile, "products": products,
             "layers": ",".join(map(str, layers))}
    said = {field: str(value) for field, value in texts.items() if value not in (None, "")}
    return Diff(_native.diff_arrays(trace._native, name, exported(name, results), said, progress))
