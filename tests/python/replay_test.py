"""Replays and evaluations of the package are those of the command line, bit for bit; methods in Python are asked as they say."""
import json
import os
import signal
import subprocess
import sys
import textwrap

import kvbound
import numpy as np
import pytest
from conftest import SAMPLES

TRACE = SAMPLES / "pocket-gqa.safetensors"
POLICIES = ["snapkv", "snapkv:window=16:pool=1", "snapkv+critical", "snapkv+critical+adakv", "snapkv+pyramid", "snapkv+theta-sweep",
            "snapkv+critical:alpha=0.25:norm=l2", "h2o", "h2o+obcache-value", "h2o+critical", "tova", "tova+obcache-joint",
            "streaming-llm", "random", "snapkv+keepkv", "snapkv+d2o", "snapkv+cam", "snapkv+convex", "h2o+keepkv", "tova+critical"]


class Knorm:
    name = "KnormPress"

    def score(self, queries, keys, values, output_projection):
        return -np.linalg.norm(keys, axis=2)


def commanded(tmp_path, *words):
    """The document of a command, and what it printed."""
    done = subprocess.run(["kvbound", *map(str, words), "--json", "out.json", "--quiet"], cwd=tmp_path, capture_output=True, text=True,
                          check=True)
    return json.loads((tmp_path / "out.json").read_text("utf-8")), done.stdout


def without_times(document):
    """Its parts without seconds, which differ from run to run."""
    for part in document["parts"]:
        part["cubes"].pop("times", None)
        for cube in part["cubes"].values():
            for name in [name for name in cube["columns"] if "seconds" in name]:
                del cube["columns"][name]
    return document["parts"]


def replay(policies=("snapkv",), budget="10%", **options):
    return kvbound.replay(TRACE, policies, budget=budget, **{"layers": [1], "steps": 4} | options)


def test_twenty_policies_are_as_the_command_has_them(tmp_path):
    document, text = commanded(tmp_path, "replay", TRACE, "--policy", ",".join(POLICIES), "--budget", "10%,25%", "--base", "snapkv",
                               "--layers", "1,2", "--steps", "8")
    result = kvbound.replay(TRACE, POLICIES, budget=["10%", "25%"], base="snapkv", layers=[1, 2], steps=8)
    assert without_times(result.document()) == without_times(document)
    assert str(result) == text.rstrip("\n")
    assert len(result.to_pandas()) == 40 and set(result["runs"].columns()["label"]) == set(POLICIES)


def test_query_heads_with_caches_are_as_the_command_has_them(tmp_path):
    document, text = commanded(tmp_path, "replay", TRACE, "--policy", "h2o,h2o+obcache-joint", "--budget", "10%", "--heads", "query", "--layers", "1",
                               "--steps", "4", "--dump", "dumps")
    trace = kvbound.open(TRACE, heads="query")
    assert trace.num_kv_heads == trace.num_qo_heads == len(trace.layer(0).keys)
    result = kvbound.replay(trace, ["h2o", "h2o+obcache-joint"], budget="10%", layers=[1], steps=4)
    assert without_times(result.document()) == without_times(document)
    assert str(result) == text.rstrip("\n")
    for dump in (tmp_path / "dumps").iterdir():
        assert kvbound.diff(trace, dump).ok
        with pytest.raises(kvbound.InvalidInput, match="caches of query heads"):
            kvbound.diff(TRACE, dump)
    with pytest.raises(kvbound.InvalidOption, match="heads: is 'every'; expected kv or query"):
        kvbound.open(TRACE, heads="every")


def test_an_evaluation_is_as_the_command_has_it(tmp_path):
    tasks = [{"id": "a", "prompt_text": "the sea was calm and " * 8, "continuation_text": "so was the wind"},
             {"id": "b", "prompt_text": "one two three four " * 9, "answer_text": "one", "depth": 0.5}]
    (tmp_path / "tasks").write_text("".join(json.dumps(task) + "\n" for task in tasks), "utf-8")
    document, text = commanded(tmp_path, "evaluate", SAMPLES / "pocket", "tasks", "--policy", "snapkv:window=8,h2o:window=16", "--budget", "30%", "--base",
                               "snapkv:window=8", "--window", "16")
    for given in (tasks, tmp_path / "tasks"):
        result = kvbound.evaluate(SAMPLES / "pocket", given, ["snapkv:window=8", "h2o:window=16"], budget="30%", base="snapkv:window=8", window=16)
        ours, theirs = (without_times(one)[0] for one in (result.document(), document))
        assert ours["cubes"] == theirs["cubes"] and ours["axes"] == theirs["axes"]
    assert [line for line in str(result).splitlines() if " s of " not in line] == [
        line for line in text.splitlines() if " s of " not in line]


