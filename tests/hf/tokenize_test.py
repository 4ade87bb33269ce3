"""traces/scripts/tokenize.py: the ids of a GGUF's and a directory's tokenizer, and retrieval prompts.

usage: tokenize_test.py KVBOUND      KVBOUND is not used. Needs traces/scripts/requirements.txt.
"""
import contextlib
import importlib.metadata
import importlib.util
import io
import json
import sys
import unicodedata
import unittest.mock

import gguf
import regex
import tokenizers
from support import kvbound_cli
from support.kvbound_cli import INVALID, PASS, USAGE, WORLD, CommandLineTest

SCRIPTS = kvbound_cli.REPOSITORY / "traces" / "scripts"
sys.path.insert(0, str(SCRIPTS))
spec = importlib.util.spec_from_file_location("kvbound_tokenize", SCRIPTS / "tokenize.py")
tokenize = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tokenize)

CORPUS = ("The cat sat on the mat; it's 12 o'clock. \"We'll see,\" said the dog.\n\nIn 1984 they'd 365 cats, naïve ones!\n"
          "  def f(x):\n      return x + 1234567\n\nÀ la carte? DON'T PANIC... the the the cat cat.\n") * 3
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
          r"|\s+")
WORDS = {"smollm": [r"\p{N}", GPT2], "llama-bpe": [LLAMA3], "qwen2": [LLAMA3.replace("{1,3}", "")]}


