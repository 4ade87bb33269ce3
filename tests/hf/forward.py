"""A Llama-like model's forward pass in double precision, with a bound for what single precision may make of each number.

Independent of transformers and of kvbound: NumPy on the checkpoint's files, all tokens at once without a cache. Every
tensor of a trace is predicted from the tensors recorded before it, as the model had them: worst cases that passed through
several softmax in a row would bound nothing. A quantity is a pair (value, error): the number that float32 arithmetic
computes, in any order of summation, is within `error` of `value`.
u = 2^-24 and gamma(k) = k u / (1 - k u), a sum of k products (Higham, Accuracy and Stability, section 3.1); counts are one
or two larger than needed, which covers the errors of double precision here.

Families: llama and mistral, qwen2 (biases of q, k, v), qwen3 (RMSNorm of every head's query and key).
"""
import json
import struct

import numpy as np

U = 2.0**-24
BITS = {"F32": 23, "F16": 10, "BF16": 7}  # of the stored significands
LEAST = {"F32": -126, "F16": -14, "BF16": -126}  # exponents of the smallest normal numbers


def gamma(k):
    return k * U / (1 - k * U)


def read_safetensors(path):
    """The file's metadata and its tensors in double precision (integers as they are)."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header, tensors = json.loads(data[8:start]), {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        raw = data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":
            array = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        else:
            array = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2", "I32": "<i4", "I64": "<i8"}[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"]).astype(float if array.dtype.kind == "f" else int)
    return header.get("__metadata__", {}), tensors


def read_trace(path):
    """A trace's metadata and tensors, of one file or of an index and its shards."""
    if not path.name.endswith(".index.json"):
        return read_safetensors(path)
    index, tensors = json.loads(path.read_text()), {}
    for shard in sorted(set(index["weight_map"].values())):
        tensors.update(read_safetensors(path.with_name(shard))[1])
    return index["metadata"], tensors


def rounded(array, dtype):
    """Each number rounded to the stored type, to nearest even."""
    _, exponent = np.frexp(array)
    unit = np.exp2(np.maximum(exponent - 1, LEAST[dtype]) - BITS[dtype])
    return np.rint(array / unit) * unit


def stored(pair, dtype):
    """Rounded to the stored type. Rounding is monotone, so that the ends of the interval bound what is inside."""
    value, error = pair
    if dtype == "F32":
        return value, error + U * (np.abs(value) + error)
    result = rounded(value, dtype)
    return result, np.maximum(rounded(value + error, dtype) - result, result - rounded(value - error, dtype))


def linear(pair, weight, bias=None):
    """x W^T + b for a row x: [tokens, in] -> [tokens, out]."""
    value, error = pair
    result = value @ weight.T
    bound = error @ np.abs(weight).T + gamma(weight.shape[1] + 2) * ((np.abs(value) + error) @ np.abs(weight).T)
    if bias is not None:
        result = result + bias
        bound = bound + U * (np.abs(result) + bound)
    return result, bound


def product(first, second):
    (a, e), (b, f) = first, second
    bound = np.abs(a) * f + e * np.abs(b) + e * f
    return a * b, bound + U * (np.abs(a * b) + bound)


def total(first, second):
    (a, e), (b, f) = first, second
    return a + b, e + f + U * (np.abs(a + b) + e + f)


def rms_norm(pair, weight, epsilon):
    """x / sqrt(mean(x^2) + epsilon) * weight, over the last axis; rsqrt is taken to be within 4 u."""
    value, error = pair
    mean = (value**2).mean(-1, keepdims=True) + epsilon
    share = (2 * np.abs(value) * error + error**2).mean(-1, keepdims=True) / mean + gamma(value.shape[-1] + 3)
    share = np.minimum(share, 0.99)
    scale = 1 / np.sqrt(mean)
    scale_error = scale * (1 / np.sqrt(1 - share) - 1 + 4 * U)
    return product(product(pair, (scale, scale_error)), (weight, np.zeros_like(weight)))


def frequencies(half, rope):
    """The angles per position, base^(-i/half) scaled as `rope_parameters` say, and their errors relative to u.

    float32 forms the exponent, the power and its inverse: u each, the power 4 u, and ln(base) times the exponent's.
    linear   divides all by `factor`: u.
    llama3   divides those whose wavelength 2 pi / frequency is above original / low_freq_factor by `factor`, leaves those
             below original / high_freq_factor, and interpolates between: with t = (original / wavelength - low) /
             (high - low), frequency ((1 - t) / factor + t). t's error is 6 u times its terms, (original / wavelength +
             low) / (high - low), and counts once: t's factor, 1 - 1 / factor, is at most the sum's size times `factor`.
    """
    exponent = np.arange(half) / half
    frequency, errors = rope["rope_theta"]**-exponent, np.log(rope["rope_theta"]) * exponent + 6
    kind, factor = rope.get("rope_type", "default"), rope.get("factor", 1.0)
    if kind == "linear":
        return frequency / factor, errors + 1
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        periods = rope["original_max_position_embeddings"] * frequency / (2 * np.pi)
        share = np.clip((periods - low) / (high - low), 0, 1)
        between = (share > 0) & (share < 1)
        scale = (1 - share) / factor + share
        own = (6 + errors) * (periods + low) / (high - low) * (1 - 1 / factor) / scale
        return frequency * scale, errors + 2 + np.where(between, own + 4, 0)
    assert kind == "default", kind
    return frequency, errors


