"""What nvcc says of kernels in the objects that it makes: registers, stack, shared memory. For host objects and archives of them, whose
device code must not be compressed; nvcc 13.0 compresses PTX alone."""
import re
import struct
import subprocess
from dataclasses import dataclass

ELF, NO_BITS = b"\x7fELF", 8
# bytes of shared memory that the system keeps, in the section of kernels that have any
RESERVED = {"sm_90": 1024}
REGISTERS, FRAME, MOST_THREADS = 0x2f, 0x11, 0x05  # attributes in sections .nv.info


@dataclass(frozen=True)
class Kernel:
    name: str          # demangled, with template arguments, without parameters
    architecture: str  # "sm_90"
    threads: int       # of a block, at most: __launch_bounds__
    registers: int     # of a thread
    frame: int         # bytes of local memory of a thread
    shared: int        # bytes of static shared memory of a block

    @property
    def blocks(self):
        """Blocks that a multiprocessor of sm_80 or sm_90 runs at a time, as far as threads and registers allow."""
        warps = -(-self.threads // 32)
        granted = -(-self.registers * 32 // 256) * 256  # of a warp; each of four partitions has 16,384
        return min(32, 64 // warps, 4 * (16384 // max(granted, 256)) // warps)

    @property
    def occupancy(self):
        """The share of a multiprocessor's 64 warps that these blocks have."""
        return self.blocks * -(-self.threads // 32) / 64


def members(archive):
    """The files of an ar archive."""
    if not archive.startswith(b"!<arch>\n"):
        raise ValueError("is no archive")
    place = 8
    while place < len(archive):
        size = int(archive[place + 48:place + 58])
        yield archive[place + 60:place + 60 + size]
        place += 60 + size + size % 2


def sections(elf):
    """The sections of a 64-bit ELF file that begins the bytes: (name, type, size, contents)."""
    table, = struct.unpack_from("<Q", elf, 0x28)
    entry, count, of_names = struct.unpack_from("<HHH", elf, 0x3a)
    heads = [struct.unpack_from("<IIQQQQ", elf, table + i * entry) for i in range(count)]
    names = elf[heads[of_names][4]:heads[of_names][4] + heads[of_names][5]]
    for name, kind, _, _, offset, size in heads:
        contents = b"" if kind == NO_BITS else elf[offset:offset + size]
        yield names[name:names.index(b"\0", name)].decode(), kind, size, contents


def attributes(contents):
    """A section .nv.info: (attribute, value) of those that have one in bytes of their own."""
    place = 0
    while place + 4 <= len(contents):
        form, attribute, value = struct.unpack_from("<BBH", contents, place)
        place += 4
        if form == 4:
            yield attribute, contents[place:place + value]
            place += value


def architecture_of(elf):
    flags, = struct.unpack_from("<I", elf, 0x30)
    return f"sm_{flags >> 8 & 0xff}"


def symbol_names(parts):
    names = next(contents for name, _, _, contents in parts if name == ".strtab")
    table = next(contents for name, _, _, contents in parts if name == ".symtab")
    return [names[at:names.index(b"\0", at)].decode() for at, in
            (struct.unpack_from("<I", table, i) for i in range(0, len(table), 24))]


def of_cubin(elf):
    """(mangled name, architecture, threads, registers, frame, shared) of every kernel of one ELF file for a GPU."""
    parts = list(sections(elf))
    symbols = symbol_names(parts)
    by_symbol = {REGISTERS: {}, FRAME: {}}
    for attribute, value in attributes(next(contents for name, _, _, contents in parts if name == ".nv.info")):
        if attribute in by_symbol:
            symbol, number = struct.unpack("<II", value)
            by_symbol[attribute][symbols[symbol]] = number
    architecture = architecture_of(elf)
    shared = {name.removeprefix(".nv.shared."): size - RESERVED.get(architecture, 0) for name, _, size, _ in parts
              if name.startswith(".nv.shared.")}
    for name, _, _, contents in parts:
        if not name.startswith(".nv.info."):
            continue
        kernel = name.removeprefix(".nv.info.")
        threads = [struct.unpack("<III", value) for attribute, value in attributes(contents) if attribute == MOST_THREADS]
        most = threads[0][0] * threads[0][1] * threads[0][2] if threads else 1024
        yield (kernel, architecture, most, by_symbol[REGISTERS][kernel], by_symbol[FRAME].get(kernel, 0),
               shared.get(kernel, 0))


def readable(names):
    """Demangled names, without namespaces and parameters of ours: "project_kernel<Bfloat16, 4>"."""
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        line = re.sub(r"\(anonymous namespace\)::|kvbound::(cuda::)?(native::)?|^void ", "", line)
        yield re.sub(r"\((bool|int|long|unsigned int|long long)\)", "", line).rsplit("(", 1)[0]


def device_files(path):
    """The ELF files for a GPU in a host object or an archive. What lies behind a file's end is not cut off."""
    contents = path.read_bytes()
    for part in members(contents) if contents.startswith(b"!<arch>\n") else [contents]:
        if not part.startswith(ELF):
            continue
        for name, _, _, fat in sections(part):
            if name == ".nv_fatbin":
                yield from (fat[match.start():] for match in re.finditer(re.escape(ELF), fat))


def kernels(path):
    """Every kernel in a host object or an archive, for every architecture that it was compiled for, sorted."""
    found = [row for file in device_files(path) for row in of_cubin(file)]
    names = readable([row[0] for row in found])
    return sorted((Kernel(name, *row[1:]) for name, row in zip(names, found)), key=lambda kernel: (kernel.name, kernel.architecture))
