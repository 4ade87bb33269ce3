"""traces/scripts/record_hf.py and kvbound record on tiny random models: every recorded number against an independent
forward pass.

usage: record_hf_test.py KVBOUND      KVBOUND: the program's path. Needs traces/scripts/requirements.txt.
"""
import contextlib
import importlib.metadata
import io
import json
import shutil
import signal
import subprocess
import sys
import time
import unittest.mock

import numpy as np
import safetensors.torch
import torch
import transformers
from hf import forward, models
from support import kvbound_cli
from support.kvbound_cli import INVALID, MISMATCH, PASS, USAGE, WORLD, CommandLineTest

SCRIPTS = kvbound_cli.REPOSITORY / "traces" / "scripts"
sys.path.insert(0, str(SCRIPTS))
import record_hf  # noqa: E402
from from_torch import from_torch, write_dump  # noqa: E402

from kvbound.errors import InvalidInput, InvalidOption  # noqa: E402
from kvbound.recording import attention_recorder, hf_model, hf_recording  # noqa: E402
from kvbound.recording.attention_recorder import Layer, require_plain_attention  # noqa: E402

PROMPT, STEPS = 70, 9
FAMILIES = {"Llama": {}, "Qwen2": {}, "Qwen3": {}, "Mistral": {"sliding_window": None}}
RECORDERS = 2
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def script(*arguments):
    """Runs record_hf.py in this process; returns its exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), \
            unittest.mock.patch.object(sys, "argv", ["record_hf.py", *map(str, arguments)]):
        try:
            record_hf.main()
            code = PASS
        except SystemExit as error:
            code = error.code
    return code, out.getvalue(), err.getvalue()


class RecordTest(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.tokens = self.folder / "tokens"
        self.ids = np.random.default_rng(5).integers(0, models.SIZES["vocab_size"], PROMPT + STEPS).tolist()
        self.tokens.write_text(" ".join(map(str, self.ids[:PROMPT])))

    def record(self, model, *options, name="trace.safetensors", steps=STEPS, window=PROMPT, dtype="F32"):
        """Records and verifies a trace; returns its metadata and tensors, and what the script printed."""
        path = self.folder / name
        code, out, err = script(model, "--tokens", self.tokens, "--prompt", PROMPT, "--steps", steps, "--window", window,
                                "--dtype", dtype, *options, path)
        self.assertEqual(code, PASS, err)
        self.assertEqual(out, f"kvbound inspect {path} --verify\n")
        self.assertIn("agrees", self.passes(*out.split()[1:]))
        return *forward.read_trace(path), err

    def refuses_to_record(self, pattern, *arguments, code=INVALID):
        """Runs the script, which must exit with this code and one line that the pattern matches, and leave no file."""
        before = kvbound_cli.contents(self.folder)
        found, out, err = script(*arguments)
        self.assertEqual((found, out), (code, ""), err)
        self.assertRegex(err, r"\Arecord_hf: [^\n]+\n\Z")
        self.assertRegex(err, pattern)
        self.assertEqual(kvbound_cli.contents(self.folder), before)

    def usual(self, model):
        return [model, "--tokens", self.tokens, "--prompt", PROMPT, "--steps", STEPS, self.folder / "trace.safetensors"]


def recordings(test, model, dtype):
    """Every recorder's trace of the same checkpoint and tokens: (its name, metadata, tensors). Each is held to the same
    bounds, so that two of them differ by the sum of both at most."""
    metadata, tensors, _ = test.record(model, dtype=dtype)
    yield "record_hf.py", metadata, tensors
    path = test.folder / "other.safetensors"
    test.passes("record", model, "--tokens", test.tokens, "--prompt", PROMPT, "--steps", STEPS, "--window", PROMPT,
                "--dtype", dtype, "--quiet", path)
    test.assertIn("agrees", test.passes("inspect", path, "--verify"))
    yield "kvbound record", *forward.read_trace(path)


class Recorded(RecordTest):
    def judge(self, family, dtype, **sizes):
        model = models.save(self.folder / "model", family, **sizes)
        for recorder, metadata, tensors in recordings(self, model, dtype):
            self.assertEqual((metadata["layers"], metadata["model_layers"]), ("3", "0-2"))
            self.assertEqual(metadata.get("scale", "0.25"), "0.25")  # 1 / sqrt(head_dim), if absent
            tokens = tensors.pop("tokens")
            self.assertEqual(tokens[:PROMPT].tolist(), self.ids[:PROMPT])
            predicted, logits = forward.forward(model, tokens, dtype, tensors)
            self.assertEqual(tensors.keys(), predicted.keys())
            worst_error = worst_bound = worst_share = 0
            for name, (value, bound) in predicted.items():
                largest = np.abs(value).max()
                self.assertGreater(largest, 0.1, name)
                error = np.abs(tensors[name] - value)
                self.assertTrue((error <= bound).all(), f"{recorder} {family} {dtype} {name}: {error.max()} of {largest}")
                shares = np.divide(error, bound, out=np.zeros_like(error), where=bound > 0)
                worst_error, worst_bound, worst_share = np.maximum(
                    (worst_error, worst_bound, worst_share), (error.max() / largest, bound.max() / largest, shares.max()))
            self.assertLess(worst_bound, 1 / 16, "a bound this wide shows nothing")
            self.require_greedy(tokens, *logits)
            print(f"{recorder} {family} {dtype}: largest error {worst_error:.1e}, largest bound {worst_bound:.1e} of the "
                  f"tensor's largest number; largest share of a bound {worst_share:.3f}")
            yield tensors, predicted

    def require_greedy(self, tokens, logits, bounds):
        for position in range(PROMPT, PROMPT + STEPS):
            row, bound = logits[position - 1], bounds[position - 1]
            self.assertTrue((row - bound <= row[tokens[position]] + bound[tokens[position]]).all(), position)

    def test_is_what_an_independent_forward_pass_predicts(self):
        for seed, (family, sizes) in enumerate(FAMILIES.items()):
            with self.subTest(family):
                self.assertEqual(len(list(self.judge(family, "F32", seed=seed, **sizes))), RECORDERS)

    def test_in_16_bits_is_rounded_before_attention(self):
        for family, dtype in (("Qwen3", "BF16"), ("Qwen2", "F16")):
            with self.subTest(family):
                self.assertEqual(len(list(self.judge(family, dtype, seed=9))), RECORDERS)

    def test_with_tied_embeddings(self):
        self.assertEqual(len(list(self.judge("Llama", "F32", seed=8, tie_word_embeddings=True))), RECORDERS)

    def test_differs_from_other_recordings_by_more_than_the_bounds(self):
        for tensors, predicted in self.judge("Qwen3", "F32"):
            for layer in range(3):
                def outside(name, array):
                    value, bound = predicted[f"layers.{layer}.{name}"]
                    return (np.abs(array - value) > bound).mean()
                key, query, value = (tensors[f"layers.{layer}.{name}"] for name in ("key", "query", "value"))
                # a cache read one position late
                self.assertGreater(outside("key", np.roll(key, 1, axis=1)), 0.9)
                self.assertGreater(outside("query", np.roll(query, 1, axis=0)), 0.9)  # heads exchanged
                # rounded after attention
                self.assertGreater(outside("value", forward.rounded(value, "BF16")), 0.05)
                positions = np.arange(PROMPT + STEPS)[:, None]
                angle = positions * 10000.0 ** -(np.arange(8) / 8)
                unturned = np.concatenate([key[..., :8] * np.cos(angle) + key[..., 8:] * np.sin(angle),
                                           key[..., 8:] * np.cos(angle) - key[..., :8] * np.sin(angle)], axis=2)
                self.assertGreater(outside("key", unturned), 0.8)  # before RoPE
                projection = tensors[f"layers.{layer}.output_projection"]
                # so that it cannot be transposed
                self.assertNotEqual(projection.shape[0], projection.shape[1])

    def test_with_scaled_rope(self):
        for rope in (LLAMA3, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}):
            with self.subTest(rope["rope_type"]):
                for _, predicted in self.judge("Llama", "F32", rope_parameters=rope):
                    pass
                shutil.rmtree(self.folder / "model")


class Options(RecordTest):
    def setUp(self):
        super().setUp()
        self.model = models.save(self.folder / "model", "Llama")

    def test_select_from_the_same_numbers(self):
        _, whole, _ = self.record(self.model, dtype="F16")
        metadata, part, _ = self.record(self.model, "--layers", "0,2", name="part.safetensors", window=20, dtype="F16")
        self.assertEqual((metadata["model_layers"], metadata["layers"], metadata["window_queries"]), ("0,2", "2", "20"))
        self.assertEqual(len(part), 11)
        for name, tensor in part.items():
            source = name.replace("layers.1.", "layers.2.")
            expected = whole[source][:, PROMPT - 20:] if "query" in name or "attention" in name else whole[source]
            np.testing.assert_array_equal(tensor, expected, name)

    def test_write_the_same_numbers_to_shards(self):
        _, single, _ = self.record(self.model)
        _, sharded, _ = self.record(self.model, name="trace.index.json")
        self.assertEqual(len(list(self.folder.glob("trace-0000?-of-00003.safetensors"))), 3)
        self.assertEqual(sharded.keys(), single.keys())
        for name in single:
            np.testing.assert_array_equal(sharded[name], single[name], name)

    def test_record_given_tokens_and_go_on_greedily(self):
        self.tokens.write_text(str(self.ids[:PROMPT + 4]))
        metadata, tensors, _ = self.record(self.model)
        self.assertEqual(tensors["tokens"][:PROMPT + 4].tolist(), self.ids[:PROMPT + 4])
        self.assertIn("4 of 9 decode steps given", metadata["source"])
        self.tokens.write_text(",".join(map(str, tensors["tokens"])))
        metadata, again, _ = self.record(self.model)
        self.assertIn("9 of 9", metadata["source"])
        for name in tensors:
            np.testing.assert_array_equal(again[name], tensors[name], name)

    def test_read_a_text_s_bytes(self):
        text = self.folder / "text"
        text.write_bytes(bytes(self.ids[:PROMPT]))
        code, _, err = script(self.model, "--bytes", text, "--prompt", PROMPT, "--steps", 0, self.folder / "t.safetensors")
        self.assertEqual(code, PASS, err)
        self.assertEqual(forward.read_trace(self.folder / "t.safetensors")[1]["tokens"].tolist(), self.ids[:PROMPT])

    def test_are_refused(self):
        usual = self.usual(self.model)
        for pattern, options, code in (
                ("--window 71 is more than --prompt 70", ["--window", 71], USAGE),
                ("ascending numbers", ["--layers", "2,1"], USAGE),
                ("layer 3, but the model has layers 0-2", ["--layers", "1,3"], INVALID),
                ("has 70 tokens, but the prompt has 71", ["--prompt", 71], INVALID),
                ("'F64'", ["--dtype", "F64"], USAGE)):
            with self.subTest(pattern):
                self.refuses_to_record(pattern, *usual, *options, code=code)
        for pattern, text in (("token 97 at position 2 is not in the vocabulary of 97", "1 2 97" + " 5" * 70),
                              ("'-1' at position 1", "1 -1"), ("expected an array of token ids", "[1, 2.5]")):
            self.tokens.write_text(text)
            with self.subTest(pattern):
                self.refuses_to_record(pattern, *usual)

    def test_name_files_that_cannot_be_read_or_written(self):
        usual = self.usual(self.model)
        self.refuses_to_record("no such directory", self.folder / "nothing", *usual[1:])
        nothing = self.folder / "nothing"
        self.refuses_to_record("nothing: No such file", self.model, "--tokens", nothing, *usual[3:], code=WORLD)
        self.refuses_to_record("No such file", *usual[:-1], nothing / "trace.safetensors", code=WORLD)

    def test_an_interrupted_recording_leaves_no_file(self):
        self.model = models.save(self.folder / "long", "Llama", max_position_embeddings=100000)
        out = self.folder / "out"
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            out.mkdir()
            process = subprocess.Popen(
                [sys.executable, SCRIPTS / "record_hf.py", self.model, "--tokens", self.tokens, "--prompt", str(PROMPT),
                 "--steps", "90000", out / "trace.index.json"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            deadline = time.monotonic() + 120
            while not list(out.iterdir()) and time.monotonic() < deadline:
                time.sleep(0.1)
            self.assertEqual(len(list(out.glob(".trace*.tmp"))), 4)
            process.send_signal(number)
            self.assertEqual((process.communicate(timeout=60)[0], process.returncode), ("", code))
            self.assertEqual(list(out.iterdir()), [])
            out.rmdir()

    def test_verification_fails_if_a_recorded_number_is_changed(self):
        self.record(self.model)
        trace = self.folder / "trace.safetensors"
        data = bytearray(trace.read_bytes())
        length = int.from_bytes(data[:8], "little")
        data[8 + length + 4 * 16 * 3 + 3] ^= 0x80  # the sign of an element of layer 0's key at position 3
        trace.write_bytes(data)
        self.passes("inspect", trace, "--verify", code=MISMATCH)


class Called(RecordTest):
    """kvbound.record_hf as a function."""

    def test_records_a_loaded_model_as_the_script_records_its_directory(self):
        folder = models.save(self.folder / "model", "Qwen3")
        _, expected, _ = self.record(folder, dtype="F16")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).train()
        for ids in (self.ids, np.array(self.ids), torch.tensor(self.ids)):
            path = hf_recording.record_hf(model, ids[:PROMPT], steps=STEPS, window=PROMPT, out=self.folder / "called.safetensors")
            _, found = forward.read_trace(path)
            self.assertEqual(found.keys(), expected.keys())
            for name in expected:
                np.testing.assert_array_equal(found[name], expected[name], name)
        self.assertEqual((model.config._attn_implementation, model.training), ("sdpa", True))
        self.assertTrue(all(not module._forward_pre_hooks for module in model.modules()))

    def test_leaves_a_model_that_it_refuses_as_it_was(self):
        folder = models.save(self.folder / "model", "Llama")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        before, usual = model.config._attn_implementation, dict(out=self.folder / "t", prompt=PROMPT)
        record = hf_recording.record_hf
        for error, pattern, call in (
                (InvalidInput, "layer 7, but the model has layers 0-2", lambda: record(model, self.ids, layers=[7], **usual)),
                (InvalidInput, r"ids: element 1 is '2.5'", lambda: record(model, [1, 2.5], out=self.folder / "t")),
                (InvalidInput, "ids: has 3 tokens, but the prompt has 70", lambda: record(model, [1, 2, 3], **usual)),
                (InvalidInput, "not in the vocabulary of 97", lambda: record(model, [97] * PROMPT, **usual)),
                (InvalidOption, "window: is 71", lambda: record(model, self.ids, window=71, **usual)),
                (InvalidOption, "dtype: is 'I8'", lambda: record(model, self.ids, dtype="I8", **usual)),
                (InvalidInput, "torch.bfloat16; expected float32", lambda: record(model.bfloat16(), self.ids, **usual))):
            with self.subTest(pattern), self.assertRaisesRegex(error, pattern):
                call()
            self.assertEqual(model.config._attn_implementation, before)
            self.assertTrue(all(not module._forward_pre_hooks for module in model.modules()))
        self.assertEqual(list(self.folder.glob("t*")), [self.folder / "tokens"])

    def test_notes_what_it_leaves_out(self):
        folder = models.save(self.folder / "model", "Qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=1,
                             layer_types=["full_attention", "sliding_attention", "full_attention"])
        with self.assertWarnsRegex(UserWarning, r"left out: layers 1 \(a sliding window of 16\)"):
            hf_recording.record_hf(folder, self.ids, out=self.folder / "t", prompt=PROMPT)


class Models(RecordTest):
    """Models that a trace cannot describe, or not wholly."""

    def refused(self, pattern, family, **sizes):
        shutil.rmtree(self.folder / "model", ignore_errors=True)
        model = models.save(self.folder / "model", family, **sizes)
        self.refuses_to_record(pattern, *self.usual(model))

    def test_with_a_logit_softcap_are_refused(self):
        self.refused("attn_logit_softcapping is 50.0: a logit softcap", "Gemma2", query_pre_attn_scalar=16)

    def test_with_a_sliding_window_everywhere_are_refused(self):
        self.refused(r"all layers are that a trace cannot say: 0-2 \(a sliding window of 32\)", "Mistral",
                     sliding_window=32)

    def test_with_attention_sinks_are_refused(self):
        self.refused("layer 0: attention sinks that are parameters", "GptOss", num_local_experts=2, num_experts_per_tok=1)

    def test_with_latent_attention_are_refused(self):
        self.refused("kv_lora_rank is 8: multi-head latent attention", "DeepseekV3", kv_lora_rank=8, q_lora_rank=8,
                     qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, n_routed_experts=4, n_group=1, topk_group=1,
                     num_experts_per_tok=1, first_k_dense_replace=3, num_key_value_heads=4)

    def test_with_a_norm_before_the_output_projection_are_refused(self):
        self.refused("layer 0: .* changes the attention output before W.O", "BitNet", head_dim=12)

    def test_with_a_gate_before_the_output_projection_are_refused(self):
        self.refused("layer 3: .* changes the attention output before W.O", "Qwen3Next", num_hidden_layers=4, num_experts=2,
                     num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16)

    def test_with_attention_of_their_own_are_refused(self):
        self.refused("made no call of the attention function", "Bloom", n_head=4, n_layer=2)
        self.refused("gptj has attention of its own", "GPTJ", n_embd=48, n_head=4, n_layer=2, rotary_dim=8)

    def test_of_other_families_are_verified(self):
        experts = dict(num_local_experts=2, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32)
        for family, sizes in (("Gemma", {}), ("Phi", {}), ("Phi3", {"pad_token_id": 0}), ("GPTNeoX", {}), ("Olmo2", {}),
                              ("OPT", {"ffn_dim": 64, "word_embed_proj_dim": 48}),
                              ("Granite", {"attention_multiplier": 0.3}),
                              ("Mixtral", {"sliding_window": None, **experts}), ("Qwen3Moe", experts)):
            with self.subTest(family):
                shutil.rmtree(self.folder / "model", ignore_errors=True)
                metadata, _, err = self.record(models.save(self.folder / "model", family, **sizes))
                self.assertEqual((metadata["model_layers"], err), ("0-2", ""))

    def test_with_missing_weights_or_quantised_are_refused(self):
        model = models.save(self.folder / "model", "Llama")
        weights = safetensors.torch.load_file(model / "model.safetensors")
        gone = weights.pop("model.layers.1.self_attn.k_proj.weight")
        safetensors.torch.save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
        self.refuses_to_record("the checkpoint lacks model.layers.1.self_attn.k_proj.weight", *self.usual(model))
        weights["model.layers.1.self_attn.k_proj.weight"] = gone[:-1].contiguous()
        safetensors.torch.save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
        self.refuses_to_record("lacks model.layers.1.self_attn.k_proj.weight", *self.usual(model))
        config = json.loads((model / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "fp8"}
        (model / "config.json").write_text(json.dumps(config))
        self.refuses_to_record("quantization_config is .*fp8.*: a quantised checkpoint", *self.usual(model))

    def test_on_a_device_that_is_not_there_are_refused(self):
        self.refuses_to_record("nowhere", *self.usual(models.save(self.folder / "model", "Llama")), "--device", "nowhere")

    def test_that_are_no_models_are_refused(self):
        model = self.folder / "model"
        model.mkdir()
        self.refuses_to_record("transformers cannot load it", *self.usual(model))
        (model / "config.json").write_text("{")
        self.refuses_to_record("transformers cannot load it", *self.usual(model))

    def test_with_some_sliding_layers_are_recorded_without_them(self):
        model = models.save(self.folder / "model", "Qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=1,
                            layer_types=["full_attention", "sliding_attention", "full_attention"])
        metadata, tensors, err = self.record(model)
        self.assertEqual((metadata["layers"], metadata["model_layers"]), ("2", "0,2"))
        self.assertEqual(err, "record_hf: left out: layers 1 (a sliding window of 16)\n")
        self.assertEqual(len(tensors), 11)
        self.refuses_to_record(r"layers: asks for layers that a trace cannot say: 1 \(a sliding window of 16\)",
                               *self.usual(model)[:-1], "--layers", "0-1", self.folder / "other.safetensors")

    def test_whose_numbers_the_stored_type_cannot_hold_are_refused(self):
        model = models.save(self.folder / "model", "Qwen3", attention_bias=True)
        weights = safetensors.torch.load_file(model / "model.safetensors")
        weights["model.layers.1.self_attn.v_proj.bias"][3] = 1e6
        safetensors.torch.save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
        self.refuses_to_record("layer 1: the largest value is 1e.06, which is too large", *self.usual(model))


class Recorder(RecordTest):
    """Faults of a model's code that no model of transformers has, put in its way."""

    def test_refuses_calls_that_do_not_mean_what_a_trace_means(self):
        module = type("Attention", (), {"layer_idx": 0, "is_causal": True})()
        attention = type("Attention", (), {"o_proj": torch.nn.Linear(8, 8)})()
        layer = Layer(attention, 2, 1, 4, 0.5, None)
        query, key = torch.ones(1, 2, 3, 4), torch.ones(1, 1, 3, 4)
        causal = torch.full((3, 3), torch.finfo(torch.float32).min).triu(1)[None, None]
        window = causal.clone()
        window[0, 0, 2, 0] = torch.finfo(torch.float32).min
        soft = causal.clone()
        soft[0, 0, 1, 2] = -5.0
        for pattern, arguments in (
                ("no mask", (query, key, None)), ("query at 2 and the key at 0", (query, key, window)),
                ("adds -5 for the query at 1 and the key at 2", (query, key, soft)),
                ("differ between heads", (query, key, causal.expand(1, 2, 3, 3))),
                ("4 keys where 3 were seen", (query, torch.ones(1, 1, 4, 4), causal)),
                ("a batch of 2", (query.repeat(2, 1, 1, 1), key, causal))):
            recorder = attention_recorder.Recorder(torch, "F32")
            recorder.layers, recorder.files = {0: layer}, object()
            with self.subTest(pattern), self.assertRaisesRegex(InvalidInput, pattern):
                recorder(module, arguments[0], arguments[1], arguments[1], arguments[2])

    def test_refuses_layers_of_different_shapes(self):
        attention = type("Attention", (), {"o_proj": torch.nn.Linear(8, 8)})()
        recorder = attention_recorder.Recorder(torch, "F32")
        usual = (2, 1, 4, 0.5)
        for what, other in (("query heads 4", (4, 1, 4, 0.5)), ("KV heads 2", (2, 2, 4, 0.5)),
                            ("head_dim 8", (2, 1, 8, 0.5)), ("scale 1.0", (2, 1, 4, 1.0))):
            recorder.layers = {i: Layer(attention, *shape, None) for i, shape in enumerate((usual, other))}
            with self.subTest(what), self.assertRaisesRegex(InvalidInput, f"layer 1 has {what}, but layer 0 has"):
                hf_model.chosen_layers(recorder, 2, None, print)
            self.assertEqual(hf_model.chosen_layers(recorder, 2, [1], print), [1])

    def test_refuses_arguments_that_it_does_not_know(self):
        from transformers.models.llama import modeling_llama
        module = type("Attention", (), {"__module__": modeling_llama.__name__})()
        require_plain_attention(module, {"position_ids": torch.arange(3), "use_cache": True, "softcap": None})
        for pattern, options in (("softcap of 30.0", {"softcap": 30.0}), ("sinks", {"s_aux": torch.ones(2)}),
                                 ("'position_bias'", {"position_bias": torch.ones(2)}),
                                 ("'temperature'", {"temperature": 2.0})):
            with self.subTest(pattern), self.assertRaisesRegex(InvalidInput, pattern):
                require_plain_attention(module, options)
        module.is_causal = False
        with self.assertRaisesRegex(InvalidInput, "not causal"):
            require_plain_attention(module, {})


