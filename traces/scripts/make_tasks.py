#!/usr/bin/env python3
"""Makes a file of tasks for `kvbound evaluate` from a text: needles to be found in prose, prose to be continued, or a book that
is read as a stream.

    make_tasks.py TEXT bytes needles.jsonl --make needle --lengths 1024,1536 --depths 10%,50%,90%
    make_tasks.py TEXT model.gguf needles.jsonl --make needle --lengths 2048 --needles 2 --answer 5 --context-only
    make_tasks.py TEXT bytes values.jsonl --make needle --values 4 --needles 1 --context-only
    make_tasks.py TEXT ./model continuations.jsonl --make continuation --lengths 2048 --continuation 128 --tasks 8
    make_tasks.py TEXT bytes stream.jsonl --make streaming --lengths 1024 --continuation 512
    make_tasks.py TEXT model.gguf chat.jsonl --make needle --chat --ask "What is the code of {word}?"

MODEL is `bytes`, for models whose tokens are bytes, or what tokenize.py reads: a GGUF file with byte-level BPE, or a Hugging
Face directory with a tokenizer.json. `bytes` needs Python's standard library alone. The same options and text give the same
tasks on every platform, byte by byte.

A needle gives a word of the text a random number. The prompt has exactly so many tokens; its last line is the question, which
is the needle up to its number, and the answer is the number. The needle that is asked for stands at its task's depth (between
two sentences, if MODEL is not `bytes`), the others anywhere. With --context-only the cache is compressed before the question
is read. How many tokens the answers have, is said on standard error.

With --values N the word that is asked for has N numbers, in as many needles: one in each N-th part of the prose. The answer is
all of them, in the order in which they stand, with commas between them.

Streaming takes nothing at random: the targets are the text's tokens from the first prompt's end on, --continuation of them a
task, one task after another, and a prompt is what stands before its target. So every token of the text is scored once.

Exit codes: 0; 2 usage; 3 a tokenizer or a text that does not do; 4 I/O.
"""
import argparse
import bisect
import json
import os
import re
import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from portable_random import Permutation, Stream
from script_options import Parser, count, run, whole_file
from script_options import layers as numbers

from kvbound.errors import InvalidInput
from kvbound.recording.temporary_name import temporary_beside

PASSAGE, WORDS, NUMBERS, POSITIONS = range(4)  # what the numbers of a child stream are drawn for
ATTEMPTS = 100  # to find words that the question does not meet in the prose
BEFORE = "<|im_start|>user\n"
BETWEEN = "<|im_end|>\n<|im_start|>assistant\n"
# needle, question and --ask: of models whose tokens are bytes; of others, by whether there are several values
WORDING = {
    "bytes": (" {word}:{number} ", "{word}:", "What is the code of {word}?"),
    False: ("The code of {word} is {number}.", "The code of {word} is", "What is the code of {word}?"),
    True: ("One of the codes of {word} is {number}.", "The codes of {word} are", "What are the codes of {word}?"),
}


@dataclass
class Needle:
    word: str
    numbers: list  # one, or of the needle that is asked for as many as --values says
    texts: list  # of each number
    question: str


def words_of(text):
    """The different words of 4 to 10 small letters a to z, in ascending order."""
    found = re.findall(r"[A-Za-z'\x80-\U0010ffff]+", text)
    return sorted({word for word in found if re.fullmatch("[a-z]{4,10}", word)})


def random_number(random, digits):
    return "".join(str(random.below(i, 10) if i else 1 + random.below(i, 9)) for i in range(digits))


def random_needles(words, options, random):
    """Needles of different numbers and of words of which none is the end of another; the first, which has all --values, is
    asked for."""
    needles, order = [], Permutation(random.child(WORDS), max(1, len(words)))
    for i in range(len(words)):
        word = words[order(i)]
        if any(other.word.endswith(word) or word.endswith(other.word) for other in needles):
            continue
        numbers, draw = [], 0
        while len(numbers) < (1 if needles else options.values):
            number = random_number(random.child(NUMBERS, i, draw), options.answer)
            if number not in numbers and not any(number in other.numbers for other in needles):
                numbers.append(number)
            draw += 1
        texts = [options.needle.format(word=word, number=number) for number in numbers]
        needles.append(Needle(word, numbers, texts, options.question.format(word=word)))
        if len(needles) == options.needles:
            return needles
    raise InvalidInput(f"{options.text} has {len(needles)} words of 4 to 10 small letters of which none is the end of another; "
                  f"expected {options.needles}, one for each needle")