def test_a_layer_has_the_numbers_of_its_trace():
    trace = kvbound.open(TRACE)
    assert (trace.layers, trace.num_qo_heads, trace.num_kv_heads, trace.head_dim) == (4, 8, 2, 64) and len(trace) == 4
    layer = trace.layer(2)
    assert layer.keys.shape == (2, trace.prompt_tokens, 64) and layer.step_keys.shape == (2, trace.decode_tokens, 64)
    assert layer.queries.shape == (8, trace.window_queries, 64) and layer.step_queries.shape == (8, trace.decode_tokens, 64)
    assert layer.output_projection.shape == (8 * 64, trace.model_dim) and layer.index == 2 and layer.sm_scale == trace.sm_scale
    with pytest.raises(ValueError, match="read-only"):
        layer.keys[0, 0, 0] = 1
    keys = layer.keys
    del layer, trace
    assert np.isfinite(keys).all()  # its memory is still there
    with pytest.raises(IndexError):
        kvbound.open(TRACE).layer(4)
    assert {name for name in dir(kvbound.open(TRACE)) if name[0] != "_"} >= {"layers", "tokens", "storage", "layer"}


def test_scores_of_a_method_are_those_of_the_host_that_has_them():
    """StreamingLLM by scores: larger is newer, after four sinks."""
    class Newest:
        def score(self, queries, keys, values, output_projection):
            scores = np.arange(keys.shape[1], dtype=float)
            scores[:4] = np.inf
            return np.broadcast_to(np.nan_to_num(scores, posinf=1e6), keys.shape[:2])
    kept = [replay([policy], records=True).record(0, 0).kept for policy in (Newest(), "streaming-llm:sinks=4")]
    assert all(np.array_equal(a, b) for a, b in zip(*kept))


def test_methods_that_select_and_evict_are_streaming_llm():
    class Window:
        def select(self, queries, keys, values, output_projection, budget):
            return [range(keys.shape[1] - budget, keys.shape[1])] * len(keys)

        def evict(self, weights, keys, values, positions):
            assert weights.shape == (4, len(positions)) and keys.shape == values.shape == (len(positions), 64)
            np.testing.assert_allclose(weights.sum(1), 1)
            assert positions[-1] == positions.max()
            return positions.min()
    result = replay([Window(), "streaming-llm:sinks=0"], steps=None, records=True)
    own, theirs = (result.record(run, 0) for run in range(2))
    assert np.array_equal(own.outputs, theirs.outputs) and np.array_equal(own.evicted, theirs.evicted)
    figures = result["heads"]
    assert all(np.array_equal(figures[name][0], figures[name][1], equal_nan=True) for name in ("perturbation", "bound", "kept_mass"))
    with pytest.raises(kvbound.InvalidOption, match="its method evicts while decoding, which the backend emulated cannot ask it to"):
        replay([Window()], backend="emulated")


def test_a_method_is_asked_once_a_layer_whatever_it_is_composed_with():
    asked = []

    class Counted(Knorm):
        def score(self, *arrays):
            asked.append([array.shape for array in arrays])
            return super().score(*arrays)
    method = Counted()
    result = replay([method, (method, "critical"), (method, "critical+adakv"), (method, "keepkv")], ["10%", "20%"], layers=[0, 3],
                    backend=["reference", "emulated"])
    assert asked == [[(8, 128, 64), (2, 1984, 64), (2, 1984, 64), (512, 256)]] * 2
    assert list(result["runs"].axes["run"]["label"][:2]) == ["KnormPress", "KnormPress"]
    assert {"KnormPress+critical", "KnormPress+critical+adakv"} < set(result["runs"].axes["run"]["label"])
    assert set(result["agreement"].columns()["verdict"]) == {"agrees"}


def test_a_method_in_an_evaluation():
    tasks = [{"id": "a", "prompt_text": "the sea was calm and " * 8, "continuation_text": "so was"}]
    lengths = []

    class Counted(Knorm):
        def score(self, queries, keys, values, output_projection):
            lengths.append(keys.shape[1])
            return super().score(queries, keys, values, output_projection)
    result = kvbound.evaluate(SAMPLES / "pocket", tasks, ["snapkv:window=8", Counted()], budget="30%", window=16)
    assert lengths == [168] * 4
    assert list(result["runs"].columns()["label"]) == ["full cache", "snapkv:window=8", "KnormPress"]
    assert np.isfinite(result["runs"]["kl"].ravel()[1:]).all()


