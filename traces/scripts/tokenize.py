#!/usr/bin/env python3
"""Turns a text into a model's token ids, or into a retrieval prompt of exactly N tokens.

    tokenize.py TEXT MODEL > tokens
    tokenize.py TEXT MODEL --prompt 1024 --needle "The code is 52817." --question "The code is" > tokens
    record_hf.py MODEL --tokens tokens --prompt 1024 --steps 32 trace.safetensors

MODEL is a GGUF file with byte-level BPE (tokenizer.ggml.model gpt2; tokenizer.ggml.pre smollm, llama-bpe or qwen2) or a
Hugging Face directory with a tokenizer.json. Special tokens that are spelt out in the text are recognised as such.

With --prompt, the ids are TEXT's first ones, cut so that all together are N: every needle is a line of its own, put at a
sentence's end near its depth, and the question is the prompt's last line. With --question-after it follows the N tokens
instead: as decode steps, so that the prompt is compressed before the question is known. Where needles and questions are,
is said on standard error.

Exit codes: 0; 2 usage; 3 a tokenizer or a text that does not do; 4 I/O.
"""
import os
import sys

# imported from this folder in place of the standard library's module: load that one
if __name__ == "tokenize":
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_file_location
    _path = os.path.join(os.path.dirname(os.__file__), "tokenize.py")
    _spec = spec_from_file_location("tokenize", _path, loader=SourceFileLoader("tokenize", _path))
    sys.modules["tokenize"] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["tokenize"])
else:
    import json
    import re
    from pathlib import Path

    from script_options import Parser, count, run, whole_file

    from kvbound.errors import InvalidInput

# Llama 3's and Qwen2's words, as their tokenizer.json has them.
_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
PRE = ("smollm", "llama-bpe", "qwen2")
CONTROL, USER_DEFINED = 3, 4  # kinds of tokens in a GGUF


class Tokenizer:
    """A tokenizer of the package `tokenizers`, and the ids that begin every sequence."""

    def __init__(self, tokenizer, first):
        self.tokenizer, self.first = tokenizer, first

    def encode(self, text):
        """The ids, and where in the text each one's characters begin."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, [begin for begin, _ in encoding.offsets]


def from_directory(path):
    from tokenizers import Tokenizer as Loaded
    file = path / "tokenizer.json"
    if not file.is_file():
        raise InvalidInput(f"{path} has no tokenizer.json")
    try:
        tokenizer = Loaded.from_file(str(file))
    except Exception as error:  # the package raises Exception itself
        raise InvalidInput(f"{file}: {' '.join(str(error).split())[:200]}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    first = tokenizer.encode("").ids
    return Tokenizer(tokenizer, first[:1])  # [BOS] or [BOS, EOS]


def gguf_fields(path):
    """The values of a GGUF's tokenizer.ggml fields, without the prefix."""
    from gguf import GGUFReader
    try:
        reader = GGUFReader(path)
        return {name.removeprefix("tokenizer.ggml."): field.contents() for name, field in reader.fields.items()
                if name.startswith("tokenizer.ggml.")}
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError, TypeError) as error:
        raise InvalidInput(f"{path}: is no GGUF: {' '.join(str(error).split())[:200]}") from None


def from_gguf(path):
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Built
    fields = gguf_fields(path)
    kind, pre = fields.get("model"), fields.get("pre")
    if kind != "gpt2":
        raise InvalidInput(f"{path}: tokenizer.ggml.model is {kind!r}; expected 'gpt2', byte-level BPE")
    if pre not in PRE:
        raise InvalidInput(f"{path}: tokenizer.ggml.pre is {pre!r}; expected one of {', '.join(PRE)}")
    tokens, merges = fields.get("tokens") or [], fields.get("merges") or []
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if not tokens or any(len(pair) != 2 for pair in pairs):
        raise InvalidInput(f"{path}: tokenizer.ggml has {len(tokens)} tokens, or a merge that is not two of them")
    vocabulary = {token: i for i, token in reversed(list(enumerate(tokens)))}
    try:
        tokenizer = Built(models.BPE(vocabulary, pairs, ignore_merges=pre == "llama-bpe"))
    except Exception as error:
        raise InvalidInput(f"{path}: tokenizer.ggml.merges: {error}") from None
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "smollm")
    words = (pre_tokenizers.Digits(individual_digits=True) if pre == "smollm" else
             pre_tokenizers.Split(Regex(_WORDS % ("{1,3}" if pre == "llama-bpe" else "")), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    kinds = fields.get("token_type") or []
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token, what in zip(tokens, kinds)
                                  if what in (CONTROL, USER_DEFINED)])
    return Tokenizer(tokenizer, [fields["bos_token_id"]] if fields.get("add_bos_token") else [])


