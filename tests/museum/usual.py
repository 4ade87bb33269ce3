"""What the field's usual tests say of a result: {name of the test: whether it passes}."""
import numpy as np

from fault import Tolerance
from kernels import decode

GPUCHECK = Tolerance("gpucheck", 5e-2, 5e-2)  # its default for BF16


def flashinfer_bench(result, reference):
    """An element fails if it is further away than 0.01 both absolutely and relatively; none may fail (the default)."""
    distance = np.abs(result - reference)
    return bool(np.isfinite(result).all() and not ((distance > 1e-2) & (distance > 1e-2 * np.abs(reference))).any())


def of_attention(fault, case):
    def passes(tolerance):
        return tolerance.passes(case.result, case.reference)
    return {f"{fault.tolerance.source} {text(fault.tolerance)}": passes(fault.tolerance),
            "flashinfer-bench": flashinfer_bench(case.result, case.reference), f"gpucheck {text(GPUCHECK)}": passes(GPUCHECK)}


def text(tolerance):
    return " / ".join(f"{number:g}" for number in dict.fromkeys((tolerance.atol, tolerance.rtol)))


def of_topk(_, case):
    """Whether nine tenths of the entries are right, and whether the sum of their scores is within a hundredth."""
    scores, overlaps, sums = case.file.array("scores"), [], []
    for row, wrong, right in zip(scores, case.file.array("indices"), case.right["indices"]):
        right, wrong = right[right >= 0], wrong[(wrong >= 0) & (wrong < len(row))]
        overlaps.append(len({*right} & {*wrong}) / len(right))
        sums.append(np.isclose(row[wrong].sum(), row[right].sum(), rtol=1e-2))
    return {"90 % overlap": min(overlaps) >= 0.9, "sum of scores 0.01": all(sums)}


def of_compact(_, case):
    """Whether the size of the cache, its root of the sum of squares, and attention over it are within tolerances."""
    wrong, right = (np.asarray(rows, np.float32).reshape(1, -1, 1, np.shape(rows)[-1])
                    for rows in (case.file.array("after"), case.right["after"]))
    q = np.random.default_rng(3).standard_normal((1, 8, wrong.shape[-1]), np.float32)
    outputs = [decode(q, rows, rows)[0] for rows in (wrong, right)]
    return {"norm 0.01": bool(np.isclose(np.linalg.norm(wrong), np.linalg.norm(right), rtol=1e-2)),
            f"attention over it {text(GPUCHECK)}": GPUCHECK.passes(*outputs)}


TESTS = {"attention": of_attention, "topk": of_topk, "compact": of_compact}

