#!/usr/bin/env python3
"""What a check costs beside its judge: microseconds of Python around the module's own call, and arrays that are copied.

usage: bench_overhead.py [REPEATS]

The arrays are tiny, so that a judge that is called with them has little to do. Of the repeats the fastest counts: the
others were disturbed. The Python part is a call whose module answers at once with a result that is there already.
"""
import sys
import timeit
from types import SimpleNamespace

import kvbound
import numpy as np
from kvbound import _native, checks

CALLS = 100  # so few that some repeats are not disturbed


def fastest(call, repeats):
    """Microseconds a call."""
    return min(timeit.repeat(call, number=CALLS, repeat=repeats)) / CALLS * 1e6


def attention():
    """(out, q, k, v) of one token more than one head needs: 2 tokens, head_dim 4."""
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal(shape).astype("f4") for shape in ((1, 1, 4), (1, 2, 1, 4), (1, 2, 1, 4)))
    weights = np.exp(k[0, :, 0] @ q[0, 0] / 2)
    return (weights @ v[0, :, 0] / weights.sum()).astype("f4")[None, None], q, k, v


def cases():
    arrays = attention()
    scores, indices = np.array([[3, 2, 1]], "f4"), np.array([[0, 1]])
    yield "attention", lambda: kvbound.check_attention(*arrays)
    yield "attention, 3 options", lambda: kvbound.check_attention(*arrays, sm_scale=0.5, splits=4, tile=16)
    yield "topk", lambda: kvbound.check_topk(indices, scores, 2)
    try:
        import torch
    except ImportError:
        return
    tensors = [torch.from_numpy(array) for array in arrays]
    yield "attention, torch", lambda: kvbound.check_attention(*tensors)


def main():
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    print(f"{'microseconds a call':22}{'Python':>8}{'in all':>8}{'copies':>8}")
    for name, call in cases():
        answer, before = call()._native, _native.copies()
        assert call().ok
        copies, whole = _native.copies() - before, fastest(call, repeats)
        checks._native = SimpleNamespace(check=lambda *_, answer=answer: answer)
        try:
            python = fastest(call, repeats)
        finally:
            checks._native = _native
        print(f"{name:22}{python:8.1f}{whole:8.1f}{copies:8}")


if __name__ == "__main__":
    main()
