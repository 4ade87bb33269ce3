"""Damage to bytes of any file. Every damage is a function (random, bytes) -> bytes, which draws all that it does from `random`."""
import struct

# Integers at which sizes, counts and offsets overflow, or lose bits as doubles.
EDGES = sorted({0, 1, *(base + step for power in (7, 8, 15, 16, 24, 31, 32, 53, 62, 63, 64) for base in (1 << power,) for step in (-1, 0, 1))})


def flip(random, data):
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8, 64)) if data else 0):
        changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def cut(random, data):
    """The beginning, often up to a boundary of 8 bytes; or the end."""
    at = random.randrange(len(data) + 1)
    return random.choice((data[:at], data[:at & ~7], data[at:], data[:-1], b"", data[:8]))


def insert(random, data):
    at = random.randrange(len(data) + 1)
    more = random.choice((b"\0", b"\n", b"\xff" * 8, b"\x1b[2J", random.randbytes(random.randrange(1, 64)), b"0" * 5000))
    return data[:at] + more + data[at:]


def stretch(random, data):
    """Where a random stretch of bytes begins and ends."""
    begin = random.randrange(len(data) + 1)
    return begin, min(len(data), begin + random.choice((1, 2, 4, 8, 16, 64, 1024)))


def duplicate(random, data):
    begin, end = stretch(random, data)
    return data[:end] + data[begin:]


def remove(random, data):
    begin, end = stretch(random, data)
    return data[:begin] + data[end:]


def fill(random, data):
    begin, end = stretch(random, data)
    return data[:begin] + random.choice((b"\0", b"\xff", b"\x80", b" ")) * (end - begin) + data[end:]


def shuffle(random, data):
    """Two stretches change places."""
    begin, end = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    middle = random.randrange(begin, end + 1)
    return data[:begin] + data[middle:end] + data[begin:middle] + data[end:]


def append(random, data):
    return data + random.choice((b"\0", b"\n", b" ", b"\xff", bytes(4096), data))


def other_format(random, data):
    return random.choice((b"", b"\x80\x04\x95\1\0\0\0\0\0\0\0\x8c", b"PK\3\4" + data[4:], b"GGUF" + data[4:], b"\x93NUMPY" + data[6:],
                          b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64, b"\x1f\x8b\x08\0" + bytes(16), b"\x7fELF" + data,
                          b"<html>", random.randbytes(random.choice((7, 8, 9, 100, 4096))), bytes(random.choice((8, 64, 1 << 20)))))


def overwrite(random, data, offset, size):
    """Another little-endian integer of so many bytes at an offset."""
    (old,) = struct.unpack_from({1: "<B", 2: "<H", 4: "<I", 8: "<Q"}[size], data, offset)
    new = random.choice((old + 1, old - 1, old * 2, ~old, -old, len(data), len(data) - offset, random.choice(EDGES)))
    return data[:offset] + (new % (1 << 8 * size)).to_bytes(size, "little") + data[offset + size:]


DAMAGES = flip, flip, cut, cut, insert, duplicate, remove, fill, shuffle, append, other_format
