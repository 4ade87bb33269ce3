"""traces/scripts/make_tasks.py for models whose tokens are bytes, by the standard library alone: what its tasks promise, the same
bytes on every platform, and what is refused.

usage: make_tasks_test.py KVBOUND      KVBOUND: the program's path
"""
import hashlib
import json
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

from support import kvbound_cli
from support.documents import evaluated, read
from support.kvbound_cli import INVALID, PASS, USAGE, WORLD, CommandLineTest
from support.tiny_model import TinyModel

SCRIPTS = kvbound_cli.REPOSITORY / "traces" / "scripts"
sys.path.insert(0, str(SCRIPTS))

import make_tasks  # noqa: E402
from portable_random import Permutation, Stream  # noqa: E402

SCRIPT = SCRIPTS / "make_tasks.py"
PROSE = kvbound_cli.REPOSITORY / "traces" / "samples" / "LICENSE.Apache-2.0"
SMALL = ("--lengths", "300,500", "--tasks", 6, "--depths", 3)
PASSAGES = ("--lengths", "300,500", "--tasks", 6, "--continuation", 40)
SEVERAL = ("--lengths", "300,500", "--tasks", 6)
STREAM = ("--lengths", "301,500", "--continuation", 100)
# in place of each e: characters of one to three bytes, and what JSON escapes
LETTERS = ("e", "é", "€", '"\\\t\x01')

# Recorded from a second implementation, in C++, which made the same tasks byte by byte: the letter in place
# of e, the kind, the options, and the SHA-256 of the file.
MADE = (
    ("e", "needle", SMALL, "cea6dd8cf35c258e53d8780426d7d2e559b6463f3e62c86641b9f4611458a097"),
    ("e", "needle", (*SMALL, "--context-only"), "9ebf079187c8cabc02d4be33e88610502e4c6e7a76a0b7a104863bbb9b5f3465"),
    ("e", "continuation", PASSAGES, "f08249ab792f800302ce0180945327e66ea1c10f1eb36235e498fd4b22d2ab4d"),
    ("é", "needle", SMALL, "89edb92ac7db08c8bfb382649f8b25fc8dd34a0d4821e04688da8eb8b519372a"),
    ("é", "needle", (*SMALL, "--context-only"), "c187f38f525db559f12367abd1f3f82caa6b67bb95bc995b35004ee053887097"),
    ("é", "continuation", PASSAGES, "a0f3160f0e9640a054f45c1d0d35af5a8b486d988484be10ba38c4296a33ff79"),
    ("€", "needle", (*SMALL, "--context-only"), "810cd2f7f77e5c22942bcf42d7dc855c981d70bbe161c0f713440fea1aadb8ca"),
    ("€", "continuation", PASSAGES, "073817d02f46c51d16209f64e837f42b76de95a45490411ec06af7100b520805"),
    (LETTERS[3], "needle", SMALL, "ba82bc2382a8a73adff0ea62abcfba82475db4f8876af3b8a90864821c056310"),
    (LETTERS[3], "continuation", PASSAGES, "4d990064c0c14b9c04671b1772eea63810f5c0c1b3d0240658e8d7d8d83dba9f"),
    ("e", "needle", (), "ebbd68d64a2ce7018a968f0cbbaed47b59e0ba07042aba163bebf2fa0d266fb5"),
    ("e", "continuation", (), "1b9701cfe8e497bb50d434c570eb87382e672925f8db83a8bca10f0b92f6bb5e"),
    ("e", "needle", ("--lengths", 1500, "--tasks", 6, "--depths", 1, "--needles", 64, "--answer", 2),
     "e0b3f1bd9284444c97a005f0d4b1dac1256da21d34b7a984ee0801d7bad5cef6"),
    ("e", "needle", ("--lengths", 1500, "--tasks", 6, "--depths", 3, "--needles", 40, "--answer", 12),
     "96f875c5d192683ce839fb7d123b05752e218f8cc6dbf0a1a8c64b728067df24"),
    ("e", "needle", ("--lengths", 300, "--tasks", 3, "--depths", "10%,12.5%,100%", "--needles", 2, "--answer", 5, "--context-only",
                     "--seed", 7), "184702ab420d39d9dfedf634e53cfe75084b84cfa841e2904876c7e8e98da28f"),
    ("e", "needle", ("--lengths", 300, "--tasks", 40, "--seed", 123456789),
     "c3ef22bba2ec970d75d5e2d3e06f63291ec976d86fcaee8e51161f61c04fe744"),
    ("e", "continuation", ("--lengths", 300, "--continuation", 40, "--seed", 0),
     "b0892baa0934b7a97ac046c40e727a647e71adf89b971511cf99f48af46572ea"),
    ("e", "needle", ("--lengths", 93, "--tasks", 6, "--depths", 3),
     "fbddebce942ff2c7c654429c6d801476d9b06480ee5935d56a9ac4e5b48f5e98"),
)