def value_depths(depth, values, random):
    """Where the values that are asked for stand, from 0 to 1: one at `depth`; of several each in its part of the prose."""
    return [depth] if values == 1 else [(i + random.below(i, 1001) / 1000) / values for i in range(values)]


def passage_start(options, size, length, number, random):
    """Where the passage of a task should begin: in its share of the text if that is long enough, otherwise anywhere."""
    if size < length:
        raise InvalidInput(f"{options.text} has {size} tokens; expected at least {length}")
    share = size // options.tasks
    if share < length:
        return random.below(0, size - length + 1)
    return number * share + random.below(0, share - length + 1)


class Bytes:
    """Prompts of bytes."""

    def __init__(self, text, options):
        self.data, self.options = text.encode(), options
        self.size = len(self.data)

    def is_between_characters(self, position):
        return position == self.size or self.data[position] & 0xC0 != 0x80

    def passage(self, wanted, cuts):
        """Where a passage begins: after white space if possible, cut nowhere in a character; from `wanted` backwards."""
        def has_clean_cuts(begin):
            return all(self.is_between_characters(begin + cut) for cut in (0, *cuts))
        words = (begin for begin in range(wanted, -1, -1) if not begin or self.data[begin - 1] in b" \n\t")
        for begins in (words, range(wanted, -1, -1)):
            for begin in begins:
                if has_clean_cuts(begin):
                    return begin
        raise InvalidInput(f"{self.options.text}: no passage of {cuts[-1]} bytes before byte {wanted} ends between characters")

    def needle_prompt(self, needles, length, depths, start, random):
        """(prompt, tokens before the question, answer); None if the question is in the prose as well.

        depths: of the first needle's values; the other needles are anywhere.
        """
        question = ("\n" + needles[0].question).encode()
        texts = [text.encode() for needle in needles for text in needle.texts]
        room = length - len(question) - sum(map(len, texts))
        if room < 1:
            raise InvalidInput(f"a prompt of {length} bytes has no room for prose beside {length - room} of needles and question")
        begin = self.passage(start, [room])
        prose = self.data[begin:begin + room]
        if any(needle.question.encode() in prose for needle in needles):
            return None
        cuts = [int(depth * room) for depth in depths] + [random.below(i, room + 1) for i in range(len(depths), len(texts))]
        for i, cut in enumerate(cuts):
            while not self.is_between_characters(begin + cut):
                cut -= 1
            cuts[i] = cut
        prompt, taken = b"", 0
        for cut, text in sorted(zip(cuts, texts), key=lambda pair: pair[0]):
            prompt += prose[taken:cut] + text
            taken = cut
        prompt += prose[taken:] + question
        return prompt, length - len(question), self.options.answer_of(needles[0]).encode()

    def continuation(self, length, start, more):
        return self.cut(length, self.passage(start, [length, length + more]), more)

    def room(self, length):
        """Tokens of the text in a prompt of prose alone."""
        return length

    def cut(self, length, begin, more):
        """A prompt whose prose is the text's from token `begin` on, and the `more` tokens behind it."""
        return self.data[begin:begin + length], self.data[begin + length:begin + length + more]

    @staticmethod
    def members(prompt, kind, target):
        """As text, or as token ids what begins or ends within a character."""
        def member(name, data):
            try:
                return {f"{name}_text": data.decode()}
            except UnicodeDecodeError:
                return {name: list(data)}
        return member("prompt", prompt) | member(kind, target)


