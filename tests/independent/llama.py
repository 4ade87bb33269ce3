"""The forward pass of small models of the Llama family: NumPy, straight from the definitions.

Families: llama and mistral; qwen2 (biases of q, k and v); qwen3 (RMSNorm of every head's query and key). Weights have the
names and shapes of Hugging Face checkpoints: y = x W^T. Attention is in double precision, all else in the weights' type.
"""
import numpy as np

from independent.scores import attention_weights


class Llama:
    """config   fields of config.json
    weights  {Hugging Face name: array}
    """

    def __init__(self, config, weights):
        self.config, self.weights = config, weights

    def in_precision(self, dtype, change=lambda weight: weight):
        """The same model with weights of this type, after `change`."""
        return Llama(self.config, {name: change(weight).astype(dtype) for name, weight in self.weights.items()})

    def layer(self, layer, name):
        return self.weights.get(f"model.layers.{layer}.{name}")

    @property
    def head_dim(self):
        return self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]

    def frequencies(self):
        """RoPE's angles per position: [head_dim / 2]"""
        c = self.config
        rope = {"rope_theta": c.get("rope_theta"), **(c.get("rope_scaling") or {}), **(c.get("rope_parameters") or {})}
        half, kind = self.head_dim // 2, rope.get("rope_type", "default")
        frequencies = rope["rope_theta"] ** (-np.arange(half) / half)
        if kind == "default":
            return frequencies
        if kind == "linear":
            return frequencies / rope["factor"]
        if kind != "llama3":
            raise ValueError(f"RoPE's {kind} is not computed")
        context, low, high = (rope[name] for name in (
            "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
        kept = np.clip((context * frequencies / (2 * np.pi) - low) / (high - low), 0, 1)
        return (1 - kept) * frequencies / rope["factor"] + kept * frequencies

    def rotated(self, heads, first=0):
        """heads [tokens, heads, head_dim], at positions first, first + 1, ..."""
        angles = (first + np.arange(len(heads)))[:, None] * self.frequencies()
        cos, sin = (part[:, None].astype(heads.dtype) for part in (np.cos(angles), np.sin(angles)))
        a, b = np.split(heads, 2, axis=-1)
        return np.concatenate((a * cos - b * sin, a * sin + b * cos), -1)

    def norm(self, x, weight):
        size = (x.astype(float)**2).mean(-1, keepdims=True) + self.config["rms_norm_eps"]
        return (x / np.sqrt(size)).astype(x.dtype) * weight

    def embedded(self, tokens):
        return self.weights["model.embed_tokens.weight"][np.asarray(tokens)]

    def heads(self, layer, x, first=0):
        """Query, key and value of hidden states x [tokens, model_dim] at positions first, first + 1, ...: [tokens, heads,
        head_dim]"""
        normed, heads = self.norm(x, self.layer(layer, "input_layernorm.weight")), {}
        for name in ("query", "key", "value"):
            rows = normed @ self.layer(layer, f"self_attn.{name[0]}_proj.weight").T
            bias = self.layer(layer, f"self_attn.{name[0]}_proj.bias")
            heads[name] = (rows if bias is None else rows + bias).reshape(len(x), -1, self.head_dim)
            weight = self.layer(layer, f"self_attn.{name[0]}_norm.weight")
            if weight is not None:
                heads[name] = self.norm(heads[name], weight)
        return {name: rows if name == "value" else self.rotated(rows, first) for name, rows in heads.items()}

    def layer_output(self, layer, x, output):
        """The hidden states after the layer: x before it, output [tokens, heads, head_dim] of its attention."""
        x = x + output.astype(x.dtype).reshape(len(x), -1) @ self.layer(layer, "self_attn.o_proj.weight").T
        normed = self.norm(x, self.layer(layer, "post_attention_layernorm.weight"))
        gate, up = (normed @ self.layer(layer, f"mlp.{name}_proj.weight").T for name in ("gate", "up"))
        return x + (gate / (1 + np.exp(-gate)) * up) @ self.layer(layer, "mlp.down_proj.weight").T

    def logits(self, x):
        tied = self.config.get("tie_word_embeddings")
        unembedding = self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        return self.norm(x, self.weights["model.norm.weight"]) @ unembedding.T

    def run(self, tokens, seen=None, hidden=None):
        """Returns the logits [tokens, vocabulary] and per layer {query, key, value, attention_output}: [heads, tokens,
        head_dim], without rounding to a stored type.

        seen     per layer and KV head, which keys queries may attend to, beside causality: booleans [tokens, tokens]
        hidden   a list, to which the hidden states after each layer are appended: [tokens, model_dim]
        """
        layers, x = [], self.embedded(tokens)
        for layer in range(self.config["num_hidden_layers"]):
            heads = {name: rows.swapaxes(0, 1) for name, rows in self.heads(layer, x).items()}
            group = len(heads["query"]) // len(heads["key"])
            output = np.stack([
                attention_weights(query.astype(float), heads["key"][head // group].astype(float), 0, self.head_dim**-0.5,
                                  True if seen is None else seen[layer][head // group]) @ heads["value"][head // group]
                for head, query in enumerate(heads["query"])])
            x = self.layer_output(layer, x, output.swapaxes(0, 1))
            layers.append({**heads, "attention_output": output})
            if hidden is not None:
                hidden.append(x)
        return self.logits(x), layers


def log_probabilities(logits):
    """ln of the softmax over the last axis, in double precision."""
    logits = logits.astype(float)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
