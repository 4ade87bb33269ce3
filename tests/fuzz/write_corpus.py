#!/usr/bin/python3
"""Writes well-formed inputs of reader_fuzz.cpp: checkpoints of every family and weight type, FlashInfer's dumps, token ids, a
trace, and plans, folders and results of sweeps, which the program writes.

usage: write_corpus.py KVBOUND FOLDER
"""
import json
import struct
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from support.flashinfer_dumps import Batch, Dumps, record_decode, record_prefill, record_ragged, record_single
from support.kvbound_cli import TraceFile
from support.tiny_model import GGML_TYPES, TinyModel, gguf_bytes

TINY = dict(layers=1, model_dim=4, heads=2, kv_heads=1, head_dim=2, feed_forward=4, vocabulary=5)
BLOCKS = {2: 18, 3: 20, 6: 22, 7: 24, 8: 34}  # GGML's type (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0) -> bytes of 32 numbers
SUPER_BLOCKS = {12: 144, 13: 176, 14: 210}  # Q4_K, Q5_K, Q6_K -> bytes of 256


def part(text):
    return struct.pack("<I", len(text)) + text


def in_folder(model):
    return b"H" + part(json.dumps(model.config).encode()) + model.tensors_bytes(sorted(model.weights))


def in_shards(model):
    names = sorted(model.weights)
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "a.safetensors")}
    return b"I" + part(json.dumps(model.config).encode()) + part(json.dumps(index).encode()) + model.tensors_bytes(names)


def in_gguf(model, **how):
    return b"G" + gguf_bytes(model.gguf_metadata(), model.gguf_tensors(), **how)


def quantised(kind, row, block):
    """A model whose matrices with rows of `row` numbers are blocks of zeros: scales of 0."""
    model = TinyModel(**TINY | dict(model_dim=row, heads=2, head_dim=2))
    tensors = {name: (kind, shape, bytes(shape[0] * block)) if len(shape) == 2 and shape[1] == row else (dtype, shape, raw)
               for name, (dtype, shape, raw) in model.gguf_tensors().items()}
    return b"G" + gguf_bytes(model.gguf_metadata(), tensors)


def recorded(record, batch, **how):
    """A folder of FlashInfer's dumps."""
    with tempfile.TemporaryDirectory() as folder:
        dumps = Dumps(Path(folder) / "dumps")
        record(dumps, batch, **how)
        content = b"F"
        for call in sorted(dumps.folder.iterdir()):
            content += part(call.name.encode())
            for file in ("metadata.jsonl", "inputs.safetensors", "outputs.safetensors"):
                content += part((call / file).read_bytes() if (call / file).exists() else b"")
        return content


def of_sweeps(program):
    """A plan, the sweep that the program made of it, and an item's results: of merging and two-stage policies, on two backends."""
    plan = {"format": "kvbound-sweep-plan", "version": 1, "traces": ["trace.safetensors"], "budgets": ["50%", "5"], "layers": "0",
            "policies": ["snapkv:window=2+critical", "h2o:window=2:recent=1:sinks=0+keepkv", "random:window=1:sinks=1"], "seeds": [1, 2], "recall": 3,
            "base": "tova", "backends": ["reference", "emulated"], "merge_bounds": True, "policies_per_item": 9}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = partial(subprocess.run, cwd=folder, check=True, capture_output=True)
        run([program, "generate", "--kind", "mixed", "--tokens", "12", "--decode", "2", "--layers", "1", "--query-heads", "2",
             "--kv-heads", "1", "--head-dim", "4", "--model-dim", "4", "--window-queries", "2", "trace.safetensors"])
        (folder / "plan.json").write_text(json.dumps(plan))
        run([program, "sweep", "plan.json", "--out", "out", "--jobs", "1"])
        yield "plan", b"P" + (folder / "plan.json").read_bytes()
        yield "sweep", b"S" + (folder / "out" / "plan.json").read_bytes()
        for result in sorted((folder / "out" / "results").glob("*/*")):
            yield "results", b"R" + result.read_bytes()[64:]  # without the hash


def inputs(program):
    yield from of_sweeps(program)
    prompts = dict(tokens=(7, 3), queries=(4, 3))
    for dtype in ("F32", "F16", "BF16"):
        yield f"flashinfer-decode-{dtype}", recorded(record_decode, Batch(dtype=dtype))
    yield "flashinfer-pages-apart", recorded(record_decode, Batch(), both=False, layout="HND")
    yield "flashinfer-prefill", recorded(record_prefill, Batch(**prompts))
    yield "flashinfer-ragged", recorded(record_ragged, Batch(**prompts))
    yield "flashinfer-single", recorded(record_single, Batch(**prompts))
    for family in ("llama", "qwen2", "qwen3"):
        for dtype in GGML_TYPES:
            model = TinyModel(family=family, dtype=dtype, tied=dtype == "F16", **TINY)
            yield f"folder-{family}-{dtype}", in_folder(model)
            yield f"gguf-{family}-{dtype}", in_gguf(model)
    scaled = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 64}
    yield "folder-llama3", in_folder(TinyModel(rope_scaling=scaled, **TINY))
    yield "shards", in_shards(TinyModel(**TINY))
    yield "gguf-v2", in_gguf(TinyModel(**TINY), version=2)
    for kind, block in BLOCKS.items():
        yield f"gguf-type-{kind}", quantised(kind, 32, block)
    for kind, block in SUPER_BLOCKS.items():
        yield f"gguf-type-{kind}", quantised(kind, 256, block)
    yield "ids", b"K1 2,3\n49999"
    yield "trace", b"T" + TraceFile().bytes()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in inputs(Path(sys.argv[1]).resolve(strict=True)):
        (folder / name).write_bytes(content)
