#!/usr/bin/env python3
"""Writes torch tensors (or NumPy arrays) as a trace or a dump: for tests of kernels in vLLM, SGLang, Triton, ...

    import sys; sys.path.insert(0, "traces/scripts")
    from from_torch import write_dump, write_trace

    # layer: keys and values [kv_heads, n + T, head_dim], queries [query_heads, W + T, head_dim], W^O transposed
    layers = [{"key": k, "value": v, "query": q, "output_projection": o_proj.weight.T}]
    write_trace("trace.safetensors", layers, decode_tokens=T)
    write_dump("dump.safetensors", "trace.safetensors", policy="snapkv:window=32:pool=7", budget="20%", backend="mine",
               layers=[{"output": outputs, "kept": kept}])      # outputs [T, query_heads, head_dim]; kept: see write_dump

    kvbound inspect trace.safetensors; kvbound diff trace.safetensors dump.safetensors

Every array keeps its type (F64, F32, F16, BF16), so record a cache in the type in which the kernel reads it. Both functions
check all shapes first, throw Invalid with the shape that they found and the one that they expected, and write a file whole
or not at all.
"""
import hashlib
import json
import struct
import sys

from trace_file import INDEX, Files, Invalid

TENSORS = ("key", "value", "query", "output_projection")
HEADER_LIMIT = 16 << 20  # bytes, as kvbound has it
POSITIONS = {"kept", "kept_offsets", "score_positions", "evicted", "merged_into", "target_of", "rebuilt_target_of"}


def dtype_of(name, array):
    """The safetensors type of a torch tensor or a NumPy array. throws Invalid for other types."""
    known = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32"}
    dtype = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
    if dtype not in known:
        raise Invalid(f"{name}: is {dtype}; expected a torch tensor or a NumPy array of {', '.join(known)}")
    return known[dtype]


def require_shape(name, array, *shape, meaning):
    """The array's shape. throws Invalid if it is not this one, where None stands for any size, or for another type."""
    dtype_of(name, array)
    found = tuple(array.shape)
    if len(found) != len(shape) or any(size is not None and size != have for size, have in zip(shape, found)):
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise Invalid(f"{name}: has the shape {list(found)}; expected [{expected}]: {meaning}")
    return found


def require_real(name, array):
    dtype = dtype_of(name, array)
    if dtype in ("I64", "I32"):
        raise Invalid(f"{name}: is {dtype}; expected real numbers")
    return dtype


def write_files(path, metadata, arrays):
    """Writes one safetensors file: {tensor: (type, array)}."""
    if str(path).endswith(INDEX):
        raise Invalid(f"{path}: an index; write one file")
    shapes = {name: (dtype, tuple(array.shape)) for name, (dtype, array) in arrays.items()}
    with Files(path, {field: str(value) for field, value in metadata.items()}, [shapes]) as files:
        for name, (_, array) in arrays.items():
            files.write(name, array)
        files.commit()


def write_trace(path, layers, decode_tokens=0, scale=None, tokens=None, model="unknown", source="unknown"):
    """Writes a trace of n prompt tokens and T decode steps, with the last W prompt queries; n and W follow from the shapes.

    layers          one dictionary per layer:
                        key, value          [kv_heads, n + T, head_dim], keys after RoPE
                        query               [query_heads, W + T, head_dim], after RoPE
                        output_projection   [query_heads * head_dim, model_dim]: W^O, o_proj.weight transposed
                        attention_output    [query_heads, W + T, head_dim], optional: `inspect --verify` recomputes it
    decode_tokens   T
    scale           logits are scale * q.k; default 1 / sqrt(head_dim)
    tokens          [n + T] integers, optional
    throws          Invalid for a shape, a type, a missing or unknown tensor, NaN or infinity
    """
    if not layers:
        raise Invalid("a trace has at least one layer")
    arrays, sizes = {}, None
    for index, layer in enumerate(layers):
        prefix = f"layers.{index}."
        missing = [name for name in TENSORS if name not in layer]
        unknown = [str(name) for name in layer if name not in (*TENSORS, "attention_output")]
        if missing or unknown:
            raise Invalid(f"layer {index} has no {', '.join(missing)}" if missing else
                          f"layer {index} has {', '.join(unknown)}, which a trace does not know")
        if sizes is None:
            sizes = sizes_of(layer, decode_tokens)
        heads, kv_heads, dim, width, total, rows = sizes
        for name in ("key", "value"):
            require_shape(prefix + name, layer[name], kv_heads, total, dim, meaning="[kv_heads, n + T, head_dim]")
        for name in {"query", "attention_output"} & layer.keys():
            require_shape(prefix + name, layer[name], heads, rows, dim, meaning="[query_heads, W + T, head_dim]")
        require_shape(prefix + "output_projection", layer["output_projection"], heads * dim, width,
                      meaning="[query_heads * head_dim, model_dim], o_proj.weight transposed")
        arrays.update({prefix + name: (require_real(prefix + name, layer[name]), layer[name]) for name in layer})
    if tokens is not None:
        require_shape("tokens", tokens, total, meaning="[n + T]")
        if dtype_of("tokens", tokens) not in ("I64", "I32"):
            raise Invalid(f"tokens: is {dtype_of('tokens', tokens)}; expected I64 or I32")
        arrays["tokens"] = dtype_of("tokens", tokens), tokens
    metadata = {"format": "kvbound-trace", "version": 1, "model": model, "source": source, "layers": len(layers),
                "query_heads": heads, "kv_heads": kv_heads, "head_dim": dim, "model_dim": width,
                "prompt_tokens": total - decode_tokens, "decode_tokens": decode_tokens,
                "window_queries": rows - decode_tokens, "rope": "applied"}
    if scale is not None:
        if not 0 < float(scale) < float("inf"):
            raise Invalid(f"scale is {scale}; expected a positive number")
        metadata["scale"] = repr(float(scale))
    write_files(path, metadata, arrays)


