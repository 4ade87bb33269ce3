"""The judge of hostile inputs finds what it is for: programs that do what kvbound must not do; and what is compared of a document
of measurements does not depend on them.

usage: judge_test.py KVBOUND      KVBOUND: the program's path, which is not run
"""
from faults import commands
from faults.hostile import judge
from faults.hostile.cases import Case
from faults.hostile.judge import Judge
from support import kvbound_cli
from support.kvbound_cli import CommandLineTest

REFUSES = "echo 'kvbound: in.json: is wrong' >&2; exit 3"


class Judges(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, kvbound_cli, "program", kvbound_cli.program)
        kvbound_cli.program = self.folder / "program"
        self.judge = Judge(self.folder / "judged")

    def problem(self, script, **fields):
        kvbound_cli.program.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        kvbound_cli.program.chmod(0o755)
        files = {"in.json": b"{}", "out.csv": b"old\n", "own/a": b""}
        found, _ = self.judge.problem(Case("surface", "", ("in.json",), files, **{"named": ("in.json",), "own": ("own",), **fields}))
        return found

    def test_what_is_right(self):
        for script in (REFUSES, "exit 0", "echo '{}' > out.json", "echo 'a;b' > out.csv; exit 1", f"echo x > own/b; {REFUSES}",
                       "echo '\u00fcber' >&2",
                       "echo 'kvbound: --budget: is wrong' >&2; exit 2"):
            with self.subTest(script):
                self.assertIsNone(self.problem(script))

    def test_what_is_wrong(self):
        for pattern, script in (
                ("SIGSEGV", "kill -SEGV $$"), ("exit code 70", "exit 70"), ("exit code 4", "echo 'kvbound: cannot open in.json' >&2; exit 4"),
                ("0 lines", "exit 3"), ("2 lines", f"echo >&2; {REFUSES}"), ("names neither", "echo 'kvbound: is wrong' >&2; exit 3"),
                ("too many characters", f"printf '%2000d' 0 >&2; {REFUSES}"), ("9 lines", "seq 9 >&2"),
                ("standard error has a control", f"printf '\\033[2J' >&2; {REFUSES}"), ("standard output has a control", "printf '\\302\\233'"),
                ("standard output has a control", "printf 'a\\tb'"), ("standard error has a control", f"printf '\\342\\200\\256' >&2; {REFUSES}"),
                ("standard output is not UTF-8", "printf '\\377'"), (r"leaves \['.x.tmp'\]", f"echo > .x.tmp; {REFUSES}"),
                ("leaves out.json", f"echo > out.json; {REFUSES}"), ("leaves other", "echo > other"),
                                ("changes out.csv", f"echo new > out.csv; {REFUSES}"),
                ("changes in.json", "echo > in.json"), ("changes in.json", "rm in.json"), ("out.json is torn", "printf '{' > out.json"),
                ("out.json is torn: has NaN", "echo '{\"a\": NaN}' > out.json"), ("out.csv is torn", "printf 'a' > out.csv"),
                ("out.html is torn", "echo '<html>' > out.html"), ("out.safetensors is torn", "printf 'x' > out.safetensors"),
                ("beside its folder", "echo > ../beside"), ("beside its folder", "echo > $TMPDIR/x")):
            with self.subTest(pattern):
                self.assertRegex(str(self.problem(script)), pattern)
                for path in (self.folder / "judged" / "beside", self.folder / "judged" / "home" / "x"):
                    path.unlink(missing_ok=True)

    def test_other_figures(self):
        Judge.figures["surface", ("in.json",)] = b"a\n"
        self.addCleanup(Judge.figures.clear)
        self.assertIsNone(self.problem("echo a > out.csv", sound=True))
        self.assertRegex(self.problem("echo b > out.csv", sound=True), "other figures")

    def test_what_takes_too_much(self):
        self.addCleanup(setattr, judge, "MOST_SECONDS", judge.MOST_SECONDS)
        self.addCleanup(setattr, judge, "MOST_CPU_SECONDS", judge.MOST_CPU_SECONDS)
        self.addCleanup(setattr, judge, "MOST_BYTES", judge.MOST_BYTES)
        judge.MOST_CPU_SECONDS = 1
        self.assertRegex(self.problem("while :; do :; done"), "SIGXCPU|SIGKILL")
        judge.MOST_BYTES, usual = 1 << 20, judge.MOST_BYTES
        self.assertRegex(self.problem(REFUSES), "MiB of memory")
        judge.MOST_BYTES = usual
        judge.MOST_SECONDS = 0.3
        self.assertRegex(self.problem("sleep 9"), "does not end")


class Measurements(CommandLineTest):
    def test_a_document_says_the_same_whatever_was_measured(self):
        def said(rate, unit="bytes", measures=True):
            return commands.comparable({"rate": [rate], "unit": unit}, measures)
        self.assertEqual(said(62500000.5), said(62500000))
        for other in (said(None), said(True), said(1, "scores"), said(1.5, measures=False)):
            self.assertNotEqual(said(1.5), other)


if __name__ == "__main__":
    kvbound_cli.main()
