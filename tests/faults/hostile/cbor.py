"""Damage to the results of a sweep: a hash in hexadecimal, and CBOR, with the hash of what was damaged or not."""
import hashlib
import struct

from faults.hostile import raw_bytes

DIGITS = 64
ITEMS = (b"\xf6", b"\xf5", b"\xf7", b"\x00", b"\x20", b"\x1b" + b"\xff" * 8, b"\x3b" + b"\xff" * 8, b"\x1b" + (2**63).to_bytes(8, "big"),
         b"\xf9\x7e\x00", b"\xf9\x7c\x00",
         b"\xfb" + struct.pack(">d", -1e308), b"\xfb" + struct.pack(">d", 0.5), b"\xfa\xff\x80\x00\x00", b"\x60", b"\x63abc",
         b"\x64\x1b[2J", b"\x62\xc2\x9b", b"\x61\xff",
         b"\x80", b"\xa0", b"\x81\x00", b"\xa1\x61x\x00", b"\xa1\x00\x00", b"\x9f\xff", b"\xbf\xff", b"\x9f", b"\xbf", b"\x5f\xff", b"\x40",
         b"\x44\0\1\2\3", b"\xc0\x60",
         b"\xd9\xd9\xf7\x00", b"\x9b" + b"\xff" * 8, b"\xbb" + b"\x7f" * 8, b"\x7b" + b"\x7f" * 8, b"\x5b" + (2**62).to_bytes(8, "big"),
         b"\x9a\x7f\xff\xff\xff", b"\x1f", b"\xff",
         b"\x81" * 31 + b"\0", b"\x81" * 100000 + b"\0", b"\xf8\x18", b"\x9a\0\x98\x96\x80" + b"\0" * 10_000_000)


def spans(data, at=0):
    """(begin, end) of every item from `at` on, inner ones first; those that this program writes have definite lengths."""
    begin, major, more = at, data[at] >> 5, data[at] & 31
    size = {24: 1, 25: 2, 26: 4, 27: 8}.get(more, 0)
    number = int.from_bytes(data[at + 1:at + 1 + size], "big") if size else more
    at += 1 + size
    found = []
    for _ in range({4: number, 5: 2 * number}.get(major, 0)):
        found += spans(data, at)
        at = found[-1][1]
    return [*found, (begin, at + (number if major in (2, 3) else 0))]


def other_item(random, body):
    begin, end = random.choice(spans(body))
    return body[:begin] + random.choice(ITEMS) + body[end:]


def two_items(random, body):
    """Two items change places."""
    (begin, end), (other, behind) = sorted(random.sample(spans(body), 2))
    if behind <= end:
        return other_item(random, body)
    return body[:begin] + body[other:behind] + body[end:other] + body[begin:end] + body[behind:]


def head(random, body):
    """Another length or kind of an item."""
    begin, _ = random.choice(spans(body))
    return body[:begin] + bytes([body[begin] ^ 1 << random.randrange(8)]) + body[begin + 1:]


def hashed(random, data):
    """Damage under its own hash, so that it is read."""
    body = data[DIGITS:]
    body = random.choice((other_item, other_item, other_item, two_items, head, random.choice(raw_bytes.DAMAGES)))(random, body)
    return hashlib.sha256(body).hexdigest().encode() + body


DAMAGES = hashed, hashed, hashed, hashed, raw_bytes.flip, raw_bytes.cut