def sizes_of(layer, steps):
    """(query_heads, kv_heads, head_dim, model_dim, n + T, W + T) of the first layer."""
    def shape(name, *sizes, meaning):
        return require_shape(f"layers.0.{name}", layer[name], *sizes, meaning=meaning)

    kv_heads, total, dim = shape("key", None, None, None, meaning="[kv_heads, n + T, head_dim]")
    heads, rows, _ = shape("query", None, None, dim, meaning="[query_heads, W + T, head_dim]")
    _, width = shape("output_projection", heads * dim, None,
                     meaning="[query_heads * head_dim, model_dim], o_proj.weight transposed")
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        raise Invalid(f"{heads} query heads on {kv_heads} KV heads: the former must be a multiple of the latter")
    if not 0 <= steps < total:
        raise Invalid(f"decode_tokens is {steps}, but key has {total} positions")
    if not 1 <= rows - steps <= total - steps:
        raise Invalid(f"query has {rows} rows, which is not 1 ... {total - steps} prompt queries and {steps} steps")
    return heads, kv_heads, dim, width, total, rows


def read_header(path):
    """A single-file trace's JSON header, and its SHA-256."""
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        length = file.read(8)
        text = file.read(min(struct.unpack("<Q", length)[0], HEADER_LIMIT)) if len(length) == 8 else b""
        hashed.update(length + text)
        while block := file.read(1 << 20):
            hashed.update(block)
    try:
        header = json.loads(text)
        if header["__metadata__"]["format"] != "kvbound-trace":
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise Invalid(f"{path}: is not a trace in a single file") from None
    return header, hashed.hexdigest()


def write_dump(path, trace, policy, budget, backend, layers, storage=None, accumulate="F32", weights=None):
    """Writes what a kernel computed from a trace, for `kvbound diff TRACE DUMP`.

    trace        the path of the trace that the kernel read: a single file
    policy, budget, backend   as `kvbound replay` takes the first two; a name for the kernel
    layers       one dictionary per layer of the trace (None: not computed), with any tensors of a dump; among them
                     output     [T, query_heads, head_dim]: attention output over the compressed cache, before W^O
                     kept       the positions kept after the prompt: [kv_heads, budget], or a list of one array per KV head
                     score      [kv_heads, m]
                     evicted    [T, kv_heads]
    storage      the type of the kernel's cache (default: the trace's keys')
    accumulate   F32 or F64;  weights: BF16 or F16 if attention weights are rounded to it
    throws       Invalid for a shape, a type, or a file that is no trace
    """
    import numpy as np
    header, sha256 = read_header(trace)
    sizes = {name: int(header["__metadata__"][name]) for name in ("layers", "query_heads", "kv_heads", "head_dim",
                                                                  "prompt_tokens", "decode_tokens")}
    heads, kv_heads, dim, n = (sizes[name] for name in ("query_heads", "kv_heads", "head_dim", "prompt_tokens"))
    if len(layers) != sizes["layers"]:
        raise Invalid(f"{len(layers)} layers, but the trace has {sizes['layers']}; None stands for one not computed")
    arrays, computed = {}, [index for index, layer in enumerate(layers) if layer]
    if not computed:
        raise Invalid("a dump has at least one layer")
    for index in computed:
        prefix, layer = f"layers.{index}.", dict(layers[index])
        if "kept" in layer:
            rows = [np.asarray(row.cpu() if hasattr(row, "cpu") else row) for row in layer["kept"]]
            if len(rows) != kv_heads:
                raise Invalid(f"{prefix}kept: has {len(rows)} KV heads; expected {kv_heads}")
            for head, row in enumerate(rows):
                if row.dtype.kind not in "iu" or row.ndim != 1 or (len(row) and not 0 <= row.min() <= row.max() < n) or \
                        (np.diff(row) <= 0).any():
                    raise Invalid(f"{prefix}kept: KV head {head} is not ascending positions from 0 to {n - 1}")
            layer["kept"] = np.concatenate(rows).astype("<i8")
            layer["kept_offsets"] = np.cumsum([0, *map(len, rows)]).astype("<i8")
        if "output" in layer:
            steps = require_shape(prefix + "output", layer["output"], None, heads, dim,
                                  meaning="[T, query_heads, head_dim]")[0]
            if steps > sizes["decode_tokens"]:
                raise Invalid(f"{prefix}output: has {steps} steps, but the trace has {sizes['decode_tokens']}")
        for name, shape, meaning in (("score", (kv_heads, None), "[kv_heads, m]"),
                                     ("evicted", (None, kv_heads), "[T, kv_heads]")):
            if name in layer:
                require_shape(prefix + name, layer[name], *shape, meaning=meaning)
        for name, array in layer.items():
            dtype = dtype_of(prefix + name, array)
            if (dtype in ("I64", "I32")) != (name in POSITIONS):
                raise Invalid(f"{prefix}{name}: is {dtype}; expected {'integers' if name in POSITIONS else 'real numbers'}")
            arrays[prefix + name] = dtype, array
    metadata = {"format": "kvbound-dump", "version": 1, "policy": policy, "budget": budget, "backend": backend,
                "storage": storage or header["layers.0.key"]["dtype"], "accumulate": accumulate, "trace_sha256": sha256}
    if weights is not None:
        metadata["weights"] = weights
    if len(computed) < len(layers):
        metadata["layers"] = ",".join(map(str, computed))
    write_files(path, metadata, arrays)


if __name__ == "__main__":
    sys.exit(__doc__)