class Tokens:
    """Prompts of a tokenizer's tokens."""

    def __init__(self, text, options):
        self.text, self.options, self.tokenize = text, options, tokenize_script()
        self.tokenizer = self.tokenize.tokenizer_of(options.model)
        if options.no_bos:
            self.tokenizer.first = []
        self.ids, self.begins = self.tokenizer.encode(text)
        self.size = len(self.ids)
        self.starts = [0, *(i for i in range(1, self.size) if self.ends_sentence(i))]
        if options.chat:
            self.tokenizer.first = self.tokenizer.first + self.chat_ids()

    def ends_sentence(self, index):
        begin = self.begins[index]
        return bool(re.search(r"([.!?][\"')\]”’]*|\n)\s+$", self.text[max(0, begin - 8):begin] + " "))

    def chat_ids(self):
        if any(len(self.tokenizer.encode(token)[0]) != 1 for token in ("<|im_start|>", "<|im_end|>")):
            raise InvalidInput(f"{self.options.model} does not know the tokens of --chat, <|im_start|> and <|im_end|>")
        return self.tokenizer.encode(BEFORE)[0]

    def passage(self, wanted):
        """The last token at or before `wanted` that begins a sentence."""
        return self.starts[bisect.bisect_right(self.starts, wanted) - 1]

    def asked(self, needle):
        if not self.options.chat:
            return needle.question
        return self.options.ask.format(word=needle.word) + BETWEEN + needle.question

    def needle_prompt(self, needles, length, depths, start, random):
        """(prompt, tokens before the question, answer), in ids; None if the question is in the prose as well."""
        begin = self.passage(start)
        end = begin + length + 64
        text = self.text[self.begins[begin]:self.begins[end] if end < self.size else None]
        if any(needle.question in text for needle in needles):
            return None
        texts = [text for needle in needles for text in needle.texts]
        depths = depths + [random.below(i, 1001) / 1000 for i in range(len(depths), len(texts))]
        question = self.asked(needles[0])
        prompt, _ = self.tokenize.retrieval_prompt(self.tokenizer, text, length, texts, depths, question, False)
        asked = self.tokenizer.encode("\n" + question)[0]
        whole = self.tokenizer.encode("\n" + question + self.options.answer_of(needles[0]))[0]
        if whole[:len(asked)] != asked:
            raise InvalidInput(f"the answer's first token holds a part of the question {needles[0].question!r}: change --needle")
        return prompt, length - len(asked), whole[len(asked):]

    def continuation(self, length, start, more):
        return self.cut(length, self.passage(start), more)

    def room(self, length):
        """Tokens of the text in a prompt of prose alone."""
        if length <= len(self.tokenizer.first):
            raise InvalidInput(f"a prompt of {length} tokens has no room for text")
        return length - len(self.tokenizer.first)

    def cut(self, length, begin, more):
        """A prompt whose prose is the text's from token `begin` on, and the `more` tokens behind it."""
        end = begin + self.room(length)
        return self.tokenizer.first + self.ids[begin:end], self.ids[end:end + more]

    @staticmethod
    def members(prompt, kind, target):
        return {"prompt": prompt, kind: target}


