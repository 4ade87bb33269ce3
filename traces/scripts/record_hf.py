#!/usr/bin/env python3
"""Records a trace from a model that runs in Hugging Face transformers.

    record_hf.py MODEL --tokens FILE --prompt N --steps T OUT
    kvbound inspect OUT --verify

The model runs in float32 with an attention function of ours, which rounds queries, keys and values (after QK-norm and RoPE)
to the stored type, records them, and calls the model's own eager attention on the rounded numbers: what `kvbound inspect
--verify` recomputes is what the model computed. Every attention layer is rounded, whichever layers are recorded, so that a
selection of layers changes no number.

A trace describes layers in which a query attends to all earlier keys by softmax(scale * q.k). Layers with a sliding window
or without attention are left out and named; `model_layers` in the metadata says which were recorded. A model whose
attention is of another kind (logit softcap, sinks, latent attention, biases, gates, ...) is refused with one line.

Exit codes: 0 recorded; 2 usage; 3 a model, a token or a number that cannot be recorded; 4 I/O; 130, 143 interrupted.
"""
import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path

from attention_recorder import Recorder, refuse
from script_options import Parser, Progress, count, layers, run, whole_file
from trace_file import INDEX, Files, Invalid

NAME = "kvbound_recorder"
CONFIG_REFUSALS = {"attn_logit_softcapping": "a logit softcap", "kv_lora_rank": "multi-head latent attention (MLA)",
                   "alibi": "ALiBi biases", "quantization_config": "a quantised checkpoint"}


# ---- the model ---------------------------------------------------------------------------------------------


def load_model(path, recorder, device):
    """The causal language model in float32, with the recorder as its attention."""
    import transformers
    from transformers.masking_utils import AttentionMaskInterface

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    is_local = os.path.isdir(path)
    if not is_local and not re.fullmatch(r"[\w-]+/[\w.-]+", path):
        refuse(f"{path}: no such directory")
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=is_local)
        text = config.get_text_config()
        for field, what in CONFIG_REFUSALS.items():
            value = getattr(text, field, None) or getattr(config, field, None)
            if value:
                refuse(f"{path}: {field} is {str(value)[:40]}: {what}, which a trace cannot say")
        if getattr(config, "is_encoder_decoder", False):
            refuse(f"{path}: is_encoder_decoder is true: a trace has one self-attention per layer")
        transformers.AttentionInterface.register(NAME, recorder)
        # Without this the model would build no mask for a name that it does not know.
        AttentionMaskInterface.register(NAME, AttentionMaskInterface()["eager"])
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            path, local_files_only=is_local, dtype=recorder.torch.float32, attn_implementation=NAME,
            output_loading_info=True, ignore_mismatched_sizes=True)  # so that they are named
        model = model.to(device).eval()
    except Invalid:
        raise
    except Exception as error:  # of any kind, depending on what is wrong with the files
        if isinstance(error, KeyError) and NAME in error.args:
            refuse(f"{path}: {config.model_type} has attention of its own: it does not use transformers' interface")
        refuse(f"{path}: transformers cannot load it: {one_line(error)}")
    mismatched = [key if isinstance(key, str) else key[0] for key in loaded["mismatched_keys"]]
    lacking = sorted(loaded["missing_keys"]) + sorted(mismatched)
    if lacking:  # transformers would go on with random numbers
        refuse(f"{path}: the checkpoint lacks {lacking[0]}, or has it in another shape" +
               (f", and {len(lacking) - 1} more" if lacking[1:] else ""))
    return model, text


def one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@contextlib.contextmanager
def running(path):
    """Turns whatever a model's code throws into one line; our own errors and those of files pass."""
    try:
        yield
    except (Invalid, OSError):
        raise
    except Exception as error:
        raise Invalid(f"{path}: the model does not run: {one_line(error)}") from error


def rehearse(model, recorder, tokens):
    """Runs two tokens to find out what each layer is; refuses a model that cannot be recorded."""
    torch = recorder.torch
    model(input_ids=torch.tensor([(tokens * 2)[:2]], device=model.device), use_cache=True)
    if not recorder.layers:
        refuse(f"{type(model).__name__} made no call of the attention function: it has attention of its own")
    for layer in recorder.layers.values():
        layer.positions = 0
    recorder.checked = None