class FromTorch(CommandLineTest):
    def test_tensors_keep_their_types_and_numbers(self):
        generator = torch.Generator().manual_seed(2)
        for dtype, storage in ((torch.bfloat16, "BF16"), (torch.float16, "F16"), (torch.float32, "F32")):
            shapes = {"key": (2, 9, 4), "value": (2, 9, 4), "query": (4, 5, 4), "output_projection": (16, 8)}
            layer = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
            # of a cache [tokens, heads, dim]
            layer["key"] = layer["key"].transpose(0, 1).contiguous().transpose(0, 1)
            layer["output_projection"] = torch.nn.Parameter(layer["output_projection"].T.contiguous()).T
            path = self.folder / f"{storage}.safetensors"
            from_torch(path, [layer], decode_tokens=2, tokens=torch.arange(9))
            self.assertRegex(self.passes("inspect", path), f"storage +{storage}")
            _, tensors = forward.read_safetensors(path)
            for name, array in layer.items():
                np.testing.assert_array_equal(tensors[f"layers.0.{name}"], array.detach().double().numpy(), name)
        dump = self.folder / "dump.safetensors"
        kept = torch.tensor([[0, 1, 5, 6], [0, 2, 5, 6]])
        results = {"kept": kept, "output": torch.zeros(2, 4, 4)}
        write_dump(dump, path, "snapkv:window=2:pool=1", 4, "mine", [results])
        _, tensors = forward.read_safetensors(dump)
        self.assertEqual(tensors["layers.0.kept"].tolist(), kept.flatten().tolist())
        self.assertEqual(tensors["layers.0.kept_offsets"].tolist(), [0, 4, 8])


if __name__ == "__main__":
    packages = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
    print(", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages), flush=True)
    kvbound_cli.main()
