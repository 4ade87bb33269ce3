"""Recorded decode steps through compression policies, and through methods of one's own."""
import os
from typing import NamedTuple

import numpy as np

from kvbound import _native
from kvbound.cubes import Result
from kvbound.runs import Runs
from kvbound.trace import Trace


class Merge(NamedTuple):
    """One KV head's cache after merging: [entries] positions and votes, [entries, head_dim] keys and values."""
    positions: np.ndarray
    votes: np.ndarray
    keys: np.ndarray
    values: np.ndarray


class Record(NamedTuple):
    """What a run did in a layer."""
    kept: list[np.ndarray]  # of each KV head, ascending positions
    stage_one: list[np.ndarray]  # likewise, of two-stage selections; else empty
    score_positions: np.ndarray  # [m]: the positions that were scored
    score: np.ndarray  # [num_kv_heads, m]
    stage_two_score: np.ndarray | None  # likewise
    projected_value_norms: np.ndarray | None  # [num_qo_heads, prompt_tokens]
    merges: list[Merge]  # of each KV head; empty for policies that do not merge
    outputs: np.ndarray  # [steps, num_qo_heads, head_dim]: attention over the compressed cache
    evicted: np.ndarray | None  # [steps, num_kv_heads]: positions, -1: none; None: no evictions in decoding
    merged_into: np.ndarray | None  # likewise; -1: dropped, -2: nothing was evicted


class Replay(Result):
    """What replay() found. Cubes: runs, layers, layer_steps, heads, kv_heads, steps, merges, and agreement with the reference."""
    _has_records = False

    def record(self, run, layer):
        """The Record of a run, by its place in result["runs"], and of a layer, by its place among those replayed.

        raises  LookupError unless replay() was asked to keep records
        """
        if not self._has_records:
            raise LookupError("no records were kept; ask for them by replay(..., records=True)")
        record = Record(**self._native.record(run, layer))
        return record._replace(merges=[Merge(**merge) for merge in record.merges])


def replay(trace, policies, *, budget=None, compression_ratio=None, base=None, backend="reference", layers=None, steps=None,
           recall=40, merge_bounds=False, centred_bound=False, records=False, progress=None) -> Replay:
    """Compresses every layer's prompt by each policy, takes the recorded decode steps, and measures what that changes.

    trace               a Trace, or its path
    policies            texts (`kvbound policies`), objects with `score` or `select` (kvbound.methods), or pairs of such
                        an object and the rest of a policy: (MyScore(), "critical+adakv")
    budget              entries kept per KV head, or shares such as "20%"; one or several
    compression_ratio   instead: shares that are removed, of 0 to 1
    base                the policy that others are compared with, head by head
    backend             "reference", or "emulated": the CUDA kernels on this processor; one or several
    layers              the model's numbers, such as "0,3-5" or [0, 3]; None: all
    steps               the first so many decode steps; None: all
    recall              of so many entries
    merge_bounds        for policies that merge: also their effect on later queries, with KeepKV's bounds (costly)
    centred_bound       also the bound with each value's distance from the full output, which is smaller (costly)
    records             keep what every run did: result.record(run, layer)
    progress            called with the work done, and all of it

    returns             Replay; print() it, or result.to_pandas(): L, its bound, kept mass, recall, bytes and the like
    raises              InvalidOption, InvalidInput; what a method raises; KeyboardInterrupt
    source              CriticalKV (arXiv:2502.03805), OBCache (arXiv:2510.07651), KeepKV (arXiv:2504.09936)
    """
    trace = trace if isinstance(trace, Trace) else Trace(os.fspath(trace))
    runs = Runs(policies, budget, compression_ratio, base, backend)
    chosen = layers if layers is None or isinstance(layers, str) else ",".join(map(str, layers))
    result = Replay(_native.replay(trace._native, runs.native, runs.methods, chosen, steps, recall, merge_bounds, centred_bound, records,
                                   progress))
    result._has_records = records
    return result
