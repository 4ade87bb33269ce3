"""Whole traces of extreme sizes and numbers, which are valid: bounds have to hold for them, or the line says why nothing was computed."""
import numpy as np

from support.kvbound_cli import TraceFile

LARGEST = {"F64": 1.7e308, "F32": 3.4e38, "F16": 65504.0, "BF16": 3.38e38}
SMALLEST = {"F64": 5e-324, "F32": 1.4e-45, "F16": 6e-8, "BF16": 9.2e-41}


def sizes(random):
    kv_heads, prompt = random.choice((1, 1, 2, 3)), random.choice((1, 2, 3, 3, 7, 8, 9, 24, 33))
    return dict(layers=random.choice((1, 1, 2)), kv_heads=kv_heads, query_heads=kv_heads * random.choice((1, 1, 2, 5)),
                head_dim=random.choice((1, 2, 3, 4, 17)),
                model_dim=random.choice((1, 2, 9)), prompt_tokens=prompt, window_queries=random.choice((1, prompt, (prompt + 1) // 2)),
                decode_tokens=random.choice((0, 1, 2, 2, 5, 5)))


def magnitude(random, dtype):
    return random.choice((0.0, -0.0, 1.0, 1e-4, 30.0, 1e4, 1e6, SMALLEST[dtype], LARGEST[dtype] ** 0.25, LARGEST[dtype] ** 0.5,
                          LARGEST[dtype] / 16, LARGEST[dtype]))


def array(random, shape, dtype):
    draws = np.random.default_rng(random.randrange(1 << 32))
    size = min(magnitude(random, dtype), LARGEST[dtype])
    kinds = (draws.uniform(-1, 1, shape), np.ones(shape), draws.choice((-1.0, 1.0), shape), draws.choice((0.0, 1.0), shape, p=(0.9, 0.1)),
             np.broadcast_to(draws.uniform(-1, 1, shape[-1:]), shape), np.exp(draws.uniform(-300, 0, shape)))
    return size * random.choice(kinds)


def whole_trace(random, _):
    dtype = random.choice(tuple(LARGEST))
    trace = TraceFile(dtype=dtype, **sizes(random))
    for name, (stored, old) in trace.tensors.items():
        if random.random() < 0.7:
            trace.tensors[name] = stored, array(random, old.shape, dtype)
    if random.random() < 0.2:
        trace.metadata["scale"] = random.choice(("1e-300", "1e300", "1", "4.9e-324", "1e30", "0.001"))
    return trace.bytes()


DAMAGES = (whole_trace,)
