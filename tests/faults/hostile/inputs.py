"""Valid inputs of every kind that the program reads, as {file's name: bytes}: what is damaged afterwards."""
import functools
import hashlib
import io
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fuzz.seeds.models import SUPER_BLOCKS, TINY, quantised
from support import kernel_files
from support.flashinfer_dumps import Batch, Dumps, record_decode, record_prefill, record_ragged, record_single
from support.kvbound_cli import TraceFile, write_sharded
from support.report_documents import BENCH_MODEL, write_documents
from support.tiny_model import TinyModel, gguf_bytes

POLICY = "snapkv:window=4"
DUMPED = f"{POLICY}+critical", "h2o:window=4+keepkv", "tova+d2o", "streaming-llm+cam"
MODEL = dict(layers=2, model_dim=8, heads=2, kv_heads=1, head_dim=4, feed_forward=8, vocabulary=64)
SCALED = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
TASKS = "".join(json.dumps({"id": f"task {i}", "kind": "needle", "depth": 0.5, "prompt": [(7 * i + j) % 64 for j in range(14)],
                            "answer": [i, i + 1]}) + "\n"
                for i in range(3))
TASKS += '{"id": "prose", "kind": "prose", "prompt_text": "Once upon a time, a king", "continuation_text": "had", "compress_at": 20}\n'
PLAN = {"format": "kvbound-sweep-plan", "version": 1, "traces": ["tr*.safetensors"], "policies": [POLICY, "random:window=1:sinks=1"],
        "budgets": ["8", "50%"], "heads": "query", "layers": "0-1",
        "steps": 2, "base": POLICY, "backends": ["reference"], "seeds": [1], "recall": 3, "merge_bounds": False, "layers_per_item": 1,
        "policies_per_item": 2}


