"""traces/scripts/make_tasks.py for models whose tokens are bytes: the tasks that kvbound makes, by the standard library alone.

usage: make_tasks_test.py KVBOUND      KVBOUND is not used
"""
import hashlib
import json
import re
import subprocess
import sys

from support import kvbound_cli
from support.kvbound_cli import INVALID, PASS, USAGE, WORLD, CommandLineTest

SCRIPT = kvbound_cli.REPOSITORY / "traces" / "scripts" / "make_tasks.py"
PROSE = kvbound_cli.REPOSITORY / "traces" / "samples" / "LICENSE.Apache-2.0"
SMALL = ("--lengths", "300,500", "--tasks", 6, "--depths", 3)


class MakeTasks(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "tasks.jsonl"

    def script(self, *arguments):
        return subprocess.run([sys.executable, "-S", SCRIPT, *map(str, arguments)], capture_output=True, text=True)

    def tasks(self, kind, *arguments, text=PROSE):
        result = self.script(text, "bytes", self.out, "--make", kind, *arguments)
        self.assertEqual((result.returncode, result.stdout), (PASS, ""), result.stderr)
        return [json.loads(line) for line in self.out.read_text("utf-8").splitlines()]

    def refused(self, pattern, *arguments, code=INVALID):
        before = sorted(self.folder.iterdir())
        result = self.script(*arguments)
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertRegex(result.stderr, rf"\Amake_tasks: [^\n]*{pattern}[^\n]*\n\Z")
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_the_tasks_are_those_that_kvbound_makes(self):
        """The hashes of tests/sim/evaluate/make_tasks_test.cpp."""
        accented = self.folder / "prose.txt"
        accented.write_text(PROSE.read_text("utf-8").replace("e", "é"), "utf-8")
        for kind, options, expected in (
                ("needle", ("--context-only",), "c187f38f525db559f12367abd1f3f82caa6b67bb95bc995b35004ee053887097"),
                ("continuation", ("--continuation", 40), "a0f3160f0e9640a054f45c1d0d35af5a8b486d988484be10ba38c4296a33ff79")):
            small = SMALL if kind == "needle" else SMALL[:4]
            self.tasks(kind, *small, *options, text=accented)
            self.assertEqual(hashlib.sha256(self.out.read_bytes()).hexdigest(), expected, kind)

    def test_prompts_hold_their_answers(self):
        for task in self.tasks("needle", *SMALL, "--needles", 3, "--answer", 12):
            *_, question = task["prompt_text"].split("\n")
            self.assertIn(f" {question}{task['answer_text']} ", task["prompt_text"])
            self.assertEqual(len(task["prompt_text"].encode()), int(task["kind"].removeprefix("needle-")))

    def test_needles_may_have_another_form(self):
        for task in self.tasks("needle", *SMALL, "--needles", 1, "--needle", "[the code of {word} is {number}]",
                               "--question", "code of {word} is"):
            *_, question = task["prompt_text"].split("\n")
            self.assertRegex(task["answer_text"], r"\A [1-9][0-9]{6}\Z")
            self.assertIn(f"[the {question}{task['answer_text']}]", task["prompt_text"])

    def test_only_some_of_the_tasks_are_written(self):
        whole = self.tasks("needle", *SMALL)
        some = self.tasks("needle", *SMALL, "--only", "2,4-5")
        self.assertEqual(some, [task for task in whole if re.search("-[245]$", task["id"])])

    def test_tasks_go_to_standard_output(self):
        expected = self.tasks("needle", *SMALL)
        result = self.script(PROSE, "bytes", "-", "--make", "needle", *SMALL)
        self.assertEqual([json.loads(line) for line in result.stdout.splitlines()], expected)

    def test_an_existing_file_stays_when_nothing_is_made(self):
        self.out.write_text("kept")
        self.refused("has 11[0-9]{3} tokens; expected at least 99999", PROSE, "bytes", self.out, "--make", "needle",
                     "--lengths", 99999)
        self.assertEqual(self.out.read_text(), "kept")
        self.assertEqual(len(self.tasks("needle")), 20)

    def test_what_does_not_do_is_refused(self):
        def refused(pattern, *arguments, text=PROSE, code=USAGE):
            self.refused(pattern, text, "bytes", self.out, *arguments, code=code)
        refused("--make", code=USAGE)
        refused("invalid choice: 'x'", "--make", "x")
        refused("--continuation does not belong to --make needle", "--make", "needle", "--continuation", 3)
        refused("--context-only does not belong to --make continuation", "--make", "continuation", "--context-only")
        refused("--chat and --no-bos are for", "--make", "needle", "--chat")
        refused("--ask needs --chat", "--make", "needle", "--ask", "x")
        refused("both --needle and --question", "--make", "needle", "--needle", "x")
        refused("at most 64", "--make", "needle", "--needles", 65)
        refused("--only: expected numbers from 1 to 20", "--make", "needle", "--only", "0-21")
        for option, values in (("--lengths", ("", "0", "x", "9,9", "1,")),
                               ("--depths", ("0", "1,2", "101%", "-1%", "nan%", "%")), ("--answer", ("1", "13", "x")), ("--tasks", ("0", "-1")), ("--only", ("2,1", "x"))):
            for value in values:
                refused(option, "--make", "needle", f"{option}={value}")
        for needle, question in (("{word} is {number}", "{word} has"), ("{word} is", "{word}"),
                                 ("a {number}", "a"), ("{word} {x} {number}", "{word}"), ("{word} {", "{word}")):
            refused("expected a needle such as", "--make", "needle", "--needle", needle, "--question", question)
        refused("no room for prose", "--make", "needle", "--lengths", 50, code=INVALID)
        refused("No such file", "--make", "needle", text=self.folder / "nothing", code=WORLD)
        text = self.folder / "text"
        text.write_bytes(b"\xff\xfe")
        refused("utf-8", "--make", "needle", text=text, code=INVALID)
        text.write_text("The End. " * 200)
        refused("has 0 words of 4 to 10 small letters", "--make", "needle", text=text, code=INVALID)
        text.write_text("taken: " * 200)
        refused("the questions are in the prose", "--make", "needle", "--needles", 1, text=text, code=INVALID)
        self.refused("is the text", text, "bytes", text, "--make", "needle")
        text.write_text("€" * 200)
        refused("ends between characters", "--make", "continuation", "--lengths", 50, "--continuation", 2, text=text,
                code=INVALID)

    def test_its_help_has_examples(self):
        result = self.script("--help")
        self.assertEqual(result.returncode, PASS)
        self.assertIn("make_tasks.py TEXT bytes needles.jsonl --make needle", result.stdout)


if __name__ == "__main__":
    kvbound_cli.main()
