"""Writes safetensors files row by row, whole or not at all. NumPy only.

    with Files(path, metadata, shards) as files:        shards: [{tensor: (dtype, shape)}], one dictionary a file
        files.write("layers.0.key", array, (slice(None), slice(0, 16)))
        files.commit()

The files have their full size from the start and are filled in any order, so that neither a layer nor a tensor has to be
held in memory. They have temporary names until commit(); leaving the block without it removes them.
"""
import json
import os
import signal
import struct
from pathlib import Path

import numpy as np

from kvbound.errors import InvalidInput
from kvbound.recording.temporary_name import temporary_beside

STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
ALIGNMENT = 8  # of the data's beginning, as safetensors libraries write it
INDEX = ".index.json"


def bfloat16_bits(array):
    """The upper halves of float32 numbers, rounded to nearest even: U16, the array's shape. NaN stays NaN."""
    bits = np.ascontiguousarray(array, "<f4").view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype("<u2")


def encoded(array, dtype):
    """The array's numbers as `dtype` stores them: its shape, NumPy's type STORED[dtype].

    array    a NumPy array, or a torch tensor on any device, of real numbers or integers
    throws   InvalidInput if a real number is not finite, or not any more in this type; if an integer does not fit
    """
    if type(array).__module__.startswith("torch"):
        array = array.detach().cpu()
        # NumPy has no BF16
        array = array.float().numpy() if str(array.dtype) == "torch.bfloat16" else array.numpy()
    array = np.asarray(array)
    if dtype in ("I64", "I32"):
        limits = np.iinfo(STORED[dtype])
        if array.dtype.kind not in "iu" or array.size and not limits.min <= array.min() <= array.max() <= limits.max:
            raise InvalidInput(f"holds {array.dtype} numbers that are not all {dtype}")
        return array.astype(STORED[dtype])
    if array.dtype.kind != "f":
        raise InvalidInput(f"holds {array.dtype}, not real numbers")
    if not np.isfinite(array).all():
        raise InvalidInput("holds NaN or infinity")
    with np.errstate(over="ignore"):
        stored = bfloat16_bits(array) if dtype == "BF16" else array.astype(STORED[dtype])
    is_infinite = (stored & 0x7FFF) == 0x7F80 if dtype == "BF16" else np.isinf(stored)
    if is_infinite.any():
        raise InvalidInput(f"holds {np.abs(array).max():.6g}, which is too large for {dtype}")
    return stored


def header_of(tensors, metadata):
    """The bytes before the data, and where each tensor begins in the file: (bytes, {tensor: byte}, the file's size)."""
    entries, begins, end = {"__metadata__": metadata} if metadata else {}, {}, 0
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(STORED[dtype]).itemsize
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        begins[name] = end
        end += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    start = 8 + len(text)
    return struct.pack("<Q", len(text)) + text, {name: start + begin for name, begin in begins.items()}, start + end


class Files:
    """A single safetensors file, or an index and its shards, written whole or not at all.

    path       ends in .index.json: the shards' names begin with what is before it; else there must be one dictionary
    metadata   {field: text}: of the file, or of the index
    shards     [{tensor: (dtype, shape)}], one dictionary a file
    """

    def __init__(self, path, metadata, shards):
        self.path = Path(path)
        stem = self.path.name.removesuffix(INDEX)
        is_index = self.path.name.endswith(INDEX)
        if not is_index and len(shards) != 1:
            raise InvalidInput(f"{path} is one file, not {len(shards)}")
        names = [f"{stem}-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
        self.final = [self.path.with_name(name) for name in names] if is_index else [self.path]
        for final in (*self.final, self.path):
            if final.exists() and not final.is_file():  # such as /dev/null, which must not be replaced
                raise InvalidInput(f"{final} is no regular file")
        self.temporary = [temporary_beside(final) for final in self.final]
        self.views = {}
        try:
            for file, tensors in zip(self.temporary, shards):
                self._lay_out(file, tensors, None if is_index else metadata)
            if is_index:
                weight_map = {name: final.name for final, tensors in zip(self.final, shards) for name in tensors}
                index = json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=1).encode()
                self.final.append(self.path)
                self.temporary.append(temporary_beside(self.path))
                self.temporary[-1].write_bytes(index)
        except BaseException:
            self.discard()
            raise

    def _lay_out(self, path, tensors, metadata):
        header, begins, size = header_of(tensors, metadata)
        with open(path, "xb") as file:
            file.write(header)
            if hasattr(os, "posix_fallocate") and size > len(header):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error now, not SIGBUS later
            else:
                file.truncate(size)
        for name, (dtype, shape) in tensors.items():
            empty = 0 in shape
            view = (np.zeros(shape, STORED[dtype]) if empty else
                    np.memmap(path, STORED[dtype], "r+", offset=begins[name], shape=tuple(shape)))
            self.views[name] = dtype, view

    def write(self, name, array, where=...):
        """Writes numbers into a tensor, or into the part of it that NumPy's index `where` selects.

        throws   InvalidInput that names the tensor, if the shapes differ or a number does not fit (see encoded)
        """
        dtype, view = self.views[name]
        wanted = view[where].shape
        if tuple(array.shape) != wanted:
            raise InvalidInput(f"{name}: has the shape {list(array.shape)}; expected {list(wanted)}")
        try:
            view[where] = encoded(array, dtype)
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error}") from None

    def commit(self):
        """Flushes the files and gives them their names, the index last; signals wait until all have theirs."""
        self.views = {}
        for file in self.temporary:
            with open(file, "r+b") as stream:
                os.fsync(stream.fileno())
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            if len(self.final) > 1:  # an index must never name shards of another recording
                self.path.unlink(missing_ok=True)
            for file, final in zip(self.temporary, self.final):
                file.replace(final)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def discard(self):
        """Removes what has a temporary name still."""
        self.views = {}
        for file in self.temporary:
            file.unlink(missing_ok=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.discard()
