"""Instructions, classes and loops are found in planted text of nvdisasm, and main loops among them.

usage: sass_test.py
"""
import unittest

from cuda import loops, main_loops, sass

TEXT = """\
\t.target\tsm_90a
//--------------------- .text._Z7a_kernelv --------------------------
\t.section\t.text._Z7a_kernelv,"ax",@progbits
\t.align\t128
.text._Z7a_kernelv:
        .type           _Z7a_kernelv,@function
_Z7a_kernelv:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/              @!P0 LDG.E.128 R8, desc[UR4][R2.64] ;
        /*0020*/               @P1 BRA `(.L_x_0) ;
        /*0030*/                   EXIT ;
        .weak           $__internal_0_$__cuda_sm20_div_s64
$__internal_0_$__cuda_sm20_div_s64:
        /*0040*/                   RET.REL.NODEC R4 `(_Z7a_kernelv) ;
.L_x_9:
        /*0050*/                   BRA `(.L_x_9);
\t.section\t.text._Z7b_kernelv,"ax",@progbits
_Z7b_kernelv:
        /*0000*/                   EXIT ;
"""


def code(text):
    """Labels ("a:") and instructions, separated by semicolons and ends of lines."""
    found = []
    for words in (part.split() for part in text.replace(";", "\n").replace(":", ":\n").split("\n")):
        if words and words[0].endswith(":"):
            found.append(words[0][:-1])
        elif words:
            predicate = words.pop(0)[1:] if words[0].startswith("@") else ""
            found.append(sass.Instruction(words[0], " ".join(words[1:]), predicate))
    return found


def found(text):
    """(depth, instructions) of every loop of this code."""
    return [(loop.depth, len(loop.code)) for loop in loops.ControlFlow(code(text)).loops]


def chosen(text):
    """The first opcodes of the main loops of this code."""
    return sorted(loop.code[0].opcode for loop in main_loops.main_loops(loops.ControlFlow(code(text))))


def loop(label, body):
    return f"{label}:\n{body}\n@P0 BRA `({label})\n"


class Text(unittest.TestCase):
    def test_gives_every_kernel_its_labels_and_instructions(self):
        kernels = sass.kernels(TEXT)
        self.assertEqual(list(kernels), ["_Z7a_kernelv", "_Z7b_kernelv"])
        first = kernels["_Z7a_kernelv"]
        self.assertEqual([entry if isinstance(entry, str) else entry.opcode for entry in first],
                         [".text._Z7a_kernelv", "_Z7a_kernelv", "LDC", ".L_x_0", "LDG.E.128", "BRA", "EXIT",
                          "$__internal_0_$__cuda_sm20_div_s64", "RET.REL.NODEC", ".L_x_9", "BRA"])
        self.assertEqual(first[4], sass.Instruction("LDG.E.128", "R8, desc[UR4][R2.64]", "!P0"))
        self.assertEqual((first[5].target, first[5].predicate), (".L_x_0", "P1"))

    def test_that_is_not_understood_is_refused(self):
        with self.assertRaisesRegex(ValueError, "is no instruction: .*0040.* ret"):
            sass.kernels(TEXT.replace("RET.REL.NODEC", "ret"))


class Classes(unittest.TestCase):
    def kinds(self, text):
        return [entry.kind for entry in code(text)]

    def test_have_every_opcode_once(self):
        self.assertEqual(sum(len(opcodes.split()) for opcodes in sass.OPCODES.values()), len(sass.CLASS_OF))

    def test_are_those_of_the_opcode(self):
        for opcode, kind in (("HMMA.16816.F32.BF16", "mma"), ("FFMA.FTZ", "fma"), ("FADD", "fp32"), ("DFMA", "fp64"),
                             ("MUFU.EX2", "special"), ("IMAD.WIDE.U32", "integer"), ("F2FP.BF16.F32.PACK_AB", "convert"),
                             ("LDG.E.128", "global"), ("LDSM.16.MT88.4", "shared"), ("LDGSTS.E.BYPASS.128", "async"),
                             ("STL.64", "local"), ("SHFL.BFLY", "shuffle"), ("BAR.SYNC.DEFER_BLOCKING", "barrier"),
                             ("ATOMS.ADD", "atomic"), ("BSSY", "control"), ("ULDC.64", "uniform"), ("CS2R", "move")):
            self.assertEqual(self.kinds(opcode), [kind], opcode)

    def test_are_by_what_an_instruction_is_used_for(self):
        self.assertEqual(self.kinds("IMAD.MOV.U32 R1, RZ, RZ, R2; HFMA2.MMA R96, -RZ, RZ, 0, 0"), ["move", "move"])
        self.assertEqual(self.kinds("HADD2.F32 R1, -RZ, R2.H0_H0"), ["convert"])
        self.assertEqual(self.kinds("@!PT LDS RZ, [RZ]; @!P0 LDS R1, [R2]"), ["control", "shared"])

    def test_lack_an_unknown_opcode(self):
        for text in ("FROB.64 R1, R2", "HFMA2 R1, R2, R3, R4", "HADD2 R1, R2, R3"):
            with self.assertRaisesRegex(ValueError, f"no class has the instruction {text}"):
                sass.count(code(text))


