"""Solutions of flashinfer-bench are judged by bounds: right ones pass, and faults fail that its tolerance lets pass."""
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.evaluators import DefaultEvaluator, registry, resolve_evaluator
from flashinfer_bench.bench.utils import compute_error_stats
from flashinfer_bench.compile import Runnable, RunnableMetadata
from flashinfer_bench.data import Definition, EvaluationStatus
from kvbound.flashinfer_bench import Evaluator, register

TYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32", torch.int32: "int32",
         torch.int64: "int64", torch.int8: "int8", torch.float8_e4m3fn: "float8_e4m3fn"}
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
generator = torch.Generator().manual_seed(1)


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, generator=generator).to(dtype)


def definition(name, op_type, inputs, outputs):
    """With axes of their own for every dimension, since no shape is inferred here."""
    axes, specs = {}, {}
    for tensor, value in (inputs | outputs).items():
        shape = None
        if isinstance(value, torch.Tensor):
            shape = [f"{tensor}_{d}" for d in range(value.ndim)]
            axes |= {axis: {"type": "const", "value": length} for axis, length in zip(shape, value.shape)}
        specs[tensor] = {"shape": shape, "dtype": TYPES[value.dtype] if shape else "float32"}
    return Definition(name=name, op_type=op_type, axes=axes, inputs={tensor: specs[tensor] for tensor in inputs},
                      outputs={tensor: specs[tensor] for tensor in outputs}, reference="def run(*inputs):\n    pass\n")


