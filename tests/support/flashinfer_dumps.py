"""Folders as FlashInfer's level-10 logging writes them (FLASHINFER_DUMP_SAFETENSORS=1), with kernels computed here."""
import json
from typing import NamedTuple

import numpy as np

from support.kvbound_cli import STORAGE, encode, file_bytes

TORCH = {"F32": "torch.float32", "F16": "torch.float16", "BF16": "torch.bfloat16", "I32": "torch.int32", "I64": "torch.int64",
         "F64": "torch.float64"}
DECODE, CUDA_GRAPH = "BatchDecodeWithPagedKVCacheWrapper", "CUDAGraphBatchDecodeWithPagedKVCacheWrapper"
PREFILL, RAGGED = "BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper"
INIT = "(self, float_workspace_buffer: torch.Tensor, kv_layout: str = 'NHD', jit_args: Optional[List[Any]] = None) -> None"
SETTINGS = ("pos_encoding_mode: str = 'NONE', window_left: int = -1, logits_soft_cap: Optional[float] = None, "
            "sm_scale: Optional[float] = None, q_data_type: Union[str, torch.dtype] = 'float16', {more}) -> None")
PLAN = {
    DECODE: "(self, indptr, indices, last_page_len, num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int, "
            + SETTINGS.format(more="seq_lens: Optional[torch.Tensor] = None, q_len_per_req: int = 1"),
    PREFILL: "(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads: int, num_kv_heads: int, "
             "head_dim_qk: int, page_size: int, head_dim_vo: Optional[int] = None, custom_mask: Optional[torch.Tensor] = None, "
             "causal: bool = False, " + SETTINGS.format(more="seq_lens: Optional[torch.Tensor] = None"),
    RAGGED: "(self, qo_indptr, kv_indptr, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, head_dim_vo=None, "
            "custom_mask: Optional[torch.Tensor] = None, causal: bool = False, " + SETTINGS.format(more="non_blocking: bool = True"),
}
PLAN_BY_POSITION = ("(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, num_qo_heads: int, "
                    "num_kv_heads: int, head_dim: int, page_size: int, *deprecated_positional_args: Any, **kwargs: Any) -> None")
RUN = {name: "(self, q: torch.Tensor, paged_kv_cache: Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]], *args, "
             "q_scale: Optional[float] = None, k_scale: Optional[float] = None, v_scale: Optional[float] = None, "
             "return_lse: bool = False, window_left: Optional[int] = None, sinks: Optional[torch.Tensor] = None)"
             " -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]" for name in (DECODE, PREFILL)}
RUN[RAGGED] = "(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args, out=None, return_lse: bool = False) -> torch.Tensor"
SINGLE = ("(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, {causal}kv_layout: str = 'NHD', pos_encoding_mode: str = 'NONE', "
          "window_left: int = -1, logits_soft_cap: Optional[float] = None, sm_scale: Optional[float] = None, "
          "return_lse: bool = False) -> torch.Tensor")
SINGLE = {"single_decode_with_kv_cache": SINGLE.format(causal=""),
          "single_prefill_with_kv_cache": SINGLE.format(causal="custom_mask=None, causal: bool = False, ")}


class Tensor(NamedTuple):
    dtype: str
    array: np.ndarray


class Torch(str):
    """A value that is a torch.dtype."""


def rounded(array, dtype):
    """The array as float64, each number rounded to the type."""
    raw = encode(array, dtype)
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(float).reshape(np.shape(array))
    return np.frombuffer(raw, STORAGE[dtype]).astype(float).reshape(np.shape(array))


