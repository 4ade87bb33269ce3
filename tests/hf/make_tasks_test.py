"""traces/scripts/make_tasks.py for models with a tokenizer.

usage: make_tasks_test.py KVBOUND      KVBOUND is not used. Needs traces/scripts/requirements.txt.
"""
import contextlib
import io
import json
import re
import sys
import unittest.mock

import tokenizers
from hf import tokenize_test
from support import kvbound_cli
from support.kvbound_cli import INVALID, PASS, CommandLineTest

SCRIPTS = kvbound_cli.REPOSITORY / "traces" / "scripts"
PROSE = kvbound_cli.REPOSITORY / "traces" / "samples" / "LICENSE.Apache-2.0"
sys.path.insert(0, str(SCRIPTS))
import make_tasks  # noqa: E402

SMALL = ("--tasks", 6, "--depths", 3, "--answer", 5, "--needles", 2)


class MakeTasks(CommandLineTest):
    setUpClass = classmethod(tokenize_test.Tokenize.setUpClass.__func__)
    gguf_file = tokenize_test.Tokenize.gguf_file
    directory = tokenize_test.Tokenize.directory

    def setUp(self):
        super().setUp()
        self.out = self.folder / "tasks.jsonl"

    def script(self, *arguments):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), unittest.mock.patch.object(sys, "argv", ["make_tasks.py", *map(str, arguments)]):
            try:
                make_tasks.run("make_tasks", lambda: make_tasks.make_tasks(make_tasks.parse_options()))
                return PASS, err.getvalue()
            except (SystemExit, make_tasks.InvalidInput) as error:
                return error.code, err.getvalue()

    def tasks(self, model, kind, *arguments):
        code, err = self.script(PROSE, model, self.out, "--make", kind, *arguments)
        self.assertEqual(code, PASS, err)
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def refused(self, pattern, *arguments):
        code, err = self.script(*arguments)
        self.assertEqual(code, INVALID, err)
        self.assertRegex(err, rf"\Amake_tasks: [^\n]*{pattern}[^\n]*\n\Z")

    def test_prompts_hold_their_answers(self):
        for make, bos in ((self.gguf_file, []), (self.directory, [0])):
            model = make()
            decoder = make_tasks.tokenize_script().tokenizer_of(model).tokenizer
            for task in self.tasks(model, "needle", "--lengths", "200,301", *SMALL):
                self.assertEqual(task["kind"], f"needle-{len(task['prompt'])}")
                self.assertEqual(task["prompt"][:len(bos)], bos)
                text, answer = decoder.decode(task["prompt"]), decoder.decode(task["answer"])
                *_, question = text.split("\n")
                self.assertRegex(answer, r"\A [1-9][0-9]{4}\Z")
                self.assertEqual(text.count(f"\n{question}{answer}.\n"), 1)
                self.assertEqual(text.count("The code of "), 3)  # two needles and the question
                at = text.index(f"\n{question}{answer}.\n") / len(text)
                self.assertLess(abs(at - task["depth"]), 0.35)

    def test_several_values_are_all_asked_for(self):
        model = self.gguf_file()
        decoder = make_tasks.tokenize_script().tokenizer_of(model).tokenizer
        for task in self.tasks(model, "needle", "--lengths", "2000,2201", "--tasks", 4, "--answer", 5, "--needles", 2, "--values", 3):
            self.assertEqual(task["kind"], f"multi-value-{len(task['prompt'])}")
            text, answer = decoder.decode(task["prompt"]), decoder.decode(task["answer"])
            *_, question = text.split("\n")
            word = re.fullmatch("The codes of ([a-z]+) are", question)[1]
            found = list(re.finditer(rf"\nOne of the codes of {word} is ([1-9][0-9]{{4}})\.\n", text))
            self.assertEqual(answer, " " + ", ".join(match[1] for match in found))
            self.assertEqual((len(found), text.count("One of the codes of ")), (3, 4))
            for i, match in enumerate(found):  # moved to the nearest end of a sentence
                self.assertLess(abs(match.start() / len(text) - (i + 0.5) / 3), 1 / 6 + 0.1)

    def test_a_stream_scores_every_token_once(self):
        for make, bos in ((self.gguf_file, []), (self.directory, [0])):
            model = make()
            ids, _ = make_tasks.tokenize_script().tokenizer_of(model).encode(PROSE.read_text())
            tasks = self.tasks(model, "streaming", "--lengths", 100, "--continuation", 60)
            room = 100 - len(bos)
            self.assertEqual(len(tasks), (len(ids) - room) // 60)
            for i, task in enumerate(tasks):
                self.assertEqual(task["prompt"], bos + ids[60 * i:60 * i + room])
                self.assertEqual(task["continuation"], ids[60 * i + room:60 * (i + 1) + room])

    def test_the_cache_is_compressed_before_the_question(self):
        model = self.gguf_file()
        decoder = make_tasks.tokenize_script().tokenizer_of(model).tokenizer
        whole = self.tasks(model, "needle", "--lengths", 200, *SMALL)
        for task, other in zip(self.tasks(model, "needle", "--lengths", 200, *SMALL, "--context-only"), whole, strict=True):
            self.assertEqual((task["prompt"], task["answer"]), (other["prompt"], other["answer"]))
            self.assertRegex(decoder.decode(task["prompt"][task["compress_at"]:]), r"\A\nThe code of [a-z]+ is\Z")
            self.assertNotIn("compress_at", other)

    def test_a_chat_has_its_turns(self):
        model = self.gguf_file(tokens=["<|im_start|>", "<|im_end|>", *self.tokens[2:]])
        decoder = make_tasks.tokenize_script().tokenizer_of(model).tokenizer
        for task in self.tasks(model, "needle", "--lengths", 300, *SMALL, "--chat", "--context-only"):
            text = decoder.decode(task["prompt"], skip_special_tokens=False)
            self.assertTrue(text.startswith("<|im_start|>user\n"))
            self.assertRegex(decoder.decode(task["prompt"][task["compress_at"]:], skip_special_tokens=False),
                             r"\A\nWhat is the code of ([a-z]+)\?<\|im_end\|>\n<\|im_start\|>assistant\nThe code of \1 is\Z")
            self.assertEqual((task["prompt"][0], task["prompt"].count(1), len(task["prompt"])), (0, 1, 300))

    def test_continuations_are_the_text_s_own_tokens(self):
        for make, bos in ((self.gguf_file, []), (self.directory, [0])):
            model = make()
            ids, _ = make_tasks.tokenize_script().tokenizer_of(model).encode(PROSE.read_text())
            joined = " ".join(map(str, ids))
            for task in self.tasks(model, "continuation", "--lengths", 200, "--continuation", 30, "--tasks", 4):
                self.assertEqual((len(task["prompt"]), len(task["continuation"])), (200, 30))
                self.assertEqual(task["prompt"][:len(bos)], bos)
                self.assertIn(" ".join(map(str, task["prompt"][len(bos):] + task["continuation"])), joined)

    def test_what_does_not_do_is_refused(self):
        model = self.gguf_file()
        self.refused("expected at least 99999", PROSE, model, self.out, "--make", "needle", "--lengths", 99999)
        self.refused("no room for text", PROSE, model, self.out, "--make", "needle", "--lengths", 40)
        self.refused("no room for text", PROSE, self.directory(), self.out, "--make", "streaming", "--lengths", 1)
        self.refused("does not know the tokens of --chat", PROSE, model, self.out, "--make", "needle", "--chat")
        self.refused("no such file or directory", PROSE, self.folder / "nothing", self.out, "--make", "needle")
        self.refused("has no tokenizer.json", PROSE, self.folder, self.out, "--make", "needle")
        self.assertFalse(self.out.exists())


if __name__ == "__main__":
    print(f"tokenizers {tokenizers.__version__}", flush=True)
    kvbound_cli.main()