def attention(q, k, v, sm_scale, causal_from=None):
    """(out, base-2 lse) of queries [n, heads, d] over k, v [tokens, kv_heads, d]; the first query sees causal_from + 1."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
    logits = torch.einsum("qhd,thd->hqt", q.float(), k) * sm_scale
    if causal_from is not None:
        logits.masked_fill_(torch.ones(logits.shape[1:]).triu(causal_from + 1).bool(), -math.inf)
    out = torch.einsum("hqt,thd->qhd", logits.softmax(-1), v)
    return out.to(q.dtype), (torch.logsumexp(logits, -1) / math.log(2)).T


class Case:
    """A definition, inputs for it, and what is right."""

    def __init__(self, name, op_type, inputs, expected):
        self.inputs, self.expected = inputs, expected
        self.definition = definition(name, op_type, inputs, dict(zip(("output", "lse"), expected)))

    def judged(self, solution, passing=False, evaluator=Evaluator):
        """(status or None, Correctness, log) of what a solution returns, or with `passing` writes to where it is told."""
        runnable = Runnable(solution, RunnableMetadata(build_type="python", definition_name=self.definition.name,
                                                       solution_name="tried", destination_passing_style=passing))
        correctness, evaluation = evaluator.check_correctness(
            self.definition, runnable, [list(self.inputs.values())], [list(self.expected)], BenchmarkConfig(), "", "cpu")
        return evaluation and evaluation.status, correctness, evaluation.log if evaluation else ""


def table(lengths, page_size):
    """kv_indptr, shuffled kv_indices and the tokens of the last pages."""
    pages = [math.ceil(length / page_size) for length in lengths]
    indptr = torch.tensor([0, *np.cumsum(pages)], dtype=torch.int32)
    indices = torch.randperm(sum(pages) + 3, generator=generator)[:sum(pages)].int()
    last = torch.tensor([(length - 1) % page_size + 1 if length else 0 for length in lengths], dtype=torch.int32)
    return indptr, indices, last


def sequence_of(cache, indptr, indices, length, b):
    return cache[indices[indptr[b]:indptr[b + 1]].long()].flatten(0, 1)[:length]


def paged(lengths, page_size, queries=None, dtype=torch.bfloat16):
    """A decode step over pages, or with queries of each sequence a causal prefill."""
    indptr, indices, last = table(lengths, page_size)
    k, v = (randn(len(indices) + 3, page_size, KV_HEADS, HEAD_DIM, dtype=dtype) for _ in range(2))
    counts = queries or [1] * len(lengths)
    starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    q = randn(sum(counts), HEADS, HEAD_DIM, dtype=dtype)
    results = [attention(q[starts[b]:starts[b + 1]], *(sequence_of(x, indptr, indices, length, b) for x in (k, v)),
                         HEAD_DIM**-0.5, length - counts[b]) for b, length in enumerate(lengths)]
    inputs = {"q": q, "k_cache": k, "v_cache": v} | ({"qo_indptr": starts} if queries else {}) | \
        {"kv_indptr": indptr, "kv_indices": indices} | ({"kv_last_page_len": last} if page_size > 1 else {})
    return Case(f"gqa_paged_{'prefill_causal' if queries else 'decode'}_h8_kv2_d64_ps{page_size}", "gqa_paged",
                inputs | {"sm_scale": HEAD_DIM**-0.5}, [torch.cat(x) for x in zip(*results)])


def ragged():
    counts, lengths = [3, 5], [40, 90]
    q, k, v = randn(8, HEADS, HEAD_DIM), randn(130, KV_HEADS, HEAD_DIM), randn(130, KV_HEADS, HEAD_DIM)
    results = [attention(q[:3], k[:40], v[:40], 0.1, 37), attention(q[3:], k[40:], v[40:], 0.1, 85)]
    inputs = {"q": q, "k": k, "v": v, "qo_indptr": torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32),
              "kv_indptr": torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32), "sm_scale": 0.1}
    return Case("gqa_ragged_prefill_causal_h8_kv2_d64", "gqa_ragged", inputs, [torch.cat(x) for x in zip(*results)])


def latent(queries=None):
    """MLA: decode, or causal prefill."""
    lengths, scale = [70, 33], 192**-0.5
    indptr, indices, last = table(lengths, 64)
    ckv, kpe = randn(len(indices) + 3, 64, 128), randn(len(indices) + 3, 64, 32)
    counts = queries or [1, 1]
    starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    q_nope, q_pe = randn(sum(counts), HEADS, 128), randn(sum(counts), HEADS, 32)
    results = []
    for b, length in enumerate(lengths):
        c, p = (sequence_of(x, indptr, indices, length, b)[:, None] for x in (ckv, kpe))
        q = torch.cat([q_nope, q_pe], -1)[starts[b]:starts[b + 1]]
        results.append(attention(q, torch.cat([c, p], -1), c, scale, length - counts[b]))
    inputs = {"q_nope": q_nope, "q_pe": q_pe, "ckv_cache": ckv, "kpe_cache": kpe} | ({"qo_indptr": starts} if queries else {}) | \
        {"kv_indptr": indptr, "kv_indices": indices, "kv_last_page_len": last, "sm_scale": scale}
    return Case(f"mla_paged_{'prefill_causal' if queries else 'decode'}_h8_ckv128_kpe32_ps64", "mla_paged", inputs,
                [torch.cat(x) for x in zip(*results)])


def sparse():
    ckv, kpe, q_nope, q_pe = randn(3, 64, 128), randn(3, 64, 32), randn(3, HEADS, 128), randn(3, HEADS, 32)
    indices = torch.full((3, 16), -1, dtype=torch.int32)
    for row, count in zip(indices, (16, 9, 1)):
        row[:count] = torch.randperm(3 * 64, generator=generator)[:count]
    results = []
    for t, row in enumerate(indices):
        c, p = (x.flatten(0, 1)[row[row >= 0].long()][:, None] for x in (ckv, kpe))
        results.append(attention(torch.cat([q_nope, q_pe], -1)[t:t + 1], torch.cat([c, p], -1), c, 0.07))
    inputs = {"q_nope": q_nope, "q_pe": q_pe, "ckv_cache": ckv, "kpe_cache": kpe, "sparse_indices": indices, "sm_scale": 0.07}
    return Case("dsa_sparse_attention_h8_ckv128_kpe32_topk16_ps64", "dsa_paged", inputs, [torch.cat(x) for x in zip(*results)])


CASES = {"decode": lambda: paged([200, 150, 77], 16), "pages_of_one": lambda: paged([20, 150], 1),
         "half": lambda: paged([200, 150], 16, dtype=torch.float16), "prefill": lambda: paged([70, 20], 16, [5, 20]),
         "ragged": ragged, "mla": latent, "mla_prefill": lambda: latent([4, 2]), "sparse": sparse}


@pytest.mark.parametrize("name", CASES)
def test_attention(name):
    case = CASES[name]()
    out, lse = case.expected
    assert Evaluator.can_evaluate(case.definition)
    status, correctness, _ = case.judged(lambda *_: (out, lse))
    assert status is None and correctness.extra == {"verdict": "agrees"}
    assert correctness.max_absolute_error == correctness.max_relative_error == 0
    nan = out.clone()
    nan[-1, -1, -1] = torch.nan
    for wrong in (out / 2, nan, out.flip(1)):
        status, correctness, log = case.judged(lambda *_, wrong=wrong: (wrong, lse))
        assert status is EvaluationStatus.INCORRECT_NUMERICAL
        assert correctness.extra["verdict"] == "differs" and correctness.extra["message"] and "differs" in log
    assert math.isnan(case.judged(lambda *_: (nan, lse))[1].max_absolute_error)
    natural = lse * math.log(2)
    assert case.judged(lambda *_: (out, natural))[0] is EvaluationStatus.INCORRECT_NUMERICAL


def test_a_gain_within_their_tolerance_is_noticed():
    def judged(tokens, evaluator=Evaluator):
        case = paged([tokens], 16)
        out, lse = case.expected
        louder = (out.float() * 1.03).to(out.dtype)
        assert not compute_error_stats(louder, out, BenchmarkConfig())[2]
        return case.judged(lambda *_: (louder, lse), evaluator=evaluator)

    class Strict(Evaluator):
        strict = True

    status, correctness, log = judged(400)
    assert status is EvaluationStatus.INCORRECT_NUMERICAL and correctness.max_absolute_error < 0.01
    assert "gain" in log
    status, correctness, _ = judged(4000)  # a bound of so many weights rounded to BF16 is 5 % of the outputs
    assert status is None and "gain 1.03" in correctness.extra["unlikely"][0]
    assert judged(4000, Strict)[0] is EvaluationStatus.INCORRECT_NUMERICAL


def test_declared_arithmetic():
    """Outputs of weights in BF16 are right where the cache has that type, and wrong for who declares more."""
    case = paged([300], 16)
    k, v = (sequence_of(case.inputs[name], case.inputs["kv_indptr"], case.inputs["kv_indices"], 300, 0)
            for name in ("k_cache", "v_cache"))
    logits = torch.einsum("hd,thd->ht", case.inputs["q"][0].float(), k.float().repeat_interleave(4, 1)) * HEAD_DIM**-0.5
    weights = (logits - logits.amax(1, keepdim=True)).exp()
    out = torch.einsum("ht,thd->hd", weights.bfloat16().float(), v.float().repeat_interleave(4, 1)) / weights.sum(1, keepdim=True)
    rounded = case.judged(lambda *_: (out[None].bfloat16(), case.expected[1]))
    assert rounded[0] is None

    class Exact(Evaluator):
        declared: ClassVar = {"weights": "F32", "tile": 16}

    assert case.judged(lambda *_: (out[None].bfloat16(), case.expected[1]), evaluator=Exact)[0] is not None
    assert case.judged(lambda *_: case.expected, evaluator=Exact)[0] is None


def test_solutions_that_write_their_results_and_that_fail():
    case = paged([40, 30], 16)
    out, lse = case.expected

    def writes(*arguments):
        arguments[-2].copy_(out)
        arguments[-1].copy_(lse)

    def raises(*_):
        raise RuntimeError("no such kernel")

    assert case.judged(writes, passing=True)[0] is None
    status, correctness, log = case.judged(raises)
    assert status is EvaluationStatus.RUNTIME_ERROR and correctness is None and "no such kernel" in log
    assert case.judged(lambda *_: (out[:1], lse))[0] is EvaluationStatus.INCORRECT_SHAPE
    assert case.judged(lambda *_: (out.float(), lse))[0] is EvaluationStatus.INCORRECT_DTYPE


def test_a_solution_that_writes_over_its_inputs():
    case = paged([40], 16)

    def cheats(q, k, v, *_):
        for x in (k, v):
            x.zero_()
        return torch.zeros_like(q), torch.full(q.shape[:2], math.log2(40))

    assert case.judged(cheats)[0] is EvaluationStatus.INCORRECT_NUMERICAL


def test_no_queries():
    case = paged([40], 16)
    short = {name: case.inputs[name][:0] for name in ("q", "kv_indices", "kv_last_page_len")}
    nothing = Case("gqa_paged_decode", "gqa_paged", case.inputs | short | {"kv_indptr": case.inputs["kv_indptr"][:1]},
                   [x[:0] for x in case.expected])
    status, correctness, _ = nothing.judged(lambda *_: nothing.expected)
    assert status is None and correctness.extra["verdict"] == "no evidence" and correctness.extra["message"]


def test_more_last_pages_than_sequences():
    """As the definitions of paged prefill have it."""
    case = paged([70, 20], 16, [5, 20])
    last = case.inputs["kv_last_page_len"]
    case = Case(case.definition.name, "gqa_paged", case.inputs | {"kv_last_page_len": torch.cat([last, last[:1]])}, case.expected)
    assert case.judged(lambda *_: case.expected)[0] is None


def test_empty_sequences():
    """Their outputs are 0, and the logarithms of their sums -infinity."""
    case = paged([40], 16)
    inputs = case.inputs | {"q": torch.cat([case.inputs["q"]] * 2), "kv_indptr": torch.tensor([0, 3, 3], dtype=torch.int32),
                            "kv_last_page_len": torch.tensor([8, 0], dtype=torch.int32)}
    out, lse = case.expected
    both = Case("gqa_paged_decode", "gqa_paged", inputs, [torch.cat([out, torch.zeros_like(out)]),
                                                          torch.cat([lse, torch.full_like(lse, -math.inf)])])
    status, correctness, _ = both.judged(lambda *_: both.expected)
    assert status is None and correctness.max_absolute_error == correctness.max_relative_error == 0
    assert both.judged(lambda *_: (both.expected[0], torch.cat([lse, torch.zeros_like(lse)])))[0] is not None
    nothing = Case("gqa_paged_decode", "gqa_paged", inputs | {"q": inputs["q"][:1], "kv_indptr": inputs["kv_indptr"][1:],
                                                              "kv_indices": inputs["kv_indices"][:0],
                                                              "kv_last_page_len": inputs["kv_last_page_len"][1:]},
                   [torch.zeros_like(out), torch.full_like(lse, -math.inf)])
    nothing.inputs["kv_indptr"] = torch.tensor([0, 0], dtype=torch.int32)
    assert nothing.judged(lambda *_: nothing.expected)[0] is None


def indexer():
    """DSA's indexer: a case whose cache holds keys in FP8 and then their scales, page by page."""
    heads, head_dim, page_size, topk = 8, 128, 64, 32
    q = randn(2, heads, head_dim, dtype=torch.float8_e4m3fn)
    keys, scales = randn(6, page_size, head_dim, dtype=torch.float8_e4m3fn), torch.rand(6, page_size, generator=generator) + 0.5
    cache = torch.cat([keys.view(torch.uint8).flatten(1), scales.view(torch.uint8).flatten(1)], 1)
    weights, lengths = randn(2, heads, dtype=torch.float32), torch.tensor([150, 20], dtype=torch.int32)
    blocks = torch.tensor([[4, 0, 2], [5, 0, 0]], dtype=torch.int32)
    indices = torch.full((2, topk), -1, dtype=torch.int32)
    for b, length in enumerate(lengths):
        places = (blocks[b].long()[:, None] * page_size + torch.arange(page_size)).flatten()[:length]
        all_keys = (keys.float() * scales[..., None]).flatten(0, 1)[places]
        scores = weights[b] @ (q[b].float() @ all_keys.T).relu()
        best = scores.topk(min(topk, int(length))).indices
        indices[b, :len(best)] = places[best].int()
    inputs = {"q_index_fp8": q, "k_index_cache_fp8": cache.view(torch.int8).reshape(6, page_size, 1, head_dim + 4),
              "weights": weights, "seq_lens": lengths, "block_table": blocks}
    case = Case("dsa_topk_indexer_fp8_h8_d128_topk32_ps64", "dsa_paged", inputs, [indices])
    case.definition = definition(case.definition.name, "dsa_paged", inputs, {"topk_indices": indices})
    return case


