"""What the tests of the package share: attention in NumPy, and the command line's answer to the same arrays."""
import json
import os
import subprocess

from pathlib import Path

import numpy as np
import pytest

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def attention(q, k, v, sm_scale=None):
    """softmax(sm_scale q k^T) v of one query a sequence, in double precision, rounded to q's type."""
    group = q.shape[1] // k.shape[2]
    keys, values = (np.repeat(np.asarray(x, "f8"), group, axis=2) for x in (k, v))
    logits = np.einsum("bhd,bthd->bht", np.asarray(q, "f8"), keys) * (sm_scale or q.shape[2] ** -0.5)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("bht,bthd->bhd", weights / weights.sum(-1, keepdims=True), values).astype(q.dtype)


@pytest.fixture
def commanded(tmp_path):
    """commanded(operation, arrays, **options): the part of the document of `kvbound check`, and what it printed."""

    def check(operation, arrays, **options):
        np.savez(tmp_path / "call.npz", **{name: np.ascontiguousarray(array) for name, array in arrays.items()})
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        done = subprocess.run(["kvbound", "check", operation, "call.npz", "--json", "out.json", "--quiet", *words], cwd=tmp_path,
                              capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1, 5), done.stderr
        part, = json.loads((tmp_path / "out.json").read_text("utf-8"))["parts"]
        return part, done

    return check
