"""Checkpoints of every family and weight type, and FlashInfer's dumps."""
import json
import tempfile
from pathlib import Path

from fuzz.seeds.parts import part
from support.flashinfer_dumps import Batch, Dumps, record_decode, record_prefill, record_ragged, record_single
from support.tiny_model import GGML_TYPES, TinyModel, gguf_bytes

TINY = dict(layers=1, model_dim=4, heads=2, kv_heads=1, head_dim=2, feed_forward=4, vocabulary=5)
# GGML's type (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0) -> bytes of 32 numbers
BLOCKS = {2: 18, 3: 20, 6: 22, 7: 24, 8: 34}
SUPER_BLOCKS = {12: 144, 13: 176, 14: 210}  # Q4_K, Q5_K, Q6_K -> bytes of 256


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


def in_two_files():
    model = TinyModel(**TINY)
    tensors = list(model.gguf_tensors().items())
    files = []
    for number in range(2):
        own = {"split.no": (4, number), "split.count": (4, 2), "split.tensors.count": (5, len(tensors))}
        files.append(gguf_bytes({**(model.gguf_metadata() if number == 0 else {}), **own}, dict(tensors[number::2])))
    return b"Q" + part(files[0]) + files[1]


def inputs():
    prompts = dict(tokens=(7, 3), queries=(4, 3))
    for dtype in ("F32", "F16", "BF16"):
        yield f"flashinfer-decode-{dtype}", recorded(record_decode, Batch(dtype=dtype))
    yield "flashinfer-pages-apart", recorded(record_decode, Batch(), both=False, layout="HND")
    yield "flashinfer-prefill", recorded(record_prefill, Batch(**prompts))
    yield "flashinfer-ragged", recorded(record_ragged, Batch(**prompts))
    yield "flashinfer-single", recorded(record_single, Batch(**prompts), causal=True)
    for family in ("llama", "qwen2", "qwen3"):
        for dtype in GGML_TYPES:
            model = TinyModel(family=family, dtype=dtype, tied=dtype == "F16", **TINY)
            yield f"folder-{family}-{dtype}", in_folder(model)
            yield f"gguf-{family}-{dtype}", in_gguf(model)
    scaled = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 64}
    yield "folder-llama3", in_folder(TinyModel(rope_scaling=scaled, **TINY))
    yield "shards", in_shards(TinyModel(**TINY))
    yield "gguf-v2", in_gguf(TinyModel(**TINY), version=2)
    for kind, block in BLOCKS.items():
        yield f"gguf-type-{kind}", quantised(kind, 32, block)
    for kind, block in SUPER_BLOCKS.items():
        yield f"gguf-type-{kind}", quantised(kind, 256, block)
    yield "gguf-parts", in_two_files()
    yield "ids", b"K1 2,3\n49999"