def tokenize_script():
    """The module tokenize.py beside this script, which has the name of one of the standard library."""
    spec = spec_from_file_location("kvbound_tokenize", Path(__file__).with_name("tokenize.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def needle_task(source, words, options, length, number):
    """The members of a task behind its kind."""
    task, depth = Stream(options.seed).child(length, number), options.depths[number % len(options.depths)]
    start = passage_start(options, source.size, length, number, task.child(PASSAGE))
    for attempt in range(ATTEMPTS):
        random = task.child(WORDS, attempt)
        needles = random_needles(words, options, random)
        where = random.child(POSITIONS)
        found = source.needle_prompt(needles, length, value_depths(depth, options.values, where), start, where)
        if found:
            prompt, before, answer = found
            if len(answer) < 2 and not options.context_only:
                raise InvalidInput(f"an answer such as {needles[0].numbers[0]} is one token: nothing of it would go through the "
                                   "compressed cache; take a larger --answer, or --context-only")
            at = {"depth": plain(depth)} if options.values == 1 else {}
            rest = {"compress_at": before} if options.context_only else {}
            return at | source.members(prompt, "answer", answer) | rest
    raise InvalidInput(f"{options.text}: the questions are in the prose itself")


def continuation_task(source, options, length, number):
    random = Stream(options.seed).child(length, number)
    start = passage_start(options, source.size, length + options.continuation, number, random.child(PASSAGE))
    prompt, target = source.continuation(length, start, options.continuation)
    return source.members(prompt, "continuation", target)


def streaming_count(source, options, length):
    """How many tasks of this length: --tasks, or as many as the text has targets for."""
    room, more = source.room(length), options.continuation
    many = options.tasks or max(1, (source.size - room) // more)
    if source.size < room + many * more:
        raise InvalidInput(f"{options.text} has {source.size} tokens; expected at least {room + many * more}")
    return many


def streaming_task(source, options, length, number):
    """The target follows that of the task before."""
    prompt, target = source.cut(length, number * options.continuation, options.continuation)
    return source.members(prompt, "continuation", target)


def plain(depth):
    """A number that is written without a point, if it is whole."""
    return int(depth) if depth == int(depth) else depth


def name_of(options):
    """What tasks are called, in front of their length."""
    kind = "multi-value" if options.values > 1 else options.make
    if not options.context_only:
        return kind
    return "context-only" if kind == "needle" else f"context-only-{kind}"


def tasks(text, options):
    """The tasks as dictionaries."""
    source = Bytes(text, options) if options.model == "bytes" else Tokens(text, options)
    make = {"needle": partial(needle_task, source, words_of(text) if options.make == "needle" else []),
            "continuation": partial(continuation_task, source), "streaming": partial(streaming_task, source)}[options.make]
    name = name_of(options)
    for length in options.lengths:
        many = streaming_count(source, options, length) if options.make == "streaming" else options.tasks
        for number in range(many):
            if not options.only or number + 1 in options.only:
                yield {"id": f"{name}-{length}-{number + 1}", "kind": f"{name}-{length}"} | make(options, length, number)


def lengths(text):
    numbers = [count(1)(part) for part in text.split(",")]
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"{text!r} has a length twice")
    return numbers


def depths(text):
    """Percentages, or how many: evenly spaced from 0 to 1, the middle if it is one."""
    if "%" not in text:
        many = count(1)(text)
        return [0.5] if many == 1 else [i / (many - 1) for i in range(many)]
    found = []
    for part in text.split(","):
        if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?%", part) or float(part[:-1]) > 100:
            raise argparse.ArgumentTypeError(f"{part!r} is neither a count nor a percentage from 0% to 100%")
        found.append(float(part[:-1]) / 100)
    return found


def digits(text):
    if count(2)(text) > 12:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 2 to 12")
    return int(text)


def parse_options():
    parser = Parser(__doc__)
    parser.add_argument("text", metavar="TEXT", help="prose in UTF-8")
    parser.add_argument("model", metavar="MODEL", help="`bytes`, a GGUF file, or a directory with a tokenizer.json")
    parser.add_argument("out", metavar="OUT", help="the file of tasks; - is standard output")
    parser.add_argument("--make", metavar="KIND", choices=("needle", "continuation", "streaming"), required=True,
                        help="needle, continuation or streaming")
    parser.add_argument("--lengths", metavar="N[,N]", type=lengths, default=[1024], help="tokens of a prompt (default: 1024)")
    parser.add_argument("--tasks", metavar="N", type=count(1), help="tasks of each length (default: 20; of streaming: all)")
    parser.add_argument("--only", metavar="N[,N]", type=numbers, help="write only these of them, such as 1,4-6 (default: all)")
    parser.add_argument("--depths", metavar="D[,D]", type=depths,
                        help="where the needle is, such as 0%%,50%%; or how many depths, evenly spaced (default: 5)")
    parser.add_argument("--needles", metavar="N", type=count(1), help="needles in a prompt (default: 4)")
    parser.add_argument("--values", metavar="N", type=count(1), help="numbers of the word that is asked for (default: 1)")
    parser.add_argument("--answer", metavar="N", type=digits, help="digits of a needle's number, 2 to 12 (default: 7)")
    parser.add_argument("--needle", metavar="S", help="a needle, with {word} and {number} (default: ' {word}:{number} ' for "
                        "bytes, otherwise 'The code of {word} is {number}.', of several --values 'One of the codes of {word} is "
                        "{number}.')")
    parser.add_argument("--question", metavar="S", help="the last line, with {word}: the needle up to its number (default: "
                        "'{word}:' for bytes, otherwise 'The code of {word} is', of several --values 'The codes of {word} are')")
    parser.add_argument("--context-only", action="store_true", default=None, help="compress before the question is read")
    parser.add_argument("--chat", action="store_true", default=None,
                        help="as a chat (ChatML): the prose and --ask are the user's, --question begins the answer")
    parser.add_argument("--ask", metavar="S", help="what the user asks, with {word} (default: 'What is the code of {word}?', of "
                        "several --values 'What are the codes of {word}?')")
    parser.add_argument("--continuation", metavar="N", type=count(2),
                        help="tokens that follow a prompt (default: 64; of streaming: 1024)")
    parser.add_argument("--no-bos", action="store_true", help="leave out the token that begins a sequence")
    parser.add_argument("--seed", metavar="N", type=count(0), help="seed of the random numbers (default: 1)")
    options = parser.parse_args()
    complain_about(parser, options)
    complete(parser, options)
    return options


def complain_about(parser, options):
    """Refuses options that do not belong together."""
    needle_only = ("depths", "needles", "values", "answer", "needle", "question", "context_only", "chat", "ask")
    foreign = {"needle": ("continuation",), "continuation": needle_only, "streaming": (*needle_only, "only", "seed")}
    for name in foreign[options.make]:
        if getattr(options, name) is not None:
            parser.error(f"--{name.replace('_', '-')} does not belong to --make {options.make}")
    if options.model == "bytes" and (options.chat or options.no_bos):
        parser.error("--chat and --no-bos are for models with a tokenizer")
    if options.ask is not None and not options.chat:
        parser.error("--ask needs --chat")
    if (options.values or 1) > 1 and options.depths:
        parser.error("--depths does not belong to --values: each value stands in its part of the prose")
    if (options.needles or 1) + (options.values or 1) > 65:
        parser.error("--needles, --values: expected at most 64 needles")
    if options.needle is not None and options.question is None or options.question is not None and options.needle is None:
        parser.error("expected both --needle and --question, or neither")


def complete(parser, options):
    """Sets the defaults, and `answer_of`, the text that answers a needle's question."""
    is_streaming = options.make == "streaming"
    options.tasks = options.tasks or (None if is_streaming else 20)
    if options.only and not 1 <= options.only[0] <= options.only[-1] <= options.tasks:
        parser.error(f"--only: expected numbers from 1 to {options.tasks}")
    options.seed = 1 if options.seed is None else options.seed
    options.depths = options.depths or depths("5")
    options.needles, options.values, options.answer = options.needles or 4, options.values or 1, options.answer or 7
    options.continuation = options.continuation or (1024 if is_streaming else 64)
    usual = WORDING["bytes" if options.model == "bytes" else options.values > 1]
    for name, text in zip(("needle", "question", "ask"), usual, strict=True):
        setattr(options, name, getattr(options, name) or text)
    lead = answer_lead(parser, options)
    options.answer_of = lambda needle: lead + ", ".join(needle.numbers)


def answer_lead(parser, options):
    """What stands between the question and the first number: as in the needle, or a space if the question is no part of it."""
    is_multi, begin = options.values > 1, options.needle.find(options.question)
    between = options.needle[begin + len(options.question) if begin >= 0 else 0:].split("{number}")
    try:
        fields = [options.needle.format(word="", number=""), options.question.format(word=""), options.ask.format(word="")]
        is_sound = "{word}" in options.question and "{word}" in options.needle and len(between) == 2 and all(fields)
    except (KeyError, IndexError, ValueError):
        is_sound = False
    if not is_sound or begin < 0 and not is_multi:
        question = "a text with {word}" if is_multi else "a part of it with {word} that ends before {number}"
        parser.error("--needle, --question: expected a needle such as 'The code of {word} is {number}.', and as the question "
                     f"{question}")
    return between[0] if begin >= 0 else " "


def write(path, lines):
    """Writes a file whole or not at all; `-` is standard output."""
    if path == "-":
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        sys.stdout.writelines(lines)
        return
    path = Path(path)
    if path.exists() and not path.is_file():  # such as /dev/null, which must not be replaced
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        return
    temporary = temporary_beside(path)
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def make_tasks(options):
    data = whole_file(options.text)
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{options.text}: {error}") from None
    if Path(options.out).exists() and os.path.samefile(options.text, options.out):
        raise InvalidInput(f"{options.out} is the text")
    made = list(tasks(text, options))
    write(options.out, (json.dumps(task, ensure_ascii=False, separators=(",", ":")) + "\n" for task in made))
    targets = [len(task.get("answer") or task.get("continuation") or b"") for task in made]
    said = f", with targets of {min(targets)} to {max(targets)} tokens" if options.model != "bytes" else ""
    print(f"make_tasks: {len(made)} tasks{said}", file=sys.stderr)


if __name__ == "__main__":
    run("make_tasks", lambda: make_tasks(parse_options()))
