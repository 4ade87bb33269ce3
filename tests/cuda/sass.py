"""What a multiprocessor executes: the instructions of every kernel of a library, from nvdisasm, by class."""
import os
import re
import subprocess
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cuda import cubin

# Opcodes as nvdisasm writes them for sm_90, without what follows their first dot.
OPCODES = {
    "mma": "HMMA HGMMA IMMA DMMA",
    "fma": "FFMA",
    "fp32": "FADD FMUL FMNMX FSEL FSET FSETP FCHK",
    "fp64": "DADD DFMA DMUL DSETP",
    "special": "MUFU",
    "integer": "IMAD IADD3 VIADD VIADDMNMX VIMNMX VIMNMX3 IABS LOP3 SHF LEA ISETP PRMT SEL POPC FLO BREV BMSK SGXT "
               "PLOP3",
    "convert": "F2F F2FP F2I I2F I2FP FRND",
    "global": "LDG STG LD ST",  # LD and ST: of pointers to whatever memory
    "shared": "LDS STS LDSM STSM",
    "async": "LDGSTS STAS UBLKCP UBLKRED UTMALDG UTMASTG UTMAREDG",
    "local": "LDL STL",
    "shuffle": "SHFL VOTE VOTEU MATCH REDUX ELECT",
    "barrier": "BAR WARPSYNC ENDCOLLECTIVE DEPBAR LDGDEPBAR SYNCS ARRIVES B2R WARPGROUP UCGABAR_ARV UCGABAR_WAIT "
               "UTMACMDFLUSH FENCE MEMBAR ERRBAR CGAERRBAR CCTL PREEXIT ACQBULK",
    "atomic": "ATOM ATOMG ATOMS RED",
    "control": "BRA BSSY BSYNC BREAK CALL RET EXIT YIELD NANOSLEEP NOP USETMAXREG",
    "uniform": "UMOV UIADD3 UIMAD USHF ULEA ULOP3 UPLOP3 UISETP USEL UPRMT UPOPC UFLO UBREV ULDC R2UR S2UR",
    "move": "MOV CS2R S2R P2R R2P LDC",
}
CLASSES = tuple(OPCODES)
CLASS_OF = {opcode: name for name, opcodes in OPCODES.items() for opcode in opcodes.split()}


@dataclass(frozen=True)
class Instruction:
    opcode: str     # "LDS.128"
    operands: str   # "R76, [R76]"
    predicate: str  # "!P0"; "" if it has none

    @property
    def base(self):
        return self.opcode.split(".")[0]

    @property
    def kind(self):
        """The instruction's class. nvcc also sets registers by multiplying by zero, widens FP16 by adding zero, and
        delays by instructions that are never executed."""
        if self.predicate == "!PT":
            return "control"
        if self.opcode.startswith("IMAD.MOV"):
            return "move"
        if self.base == "HFMA2" and ", -RZ, RZ, " in self.operands:
            return "move"
        if self.opcode == "HADD2.F32" and ", -RZ, " in self.operands:
            return "convert"
        if self.base not in CLASS_OF:
            raise ValueError(f"no class has the instruction {self.opcode} {self.operands}".rstrip())
        return CLASS_OF[self.base]

    @property
    def loaded(self):
        """The numbers of the registers that a load writes."""
        first, width = int(re.match(r"R(\d+)", self.operands)[1]), re.search(r"\.(64|128)\b", self.opcode)
        return set(range(first, first + (int(width[1]) // 32 if width else 1)))

    @property
    def read(self):
        """The numbers of the registers that are read, of wider operands the first one: all but those of a result, which comes
        first and is no address."""
        result, _, rest = self.operands.partition(",")
        return {int(number) for number in re.findall(r"\bR(\d+)\b", rest if re.match(r"U?[RP]", result) else self.operands)}

    @property
    def target(self):
        """The label in the operands; "" if there is none."""
        label = re.search(r"`\((\S+)\)", self.operands)
        return label[1] if label else ""


def count(instructions):
    """Class -> number of instructions."""
    return Counter(instruction.kind for instruction in instructions)


SECTION = re.compile(r"\t\.section\t\.text\.([^,\s]+)")
LABEL = re.compile(r"(\S+):$")
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@(\S+)\s+)?([A-Z]\S*)\s*(.*?)\s*;")


def kernels(text):
    """nvdisasm's text as {mangled name: labels (str) and Instructions, in order}, subroutines behind the kernel."""
    found, current = {}, None
    for line in text.splitlines():
        if section := SECTION.match(line):
            current = found[section[1]] = []
        elif current is None:
            continue
        elif instruction := INSTRUCTION.match(line):
            current.append(Instruction(instruction[2], instruction[3], instruction[1] or ""))
        elif label := LABEL.match(line):
            current.append(label[1])
        elif re.match(r"\s+/\*[0-9a-f]{4,}\*/", line):
            raise ValueError(f"is no instruction: {line.strip()}")
    return found


def disassembled(path, architecture, nvdisasm):
    """{readable name: labels and Instructions} of every kernel of an object or archive for this architecture."""
    def text_of(file):
        with tempfile.TemporaryDirectory() as folder:
            image = Path(folder) / "kernels.cubin"
            image.write_bytes(file)
            return subprocess.run([nvdisasm, "-c", image], capture_output=True, text=True, check=True).stdout
    files = [file for file in cubin.device_files(path) if cubin.architecture_of(file) == architecture]
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        found = [row for text in workers.map(text_of, files) for row in kernels(text).items()]
    return dict(zip(cubin.readable([name for name, _ in found]), (code for _, code in found), strict=True))
