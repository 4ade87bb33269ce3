"""kvbound record: traces of small random models, compared with a second implementation in double precision; and checkpoints
and options that are refused.

usage: record_test.py KVBOUND      KVBOUND: the program's path
"""
import json
import struct
import subprocess

import numpy as np

from support import kvbound_cli
from support.kvbound_cli import INVALID, USAGE, WORLD, CommandLineTest
from support.tiny_model import TinyModel, gguf_bytes, gguf_text

PROMPT, STEPS, WINDOW = 20, 5, 7
TOKENS = np.random.default_rng(5).integers(0, 64, PROMPT)
NUMBERS = {"F32": "<f4", "F16": "<f2", "I64": "<i8"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
MODELS = {"llama": {}, "tied": {"tied": True}, "qwen2": {"family": "qwen2"}, "qwen3": {"family": "qwen3"},
          "single heads": {"kv_heads": 4}, "odd groups": {"heads": 9, "kv_heads": 3, "model_dim": 30},
          "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "llama3": {"rope_scaling": LLAMA3},
          "renamed": {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}},
          "mistral": {"family": "mistral", "sliding_window": None}}


def read_trace(path):
    """{tensor: float64 or int64 array}, and the metadata."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    metadata, tensors = header.pop("__metadata__"), {}
    for name, entry in header.items():
        raw = data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":
            array = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        else:
            array = np.frombuffer(raw, NUMBERS[entry["dtype"]])
        tensors[name] = array.astype(array.dtype if entry["dtype"] == "I64" else float).reshape(entry["shape"])
    return tensors, metadata


class RecordTest(CommandLineTest):
    def write_tokens(self, tokens=TOKENS):
        path = self.folder / "tokens.ids"
        path.write_text(" ".join(map(str, tokens)), "utf-8")
        return path

    def record(self, model, *options, tokens=TOKENS, steps=STEPS, window=WINDOW):
        out = self.folder / "trace.safetensors"
        self.passes("record", model, "--tokens", self.write_tokens(tokens), "--prompt", PROMPT, "--steps", steps, "--window",
                    window, *options, out)
        return read_trace(out)

    def require_equal_within_single_precision(self, found, expected, what):
        """Each number has passed through some hundred operations in single precision, each of which errs by at most 2^-24 of
        the numbers that it works on; they are no larger than the tensor's largest by more than the norms' factors allow."""
        self.assertLessEqual(np.abs(found - expected).max(), 1000 * 2**-24 * np.abs(expected).max(), what)
        self.assertGreater(np.abs(expected).max(), 0.1, what)


class Records(RecordTest):
    def require_trace_of(self, model, tensors, neighbours=False):
        tokens = tensors["tokens"]
        self.assertEqual(list(tokens[:PROMPT]), list(TOKENS))
        logits, layers = model.run(tokens)
        self.assertEqual(list(tokens[PROMPT:]), list(logits.argmax(-1)[PROMPT - 1:-1]), "greedy decoding")
        for layer, own in enumerate(layers):
            for name, expected in own.items():
                if name in ("query", "attention_output"):
                    expected = expected[:, PROMPT - WINDOW:]
                if neighbours and name in ("query", "key"):
                    half = expected.shape[-1] // 2
                    expected = expected.reshape(*expected.shape[:2], 2, half).swapaxes(-1, -2).reshape(expected.shape)
                found = tensors[f"layers.{layer}.{name}"]
                self.assertEqual(found.shape, expected.shape)
                self.require_equal_within_single_precision(found, expected, f"layer {layer} {name}")
            np.testing.assert_array_equal(tensors[f"layers.{layer}.output_projection"],
                                          model.layer(layer, "self_attn.o_proj.weight").T)

    def test_a_trace_is_what_the_model_computes(self):
        for name, options in MODELS.items():
            with self.subTest(name):
                model = TinyModel(**options)
                tensors, metadata = self.record(model.write_folder(self.folder / name), "--dtype", "F32")
                self.assertEqual(metadata["model"], name)
                self.require_trace_of(model, tensors)

    def test_a_gguf_file_gives_the_same(self):
        for family in ("llama", "qwen2", "qwen3"):
            with self.subTest(family):
                model = TinyModel(family=family, tied=family == "qwen3")
                tensors, metadata = self.record(model.write_gguf(self.folder / "model.gguf"), "--dtype", "F32")
                self.assertEqual(metadata["model"], "tiny")
                self.require_trace_of(model, tensors, neighbours=family == "llama")

    def test_what_is_not_needed_may_be_anything(self):
        """In both formats: types of tensors and of metadata, tensors elsewhere than a model has them, and text."""
        model = TinyModel()
        extra = {"x.ids": (26, (5,), bytes(20)), "mtp.weight": (20, (2, 32), bytes(36))}
        path = self.folder / "model.gguf"
        metadata = {**model.gguf_metadata(), "x.u64": (10, 2**64 - 1), "general.name": (8, struct.pack("<Q", 6) + b"Mod\xe8le"),
                    "x.nested": (9, struct.pack("<IQIQB", 9, 1, 0, 1, 7)), "llama.expert_count": (4, 0)}
        path.write_bytes(gguf_bytes(metadata, {**extra, **model.gguf_tensors()}) + bytes(4096))
        tensors, metadata = self.record(path, "--dtype", "F32")
        self.assertEqual(metadata["model"], "Mod\ufffdle")
        self.require_trace_of(model, tensors, neighbours=True)
        model.config["unneeded"] = [float("inf"), float("-inf"), float("nan")]
        folder = model.write_folder(self.folder / "model", shards=2)
        index = folder / "model.safetensors.index.json"
        document = json.loads(index.read_text("utf-8"))
        document["weight_map"].pop("model.norm.weight")
        document["weight_map"]["lm_head.old"] = "model-00001-of-00002.safetensors"
        document["weight_map"] |= {"model.embed_tokens.weight": "model-00002-of-00002.safetensors",
                                   "lm_head.weight": "model-00002-of-00002.safetensors"}
        index.write_text(json.dumps(document), "utf-8")
        self.require_trace_of(model, self.record(folder, "--dtype", "F32")[0])

    def test_the_output_matrix_of_tied_ones_alone(self):
        model = TinyModel(tied=True)
        expected, _ = self.record(model.write_folder(self.folder / "model"))
        model.weights["lm_head.weight"] = model.weights.pop("model.embed_tokens.weight")
        found, _ = self.record(model.write_folder(self.folder / "model"))
        np.testing.assert_array_equal(found["layers.1.key"], expected["layers.1.key"])

    def test_the_body_of_a_model_alone(self):
        model = TinyModel(tied=True)
        expected, _ = self.record(model.write_folder(self.folder / "model"))
        model.weights = {name.removeprefix("model."): array for name, array in model.weights.items()}
        model.weights["layers.2.mlp.extra"] = model.weights["layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4)
        found, _ = self.record(model.write_folder(self.folder / "model"))
        np.testing.assert_array_equal(found["layers.1.key"], expected["layers.1.key"])

    def test_biases_that_are_zero_and_those_of_gguf(self):
        model = TinyModel(family="qwen2")
        expected, _ = self.record(model.write_folder(self.folder / "model"))
        model.config |= {"model_type": "llama", "attention_bias": True}
        for layer in range(2):
            model.weights[f"model.layers.{layer}.self_attn.o_proj.bias"] = np.zeros(24)
        found, _ = self.record(model.write_folder(self.folder / "model"))
        np.testing.assert_array_equal(found["layers.1.key"], expected["layers.1.key"])
        model = TinyModel(family="qwen2")
        del model.weights["model.layers.0.self_attn.k_proj.bias"]
        found, _ = self.record(model.write_gguf(self.folder / "model.gguf"), "--dtype", "F32")
        model.weights["model.layers.0.self_attn.k_proj.bias"] = np.zeros(16)
        self.require_trace_of(model, found)

    def test_a_model_in_parts(self):
        model = TinyModel()
        for name, content in model.gguf_parts(3).items():
            (self.folder / name).write_bytes(content)
        self.require_trace_of(model, self.record(self.folder / "model-00001-of-00003.gguf", "--dtype", "F32")[0], neighbours=True)

    def test_llama_3_divides_frequencies_by_a_tensor(self):
        model = TinyModel(rope_scaling=LLAMA3)
        plain = TinyModel().frequencies()
        tensors = model.gguf_tensors()
        divisors = (plain / model.frequencies()).astype("<f4")
        tensors["rope_freqs.weight"] = 0, divisors.shape, divisors.tobytes()
        path = self.folder / "model.gguf"
        path.write_bytes(gguf_bytes(model.gguf_metadata(), tensors))
        self.require_trace_of(model, self.record(path, "--dtype", "F32")[0], neighbours=True)

    def test_shards_and_stored_types_give_the_same(self):
        for dtype in ("F32", "F16", "BF16"):
            with self.subTest(dtype):
                model = TinyModel(dtype=dtype)
                tensors, _ = self.record(model.write_folder(self.folder / dtype, shards=3), "--dtype", "F32")
                self.require_trace_of(model, tensors)

    def test_rounded_traces_can_be_recomputed(self):
        for dtype, ulp in (("F16", 2**-10), ("BF16", 2**-7)):
            with self.subTest(dtype):
                model = TinyModel(family="qwen2")
                tensors, _ = self.record(model.write_folder(self.folder / "model"), "--dtype", dtype)
                _, (first, _) = model.run(tensors["tokens"])
                error = np.abs(tensors["layers.0.key"] - first["key"]).max()
                self.assertLessEqual(error, ulp * np.abs(first["key"]).max())
                self.assertGreater(error, 2**-24)
                self.passes("inspect", "trace.safetensors", "--verify")

    def test_the_last_of_a_long_prompt_attends_to_all_of_it(self):
        tokens = np.random.default_rng(6).integers(0, 64, 300)
        model = TinyModel(layers=1)
        out = self.folder / "long.safetensors"
        self.passes("record", model.write_folder(self.folder / "model"), "--tokens", self.write_tokens(tokens), "--steps", 0,
                    "--window", 300, "--dtype", "F32", out)
        _, (layer,) = model.run(tokens)
        self.require_equal_within_single_precision(read_trace(out)[0]["layers.0.attention_output"], layer["attention_output"],
                                                   "attention")

    def test_chosen_layers_are_named(self):
        model = TinyModel(layers=4).write_folder(self.folder / "model")
        whole, metadata = self.record(model)
        self.assertEqual(metadata["model_layers"], "0-3")
        some, metadata = self.record(model, "--layers", "1,3")
        self.assertEqual((metadata["layers"], metadata["model_layers"]), ("2", "1,3"))
        self.assertEqual(self.record(model, "--layers", "0,2-3")[1]["model_layers"], "0,2-3")
        for own, of_model in ((0, 1), (1, 3)):
            for name in ("key", "value", "query", "attention_output"):
                np.testing.assert_array_equal(some[f"layers.{own}.{name}"], whole[f"layers.{of_model}.{name}"])

    def test_more_tokens_than_the_prompt_are_decoded(self):
        model = TinyModel().write_folder(self.folder / "model")
        greedy, _ = self.record(model)
        forced = [*TOKENS, 3, 1, 4]
        tensors, _ = self.record(model, tokens=forced)
        self.assertEqual(list(tensors["tokens"][:PROMPT + 3]), forced)
        same, _ = self.record(model, tokens=greedy["tokens"])
        np.testing.assert_array_equal(same["layers.1.key"], greedy["layers.1.key"])

    def test_bytes_are_tokens(self):
        model = TinyModel(vocabulary=256).write_folder(self.folder / "model")
        (self.folder / "text").write_bytes(b"\x00\xffprose")
        self.passes("record", model, "--bytes", "text", "--steps", 0, "trace.safetensors")
        tensors, metadata = read_trace(self.folder / "trace.safetensors")
        self.assertEqual(list(tensors["tokens"]), list(b"\x00\xffprose"))
        self.assertEqual((metadata["prompt_tokens"], metadata["window_queries"]), ("7", "7"))

    def test_decoded_tokens_are_shown_as_text(self):
        """Of tokens that are bytes; of a GGUF file's tokenizers, byte-level BPE and SentencePiece; of a tokenizer.json."""
        (self.folder / "text").write_bytes(b"prose")
        model = TinyModel(vocabulary=256)
        folder = model.write_folder(self.folder / "model")
        out = self.passes("record", folder, "--bytes", "text", "--steps", 6, "trace.safetensors")
        tokens = read_trace(self.folder / "trace.safetensors")[0]["tokens"][5:]
        shown = "".join(chr(t) if 32 <= t < 127 else f"\\x{t:02x}" for t in tokens)
        self.assertEqual(out.split("as text:\n")[1], shown + "\n")

        def pieces(space):
            return [f"{space}t{i}" for i in range(64)]

        decoded = self.record(TinyModel().write_folder(self.folder / "other"))[0]["tokens"][PROMPT:]
        expected = "as text:\n" + "".join(f" t{token}" for token in decoded) + "\n"
        options = "--tokens", self.write_tokens(), "--prompt", PROMPT, "--steps", STEPS, "trace.safetensors"
        model, path = TinyModel(), self.folder / "model.gguf"
        for kind, space in (("gpt2", "\u0120"), ("llama", "\u2581")):
            texts = b"".join(struct.pack("<Q", len(piece.encode())) + piece.encode() for piece in pieces(space))
            own = {"tokenizer.ggml.model": (8, gguf_text(kind)), "tokenizer.ggml.tokens": (9, struct.pack("<IQ", 8, 64) + texts)}
            path.write_bytes(gguf_bytes({**model.gguf_metadata(), **own}, model.gguf_tensors()))
            self.assertTrue(self.passes("record", path, *options).endswith(expected), kind)
        tokenizer = self.folder / "other" / "tokenizer.json"
        for decoder, space in (({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}, "\u0120"),
                               ({"type": "Metaspace", "replacement": "\u2581"}, "\u2581")):
            tokenizer.write_text(json.dumps(
                {"decoder": decoder, "added_tokens": [{"id": 63, "content": " t63"}, {"id": 1 << 40, "content": "x"}],
                 "model": {"vocab": {piece: i for i, piece in enumerate(pieces(space)[:63])}}}), "utf-8")
            self.assertTrue(self.passes("record", self.folder / "other", *options).endswith(expected), decoder)
        tokenizer.write_text('{"decoder": {"type": "WordPiece"}, "model": {"vocab": {}}}', "utf-8")
        self.assertNotIn("as text", self.passes("record", self.folder / "other", *options))

    def test_a_tokenizer_that_cannot_be_used_is_told_of_and_the_trace_is_written(self):
        folder = TinyModel().write_folder(self.folder / "model")
        (folder / "tokenizer.json").write_text('{"decoder": {"type": "ByteLevel"}, "model": 3}', "utf-8")
        options = "record", folder, "--tokens", self.write_tokens(), "--steps", 2, "trace.safetensors"
        result = self.run_program(*options)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"\Akvbound: warning: no text of the tokens: .*tokenizer\.json: .*model: is 3[^\n]*\n\Z")
        self.assertTrue((self.folder / "trace.safetensors").exists())
        self.assertEqual(self.run_program(*options, "--quiet").stderr, "")

    def test_tokens_may_come_from_a_pipe(self):
        model = TinyModel().write_folder(self.folder / "model")
        expected, _ = self.record(model)
        text = self.write_tokens().read_text("utf-8")
        for name in ("/dev/stdin", "-"):
            for source in (text, ""):
                result = subprocess.run([kvbound_cli.program, "record", model, "--tokens", name, "--prompt", str(PROMPT), "--steps",
                                         str(STEPS), "--window", str(WINDOW), self.folder / "piped.safetensors"], input=source,
                                        capture_output=True, text=True, check=False)
                self.assertEqual(result.returncode, 0 if source else INVALID, result.stderr)
        self.assertIn("-: at byte 0: has no tokens", result.stderr)
        np.testing.assert_array_equal(read_trace(self.folder / "piped.safetensors")[0]["layers.1.key"], expected["layers.1.key"])

    def test_the_same_bits_for_any_number_of_threads(self):
        model = TinyModel(model_dim=200, heads=8, head_dim=32, feed_forward=300).write_folder(self.folder / "model")
        files = []
        for threads in (1, 2, 3):
            self.record(model, "--threads", threads)
            files.append((self.folder / "trace.safetensors").read_bytes())
        self.assertEqual(files[0], files[1])
        self.assertEqual(files[0], files[2])

    def test_prompts_and_steps_agree(self):
        """A prompt's last token and a decode step are computed in blocks of other shapes."""
        model = TinyModel().write_folder(self.folder / "model")
        tensors, _ = self.record(model, "--dtype", "F32")
        out = self.folder / "prompt.safetensors"
        self.passes("record", model, "--tokens", self.write_tokens(tensors["tokens"]), "--steps", 0, "--dtype", "F32", out)
        self.require_equal_within_single_precision(read_trace(out)[0]["layers.1.key"], tensors["layers.1.key"], "keys")

    def test_a_recorded_trace_replays(self):
        model = TinyModel(family="qwen3")
        self.record(model.write_folder(self.folder / "model"))
        self.passes("replay", "trace.safetensors", "--policy", "snapkv:window=4,h2o:window=4:recent=2+keepkv", "--budget", "12")


