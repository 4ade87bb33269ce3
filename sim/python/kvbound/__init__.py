"""kvbound: KV-cache compression for large language models with its guarantees checked."""
from kvbound._native import revision as __revision__
from kvbound._native import version as __version__
from kvbound.checks import check_attention, check_compaction, check_merge, check_norms, check_scores, check_topk, compare
from kvbound.cubes import Cube, Result
from kvbound.diff import Diff, diff
from kvbound.errors import InvalidInput, InvalidOption
from kvbound.evaluate import Evaluation, evaluate
from kvbound.replay import Merge, Record, Replay, replay
from kvbound.result import CheckResult, Comparison, Factor, Worst
from kvbound.trace import Layer, Trace, open

__all__ = ["CheckResult", "Comparison", "Cube", "Diff", "Evaluation", "Factor", "InvalidInput", "InvalidOption", "Layer", "Merge", "Record", "Replay", "Result", "Trace", "Worst",
           "__revision__", "__version__", "check_attention", "check_compaction", "check_merge", "check_norms", "check_scores",
           "check_topk", "compare", "diff", "evaluate", "open", "replay"]