def chosen_layers(recorder, text_config, wanted):
    """The layers to record, ascending: those wanted (default: all) that a trace can say. Names the others."""
    total = text_config.num_hidden_layers
    if wanted and wanted[-1] >= total:
        refuse(f"--layers asks for layer {wanted[-1]}, but the model has layers 0-{total - 1}")
    left_out = {}
    for index in range(total):
        layer = recorder.layers.get(index)
        reason = "no attention" if layer is None else layer.left_out
        if reason:
            left_out.setdefault(reason, []).append(index)
    described = "; ".join(f"{layer_list(layers)} ({reason})" for reason, layers in left_out.items())
    skipped = {index for layers in left_out.values() for index in layers}
    asked = sorted(skipped.intersection(wanted or ()))
    chosen = [index for index in wanted or range(total) if index not in skipped]
    if asked or not chosen:
        refuse(f"{'--layers asks for layers' if asked else 'all layers are'} that a trace cannot say: {described}")
    if left_out:
        print(f"record_hf: left out: layers {described}", file=sys.stderr)
    first = recorder.layers[chosen[0]].shape()
    for index in chosen:
        for what, size in recorder.layers[index].shape().items():
            if size != first[what]:
                refuse(f"layer {index} has {what} {size}, but layer {chosen[0]} has {first[what]}: a trace has one for all "
                       "layers; choose by --layers")
    return chosen


def layer_list(layers):
    """Ascending numbers as text: 0,3-5."""
    ranges = []
    for layer in layers:
        if ranges and ranges[-1][1] == layer - 1:
            ranges[-1][1] = layer
        else:
            ranges.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


# ---- the recording -----------------------------------------------------------------------------------------


def layout(layer, layers, prompt, steps, window, dtype, is_sharded):
    """The files' tensors, as Files takes them; a shard per layer, or a single file."""
    size, tokens = layer.shape(), prompt + steps
    shards = []
    for row in range(layers):
        key = dtype, (size["KV heads"], tokens, size["head_dim"])
        query = (size["query heads"], window + steps, size["head_dim"])
        shards.append({f"layers.{row}.key": key, f"layers.{row}.value": key, f"layers.{row}.query": (dtype, query),
                       f"layers.{row}.output_projection":
                           (dtype, (size["query heads"] * size["head_dim"], size["model_dim"])),
                       f"layers.{row}.attention_output": ("F32", query)})
    shards[0]["tokens"] = "I32", (tokens,)
    return shards if is_sharded else [{name: what for shard in shards for name, what in shard.items()}]


def decode(model, recorder, forced, prompt, steps, progress):
    """Runs the prompt and the steps: those tokens of `forced` that there are, then the most probable one (of equals, the
    one with the smallest id). Returns the prompt + steps tokens that the model read."""
    torch, tokens = recorder.torch, forced[:prompt]
    result = model(input_ids=torch.tensor([tokens], device=model.device), use_cache=True, logits_to_keep=1)
    begin = time.monotonic()
    for step in range(steps):
        logits = result.logits[0, -1]
        if not torch.isfinite(logits).all():
            refuse(f"the logits after position {prompt + step - 1} are not finite")
        greedy = int((logits == logits.max()).nonzero()[0])
        tokens.append(forced[prompt + step] if prompt + step < len(forced) else greedy)
        result = model(input_ids=torch.tensor([tokens[-1:]], device=model.device), use_cache=True,
                       past_key_values=result.past_key_values)
        progress(f"step {step + 1} of {steps}, {(step + 1) / max(time.monotonic() - begin, 1e-9):.1f} tokens/s")
    for index in recorder.chosen:
        if recorder.layers[index].positions != prompt + steps:
            refuse(f"layer {index} attended at {recorder.layers[index].positions} positions of {prompt + steps}")
    return tokens


