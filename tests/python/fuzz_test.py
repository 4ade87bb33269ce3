"""Arguments of every kind end in a result or in a Python exception of one line: never in a crash.

KVBOUND_FUZZED_ARGUMENTS says how many are tried (1,000 by default).
"""
import os
import random

import kvbound
import numpy as np
from conftest import attention
from kvbound import testing

TRIED = int(os.environ.get("KVBOUND_FUZZED_ARGUMENTS", "1000"))
# AddressSanitizer ends a process that asks for too much memory.
ROWS = 2**16 if "ASAN_OPTIONS" in os.environ else 2**40
TYPES = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8", "c16", "U1", "O", "M8[s]", "g", ">f4", ">i8")
Q, K, V = testing.decode_case("sink", tokens=12, num_qo_heads=4, num_kv_heads=2, head_dim=8, batch=2)
OUT = attention(Q, K, V)
SCORES = np.random.default_rng(1).standard_normal((3, 9)).astype("f4")
INDICES = np.argsort(-SCORES, axis=1)[:, :4]
BEFORE = np.random.default_rng(2).standard_normal((2, 6, 3)).astype("f4")
KEPT, OFFSETS = np.array([0, 3, 5, 1, 2]), np.array([0, 3, 5])
AFTER = np.concatenate([BEFORE[0, KEPT[:3]], BEFORE[1, KEPT[3:]]])
WINDOW, PROMPT_K, PROMPT_V = (np.random.default_rng(i).standard_normal(shape).astype("f4")
                              for i, shape in enumerate([(4, 4, 8), (20, 2, 8), (20, 2, 8)]))
W_O = np.random.default_rng(7).standard_normal((4 * 8, 16)).astype("f4")
CALLS = {
    kvbound.check_attention: {"out": OUT, "q": Q, "k": K, "v": V},
    kvbound.check_topk: {"indices": INDICES, "scores": SCORES},
    kvbound.check_compaction: {"after": AFTER, "before": BEFORE, "kept": KEPT, "kept_offsets": OFFSETS},
    kvbound.check_norms: {"norms": np.ones((4, 20), "f4"), "v": PROMPT_V, "w_o": W_O},
    kvbound.check_scores: {"score": np.ones((2, 16), "f4"), "q": WINDOW, "k": PROMPT_K, "v": PROMPT_V, "w_o": W_O, "window_size": 4},
    kvbound.check_merge: {"kept": np.array([0, 16, 17, 18, 19] * 2), "kept_offsets": np.array([0, 5, 10]), "q": WINDOW, "k": PROMPT_K,
                          "v": PROMPT_V, "w_o": W_O, "policy": "snapkv+d2o", "window_size": 4, "budget": 5,
                          "target_of": np.zeros((2, 20), "i8")},
}
OPTIONS = {"sm_scale": (0.1, -1, 0, "nan", "x", 1e308), "kv_layout": ("HND", "NHD", "x", 3), "storage": ("F16", "BF16", "I8", ""),
           "lengths": (np.array([3, 12]), np.array([-1, 99]), np.array([]), np.zeros((2, 2), "i8")), "lse": (np.ones((2, 4), "f4"),),
           "kv_indptr": (np.array([0, 1, 2]), np.array([2, 1, 0]), np.array([0, 2**62, 5])), "splits": (1, 0, 2**70, -3),
           "window_left": (-1, 0, 3, 10**30), "causal": (True, False, "maybe"), "budget": ("10%", 0, -1, "all", 10**20),
           "compression_ratio": (0.5, 1, -1, float("nan")), "poison": (0, float("nan"), "0x7fc0", np.zeros(3, "f4")),
           "order": ("any", "kept", "x"), "k": (4, 5), "score_error": (0.1, -1, float("inf"), np.ones((3, 9), "f4")),
           "policy": ("snapkv", "snapkv+keepkv", "random", "", "+", "snapkv:pool=2"), "norm": ("l1", "l2", "l3")}


def mangled(draw, array):
    """The array with one thing about it changed."""
    array = np.atleast_1d(np.asarray(array))
    return draw.choice((
        lambda: array.astype(draw.choice(TYPES)),
        lambda: array[..., ::-1],
        lambda: array[::-1, ...],
        lambda: array.T,
        lambda: np.asfortranarray(array),
        lambda: array[:0],
        lambda: array[..., :0],
        lambda: array[None],
        lambda: array.ravel(),
        lambda: np.repeat(array, 2, axis=0)[::2],
        lambda: np.broadcast_to(array[:1], array.shape),
        lambda: np.lib.stride_tricks.as_strided(array, (ROWS, *array.shape[1:]), (0, *array.strides[1:])),
        lambda: np.full_like(array, np.nan if array.dtype.kind == "f" else -7),
        lambda: np.full_like(array, np.inf if array.dtype.kind == "f" else 2**40 if array.dtype.itemsize == 8 else 100),
        lambda: np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape),
        lambda: array.tolist(),
        lambda: np.ma.masked_array(array),
        lambda: np.matrix([[1, 2]]),
        lambda: draw.choice((None, "a", 3, object(), {}, b"abc", [[1], [1, 2]], float("nan"), type)),
    ))()


def test_every_argument_ends_in_a_result_or_an_exception_of_one_line():
    draw = random.Random(5)
    results = refusals = 0
    for attempt in range(TRIED):
        call = draw.choice(list(CALLS))
        arguments = dict(CALLS[call])
        for _ in range(draw.randint(0, 2)):
            name = draw.choice([name for name, value in arguments.items() if not isinstance(value, (str, int))])
            try:
                arguments[name] = mangled(draw, arguments[name])
            except (ValueError, TypeError, IndexError, MemoryError):
                continue  # NumPy does not make it, such as a huge array in C order
        for _ in range(draw.randint(0, 1)):
            name = draw.choice(list(OPTIONS))
            arguments[name] = draw.choice(OPTIONS[name])
        try:
            result = call(**arguments)
        except (ValueError, TypeError, OverflowError, BufferError, AttributeError, MemoryError) as error:
            assert "\n" not in str(error), (attempt, call, error)
            refusals += 1
        else:
            assert result.verdict in ("agrees", "differs", "no evidence")
            assert str(result) and repr(result) and result.worst() is None or result.worst().tensor
            results += 1
    assert results > TRIED / 20 and refusals > TRIED / 20
