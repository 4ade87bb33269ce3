"""Damage to GGUF files: every count, length, type, dimension and offset of the header, and its values."""
import struct

from faults.hostile import raw_bytes

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a value of each type
TEXT, LIST = 8, 9
TEXTS = (b"", b"\x1b[2J", b"\xc2\x9b31m", b"\xff\xfe\x80\xc0", b"a\nb", b"a\0b", b"\xe2\x80\xae", b"x" * 5000, b"gpt2", b"llama",
         b"general.architecture", b"blk.0.attn_q.weight")
FLOATS = [struct.pack("<f", value) for value in (0.0, -0.0, -1.0, 1e-45, 3e38, float("nan"), float("inf"), float("-inf"))]


class Fields:
    """Where in a file the integers, texts and floats of its header are: `integers` [(offset, size)], `texts` [offset], `floats`."""

    def __init__(self, data):
        self.data, self.at, self.integers, self.texts, self.floats = data, 4, [], [], []
        self.integer(4)
        tensors, values = self.integer(8), self.integer(8)
        for _ in range(values):
            self.text()
            self.value(self.integer(4))
        for _ in range(tensors):
            self.text()
            for _ in range(self.integer(4)):
                self.integer(8)
            self.integer(4)
            self.integer(8)

    def integer(self, size):
        self.integers.append((self.at, size))
        self.at += size
        return int.from_bytes(self.data[self.at - size:self.at], "little")

    def text(self):
        self.texts.append(self.at)
        self.at += self.integer(8)

    def value(self, kind):
        if kind == TEXT:
            self.text()
        elif kind == LIST:
            inner = self.integer(4)
            for _ in range(self.integer(8)):
                self.value(inner)
        else:
            if kind == 6:
                self.floats.append(self.at)
            self.integer(SIZES[kind])


def integer(random, data):
    return raw_bytes.overwrite(random, data, *random.choice(Fields(data).integers))


def integers(random, data):
    for _ in range(random.choice((2, 3, 5))):
        data = integer(random, data)
        try:
            Fields(data)
        except (IndexError, KeyError, MemoryError, RecursionError):
            break
    return data


def text(random, data):
    """Another key, name or value, with its length, so that what follows is where it should be but for alignment."""
    fields = Fields(data)
    at = random.choice(fields.texts)
    length = int.from_bytes(data[at:at + 8], "little")
    old = data[at + 8:at + 8 + length]
    new = random.choice((*TEXTS, old + b"x", old[:-1], old.upper(), old.replace(b"blk.0", b"blk.9"), data[fields.texts[0] + 8:][:20]))
    rest = data[at + 8 + length:]
    moved = data[:at] + struct.pack("<Q", len(new)) + new + rest
    return moved if len(new) != len(old) and random.random() < 0.5 else data[:at + 8] + new[:length].ljust(length, b"_") + rest


def number(random, data):
    at = random.choice(Fields(data).floats or [4])
    return data[:at] + random.choice(FLOATS) + data[at + 4:]


def weights(random, data):
    """Hostile numbers behind the header: scales of blocks, and weights."""
    at = random.randrange(min(Fields(data).at, len(data) - 1), len(data))
    pattern = random.choice((b"\x00\x7e", b"\x00\x7c", b"\x00\xfc", b"\xff\x7b", b"\x01\x00", b"\0\0\xc0\x7f", b"\0\0\x80\x7f",
                             b"\xff\xff\x7f\x7f", b"\xff" * 4))
    many = pattern * random.choice((1, 1, 16, 4096))
    return data[:at & ~1] + many[:len(data) - (at & ~1)] + data[(at & ~1) + len(many):]


DAMAGES = integer, integer, integer, integer, integers, text, text, text, number, weights, weights, raw_bytes.other_format
