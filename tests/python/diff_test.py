"""Results of an implementation on a trace, judged in memory as `kvbound diff` judges them in a file."""
import json
import subprocess

import kvbound
import numpy as np
import pytest
from conftest import SAMPLES

TRACE = SAMPLES / "pocket-gqa.safetensors"
RUN = {"policy": "h2o", "budget": "10%"}


@pytest.fixture(scope="module")
def outputs():
    """What the CUDA kernels' emulation computes, in single precision."""
    record = kvbound.replay(TRACE, ["h2o"], budget="10%", layers=[1], steps=8, records=True, backend="emulated").record(0, 0)
    offsets = np.cumsum([0, *map(len, record.kept)])
    return {"layers.1.output": record.outputs.astype("f4"), "layers.1.evicted": record.evicted,
            "layers.1.kept": np.concatenate(record.kept), "layers.1.kept_offsets": offsets}


def test_right_results_agree_and_a_gain_does_not(outputs):
    good = kvbound.diff(TRACE, outputs, **RUN)
    assert good and good.verdict == "agrees" and good.message == "" and good.unlikely == []
    assert set(good["agreement"].axes["judged"]["tensor"]) == {"kept", "kept_offsets", "evicted", "output"}
    bad = kvbound.diff(TRACE, outputs | {"layers.1.output": outputs["layers.1.output"] * np.float32(0.97)}, **RUN)
    assert not bad and "layers.1.output" in bad.message and "gain" in bad.message


def test_a_dump_is_judged_as_the_command_judges_it(tmp_path):
    subprocess.run(["kvbound", "replay", TRACE, "--policy", "snapkv+critical", "--budget", "10%", "--layers", "2", "--steps", "4",
                    "--backend", "emulated", "--dump", "dump.safetensors", "--quiet"], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(["kvbound", "diff", TRACE, "dump.safetensors", "--json", "out.json", "--quiet"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)
    result = kvbound.diff(TRACE, tmp_path / "dump.safetensors")
    ours, = result.document()["parts"]
    theirs, = json.loads((tmp_path / "out.json").read_text("utf-8"))["parts"]
    assert ours["cubes"] == theirs["cubes"] and ours["axes"] == theirs["axes"]
    assert result.ok == (done.returncode == 0)
    assert str(result).splitlines()[1:] == done.stdout.rstrip("\n").splitlines()[1:]  # without files' names


@pytest.mark.parametrize(("change", "options", "message"), [
    ({"layers.1.output": np.zeros((8, 3, 64), "f4")}, {}, r"kernel: .*layers.1.output.*expected"),
    ({"layers.9.output": np.zeros((8, 8, 64), "f4")}, {}, r"kernel: "),
    ({"layers.1.outputs": np.zeros(3)}, {}, r"kernel: .*layers.1.outputs"),
    ({}, {"policy": "h3o"}, r"h3o"), ({}, {"storage": "F12"}, r"storage"), ({}, {"tile": -3}, r"tile"),
    ({}, {"policy": None}, r"policy")])
def test_what_does_not_fit_is_refused_in_one_line(outputs, change, options, message):
    with pytest.raises(ValueError, match=message) as refusal:
        kvbound.diff(TRACE, outputs | change, **RUN | options)
    assert "\n" not in str(refusal.value)
