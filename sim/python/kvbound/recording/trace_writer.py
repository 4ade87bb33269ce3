"""torch tensors or NumPy arrays written as a trace, for tests of kernels in vLLM, SGLang, Triton, ... NumPy only.

    # layer: keys and values [kv_heads, n + T, head_dim], queries [query_heads, W + T, head_dim], W^O transposed
    layers = [{"key": k, "value": v, "query": q, "output_projection": o_proj.weight.T}]
    kvbound.from_torch("trace.safetensors", layers, decode_tokens=T)
    kvbound.write_dump("dump.safetensors", "trace.safetensors", policy="snapkv:window=32:pool=7", budget="20%", backend="mine",
                       layers=[{"output": outputs, "kept": kept}])      # outputs [T, query_heads, head_dim]; kept: see write_dump

    kvbound inspect trace.safetensors; kvbound diff trace.safetensors dump.safetensors

Every array keeps its type (F64, F32, F16, BF16), so record a cache in the type in which the kernel reads it.
"""
from pathlib import Path

from kvbound.errors import InvalidInput
from kvbound.recording.trace_file import INDEX, Files

TENSORS = ("key", "value", "query", "output_projection")


def dtype_of(name, array):
    """The safetensors type of a torch tensor or a NumPy array. throws InvalidInput for other types."""
    known = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32"}
    dtype = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
    if dtype not in known:
        raise InvalidInput(f"{name}: is {dtype}; expected a torch tensor or a NumPy array of {', '.join(known)}")
    return known[dtype]


def require_shape(name, array, *shape, meaning):
    """The array's shape. throws InvalidInput if it is not this one, where None stands for any size, or for another type."""
    dtype_of(name, array)
    found = tuple(array.shape)
    if len(found) != len(shape) or any(size is not None and size != have for size, have in zip(shape, found)):
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise InvalidInput(f"{name}: has the shape {list(found)}; expected [{expected}]: {meaning}")
    return found


def require_real(name, array):
    dtype = dtype_of(name, array)
    if dtype in ("I64", "I32"):
        raise InvalidInput(f"{name}: is {dtype}; expected real numbers")
    return dtype


def write_files(path, metadata, arrays):
    """Writes one safetensors file: {tensor: (type, array)}; returns its path."""
    if str(path).endswith(INDEX):
        raise InvalidInput(f"{path}: an index; write one file")
    shapes = {name: (dtype, tuple(array.shape)) for name, (dtype, array) in arrays.items()}
    with Files(path, {field: str(value) for field, value in metadata.items()}, [shapes]) as files:
        for name, (_, array) in arrays.items():
            files.write(name, array)
        files.commit()
    return Path(path)


def from_torch(path, layers, *, decode_tokens=0, sm_scale=None, tokens=None, model="unknown", source="unknown"):
    """Writes a trace of n prompt tokens and T decode steps, with the last W prompt queries; n and W follow from the shapes.

    layers          one dictionary per layer:
                        key, value          [kv_heads, n + T, head_dim], keys after RoPE
                        query               [query_heads, W + T, head_dim], after RoPE
                        output_projection   [query_heads * head_dim, model_dim]: W^O, o_proj.weight transposed
                        attention_output    [query_heads, W + T, head_dim], optional: `inspect --verify` recomputes it
    decode_tokens   T
    sm_scale        logits are sm_scale * q.k; default 1 / sqrt(head_dim)
    tokens          [n + T] integers, optional

    returns         the path; a file is written whole or not at all
    raises          InvalidInput for a shape, a type, a missing or unknown tensor, NaN or infinity
    """
    if not layers:
        raise InvalidInput("a trace has at least one layer")
    arrays, sizes = {}, None
    for index, layer in enumerate(layers):
        prefix = f"layers.{index}."
        missing = [name for name in TENSORS if name not in layer]
        unknown = [str(name) for name in layer if name not in (*TENSORS, "attention_output")]
        if missing or unknown:
            raise InvalidInput(f"layer {index} has no {', '.join(missing)}" if missing else
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
            raise InvalidInput(f"tokens: is {dtype_of('tokens', tokens)}; expected I64 or I32")
        arrays["tokens"] = dtype_of("tokens", tokens), tokens
    metadata = {"format": "kvbound-trace", "version": 1, "model": model, "source": source, "layers": len(layers),
                "query_heads": heads, "kv_heads": kv_heads, "head_dim": dim, "model_dim": width,
                "prompt_tokens": total - decode_tokens, "decode_tokens": decode_tokens,
                "window_queries": rows - decode_tokens, "rope": "applied"}
    if sm_scale is not None:
        if not 0 < float(sm_scale) < float("inf"):
            raise InvalidInput(f"sm_scale is {sm_scale}; expected a positive number")
        metadata["scale"] = repr(float(sm_scale))
    return write_files(path, metadata, arrays)


def sizes_of(layer, steps):
    """(query_heads, kv_heads, head_dim, model_dim, n + T, W + T) of the first layer."""
    def shape(name, *sizes, meaning):
        return require_shape(f"layers.0.{name}", layer[name], *sizes, meaning=meaning)

    kv_heads, total, dim = shape("key", None, None, None, meaning="[kv_heads, n + T, head_dim]")
    heads, rows, _ = shape("query", None, None, dim, meaning="[query_heads, W + T, head_dim]")
    _, width = shape("output_projection", heads * dim, None,
                     meaning="[query_heads * head_dim, model_dim], o_proj.weight transposed")
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        raise InvalidInput(f"{heads} query heads on {kv_heads} KV heads: the former must be a multiple of the latter")
    if not 0 <= steps < total:
        raise InvalidInput(f"decode_tokens is {steps}, but key has {total} positions")
    if not 1 <= rows - steps <= total - steps:
        raise InvalidInput(f"query has {rows} rows, which is not 1 ... {total - steps} prompt queries and {steps} steps")
    return heads, kv_heads, dim, width, total, rows
