"""The machine code of the kernels for sm_90: the instructions of main loops are those of cuda/instructions.txt, so that
a change of them shows in a diff; tensor core and vector instructions are where they should be.

usage: instructions_test.py ARCHIVE NVCC FOLDER            compares
       instructions_test.py ARCHIVE NVCC FOLDER --update   writes the table
ARCHIVE: the library of kernels; NVCC: the compiler that made it; FOLDER: a virtual environment with nvdisasm, which is
made from PyPI if it is missing
Skipped for a build without kernels, or with another nvcc than the table's, whose instructions may differ.
"""
import difflib
import re
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

from cuda import cubin, loops, main_loops, sass
from cuda.resources_test import PLANTED, SKIPPED, release_of

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "cuda" / "instructions.txt"
ARCHITECTURE = "sm_90"
HEAD = """\
What nvcc {release} makes of the kernels' loops for sm_90a: how many instructions there are, all and by class
(tests/cuda/sass.py), however often they are executed.
  loops    the main loops, which do the kernel's work and contain no other such loop (tests/cuda/main_loops.py), together
  nests    the outermost loops that contain them, inner loops counted once; left out where they are the same
  kernel   all code, of a kernel without main loops or with more work outside of all loops than in the nests
Both sides of branches are counted, but neither subroutines, which are rare cases of divisions and roots, nor what only
warps with diverged threads execute. global: also loads and stores through pointers to any memory; barrier: waits and
fences, too; uniform: instructions that are executed once for a warp, in a slot like any other.
`tests/cuda/instructions_test.py ARCHIVE NVCC FOLDER --update` writes this file.

"""


def nvdisasm(folder):
    """The path of the disassembler, in a virtual environment that is made if it is missing."""
    made = subprocess.run([ROOT / "tests/support/environment.sh", ROOT / "tests/cuda/requirements.txt", folder, "-c", ""],
                          check=False)
    found = [*folder.glob("lib/python*/site-packages/nvidia/*/bin/nvdisasm")]
    if made.returncode or len(found) != 1:
        sys.exit(f"nvdisasm could not be installed into {folder}: this needs PyPI and Python's module venv")
    return found[0]


def table(kernels, release):
    return HEAD.format(release=release) + main_loops.table(kernels)


def instructions_of(code):
    """Class -> number, of all of a kernel's code and its subroutines'."""
    return sass.count(entry for entry in code if not isinstance(entry, str))


def chosen(name):
    """The main loops of a kernel."""
    return main_loops.main_loops(loops.ControlFlow(KERNELS[name]))


def opcodes(code, *bases):
    """Opcode -> number, of these opcodes up to their first dot."""
    return Counter(entry.opcode for entry in code if entry.base in bases)


def named(pattern):
    found = [(name, match) for name in KERNELS if (match := re.fullmatch(pattern, name))]
    assert found, f"no kernel's name is {pattern}"
    return found


class Kernels(unittest.TestCase):
    def test_are_all_disassembled(self):
        built = {kernel.name for kernel in cubin.kernels(ARCHIVE) if kernel.architecture == ARCHITECTURE}
        self.assertGreater(len(built), 100)
        self.assertEqual(set(KERNELS), built)

    def test_do_not_use_local_memory(self):
        self.assertEqual([name for name, code in KERNELS.items() if instructions_of(code)["local"]], [])

    def test_that_use_local_memory_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            source, built = Path(folder) / "planted.cu", Path(folder) / "planted.o"
            source.write_text(PLANTED, "utf-8")
            subprocess.run([NVCC, "-gencode=arch=compute_90a,code=sm_90a", "-c", source, "-o", built], check=True)
            planted = sass.disassembled(built, ARCHITECTURE, NVDISASM)["planted_kernel"]
        self.assertGreater(instructions_of(planted)["local"], 0)

    def test_have_the_instructions_of_the_table(self):
        now = table(KERNELS, release_of(NVCC))
        changes = list(difflib.unified_diff(TABLE.read_text("utf-8").splitlines(), now.splitlines(), "cuda/instructions.txt",
                                            "as built", lineterm="", n=2))
        if changes:
            self.fail("\n".join(["differs from the table", *changes]))


