"""A model that runs in transformers, recorded as a trace."""
import os
import time
import warnings
from pathlib import Path

from kvbound.errors import InvalidInput, InvalidOption
from kvbound.recording.attention_recorder import Recorder, refuse
from kvbound.recording.hf_model import layer_list, recorded_model, running
from kvbound.recording.trace_file import INDEX, Files


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


def token_ids(ids, prompt):
    """The ids as a list of integers, and how many of them are the prompt (default: all)."""
    found = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    for position, token in enumerate(found):
        if isinstance(token, bool) or not isinstance(token, int):
            raise InvalidInput(f"ids: element {position} is {str(token)[:40]!r}; expected [tokens] integers")
    prompt = len(found) if prompt is None else prompt
    if prompt < 1:
        raise InvalidOption(f"prompt: is {prompt}; expected at least one token")
    if len(found) < prompt:
        raise InvalidInput(f"ids: has {len(found)} tokens, but the prompt has {prompt}")
    return found, prompt


def metadata_of(name, source, size, scale, chosen, given, prompt, steps, window):
    return {"format": "kvbound-trace", "version": "1", "model": name,
            "source": f"{source}: {given} of {steps} decode steps given, the others greedy", "layers": len(chosen),
            "query_heads": size["query heads"], "kv_heads": size["KV heads"], "head_dim": size["head_dim"],
            "model_dim": size["model_dim"], "prompt_tokens": prompt, "decode_tokens": steps, "window_queries": window,
            "scale": repr(scale), "rope": "applied", "model_layers": layer_list(chosen)}


def record_hf(model, ids, *, out, prompt=None, steps=0, window=None, layers=None, dtype="F16", device=None, source="ids",
              progress=None, note=warnings.warn):
    """Records a trace from a model that runs in Hugging Face transformers.

    The model runs in float32 with an attention function of ours, which rounds queries, keys and values (after QK-norm and
    RoPE) to the stored type, records them, and calls the model's own eager attention on the rounded numbers: what `kvbound
    inspect --verify` recomputes is what the model computed. Every attention layer is rounded, whichever layers are recorded,
    so that a selection of layers changes no number.

    A trace describes layers in which a query attends to all earlier keys by softmax(sm_scale * q.k). Layers with a sliding
    window or without attention are left out and noted; `model_layers` in the metadata says which were recorded. A model
    whose attention is of another kind (logit softcap, sinks, latent attention, biases, gates, ...) is refused.

    model      a Hugging Face directory, ORGANISATION/NAME of the hub, or a causal language model of transformers in float32
    ids        [tokens] integers: a list, a NumPy array or a tensor
    out        the trace's path; a name that ends in .index.json makes a shard per layer
    prompt     prompt tokens: the first so many of ids (default: all)
    steps      decode steps: on the next ids, then greedily
    window     prompt queries to record: the last so many (default: 128, or all of a shorter prompt)
    layers     ascending numbers of the model's layers to record (default: all)
    dtype      the stored type: "F32", "F16" or "BF16"
    device     where torch runs a model that is loaded here (default: "cpu")
    source     where the ids are from, for the metadata
    progress   called with a line of text after each layer of the prompt and each step
    note       called with a line on layers that are left out, or a prompt longer than the model is made for

    returns    the path; files are written whole or not at all
    raises     InvalidInput for a model, a token or a number that cannot be recorded; InvalidOption; OSError; ImportError
    """
    import torch

    ids, prompt = token_ids(ids, prompt)
    window = min(prompt, 128) if window is None else window
    if not 1 <= window <= prompt or steps < 0:
        raise InvalidOption(f"window: is {window}, steps: {steps}; expected 1 to {prompt} prompt queries, and steps from 0 on")
    if dtype not in ("F32", "F16", "BF16"):
        raise InvalidOption(f"dtype: is {dtype!r}; expected F32, F16 or BF16")
    forced, progress = ids[:prompt + steps], progress or (lambda text: None)
    recorder = Recorder(torch, dtype)
    progress("loading")
    with torch.inference_mode(), recorded_model(model, recorder, forced, layers, note, device) as (running_model, name, chosen):
        longest = getattr(running_model.config.get_text_config(), "max_position_embeddings", None)
        if longest and prompt + steps > longest:
            note(f"warning: {prompt + steps} tokens, but the model is made for {longest}")
        layer = recorder.layers[chosen[0]]
        if os.path.isdir(name):
            name = Path(name).resolve().name
        metadata = metadata_of(f"{name} ({type(running_model).__name__})", source, layer.shape(), layer.scale, chosen,
                               max(0, len(forced) - prompt), prompt, steps, window)
        shards = layout(layer, len(chosen), prompt, steps, window, dtype, str(out).endswith(INDEX))
        with Files(out, {field: str(value) for field, value in metadata.items()}, shards) as files:
            for row, index in enumerate(chosen):
                files.write(f"layers.{row}.output_projection", recorder.layers[index].projection.weight.T)
            recorder.begin(files, chosen, prompt, window, progress)
            with running(name):
                tokens = decode(running_model, recorder, forced, prompt, steps, progress)
            files.write("tokens", torch.tensor(tokens, dtype=torch.int64))
            files.commit()
    return Path(out)
