"""A press of kvpress run on a prompt: what each layer's attention read, and which of it the press kept."""
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvbound.checks import check_compaction
from kvbound.recording.attention_recorder import Recorder, refuse
from kvbound.recording.hf_model import recorded_model, running
from kvbound.recording.hf_recording import token_ids


@dataclass(frozen=True, eq=False)
class PromptLayer:
    """One layer's prompt, in float32, and what the press kept of it.

    index       the model's number of the layer
    queries     [n, num_qo_heads, head_dim], after RoPE
    keys        [n, num_kv_heads, head_dim], after RoPE; values likewise
    projection  [num_qo_heads * head_dim, model_dim]: W^O
    rotation    (cos, sin) [n + F, head_dim] of RoPE, F positions behind the prompt included; None if there is none
    kept        [num_kv_heads, n] of bool
    memory      of what ranking.py has computed from it
    """

    index: int
    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    projection: np.ndarray
    sm_scale: float
    rotation: Any
    kept: np.ndarray
    memory: dict = field(default_factory=dict, repr=False)


class _Memory:
    """Takes from a Recorder what Files would write: {tensor: [tokens, heads, head_dim]}."""

    def __init__(self):
        self.arrays = {}

    def write(self, name, array, where):
        if not name.endswith("attention_output"):
            self.arrays[name] = np.ascontiguousarray(array.detach().cpu().numpy().swapaxes(0, 1))


def pressed_prompt(press, model, ids, *, future_positions=0, device=None, note=warnings.warn):
    """The layers of a prompt after the press has compressed its cache: [PromptLayer].

    press, model, ids, device   as kvbound.kvpress.check
    future_positions            F of PromptLayer
    note                        called with a line on layers that a trace cannot say, which are left out

    raises   InvalidInput for a model that record_hf refuses, too, and for a press that leaves other rows than the cache had
    """
    import torch
    from transformers import DynamicCache

    ids, n = token_ids(ids, None)
    recorder, memory = Recorder(torch, "F32"), _Memory()
    with torch.inference_mode(), recorded_model(model, recorder, ids, None, note, device) as (running_model, name, chosen):
        recorder.begin(memory, chosen, n, n, lambda text: None)
        modules = [recorder.layers[index].module for index in chosen]
        for module in modules:
            module.masked_key_indices = None  # what presses that mask set
        cache = DynamicCache(config=running_model.config)
        with running(name), press(running_model):
            running_model(input_ids=torch.tensor([ids], device=running_model.device), past_key_values=cache, use_cache=True,
                          logits_to_keep=1)
        rotation = _rotation(torch, running_model, n + future_positions)
        layers = []
        for row, (index, module) in enumerate(zip(chosen, modules)):
            queries, keys, values = (memory.arrays[f"layers.{row}.{part}"] for part in ("query", "key", "value"))
            left = [part[0].cpu().numpy() for part in (cache.layers[index].keys, cache.layers[index].values)]
            layers.append(PromptLayer(index, queries, keys, values, recorder.layers[index].projection.weight.T.cpu().numpy(),
                                      recorder.layers[index].scale, rotation,
                                      _kept(index, keys, values, left, module.masked_key_indices)))
            module.masked_key_indices = None
    return layers


def _rotation(torch, model, positions):
    """(cos, sin) of the model's RoPE at the positions from 0 on, None if it has none."""
    language_model = getattr(model.model, "language_model", model.model)
    if not hasattr(language_model, "rotary_emb"):
        return None
    cos, sin = language_model.rotary_emb(torch.zeros(1, device=model.device), torch.arange(positions, device=model.device)[None])
    return cos[0].double().cpu().numpy(), sin[0].double().cpu().numpy()


def _kept(index, keys, values, left, masked):
    """[num_kv_heads, n] of bool: the rows that are left in a layer's cache, and are not masked."""
    n, kv_heads = keys.shape[:2]
    kept = np.zeros((kv_heads, n), bool)
    rows, offsets = [], [0]
    for head in range(kv_heads):
        where = {}
        for position in reversed(range(n)):  # of equal rows the first position is taken first
            where.setdefault(keys[position, head].tobytes() + values[position, head].tobytes(), []).append(position)
        for key, value in zip(left[0][head], left[1][head]):
            found = where.get(key.tobytes() + value.tobytes())
            if not found:
                refuse(f"layer {index}: the press left a row in KV head {head} that the cache did not have: it changes keys or "
                       "values")
            rows.append(found.pop())
        offsets.append(len(rows))
        kept[head, rows[offsets[-2]:]] = True
    for name, before, after in (("keys", keys, left[0]), ("values", values, left[1])):
        found = check_compaction(after, before.swapaxes(0, 1).copy(), np.array(rows), np.array(offsets))
        if not found:
            refuse(f"layer {index}: {name}: {found.message}")
    if masked is not None:
        _, heads, positions = (np.asarray(part.cpu()) for part in masked)
        kept[heads, positions] = False
    return kept