def sentence_end(text, begins, wanted):
    """The token nearest to `wanted` before which a sentence or a paragraph ends; `wanted` if there is none."""
    end = re.compile(r"[.!?][\"')\]”’]*\s*$|\n\s*\n\s*$")
    ends = [i for i in range(1, len(begins)) if end.search(text[max(0, begins[i] - 8):begins[i]])]
    return min(ends, key=lambda i: abs(i - wanted), default=wanted)


def retrieval_prompt(tokenizer, text, tokens, needles, depths, question, is_after):
    """The ids of a prompt of `tokens` tokens (with a question after it: and the question's), and what is where.

    depths     of each needle, from 0 (the text's beginning) to 1
    returns    (ids, [(what, its first token, the token behind it)])
    throws     InvalidInput if the text is too short, or the needles and the question too long
    """
    lines = [tokenizer.encode(f"\n{needle}\n")[0] for needle in needles]
    asked = tokenizer.encode(f"\n{question}")[0] if question else []
    ids, begins = tokenizer.encode(text)
    room = tokens - len(tokenizer.first) - sum(map(len, lines)) - (0 if is_after else len(asked))
    if room < 1:
        raise InvalidInput(f"a prompt of {tokens} tokens has no room for text beside {tokens - room} of needles and question")
    if len(ids) < room:
        raise InvalidInput(f"the text has {len(ids)} tokens, but the prompt needs {room} of it")
    begins = begins[:room]
    cuts = [round(depth * room) if depth in (0, 1) else sentence_end(text, begins, round(depth * room)) for depth in depths]
    result, places, taken = list(tokenizer.first), [], 0
    for cut, number in sorted(zip(cuts, range(len(cuts)))):
        result += ids[taken:cut]
        places.append((f"needle {number + 1}", len(result), len(result) + len(lines[number])))
        result += lines[number]
        taken = cut
    result += ids[taken:room]
    if asked:
        places.append(("question", len(result), len(result) + len(asked)))
    return result + asked, places


def fraction(text):
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def parse_options():
    parser = Parser(__doc__)
    parser.add_argument("text", metavar="TEXT", help="a text in UTF-8")
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, or a directory with a tokenizer.json")
    parser.add_argument("--prompt", metavar="N", type=count(1), help="exactly N tokens (default: the whole text)")
    parser.add_argument("--needle", metavar="S", action="append", default=[], help="a sentence to hide; may be repeated")
    parser.add_argument("--depth", metavar="D", type=fraction, action="append", default=[],
                        help="where in the text, 0 to 1; one for each needle (default: evenly)")
    parser.add_argument("--question", metavar="S", help="what the model has to continue")
    parser.add_argument("--question-after", action="store_true", help="put the question behind the N tokens")
    parser.add_argument("--no-bos", action="store_true", help="leave out the token that begins a sequence")
    parser.add_argument("--json", action="store_true", help="print a JSON array (default: one line of decimal numbers)")
    options = parser.parse_args()
    if (options.needle or options.question is not None) and not options.prompt:
        parser.error("--needle and --question need --prompt")
    if options.depth and len(options.depth) != len(options.needle):
        parser.error(f"{len(options.depth)} times --depth, but {len(options.needle)} times --needle")
    if options.question_after and not options.question:
        parser.error("--question-after needs --question")
    return options


def tokenizer_of(model):
    """The Tokenizer of a GGUF file or a Hugging Face directory."""
    model = Path(model)
    try:
        if not model.exists():
            raise InvalidInput(f"{model}: no such file or directory")
        return from_directory(model) if model.is_dir() else from_gguf(model)
    except ImportError as error:
        raise InvalidInput(f"needs the packages of requirements.txt, beside this script: {error}") from None


def tokenize(options):
    tokenizer = tokenizer_of(options.model)
    try:
        text = whole_file(options.text).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{options.text}: {error}") from None
    if options.no_bos:
        tokenizer.first = []
    places = []
    if options.prompt:
        many = len(options.needle)
        depths = options.depth or [(i + 1) / (many + 1) for i in range(many)]
        ids, places = retrieval_prompt(tokenizer, text, options.prompt, options.needle, depths, options.question,
                                       options.question_after)
    else:
        ids = tokenizer.first + tokenizer.encode(text)[0]
    print(json.dumps(ids) if options.json else " ".join(map(str, ids)))
    for what, begin, end in places:
        print(f"tokenize: {what}: tokens {begin}-{end - 1} of {len(ids)}", file=sys.stderr)


if __name__ == "__main__":
    run("tokenize", lambda: tokenize(parse_options()))
