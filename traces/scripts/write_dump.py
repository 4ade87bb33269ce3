#!/usr/bin/env python3
"""Writes a dump for `kvbound diff`: SnapKV and decode attention in single precision, with NumPy only.

    write_dump.py TRACE DUMP [BUDGET]        BUDGET: entries per KV head (default: a fifth of the prompt)
    kvbound diff TRACE DUMP

Replace the two functions between the lines by your kernel; the rest reads the trace and writes the file.
"""
import hashlib
import json
import os
import struct
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np

WINDOW, POOL = 32, 7


def read_trace(path):
    """Reads a single-file trace: its metadata, {tensor: float32 array}, SHA-256 and the storage type for the dump."""
    data = open(path, "rb").read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header, tensors = json.loads(data[8:start]), {}
    for name, entry in header.items():
        if not name.startswith("layers."):
            continue
        raw = data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":  # the upper half of a float32
            array = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        else:
            array = np.frombuffer(raw, {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[entry["dtype"]])
        tensors[name] = array.astype("<f4").reshape(entry["shape"])
    storage = header["layers.0.key"]["dtype"]
    return header["__metadata__"], tensors, hashlib.sha256(data).hexdigest(), "F32" if storage == "F64" else storage


def write_dump(path, metadata, tensors):
    """Writes a safetensors file: the header's length, the header, the numbers. A regular one appears whole or not at all."""
    header, data = {"__metadata__": metadata}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": {"i": "I64", "f": "F32"}[array.dtype.kind], "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path, content = Path(path), struct.pack("<Q", len(text)) + text + data
    if path.exists() and not path.is_file():  # such as /dev/null
        path.write_bytes(content)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# ---- your kernel -------------------------------------------------------------------------------------------


def attention_weights(queries, keys, scale):
    """Causal attention weights [queries, keys]: row i sees all keys but the last len(queries) - 1 - i."""
    logits = scale * (queries @ keys.T)
    logits[np.arange(len(keys)) > np.arange(len(keys) - len(queries), len(keys))[:, None]] = -np.inf
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def snapkv(window_queries, keys, budget, scale):
    """The score of every entry before the window, and the kept positions, for one KV head and its query heads."""
    scores = np.stack([attention_weights(queries, keys, scale)[:, :-WINDOW].mean(axis=0) for queries in window_queries])
    padded = np.pad(scores, ((0, 0), (POOL // 2, POOL // 2)))
    pooled = np.lib.stride_tricks.sliding_window_view(padded, POOL, axis=1).max(axis=2)
    score = pooled.mean(axis=0)
    # of equal scores, the one at the smaller position
    best = np.argsort(-score, kind="stable")[:budget - WINDOW]
    return score, np.append(np.sort(best), np.arange(len(keys) - WINDOW, len(keys)))


# ------------------------------------------------------------------------------------------------------------


def main(trace, dump, budget=None):
    metadata, tensors, sha256, storage = read_trace(trace)
    layers, heads, kv_heads, dim, n, steps, recorded = (
        int(metadata[size]) for size in ("layers", "query_heads", "kv_heads", "head_dim", "prompt_tokens",
                                         "decode_tokens", "window_queries"))
    budget, group = int(budget or max(n // 5, WINDOW)), heads // kv_heads
    scale = np.float32(metadata.get("scale", dim**-0.5))
    if n <= WINDOW or recorded < WINDOW:
        raise ValueError(f"it has {n} prompt tokens and {recorded} recorded queries; expected more than {WINDOW}, and as many")
    results = {}
    for layer in range(layers):
        keys, values, queries = (tensors[f"layers.{layer}.{name}"] for name in ("key", "value", "query"))
        scores, kept, output = [], [], np.zeros((steps, heads, dim), "<f4")
        for g in range(kv_heads):
            own = slice(g * group, (g + 1) * group)  # the query heads that read this KV head
            score, positions = snapkv(queries[own, recorded - WINDOW:recorded], keys[g, :n], budget, scale)
            for step in range(steps):
                cache = np.append(positions, np.arange(n, n + step + 1))
                for h in range(g * group, (g + 1) * group):
                    query = queries[h, recorded + step:recorded + step + 1]
                    output[step, h] = attention_weights(query, keys[g, cache], scale) @ values[g, cache]
            scores.append(score)
            kept.append(positions)
        results[f"layers.{layer}.score"] = np.stack(scores)
        results[f"layers.{layer}.kept"] = np.concatenate(kept)
        results[f"layers.{layer}.output"] = output
    write_dump(dump, {"format": "kvbound-dump", "version": "1", "policy": f"snapkv:window={WINDOW}:pool={POOL}",
                      "budget": str(budget), "backend": "numpy", "storage": storage, "accumulate": "F32",
                      "trace_sha256": sha256}, results)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    warnings.simplefilter("error", RuntimeWarning)  # NumPy's, of numbers that do not belong together
    try:
        main(*sys.argv[1:])
    except OSError as error:
        print(f"write_dump: {ascii(error.filename or ' or '.join(sys.argv[1:3]))}: {error.strerror}", file=sys.stderr)
        sys.exit(4)
    except (LookupError, TypeError, ValueError, MemoryError, RuntimeWarning, struct.error) as error:
        line = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__][-1]
        print(f"write_dump: {ascii(sys.argv[1])} is no trace for this script, or your kernel has a mistake: {type(error).__name__} in "
              f"{line.name}, line {line.lineno}: {ascii(str(error))[:200]}", file=sys.stderr)
        sys.exit(3)