def safetensors(tensors):
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = encode(array, dtype)
        header[name] = {"dtype": dtype, "shape": list(np.shape(array)), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return file_bytes(header, data)


class Dumps:
    """A FLASHINFER_DUMP_DIR. Calls are a millisecond apart, unless `now` is set."""

    def __init__(self, folder, process=4711):
        self.folder, self.process, self.now, self.counts = folder, process, 0, {}
        folder.mkdir()

    def call(self, function, signature, *args, object=None, result=None, status="completed", tuples=True, **kwargs):
        """Records a call; returns its folder. args, kwargs, result: Tensors, tuples of them, and plain values.

        status  "inputs_saved": the call crashed;  tuples: whether tensors in tuples are recorded, as newer versions do"""
        self.now += 1
        self.counts[function] = count = self.counts.get(function, 0) + 1
        stamp = f"20260108_143216_{self.now:03}"
        folder = self.folder / f"{stamp}_pid{self.process}_{function}_call{count:04}"
        folder.mkdir()
        given = {f"arg_{i}": value for i, value in enumerate(args)} | {f"kwarg_{name}": value for name, value in kwargs.items()}
        inputs, metadata = self.recorded(given, tuples)
        record = {"function_name": function, "module": "flashinfer", "call_sequence": count, "timestamp": stamp,
                  "process_id": self.process, "input_metadata": metadata, "output_metadata": {},
                  "tensor_info": {"input_tensor_keys": list(inputs), "output_tensor_keys": [], "input_size_mb": 0.25},
                  "tensor_details": {name: {"shape": list(np.shape(array)), "dtype": TORCH.get(dtype, dtype), "stride": [1],
                                            "device": "cuda:0"} for name, (dtype, array) in inputs.items()},
                  "tensor_format": "safetensors", "function_signature": signature,
                  "versions": {"torch": "2.9", "python": "3.12", "flashinfer": "0.6.4"},
                  "execution_status": "inputs_saved", "graph_capture": False, "dump_dir": f"./dumps/{folder.name}"}
        if object is not None:
            record["self_id"] = object
        lines = [json.dumps(record)]
        if inputs:
            (folder / "inputs.safetensors").write_bytes(safetensors(inputs))
        if status == "completed":
            result = result if type(result) is tuple else (result,)
            names = ["result"] if len(result) == 1 else [f"result_{i}" for i in range(len(result))]
            outputs = {name: value for name, value in zip(names, result) if isinstance(value, Tensor)}
            if outputs:
                (folder / "outputs.safetensors").write_bytes(safetensors(outputs))
            record["output_metadata"] = {} if outputs else {"result": None}
            record["tensor_info"]["output_tensor_keys"] = list(outputs)
            lines.append(json.dumps(record | {"execution_status": status}))
        (folder / "metadata.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return folder

    @staticmethod
    def recorded(given, tuples):
        """The tensors among some arguments by their keys, and the metadata of the other arguments."""
        tensors, metadata = {}, {}
        for key, value in given.items():
            if isinstance(value, Tensor):
                tensors[key] = value
            elif isinstance(value, tuple) and not tuples:
                metadata[key] = {"type": "tuple", "value": "(tensor([[[[ 0.1,  0.2]]]]), tensor([[[[ 0.3,  0.4]]]]))"}
            elif isinstance(value, tuple):
                keys = [f"{key}__{i}" for i in range(len(value))]
                tensors.update(zip(keys, value))
                metadata[key] = {"type": "tuple", "length": len(value), "truncated": False,
                                 "items": [{"type": "torch.Tensor", "shape": list(item.array.shape), "dtype": TORCH[item.dtype],
                                            "tensor_key": name} for name, item in zip(keys, value)]}
            elif isinstance(value, Torch):
                metadata[key] = {"type": "torch.dtype", "value": value}
            elif value is Dumps:
                metadata[key] = {"type": "Wrapper", "repr": "<flashinfer.decode.Wrapper object at 0x7f>"}
            else:
                metadata[key] = value
        return tensors, metadata


def edit(folder, change):
    """Changes the records of a call: change(record) edits each in place."""
    path = folder / "metadata.jsonl"
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for record in records:
        change(record)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


def attention(queries, keys, values, scale=None, kv_head=None, weights=None, partials=None, causal=True, split=5):
    """[rows, query_heads, head_dim]: attention of the last rows' queries, causal, as a kernel might compute it.

    queries  [rows, query_heads, head_dim];  keys, values  [tokens, kv_heads, head_dim]
    kv_head  (query head, group size) -> KV head;  weights, partials: types to round weights and outputs of parts to
    """
    rows, heads, dim = queries.shape
    tokens, group = len(keys), heads // keys.shape[1]
    scale = dim**-0.5 if scale is None else scale
    output = np.zeros(queries.shape)
    for h in range(heads):
        g = kv_head(h, group) if kv_head else h // group
        for i in range(rows):
            seen = tokens - rows + i + 1 if causal else tokens
            logits = scale * keys[:seen, g] @ queries[i, h]
            parts, sums, tops = [], [], []
            for first in range(0, seen, split if partials else seen):
                part = slice(first, first + split if partials else seen)
                tops.append(logits[part].max())
                p = np.exp(logits[part] - tops[-1])
                sums.append(p.sum())
                p = rounded(p, weights) if weights else p
                own = p @ values[:seen, g][part] / sums[-1]
                parts.append(rounded(own, partials) if partials else own)
            shares = np.array(sums) * np.exp(np.array(tops) - max(tops))
            output[i, h] = shares @ np.array(parts) / shares.sum()
    return output


class Batch:
    """Requests of random numbers in a paged cache: their queries, pages and keys and values.

    tokens, queries   per request;  pages are given out in a random order, and what they hold beyond the tokens is NaN
    """

    def __init__(self, tokens=(7, 4, 9), queries=(1, 1, 1), heads=4, kv_heads=2, dim=8, page_size=4, dtype="F16", seed=3):
        self.tokens, self.queries, self.heads, self.kv_heads, self.dim = tokens, queries, heads, kv_heads, dim
        self.page_size, self.dtype = page_size, dtype
        random = np.random.default_rng(seed)

        def draw(*shape):
            return rounded(random.standard_normal(shape), dtype)
        self.q = [2 * draw(count, heads, dim) for count in queries]
        self.k, self.v = ([draw(count, kv_heads, dim) for count in tokens] for _ in range(2))
        counts = [-(-count // page_size) for count in tokens]
        self.page_count = sum(counts) + 2
        pages = random.permutation(self.page_count)
        self.indptr = np.cumsum([0, *counts])
        self.indices = pages[:self.indptr[-1]]
        self.last = np.array([(count - 1) % page_size + 1 for count in tokens])

    def paged(self, parts, layout):
        """One array [pages, page_size, kv_heads, head_dim] (NHD) of the requests' parts [tokens, kv_heads, head_dim]."""
        cache = np.full((self.page_count, self.page_size, self.kv_heads, self.dim), np.nan)
        for r, part in enumerate(parts):
            for t, row in enumerate(part):
                cache[self.indices[self.indptr[r] + t // self.page_size], t % self.page_size] = row
        return cache if layout == "NHD" else cache.swapaxes(1, 2)

    def cache(self, layout, both, flat=False):
        k, v = (self.paged(part, layout) for part in (self.k, self.v))
        if flat:
            k, v = (part.reshape(self.page_count, self.kv_heads, self.dim) for part in (k, v))
        if both:
            return Tensor(self.dtype, np.stack([k, v], axis=1))
        return Tensor(self.dtype, k), Tensor(self.dtype, v)

    def outputs(self, **kernel):
        return np.concatenate([attention(q, k, v, **kernel) for q, k, v in zip(self.q, self.k, self.v)])

    def tensor(self, rows):
        return Tensor(self.dtype, np.concatenate(rows) if isinstance(rows, list) else rows)


def ints(numbers, dtype="I32"):
    return Tensor(dtype, np.asarray(numbers))


def record_decode(dumps, batch, outputs=None, layout="NHD", both=True, constructed=True, object=99, lse=False, plan=None, run=None,
                  name=DECODE, tuples=True, tables=None, status="completed", flat=False, positions=None):
    """__init__, plan and run of a batch decode wrapper. plan, run: further arguments. flat: a cache without the dimension of its
    pages' one token. positions: plan's settings by position, as FlashInfer 0.7 records them. Returns the folders of plan and run."""
    outputs = batch.tensor(batch.outputs() if outputs is None else outputs)
    if constructed:
        dumps.call(f"{name}.__init__", INIT, Dumps, Tensor("I32", np.zeros(4)), *([] if layout == "NHD" else [layout]), object=object)
    tables = tables or (ints(batch.indptr), ints(batch.indices), ints(batch.last))
    settings = {"q_data_type": Torch("torch.float16"), **(plan or {})} if positions is None else {}
    planned = dumps.call(f"{name}.plan", PLAN[DECODE] if positions is None else PLAN_BY_POSITION, Dumps, *tables, batch.heads,
                         batch.kv_heads, batch.dim, batch.page_size, *(positions or ()), object=object, **settings)
    result = (outputs, Tensor("F32", np.zeros((len(outputs.array), batch.heads)))) if lse else outputs
    return planned, dumps.call(f"{name}.run", RUN[DECODE], Dumps, batch.tensor(batch.q), batch.cache(layout, both, flat), object=object,
                               result=result, status=status, tuples=tuples, **(run or {}))


def record_prefill(dumps, batch, outputs=None, layout="NHD", both=False, plan=None, causal=True):
    """The same of a paged prefill wrapper, with arguments by name."""
    dumps.call(f"{PREFILL}.__init__", INIT, Dumps, Tensor("I32", np.zeros(4)), object=7, kv_layout=layout)
    planned = dumps.call(f"{PREFILL}.plan", PLAN[PREFILL], Dumps, object=7, qo_indptr=ints(np.cumsum([0, *batch.queries]), "I64"),
                         paged_kv_indptr=ints(batch.indptr), paged_kv_indices=ints(batch.indices),
                         paged_kv_last_page_len=ints(batch.last), num_qo_heads=batch.heads, num_kv_heads=batch.kv_heads,
                         head_dim_qk=batch.dim, page_size=batch.page_size, causal=causal, **(plan or {}))
    return planned, dumps.call(f"{PREFILL}.run", RUN[PREFILL], Dumps, batch.tensor(batch.q), object=7,
                               paged_kv_cache=batch.cache(layout, both),
                               result=batch.tensor(batch.outputs() if outputs is None else outputs))


def record_ragged(dumps, batch, outputs=None, constructed=True, layout="NHD"):
    if constructed:
        dumps.call(f"{RAGGED}.__init__", INIT, Dumps, Tensor("I32", np.zeros(4)), layout, object=8)
    dumps.call(f"{RAGGED}.plan", PLAN[RAGGED], Dumps, ints(np.cumsum([0, *batch.queries])), ints(np.cumsum([0, *batch.tokens])),
               batch.heads, batch.kv_heads, batch.dim, object=8, causal=True)

    def laid_out(parts):
        rows = np.concatenate(parts)
        return Tensor(batch.dtype, rows if layout == "NHD" else rows.swapaxes(0, 1))
    return dumps.call(f"{RAGGED}.run", RUN[RAGGED], Dumps, batch.tensor(batch.q), laid_out(batch.k), laid_out(batch.v), object=8,
                      result=batch.tensor(batch.outputs() if outputs is None else outputs))


def record_single(dumps, batch, layout="NHD", outputs=None, **arguments):
    """single_prefill_with_kv_cache of the first request, or single_decode_with_kv_cache if it has one query."""
    decodes = batch.queries[0] == 1 and "causal" not in arguments
    name = f"single_{'decode' if decodes else 'prefill'}_with_kv_cache"
    output = attention(batch.q[0], batch.k[0], batch.v[0]) if outputs is None else outputs
    k, v = (part[0] if layout == "NHD" else part[0].swapaxes(0, 1) for part in (batch.k, batch.v))
    rows = (lambda array: array[0]) if decodes else (lambda array: array)
    layouts = {} if layout == "NHD" else {"kv_layout": layout}
    return dumps.call(name, SINGLE[name], batch.tensor(rows(batch.q[0])), batch.tensor(k), batch.tensor(v),
                      result=batch.tensor(rows(output)), **layouts, **arguments)