def files_of(folder):
    """{relative path: bytes} of everything below."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def arrays_of(case):
    return {name: np.asarray(array).astype({"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "f4", "I64": "i8", "I32": "i4"}[dtype])
            for name, (dtype, array) in case.tensors.items()}


def npz_of(case):
    file = io.BytesIO()
    np.savez(file, sm_scale=0.5, causal=True, kv_layout="NHD", **arrays_of(case))
    return file.getvalue()


def trace_file():
    trace = TraceFile()
    trace.tensors["tokens"] = "I32", np.arange(27)
    for layer in range(2):
        query, key, value = (np.swapaxes(trace.tensors[f"layers.{layer}.{name}"][1], 0, 1) for name in ("query", "key", "value"))
        output, _ = kernel_files.softmax_attention(query, key, value, visible=lambda i: slice(0, 17 + i), precision=np.float64)
        trace.tensors[f"layers.{layer}.attention_output"] = "F32", np.swapaxes(output, 0, 1)
    return trace


def models():
    """GGUF files of each family and kind of weights."""
    for family in ("llama", "qwen2", "qwen3"):
        model = TinyModel(family=family, dtype=("F32", "F16", "BF16")[len(family) % 3], **MODEL)
        one_text = struct.pack("<IQQ", 8, 1, 1) + b"a"
        metadata = {**model.gguf_metadata(), "tokenizer.ggml.tokens": (9, one_text), "general.alignment": (4, 32)}
        yield gguf_bytes(metadata, model.gguf_tensors())
    yield quantised(8, 32, 34)[1:]
    yield quantised(12, 256, SUPER_BLOCKS[12])[1:]
    yield gguf_bytes(TinyModel(**TINY).gguf_metadata(), TinyModel(**TINY).gguf_tensors(), version=2)


def made_once(make):
    """A method whose result is made at the first call; what it yields is a tuple."""
    @functools.wraps(make)
    def found(self):
        if make.__name__ not in self.known:
            result = make(self)
            self.known[make.__name__] = result if isinstance(result, dict) else tuple(result)
        return self.known[make.__name__]
    return found


@dataclass
class Inputs:
    """Made once by the program in the folder of a test."""

    test: object

    def __post_init__(self):
        self.known, self.folder = {}, self.test.folder / "made"
        self.folder.mkdir()
        self.trace = trace_file().bytes()
        (self.folder / "trace.safetensors").write_bytes(self.trace)

    def run(self, *arguments):
        self.test.passes(*arguments, cwd=self.folder)

    def made(self, folder, write):
        """The files that write(path) puts into a folder of that name."""
        path = self.folder / folder
        path.mkdir()
        write(path)
        return files_of(path)

    def shards(self):
        return self.made("shards", lambda path: write_sharded(trace_file(), path))

    @made_once
    def checkpoints(self):
        """Folders of Hugging Face's format, files' names beginning with model/."""
        variants = ((TinyModel(**MODEL), 1), (TinyModel(**MODEL), 2), (TinyModel(family="qwen3", dtype="BF16", **MODEL), 1),
                    (TinyModel(rope_scaling=SCALED, tied=True, **MODEL), 1))
        for i, (model, shards) in enumerate(variants):
            yield self.made(f"checkpoint {i}", lambda path, model=model, shards=shards: model.write_folder(path / "model", shards))

    @made_once
    def calls(self):
        """FlashInfer's dumps, files' names beginning with calls/."""
        prompts = dict(tokens=(7, 3), queries=(4, 3))
        recorders = record_decode, record_prefill, record_ragged, functools.partial(record_single, causal=True)
        for i, record in enumerate(recorders):
            batch = Batch(**prompts if i else {})
            yield self.made(f"calls {i}", lambda path, record=record, batch=batch: record(Dumps(path / "calls"), batch))

    @made_once
    def dumps(self):
        """A trace and a dump of it, for each policy, and one of a device."""
        for i, policy in enumerate((*DUMPED, f"{POLICY}+keepkv")):
            dump = f"dump {i}.safetensors"
            backend = ("--backend", "emulated") if i == len(DUMPED) else ()
            self.run("replay", "trace.safetensors", "--policy", policy, "--budget", "8", *backend, "--dump", dump, "--quiet")
            yield {"trace.safetensors": self.trace, "dump.safetensors": (self.folder / dump).read_bytes()}

    def given(self, **tensors):
        """A trace and a file of the host given, of all layers."""
        arrays = {f"layers.{layer}.{name}": np.asarray(array) for layer in range(2) for name, array in tensors.items()}
        file = kernel_files.KernelFile({name: ("I64" if array.dtype.kind == "i" else "F64", array) for name, array in arrays.items()},
                                       format="kvbound-given", version="1", trace_sha256=hashlib.sha256(self.trace).hexdigest(), name="mine")
        return {"trace.safetensors": self.trace, "given.safetensors": file.bytes()}

    def given_scores(self):
        return self.given(score=np.tile(np.arange(24) % 7 - 3.0, (2, 1)), head_score=np.ones((4, 24)))

    def given_kept_sets(self):
        return self.given(kept=[0, 3, 5, 1, 23], kept_offsets=[0, 3, 5])

    def head_scores(self):
        scores = [[0.5, 1, 0, 2e-3], [1, 0, 0, 3]]
        return json.dumps({"format": "kvbound-head-scores", "version": 1, "model": "made", "scores": scores}).encode()

    @made_once
    def kernels(self):
        """(operation, file of a kernel's inputs and results)"""
        self.run("generate", *kernel_files.SMALL_LAYER, "layer.safetensors")
        layer = self.folder / "layer.safetensors"
        scores = kernel_files.compressed_layer(layer, "snapkv:window=4+critical", "20")
        norms = kernel_files.KernelFile({name: scores.tensors[name] for name in ("v", "w_o")} | {"norms": scores.tensors["projected_value_norms"]})
        yield "attention", kernel_files.decode(batch=2, tokens=9, head_dim=4)
        yield "attention", kernel_files.paged(kernel_files.prefill((9, 5), (2, 3), head_dim=4), page_size=4)
        yield "topk", kernel_files.topk(rows=2, n=20, k=4)
        yield "compact", kernel_files.compacted(n=40, head_dim=2)
        yield "scores", scores
        yield "norms", norms
        yield "merge", kernel_files.compressed_layer(layer, "snapkv:window=4+d2o", "20")

    @made_once
    def evaluation(self):
        """A model, tasks, and a results file of which the last line is missing."""
        (self.folder / "tasks.jsonl").write_text(TASKS, "utf-8")
        files = self.made("evaluation", lambda path: TinyModel(**{**MODEL, "vocabulary": 256}).write_folder(path / "model"))
        self.run("evaluate", "evaluation/model", "tasks.jsonl", "--policy", POLICY, "--budget", "8", "--resume", "done", "--quiet")
        done = (self.folder / "done").read_bytes().splitlines(keepends=True)
        return {**files, "tasks.jsonl": TASKS.encode(), "done": b"".join(done[:-1])}

    @made_once
    def sweep(self):
        """A trace, a plan, and the folder of its sweep."""
        (self.folder / "plan.json").write_text(json.dumps(PLAN), "utf-8")
        self.run("sweep", "plan.json", "--out", "study", "--quiet")
        return {"trace.safetensors": self.trace, "plan.json": json.dumps(PLAN).encode(),
                **{f"study/{name}": content for name, content in files_of(self.folder / "study").items()}}

    def begun_sweep(self):
        """The same, of which one result is missing, which was tried."""
        files = dict(self.sweep())
        result = min(name for name in files if name.startswith("study/results/"))
        del files[result]
        return {**files, "study/attempts/" + Path(result).name: b'[{"host":"a","process":1,"problem":"none"}]'}

    def document(self):
        """JSON of a replay."""
        self.run("replay", "trace.safetensors", "--policy", POLICY, "--budget", "8", "--json", "document.json", "--quiet")
        return (self.folder / "document.json").read_bytes()

    def documents(self):
        """JSON of every command, for `report`."""
        here = self.folder / "documents"
        here.mkdir()
        names = write_documents(Elsewhere(self.test, here))
        return {f"{what}.json": (here / name).read_bytes() for what, name in names.items()} | {"gpu.json": BENCH_MODEL.read_bytes()}


@dataclass
class Elsewhere:
    """A CommandLineTest whose program runs in another folder."""

    test: object
    folder: Path

    def passes(self, *arguments, **options):
        return self.test.passes(*arguments, **{"cwd": self.folder, **options})
