"""Damage to texts: token ids, and JSON of which each line is a document."""
import json

from faults.hostile import json_text, raw_bytes

SEPARATORS = b" ", b"\n", b"\r\n", b"\t", b",", b",,", b"\0", b";", "\u00a0".encode(), "\u2028".encode(), b"\x1b[2J", b""
WORDS = (*json_text.NUMBERS, b"0007", b"0x1", b"one", "\u0661".encode(), "\uff12".encode(), "\u00b2".encode(), b"1" * 100_000, b"-" * 300,
         b"\x1b[31m", b"\xc2\x9b31m", b"\xff", b"\xe2\x80\xae1", b"1.0",
         b"'1'", b"\"1\"", b"[1]", b"#1")


def word(random, data):
    words = data.split(b" ")
    words[random.randrange(len(words))] = random.choice(WORDS)
    return b" ".join(words)


def separator(random, data):
    at = data.find(b" ", random.randrange(len(data) + 1))
    return data[:at] + random.choice(SEPARATORS) + data[at + 1:] if at >= 0 else data + random.choice(SEPARATORS)


def whole(random, data):
    return random.choice((data.replace(b"\n", b"\r\n"), data.replace(b"\n", b"\r"), data.rstrip(b"\n"), b"\xef\xbb\xbf" + data,
                          data.decode("utf-8", "replace").encode("utf-16"),
                          b"\n" * 1000 + data, data.replace(b"\n", b"\n\n"), data.replace(b"\n", b" "), data * 3, data.replace(b" ", b""),
                          b"\n", b" " * 100_000, b"\0" + data,
                          data + b"\x1a", b"999999 " * 50_000))


def in_a_line(damages):
    """Damages of JSON in one of the lines."""
    def change(random, data):
        lines = data.split(b"\n")
        at = random.randrange(max(1, len(lines) - 1))
        try:
            json.loads(lines[at])
        except ValueError:
            return raw_bytes.flip(random, data)
        lines[at] = random.choice(damages)(random, lines[at])
        return b"\n".join(lines)
    return change


def lines(random, data):
    """A line that is gone, repeated, elsewhere, or torn."""
    found = data.split(b"\n")
    at = random.randrange(len(found))
    return b"\n".join(random.choice((found[:at] + found[at + 1:], found[:at + 1] + found[at:], found[::-1],
                                     found[:at] + [found[at][:len(found[at]) // 2]],
                                     found[:at] + [b"", *found[at:]], found[at:] + found[:at], found[:at] + [b"x" * 300_000] + found[at:])))


IDS = word, word, word, separator, whole, raw_bytes.flip, raw_bytes.cut, raw_bytes.insert, raw_bytes.fill, raw_bytes.other_format
JSON_LINES = (in_a_line(json_text.DAMAGES),) * 5 + (lines, lines, whole, raw_bytes.flip, raw_bytes.cut, raw_bytes.insert, raw_bytes.other_format)
PROSE = (separator, whole, lines, *raw_bytes.DAMAGES)
