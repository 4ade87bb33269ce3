"""Checks of the package are those of the command line, bit for bit."""
import json
import subprocess

import kvbound
import numpy as np
import pytest
from conftest import attention
from kvbound import testing

CASES = {kind: testing.decode_case(kind, tokens=200, batch=2) for kind in ("sink", "needle", "flat", "power-law", "overflow", "tied")}


def without_place(part):
    return part | {"facts": part["facts"] | {"path": None}}


def same(result, commanded):
    part, done = commanded
    ours, = result.document()["parts"]
    assert without_place(ours) == without_place(part)
    assert result.verdict == part["facts"]["verdict"]
    assert result.ok == (done.returncode == 0)
    assert str(result).splitlines()[1:] == done.stdout.splitlines()[1:]  # the first names the file


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("gain", [1, 0.72])
def test_attention(kind, gain, commanded):
    q, k, v = CASES[kind]
    out = (gain * attention(q, k, v)).astype("f4")
    result = kvbound.check_attention(out, q, k, v)
    assert result.ok == (gain == 1)
    same(result, commanded("attention", {"out": out, "q": q, "k": k, "v": v}))


def test_attention_of_pages_and_options(commanded):
    q, k, v = testing.decode_case("sink", tokens=48, num_kv_heads=2, num_qo_heads=4)
    pages = {name: x.reshape(3, 16, 2, 64)[[2, 0, 1]] for name, x in (("k", k), ("v", v))}
    table = {"kv_indptr": np.array([0, 3]), "kv_indices": np.array([1, 2, 0], "i4"), "kv_last_page_len": np.array([16])}
    out = attention(q, k, v, 0.2)
    result = kvbound.check_attention(out, q, **pages, **table, sm_scale=0.2, splits=2)
    assert result.ok
    same(result, commanded("attention", {"out": out, "q": q, **pages, **table}, sm_scale=0.2, splits=2))


def test_topk(commanded):
    scores = np.random.default_rng(1).standard_normal((3, 50)).astype("f4")
    indices = np.argsort(-scores, axis=1)[:, :7]
    result = kvbound.check_topk(indices, scores, 7)
    assert result.ok
    same(result, commanded("topk", {"indices": indices, "scores": scores}))
    indices[1, 2] = indices[1, 3]
    wrong = kvbound.check_topk(indices, scores)
    assert not wrong
    same(wrong, commanded("topk", {"indices": indices, "scores": scores}))
    with pytest.raises(kvbound.InvalidInput, match=r"indices.shape: is \[3, 7\]; expected \[rows, k\] with k = 8"):
        kvbound.check_topk(indices, scores, 8)


def test_compaction(commanded):
    before = np.random.default_rng(2).standard_normal((2, 9, 4)).astype("f2")
    kept, offsets = np.array([0, 3, 8, 1, 2]), np.array([0, 3, 5])
    after = np.concatenate([before[0, kept[:3]], before[1, kept[3:]]])
    arrays = {"after": after, "before": before, "kept": kept, "kept_offsets": offsets}
    same(kvbound.check_compaction(after, before, kept, offsets), commanded("compact", arrays))
    after[2, 1] += 1
    wrong = kvbound.check_compaction(after, before, kept, offsets)
    assert not wrong
    same(wrong, commanded("compact", arrays))


def test_norms(commanded):
    random = np.random.default_rng(3)
    v, w_o = random.standard_normal((30, 2, 8)).astype("f4"), random.standard_normal((4 * 8, 16)).astype("f4")
    projected = np.einsum("nhd,hdm->hnm", np.repeat(v, 2, axis=1).astype("f8"), w_o.reshape(4, 8, 16).astype("f8"))
    for norm, order in (("l1", 1), ("l2", 2)):
        norms = np.linalg.norm(projected, order, axis=2).astype("f4")
        result = kvbound.check_norms(norms, v, w_o, norm=norm)
        assert result.ok
        same(result, commanded("norms", {"norms": norms, "v": v, "w_o": w_o}, norm=norm))


def test_scores(commanded):
    """The file that ships with the program, whose scores are of snapkv with a window of 8."""
    random = np.random.default_rng(4)
    q, k = random.standard_normal((8, 4, 16)).astype("f4"), random.standard_normal((40, 2, 16)).astype("f4")
    score = np.full((2, 32), 0.5, "f4")
    result = kvbound.check_scores(score, q, k, window_size=8, kernel_size=1)
    assert not result
    same(result, commanded("scores", {"score": score, "q": q, "k": k}, policy="snapkv:window=8:pool=1"))


def test_what_a_result_says():
    q, k, v = CASES["sink"]
    out = attention(q, k, v)
    good = kvbound.check_attention(out, q, k, v)
    assert good and good.message == "" and good.heads_outside == [] and good.unlikely == [] and good.diagnosis() == ""
    assert good.tensors == ["out"] and abs(good.gain.value - 1) <= good.gain.band < 0.01
    assert repr(good) == "<CheckResult agrees>"
    bad = out.copy()
    bad[1, 5, 17] += 1
    result = kvbound.check_attention(bad, q, k, v)
    worst = result.worst()
    assert worst.index == (1, 5, 17) and worst.claimed == bad[1, 5, 17] and worst.error > worst.bound > 0
    assert result.heads_outside == [5]
    assert "out[1, 5, 17]" in result.message and result.message in repr(result)
    lost = kvbound.check_attention(attention(q, k[:, 4:], v[:, 4:]), q, k, v)
    assert "missing" in lost.diagnosis()


def test_two_kernels_are_compared_as_the_command_compares_them(tmp_path):
    q, k, v = CASES["sink"]
    a = attention(q, k, v)
    b = a.copy()
    b[0, 0, 0] = np.nextafter(b[0, 0, 0], np.float32(9))
    b[1, 2] *= np.float32(0.5)
    for name, out in (("a", a), ("b", b)):
        np.savez(tmp_path / f"{name}.npz", out=out, q=q, k=k, v=v)
    done = subprocess.run(["kvbound", "check", "attention", "a.npz", "--against", "b.npz", "--json", "out.json"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)
    part, = json.loads((tmp_path / "out.json").read_text("utf-8"))["parts"]
    result = kvbound.compare(a, b, against={"q": q, "k": k, "v": v}, names=("a.npz", "b.npz"))
    assert result.document()["parts"] == [part]
    assert str(result) == done.stdout.rstrip("\n") and done.returncode == 1
    rows = result["tensors"]
    assert [rows[name].tolist() for name in ("identical", "reordered", "wrong_a", "wrong_b")] == [[14], [1], [0], [1]]
    assert not result and result.verdict == "differs" and result.unlikely == []
    assert result.message.startswith("A a.npz and B b.npz: 14 of 16 rows identical, 1 reordered")


def test_identical_rows_are_asked_for():
    q, k, v = CASES["sink"]
    a = attention(q, k, v)
    b = a.copy()
    b[0, 0, 0] = np.nextafter(b[0, 0, 0], np.float32(9))
    against = {"q": q, "k": k, "v": v, "sm_scale": 0.125}
    same, reordered, strict = (kvbound.compare(a, other, against=against, identical=identical)
                               for other, identical in ((a, True), (b, False), (b, True)))
    assert same and same.message == "" and reordered and not strict
    with pytest.raises(kvbound.InvalidOption, match="is not of compact, whose results are exact"):
        moved = {"before": np.ones((1, 2, 3)), "kept": np.array([1]), "kept_offsets": np.array([0, 1])}
        kvbound.compare({"after": np.ones((1, 3))}, {"after": np.ones((1, 3))}, against=moved, operation="compact")
