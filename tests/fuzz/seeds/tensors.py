"""Traces, dumps of replays, and files of kernels."""
import io
import tempfile
from pathlib import Path

import numpy as np

from fuzz.seeds.parts import part
from support.kernel_files import KernelFile, compacted, compressed_layer, decode, paged, prefill, topk
from support.kvbound_cli import TraceFile, write_sharded

SIZES = dict(layers=1, query_heads=2, kv_heads=1, head_dim=2, model_dim=3, prompt_tokens=8, decode_tokens=2, window_queries=4)
LAYER = ("--kind", "mixed", "--dtype", "F32", "--tokens", "120", "--seed", "3", "--layers", "1", "--query-heads", "4", "--kv-heads", "2",
         "--head-dim", "2", "--model-dim", "2", "--window-queries", "12", "--decode", "1")
POLICIES = ("snapkv:window=2+critical", "h2o:window=2:recent=1:sinks=0+keepkv", "tova+critical+adakv",
            "streaming-llm:sinks=1", "snapkv:window=2+obcache-value", "snapkv:window=2+theta-sweep", "snapkv:window=2+cam",
            "snapkv:window=2+d2o", "snapkv:window=2+kvmerger", "random:window=1:sinks=1+convex",
            "snapkv:window=2+pyramid:beta=2")


def trace(**how):
    return TraceFile(**SIZES | how)


def in_shards():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index, _ = write_sharded(trace(), folder, shards=1)
        return b"X" + part(index.read_bytes()) + (folder / "shard-0.safetensors").read_bytes()


def npz(case, compressed=False):
    arrays = {name: np.asarray(array, "<f4" if array.dtype.kind == "f" else "<i4") for name, (_, array) in case.tensors.items()}
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays, **case.metadata)
    return file.getvalue()


def kernel(operation, file):
    return b"C" + part(operation.encode()) + (file if isinstance(file, bytes) else file.bytes())


def dump(run, folder, policy):
    """A tiny trace and what a policy's replay of it recorded."""
    run("replay", "small.safetensors", "--policy", policy, "--budget", "4", "--dump", "dump.safetensors")
    return b"D" + part((folder / "small.safetensors").read_bytes()) + (folder / "dump.safetensors").read_bytes()


def kernels(folder):
    """One file of every operation, layout and format."""
    small = dict(query_heads=2, kv_heads=1, head_dim=2)
    ragged = prefill([5, 1, 4], [2, 1, 4], window=3, **small)
    for name, case in (("dense", decode(batch=2, tokens=5, **small)), ("ragged", ragged), ("paged", paged(ragged, 2)),
                       ("pages-apart", paged(ragged, 2, "HND"))):
        yield f"attention-{name}", kernel("attention", case)
    yield "attention-npz", kernel("attention", npz(decode("F32", batch=1, tokens=4, **small)))
    yield "attention-compressed-npz", kernel("attention", npz(decode("F32", batch=1, tokens=4, **small), compressed=True))
    yield "topk", kernel("topk", topk(2, 7, 3, order="descending"))
    yield "topk-npz", kernel("topk", npz(topk(2, 7, 3, score_error="0.1")))
    yield "compact", kernel("compact", compacted(kv_heads=1, n=14, head_dim=2))
    layer = compressed_layer(folder / "layer.safetensors", "snapkv:window=4+critical", "20")
    norms = {"v": layer.tensors["v"], "w_o": layer.tensors["w_o"], "norms": layer.tensors["projected_value_norms"]}
    yield "norms", kernel("norms", KernelFile(norms, norm="l1"))
    for operation, policy in (("scores", "h2o:window=12"), ("merge", "snapkv:window=4+keepkv"),
                              ("merge", "snapkv:window=4+d2o"), ("scores", "snapkv:window=4+obcache-joint")):
        yield f"{operation}-{policy}", kernel(operation, compressed_layer(folder / "layer.safetensors", policy, "20"))


def given(**tensors):
    """Kept sets or scores of the one layer."""
    arrays = {name.replace("_0_", ".0."): np.asarray(array) for name, array in tensors.items()}
    file = KernelFile({name: ("I64" if array.dtype.kind == "i" else "F64", array) for name, array in arrays.items()},
                      format="kvbound-given", version="1", trace_sha256="abc", name="mine")
    return b"V" + file.bytes()


def inputs(run, folder):
    """run(*arguments) runs the program in `folder`."""
    trace().write(folder / "small.safetensors")
    run("generate", *LAYER, "layer.safetensors")
    for policy in POLICIES:
        yield f"dump-{policy}", dump(run, folder, policy)
    yield "given-scores", given(layers_0_score=np.linspace(-1, 1, 8)[None], layers_0_head_score=np.ones((2, 8)), always_kept=[0, 7])
    yield "given-kept-sets", given(layers_0_kept=[0, 3, 7], layers_0_kept_offsets=[0, 3])
    yield from kernels(folder)
    yield "trace", b"T" + trace(layers=2, kv_heads=2).bytes()
    yield "trace-bf16", b"T" + trace(dtype="BF16").bytes()
    yield "trace-shards", in_shards()