class Refusals(RecordTest):
    def refused(self, model, problem, code=INVALID, *options):
        before = sorted(self.folder.iterdir())
        tokens = self.write_tokens()
        self.refuses(code, problem, "record", model, "--tokens", tokens, "--prompt", PROMPT, "--steps", 1, *options,
                     self.folder / "out.safetensors")
        self.assertEqual(sorted({*before, tokens}), sorted(self.folder.iterdir()), "a file was left behind")

    def test_configurations_that_a_trace_cannot_represent(self):
        for fields, problem in (
                ({"model_type": "gemma2"}, 'model_type: is "gemma2"; expected llama, mistral, qwen2 or qwen3'),
                ({"model_type": None}, "model_type: is null; expected a string"),
                ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window: is 4096: a trace cannot say"),
                ({"model_type": "mistral"}, "sliding_window: is missing, and 4096 by default"), ({"is_causal": False}, "is_causal: is false"),
                ({"use_sliding_window": True, "sliding_window": 128}, "sliding_window: is 128"),
                ({"layer_types": ["full_attention", "sliding_attention"]}, r'layer_types\[1\]: is "sliding_attention"; a trace records full_attention only'),
                ({"layer_types": "full_attention"}, r'layer_types: is "full_attention"; expected a list'),
                ({"layer_types": [3, None]}, r"layer_types\[0\]: is 3; a trace records full_attention only"),
                ({"layer_types": ["full_attention"] * 3}, "layer_types: has 3 items; expected one for each of 2 layers"),
                ({"layer_types": ["full_attention", "x" * 5000]}, r'layer_types\[1\]: is "x{80}\.\.\."; a trace'),
                ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: is 50.0: a trace cannot say"),
                ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
                ({"num_local_experts": 8}, "num_local_experts: is 8: models with experts are not computed"),
                ({"kv_lora_rank": 512}, "kv_lora_rank"), ({"quantization_config": {"bits": 4}}, "quantization_config"),
                ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"), ({"mlp_bias": True}, "mlp_bias"),
                ({"attention_bias": True}, "q_proj.bias: is missing"), ({"hidden_act": "gelu"}, 'hidden_act: is "gelu"'),
                ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 'rope_scaling.rope_type: is "yarn"'),
                ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor: is missing"),
                ({"rope_theta": "many"}, 'rope_theta: is "many"; expected a number'), ({"rope_theta": 0.5}, "RoPE's base"),
                ({"num_hidden_layers": 0}, "num_hidden_layers: is 0; expected an integer from 1"),
                ({"num_hidden_layers": 2.5}, "num_hidden_layers: is 2.5"), ({"num_key_value_heads": 3}, "KV heads: are 3"),
                ({"head_dim": 7}, "head_dim: is 7; RoPE rotates pairs"), ({"rms_norm_eps": -1.0}, "epsilon of the norms"),
                ({"hidden_size": None}, "hidden_size: is null; expected an integer from 1"), ({"tie_word_embeddings": 1}, "tie_word_embeddings: is 1; expected true or false")):
            with self.subTest(problem):
                model = TinyModel()
                model.config.update(fields)
                self.refused(model.write_folder(self.folder / "model"), problem)

    def test_weights_that_do_not_fit(self):
        for change, problem in (
                (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight: is missing"),
                (lambda w: w.pop("lm_head.weight"), "lm_head.weight: is missing"),
                (lambda w: w.update({"model.norm.weight": np.ones(23)}), r"model.norm.weight: is \[1, 23\]; expected \[1, 24\]"),
                (lambda w: w.update({"model.layers.0.self_attn.k_proj.weight": np.ones((16, 23))}), r"is \[16, 23\]"),
                (lambda w: w.update({"model.norm.weight": np.ones((1, 1, 24))}), "expected a vector or a matrix"),
                (lambda w: w.update({"model.layers.0.self_attn.o_proj.bias": np.ones(24)}), "o_proj.bias: is not 0"),
                (lambda w: w.update({"model.layers.0.mlp.down_proj.bias": np.ones(24)}), "down_proj.bias: is unknown here, and may change"),
                (lambda w: w.update({"model.layers.1.self_attn.q_proj.weight_scale": np.ones(1)}), "q_proj.weight_scale: is unknown"),
                (lambda w: w.update({"model.layers.1.self_attn.k_proj.bias": np.ones(16)}), "k_proj.bias: is unknown"),
                (lambda w: w.update({"lm_head.bias": np.ones(64)}), "lm_head.bias: is unknown"),
                (lambda w: w["model.layers.1.mlp.down_proj.weight"].__setitem__((3, 5), np.nan),
                 "model.layers.1.mlp.down_proj.weight: is not a finite number here"),
                (lambda w: w["model.embed_tokens.weight"].fill(np.inf), "model.embed_tokens.weight")):
            with self.subTest(problem):
                model = TinyModel()
                change(model.weights)
                self.refused(model.write_folder(self.folder / "model"), problem)

    def test_two_output_matrices_that_differ(self):
        model = TinyModel(tied=True)
        model.weights["lm_head.weight"] = model.weights["model.embed_tokens.weight"].copy()
        self.record(model.write_folder(self.folder / "model"))
        (self.folder / "trace.safetensors").unlink()
        model.weights["lm_head.weight"][63, 23] += 1
        self.refused(model.write_folder(self.folder / "model"),
                     "config.json: tie_word_embeddings: is true, but lm_head.weight differs from the embedding")

    def test_numbers_that_the_stored_type_cannot_hold(self):
        model = TinyModel()
        model.weights["model.layers.1.self_attn.v_proj.weight"] *= 1e6
        self.refused(model.write_folder(self.folder / "model"), r"model: layers.1.value: -?\d+.* does not fit F16")

    def test_folders_and_files_that_are_no_checkpoints(self):
        (self.folder / "empty").mkdir()
        self.refused(self.folder / "empty", "cannot open .*config.json", WORLD)
        self.refused(self.folder / "absent.gguf", "cannot open", WORLD)
        broken = TinyModel().write_folder(self.folder / "broken")
        (broken / "config.json").write_text("{", "utf-8")
        self.refused(broken, "is not valid JSON")
        (broken / "config.json").write_text("[]", "utf-8")
        self.refused(broken, "expected an object")
        cyclic = TinyModel().write_folder(self.folder / "cyclic", shards=2)
        index = json.loads((cyclic / "model.safetensors.index.json").read_text("utf-8"))
        index["weight_map"] = dict.fromkeys(index["weight_map"], "model.safetensors.index.json")
        (cyclic / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
        self.refused(cyclic, "model.safetensors.index.json: ")
        shards = TinyModel().write_folder(self.folder / "shards", shards=2)
        (shards / "model-00002-of-00002.safetensors").unlink()
        self.refused(shards, "cannot open", WORLD)
        short = TinyModel().write_folder(self.folder / "short")
        (short / "model.safetensors").write_bytes((short / "model.safetensors").read_bytes()[:-4])
        self.refused(short, "model.safetensors: ")
        for path in (short / "model.safetensors", short / "config.json", shards / "model.safetensors.index.json"):
            self.refused(path, "is (a safetensors file|JSON); expected a GGUF file, or a folder that holds config.json")
        self.refuses(INVALID, "is a model's checkpoint; expected a trace, which kvbound record makes", "inspect", cyclic / "model-00001-of-00002.safetensors")
        self.refuses(INVALID, "is a directory; .*; it holds model-00001-of-00002.safetensors", "inspect", cyclic)
        self.refused("owner/model", "cannot open owner/model: .*; expected a GGUF file, or a folder", WORLD)
        for name in ("pytorch_model.bin", "consolidated.00.pth", "model.gguf"):
            (short / "model.safetensors").rename(short / name)
            self.refused(short, f"cannot open .*model.safetensors: .*the folder holds {name} and 1 more; expected", WORLD)
            (short / name).rename(short / "model.safetensors")
        (short / "adapter_config.json").write_text("{}", "utf-8")
        self.refused(short, "adapter_config.json: is there: an adapter is not computed")
        (short / "adapter_config.json").unlink()
        (short / "config.json").unlink()
        self.refused(short, "cannot open .*config.json: .*the folder holds model.safetensors; expected", WORLD)
        (self.folder / "old.gguf").write_bytes(b"tjgg" + bytes(60))
        self.refused(self.folder / "old.gguf", "is a GGML file, the format before GGUF; expected")
        (self.folder / "text.gguf").write_text("a text that is no model", "utf-8")
        self.refused(self.folder / "text.gguf", 'magic: is "a te"; expected "GGUF"')

    def test_gguf_files_that_do_not_fit(self):
        model = TinyModel()

        def lists(*numbers):
            return struct.pack("<IQ", 4, len(numbers)) + b"".join(struct.pack("<I", number) for number in numbers)

        for key, value, problem in (
                ("general.architecture", (8, "mamba"), 'general.architecture: is "mamba"; expected llama, qwen2 or qwen3'),
                ("llama.attention.head_count_kv", (9, lists(2, 1)), "differs between layers"),
                ("llama.attention.sliding_window", (4, 4096), "llama.attention.sliding_window: a trace cannot say"),
                ("llama.attention.causal", (7, 0), "llama.attention.causal: is not true"),
                ("llama.attention.new_key", (4, 1), "llama.attention.new_key: is unknown here, and may change what is computed"),
                ("llama.attn_logit_softcapping", (6, 30.0), "logits are capped"),
                ("llama.expert_count", (4, 8), "models with experts are not computed"),
                ("llama.rope.scaling.type", (8, "yarn"), 'llama.rope.scaling.type: is "yarn"; expected none or linear'),
                ("llama.rope.dimension_count", (4, 4), "RoPE of part of a head"), ("llama.block_count", (4, 0), "from 1 to"),
                ("llama.block_count", (8, "two"), "llama.block_count: is not a number"),
                ("llama.block_count", (4, 3), "blk.2.attn_norm.weight: is missing"),
                ("llama.attention.value_length", (4, 4), "attention.value_length: differs"),
                ("llama.attention.layer_norm_rms_epsilon", (6, float("nan")), "epsilon of the norms")):
            with self.subTest(problem):
                path = self.folder / "model.gguf"
                path.write_bytes(gguf_bytes({**model.gguf_metadata(), key: value}, model.gguf_tensors()))
                self.refused(path, problem)

    def test_gguf_tensors_that_are_not_computed(self):
        one = 0, (1,), np.ones(1, "<f4").tobytes()
        for name in ("blk.0.ffn_down.bias", "blk.1.attn_q.scale", "blk.2.attn_norm.weight", "output.bias", "output_norm.bias",
                     "token_embd_norm.weight", "position_embd.weight", "rope_factors_long.weight"):
            with self.subTest(name):
                model = TinyModel()
                path = self.folder / "model.gguf"
                path.write_bytes(gguf_bytes(model.gguf_metadata(), {**model.gguf_tensors(), name: one}))
                self.refused(path, f"at byte [0-9]+: {name}: is unknown here, and may change what is computed")
        model = TinyModel(family="qwen2")
        path.write_bytes(gguf_bytes(model.gguf_metadata(), {**model.gguf_tensors(), "rope_freqs.weight": (0, (4,), bytes(16))}))
        self.refused(path, "rope_freqs.weight: is unknown here")
        tensors = model.gguf_tensors()
        tensors["blk.0.attn_qkv.weight"] = tensors.pop("blk.0.attn_q.weight")
        path.write_bytes(gguf_bytes(model.gguf_metadata(), tensors))
        self.refused(path, "blk.0.attn_qkv.weight: is unknown here")

    def test_tokens_and_options(self):
        model = TinyModel().write_folder(self.folder / "model")
        for text, problem in (("1 2 x", 'at byte 4: token: is "x"; expected a number from 0 to 63'),
                              ("1 64", 'at byte 2: token: is "64"'), ("-1", 'token: is "-1"'), (" ,\n", "has no tokens"),
                              ("99999999999999999999", "token: is")):
            with self.subTest(problem):
                (self.folder / "bad.ids").write_text(text, "utf-8")
                self.refuses(INVALID, problem, "record", model, "--tokens", "bad.ids", "out.safetensors")
        tokens = self.write_tokens()
        for options, problem in ((("--prompt", 21), "--prompt '21'"), (("--prompt", 0), "--prompt '0'"),
                                 (("--steps", -1), "--steps '-1'"), (("--window", 21), "--window '21'"),
                                 (("--layers", "2"), "--layers"), (("--dtype", "F64"), "--dtype 'F64'"),
                                 (("--bytes", tokens), "either --tokens FILE or --bytes FILE")):
            with self.subTest(problem):
                self.refuses(USAGE, problem, "record", model, "--tokens", tokens, *options, "out.safetensors")
        self.refuses(USAGE, "either --tokens FILE or --bytes FILE", "record", model, "out.safetensors")
        large = TinyModel(vocabulary=300).write_folder(self.folder / "large")
        self.refuses(USAGE, r"--bytes: the model's vocabulary of 300 tokens is not bytes; traces/scripts/tokenize\.py TEXT MODEL makes",
                     "record", large, "--bytes", tokens, "out.safetensors")
        for name in ("Qwen/Qwen2.5-0.5B", "a/b"):
            self.refuses(WORLD, rf"from the Hugging Face hub `hf download {name} --local-dir {name.split('/')[1]}` fetches it into ./",
                         "record", name, "--tokens", tokens, "out.safetensors")
        for name in ("missing", "model/missing", "a/b.gguf", "/a/b", "./a"):
            result = self.run_program("record", name, "--tokens", tokens, "out.safetensors")
            self.assertEqual(result.returncode, WORLD)
            self.assertNotIn("hub", result.stderr)
        self.refuses(USAGE, "MODEL and OUT", "record", model, "--tokens", tokens)
        self.refuses(USAGE, "OUT", "record", model, "--tokens", tokens, tokens)


if __name__ == "__main__":
    kvbound_cli.main()
