"""Solutions of flashinfer-bench, judged by derived bounds in place of its tolerances.

    from kvbound.flashinfer_bench import register
    register()                         # in the script that runs the Benchmark: its workers import that script, too

Of flashinfer-bench 0.1.2, https://github.com/flashinfer-ai/flashinfer-bench, whose tolerance lets an element pass unless
its absolute and its relative error both exceed 0.01. Numbers are judged on the CPU, in double precision: large workloads
take their time.
"""
import traceback
from typing import ClassVar

import numpy as np
import torch
from flashinfer_bench.bench.evaluators import DefaultEvaluator, registry
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result
from flashinfer_bench.bench.utils import make_eval
from flashinfer_bench.data import Correctness, EvaluationStatus

from kvbound.checks import check_attention, check_topk

_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_ATTENTION = ("gqa_paged", "gqa_ragged", "mla_paged", "dsa_paged")  # op_type


def register():
    """Has Evaluator judge the definitions that it can evaluate, in this process, instead of flashinfer-bench's own."""
    if Evaluator not in registry._EVALUATORS:
        registry._EVALUATORS.append(Evaluator)


class Evaluator(DefaultEvaluator):
    """Attention (GQA, paged or ragged, decode or causal prefill; MLA; sparse MLA) and the top-k of DSA's indexer.

    declared  options of check_attention that solutions are held to. Unless they say `weights`, a solution may round
              weights to the type of the cache before they multiply values, as tensor cores require. A subclass with its
              own `declared` may say more: {"tile": 64, "splits": 8} of kvbound.probe
    strict    whether results fail, too, that are within their bounds, but hardly by rounding (probability below 1e-9): over
              thousands of tokens of equal weight a bound is several percent of an output
    """
    declared: ClassVar[dict] = {}
    strict = False

    @classmethod
    def can_evaluate(cls, definition):
        return cls._judge(definition) is not None

    @classmethod
    def check_correctness(cls, definition, sol_runnable, inputs, ref_outputs, cfg, log_path, device):
        """(Correctness, None) of a right solution; (Correctness or None, Evaluation) of another.

        Correctness has the largest errors from the definition's own reference, as flashinfer-bench has them, and in
        `extra` kvbound's verdict, its message, and what is unlikely. cfg's tolerances count for nothing. A call without
        queries has no evidence against it, and passes.
        """
        def failed(status, correctness=None, message=None):
            return correctness, make_eval(status=status, device=device, log_path=log_path, correctness=correctness,
                                          extra_msg=message)

        errors, extra = np.zeros(2), {"verdict": "agrees"}
        for given, expected in zip(inputs, ref_outputs):
            # Copies: a solution may write over its inputs.
            named = dict(zip(definition.inputs, map(_on_cpu, given)))
            try:
                outputs = _run(definition, sol_runnable, given, device)
            except Exception:  # noqa: BLE001  whatever a solution raises
                return failed(EvaluationStatus.RUNTIME_ERROR, message=traceback.format_exc())
            for output, reference in zip(outputs, expected):
                if output.shape != reference.shape:
                    return failed(EvaluationStatus.INCORRECT_SHAPE)
                if output.dtype != reference.dtype:
                    return failed(EvaluationStatus.INCORRECT_DTYPE)
            for pair in zip(outputs, expected):
                errors = np.maximum(errors, _errors(*pair))  # NaN stays
            result = cls._judge(definition)(cls, definition, named | dict(zip(definition.outputs, map(_on_cpu, outputs))))
            if not result.ok:
                extra |= {"verdict": result.verdict, "message": result.message}
            if result.unlikely:
                extra["unlikely"] = result.unlikely
            if result.verdict == "differs" or (cls.strict and result.unlikely):
                correctness = Correctness(max_absolute_error=errors[0], max_relative_error=errors[1], extra=extra)
                return failed(EvaluationStatus.INCORRECT_NUMERICAL, correctness, str(result))
        return Correctness(max_absolute_error=errors[0], max_relative_error=errors[1], extra=extra), None

    @staticmethod
    def _judge(definition):
        """The function that judges a definition's outputs; None if there is none."""
        types = {spec.dtype.value for spec in definition.inputs.values() if spec.shape and "float" in spec.dtype.value}
        if definition.op_type == "dsa_paged" and list(definition.outputs) == ["topk_indices"] and \
                {"q_index_fp8", "k_index_cache_fp8", "weights", "seq_lens", "block_table"} == set(definition.inputs):
            return _topk
        if definition.op_type in _ATTENTION and set(definition.outputs) == {"output", "lse"} and \
                types <= {"float32", "float16", "bfloat16"}:
            return _attention
        return None


