"""Dumps for tests: read, changed, recomputed by independent/replay.py, written."""
import copy

import numpy as np

import independent.replay
from independent.allocation import layer_budgets
from support.kvbound_cli import TraceFile

INTEGRAL = ("kept", "kept_offsets", "score_positions", "evicted", "merged_into", "target_of", "rebuilt_target_of")
BY_STEP = ("output", "perturbation", "kept_mass", "bound", "layer_perturbation", "evicted", "merged_into", "step_votes",
           "step_merged_key", "step_merged_value")
# The numbers with which `diff` continues, so that later ones are judged on the cache that they
# make, each after those before
FORCED = ("votes", "merged_key", "merged_value", "rebuilt_votes", "rebuilt_merged_key", "rebuilt_merged_value", "step_votes",
          "step_merged_key", "step_merged_value")


class Dump(TraceFile):
    """Metadata and tensors {name: (dtype, array)} of a dump, which can be changed before it is written."""

    def __init__(self, metadata, tensors):
        self.metadata, self.tensors = metadata, tensors

    @classmethod
    def read(cls, path):
        metadata, entries = independent.replay.open_tensors(path)
        return cls(metadata, {name: (entry[0], independent.replay.read_tensor(entry)) for name, entry in entries.items()})

    def copy(self):
        return copy.deepcopy(self)

    def kinds(self):
        """The names of its tensors without their layers."""
        return {name.split(".")[-1] for name in self.tensors}

    def array(self, layer, kind):
        return self.tensors[f"layers.{layer}.{kind}"][1]

    def put(self, layer, kind, array):
        name = f"layers.{layer}.{kind}"
        self.tensors[name] = self.tensors[name][0], array

    def only(self, kinds):
        """A copy with only these tensors."""
        return Dump(dict(self.metadata), {name: value for name, value in self.tensors.items()
                                          if name.split(".")[-1] in kinds})

    def first_steps(self, count):
        """A copy with only these decode steps; without the caches rebuilt in them."""
        return Dump(dict(self.metadata), {
            name: (dtype, array[:count] if name.split(".")[-1] in BY_STEP else array)
            for name, (dtype, array) in self.tensors.items() if ".rebuilt_" not in name})

    def stored(self, dtype):
        """A copy with every real tensor stored in this type."""
        return Dump(dict(self.metadata), {name: (kind if kind == "I64" else dtype, array)
                                          for name, (kind, array) in self.tensors.items()})


def with_precision(layer, precision):
    """The layer in this NumPy type, so that computations with it have that precision."""
    for name, array in vars(layer).items():
        if name != "index":
            setattr(layer, name, array.astype(precision))
    return layer


def recompute(path, policy_text, budget, precision=np.float64, change_layer=None, kept=None, evicted=None,
              policy_changes=(), **metadata):
    """A dump of this trace that shares no code with the program.

    precision      the NumPy type of the computation
    change_layer   called with each layer, to change it
    kept, evicted     {layer: per KV head}, {layer: [steps, kv_heads]}: the choices, instead of the policy's
    policy_changes  (option, value) pairs: the dump is computed by another policy than it claims
    """
    trace, policy = independent.replay.Trace(path), independent.replay.parse_policy(policy_text)
    entries = independent.replay.resolve_budget(budget, trace, policy)
    for option, value in policy_changes:
        setattr(policy, option, value)
    real, accumulate = ("F64", "F64") if precision == np.float64 else ("F32", "F32")
    storage = trace.tensors["layers.0.key"][0]
    dump = Dump({"format": "kvbound-dump", "version": "1", "policy": policy_text, "budget": budget, "backend": "numpy",
                 "storage": accumulate if (storage, accumulate) == ("F64", "F32") else storage,
                 "accumulate": accumulate, "trace_sha256": trace.sha256, **metadata}, {})
    for index, entries in enumerate(layer_budgets(trace, policy, entries)):
        layer = with_precision(trace.layer(index), precision)
        if change_layer:
            change_layer(layer)
        _, tensors = independent.replay.replayed_layer(trace, layer, policy, entries, kept and kept[index],
                                                       evicted and evicted[index])
        for kind, array in tensors.items():
            dump.tensors[f"layers.{index}.{kind}"] = "I64" if kind in INTEGRAL else real, array
    return dump