def byte_letters():
    """GPT-2's letter for each byte: itself if it is printable, else the next of U+0100 ..."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(byte) if byte in own else chr(next(other)) for byte in range(256)]


def split(pattern, text):
    """The matches and what is between them, in their order."""
    parts, end = [], 0
    for match in regex.finditer(pattern, text):
        parts += [text[end:match.start()], match[0]]
        end = match.end()
    return [part for part in [*parts, text[end:]] if part]


def merged(word, vocabulary, ranks):
    """Byte-pair encoding by definition: merges the pair of the lowest rank, the leftmost of equals, until none is left."""
    parts = list(word)
    while True:
        pairs = [(ranks[pair], i) for i, pair in enumerate(zip(parts, parts[1:])) if pair in ranks]
        if not pairs:
            return [vocabulary[part] for part in parts]
        _, i = min(pairs)
        parts[i:i + 2] = [parts[i] + parts[i + 1]]


def ids_by_definition(text, pre, tokens, merges):
    vocabulary, letters = {token: i for i, token in enumerate(tokens)}, byte_letters()
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    parts = [unicodedata.normalize("NFC", text) if pre == "qwen2" else text]
    for pattern in WORDS[pre]:
        parts = [piece for part in parts for piece in split(pattern, part)]
    ids = []
    for part in parts:
        word = "".join(letters[byte] for byte in part.encode())
        ids += [vocabulary[word]] if pre == "llama-bpe" and word in vocabulary else merged(word, vocabulary, ranks)
    return ids


class Tokenize(CommandLineTest):
    @classmethod
    def setUpClass(cls):
        """Tokens and merges learnt from CORPUS, after two control tokens and one that a model's author added."""
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=400, special_tokens=["<s>", "</s>"], show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator([CORPUS], trainer)
        cls.learnt = json.loads(tokenizer.to_str())["model"]
        cls.merges = [" ".join(merge) for merge in cls.learnt["merges"]]
        cls.tokens = sorted(cls.learnt["vocab"], key=cls.learnt["vocab"].get)

    def setUp(self):
        super().setUp()
        self.text = self.folder / "text"
        self.text.write_text(CORPUS, "utf-8")

    def gguf_file(self, pre="smollm", model="gpt2", bos=False, **changed):
        path = self.folder / "model.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model(model)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(changed.get("tokens", self.tokens))
        writer.add_token_types([3 if token in ("<s>", "</s>") else 1 for token in self.tokens])
        writer.add_token_merges(changed.get("merges", self.merges))
        writer.add_bos_token_id(0)
        writer.add_add_bos_token(bos)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    def directory(self):
        folder = self.folder / "hf"
        folder.mkdir(exist_ok=True)
        path = self.gguf_file("llama-bpe")
        tokenizer = tokenize.from_gguf(path).tokenizer
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
        tokenizer.save(str(folder / "tokenizer.json"))
        return folder

    def script(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), \
                unittest.mock.patch.object(sys, "argv", ["tokenize.py", *map(str, arguments)]):
            try:
                tokenize.run("tokenize", lambda: tokenize.tokenize(tokenize.parse_options()))
                code = PASS
            except SystemExit as error:
                code = error.code
        return code, out.getvalue(), err.getvalue()

    def ids(self, *arguments):
        code, out, err = self.script(*arguments)
        self.assertEqual(code, PASS, err)
        self.assertEqual(out.count("\n"), 1)
        return [int(word) for word in out.split()], err

    def refused(self, pattern, *arguments, code=INVALID):
        found, out, err = self.script(*arguments)
        self.assertEqual((found, out), (code, ""), err)
        self.assertRegex(err, rf"\Atokenize: [^\n]*{pattern}[^\n]*\n\Z")

    def test_a_gguf_gives_the_ids_of_byte_pair_encoding_by_its_definition(self):
        found = {}
        for pre in WORDS:
            for text in (CORPUS, "na\u0069\u0308ve 7 cats' 1234\r\n\r\n\t x", "\u3000日本 I'LL", " "):
                self.text.write_bytes(text.encode())
                ids, _ = self.ids(self.text, self.gguf_file(pre))
                expected = ids_by_definition(text, pre, self.tokens, self.merges)
                self.assertEqual(ids, expected, (pre, text))
                found[pre, text] = ids
            self.assertLess(len(found[pre, CORPUS]), len(CORPUS) / 2)  # merges were used
        for first, second in (("smollm", "llama-bpe"), ("llama-bpe", "qwen2"), ("smollm", "qwen2")):
            self.assertNotEqual(found[first, CORPUS], found[second, CORPUS])

    def test_special_tokens_in_a_text_are_one_token(self):
        self.text.write_text("<s>the cat</s>")
        ids, _ = self.ids(self.text, self.gguf_file())
        self.assertEqual((ids[0], ids[-1]), (0, 1))

    def test_a_directory_gives_its_own_ids(self):
        folder = self.directory()
        loaded = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.assertEqual(self.ids(self.text, folder)[0], loaded.encode(CORPUS).ids)
        self.assertEqual(self.ids(self.text, folder, "--no-bos")[0], loaded.encode(CORPUS).ids[1:])
        code, out, _ = self.script(self.text, folder, "--json")
        self.assertEqual((code, json.loads(out)), (PASS, loaded.encode(CORPUS).ids))

    def test_a_prompt_has_exactly_its_tokens(self):
        for make, bos in ((self.gguf_file, []), (lambda: self.gguf_file(bos=True), [0]), (self.directory, [0])):
            model = make()
            tokenizer = (tokenize.from_directory if model.is_dir() else tokenize.from_gguf)(model).tokenizer
            for tokens in (60, 61, 150):
                asked = ("--needle", "The code is 52817.", "--needle", "The colour is red.", "--question", "The code is")
                ids, err = self.ids(self.text, model, "--prompt", tokens, *asked)
                self.assertEqual((len(ids), ids[:len(bos)]), (tokens, bos))
                text = tokenizer.decode(ids)
                self.assertEqual((text.count("\nThe code is 52817.\n"), text.count("\nThe colour is red.\n")), (1, 1))
                self.assertTrue(text.endswith("\nThe code is"))
                begin, end = (int(number) for number in regex.search(r"needle 1: tokens (\d+)-(\d+)", err).groups())
                self.assertEqual(tokenizer.decode(ids[begin:end + 1]), "\nThe code is 52817.\n")
                after, _ = self.ids(self.text, model, "--prompt", tokens, *asked, "--question-after")
                question = tokenizer.encode("\nThe code is", add_special_tokens=False).ids
                self.assertEqual((len(after), after[tokens:]), (tokens + len(question), question))

    def test_needles_are_put_between_sentences_at_their_depths(self):
        model = self.gguf_file()
        for depth, before in ((0, ""), (0.25, "cats, naïve ones!\n"), (1, None)):
            ids, _ = self.ids(self.text, model, "--prompt", 170, "--needle", "NEEDLE", "--depth", depth)
            head, tail = tokenize.from_gguf(model).tokenizer.decode(ids).split("\nNEEDLE\n")
            self.assertEqual(head == "", depth == 0)
            self.assertEqual(tail == "", depth == 1)
            if depth not in (0, 1):
                self.assertRegex(head, r"[.!?]\"?\s*\Z")
                self.assertAlmostEqual(len(head) / len(head + tail), depth, delta=0.1)

    def test_what_does_not_do_is_refused(self):
        model = self.gguf_file()
        self.refused("needs 10000 of it", self.text, model, "--prompt", 10000)
        self.refused("no room for text", self.text, model, "--prompt", 5, "--needle", "a long, long needle")
        self.refused("need --prompt", self.text, model, "--needle", "x", code=USAGE)
        self.refused("2 times --depth, but 1 times --needle", self.text, model, "--prompt", 50, "--needle", "x",
                     "--depth", 0, "--depth", 1, code=USAGE)
        self.refused("--depth", self.text, model, "--prompt", 50, "--needle", "x", "--depth", 1.5, code=USAGE)
        self.refused("--question-after needs --question", self.text, model, "--prompt", 50, "--question-after", code=USAGE)
        self.refused("No such file", self.folder / "nothing", model, code=WORLD)
        self.refused("no such file or directory", self.text, self.folder / "nothing")
        self.refused("has no tokenizer.json", self.text, self.folder)
        self.refused("tokenizer.ggml.model is 'llama'", self.text, self.gguf_file(model="llama"))
        self.refused("tokenizer.ggml.pre is 'tekken'; expected one of smollm, llama-bpe, qwen2", self.text,
                     self.gguf_file(pre="tekken"))
        self.refused("a merge that is not two", self.text, self.gguf_file(merges=["t h", "th"]))
        self.refused("merges", self.text, self.gguf_file(merges=["t nothere"]))
        self.text.write_bytes(b"\xff\xfe\x00")
        self.refused("utf-8", self.text, self.gguf_file())

    def test_broken_files_are_refused(self):
        model = self.gguf_file()
        data = model.read_bytes()
        for cut in (0, 3, 10, 30, len(data) // 2):
            model.write_bytes(data[:cut])
            self.refused("is no GGUF", self.text, model)
        folder = self.directory()
        for text in ("", "{", '{"version": "1.0"}', "[]"):
            (folder / "tokenizer.json").write_text(text)
            self.refused("tokenizer.json", self.text, folder)


if __name__ == "__main__":
    print(f"tokenizers {tokenizers.__version__}, gguf {importlib.metadata.version('gguf')}", flush=True)
    kvbound_cli.main()
