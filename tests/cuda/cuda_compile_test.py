"""Every kernel compiles for both supported GPU generations without a warning and without spilling registers.

usage: cuda_compile_test.py INCLUDE KERNEL... -- NVCC...
INCLUDE: the folder in which <kvbound/...> is; KERNEL: the *.cu files that are built; NVCC: the compiler with its options
Without a compiler (no NVCC) the test is skipped.
"""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ARCHITECTURES = ("80", "90a")
SKIPPED = 77
SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")

SPILLS = """
__global__ void __launch_bounds__(1024, 2) spilling_kernel(const float* from, float* to) {
  float numbers[96];
  for (int i = 0; i < 96; ++i) numbers[i] = from[i * blockDim.x + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 96; ++i) to[i * blockDim.x + threadIdx.x] = numbers[95 - i] * numbers[(i * 7) % 96];
}
"""
WARNS = "__global__ void careless_kernel(int* to) { int unused; *to = 1; }\n"
GOOD = "__global__ void good_kernel(int* to) { *to = 1; }\n"


def complaints(source):
    """The compiler's warnings, errors and register spills for a source file, as lines; empty if there are none."""
    architectures = [f"--generate-code=arch=compute_{number},code=sm_{number}" for number in ARCHITECTURES]
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [*NVCC, "-I", INCLUDE, "-Werror=all-warnings", "-Xptxas=-v,-warn-spills",
             *architectures, "-c", source, "-o", Path(folder) / "kernel.o"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = run.stdout.splitlines()
    found = [line for line in lines if re.search("warning|error|C7508", line)]
    if run.returncode != 0 and not found:
        found = [f"exit status {run.returncode}: {run.stdout}"]
    architecture = function = None
    judged = set()
    for line in lines:
        if name := re.search(r"Compiling entry function '\S+' for '(\S+)'", line):
            architecture = name.group(1)
        if name := re.search(r"Function properties for (\S+)", line):
            function = name.group(1)
        if spills := SPILLED.search(line):
            judged.add(architecture)
            if spills.groups() != ("0", "0"):
                found.append(f"{function} for {architecture}: {line.strip()}")
    if not found and "__global__" in Path(source).read_text("utf-8"):
        found += [f"ptxas says nothing of its kernels for sm_{number}" for number in ARCHITECTURES
                  if f"sm_{number}" not in judged]
    return found


class CudaCompile(unittest.TestCase):
    def test_the_test_sees_spills_and_warnings(self):
        for text, expected in ((SPILLS, "spill stores"), (WARNS, "never referenced"), (GOOD, None)):
            with tempfile.TemporaryDirectory() as folder:
                source = Path(folder) / "sample.cu"
                source.write_text(text, "utf-8")
                found = "\n".join(complaints(source))
            if expected is None:
                self.assertEqual(found, "")
            else:
                self.assertIn(expected, found)

    def test_every_kernel_in_the_folder_is_built(self):
        self.assertEqual(sorted(KERNELS), sorted((ROOT / "cuda").glob("**/*.cu")))

    def test_kernels_compile_without_spills_and_warnings(self):
        for source in KERNELS:
            with self.subTest(kernel=source.name):
                self.assertEqual(complaints(source), [])


if __name__ == "__main__":
    split = sys.argv.index("--")
    INCLUDE = sys.argv[1]
    KERNELS = [Path(source).resolve() for source in sys.argv[2:split]]
    NVCC = sys.argv[split + 1:]
    if not NVCC:
        print("skipped: there is no CUDA compiler")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1], verbosity=2)