# Recorded from this script, which alone has made several values.
MADE_HERE = (
    ("e", "needle", (*SEVERAL, "--values", 3), "32d03da791defa74b40c7947fb82c78a1d737c1319dec7dd5fd442c0d8f50528"),
    ("€", "needle", (*SEVERAL, "--values", 4, "--context-only", "--seed", 5),
     "b9b5d94fa073413218c3ddbbb85fedd06b61497aeb732cb7b97f99c08ec3f7aa"),
)


def placed_needles(text):
    """(word, number, where in what is left of the text without needles) of each, and what is left."""
    needles = []
    while match := re.search(" ([a-z]+):([0-9]+) ", text):
        needles.append((*match.groups(), match.start()))
        text = text[:match.start()] + text[match.end():]
    return needles, text


def take_needles(text):
    """The word and number of every needle in a text, and what is left of it without them."""
    needles, text = placed_needles(text)
    return [(word, number) for word, number, _ in needles], text


class MakeTasksTest(CommandLineTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "tasks.jsonl"

    def prose(self, letter="e", text=None):
        """A file of English prose of 11 kB with this letter in place of each e; or of this text."""
        path = self.folder / "prose.txt"
        path.write_bytes((PROSE.read_text("utf-8").replace("e", letter) if text is None else text).encode())
        return path

    def script(self, *arguments):
        return subprocess.run([sys.executable, "-S", SCRIPT, *map(str, arguments)], capture_output=True, text=True, cwd=self.folder)

    def tasks(self, kind, *arguments, text=PROSE):
        result = self.script(text, "bytes", self.out, "--make", kind, *arguments)
        self.assertEqual((result.returncode, result.stdout), (PASS, ""), result.stderr)
        return [json.loads(line) for line in self.out.read_text("utf-8").split("\n")[:-1]]

    def refused(self, pattern, *arguments, code=INVALID):
        before = sorted(self.folder.iterdir())
        result = self.script(*arguments)
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertRegex(result.stderr, rf"\Amake_tasks: [^\n]*{pattern}[^\n]*\n\Z")
        self.assertEqual(sorted(self.folder.iterdir()), before)


class Needles(MakeTasksTest):
    def test_stand_in_prose_and_one_is_asked_for(self):
        prose = PROSE.read_text("utf-8")
        for task in self.tasks("needle", *SMALL):
            prompt, question = task["prompt_text"].rsplit("\n", 1)
            needles, passage = take_needles(prompt)
            self.assertIn((question.removesuffix(":"), task["answer_text"]), needles)
            self.assertEqual((len(set(dict(needles))), len(set(dict(needles).values())), len(needles)), (4, 4, 4))
            self.assertTrue(all(re.fullmatch("[1-9][0-9]{6}", number) for _, number in needles))
            self.assertIn(passage, prose)

    def test_have_their_lengths_depths_and_names(self):
        tasks = self.tasks("needle", *SMALL)
        self.assertEqual(len(tasks), 12)
        for i, task in enumerate(tasks):
            length = 300 if i < 6 else 500
            self.assertEqual((task["kind"], task["id"]), (f"needle-{length}", f"needle-{length}-{i % 6 + 1}"))
            self.assertEqual((len(task["prompt_text"]), task["depth"]), (length, (0, 0.5, 1)[i % 3]))
            self.assertEqual(task.keys(), {"id", "kind", "depth", "prompt_text", "answer_text"})

    def test_stand_at_their_depths(self):
        for task in self.tasks("needle", *SMALL, "--needles", 1):
            prompt, question = task["prompt_text"].rsplit("\n", 1)
            _, passage = take_needles(prompt)
            self.assertEqual(prompt.index(f" {question}"), int(task["depth"] * len(passage)))

    def test_cut_no_character(self):
        for task in self.tasks("needle", *SMALL, text=self.prose("€")):
            self.assertEqual(len(task["prompt_text"].encode()), int(task["kind"].removeprefix("needle-")))
            self.assertEqual(len(take_needles(task["prompt_text"])[0]), 4)

    def test_may_be_asked_for_behind_the_compression(self):
        whole = self.tasks("needle", *SMALL)
        for task, other in zip(self.tasks("needle", *SMALL, "--context-only"), whole, strict=True):
            self.assertEqual((task["prompt_text"], task["answer_text"], task["depth"]),
                             (other["prompt_text"], other["answer_text"], other["depth"]))
            self.assertEqual(task["id"], other["id"].replace("needle", "context-only"))
            self.assertEqual(task["kind"], other["kind"].replace("needle", "context-only"))
            self.assertEqual(task["compress_at"], other["prompt_text"].rindex("\n"))

    def test_have_answers_of_any_length_and_are_many(self):
        for digits, count in ((2, 64), (12, 40)):
            for task in self.tasks("needle", "--lengths", 1500, "--tasks", 6, "--needles", count, "--answer", digits):
                self.assertEqual(len(take_needles(task["prompt_text"])[0]), count)
                self.assertEqual((len(task["answer_text"]), len(task["prompt_text"])), (digits, 1500))

    def test_have_no_two_words_that_end_alike(self):
        text = self.prose(text="unreal real seal " * 36)
        for task in self.tasks("needle", *SMALL, "--needles", 2, text=text):
            self.assertIn("seal", dict(take_needles(task["prompt_text"])[0]))
        self.refused("has 2 words of 4 to 10 small letters of which none is the end of another; expected 3", text, "bytes", self.out,
                     "--make", "needle", *SMALL, "--needles", 3)

    def test_have_no_words_that_stand_before_a_colon(self):
        for task in self.tasks("needle", *SMALL, "--needles", 1, text=self.prose(text="taken: free " * 50)):
            self.assertTrue(task["prompt_text"].endswith("\nfree:"))
        self.refused("the questions are in the prose", self.prose(text="taken: and " * 50), "bytes", self.out, "--make", "needle",
                     *SMALL, "--needles", 1)

    def test_may_have_another_form(self):
        for task in self.tasks("needle", *SMALL, "--needles", 1, "--needle", "[the code of {word} is {number}]",
                               "--question", "code of {word} is"):
            *_, question = task["prompt_text"].split("\n")
            self.assertRegex(task["answer_text"], r"\A [1-9][0-9]{6}\Z")
            self.assertIn(f"[the {question}{task['answer_text']}]", task["prompt_text"])


class Values(MakeTasksTest):
    def asked(self, task):
        """The values of the word that is asked for, by their places in the prose; the other needles; the prose."""
        prompt, question = task["prompt_text"].rsplit("\n", 1)
        needles, passage = placed_needles(prompt)
        mine = [needle for needle in needles if f"{needle[0]}:" == question]
        return mine, [needle for needle in needles if needle not in mine], passage

    def test_are_all_asked_for_in_the_order_in_which_they_stand(self):
        prose = PROSE.read_text("utf-8")
        for task in self.tasks("needle", *SEVERAL, "--values", 3, "--needles", 2):
            mine, others, passage = self.asked(task)
            self.assertEqual(task["answer_text"], ", ".join(number for _, number, _ in mine))
            self.assertEqual((len(mine), len(others)), (3, 1))
            self.assertEqual(len({number for _, number, _ in mine + others}), 4)
            self.assertIn(passage, prose)
            self.assertEqual(task.keys(), {"id", "kind", "prompt_text", "answer_text"})

    def test_are_spread_over_the_prose_one_in_each_part(self):
        places = set()
        for task in self.tasks("needle", *SEVERAL, "--values", 4, "--needles", 1):
            mine, _, passage = self.asked(task)
            for i, (_, _, place) in enumerate(mine):
                self.assertTrue(i * len(passage) / 4 - 1 <= place <= (i + 1) * len(passage) / 4, (i, place, len(passage)))
            places.add(tuple(place for *_, place in mine))
        self.assertEqual(len(places), 12)

    def test_give_tasks_their_names(self):
        for more, name in (((), "multi-value"), (("--context-only",), "context-only-multi-value")):
            tasks = self.tasks("needle", *SEVERAL, "--values", 2, *more)
            self.assertEqual([task["id"] for task in tasks], [f"{name}-{n}-{i}" for n in (300, 500) for i in range(1, 7)])
            for task in tasks:
                self.assertEqual(task["kind"], f"{name}-{len(task['prompt_text'])}")
                self.assertEqual(task.get("compress_at"), task["prompt_text"].rindex("\n") if more else None)

    def test_may_be_as_many_as_there_are_numbers_for(self):
        for task in self.tasks("needle", "--lengths", 1500, "--tasks", 2, "--needles", 1, "--values", 64, "--answer", 2):
            mine, others, _ = self.asked(task)
            self.assertEqual((len({number for _, number, _ in mine}), others), (64, []))

    def test_of_one_are_an_ordinary_needle(self):
        self.assertEqual(self.tasks("needle", *SMALL, "--values", 1), self.tasks("needle", *SMALL))

    def test_may_have_a_question_that_is_no_part_of_their_needles(self):
        for task in self.tasks("needle", *SEVERAL, "--needles", 1, "--values", 2, "--needle", "[a code of {word} is {number}]",
                               "--question", "The codes of {word} are"):
            *_, question = task["prompt_text"].split("\n")
            word = re.fullmatch("The codes of ([a-z]+) are", question)[1]
            numbers = re.findall(rf"\[a code of {word} is ([0-9]{{7}})\]", task["prompt_text"])
            self.assertEqual(task["answer_text"], " " + ", ".join(numbers))
            self.assertEqual(len(numbers), 2)


class Streaming(MakeTasksTest):
    def parts(self, task):
        """The bytes of its prompt and of its target."""
        return [task[f"{name}_text"].encode() if f"{name}_text" in task else bytes(task[name])
                for name in ("prompt", "continuation")]

    def test_scores_every_token_behind_the_first_prompt_once(self):
        for letter in ("e", "€"):
            text = self.prose(letter)
            data = text.read_bytes()
            tasks = self.tasks("streaming", *STREAM, text=text)
            for length in (301, 500):
                those = [self.parts(task) for task in tasks if task["kind"] == f"streaming-{length}"]
                self.assertEqual(len(those), (len(data) - length) // 100)
                scored = b"".join(target for _, target in those)
                self.assertEqual(scored, data[length:length + 100 * len(those)])
                for i, (prompt, _) in enumerate(those):
                    self.assertEqual(prompt, data[100 * i:100 * i + length])

    def test_is_text_where_no_character_is_cut(self):
        tasks = self.tasks("streaming", *STREAM, text=self.prose("€"))
        forms = {name for task in tasks for name in task}
        self.assertEqual(forms, {"id", "kind", "prompt", "prompt_text", "continuation", "continuation_text"})
        for task in self.tasks("streaming", *STREAM):
            self.assertEqual(task.keys(), {"id", "kind", "prompt_text", "continuation_text"})

    def test_may_be_the_text_s_beginning_alone(self):
        whole = self.tasks("streaming", "--lengths", 300, "--continuation", 100)
        self.assertEqual(self.tasks("streaming", "--lengths", 300, "--continuation", 100, "--tasks", 3), whole[:3])

    def test_has_the_defaults_that_the_help_says(self):
        tasks = self.tasks("streaming")
        self.assertEqual({tuple(map(len, self.parts(task))) for task in tasks}, {(1024, 1024)})
        self.assertEqual(len(tasks), (len(PROSE.read_bytes()) - 1024) // 1024)

    def test_needs_a_text_that_is_long_enough(self):
        def make(size, *options):
            return self.prose(text=PROSE.read_text("utf-8")[:size]), "bytes", self.out, "--make", "streaming", "--lengths", 300, \
                "--continuation", 100, *options
        self.refused("has 399 tokens; expected at least 400", *make(399))
        self.refused("has 599 tokens; expected at least 600", *make(599, "--tasks", 3))
        self.assertEqual(self.script(*make(400)).returncode, PASS)

    def test_is_evaluated_at_a_budget_that_decoding_keeps(self):
        """At every token each cache has as many entries as at the first."""
        TinyModel(layers=1, vocabulary=256).write_folder(self.folder / "model")
        text = self.prose(text=PROSE.read_text("utf-8").replace("e", "€")[:170])
        made = self.tasks("streaming", "--lengths", 60, "--continuation", 40, text=text)
        self.assertGreater(len(made), 1)
        self.passes("evaluate", "model", self.out, "--policy", "streaming-llm:sinks=4,h2o:window=8:recent=8:sinks=4", "--budget", 60,
                    "--json", "out.json", "--quiet")
        found = evaluated(read(self.folder / "out.json"))["tasks"]
        self.assertEqual([(task["id"], task["form"], bytes(task["target"]), task["prompt_tokens"]) for task in found],
                         [(task["id"], "continuation", self.parts(task)[1], 60) for task in made])
        for task in found:
            for run in task["runs"][1:]:
                self.assertEqual(set(run["entries"]), {61}, "60 kept, and the step's own")


class Made(MakeTasksTest):
    def test_the_same_options_make_the_same_bytes_on_every_platform(self):
        for letter, kind, options, expected in MADE + MADE_HERE:
            with self.subTest(letter=letter, kind=kind, options=options):
                self.tasks(kind, *options, text=self.prose(letter))
                self.assertEqual(hashlib.sha256(self.out.read_bytes()).hexdigest(), expected)

    def test_the_random_numbers_are_those_of_the_header(self):
        """The numbers of tests/traces/portable_random_test.cpp."""
        self.assertEqual(Stream(0).bits(0), 0xe220a8397b1dcdaf)
        self.assertEqual(Stream(1).bits(0), 13830413928045401970)
        self.assertEqual(Stream(1).child(2).bits(3), 13768872034826471435)
        for count in (1, 2, 3, 31, 32, 33, 1000):
            self.assertEqual(sorted(map(Permutation(Stream(9), count), range(count))), list(range(count)))

    def test_continuations_are_passages_that_are_cut(self):
        prose = PROSE.read_text("utf-8")
        tasks = self.tasks("continuation", *PASSAGES)
        self.assertEqual(len(tasks), 12)
        for task in tasks:
            self.assertEqual(task.keys(), {"id", "kind", "prompt_text", "continuation_text"})
            self.assertEqual(task["kind"], f"continuation-{len(task['prompt_text'])}")
            self.assertEqual(len(task["continuation_text"]), 40)
            self.assertIn(task["prompt_text"] + task["continuation_text"], prose)

    def test_they_are_apart_where_the_text_is_long_enough(self):
        prose, last = PROSE.read_text("utf-8"), 0
        for task in self.tasks("continuation", "--lengths", 300, "--continuation", 40):
            begin = prose.index(task["prompt_text"])
            self.assertGreaterEqual(begin, last - 20)  # but for a word at their ends
            last = begin + 340

    def test_they_differ_with_the_seed(self):
        first, second = (self.tasks("needle", *SMALL, "--seed", seed) for seed in (1, 2))
        self.assertEqual([task["id"] for task, other in zip(first, second, strict=True)
                          if task["answer_text"] == other["answer_text"]], [])

    def test_depths_are_a_count_or_percentages(self):
        for said, expected in (("1", [0.5, 0.5, 0.5]), ("3", [0, 0.5, 1]), ("2", [0, 1, 0]), ("10%,12.5%,100%", [0.1, 0.125, 1]),
                               ("0%", [0, 0, 0])):
            tasks = self.tasks("needle", "--lengths", 300, "--tasks", 3, "--depths", said)
            self.assertEqual([task["depth"] for task in tasks], expected)

    def test_the_defaults_are_those_that_the_help_says(self):
        needles, continuations = self.tasks("needle"), self.tasks("continuation")
        self.assertEqual([(len(task["prompt_text"]), len(task["answer_text"])) for task in needles], [(1024, 7)] * 20)
        self.assertEqual([task["depth"] for task in needles[:5]], [0, 0.25, 0.5, 0.75, 1])
        self.assertEqual(len(take_needles(needles[0]["prompt_text"])[0]), 4)
        self.assertEqual([len(task["continuation_text"]) for task in continuations], [64] * 20)
        self.assertEqual(self.tasks("needle", "--seed", 1), needles)

    def test_only_some_of_the_tasks_are_written(self):
        whole = self.tasks("needle", *SMALL)
        some = self.tasks("needle", *SMALL, "--only", "2,4-5")
        self.assertEqual(some, [task for task in whole if re.search("-[245]$", task["id"])])

    def test_tasks_go_to_standard_output(self):
        expected = self.tasks("needle", *SMALL)
        result = self.script(PROSE, "bytes", "-", "--make", "needle", *SMALL)
        self.assertEqual([json.loads(line) for line in result.stdout.splitlines()], expected)

    def test_kvbound_evaluates_them(self):
        """With the members that were written, whatever the bytes of their texts are."""
        TinyModel(layers=1, vocabulary=256).write_folder(self.folder / "model")
        for letter in LETTERS:
            made = self.tasks("needle", "--lengths", 120, "--tasks", 1, "--context-only", text=self.prose(letter))
            lines = self.out.read_bytes()
            made += self.tasks("continuation", "--lengths", 60, "--tasks", 1, "--continuation", 12, text=self.prose(letter))
            (self.folder / "both.jsonl").write_bytes(lines + self.out.read_bytes())
            self.passes("evaluate", "model", "both.jsonl", "--policy", "tova", "--budget", "50%", "--json", "out.json", "--quiet")
            for task, found in zip(made, evaluated(read(self.folder / "out.json"))["tasks"], strict=True):
                prompt = task["prompt_text"].encode()
                target = task.get("answer_text", task.get("continuation_text")).encode()
                self.assertEqual((found["id"], found["kind"], found["depth"]), (task["id"], task["kind"], task.get("depth")))
                self.assertEqual((found["prompt_tokens"], found["compress_at"]), (len(prompt), task.get("compress_at", len(prompt))))
                self.assertEqual((found["form"], found["target"]), ("answer" if "answer_text" in task else "continuation", list(target)))


class Texts(MakeTasksTest):
    def source(self, text):
        return make_tasks.Bytes(text, SimpleNamespace(text="prose.txt"))

    def passage_is_refused(self, text, wanted, cuts, message):
        with self.assertRaisesRegex(make_tasks.InvalidInput, message):
            self.source(text).passage(wanted, cuts)

    def test_line_ends_and_the_byte_order_mark_do_not_matter(self):
        expected = self.tasks("needle", *SMALL)
        text = self.prose(text="\ufeff" + PROSE.read_text("utf-8").replace("\n", "\r\n"))
        self.assertEqual(self.tasks("needle", *SMALL, text=text), expected)
        task, = self.tasks("continuation", "--lengths", 8, "--continuation", 5, "--tasks", 1,
                           text=self.prose(text="one\r\ntwo\rthree"))
        self.assertEqual((task["prompt_text"], task["continuation_text"]), ("one\ntwo\r", "three"))

    def test_are_utf8(self):
        path = self.folder / "text"
        for bad in (b"\x80", b"\xc0\xaf", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
                    b"\xf5\x80\x80\x80", b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xe2\x82z", b"\xc3z"):
            path.write_bytes(b"ab" + bad)
            self.refused("'utf-8' codec can't decode bytes? .*position 2", path, "bytes", self.out, "--make", "needle")
        good = b"z\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"
        path.write_bytes(good)
        task, = self.tasks("continuation", "--lengths", 8, "--continuation", len(good) - 8, "--tasks", 1, text=path)
        self.assertEqual((task["prompt_text"] + task["continuation_text"]).encode(), good)

    def test_characters_have_beginnings(self):
        source = self.source("aé€")
        self.assertEqual([source.is_between_characters(i) for i in range(7)], [True, True, False, True, False, False, True])

    def test_passages_begin_with_a_word_and_cut_no_character(self):
        source = self.source("one two é three")  # é is the bytes 8 and 9
        for wanted, cuts, expected in ((7, [3], 4), (6, [3], 4), (4, [5], 0), (4, [5, 6], 0), (3, [9, 3], 3)):
            self.assertEqual(source.passage(wanted, cuts), expected)
        self.assertEqual(self.source("abcd").passage(2, [2]), 0)
        self.passage_is_refused("€€€", 5, [4], "no passage of 4 bytes before byte 5 ends between characters")

    def test_words_have_four_to_ten_small_letters(self):
        text = "four Seven letters; letters, won't undertakes café 1234word underlining_underlined the"
        self.assertEqual(make_tasks.words_of(text), ["four", "letters", "underlined", "undertakes", "word"])
        self.assertEqual(make_tasks.words_of(""), [])

    def test_are_long_enough(self):
        def make(size, *options):
            return self.prose(text=PROSE.read_text("utf-8")[:size]), "bytes", self.out, "--make", "needle", *options
        self.refused("has 499 tokens; expected at least 500", *make(499, *SMALL))
        self.assertEqual(self.script(*make(500, *SMALL)).returncode, PASS)
        self.refused("a prompt of 50 bytes has no room for prose", PROSE, "bytes", self.folder / "none", "--make", "needle",
                     "--lengths", 50)

    def test_an_existing_file_stays_when_nothing_is_made(self):
        self.out.write_text("kept")
        self.refused("has 11[0-9]{3} tokens; expected at least 99999", PROSE, "bytes", self.out, "--make", "needle",
                     "--lengths", 99999)
        self.assertEqual(self.out.read_text(), "kept")
        self.assertEqual(len(self.tasks("needle")), 20)


class Options(MakeTasksTest):
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
        refused("at most 64", "--make", "needle", "--needles", 2, "--values", 64)
        refused("--depths does not belong to --values", "--make", "needle", "--values", 2, "--depths", 3)
        for option in ("--values", "--only", "--seed"):
            refused(f"{option} does not belong to --make streaming", "--make", "streaming", option, 2)
        refused("--values does not belong to --make continuation", "--make", "continuation", "--values", 2)
        refused("--only: expected numbers from 1 to 20", "--make", "needle", "--only", "0-21")
        refused("--continuation", "--make", "continuation", "--continuation", "1")
        for option, values in (("--lengths", ("", "0", "x", "9,9", "1,", "-5", "1e3")),
                               ("--depths", ("", "0", "-1", "x", "1,2", "10%,20", "10%,", "101%", "-1%", "nan%", "inf%", "%")),
                               ("--answer", ("1", "13", "x")), ("--tasks", ("0", "-1")), ("--needles", ("0", "-1")),
                               ("--values", ("0", "-1", "x")),
                               ("--seed", ("-1", "x")), ("--only", ("2,1", "x"))):
            for value in values:
                refused(option, "--make", "needle", f"{option}={value}")
        for needle, question in (("{word} is {number}", "{word} has"), ("{word} is", "{word}"),
                                 ("a {number}", "a"), ("{word} {x} {number}", "{word}"), ("{word} {", "{word}")):
            refused("expected a needle such as", "--make", "needle", "--needle", needle, "--question", question)
        for needle, question in (("{word} is {number}", "they are"), ("is {number}", "{word}"), ("{word} is", "{word}"),
                                 ("{word} {number} {number}", "The {word}"), ("{word} {x} {number}", "The {word}")):
            refused("as the question a text with {word}", "--make", "needle", "--values", 2, "--needle", needle, "--question",
                    question)

    def test_files_that_do_not_do_are_refused(self):
        self.refused("No such file", self.folder / "nothing", "bytes", self.out, "--make", "needle", code=WORLD)
        self.refused("Is a directory", self.folder, "bytes", self.out, "--make", "needle", code=WORLD)
        text = self.prose(text="The End. " * 200)
        self.refused("has 0 words of 4 to 10 small letters", text, "bytes", self.out, "--make", "needle")
        self.refused("is the text", text, "bytes", text, "--make", "needle")
        self.refused("ends between characters", self.prose(text="€" * 200), "bytes", self.out, "--make", "continuation",
                     "--lengths", 50, "--continuation", 2)

    def test_its_examples_run(self):
        (self.folder / "TEXT").write_bytes(PROSE.read_bytes())
        (self.folder / "prose.txt").write_bytes(PROSE.read_bytes())
        result = self.script("--help")
        self.assertEqual(result.returncode, PASS)
        self.assertIn("make_tasks.py TEXT bytes needles.jsonl --make needle", result.stdout)
        shown = result.stdout + (kvbound_cli.REPOSITORY / "sim" / "evaluate" / "README.md").read_text("utf-8")
        examples = re.findall(r"^    .*make_tasks\.py (\S+ bytes .*)$", shown, re.MULTILINE)
        said = [self.script(*shlex.split(example)) for example in examples]
        self.assertEqual([(made.returncode, made.stderr) for made in said],
                         [(PASS, f"make_tasks: {count} tasks\n") for count in (40, 20, 20, 40, 20, 10)])


if __name__ == "__main__":
    kvbound_cli.main()
