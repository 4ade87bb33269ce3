"""Assertions, cases and teeth; the plug-in of pytest."""
import json

import numpy as np
import pytest
from conftest import attention
from kvbound import testing

pytest_plugins = "pytester"


@pytest.mark.parametrize("kind", ["sink", "needle", "flat", "power-law", "overflow", "tied"])
def test_checks_of_every_case_have_teeth(kind):
    q, k, v = testing.decode_case(kind, tokens=128)
    assert testing.has_teeth(lambda out: testing.assert_attention(out, q, k, v), attention(q, k, v))


def test_a_check_without_teeth_is_named():
    q, k, v = testing.decode_case("sink", tokens=128)
    out = attention(q, k, v)
    for check, fault in ((lambda x: np.allclose(x, out, atol=10), "zeros"), (lambda x: np.abs(x).max() > 0, "a gain of 0.72"),
                         (lambda x: np.isclose(np.linalg.norm(x), np.linalg.norm(out)), "swapped heads")):
        with pytest.raises(AssertionError, match=f"the check accepts {fault}"):
            testing.has_teeth(check, out)
    with pytest.raises(AssertionError, match="refuses the output itself"):
        testing.has_teeth(lambda _: False, out)


def test_assertions_fail_with_one_line():
    q, k, v = testing.decode_case("needle", tokens=128)
    out = attention(q, k, v)
    out[0, 3, 5] = 9
    with pytest.raises(AssertionError, match=r"^out\[0, 3, 5\] is 9, the reference says ") as failure:
        testing.assert_attention(out, q, k, v)
    assert "\n" not in str(failure.value)
    scores = np.array([[3.0, 2.0, 1.0]])
    assert testing.assert_topk([[0, 1]], scores).ok
    with pytest.raises(AssertionError, match="indices"):
        testing.assert_topk([[0, 2]], scores)


def test_cases_are_the_same_for_a_seed():
    first, again, other = (testing.decode_case("tied", tokens=64, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not np.array_equal(first[1], other[1])
    with pytest.raises(ValueError, match="'sinks'; expected sink, "):
        testing.decode_case("sinks")


def test_the_plug_in_collects_a_document(pytester):
    pytester.makepyfile("""
        from kvbound import testing
        def test_right():
            testing.assert_topk([[0, 1]], [[3.0, 2.0, 1.0]])
        def test_wrong():
            testing.assert_topk([[0, 2]], [[3.0, 2.0, 1.0]])
    """)
    pytester.runpytest_subprocess("--kvbound-report", "found.json").assert_outcomes(passed=1, failed=1)
    document = json.loads((pytester.path / "found.json").read_text("utf-8"))
    assert [part["facts"]["verdict"] for part in document["parts"]] == ["agrees", "differs"]
    report = pytester.run("kvbound", "report", "found.json", "-o", "page.html")
    assert report.ret == 0 and (pytester.path / "page.html").stat().st_size > 10000
    pytester.runpytest_subprocess().assert_outcomes(passed=1, failed=1)