class Loops(unittest.TestCase):
    def test_of_one_block(self):
        self.assertEqual(found("MOV;" + loop("a", "FADD; FADD") + "EXIT"), [(0, 3)])

    def test_inside_each_other(self):
        inner = loop("b", "FMUL; FMUL; FMUL") + loop("c", "MUFU")
        self.assertEqual(found("MOV;" + loop("a", "FADD;" + inner + "FADD") + "EXIT"), [(0, 9), (1, 4), (1, 2)])

    def test_have_both_sides_of_branches(self):
        self.assertEqual(found(loop("a", "@P1 BRA `(b); FADD; BRA `(c)\n b: FMUL; FMUL\n c: MUFU") + "EXIT"), [(0, 7)])

    def test_end_where_either_of_two_predicates_says_so(self):
        self.assertEqual(found("a: FADD; @!P0 BRA P1, `(a); FMUL; BRA !P0, `(a); EXIT"), [(0, 4)])

    def test_have_what_lies_behind_the_kernels_end(self):
        rare = "EXIT; rare: CALL.REL.NOINC `(f); BRA `(back)"
        self.assertEqual(found(loop("a", "@P1 BRA `(rare); back: FADD") + rare), [(0, 5)])

    def test_lack_what_warps_with_diverged_threads_execute(self):
        rare = "EXIT; rare: WARPSYNC.COLLECTIVE R1, `(back); SHFL; BRA `(back)"
        self.assertEqual(found(loop("a", "BRA.DIV UR4, `(rare); SHFL; back: FADD") + rare), [(0, 4)])

    def test_are_none_where_nothing_is_executed(self):
        self.assertEqual(found("MOV; EXIT\n a: BRA `(a)"), [])
        self.assertEqual(found("MOV\n a: FADD; @P0 EXIT; BRA `(a)\n b: BRA `(b)"), [(0, 3)])

    def test_do_not_end_where_threads_wait_for_each_other(self):
        self.assertEqual(found(loop("a", "BSSY B0, `(b); @P1 BRA `(b); FADD; BSYNC B0\n b: FMUL") + "EXIT"), [(0, 6)])

    def test_are_refused_if_their_form_is_unknown(self):
        with self.assertRaisesRegex(ValueError, "a loop has two entries"):
            found("@P0 BRA `(b)\n a: FADD\n b: FMUL; @P1 BRA `(a); EXIT")
        with self.assertRaisesRegex(ValueError, "BSYNC B1 does not lie before the target of its BSSY"):
            found("BSSY B0, `(a); BSYNC B1\n a: EXIT")


class ShortestWays(unittest.TestCase):
    def fewest(self, text):
        return loops.ControlFlow(code(text)).fewest_before("LDGSTS", ("MOV", "FLO"))

    def test_leave_out_what_a_branch_avoids(self):
        self.assertEqual(self.fewest("MOV; @P0 BRA `(b); FADD; FADD; LDGSTS; EXIT\n b: FMUL; LDGSTS; EXIT"), 3)
        self.assertEqual(self.fewest("MOV; @P0 BRA `(b); FADD; LDGSTS; EXIT\n b: FMUL; FMUL; LDGSTS; EXIT"), 3)

    def test_take_each_loop_once(self):
        self.assertEqual(self.fewest(loop("a", "MOV; FADD") + "FMUL; LDGSTS; EXIT"), 4)

    def test_pass_through_what_they_have_to(self):
        self.assertEqual(self.fewest("@P0 BRA `(b); FADD; FADD; FLO\n b: LDGSTS; EXIT"), 4)
        self.assertEqual(self.fewest("@P0 BRA `(b); FLO; BRA `(c)\n b: LDGSTS; MOV\n c: FADD; LDGSTS; EXIT"), 4)

    def test_that_do_not_exist_are_refused(self):
        with self.assertRaisesRegex(ValueError, "no way leads to LDGSTS"):
            self.fewest("FADD; LDGSTS; FLO; EXIT")
        with self.assertRaisesRegex(ValueError, "no way leads to LDGSTS"):
            self.fewest("MOV; EXIT; LDGSTS")


