"""A small valid file for `kvbound bench --peer`, of the shape pocket:256."""
import copy
import json

SNAPKV = "snapkv:window=32:pool=7"  # in canonical form
SHAPE = {"name": "pocket", "tokens": 256, "query_heads": 8, "kv_heads": 2, "head_dim": 64, "model_dim": 256}
PEER = {"schema": "kvbound-bench-peer-1", "name": "torch", "version": "2.15.0", "python": "3.11.7",
        "device": "cpu", "device_name": "a processor", "storage": "F32", "threads": 2, "seed": 1,
        "operations_of": "reference", "shape": SHAPE,
        "operations": [
            {"operation": "selection", "policy": None, "calls": 3, "bytes": 512, "seconds": [0.25, 0.125, 1]},
            {"operation": "step-attention", "policy": None, "calls": 1, "bytes": 4096, "seconds": [0.5]},
            {"operation": "compress", "policy": "snapkv", "calls": 1, "bytes": 4096, "seconds": [2e-1, 4, 8]},
            {"operation": "nearest-key", "policy": None, "calls": 1, "bytes": 4096, "seconds": [1]}]}


def changed(change):
    """The document after change(document)."""
    document = copy.deepcopy(PEER)
    change(document)
    return document


def write_peer(path, document=PEER):
    path.write_text(json.dumps(document), "utf-8")
    return path
