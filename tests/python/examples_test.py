"""The examples print what they promise."""
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SAMPLES

TRACE, TASKS = SAMPLES / "pocket-gqa.safetensors", SAMPLES.parents[1] / "sim/evaluate/tasks/pocket.jsonl"
PYTHON = Path(__file__).resolve().parents[2] / "sim/python"
EXPECTED = {
    "validate_kernel": [
        "256 terms 0..255: 4 x 64, one after the other",
        "; declared: accumulate=F32, tile=32, splits=4, weights=F16",
        *[f"{kind:10} agrees; the gain is 1 within" for kind in ("sink", "needle", "flat", "power-law", "overflow", "tied")],
        "notices zeros, a gain of 0.72, swapped heads, a NaN: True"],
    "planted_bug": [
        "within 0.01 of what is right: True",
        "differs: sequence 1 is off by ",
        "diagnosis: the last entry is missing (that explains all 4 rows that were tried)",
        "mended: agrees"],
    "rank_policies": ["10% kept: relative loss of a head's output", "  random", "  streaming-llm         0.502  ####", "20% kept"],
    "knorm_press": ["policy                       L   theta      KL", "snapkv                   13.78   67.41",
                    "KnormPress               34.58  120.50", "KnormPress+critical      33.86  116.29"]}
ARGUMENTS = {"rank_policies": [TRACE, "page.html"], "knorm_press": [TRACE, SAMPLES / "pocket", TASKS]}


def printed(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXPECTED)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = printed(PYTHON / f"examples/{name}.py", *ARGUMENTS.get(name, []))
    assert (tmp_path / "page.html").exists() == (name == "rank_policies")
    at = [text.find(line) for line in EXPECTED[name]]
    assert min(at) >= 0 and at == sorted(at), text
    if name == "validate_kernel":
        bands = re.findall(r"within ([\d.]+)%, ([\d.]+)% in any order", text)
        assert len(bands) == 6 and all(float(declared) < float(undeclared) for declared, undeclared in bands)


def test_the_benchmark_of_overhead_counts_no_copies():
    heading, *rows = printed(Path(__file__).with_name("bench_overhead.py"), "2").splitlines()
    assert heading.split()[-1] == "copies" and len(rows) >= 3
    for row in rows:
        python, whole, copies = map(float, row.split()[-3:])
        assert 0 < python < whole and copies == 0