def rope(pair, parameters):
    """[heads, tokens, head_dim]: pairs (i, i + head_dim/2) turned by position * frequency i, whose product rounds once."""
    value, error = pair
    half = value.shape[2] // 2
    frequency, errors = frequencies(half, parameters)
    angle = np.arange(value.shape[1])[:, None] * frequency
    angle_error = angle * (errors + 1) * U
    cosine, sine = ((f(angle), angle_error + 4 * U) for f in (np.cos, np.sin))
    first, second = (value[..., :half], error[..., :half]), (value[..., half:], error[..., half:])
    a, e = total(product(first, cosine), product((-second[0], second[1]), sine))
    b, f = total(product(second, cosine), product(first, sine))
    return np.concatenate([a, b], axis=2), np.concatenate([e, f], axis=2)


def attention(query, key, value, scale):
    """Causal attention of one head: three pairs [tokens, head_dim] -> a pair [tokens, head_dim]."""
    (q, qe), (k, ke), (v, ve) = query, key, value
    tokens, dim = q.shape
    visible = np.tri(tokens, dtype=bool)
    logits = np.where(visible, scale * (q @ k.T), -np.inf)
    sums = (np.abs(q) + qe) @ (np.abs(k) + ke).T
    errors = np.where(visible, scale * (qe @ np.abs(k).T + np.abs(q) @ ke.T + qe @ ke.T + gamma(dim + 3) * sums), 0)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    # exp turns the logits' errors, and the roundings of subtracting the maximum, into factors.
    subtracted = U * np.where(visible, np.abs(logits - logits.max(1, keepdims=True)), 0)
    own = errors + subtracted
    factor = np.expm1(own + own.max(1, keepdims=True)) + gamma(tokens + 12)
    weight_errors = weights * factor * (1 + factor)
    bound = weight_errors @ np.abs(v) + (weights + weight_errors) @ ve
    return weights @ v, bound + gamma(len(v) + 2) * ((weights + weight_errors) @ (np.abs(v) + ve))


def silu(pair):
    """g / (1 + exp(-g)), whose slope is at most 1.1."""
    value, error = pair
    result = value / (1 + np.exp(-value))
    return result, 1.1 * error + 8 * U * (np.abs(result) + 1.1 * error)


class Model:
    """A checkpoint's configuration and weights: config.json and model.safetensors in a folder."""

    def __init__(self, folder):
        config = json.loads((folder / "config.json").read_text())
        self.weights = read_safetensors(folder / "model.safetensors")[1]
        self.layers, self.epsilon = config["num_hidden_layers"], config["rms_norm_eps"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"]}

    def layer(self, l):
        prefix = f"model.layers.{l}."
        return {name.removeprefix(prefix): weight for name, weight in self.weights.items() if name.startswith(prefix)}

    def embedded(self, tokens):
        return exact(self.weights["model.embed_tokens.weight"][tokens])

    def projected(self, own, hidden, dtype):
        """The pairs of a layer's queries, keys and values [heads, tokens, head_dim], as they are stored."""
        normed, parts = rms_norm(hidden, own["input_layernorm.weight"], self.epsilon), {}
        for name, count in (("query", self.heads), ("key", self.kv_heads), ("value", self.kv_heads)):
            letter = f"self_attn.{name[0]}"
            part = linear(normed, own[f"{letter}_proj.weight"], own.get(f"{letter}_proj.bias"))
            part = tuple(half.reshape(len(half), count, self.dim).transpose(1, 0, 2) for half in part)
            if f"{letter}_norm.weight" in own:
                part = rms_norm(part, own[f"{letter}_norm.weight"], self.epsilon)
            parts[name] = stored(part if name == "value" else rope(part, self.rope), dtype)
        return parts


def exact(array):
    return array, np.zeros_like(array)


def first_layer(folder, tokens, dtype):
    """The pairs of layer 0's query, key and value."""
    model = Model(folder)
    parts = model.projected(model.layer(0), model.embedded(tokens), dtype)
    return {f"layers.0.{name}": pair for name, pair in parts.items()}


def forward(folder, tokens, dtype, recorded):
    """The pairs that a trace must hold if the tensors recorded before each are right, and the pair of logits.

    recorded   a trace's tensors, with the queries of all tokens
    returns    {f"layers.{l}.{key|value|query|attention_output}": [heads, tokens, head_dim]}, with W^O under
               output_projection; logits [tokens, vocabulary]
    """
    model, predicted = Model(folder), {}
    hidden = model.embedded(tokens)
    for l in range(model.layers):
        own = model.layer(l)
        predicted.update({f"layers.{l}.{name}": pair for name, pair in model.projected(own, hidden, dtype).items()})
        query, key, value = (recorded[f"layers.{l}.{name}"] for name in ("query", "key", "value"))
        groups = [h * model.kv_heads // model.heads for h in range(model.heads)]
        outputs = [attention(exact(query[h]), exact(key[g]), exact(value[g]), model.dim**-0.5)
                   for h, g in enumerate(groups)]
        predicted[f"layers.{l}.attention_output"] = tuple(np.stack(half) for half in zip(*outputs))
        projection = own["self_attn.o_proj.weight"]
        predicted[f"layers.{l}.output_projection"] = exact(rounded(projection.T, dtype))
        output = recorded[f"layers.{l}.attention_output"].transpose(1, 0, 2).reshape(len(tokens), -1)
        hidden = total(hidden, linear(exact(output), projection))
        normed = rms_norm(hidden, own["post_attention_layernorm.weight"], model.epsilon)
        gate = silu(linear(normed, own["mlp.gate_proj.weight"]))
        gated = product(gate, linear(normed, own["mlp.up_proj.weight"]))
        hidden = total(hidden, linear(gated, own["mlp.down_proj.weight"]))
    normed = rms_norm(hidden, model.weights["model.norm.weight"], model.epsilon)
    return predicted, linear(normed, model.weights.get("lm_head.weight", model.weights["model.embed_tokens.weight"]))
