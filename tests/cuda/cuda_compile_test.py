"""A build that compiled every kernel has compiled it for both generations of GPUs that the kernels are written for, without
a warning and without local memory: neither registers that spill into it nor arrays on a stack frame.

usage: cuda_compile_test.py KERNEL... -- ARCHITECTURE... -- NVCC...
KERNEL: the *.cu files that are built; ARCHITECTURE: what they are built for, as CMake's CUDA_ARCHITECTURES; NVCC: the
compiler with the options of the build
Skipped without a compiler (no NVCC), and in a build in which nvcc's warnings are not errors: its success shows nothing.
"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GENERATIONS = {"80-real": "sm_80", "90a-real": "sm_90a"}
SKIPPED = 77

SPILLS = """
__global__ void __launch_bounds__(1024, 2) spilling_kernel(const float* from, float* to) {
  float numbers[96];
  for (int i = 0; i < 96; ++i) numbers[i] = from[i * blockDim.x + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 96; ++i) to[i * blockDim.x + threadIdx.x] = numbers[95 - i] * numbers[(i * 7) % 96];
}
"""
FRAME = """
__global__ void indexing_kernel(const int* from, int* to) {
  int numbers[32] = {};
  for (int i = 0; i < 64; ++i) numbers[from[i] % 32] += i;
  for (int i = 0; i < 32; ++i) to[i] = numbers[from[i + 64] % 32];
}
"""
# What the tests of Hopper's primitives have to be compiled to for sm_90a; for sm_80 they have none of it, for
# later devices all but what only sm_90a has.
INSTRUCTIONS = {
    "mbarrier": ["mbarrier.init", "fence.mbarrier_init", "mbarrier.arrive.shared", "mbarrier.arrive.expect_tx",
                 "mbarrier.try_wait.parity"],
    "bulk_copy": ["cp.async.bulk.shared::cluster.global", "cp.async.bulk.tensor.3d"],
    "warpgroup_mma": ["fence.proxy.async", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group",
                      *(f"wgmma.mma_async.sync.aligned.m64n128k16.f32.{name}.{name}" for name in ("bf16", "f16"))],
    "cluster": ["%cluster_ctarank", "%cluster_nctarank", "mapa.u64", "barrier.cluster.arrive.release",
                "barrier.cluster.wait.acquire", "setmaxnreg.inc", "setmaxnreg.dec"],
}
OF_SM_90A_ALONE = ("wgmma.", "setmaxnreg.")
WARNS = "__global__ void careless_kernel(int* to) { int unused; *to = 1; }\n"
GOOD = "__global__ void good_kernel(int* to) { *to = 1; }\n"


def compiled(text, architecture):
    """The exit status of the build's compiler for a source of this text, and its messages."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "sample.cu"
        source.write_text(text, "utf-8")
        run = subprocess.run([*NVCC, f"-arch={architecture}", "-c", source, "-o", Path(folder) / "sample.o"],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return run.returncode, run.stdout


def ptx(source, architecture):
    """The PTX that the build's compiler makes of a device test."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kvbound").symlink_to(ROOT)
        subprocess.run([*NVCC, f"-arch={architecture}", "-ptx", f"-I{folder}", f"-I{ROOT / 'tests'}", source, "-o",
                        Path(folder) / "test.ptx"], check=True)
        return (Path(folder) / "test.ptx").read_text("utf-8")


class CudaCompile(unittest.TestCase):
    def test_the_build_is_for_both_generations(self):
        self.assertLessEqual(set(GENERATIONS), set(ARCHITECTURES))

    def test_the_build_refuses_spills_stack_frames_and_warnings(self):
        for architecture in GENERATIONS.values():
            for text, expected in ((SPILLS, "spill"), (FRAME, "size of stack frame: 128 bytes"),
                                   (WARNS, "never referenced")):
                with self.subTest(architecture=architecture, expected=expected):
                    status, messages = compiled(text, architecture)
                    self.assertNotEqual(status, 0)
                    self.assertIn(expected, messages)
            self.assertEqual(compiled(GOOD, architecture), (0, ""))

    def test_the_primitives_of_hopper_are_its_instructions_and_those_of_other_devices(self):
        for stem, instructions in INSTRUCTIONS.items():
            source = ROOT / "tests" / "cuda" / "primitives" / f"{stem}_test.cu"
            with self.subTest(stem=stem):
                hopper, later, ampere = (ptx(source, f"compute_{name}") for name in ("90a", "90", "80"))
                self.assertEqual([each for each in instructions if each not in hopper], [])
                self.assertEqual([each for each in instructions if each not in later],
                                 [each for each in instructions if each.startswith(OF_SM_90A_ALONE)])
                self.assertEqual([each for each in instructions if each in ampere], [])

    def test_every_kernel_in_the_folder_is_built(self):
        native = ROOT / "cuda" / "native"  # of the native library alone, which is all built
        self.assertEqual(sorted(KERNELS), sorted(each for each in (ROOT / "cuda").glob("**/*.cu") if each.parent != native))


if __name__ == "__main__":
    first, second = [i for i, word in enumerate(sys.argv) if word == "--"]
    KERNELS = [Path(source).resolve() for source in sys.argv[1:first]]
    ARCHITECTURES = sys.argv[first + 1:second]
    NVCC = [word for word in sys.argv[second + 1:] if word]
    if "-Werror=all-warnings" not in NVCC:
        print("skipped: no CUDA compiler, or one whose warnings are not errors")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1], verbosity=2)
