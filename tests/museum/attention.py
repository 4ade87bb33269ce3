"""Faults of attention kernels."""
import numpy as np

from fault import Case, Tolerance, fault
from kernels import ARITHMETIC, EXACT, TYPICAL, decode, prefill, stored
from support.kernel_files import KernelFile
from support.kernels import Kernel

# Of the projects' own tests. Where a thread's project has none that is known for this operation: vLLM's.
VLLM = Tolerance("vLLM", 1.5e-2, 1e-2)
VLLM_NVFP4 = Tolerance("vLLM, NVFP4", 1.5, 0.5)
FLASHINFER = Tolerance("FlashInfer", 1e-3, 1e-3)
FLASHINFER_FP8 = Tolerance("FlashInfer, FP8", 1e-2, 2e-1)
KERNEL_BENCH = Tolerance("KernelBench", 1e-2, 1e-2)
MLIR_AIR = Tolerance("mlir-air", 0.15, 0.04)

SEEN = r"out\[[\d, ]+\](:| is) .*"


def drawn(batch=2, tokens=4096, query_heads=8, kv_heads=2, head_dim=128, seed=1):
    """q, k, v as the projects' tests draw them: standard normal, in BF16."""
    random = np.random.default_rng(seed)
    return tuple(stored(random.standard_normal(shape, np.float32), "BF16") for shape in
                 ((batch, query_heads, head_dim), *2 * ((batch, tokens, kv_heads, head_dim),)))


def case(q, k, v, wrong, file=None, step=decode, **options):
    """The case of a kernel in BF16 that puts out `wrong` where `step` is right.

    k, v  the cache as it is
    file  its tensors, if it is in the file in another form
    """
    scale = options.get("sm_scale")
    right, reference = (step(q, k, v, scale, kernel)[0] for kernel in (TYPICAL, EXACT))
    tensors = {"q": ("BF16", q), **(file or {"k": ("BF16", k), "v": ("BF16", v)}), "out": ("BF16", wrong)}
    return Case(KernelFile(tensors, **ARITHMETIC, **options), {"out": right}, stored(wrong, "BF16"), reference)