def _run(definition, runnable, given, device):
    with torch.no_grad():
        if runnable.metadata.destination_passing_style:
            outputs = allocate_outputs(definition, given, device)
            runnable(*given, *outputs)
        else:
            outputs = normalize_result(definition, runnable(*given), device)
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return outputs


def _on_cpu(value):
    return value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _errors(output, reference):
    """The largest absolute and relative error, NaN if there is one."""
    output, reference = output.double(), reference.double()
    # Equal infinities are no error.
    absolute = torch.where(output == reference, 0, (output - reference).abs())
    if not absolute.numel():
        return 0.0, 0.0
    return absolute.max().item(), (absolute / (reference.abs() + 1e-8)).max().item()


def _attention(evaluator, definition, named):
    """kvbound's verdict on attention, from a call's inputs and outputs by their names."""
    if "q_nope" in named:  # MLA: one KV head, whose keys are its values and a part with positions
        q = torch.cat([named["q_nope"], named["q_pe"]], dim=-1)
        v = named["ckv_cache"][:, :, None]
        k = torch.cat([named["ckv_cache"], named["kpe_cache"]], dim=-1)[:, :, None]
    else:
        q, k, v = (named.get(name, named.get(f"{name}_cache")) for name in ("q", "k", "v"))
    table = {name: named[name] for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len") if name in named}
    if "sparse_indices" in named:  # each query's own pages of one token
        k, v = (x.reshape(-1, 1, 1, x.shape[-1]) for x in (k, v))
        seen = named["sparse_indices"] != -1
        table = {"kv_indices": named["sparse_indices"][seen],
                 "kv_indptr": torch.cat([torch.zeros(1, dtype=torch.long), seen.sum(1).cumsum(0)])}
    if "kv_indices" in table:
        sequences = len(table["kv_indptr"]) - 1
        one = torch.ones(sequences, dtype=torch.long)  # pages of one token have no last length
        table["kv_last_page_len"] = table.get("kv_last_page_len", one)[:sequences]
    if "qo_indptr" in table:
        table["causal"] = "causal" in definition.name
    declared = {"weights": _TYPES[v.dtype]} | evaluator.declared if v.dtype.itemsize == 2 else evaluator.declared
    return check_attention(named["output"], q, k, v, lse=named["lse"], lse_base=2, sm_scale=named["sm_scale"], **table,
                           **declared)


def _topk(_, definition, named):
    """kvbound's verdict on the indices of the largest I_s = sum_h w_h max(0, sum_c q_hc k_sc).

    Each product passes through no more than head_dim + heads + 4 roundings, of tensor cores u = 2^-22, so that a kernel's
    score is off by at most gamma of that many times sum_h |w_h| sum_c |q_hc k_sc|. A page of the cache holds all its keys
    in FP8 and then their scales in F32.
    """
    q, weights = named["q_index_fp8"].double(), named["weights"].double()
    pages, page_size, _, width = named["k_index_cache_fp8"].shape
    head_dim = width - 4
    raw = named["k_index_cache_fp8"].contiguous().view(torch.uint8).reshape(pages, page_size * width)
    keys = raw[:, :page_size * head_dim].contiguous().view(torch.float8_e4m3fn).double().reshape(pages, page_size, head_dim)
    scales = raw[:, page_size * head_dim:].contiguous().view(torch.float32).double().reshape(pages, page_size, 1)
    lengths, table = named["seq_lens"], named["block_table"].long()
    tokens = table.shape[1] * page_size
    keys = (keys * scales)[table.clamp(0, pages - 1)].reshape(len(table), tokens, head_dim)
    scores = torch.einsum("bh,bhs->bs", weights, torch.einsum("bhc,bsc->bhs", q, keys).relu())
    roundings = (head_dim + q.shape[1] + 4) * 2.0**-22
    errors = torch.einsum("bh,bhs->bs", weights.abs(), torch.einsum("bhc,bsc->bhs", q.abs(), keys.abs()))
    chosen = named["topk_indices"].long()
    here = chosen[:, :, None] // page_size == table[:, None]  # [batch, topk, pages of a sequence]
    positions = here.int().argmax(2) * page_size + chosen % page_size
    positions = torch.where(chosen < 0, -1, torch.where(here.any(2), positions, tokens))
    return check_topk(positions, scores, lengths=lengths, score_error=errors * roundings / (1 - roundings))
