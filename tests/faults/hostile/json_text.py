"""Damage to JSON: another value or name at a random place of a document, and what surrounds a document."""
import functools
import json

from faults.hostile import raw_bytes

# Written as they are, where a value was.
NUMBERS = (b"0", b"-0", b"-1", b"1", b"2", b"0.5", b"-0.0", b"1e0", b"1e400", b"-1e400", b"1e-400", b"4.9e-324", b"1.7976931348623157e308", b"NaN",
           b"Infinity", b"-Infinity", b"01", b"+1", b".5", b"1.", b"0x10", b"1_000", b"9007199254740993", b"1" * 400, b"0." + b"1" * 5000,
           b"1e" + b"9" * 400, b"-9223372036854775808", b"-9223372036854775809", *(str(edge).encode() for edge in raw_bytes.EDGES))
TEXTS = (b'""', b'" "', b'"x"', b'"null"', b'"\\u0000"', b'"a\\u0000b"', b'"\\u001b[31mred\\u0007"', b'"\\u009b31m\\u0085\\u0090"', b'"\xc2\x9b31m"',
         b'"\\n\\r\\t"', b'"\n"', b'"\x1b[2J"', b'"\x7f"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b'"\xc0\xaf"',
         b'"\xf4\x90\x80\x80"',
         b'"\\u202egnp.exe"', b'"\xe2\x80\xae\xe2\x80\xa8"', b'"\xef\xbb\xbf"', '"\u0661\u0662"'.encode(), '"\uff11"'.encode(),
         b'"1\\u0000"', b'" 1"', b'"1e1"', b'"nan"',
         b'"../../etc/passwd"', b'"/dev/zero"', b'"' + b"x" * 300 + b'"', b'"' + b"\xc2\x9b" * 100 + b'"', b'"' + b"y" * 70000 + b'"',
         b'"%s%n{}{0}"', b'"\\x"', b"'x'",
         *(b'"%d"' % edge for edge in raw_bytes.EDGES[::3]))
OTHERS = (b"null", b"true", b"false", b"[]", b"{}", b"[[]]", b"[null]", b'{"":0}', b'{"x":1,"x":2}', b"[1,]", b"[,]", b"{,}", b"",
          b"undefined", b"nul", b"/**/1",
          b"[" * 33 + b"]" * 33, b"[" * 100000 + b"]" * 100000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b"[" * 50000)
PLACEHOLDER = "\ue000hostile\ue001"


@functools.cache
def long_list():
    return b"[" + b",".join([b"0"] * 300_000) + b"]"


@functools.cache
def many_members():
    return b"{" + b",".join(b'"%x":0' % i for i in range(1_000_000)) + b"}"


def places(value):
    """Every (container, key) within a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in items:
        yield value, key
        yield from places(member)


def hostile_value(random, old):
    """The bytes of a value, of another kind than the old one or beside it."""
    if random.random() < 0.002:
        return random.choice((long_list, many_members))()
    choice = random.random()
    if isinstance(old, bool) or old is None:
        choice = 1
    if isinstance(old, (int, float)) and choice < 0.3:
        return json.dumps(random.choice((old + 1, old - 1, -old, old * 2, old * 4294967296, old / 3, str(old), [old]))).encode()
    if isinstance(old, str) and choice < 0.3:
        if old.isdigit():
            return json.dumps(str(random.choice((int(old) + 1, int(old) - 1, -int(old), 2 * int(old), int(old) << 32)))).encode()
        return json.dumps(random.choice((old + "x", old[:-1], old.upper(), old + "\0", " " + old, old * 50, old.replace(".", "/")))).encode()
    if isinstance(old, (list, dict)) and choice < 0.3:
        return json.dumps(shortened(random, old)).encode()
    return random.choice(NUMBERS if choice < 0.55 else TEXTS if choice < 0.85 else OTHERS)


def shortened(random, old):
    """A list or object without an item, or with one twice."""
    if isinstance(old, dict):
        gone = random.choice(list(old)) if old else None
        return {key: value for key, value in old.items() if key != gone}
    at = random.randrange(len(old)) if old else 0
    return random.choice((old[:at], old[:at] + old[at + 1:], old[:at + 1] + old[at:], old[::-1], old + old, [old]))


def other_value(random, data):
    document = json.loads(data)
    found = list(places(document))
    if not found:
        return raw_bytes.flip(random, data)
    container, key = random.choice(found)
    value = hostile_value(random, container[key])
    container[key] = PLACEHOLDER
    return json.dumps(document).encode().replace(json.dumps(PLACEHOLDER).encode(), value, 1)


def other_name(random, data):
    """A member that is named otherwise, gone, repeated, or new."""
    document = json.loads(data)
    found = [(container, key) for container, key in places(document) if isinstance(container, dict)]
    if not found:
        return raw_bytes.flip(random, data)
    container, key = random.choice(found)
    members, name = dict(container), random.choice((b"", json.dumps(key).encode(), random.choice(TEXTS)))
    container.clear()
    for old, value in members.items():
        if old != key or name == json.dumps(key).encode():
            container[old] = value
        if old == key and name:
            container[PLACEHOLDER] = value
    return json.dumps(document).encode().replace(json.dumps(PLACEHOLDER).encode(), name, 1)


def two_values(random, data):
    return other_value(random, json.dumps(json.loads(data)).encode()) if random.random() < 0.5 else twice(random, data)


def twice(random, data):
    """Two damages, of which the first left a document."""
    once = other_value(random, data)
    try:
        json.loads(once)
    except (ValueError, RecursionError):
        return once
    return other_name(random, once)


def surroundings(random, data):
    return random.choice((b"\xef\xbb\xbf" + data, data + data, data + b"\0", data + b"}", data + b" \n\t", b" \n" + data,
                          b"[" + data + b"]", data[:-1],
                          data.decode("utf-8", "replace").encode("utf-16"), data.replace(b"\n", b"\r\n"), data.replace(b'"', b"'"),
                          data.replace(b": ", b":"),
                          data.replace(b",", b",,", 1), b"\xff" + data, data.replace(b"}", b",}", 1)))


DAMAGES = other_value, other_value, other_value, other_name, other_name, two_values, surroundings
