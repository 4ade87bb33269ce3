"""Reads a trace, a dump or any other safetensors file, or an index with its shards: the counterpart of trace_file.py. NumPy only.

    trace = Trace("trace.safetensors")
    keys = trace.tensor("layers.0.key")[:, :trace.count("prompt_tokens")]     float32, or float64 of F64
    trace.sha256                                                              the hash by which dumps and given files name it
"""
import hashlib
import json
import struct
from pathlib import Path

import numpy as np

from kvbound.errors import InvalidInput
from kvbound.recording.trace_file import INDEX, STORED

HEADER_LIMIT = 16 << 20  # bytes, as kvbound has it


class Trace:
    """Metadata, {tensor: (file, dtype, shape, first byte)} and the SHA-256; numbers stay in the files until they are wanted.

    throws   InvalidInput if it is not such a file, or a shard is missing
    """

    def __init__(self, path):
        self.path = Path(path)
        self.tensors, self.metadata, files = {}, {}, [self.path]
        try:
            if self.path.name.endswith(INDEX):
                index = json.loads(self.path.read_bytes())
                self.metadata = index["metadata"]
                files = [self.path.with_name(name) for name in sorted(set(index["weight_map"].values()))]
            for file in files:
                self._add(file)
        except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise InvalidInput(f"{self.path} is no safetensors file, or index of such: {type(error).__name__} {error}") from None
        self._hashed = [self.path, *files] if files != [self.path] else files

    def _add(self, path):
        with open(path, "rb") as file:
            length, = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, HEADER_LIMIT)))
        self.metadata = header.pop("__metadata__", {}) if path == self.path else self.metadata
        for name, entry in header.items():
            self.tensors[name] = path, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0]

    @property
    def sha256(self):
        """Of the file; of an index, of its bytes and each shard's, in the order of the shards' names."""
        digest = hashlib.sha256()
        for path in self._hashed:
            with open(path, "rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
        return digest.hexdigest()

    def count(self, field):
        """A number of the metadata, such as layers, kv_heads or prompt_tokens."""
        try:
            return int(self.metadata[field])
        except (KeyError, ValueError):
            raise InvalidInput(f"{self.path}: its metadata has no number {field}") from None

    def tensor(self, name):
        """A tensor: float64 of F64, float32 of other reals, integers as they are stored."""
        if name not in self.tensors:
            raise InvalidInput(f"{self.path} has no tensor {name}")
        path, dtype, shape, first = self.tensors[name]
        if dtype not in STORED:
            raise InvalidInput(f"{path}: {name} is {dtype}; expected {', '.join(STORED)}")
        stored = np.fromfile(path, STORED[dtype], int(np.prod(shape, dtype=np.int64)), offset=first).reshape(shape)
        if dtype == "BF16":  # the upper half of a float32
            return (stored.astype("<u4") << np.uint32(16)).view("<f4")
        return stored if dtype in ("F64", "I64", "I32") else stored.astype("<f4")
