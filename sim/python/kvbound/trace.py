"""Recorded prompts and decode steps of a model, read a layer at a time."""
import os

from kvbound import _native


class Layer:
    """One layer's numbers, float64 and read-only; what their files hold in 16 or 32 bits is widened.

    keys, values                [num_kv_heads, prompt_tokens, head_dim], after RoPE
    queries                     [num_qo_heads, window_queries, head_dim]: the prompt's last ones
    step_keys, step_values      [num_kv_heads, decode_tokens, head_dim]
    step_queries                [num_qo_heads, decode_tokens, head_dim]
    output_projection           [num_qo_heads * head_dim, model_dim]: W^O
    sm_scale                    logits are sm_scale * query . key
    index                       in its trace or model
    """

    def __init__(self, native):
        self._native = native

    def __getattr__(self, name):
        return getattr(self._native, name)

    def __dir__(self):
        return [*super().__dir__(), *(name for name in dir(self._native) if name[0] != "_")]


class Trace:
    """A trace (traces/README.md of the project has its format). Layers are read when they are asked for.

    path, model, source         texts
    layers, prompt_tokens, decode_tokens, window_queries
    num_qo_heads, num_kv_heads, head_dim, model_dim, sm_scale
    storage                     "F16", "BF16", "F32" or "F64": of keys and values
    layer_numbers               the model's own, of each layer
    tokens                      [prompt_tokens + decode_tokens] ids; empty if they were not recorded

    heads="query" opens it so that every query head has a cache of its own: keys and values are repeated for the query heads
    of a KV head, and num_kv_heads is num_qo_heads. What replay() and diff() are given decides for them.
    """

    def __init__(self, path, heads="kv"):
        self._native = _native.Trace(os.fspath(path), heads)

    def __getattr__(self, name):
        return getattr(self._native, name)

    def __dir__(self):
        return [*super().__dir__(), *(name for name in dir(self._native) if name[0] != "_")]

    def layer(self, index) -> Layer:
        """Layer `index` of the trace, from 0. Raises IndexError; InvalidInput for NaN or infinity in its numbers."""
        return Layer(self._native.layer(index))

    def __len__(self):
        return self.layers

    def __iter__(self):
        return map(self.layer, range(self.layers))

    def __repr__(self):
        return (f"<Trace {self.path}: {self.layers} layers, {self.num_qo_heads} query heads on {self.num_kv_heads} KV heads of "
                f"{self.head_dim}, {self.prompt_tokens} prompt tokens, {self.decode_tokens} decode steps>")


def open(path, heads="kv") -> Trace:  # noqa: A001: kvbound.open, as gzip.open
    """The Trace at `path`: a .safetensors file, or the *.index.json of its shards.

    heads   "kv", or "query": every query head has a cache of its own

    raises  InvalidInput for what is no trace, with the field, its place and what was expected; OSError
    """
    return Trace(path, heads)