def in_pages(caches, page_size, unwritten):
    """k and v [batch, n, G, d] in shuffled pages [pages, page_size, G, d], with what describes them.

    unwritten  the numbers of slots behind a sequence's last token
    """
    batch, n = caches[0].shape[:2]
    count = -(-n // page_size)
    table = np.random.default_rng(7).permutation(batch * count).reshape(batch, count)
    tensors = {"kv_indptr": ("I32", count * np.arange(batch + 1)), "kv_indices": ("I32", table.ravel()),
               "kv_last_page_len": ("I32", np.full(batch, (n - 1) % page_size + 1))}
    for name, cache in zip("kv", caches):
        pages = np.full((batch * count, page_size, *cache.shape[2:]), unwritten, np.float32)
        padded = np.full((batch, count * page_size, *cache.shape[2:]), unwritten, np.float32)
        padded[:, :n] = cache
        pages[table] = padded.reshape(batch, count, page_size, *cache.shape[2:])
        tensors[name] = "BF16", pages
    return tensors


# ---- scales of quantised caches

def fp8(array):
    """The nearest numbers of the type E4M3."""
    step = np.exp2(np.maximum(np.floor(np.log2(np.maximum(np.abs(array), 2.0**-20))), -6) - 3)
    return np.clip(np.round(array / step) * step, -448, 448).astype(np.float32)


@fault("attention", "FlashInfer 4979", "SGLang 20705", tolerance=FLASHINFER_FP8, expected=SEEN + r"logits are scaled by 4")
def k_scale_dropped():
    """An FP8 cache's scale of the keys, 0.25, is not applied: logits are 4 times too large."""
    q, k, v = drawn()
    cached = fp8(k / 0.25)
    return case(q, 0.25 * cached, v, decode(q, cached, v)[0])


@fault("attention", "FlashInfer 4979", "SGLang 20705", tolerance=FLASHINFER_FP8, expected=SEEN + r"outputs are 2.000 of what they should be")
def v_scale_dropped():
    """An FP8 cache's scale of the values, 0.5, is not applied: outputs are twice too large."""
    q, k, v = drawn()
    cached = fp8(v / 0.5)
    return case(q, k, 0.5 * cached, decode(q, k, cached)[0])


@fault("attention", "vLLM 50084", "vLLM 46329", "vLLM 50336", tolerance=VLLM_NVFP4, expected=SEEN)
def block_scales_swizzled():
    """An NVFP4 cache's block scales of the values are written in 4 x 4 tiles that the reader takes for rows."""
    q, k, v = drawn()
    # values are not of one size in real models
    sizes = np.random.default_rng(2).lognormal(sigma=1, size=(1, 1, 2, 8, 1))
    blocks = v.reshape(2, 4096, 2, 8, 16) * sizes
    scales = fp8(np.abs(blocks).max(axis=-1, keepdims=True) / 6)
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    digits = np.sign(blocks) * grid[np.abs(np.abs(blocks / scales)[..., None] - grid).argmin(axis=-1)]
    tiles = scales.reshape(2, 1024, 4, 2, 2, 4, 1)  # [batch, tokens, of 4, G, blocks, of 4, 1]
    swizzled = tiles.swapaxes(2, 5).reshape(scales.shape)
    return case(q, k, (digits * scales).reshape(v.shape), decode(q, k, (digits * swizzled).reshape(v.shape))[0])


# ---- which tokens, and of which head

@fault("attention", "vLLM 49012", "vLLM 42740", tolerance=VLLM, expected=SEEN)
def heads_first_read_as_tokens_first():
    """A cache whose pages have KV heads before tokens (HND) is read as one with tokens before KV heads (NHD)."""
    q, k, v = drawn(kv_heads=4)
    file = {name: (dtype, array.swapaxes(1, 2) if name in "kv" else array)
            for name, (dtype, array) in in_pages((k, v), 16, 0).items()}
    misread = [cache.reshape(2, 256, 16, 4, 128).swapaxes(2, 3).reshape(cache.shape) for cache in (k, v)]
    return case(q, k, v, decode(q, *misread)[0], file, kv_layout="HND")


@fault("attention", "jax-js 180", tolerance=VLLM, expected=SEEN + "query heads read KV head h mod 2; expected h div 4")
def kv_heads_tiled():
    """Query head h reads KV head h mod G, as if KV heads were tiled and not repeated."""
    q, k, v = drawn()
    return case(q, k, v, decode(q, k, v, kv_heads=lambda query_heads, kv_heads: np.arange(query_heads) % kv_heads)[0])


@fault("attention", "transformers 39408", "zml 763", tolerance=VLLM, expected=SEEN)
def window_one_too_wide():
    """A sliding window of 1,024 tokens is passed on as that many tokens before the query's own: 1,025 are seen."""
    q, k, v = drawn()

    def last(count):
        return lambda q, k, v, *rest: decode(q, k[:, -count:], v[:, -count:], *rest)
    return case(q, k, v, last(1025)(q, k, v)[0], step=last(1024), causal="true", window_left=1023)


@fault("attention", "CUTLASS 2336", "ONNX 8068", tolerance=VLLM, expected=SEEN)
def causal_mask_top_left():
    """The causal mask of 16 queries on 1,040 tokens starts at the first token: no query sees the 1,024 cached ones."""
    q, k, v = drawn(batch=1, tokens=1040)
    q = stored(np.random.default_rng(2).standard_normal((16, 8, 128)), "BF16")
    return case(q, k[0], v[0], prefill(q, k[0, :16], v[0, :16])[0], step=prefill, causal="true")


@fault("attention", "pegainfer 291", tolerance=VLLM, expected=SEEN)
def page_too_many():
    """A page table holds the page that the next token will need: one page of stale entries is attended to."""
    q, k, v = drawn(tokens=2064)
    file = in_pages((k[:, :2048], v[:, :2048]), 16, 0)
    return case(q, k[:, :2048], v[:, :2048], decode(q, k, v)[0], file)


@fault("attention", "vLLM 53856", "vLLM 936", "FlashAttention 1745", tolerance=VLLM, expected=SEEN + r"rows are not finite")
def nan_in_unwritten_slots():
    """Unwritten slots of the last page have the weight 0, but NaN as values, and 0 x NaN is NaN."""
    q, k, v = drawn(tokens=4090)
    wrong = decode(q, k, v)[0] + np.float32(0) * np.float32(np.nan)
    return case(q, k, v, wrong, in_pages((k, v), 16, np.nan))


@fault("attention", "vLLM 52156", "vllm-metal 550", "imp 1345", tolerance=VLLM, expected=SEEN + r"gain 1..*; entry 0 is missing")
def sinks_dropped():
    """Learned attention sinks are left out of the denominator. (A sink is a token whose value is 0.)"""
    q, k, v = drawn()
    logits = np.random.default_rng(2).uniform(6, 8, (2, 2, 4))
    keys = [[np.linalg.pinv(q[b, 4 * g:4 * g + 4] / np.sqrt(128)) @ logits[b, g] for g in range(2)] for b in range(2)]
    with_sink = np.concatenate([stored(keys, "BF16")[:, None], k], axis=1), np.concatenate([0 * v[:, :1], v], axis=1)
    return case(q, *with_sink, decode(q, k, v)[0])


# ---- softmax

def padded_keys(tokens, padding):
    """Of so many tokens the last ones are padding: keys of zeros, which are not masked."""
    q, k, v = drawn(tokens=tokens)
    k[:, tokens - padding:], v[:, tokens - padding:] = 0, 0
    return case(q, k[:, :-padding], v[:, :-padding], decode(q, k, v)[0])


@fault("attention", "rocMLIR 1258", "TensorRT-LLM 18111", tolerance=VLLM, expected=SEEN + r"gain 0.96.*; outputs are 0.96")
def padding_in_the_denominator():
    """1,930 tokens are padded to 2,048 by keys of zeros, which are not masked: each adds e^0 to the denominator."""
    return padded_keys(2048, 118)


@fault("attention", "ipex-llm 12619", tolerance=VLLM, expected=SEEN + r"logits are scaled by 0.791")
def scale_of_the_padded_head_dim():
    """A head_dim of 80 is padded to 128, and logits are divided by the square root of 128."""
    q, k, v = drawn(head_dim=80)
    return case(q, k, v, decode(q, k, v, 1 / np.sqrt(128))[0])


@fault("attention", "FlashAttention 2082", "FlashInfer 4267", tolerance=FLASHINFER, expected=SEEN + r"gain 0.00.*; rows are zero")
def row_maximum_stuck_at_zero():
    """The first tile is masked, and the running maximum begins at 0: logits near -130 underflow to outputs of 0."""
    class Stuck(Kernel):
        def part(self, queries, keys, values, scale):
            logits = (queries @ keys.T) * np.float32(scale)
            maximum = np.maximum(0, logits.max(axis=1))
            weights = np.exp(logits - maximum[:, None])
            total = np.maximum(weights.sum(axis=1), np.float32(1e-30))
            return weights @ values / total[:, None], maximum, total
    q, k, v = drawn(tokens=1024)
    q[..., 0], k[..., 0] = 38, -39
    return case(q, k, v, decode(q, k, v, kernel=Stuck())[0])


@fault("attention", "1bit-MONSTER 495", tolerance=VLLM, expected=SEEN)
def divided_at_every_tile():
    """The output is divided by the running denominator at every tile, and not once at the end."""
    class Divided(Kernel):
        def part(self, queries, keys, values, scale):
            total, output = np.float32(0), np.zeros(queries.shape, np.float32)
            for first in range(0, len(keys), self.tile):
                weights = np.exp((queries @ keys[first:first + self.tile].T) * np.float32(scale))
                total = total + weights.sum(axis=1)
                output = (output + weights @ values[first:first + self.tile]) / total[:, None]
            return output, 0 * total, total
    q, k, v = drawn(tokens=2048)
    return case(q, k, v, decode(q, k, v, kernel=Divided(tile=128))[0])


# ---- parts of the cache, and their merge

@fault("attention", "FlashInfer 50", tolerance=FLASHINFER, expected=SEEN)
def split_weights_not_stored():
    """Parts store their log-sum-exp only if the caller wants it: otherwise the merge takes all parts for equal."""
    class Equal(Kernel):
        def merged(self, parts):
            return super().merged([(output, 0 * maximum, 0 * total + 1) for output, maximum, total in parts])
    q, k, v = drawn()
    return case(q, k, v, decode(q, k, v, kernel=Equal(**vars(TYPICAL)))[0])


@fault("attention", "SGLang 35045", "SGLang 40903", tolerance=VLLM, expected=SEEN)
def merge_in_the_wrong_base():
    """The log-sum-exps of 3,072 cached and 64 new tokens are in base 2, the merge takes them for natural ones."""
    class Mixed(Kernel):
        def slices(self, tokens):
            return [slice(0, 3072), slice(3072, tokens)]

        def merged(self, parts):
            parts = [(output, maximum + np.log2(total), 0 * total + 1) for output, maximum, total in parts]
            return Kernel(base2=False).merged(parts)
    q, k, v = drawn(tokens=3136)
    return case(q, k, v, decode(q, k, v, kernel=Mixed(**vars(TYPICAL)))[0])


@fault("attention", "vLLM's FlashAttention 176", tolerance=VLLM, expected=SEEN)
def merged_onto_the_first_sequence():
    """The stride of the batch is 0 in the merge: every sequence's output is written to the first one's."""
    q, k, v = drawn(batch=3)
    right = decode(q, k, v)[0]
    return case(q, k, v, np.concatenate([right[-1:], 0 * right[1:]]))


# ---- output

@fault("attention", "mlir-air 1606", "mlir-air 1600", tolerance=MLIR_AIR, expected=SEEN)
def output_accumulated_in_bf16():
    """The running output is rounded to BF16 after every token."""
    q, k, v = drawn()
    keys, values = (cache.repeat(4, axis=2).swapaxes(0, 1) for cache in (k, v))  # [n, batch, H, d]
    # in double precision: the same figures on every machine
    logits = (keys.astype(float) * q).sum(axis=-1) / np.sqrt(128)
    weights = np.exp(logits - logits.max(axis=0))
    weights /= weights.sum(axis=0)
    output = np.zeros_like(q)
    for weight, value in zip(weights, values):
        output = stored(output + weight[..., None] * value, "BF16")
    return case(q, k, v, output)


@fault("attention", "FlashInfer 4299", tolerance=FLASHINFER, expected=SEEN)
def tail_of_the_head_dim():
    """Of a head_dim of 72 the kernel computes 64, whole vectors of 16: products q.k lack the tail, so does the output."""
    q, k, v = drawn(head_dim=72)
    out, _ = decode(q[..., :64], k[..., :64], v, 1 / np.sqrt(72))
    out[..., 64:] = 0
    return case(q, k, v, out)


@fault("attention", "KernelBench 165", tolerance=KERNEL_BENCH, expected=SEEN + r"gain 0.00.*; rows are zero")
def zeros():
    """The output is never written."""
    q, k, v = drawn(batch=1, tokens=16384, query_heads=4, kv_heads=1, head_dim=64)
    return case(q, k, v, np.zeros_like(q))
