"""Dumps for tests: read, changed, computed anew by support/independent_replay.py, written."""
import copy

import numpy as np

from support import independent_replay
from support.kvbound_cli import TraceFile

INTEGRAL = ("kept", "kept_offsets", "score_positions", "left")


class Dump(TraceFile):
    """Metadata, and tensors {name: (dtype, array)}, to be changed before they are written."""

    def __init__(self, metadata, tensors):
        self.metadata, self.tensors = metadata, tensors

    @classmethod
    def read(cls, path):
        metadata, entries = independent_replay.open_tensors(path)
        return cls(metadata, {name: (entry[0], independent_replay.read_tensor(entry)) for name, entry in entries.items()})

    def copy(self):
        return copy.deepcopy(self)

    def kinds(self):
        """The names without their layers."""
        return {name.split(".")[-1] for name in self.tensors}

    def array(self, layer, kind):
        return self.tensors[f"layers.{layer}.{kind}"][1]

    def put(self, layer, kind, array):
        name = f"layers.{layer}.{kind}"
        self.tensors[name] = self.tensors[name][0], array

    def only(self, kinds):
        """The same with these tensors alone."""
        return Dump(dict(self.metadata), {name: value for name, value in self.tensors.items()
                                          if name.split(".")[-1] in kinds})

    def stored(self, dtype):
        """The same with every real tensor in this type."""
        return Dump(dict(self.metadata), {name: (kind if kind == "I64" else dtype, array)
                                          for name, (kind, array) in self.tensors.items()})


def with_precision(layer, precision):
    """The layer in this NumPy type: what is computed from it is computed in that."""
    for name, array in vars(layer).items():
        setattr(layer, name, array.astype(precision))
    return layer


def layer_tensors(trace, layer, policy, budget, kept=None, left=None):
    """All tensors of one layer, {kind: array}; kept: per KV head, or None for what the policy keeps; left [steps,
    kv_heads]: who leaves while decoding, or None for who leaves by the policy (the nearest to it, where left says what
    cannot be).
    """
    heads = [independent_replay.prompt_scores(trace, layer, policy, group, budget) for group in range(trace.kv_heads)]
    if kept is None:
        kept = [independent_replay.keep(policy, budget - scores.always.sum(), scores) for scores in heads]
    tensors = {"kept": np.concatenate(kept).astype(np.int64),
               "kept_offsets": np.cumsum([0] + [len(positions) for positions in kept])}
    if policy.host != "streaming-llm":
        tensors["score"] = np.stack([scores.score for scores in heads])
        tensors["score_positions"] = np.arange(tensors["score"].shape[1])
    if policy.selection == "critical":
        tensors["stage_two_score"] = np.stack([scores.stage_two for scores in heads])
    if policy.selection in ("critical", "theta-sweep"):
        tensors["projected_value_norms"] = np.concatenate([scores.norms for scores in heads])
    if policy.dynamic:
        left = tensors["left"] = independent_replay.decode(trace, layer, policy, budget, heads, kept, left)[0]
        results, _ = independent_replay.replay_layer(trace, layer, kept, left)
    else:
        results, _ = independent_replay.replay_layer(trace, layer, kept)
    return {**tensors, **{kind: array for kind, array in results.items() if kind != "relative"}}


def recompute(path, policy_text, budget, precision=np.float64, change_layer=None, kept=None, left=None,
              policy_changes=(), **metadata):
    """A dump of this trace that shares no code with the program.

    precision      what it is computed in
    change_layer   called with each layer, to change it
    kept, left     {layer: per KV head}, {layer: [steps, kv_heads]}: the choices, instead of the policy's
    policy_changes  (option, value) pairs: what is computed is another policy than the dump says
    """
    trace, policy = independent_replay.Trace(path), independent_replay.parse_policy(policy_text)
    entries = independent_replay.resolve_budget(budget, trace, policy)
    for option, value in policy_changes:
        setattr(policy, option, value)
    real, accumulate = ("F64", "F64") if precision == np.float64 else ("F32", "F32")
    storage = trace.tensors["layers.0.key"][0]
    dump = Dump({"format": "kvbound-dump", "version": "1", "policy": policy_text, "budget": budget, "backend": "numpy",
                 "storage": accumulate if (storage, accumulate) == ("F64", "F32") else storage,
                 "accumulate": accumulate, "trace_sha256": trace.sha256, **metadata}, {})
    for index in range(trace.layers):
        layer = with_precision(trace.layer(index), precision)
        if change_layer:
            change_layer(layer)
        tensors = layer_tensors(trace, layer, policy, entries, kept and kept[index], left and left[index])
        for kind, array in tensors.items():
            dump.tensors[f"layers.{index}.{kind}"] = "I64" if kind in INTEGRAL else real, array
    return dump