class DependentLaunches(unittest.TestCase):
    """A kernel that lets the next one begin (PREEXIT) waits for the one before (ACQBULK)."""

    def test_read_and_write_memory_after_the_wait(self):
        dependent = 0
        for name, lines in KERNELS.items():
            code = [line for line in lines if isinstance(line, sass.Instruction)]
            bases = [entry.base for entry in code]
            if "PREEXIT" not in bases and "ACQBULK" not in bases:
                continue
            dependent += 1
            with self.subTest(kernel=name):
                self.assertEqual((bases.count("PREEXIT"), bases.count("ACQBULK")), (1, 1))
                before = code[:bases.index("ACQBULK")]
                self.assertEqual([entry.opcode for entry in before if entry.kind in ("global", "async", "atomic")], [])
                self.assertEqual([entry.opcode for entry in before if entry.base in ("BRA", "EXIT", "RET")], [],
                                 "all threads come to the wait")
        self.assertGreater(dependent, 50)

    def test_are_of_kernels_that_wait(self):
        sources = [path.read_text("utf-8") for path in (ROOT / "cuda").glob("**/*.cu")]
        launched = {name for text in sources for name in re.findall(r"launch_dependent<(\w+)", text)}
        self.assertGreater(len(launched), 40)
        others = {re.sub("<.*", "", name).split("::")[-1] for name, code in KERNELS.items()
                  if all(entry.base != "ACQBULK" for entry in code if isinstance(entry, sass.Instruction))}
        self.assertEqual(launched & others, set())


class RemoteLoads(unittest.TestCase):
    """A block may return when the others have arrived at the cluster's last barrier, and an arrival orders no load before it:
    loads from another block's shared memory (LD) are over where something has read their registers."""

    def test_are_over_before_the_cluster_s_barrier(self):
        loading = 0
        for name, code in KERNELS.items():
            opcodes_of = {entry.base for entry in code if isinstance(entry, sass.Instruction)}
            if not {"LD", "UCGABAR_ARV"} <= opcodes_of:
                continue
            loading += 1
            with self.subTest(kernel=name):
                self.assertEqual(loops.ControlFlow(code).unread_before("LD", "UCGABAR_ARV"), [])
        self.assertGreater(loading, 10)


