"""Damage to .npz files: the ZIP archive's records, the arrays' headers, and what the members are."""
import io
import struct
import warnings
import zipfile

from faults.hostile import raw_bytes

# Of each record of a ZIP archive: its signature, and (offset, size) of the integers behind it.
RECORDS = {b"PK\3\4": ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
           b"PK\1\2": ((4, 2), (6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2), (38, 4), (42, 4)),
           b"PK\5\6": ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2))}
HEADERS = (b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }",
           b"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }",
           b"{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551616,), }",
           b"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
           b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
           b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (), }", b"{'descr': '<f4', 'shape': (1,), }", b"{}", b"", b"{'descr': '<f4'",
           b"{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", b"__import__('os').system('true')",
           b"{'descr': '<U99999999999', 'fortran_order': False, 'shape': ()}",
           b"{'descr': '\x1b[2J', 'fortran_order': False, 'shape': (1,)}", b"{'descr': '\xc2\x9b', 'fortran_order': False, 'shape': (1,)}",
           b"(" * 30000, b"{'shape': (" + b"1," * 30000 + b")}")
NAMES = ("q", "q.npy", "../q.npy", "/q.npy", "a\x1b[2J.npy", "a\n.npy", "\x9b.npy", "\u202e.npy", "x" * 60000 + ".npy", ".npy", "",
         "q.npy/", "out.npy", "k.npy", "sm_scale.npy")


def members(data):
    """[(name, contents)]"""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return [(info.filename, file.read(info)) for info in file.infolist()]


def packed(found, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    # of names that occur twice
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(file, "w", method) as archive:
        for name, content in found:
            archive.writestr(name, content)
    return file.getvalue()


def record(random, data):
    """Another integer of a record."""
    signature = random.choice(list(RECORDS))
    places = [at for at in range(len(data)) if data.startswith(signature, at)]
    if not places:
        return raw_bytes.flip(random, data)
    offset, size = random.choice(RECORDS[signature])
    return raw_bytes.overwrite(random, data, random.choice(places) + offset, size)


def with_member(random, data, change):
    found = members(data)
    at = random.randrange(len(found))
    found[at] = change(*found[at])
    return packed(found, random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)))


def header(random, data):
    """Another header of an array, as its version and length say or not."""
    def change(name, content):
        old = struct.unpack_from("<H", content, 8)[0]
        text = random.choice((*HEADERS, raw_bytes.flip(random, content[10:10 + old]), content[10:10 + old].replace(b"(", b"(7, ")))[:60000]
        length = random.choice((len(text), len(text), len(text), old, 0, 65535))
        version = random.choice((b"\1\0", b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\x09\0"))
        size = struct.pack("<H" if version == b"\1\0" else "<I", length)
        return name, random.choice((b"\x93NUMPY", b"\x93NUMPY", b"\x93NUMPX")) + version + size + text + content[10 + old:]
    return with_member(random, data, change)


def contents(random, data):
    return with_member(random, data, lambda name, content: (name, random.choice(raw_bytes.DAMAGES)(random, content)))


def names(random, data):
    found = members(data)
    at = random.randrange(len(found))
    new = random.choice((*NAMES, found[0][0]))
    return packed(random.choice((found[:at] + found[at + 1:], found + [found[at]], [*found[:at], (new, found[at][1]), *found[at + 1:]],
                                 found + [(new, b"x")])))


def bomb(random, data):
    """Zeros, far fewer of which are in the file."""
    return with_member(random, data, lambda name, content: (name, content + bytes(random.choice((1 << 16, 1 << 24)))))


DAMAGES = record, record, record, header, header, contents, contents, names, names, bomb, raw_bytes.other_format