def test_results_do_not_depend_on_threads():
    script = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
        from replay_test import *
        class Evicts(Knorm):
            calls = 0
            def evict(self, weights, keys, values, positions):
                Evicts.calls += 1  # in one order, whatever the threads
                return positions[Evicts.calls * 7 % len(positions)]
        print(json.dumps(without_times(replay([Evicts(), (Knorm(), "critical")], steps=None).document())))
    """)
    outputs = {subprocess.run([sys.executable, "-c", script], env=os.environ | {"OMP_NUM_THREADS": threads}, capture_output=True,
                              check=True).stdout for threads in ("1", "2", "3")}
    assert len(outputs) == 1 and len(outputs.pop()) > 1000


@pytest.mark.parametrize(("answer", "message"), [
    (np.zeros((2, 3)), r"Method.score, layer 1: has the shape \[2, 3\]; expected \[num_kv_heads, prompt_tokens\] = \[2, 1984\]"),
    (np.full((2, 1984), np.nan), r"Method.score, layer 1: element 0 is nan; expected a number within single precision"),
    (np.full((2, 1984), 1e300), r"element 0 is 1e\+300"),
    ("x", r"Method.score, layer 1: .*expected numbers"),
    ((np.zeros((2, 1984)), np.zeros((2, 1984))), r"score, of query heads, layer 1: .*\[num_qo_heads, prompt_tokens\] = \[8, 1984\]"),
])
def test_wrong_scores_are_refused_in_one_line(answer, message):
    class Method:
        def score(self, *arrays):
            return answer
    with pytest.raises(kvbound.InvalidInput, match=message):
        replay([Method()])


@pytest.mark.parametrize(("answer", "message"), [
    ([[1]], r"Method.select, layer 1: is of 1 heads; expected the positions of each of 2 KV heads"),
    ([[1], []], r"keeps nothing of KV head 1"),
    ([[1], [1984]], r"KV head 1: has position 1984; expected 0 to 1983"),
    ([[1], [-1]], r"has position -1"),
    ([[1], [3, 2, 3]], r"has position 3 twice"),
    ([[1], [0.5]], r"expected integers"),
    ([range(198), range(199)], r"keeps 397 entries; expected 396 or fewer: a budget of 198 for each of 2 KV heads"),
])
def test_wrong_selections_are_refused_in_one_line(answer, message):
    class Method:
        def select(self, *arrays):
            return answer
    with pytest.raises(kvbound.InvalidInput, match=message):
        replay([Method()])


@pytest.mark.parametrize(("answer", "error", "message"), [
    (99999, kvbound.InvalidOption, r"evicts position 99999 of KV head 0, which is not in its cache"),
    ("x", kvbound.InvalidInput, r"Method.evict, layer 1: is 'x'; expected a position"), (None, kvbound.InvalidInput, r"is None")])
def test_wrong_evictions_are_refused_in_one_line(answer, error, message):
    class Method(Knorm):
        def evict(self, *arrays):
            return answer
    Method.name = "Method"
    with pytest.raises(error, match=message):
        replay([Method()])


def test_what_a_method_raises_reaches_the_caller():
    class Broken:
        def score(self, *arrays):
            raise RuntimeError("of its own")
    with pytest.raises(RuntimeError, match="of its own"):
        replay([Broken()])


@pytest.mark.parametrize(("arguments", "message"), [
    ({"policies": ["snapkvv"]}, "snapkvv"), ({"policies": [3]}, "policies: 3 is none; expected a text"), ({"policies": []}, "at least one"),
    ({"policies": [Knorm]}, "is none"), ({"budget": None}, "at least one of each"), ({"budget": ["10%", "10%"]}, "10% is given twice"),
    ({"budget": "10%", "compression_ratio": 0.5}, "both given"), ({"layers": [9]}, "layers: is .9.; expected"),
    ({"steps": 65}, "steps: is 65; expected 0 to 64"), ({"backend": "tpu"}, "tpu"), ({"recall": 0}, "recall: is 0"),
    ({"policies": ["snapkv", "snapkv"]}, "twice"), ({"budget": "5"}, "snapkv")])
def test_wishes_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(kvbound.InvalidOption, match=message):
        replay(**arguments)


def test_shares_that_are_kept_or_removed_are_the_same():
    kept, removed = (replay(**share)["runs"] for share in ({"budget": ["10%", "25%"]}, {"budget": None, "compression_ratio": [0.9, 0.75]}))
    assert np.array_equal(kept["perturbation"], removed["perturbation"])
    assert list(removed.axes["run"]["budget"]) == ["10%", "25%"]


def test_what_is_no_trace_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"no trace at all")
    with pytest.raises(kvbound.InvalidInput, match="x: at byte 0"):
        kvbound.open(tmp_path / "x")
    with pytest.raises(OSError, match="cannot open"):
        kvbound.open(tmp_path / "none")


def test_ctrl_c_ends_a_replay():
    begun = []

    def interrupt(done, whole):
        begun.append(done)
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        replay(POLICIES, ["10%", "20%"], layers=None, progress=interrupt)
    assert 1 <= len(begun) <= 2  # of 164 pieces of work
    assert replay()["runs"]["perturbation"].size == 1  # and the next one works


def test_saved_documents_are_read_by_report(tmp_path):
    result = replay(["snapkv", Knorm()])
    result.save(tmp_path / "out.json")
    result.save(tmp_path / "out.csv")
    assert len((tmp_path / "out.csv").read_text("utf-8").splitlines()) == 1 + 2 * (4 * 8 + 4)  # heads, layers
    page = subprocess.run(["kvbound", "report", "out.json", "-o", "page.html"], cwd=tmp_path, capture_output=True, check=False)
    assert page.returncode == 0, page.stderr


def test_cubes_say_what_figures_mean():
    runs = replay()["runs"]
    assert runs.shape == (1,) and "perturbation" in runs.figures
    assert runs.describe("perturbation") and runs.describe("policy")
    with pytest.raises(KeyError, match="runs has .*perturbation"):
        runs["none"]
    assert replay()["steps"].shape == (1, 1, 4, 8)  # of CSV alone
    with pytest.raises(LookupError, match="records=True"):
        replay().record(0, 0)