class TensorCores(unittest.TestCase):
    """kSteps products of depth 16 make a head_dim. A warp has two tiles of 16 rows for up to 8 steps, else one, and
    multiplies them by two tiles of 8 columns at a time, which one ldmatrix loads."""

    def kernels(self, pattern):
        """(name, kSteps, tiles of rows, the main loop's instructions)"""
        for name, match in named(pattern + r"<.*\b(\d+), \w+>"):
            found = chosen(name)
            self.assertEqual(len(found), 1, name)
            yield name, int(match[1]), 2 if int(match[1]) <= 8 else 1, found[0].code

    def both(self):
        yield from self.kernels("critical_kv_norms::norms_mma_kernel")
        yield from self.kernels("nearest_key_search::nearest_keys_mma_kernel")

    def test_have_all_steps_of_a_tile_in_one_loop_body(self):
        for name, steps, tiles, code in self.both():
            with self.subTest(kernel=name):
                self.assertEqual(opcodes(code, "HMMA").total(), steps * tiles * 2)

    def test_read_each_operand_once_and_from_shared_memory(self):
        for name, steps, _, code in self.both():
            with self.subTest(kernel=name):
                found = opcodes(code, "LDSM")
                self.assertEqual(found.total(), steps)
                self.assertEqual({opcode.rsplit(".", 1)[1] for opcode in found}, {"4"})
                self.assertEqual(sass.count(code)["global"], 0)

    def test_leave_few_additions_to_fp32_units(self):
        # A product has four sums in a thread. The tensor cores accumulate those of four steps, which are
        # added to the last four's; K3 adds their absolute values to those of other columns.
        for name, steps, tiles, code in self.kernels("critical_kv_norms::norms_mma_kernel"):
            with self.subTest(kernel=name):
                self.assertLessEqual(opcodes(code, "FADD", "FFMA").total(), steps // 4 * tiles * 8)
        for name, steps, tiles, code in self.kernels("nearest_key_search::nearest_keys_mma_kernel"):
            with self.subTest(kernel=name):
                self.assertLessEqual(opcodes(code, "FADD", "FFMA").total(), (steps // 4 - 1) * tiles * 8)


class AttentionTensorCores(unittest.TestCase):
    """A warp multiplies 16 tokens of a tile by 8 query heads, 8 numbers or tokens at a time; values by each part of a weight."""

    def kernels(self):
        """(name, kSteps, tiles of heads, parts of a weight, the loop of keys, the loop of values)"""
        pattern = r"attention_splits::attention_(?:mma|tma)_kernel<(\w+), (\d+), (\d+)(?:, \d+)?>"
        for name, match in named(pattern):
            keys, values = sorted((loop.code for loop in chosen(name)), key=lambda code: opcodes(code, "MUFU").total())
            yield name, int(match[2]), int(match[3]), 3 if match[1] == "Bfloat16" else 2, keys, values

    def test_have_all_steps_of_a_tile_in_one_loop_body(self):
        for name, steps, tiles, parts, keys, values in self.kernels():
            with self.subTest(kernel=name):
                self.assertEqual(opcodes(keys, "HMMA").total(), 2 * steps * tiles)
                self.assertEqual(opcodes(values, "HMMA").total(), 2 * steps * tiles * parts)

    def test_read_each_operand_once(self):
        for name, steps, _, _, keys, values in self.kernels():
            with self.subTest(kernel=name):
                self.assertEqual([opcodes(code, "LDSM").total() for code in (keys, values)], [steps, steps])

    def test_add_each_sum_of_a_step_once_to_another(self):
        # Eight numbers in a thread; a weight's parts and exponentials take more, as many for any head_dim.
        for name, steps, tiles, _, keys, values in self.kernels():
            with self.subTest(kernel=name):
                for code in (keys, values):
                    self.assertLessEqual(opcodes(code, "FADD", "FFMA").total(), (8 * steps + 48) * tiles)


class ClusterSearches(unittest.TestCase):
    """The blocks of a cluster send each other what they have counted of a digit, one store for each of them: between two digits
    stands neither a barrier of the cluster nor a fence that waits for all memory."""

    def test_wait_for_numbers_alone(self):
        for name, match in named(r"cluster_selection::select_in_cluster_kernel<(\w+), \d+>"):
            with self.subTest(kernel=name):
                code = [entry for entry in KERNELS[name] if isinstance(entry, sass.Instruction)]
                searches = 4 if match[1] == "true" else 2  # of a key and of an index
                self.assertEqual(opcodes(code, "STAS").total(), 8 * searches)
                self.assertEqual(opcodes(code, "MEMBAR").total(), 0)
                self.assertEqual(opcodes(code, "UCGABAR_ARV").total(), 1)


class AttentionPrologue(unittest.TestCase):
    """What a block executes before it requests its first tile is in the way of every split. The shortest way there on which it
    finds its split (FLO: the first lane of a vote) is that of up to 32 KV heads whose entries are all attended to."""

    def test_is_short_and_divides_by_no_subroutine(self):
        for copy, request, most in (("mma", "LDGSTS", 171), ("tma", "UTMALDG", 165)):
            for name, _ in named(rf"attention_splits::attention_{copy}_kernel<\w+, \d+, \d(?:, \d)?>"):
                code = [line for line in KERNELS[name] if isinstance(line, sass.Instruction)]
                before = [entry.base for entry in code[:next(i for i, entry in enumerate(code) if entry.base == request)]]
                with self.subTest(kernel=name):
                    self.assertLessEqual(loops.ControlFlow(KERNELS[name]).fewest_before(request, ("FLO", "UFLO")), most)
                    self.assertLessEqual(len(before), 260)
                    self.assertNotIn("CALL", before)


class WindowTensorCores(unittest.TestCase):
    """A warp multiplies 16 keys by its queries, four tiles of 8 for up to 12 steps, else two, and takes exponentials of the
    products: 16 by 8 tiles / 32 of a thread for each tile."""

    def kernels(self):
        """(name, kSteps, tiles, the main loop's instructions)"""
        for name, match in named(r"snap_kv_kernels::window_(?:attention|log_sum_exp)_mma_kernel<\w+, (\d+), \d+, \d+>"):
            found = chosen(name)
            self.assertEqual(len(found), 1, name)
            yield name, int(match[1]), 4 if int(match[1]) <= 12 else 2, found[0].code

    def test_have_all_steps_of_16_keys_in_one_loop_body(self):
        for name, steps, tiles, code in self.kernels():
            with self.subTest(kernel=name):
                self.assertEqual(opcodes(code, "HMMA").total(), steps * tiles)
                self.assertEqual(opcodes(code, "LDSM"), {"LDSM.16.M88.4": steps})
                self.assertEqual(opcodes(code, "LDS").total(), 0)

    def test_take_one_instruction_for_an_exponential(self):
        for name, _, tiles, code in self.kernels():
            with self.subTest(kernel=name):
                # The sums over tokens are rescaled for each of a thread's queries, where
                # a larger logit is found.
                rescaled = 2 * tiles if "log_sum_exp" in name else 0
                self.assertEqual(opcodes(code, "MUFU"), {"MUFU.EX2": 4 * tiles + rescaled})

    def test_leave_few_additions_to_fp32_units(self):
        # A tile has four products in a thread, of two queries: these are added for each further chain of four
        # steps, moved by a log-sum-exp or by the largest logit, and their exponentials are added; sums are
        # rescaled for each query.
        for name, steps, tiles, code in self.kernels():
            with self.subTest(kernel=name):
                chains = -(-steps // 4)
                self.assertLessEqual(opcodes(code, "FADD", "FFMA").total(), (chains - 1 + 2) * 4 * tiles + 2 * tiles)


class ChangeTensorCores(unittest.TestCase):
    """A warp multiplies 16 keys by its queries and 16 values by the parts of their outputs, two tiles of 8 for up to 8 steps, else
    one; `value` takes keys alone."""

    def kernels(self):
        """(name, kSteps, tiles, parts of an output, the main loop's instructions)"""
        for name, match in named(r"obcache_kernels::window_change_scores_mma_kernel<\(Change\)(\d), (\w+), (\d+)>"):
            found = [loop.code for loop in chosen(name) if opcodes(loop.code, "HMMA")]
            self.assertEqual(len(found), 1, name)
            parts = 0 if match[1] == "0" else {"Bfloat16": 3, "Float16": 2}[match[2]]
            yield name, int(match[3]), 2 if int(match[3]) <= 8 else 1, parts, found[0]

    def test_have_all_steps_of_16_tokens_in_one_loop_body(self):
        for name, steps, tiles, parts, code in self.kernels():
            with self.subTest(kernel=name):
                self.assertEqual(opcodes(code, "HMMA").total(), steps * tiles * (1 + parts))
                self.assertEqual(opcodes(code, "LDSM"), {"LDSM.16.M88.4": steps * (2 if parts else 1)})
                # One for each of a thread's queries; the rare special scores may read once more
                # which tokens are dominant.
                self.assertIn(opcodes(code, "LDS").total(), (2 * tiles, 4 * tiles))

    def test_take_one_instruction_for_an_exponential(self):
        for name, _, tiles, _, code in self.kernels():
            with self.subTest(kernel=name):
                self.assertEqual(opcodes(code, "MUFU")["MUFU.EX2"], 4 * tiles)


class WarpgroupTensorCores(unittest.TestCase):
    """A consumer multiplies two tiles of 64 rows by 128 columns in steps of depth 16, and adds the terms of 128 sums, or
    multiplies each by the inverse length of its key."""

    def test_take_all_steps_of_two_tiles_one_behind_the_other(self):
        for name, match in named(r"(?:critical_kv_norms::norms|nearest_key_search::nearest_keys)_wgmma_kernel<.*\b(\d+), \w+>"):
            with self.subTest(kernel=name):
                loop, = [each.code for each in chosen(name) if opcodes(each.code, "HGMMA")]
                self.assertEqual(opcodes(loop, "HGMMA").total(), 2 * int(match[1]) // 16)
                self.assertEqual(opcodes(loop, "WARPGROUP")["WARPGROUP.ARRIVE"], 1)
                self.assertEqual(opcodes(loop, "WARPGROUP").total(), 3)  # and a wait for each tile
                self.assertLessEqual(opcodes(loop, "FADD", "FFMA").total(), 2 * 128)
                # the least that moving a tile or its sums would take
                self.assertLess(sass.count(loop)["move"], 32)


class WindowWarpgroups(unittest.TestCase):
    """A consumer multiplies 64 keys by 128 queries, or 64 queries by 128 keys, in steps of depth 16 and takes an exponential of
    each product. Log-sum-exps are of queries in rows, two of a thread, whose sums are rescaled, in a tile with masks or without."""

    def test_take_a_tile_with_one_wait_and_one_instruction_for_an_exponential(self):
        for what, exponentials in (("attention", 64), ("log_sum_exp", 2 * (64 + 2))):
            for name, match in named(rf"snap_kv_kernels::window_{what}_wgmma_kernel<(\d+), \w+>"):
                with self.subTest(kernel=name):
                    loop, = [each.code for each in chosen(name) if opcodes(each.code, "HGMMA")]
                    self.assertEqual(opcodes(loop, "HGMMA").total(), int(match[1]) // 16)
                    self.assertEqual(opcodes(loop, "WARPGROUP"), {"WARPGROUP.ARRIVE": 1, "WARPGROUP.DEPBAR.LE": 1})
                    self.assertEqual(opcodes(loop, "MUFU")["MUFU.EX2"], exponentials)


class VectorLoads(unittest.TestCase):
    """Loops that multiply read 16 bytes of shared memory at a time, and nothing else."""

    def narrow(self, code):
        """The 32-bit numbers that loads of less than 16 bytes read in a loop."""
        found = opcodes(code, "LDS")
        self.assertGreater(found["LDS.128"], 0)
        self.assertEqual(found.total(), sum(sass.count(code)[kind] for kind in main_loops.MEMORY))
        return sum(number * (2 if opcode == "LDS.64" else 1) for opcode, number in found.items() if opcode != "LDS.128")

    def test_in_attention_but_for_the_weights_of_heads_that_are_no_multiple_of_four(self):
        for name, match in named(r"attention_splits::attention_portable_kernel<(\d+)>"):
            with self.subTest(kernel=name):
                found = chosen(name)
                self.assertEqual(len(found), 2)  # keys and values
                self.assertLessEqual(sum(self.narrow(loop.code) for loop in found), int(match[1]) % 4)

    def test_in_the_products_of_windows(self):
        for name, _ in named(r"(?:snap_kv_kernels::|obcache_kernels::)?window_(attention_portable|change_scores_portable|log_sum_exp_portable|logits)_kernel(<.*>)?"):
            with self.subTest(kernel=name):
                found = [loop.code for loop in chosen(name) if sass.count(loop.code)["fma"]]
                self.assertIn(len(found), (1, 2))  # keys; values, too
                self.assertEqual([self.narrow(code) for code in found], [0] * len(found))


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument and argument != "--update"]
    if len(arguments) < 3:
        print("skipped: no CUDA compiler")
        sys.exit(SKIPPED)
    ARCHIVE, NVCC, FOLDER = Path(arguments[0]), arguments[1], Path(arguments[2])
    RELEASE = release_of(NVCC)
    if "--update" not in sys.argv and f"nvcc {RELEASE} " not in TABLE.read_text("utf-8").splitlines()[0]:
        print(f"skipped: the table is of another nvcc than {RELEASE}")
        sys.exit(SKIPPED)
    NVDISASM = nvdisasm(FOLDER)
    KERNELS = sass.disassembled(ARCHIVE, ARCHITECTURE, NVDISASM)
    if "--update" in sys.argv:
        TABLE.write_text(table(KERNELS, RELEASE), "utf-8")
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
