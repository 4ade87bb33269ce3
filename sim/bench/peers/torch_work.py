"""What bench_torch.py times: the arguments of every operation, drawn at random, and its call of torch_operations.py."""
import math
from dataclasses import dataclass, replace

DTYPES = {
    "bf16": ("BF16", "bfloat16"), "fp16": ("F16", "float16"), "fp32": ("F32", "float32"),
    "fp64": ("F64", "float64")
}
WINDOW, SINKS, POOL = 32, 4, 7
REFERENCE_STEPS, DEVICE_STEPS = 8, 16


@dataclass
class Work:
    """An operation's arguments, and the function that is timed."""
    arguments: tuple
    run: object
    steps: int = 1  # decode steps of a call: seconds are those of one
    policy: str = None


class Setup:
    """Draws the random arguments of operations."""

    def __init__(self, torch, shape, options):
        self.torch, self.shape, self.device = torch, shape, options.device
        self.dtype = getattr(torch, DTYPES[options.dtype][1])
        self.random = torch.Generator(options.device).manual_seed(options.seed)

    def numbers(self, *sizes):
        """Normal numbers, one in 1024 of which is 16 times as large, as `kvbound bench` has them."""
        normal = self.torch.randn(sizes, generator=self.random, device=self.device, dtype=self.dtype)
        spikes = self.torch.randint(1024, sizes, generator=self.random, device=self.device) == 0
        return normal.masked_scatter_(spikes, 16 * normal[spikes])

    def scores(self, *sizes):
        normal = self.torch.randn(sizes, generator=self.random, device=self.device, dtype=self.dtype)
        return (normal if self.dtype.itemsize > 2 else normal.float()).mul_(8).exp_()

    def keys(self, rows=None):
        return self.numbers(self.shape.kv_heads, rows or self.shape.tokens, self.shape.head_dim)

    def queries(self, window=WINDOW):
        return self.numbers(self.shape.query_heads, window, self.shape.head_dim)

    def projection(self):
        shape = self.shape
        return self.numbers(shape.query_heads, shape.head_dim, shape.model_dim) / math.sqrt(shape.model_dim)

    def tensors(self):
        """keys, values, queries, projection of a layer"""
        return self.keys(), self.keys(), self.queries(), self.projection()

    @property
    def scale(self):
        return self.shape.head_dim**-0.5

    @property
    def candidates(self):
        """How many entries are selected from, and how many of them."""
        return self.shape.tokens - WINDOW, self.shape.budget - WINDOW


def head_norms(order):
    def prepare(ops, setup):
        values, projection = setup.keys()[0].clone(), setup.projection()[0].clone()
        return Work((values, projection), lambda v, w: ops.projected_value_norms(v, w, order))

    return prepare


def layer_norms(ops, setup):
    return Work((setup.keys(), setup.projection()), ops.layer_norms)


def window_attention(ops, setup):
    return Work((setup.queries(), setup.keys()), lambda q, k: ops.window_attention(q, k, setup.scale).mean(1))


def selection(ops, setup):
    tokens = 4 * setup.shape.tokens
    return Work((setup.scores(1, tokens),), lambda scores: ops.select_top(scores, tokens // 5))


def select_top(ops, setup):
    entries, k = setup.candidates
    return Work((setup.scores(setup.shape.kv_heads, entries),), lambda scores: ops.select_top(scores, k))


def select_critical(ops, setup):
    entries, k = setup.candidates
    scores, stage_two = (setup.scores(setup.shape.kv_heads, entries) for _ in range(2))
    return Work((scores, stage_two), lambda a, b: ops.select_critical(a, b, k))


def max_pool(ops, setup):
    return Work((setup.scores(setup.shape.query_heads, setup.shape.tokens),),
                lambda scores: ops.max_pool(scores, POOL))


def reduce_group(ops, setup):
    group = setup.shape.query_heads // setup.shape.kv_heads
    return Work((setup.scores(setup.shape.query_heads, setup.shape.tokens),),
                lambda scores: ops.group_mean(scores, group))


def stage_two_scores(ops, setup):
    group = setup.shape.query_heads // setup.shape.kv_heads
    scores, norms = (setup.scores(setup.shape.query_heads, setup.shape.tokens) for _ in range(2))
    return Work((scores, norms), lambda a, b: ops.stage_two_scores(a, b, group))


def compact(ops, setup):
    kept = ops.select_top(setup.scores(setup.shape.kv_heads, setup.shape.tokens), setup.shape.budget)
    return Work((setup.keys(), setup.keys(), kept),
                lambda k, v, kept: (ops.compact(k, kept), ops.compact(v, kept)))


def nearest_key(ops, setup):
    keys = setup.keys()[0]
    leaving, staying = keys[setup.shape.budget:].clone(), keys[:setup.shape.budget].clone()
    return Work((leaving, staying), ops.nearest_keys)


def nearest_keys(ops, setup):
    keys = setup.keys()
    leaving, staying = keys[:, setup.shape.budget:].clone(), keys[:, :setup.shape.budget].clone()
    return Work((leaving, staying), ops.nearest_keys)


def attention(entries_of):
    def prepare(ops, setup):
        entries = entries_of(setup.shape)
        return Work((setup.queries(1)[:, 0].clone(), setup.keys(entries), setup.keys(entries)),
                    lambda q, k, v: ops.attention(q, k, v, setup.scale))

    return prepare


def compress(ops, setup, policy):
    def run(*tensors):
        cache = ops.compress(ops.Layer(*tensors, setup.scale), ops.POLICIES[policy], setup.shape.budget)
        return cache.keys, cache.values, cache.positions

    return Work(setup.tensors(), run, policy=policy)


def steps(number, only_policy=None):
    """Decode steps one after the other, from a cache of 20 %."""
    def prepare(ops, setup, policy=only_policy):
        rules, tensors = ops.POLICIES[policy], setup.tensors()
        cache = ops.compress(ops.Layer(*tensors, setup.scale), rules, setup.shape.budget)
        key, value, queries = tensors[0][:, 0].clone(), tensors[1][:, 0].clone(), tensors[2][:, 0].clone()

        def run(keys, values, key, value, queries):
            after = replace(cache, keys=keys, values=values)
            for _ in range(number):
                output, after, _ = ops.step(after, rules, (key, value), queries, setup.scale)
            return (output,)

        return Work((cache.keys, cache.values, key, value, queries), run, steps=number,
                    policy=None if only_policy else policy)

    return prepare


BY_POLICY = ("compress", "step")
OPERATIONS = {
    "reference": {
        "projected-value-norms": head_norms(1), "projected-value-norms-l2": head_norms(2),
        "window-attention": window_attention, "selection": selection, "nearest-key": nearest_key,
        "compress": compress, "step-attention": steps(REFERENCE_STEPS, f"h2o:sinks={SINKS}")
    }, "device": {
        "attention": attention(lambda shape: shape.tokens),
        "attention-compressed": attention(lambda shape: shape.budget), "window-attention": window_attention,
        "max-pool": max_pool, "reduce-group": reduce_group, "projected-value-norms": layer_norms,
        "stage-two-scores": stage_two_scores, "select-top": select_top, "select-critical": select_critical,
        "compact": compact, "nearest-keys": nearest_keys, "compress": compress, "step": steps(DEVICE_STEPS)
    }
}
