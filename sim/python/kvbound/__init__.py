"""kvbound: KV-cache compression for large language models with its guarantees checked."""
from importlib import import_module
from typing import TYPE_CHECKING

from kvbound.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    from kvbound._native import revision as __revision__
    from kvbound._native import version as __version__
    from kvbound.checks import check_attention as check_attention
    from kvbound.checks import check_compaction as check_compaction
    from kvbound.checks import check_merge as check_merge
    from kvbound.checks import check_norms as check_norms
    from kvbound.checks import check_scores as check_scores
    from kvbound.checks import check_topk as check_topk
    from kvbound.checks import compare as compare
    from kvbound.cubes import Cube as Cube
    from kvbound.cubes import Result as Result
    from kvbound.diffs import Diff as Diff
    from kvbound.diffs import diff as diff
    from kvbound.evaluations import Evaluation as Evaluation
    from kvbound.evaluations import evaluate as evaluate
    from kvbound.recording.dump_writer import write_dump as write_dump
    from kvbound.recording.hf_recording import record_hf as record_hf
    from kvbound.recording.trace_writer import from_torch as from_torch
    from kvbound.replays import Merge as Merge
    from kvbound.replays import Record as Record
    from kvbound.replays import Replay as Replay
    from kvbound.replays import replay as replay
    from kvbound.result import CheckResult as CheckResult
    from kvbound.result import Comparison as Comparison
    from kvbound.result import Factor as Factor
    from kvbound.result import Worst as Worst
    from kvbound.trace import Layer as Layer
    from kvbound.trace import Trace as Trace
    from kvbound.trace import open as open

# Modules are loaded when one of their names is used: recording works where the compiled module is not.
_NAMES = {
    "checks": ("check_attention", "check_compaction", "check_merge", "check_norms", "check_scores", "check_topk", "compare"),
    "cubes": ("Cube", "Result"),
    "diffs": ("Diff", "diff"),
    "evaluations": ("Evaluation", "evaluate"),
    "recording.dump_writer": ("write_dump",),
    "recording.hf_recording": ("record_hf",),
    "recording.trace_writer": ("from_torch",),
    "replays": ("Merge", "Record", "Replay", "replay"),
    "result": ("CheckResult", "Comparison", "Factor", "Worst"),
    "trace": ("Layer", "Trace", "open"),
}
__all__ = ["InvalidInput", "InvalidOption", "__revision__", "__version__", *(name for names in _NAMES.values() for name in names)]


def __getattr__(name):
    if name in ("__revision__", "__version__"):
        return getattr(import_module("kvbound._native"), name.strip("_"))
    if name in ("kvpress", "probe", "testing"):
        return import_module(f"kvbound.{name}")
    for module, names in _NAMES.items():
        if name in names:
            globals()[name] = value = getattr(import_module(f"kvbound.{module}"), name)
            return value
    raise AttributeError(f"module 'kvbound' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