class UnreadLoads(unittest.TestCase):
    def unread(self, text):
        return [entry.opcode for entry in loops.ControlFlow(code(text)).unread_before("LD", "UCGABAR_ARV")]

    def test_are_those_whose_registers_nothing_reads(self):
        self.assertEqual(self.unread("LD.E R8, [R2.64]; UCGABAR_ARV; FADD R1, R8, R8; EXIT"), ["LD.E"])
        self.assertEqual(self.unread("LD.E R8, [R2.64]; MOV R8, R2; UCGABAR_ARV; EXIT"), ["LD.E"])
        self.assertEqual(self.unread("LD.E R8, [R2.64]; FADD R1, R2, R8.reuse; UCGABAR_ARV; EXIT"), [])
        self.assertEqual(self.unread("LD.E R8, [R2.64]; STS [R8], R1; UCGABAR_ARV; EXIT"), [])

    def test_of_several_registers_need_one_of_them(self):
        self.assertEqual(self.unread("LD.E.128 R8, [R2.64]; FADD R1, R11, R1; UCGABAR_ARV; EXIT"), [])
        self.assertEqual(self.unread("LD.E.64 R8, [R2.64]; FADD R1, R11, R1; UCGABAR_ARV; EXIT"), ["LD.E.64"])

    def test_are_unread_if_one_way_is_without_a_reader(self):
        self.assertEqual(self.unread("LD.E R8, [R2.64]; @P0 BRA `(b); FADD R1, R8, R8\n b: UCGABAR_ARV; EXIT"), ["LD.E"])
        self.assertEqual(self.unread(loop("a", "LD.E R8, [R2.64]; FADD R1, R8, R1") + "UCGABAR_ARV; EXIT"), [])


class MainLoops(unittest.TestCase):
    def test_are_all_with_products_of_tensor_cores(self):
        nest = loop("b", "FFMA; FFMA;" + loop("c", "HMMA; FADD"))
        self.assertEqual(chosen(loop("a", "LDSM; HMMA") + nest + loop("d", "FFMA") + "EXIT"), ["HMMA", "LDSM"])

    def test_are_not_those_that_only_wait(self):
        self.assertEqual(chosen(loop("a", "HMMA;" + loop("b", "SYNCS.PHASECHK.TRANS64.TRYWAIT")) + "EXIT"), ["HMMA"])
        self.assertEqual(chosen(loop("a", "VIADD") + "EXIT"), [])

    def test_are_those_inside_others(self):
        nest = loop("b", "MOV;" + loop("c", "FADD"))
        self.assertEqual(chosen(loop("a", "FFMA; FFMA; FFMA") + nest + "EXIT"), ["FADD"])

    def test_are_those_with_arithmetic_if_the_largest_has_most_of_it(self):
        first, second, loads = loop("a", "FFMA; FFMA; LDS"), loop("b", "FADD; LDS"), loop("c", "LDG; STS")
        self.assertEqual(chosen(first + second + loads + "EXIT"), ["FADD", "FFMA"])
        self.assertEqual(chosen(loop("d", "SHFL; STS; LDS; FADD") + second + loads + "EXIT"), ["FADD", "LDG", "SHFL"])

    def test_are_not_those_that_only_search(self):
        search = loop("a", "LDG; ISETP")
        self.assertEqual(chosen(search + "LDG; FFMA; FFMA; FFMA; EXIT"), [])
        self.assertEqual(chosen(search + "FFMA; EXIT"), ["LDG"])
        self.assertEqual(chosen(search + "LDG; LDG; FFMA; FFMA; EXIT"), ["LDG"])
        self.assertEqual(chosen(loop("a", "LDG; SHFL") + "FFMA; FFMA; FFMA; EXIT"), ["LDG"])

    def test_and_their_nests_are_the_rows_of_the_table(self):
        nest = code("MOV;" + loop("a", "FMUL;" + loop("b", "FFMA; FFMA; LDS.128") + loop("c", "FADD")) + "EXIT")
        flat, straight = code(loop("a", "STG") + "EXIT"), code("LDG; STG; EXIT\n a: BRA `(a)")
        prologue = code("LDG; LDG;" + loop("a", "LDG") + "EXIT")
        expected = """\
            count all mma fma fp32 fp64 special integer convert global shared async shuffle barrier atomic control uniform move
            flat
            loops 1 2 0 0 0 0 0 0 0 1 0 0 0 0 0 1 0 0
            nest
            loops 2 6 0 2 1 0 0 0 0 0 1 0 0 0 0 2 0 0
            nests 1 8 0 2 2 0 0 0 0 0 1 0 0 0 0 3 0 0
            prologue
            loops 1 2 0 0 0 0 0 0 0 1 0 0 0 0 0 1 0 0
            kernel 1 5 0 0 0 0 0 0 0 3 0 0 0 0 0 2 0 0
            straight
            kernel 0 3 0 0 0 0 0 0 0 2 0 0 0 0 0 1 0 0"""
        rows = main_loops.table({"nest": nest, "flat": flat, "straight": straight, "prologue": prologue}).splitlines()
        self.assertEqual([row.split() for row in rows], [row.split() for row in expected.splitlines()])


if __name__ == "__main__":
    unittest.main()