def test_topk():
    case = indexer()
    indices, = case.expected
    assert Evaluator.can_evaluate(case.definition)
    in_another_order = indices.flip(1).sort(1, descending=True).values
    assert case.judged(lambda *_: in_another_order)[0] is None
    other = next(token for token in range(4 * 64, 5 * 64) if token not in indices[0])
    for row, column, token in ((0, 0, other), (0, 0, int(indices[0, 1])), (0, 3, 3 * 64), (1, 0, -1), (1, 25, 5 * 64)):
        wrong = indices.clone()
        wrong[row, column] = token
        assert case.judged(lambda *_, wrong=wrong: wrong)[0] is EvaluationStatus.INCORRECT_NUMERICAL, (row, column, token)


def test_topk_of_another_sequence():
    """The token of the same place in a page that the sequence does not have."""
    case = indexer()
    wrong = case.expected[0].clone()
    column = int(torch.nonzero(wrong[0] // 64 == 4)[0])  # of its first page
    wrong[0, column] += 64 * (1 - 4)
    assert case.judged(lambda *_: wrong)[0] is EvaluationStatus.INCORRECT_NUMERICAL


@pytest.mark.parametrize("more, right", [(2.0**-23, True), (0.25, False)])
def test_topk_within_the_rounding_of_scores(more, right):
    """The last token that is chosen gets a twin, whose score is larger by so much of it, and is not chosen."""
    case = indexer()
    indices, = case.expected
    last = int(indices[0, -1])
    twin = next(token for token in range(4 * 64, 5 * 64) if token not in indices[0])
    cache = case.inputs["k_index_cache_fp8"].view(torch.uint8).flatten(1)
    keys, scales = cache[:, :64 * 128].unflatten(1, (64, 128)), cache[:, 64 * 128:].unflatten(1, (64, 4))
    scale = scales[last // 64, last % 64].view(torch.float32) * (1 + more)
    keys[twin // 64, twin % 64], scales[twin // 64, twin % 64] = keys[last // 64, last % 64], scale.view(torch.uint8)
    assert (case.judged(lambda *_: indices)[0] is None) == right


def test_what_is_evaluated():
    case = paged([40], 16)
    assert resolve_evaluator(case.definition) is DefaultEvaluator
    try:
        register()
        register()
        assert resolve_evaluator(case.definition) is Evaluator
        gemm = definition("gemm_n8_k8", "gemm", {"A": randn(8, 8), "B": randn(8, 8)}, {"C": randn(8, 8)})
        assert resolve_evaluator(gemm) is DefaultEvaluator
        quantised = definition("gqa_paged_decode", "gqa_paged", {"q": randn(1, 8, 64), "k_cache": randn(1, 1, 2, 64).to(
            torch.float8_e4m3fn)}, {"output": randn(1, 8, 64), "lse": randn(1, 8)})
        assert resolve_evaluator(quantised) is DefaultEvaluator
    finally:
        registry._EVALUATORS.remove(Evaluator)
