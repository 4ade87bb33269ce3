"""Small random models of the Llama family, written as checkpoints and run in double precision."""
import json
import struct

import numpy as np

from independent.llama import Llama
from support.kvbound_cli import encode, file_bytes

# A weight's name in a Hugging Face checkpoint and in a GGUF file, without a layer's prefix and ".weight".
LAYER_NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
               "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
               "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
               "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
GGML_TYPES = {"F32": 0, "F16": 1, "BF16": 30}


class TinyModel(Llama):
    """config   fields of config.json
    weights  {Hugging Face name: float64 array that the stored type holds exactly}
    dtype    of all matrices; vectors are F32 in GGUF files
    """

    def __init__(self, family="llama", layers=2, model_dim=24, heads=4, kv_heads=2, head_dim=8, feed_forward=40, vocabulary=64,
                 tied=False, dtype="F32", seed=1, **fields):
        self.dtype = dtype
        self.config = {"model_type": family, "num_hidden_layers": layers, "hidden_size": model_dim, "num_attention_heads": heads,
                       "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": feed_forward,
                       "vocab_size": vocabulary, "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "hidden_act": "silu",
                       "tie_word_embeddings": tied, "max_position_embeddings": 512, **fields}
        super().__init__(self.config, {})
        random = np.random.default_rng(seed)

        def add(name, *shape, centre=0.0, spread=1.0):
            numbers = centre + spread * random.standard_normal(shape)
            self.weights[name] = self.rounded(numbers)
        add("model.embed_tokens.weight", vocabulary, model_dim)
        for layer in range(layers):
            def add_own(name, *shape, layer=layer, **how):
                add(f"model.layers.{layer}.{name}", *shape, **how)
            for name, rows, cols in (("self_attn.q_proj", heads * head_dim, model_dim),
                                     ("self_attn.k_proj", kv_heads * head_dim, model_dim),
                                     ("self_attn.v_proj", kv_heads * head_dim, model_dim),
                                     ("self_attn.o_proj", model_dim, heads * head_dim),
                                     ("mlp.gate_proj", feed_forward, model_dim), ("mlp.up_proj", feed_forward, model_dim),
                                     ("mlp.down_proj", model_dim, feed_forward)):
                add_own(f"{name}.weight", rows, cols, spread=cols**-0.5)
                if family == "qwen2" and name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
                    add_own(f"{name}.bias", rows)
            for name in ("input_layernorm", "post_attention_layernorm"):
                add_own(f"{name}.weight", model_dim, centre=1, spread=0.1)
            if family == "qwen3":
                for name in ("self_attn.q_norm", "self_attn.k_norm"):
                    add_own(f"{name}.weight", head_dim, centre=1, spread=0.1)
        add("model.norm.weight", model_dim, centre=1, spread=0.1)
        if not tied:
            add("lm_head.weight", vocabulary, model_dim)

    def rounded(self, numbers):
        raw = encode(numbers, self.dtype)
        if self.dtype == "BF16":
            return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(float).reshape(numbers.shape)
        return np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[self.dtype]).astype(float).reshape(numbers.shape)

    # Checkpoints

    def tensors_bytes(self, names):
        header, data = {}, b""
        for name in names:
            raw = encode(self.weights[name], self.dtype)
            header[name] = {"dtype": self.dtype, "shape": list(self.weights[name].shape),
                            "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        return file_bytes({"__metadata__": {"format": "pt"}, **header}, data)

    def write_folder(self, folder, shards=1):
        """A Hugging Face checkpoint; returns the folder."""
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config), "utf-8")
        names = sorted(self.weights)
        if shards == 1:
            (folder / "model.safetensors").write_bytes(self.tensors_bytes(names))
            return folder
        weight_map = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            (folder / file).write_bytes(self.tensors_bytes(names[shard::shards]))
            weight_map |= dict.fromkeys(names[shard::shards], file)
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}), "utf-8")
        return folder

    def neighbours(self, rows):
        """Rows of a query or key projection in GGUF's order for llama: RoPE's pairs side by side."""
        half = self.config["head_dim"] // 2
        heads = rows.reshape(-1, 2, half, *rows.shape[1:])
        return np.swapaxes(heads, 1, 2).reshape(rows.shape)

    def gguf_metadata(self):
        """{key: (type, value)}"""
        c, family = self.config, self.config["model_type"]
        own = {"block_count": (4, c["num_hidden_layers"]), "embedding_length": (4, c["hidden_size"]),
               "feed_forward_length": (4, c["intermediate_size"]), "attention.head_count": (4, c["num_attention_heads"]),
               "attention.head_count_kv": (4, c["num_key_value_heads"]), "attention.key_length": (4, c["head_dim"]),
               "attention.value_length": (4, c["head_dim"]), "rope.dimension_count": (4, c["head_dim"]),
               "context_length": (4, c["max_position_embeddings"]), "rope.freq_base": (6, c["rope_theta"]),
               "attention.layer_norm_rms_epsilon": (6, c["rms_norm_eps"])}
        return {"general.architecture": (8, family), "general.name": (8, "tiny"),
                **{f"{family}.{name}": value for name, value in own.items()}}

    def gguf_tensors(self):
        """{name: (ggml type, shape in C order, bytes)}"""
        names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                 "lm_head.weight": "output.weight"}
        tensors = {}
        for name, array in self.weights.items():
            if name.startswith("model.layers."):
                _, _, layer, rest = name.split(".", 3)
                stem, suffix = rest.rsplit(".", 1)
                if self.config["model_type"] == "llama" and stem in ("self_attn.q_proj", "self_attn.k_proj"):
                    array = self.neighbours(array)
                called = f"blk.{layer}.{LAYER_NAMES[stem]}.{suffix}"
            else:
                called = names[name]
            dtype = self.dtype if array.ndim == 2 else "F32"
            tensors[called] = GGML_TYPES[dtype], array.shape, encode(array, dtype)
        return tensors

    def gguf_parts(self, parts):
        """{file's name: bytes} of a model in so many files."""
        tensors, files = list(self.gguf_tensors().items()), {}
        for part in range(parts):
            own = {"split.no": (4, part), "split.count": (4, parts), "split.tensors.count": (5, len(tensors))}
            metadata = {**(self.gguf_metadata() if part == 0 else {}), **own}
            files[f"model-{part + 1:05}-of-{parts:05}.gguf"] = gguf_bytes(metadata, dict(tensors[part::parts]))
        return files

    def write_gguf(self, path):
        path.write_bytes(gguf_bytes(self.gguf_metadata(), self.gguf_tensors()))
        return path


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_bytes(metadata, tensors, alignment=32, version=3):
    """metadata  {key: (type, number or text, or bytes that are written as they are)}
    tensors   {name: (ggml type, shape in C order, bytes)}
    """
    formats = {4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 12: "<d"}
    file = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, (kind, value) in metadata.items():
        raw = value if isinstance(value, bytes) else gguf_text(value) if kind == 8 else struct.pack(formats[kind], value)
        file += gguf_text(key) + struct.pack("<I", kind) + raw
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        data += bytes(-len(data) % alignment)
        file += gguf_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, len(data))
        data += raw
    return file + bytes(-len(file) % alignment) + data
