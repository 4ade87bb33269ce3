"""What a kernel computed from a trace, written as a dump for `kvbound diff`. NumPy only."""
import numpy as np

from kvbound.errors import InvalidInput
from kvbound.recording.trace_reader import Trace
from kvbound.recording.trace_writer import dtype_of, require_shape, write_files

POSITIONS = {"kept", "kept_offsets", "score_positions", "evicted", "merged_into", "target_of", "rebuilt_target_of"}


def write_dump(path, trace, policy, budget, backend, layers, storage=None, accumulate="F32", weights=None):
    """Writes what a kernel computed from a trace, for `kvbound diff TRACE DUMP`.

    trace        the path of the trace that the kernel read
    policy, budget, backend   as `kvbound replay` takes the first two; a name for the kernel
    layers       one dictionary per layer of the trace (None: not computed), with any tensors of a dump; among them
                     output     [T, query_heads, head_dim]: attention output over the compressed cache, before W^O
                     kept       the positions kept after the prompt: [kv_heads, budget], or a list of one array per KV head
                     score      [kv_heads, m]
                     evicted    [T, kv_heads]
    storage      the type of the kernel's cache (default: the trace's keys')
    accumulate   F32 or F64;  weights: BF16 or F16 if attention weights are rounded to it

    returns      the path; a file is written whole or not at all
    raises       InvalidInput for a shape, a type, or a file that is no trace
    """
    read = Trace(trace)
    if read.metadata.get("format") != "kvbound-trace":
        raise InvalidInput(f"{trace}: is not a trace")
    sizes = {name: read.count(name)
             for name in ("layers", "query_heads", "kv_heads", "head_dim", "prompt_tokens", "decode_tokens")}
    if len(layers) != sizes["layers"]:
        raise InvalidInput(f"{len(layers)} layers, but the trace has {sizes['layers']}; None stands for one not computed")
    computed = [index for index, layer in enumerate(layers) if layer]
    if not computed:
        raise InvalidInput("a dump has at least one layer")
    arrays = {}
    for index in computed:
        arrays |= _checked(f"layers.{index}.", layers[index], sizes)
    metadata = {"format": "kvbound-dump", "version": 1, "policy": policy, "budget": budget, "backend": backend,
                "storage": storage or read.tensors["layers.0.key"][1], "accumulate": accumulate, "trace_sha256": read.sha256}
    if weights is not None:
        metadata["weights"] = weights
    if len(computed) < len(layers):
        metadata["layers"] = ",".join(map(str, computed))
    return write_files(path, metadata, arrays)


def _checked(prefix, layer, sizes):
    """One layer's tensors as write_files takes them."""
    heads, kv_heads, dim, n = (sizes[name] for name in ("query_heads", "kv_heads", "head_dim", "prompt_tokens"))
    layer = dict(layer)
    if "kept" in layer:
        layer["kept"], layer["kept_offsets"] = _kept(f"{prefix}kept", layer["kept"], kv_heads, n)
    if "output" in layer:
        steps = require_shape(prefix + "output", layer["output"], None, heads, dim, meaning="[T, query_heads, head_dim]")[0]
        if steps > sizes["decode_tokens"]:
            raise InvalidInput(f"{prefix}output: has {steps} steps, but the trace has {sizes['decode_tokens']}")
    for name, shape, meaning in (("score", (kv_heads, None), "[kv_heads, m]"), ("evicted", (None, kv_heads), "[T, kv_heads]")):
        if name in layer:
            require_shape(prefix + name, layer[name], *shape, meaning=meaning)
    arrays = {}
    for name, array in layer.items():
        dtype = dtype_of(prefix + name, array)
        if (dtype in ("I64", "I32")) != (name in POSITIONS):
            raise InvalidInput(f"{prefix}{name}: is {dtype}; expected {'integers' if name in POSITIONS else 'real numbers'}")
        arrays[prefix + name] = dtype, array
    return arrays


def _kept(name, kept, kv_heads, n):
    """(the positions of one KV head after the other, where each head's begin) of rows of ascending positions."""
    rows = [np.asarray(row.cpu() if hasattr(row, "cpu") else row) for row in kept]
    if len(rows) != kv_heads:
        raise InvalidInput(f"{name}: has {len(rows)} KV heads; expected {kv_heads}")
    for head, row in enumerate(rows):
        if row.dtype.kind not in "iu" or row.ndim != 1 or (len(row) and not 0 <= row.min() <= row.max() < n) or \
                (np.diff(row) <= 0).any():
            raise InvalidInput(f"{name}: KV head {head} is not ascending positions from 0 to {n - 1}")
    return np.concatenate(rows).astype("<i8"), np.cumsum([0, *map(len, rows)]).astype("<i8")