def record(options):
    try:
        import torch
    except ImportError as error:
        refuse(f"needs the packages of requirements.txt, beside this script: {error}")
    forced = read_tokens(options)
    prompt, steps = options.prompt, options.steps
    if len(forced) < prompt:
        refuse(f"{options.tokens or options.bytes} has {len(forced)} tokens, but the prompt has {prompt}")
    forced = forced[:prompt + steps]
    window = min(prompt, 128) if options.window is None else options.window
    recorder = Recorder(torch, options.dtype)
    with torch.inference_mode(), Progress("record_hf", options.quiet) as progress:
        progress("loading")
        model, text = load_model(options.model, recorder, options.device)
        vocabulary = model.get_input_embeddings().num_embeddings
        for position, token in enumerate(forced):
            if not 0 <= token < vocabulary:
                refuse(f"token {token} at position {position} is not in the vocabulary of {vocabulary}")
        with running(options.model):
            rehearse(model, recorder, forced)
        progress.end()
        chosen = chosen_layers(recorder, text, options.layers)
        longest = getattr(text, "max_position_embeddings", None)
        if longest and prompt + steps > longest:
            print(f"record_hf: warning: {prompt + steps} tokens, but the model is made for {longest}", file=sys.stderr)
        layer = recorder.layers[chosen[0]]
        size = layer.shape()
        name = Path(options.model).resolve().name if os.path.isdir(options.model) else options.model
        given = max(0, len(forced) - prompt)
        metadata = {"format": "kvbound-trace", "version": "1", "model": f"{name} ({type(model).__name__})",
                    "source": f"{Path(options.tokens or options.bytes).name}: {given} of {steps} decode steps given, "
                              "the others greedy",
                    "layers": len(chosen), "query_heads": size["query heads"], "kv_heads": size["KV heads"],
                    "head_dim": size["head_dim"], "model_dim": size["model_dim"], "prompt_tokens": prompt,
                    "decode_tokens": steps, "window_queries": window, "scale": repr(layer.scale), "rope": "applied",
                    "model_layers": layer_list(chosen)}
        shards = layout(layer, len(chosen), prompt, steps, window, options.dtype, options.out.endswith(INDEX))
        with Files(options.out, {field: str(value) for field, value in metadata.items()}, shards) as files:
            for row, index in enumerate(chosen):
                files.write(f"layers.{row}.output_projection", recorder.layers[index].projection.weight.T)
            recorder.begin(files, chosen, prompt, window, progress)
            with running(options.model):
                tokens = decode(model, recorder, forced, prompt, steps, progress)
            files.write("tokens", torch.tensor(tokens, dtype=torch.int64))
            files.commit()
    print(f"kvbound inspect {options.out} --verify")


# ---- the command line --------------------------------------------------------------------------------------


def read_tokens(options):
    """The token ids: a file's bytes, or decimal numbers separated by white space or commas, also as a JSON array."""
    if options.bytes:
        return list(whole_file(options.bytes))
    text = whole_file(options.tokens).decode("utf-8", errors="replace").strip()
    if text.startswith("["):
        try:
            tokens = json.loads(text)
        except ValueError as error:
            refuse(f"{options.tokens}: {error}")
        if not all(type(token) is int for token in tokens):
            refuse(f"{options.tokens}: expected an array of token ids")
        return tokens
    words = [word for word in re.split(r"[\s,]+", text) if word]
    for position, word in enumerate(words):
        if not re.fullmatch(r"[0-9]{1,10}", word):
            refuse(f"{options.tokens}: {word[:40]!r} at position {position} is not a token id")
    return [int(word) for word in words]


def parse_options():
    parser = Parser(__doc__)
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face directory, or ORGANISATION/NAME for the hub's cache")
    tokens = parser.add_mutually_exclusive_group(required=True)
    tokens.add_argument("--tokens", metavar="FILE", help="token ids, as tokenize.py prints them")
    tokens.add_argument("--bytes", metavar="FILE", help="a text whose bytes are the token ids")
    parser.add_argument("--prompt", metavar="N", type=count(1), required=True, help="prompt tokens: FILE's first N")
    parser.add_argument("--steps", metavar="T", type=count(0), required=True,
                        help="decode steps: on FILE's next tokens, then greedily")
    parser.add_argument("--window", metavar="W", type=count(1), help="prompt queries to record: the last W (default: 128)")
    parser.add_argument("--layers", metavar="L", type=layers, help="model layers to record: 0,3-5 (default: all)")
    parser.add_argument("--dtype", choices=("F32", "F16", "BF16"), default="F16", help="stored type (default: F16)")
    parser.add_argument("--device", default="cpu", help="where torch runs the model (default: cpu)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("out", metavar="OUT", help="the trace; a name that ends in .index.json makes a shard per layer")
    options = parser.parse_args()
    if options.window and options.window > options.prompt:
        parser.error(f"--window {options.window} is more than --prompt {options.prompt}")
    return options


def main():
    run("record_hf", lambda: record(parse_options()))


if __name__ == "__main__":
    main()
