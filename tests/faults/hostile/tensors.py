"""Damage to safetensors files: the header's length, JSON, shapes and offsets, and the numbers."""
import json

from faults.hostile import json_text, raw_bytes

# Bit patterns of hostile numbers: NaN, infinity, the largest, subnormal, negative zero, 2^100, all bits.
PATTERNS = {"F64": (8, (0x7FF8000000000000, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FEFFFFFFFFFFFFF, 0x1, 0x8000000000000000,
                        0x4630000000000000, 2**64 - 1)),
            "F32": (4, (0x7FC00000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x1, 0x80000000, 0x71800000, 2**32 - 1)),
            "F16": (2, (0x7E00, 0x7C00, 0xFC00, 0x7BFF, 0xFBFF, 0x1, 0x8000, 0xFFFF)), "BF16": (2, (0x7FC0, 0x7F80, 0xFF80, 0x7F7F, 0xFF7F,
                                                                                                    0x1, 0x8000, 0xFFFF)),
            "I64": (8, (0, 2**64 - 1, 2**63, 2**63 - 1, 2**31, 2**32, 1, 2**53 + 1)), "I32": (4, (0, 2**32 - 1, 2**31, 2**31 - 1, 1, 65536))}


def parts(data):
    """The header as an object, and the data."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + length]), data[8 + length:]


def joined(header, content):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(header).to_bytes(8, "little") + header + content


def header_length(random, data):
    return raw_bytes.overwrite(random, data, 0, 8)


def header_json(random, data):
    header, content = parts(data)
    return joined(random.choice(json_text.DAMAGES)(random, json.dumps(header).encode()), content)


def tensor_names(header):
    return [name for name in header if name != "__metadata__"]


def an_entry(random, data):
    """The header, an entry of it, which may be changed, and the data."""
    header, content = parts(data)
    return header, header[random.choice(tensor_names(header))], content


def dtype(random, data):
    header, entry, content = an_entry(random, data)
    entry["dtype"] = random.choice(("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL", "F8_E4M3",
                                    "F8_E5M2", "C64", "F4", "f32", ""))
    return joined(header, content)


def shape(random, data):
    header, entry, content = an_entry(random, data)
    old, size = entry["shape"], random.choice((0, 0, 1, -1, 2**31, 2**32, 2**61, 2**62, 2**63, 2**64))
    at = random.randrange(len(old)) if old else 0
    entry["shape"] = random.choice((old[::-1], old[:-1], old + [1], old + [0], [1, *old], [size], [2**32, 2**32], [*old[:at], size, *old[at + 1:]],
                                    [*old[:at], 2 * old[at], *old[at + 1:]] if old else [], [1] * 65, [2**16] * 4, [], [0, 2**63 - 1]))
    return joined(header, content)


def offsets(random, data):
    header, entry, content = an_entry(random, data)
    begin, end = entry["data_offsets"]
    step = random.choice((1, 4, 8, end - begin, len(content), 2**32, 2**63 - 1 - end, 2**64 - end))
    entry["data_offsets"] = random.choice(([begin, end + step], [begin + step, end + step], [begin - step, end], [begin, end - step],
                                           [end, begin], [begin], [0, 0],
                                           [begin, end, end], [begin + 0.5, end + 0.5], [step, step], [-begin, -end], [str(begin), end]))
    return joined(header, content)


def exchanged(random, data):
    """Two tensors' entries, or what is in them, change places: shapes that do not fit each other, in a sound file."""
    header, content = parts(data)
    one, other = random.choice(tensor_names(header)), random.choice(tensor_names(header))
    for field in random.choice((("data_offsets",), ("shape",), ("dtype", "shape", "data_offsets"))):
        header[one][field], header[other][field] = header[other][field], header[one][field]
    return joined(header, content)


def resized(random, data):
    """A tensor with more or fewer rows in a sound file: sizes contradict each other, or the metadata."""
    header, content = parts(data)
    chosen, built, rest = random.choice(tensor_names(header)), {}, b""
    for name, entry in header.items():
        if name == "__metadata__":
            built[name] = entry
            continue
        raw, sizes = content[slice(*entry["data_offsets"])], list(entry["shape"])
        if name == chosen and sizes and sizes[0]:
            row, rows = len(raw) // sizes[0], random.choice((0, 1, sizes[0] - 1, sizes[0] + 1, 2 * sizes[0]))
            raw, sizes[0] = (raw + raw + bytes(row))[:row * rows], rows
        built[name] = {**entry, "shape": sizes, "data_offsets": [len(rest), len(rest) + len(raw)]}
        rest += raw
    return joined(built, rest)


def metadata(random, data):
    """Another number or text of the metadata, all of which are texts."""
    header, content = parts(data)
    fields = header.get("__metadata__")
    if not fields:
        return header_json(random, data)
    name = random.choice(list(fields))
    value = json_text.hostile_value(random, fields[name])
    fields[name] = json_text.PLACEHOLDER
    text = value if value.startswith(b'"') or random.random() < 0.1 else json.dumps(value.decode("utf-8", "replace")[:100000]).encode()
    return joined(json.dumps(header).encode().replace(json.dumps(json_text.PLACEHOLDER).encode(), text, 1), content)


def numbers(random, data):
    """Hostile numbers in a tensor: one of them, a row, or all."""
    header, entry, content = an_entry(random, data)
    if entry["dtype"] not in PATTERNS:
        return raw_bytes.flip(random, data)
    size, patterns = PATTERNS[entry["dtype"]]
    begin, end = entry["data_offsets"]
    pattern = random.choice(patterns).to_bytes(size, "little")
    count = (end - begin) // size
    first = random.randrange(count) if count else 0
    many = min(count - first, random.choice((1, 1, 2, entry["shape"][-1] if entry["shape"] else 1)))
    if random.random() < 0.3:
        first, many = 0, count
    at = begin + first * size
    return joined(header, content[:at] + pattern * many + content[at + many * size:])


def scaled_integers(random, data):
    """Integers that count entries or name pages, each a bit too large, too small or out of order."""
    header, content = parts(data)
    integral = [name for name in tensor_names(header) if header[name]["dtype"] in ("I32", "I64")]
    if not integral:
        return numbers(random, data)
    entry = header[random.choice(integral)]
    size, (begin, end) = PATTERNS[entry["dtype"]][0], entry["data_offsets"]
    values = [int.from_bytes(content[i:i + size], "little", signed=True) for i in range(begin, end, size)]
    if values:
        at = random.randrange(len(values))
        change = random.choice((lambda v: [v[i] + (i == at) for i in range(len(v))], lambda v: [v[i] - (i == at) for i in range(len(v))],
                                lambda v: v[::-1],
                                lambda v: [v[0]] * len(v), lambda v: [-1] * len(v), lambda v: [x + 1 for x in v], sorted, lambda v: v[1:] + v[:1]))
        values = change(values)
    return joined(header, content[:begin] + b"".join(value.to_bytes(size, "little", signed=True) for value in values) + content[end:])


DAMAGES = (header_length, header_json, header_json, dtype, shape, offsets, exchanged, resized, metadata, metadata, numbers, numbers, scaled_integers)
