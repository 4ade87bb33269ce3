"""Registers, stack and occupancy of every kernel are those of cuda/resources.txt, so that a change of them shows in a diff.

usage: resources_test.py ARCHIVE NVCC            compares
       resources_test.py ARCHIVE NVCC --update   writes the table
ARCHIVE: the library of kernels, compiled for sm_80 and sm_90a; NVCC: the compiler
Skipped for a build without kernels, or with another nvcc than the table's, whose registers may differ.
"""
import difflib
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from cuda import cubin

TABLE = Path(__file__).resolve().parent.parent.parent / "cuda" / "resources.txt"
ARCHITECTURES = ("sm_80", "sm_90")
SKIPPED = 77
HEAD = """\
What nvcc {release} makes of the kernels: threads of a block at most, registers of a thread for sm_80 and sm_90a, and the share
of a multiprocessor's 64 warps that run at a time, as far as threads and registers allow; shared memory, which launches ask for,
may allow less. No kernel has local memory or static shared memory.
`tests/cuda/resources_test.py ARCHIVE NVCC --update` writes this file.

threads  registers  occupancy    kernel
"""


def release_of(nvcc):
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"release ([0-9.]+)", said)[1]


def table(kernels, release):
    lines = []
    by_name = {}
    for kernel in kernels:
        by_name.setdefault(kernel.name, {})[kernel.architecture] = kernel
    for name, built in sorted(by_name.items()):
        registers = "/".join(str(built[architecture].registers) for architecture in ARCHITECTURES)
        occupancy = "/".join(f"{built[architecture].occupancy:.2f}" for architecture in ARCHITECTURES)
        lines.append(f"{built['sm_80'].threads:7}  {registers:>9}  {occupancy:>9}    {name}\n")
    return HEAD.format(release=release) + "".join(lines)


class Occupancy(unittest.TestCase):
    def test_is_limited_by_registers_threads_and_blocks(self):
        for threads, registers, blocks, occupancy in ((256, 32, 8, 1), (256, 33, 6, 0.75), (256, 128, 2, 0.25), (384, 168, 1, 0.1875),
                                                      (32, 16, 32, 0.5), (1024, 64, 1, 0.5), (1024, 24, 2, 1)):
            with self.subTest(threads=threads, registers=registers):
                kernel = cubin.Kernel("", "sm_80", threads, registers, 0, 0)
                self.assertEqual((kernel.blocks, kernel.occupancy), (blocks, occupancy))


PLANTED = """
__global__ void __launch_bounds__(96) planted_kernel(const int* from, int* to) {
  __shared__ int shared[7];
  int numbers[32] = {};
  for (int i = 0; i < 64; ++i) numbers[from[i] % 32] += i;
  shared[threadIdx.x % 7] = numbers[from[3]];
  __syncthreads();
  for (int i = 0; i < 32; ++i) to[i] = numbers[from[i + 64] % 32] + shared[i % 7];
}
"""


class Cubin(unittest.TestCase):
    def test_says_what_a_kernel_takes(self):
        with tempfile.TemporaryDirectory() as folder:
            source, built = Path(folder) / "planted.cu", Path(folder) / "planted.o"
            source.write_text(PLANTED, "utf-8")
            subprocess.run([NVCC, "-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90a,code=sm_90a",
                            "-c", source, "-o", built], check=True)
            for kernel, architecture in zip(cubin.kernels(built), ARCHITECTURES, strict=True):
                self.assertEqual((kernel.name, kernel.architecture, kernel.threads, kernel.frame, kernel.shared),
                                 ("planted_kernel", architecture, 96, 128, 28))
                self.assertIn(kernel.registers, range(8, 65))


class Resources(unittest.TestCase):
    def test_no_kernel_has_local_or_static_shared_memory(self):
        self.assertGreater(len(KERNELS), 100)
        self.assertEqual([kernel for kernel in KERNELS if kernel.frame or kernel.shared], [])

    def test_every_kernel_is_compiled_once_for_each_generation(self):
        built = [(kernel.name, kernel.architecture) for kernel in KERNELS]
        self.assertEqual(len(built), len(set(built)), "two kernels of one name")
        names = {name for name, _ in built}
        self.assertEqual(set(built), {(name, architecture) for name in names for architecture in ARCHITECTURES})

    def test_registers_and_occupancy_are_those_of_the_table(self):
        now = table(KERNELS, release_of(NVCC))
        changes = list(difflib.unified_diff(TABLE.read_text("utf-8").splitlines(), now.splitlines(), "cuda/resources.txt", "as built",
                                            lineterm="", n=0))
        if changes:
            self.fail("\n".join(["differs from the table", *changes]))


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument and argument != "--update"]
    if len(arguments) < 2:
        print("skipped: no CUDA compiler")
        sys.exit(SKIPPED)
    NVCC = arguments[1]
    KERNELS = cubin.kernels(Path(arguments[0]))
    if "--update" in sys.argv:
        TABLE.write_text(table(KERNELS, release_of(NVCC)), "utf-8")
    elif f"nvcc {release_of(NVCC)} " not in TABLE.read_text("utf-8").splitlines()[0]:
        print(f"skipped: the table is of another nvcc than {release_of(NVCC)}")
        sys.exit(SKIPPED)
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
