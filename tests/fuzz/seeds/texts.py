"""Texts of the command line, and JSON that is written by people, by other programs, or by hand."""
import copy
import json

from support.flashinfer_dumps import INIT, PLAN, RUN, SINGLE
from support.peer_file import PEER

INSTANCE = {"schema": "kvbound-instance-1", "property": "ckv-3.3", "query_heads": 1, "logits": [[0.0, 0.0]], "values": [[0.0], [1.0]],
            "output_projection": [[1.0]], "stage_one": [0], "kept": [0], "epsilon": 1e-4}
TASKS = [{"id": "a", "prompt_text": "abcdef", "answer_text": "gh", "kind": "needle", "depth": 0.5},
         {"id": "b", "prompt": [1, 2, 3, 4], "continuation": [5, 6], "compress_at": 3}]
OPTIONS = ("256", "20%", "2.5%", "0,3-5", "snapkv", "snapkv:window=16:pool=1+critical:alpha=adaptive:epsilon=1e-4:gqa=product-of-means:norm=l2",
           "h2o:window=8:sinks=2:recent=3+obcache-joint:space=projected+adakv:safeguard=0.2",
           "tova+theta-sweep+pyramid:beta=10:shape=linear+keepkv:period=4:predict=current", "random:seed=3+cam:neighbours=2:seed=1",
           "snapkv:window=4+greedy", "tokens=64:head_dim=8:query_heads=4:kv_heads=2:window=4:seed=2", "llama-3.1-8b:8192", "pocket:256",
           "h100", "1e-4", "-12")
COMMAND_LINES = (("trace.safetensors", "--policy", "snapkv,h2o:window=4", "--base", "snapkv", "--budget", "20%,40%", "--columns",
                  "perturbation,bound", "--layers", "0,2-3", "--steps", "3", "--threads", "2", "--quiet", "--header-limit", "1000", "--verify"),
                 ("--policy=tova", "--budget=5", "--", "-trace"), ("--help",))
ATTEMPTS = [{"host": "a", "process": 12, "problem": None}, {"host": "b", "process": 13, "problem": "out of memory"}]
RATES = {"runs": {"tova:sinks=4 5 reference": 1e-3}, "other": 0.1, "measured": 2}
WORKER_LINE = {"item": 3, "file": "ab-cd-ef", "seconds": 0.25, "given_up": ["its process was killed"]}


def text(value):
    return json.dumps(value).encode()


def inputs():
    for number, option in enumerate(OPTIONS):
        yield f"option-{number}", b"O" + option.encode()
    for number, words in enumerate(COMMAND_LINES):
        yield f"command-line-{number}", b"U" + "\n".join(words).encode()
    for number, signature in enumerate((INIT, *PLAN.values(), *RUN.values(), *SINGLE.values())):
        yield f"signature-{number}", b"Y" + signature.encode()
    yield "attempts", b"A" + text(ATTEMPTS)
    yield "worker-line", b"L" + text(WORKER_LINE)
    yield "rates", b"W" + text(RATES)
    yield "peer", b"B" + text(PEER)
    yield "tasks", b"E" + b"\n".join(map(text, TASKS))
    yield "instance", b"M" + text(INSTANCE)
    merging = copy.deepcopy(INSTANCE) | {"property": "kkv-kl", "votes": [1.0, 2.0], "query_vectors": [[1.0]], "ema": 0.5}
    yield "instance-merging", b"M" + text({"theorems": [merging, {"tightest": INSTANCE}]})
