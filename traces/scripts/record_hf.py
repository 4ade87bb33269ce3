#!/usr/bin/env python3
"""Records a trace from a model that runs in Hugging Face transformers: kvbound.record_hf as a command.

    record_hf.py MODEL --tokens FILE --prompt N --steps T OUT
    kvbound inspect OUT --verify

The model runs in float32, with queries, keys and values rounded to the stored type before attention. Layers with a sliding
window or without attention are left out and named. A model whose attention is of another kind (logit softcap, sinks, latent
attention, biases, gates, ...) is refused with one line.

Exit codes: 0 recorded; 2 usage; 3 a model, a token or a number that cannot be recorded; 4 I/O; 130, 143 interrupted.
"""
import json
import re
import sys
from pathlib import Path

from script_options import Parser, Progress, count, layers, run, whole_file

from kvbound.errors import InvalidInput
from kvbound.recording.hf_recording import record_hf


def read_tokens(options):
    """The token ids: a file's bytes, or decimal numbers separated by white space or commas, also as a JSON array."""
    if options.bytes:
        return list(whole_file(options.bytes))
    text = whole_file(options.tokens).decode("utf-8", errors="replace").strip()
    if text.startswith("["):
        try:
            tokens = json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"{options.tokens}: {error}")
        if not all(type(token) is int for token in tokens):
            raise InvalidInput(f"{options.tokens}: expected an array of token ids")
        return tokens
    words = [word for word in re.split(r"[\s,]+", text) if word]
    for position, word in enumerate(words):
        if not re.fullmatch(r"[0-9]{1,10}", word):
            raise InvalidInput(f"{options.tokens}: {word[:40]!r} at position {position} is not a token id")
    return [int(word) for word in words]


def parse_options():
    parser = Parser(__doc__)
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face directory, or ORGANISATION/NAME for the hub's cache")
    tokens = parser.add_mutually_exclusive_group(required=True)
    tokens.add_argument("--tokens", metavar="FILE", help="token ids, as tokenize.py prints them")
    tokens.add_argument("--bytes", metavar="FILE", help="a text whose bytes are the token ids")
    parser.add_argument("--prompt", metavar="N", type=count(1), required=True, help="prompt tokens: FILE's first N")
    parser.add_argument("--steps", metavar="T", type=count(0), required=True,
                        help="decode steps: on FILE's next tokens, then greedily")
    parser.add_argument("--window", metavar="W", type=count(1), help="prompt queries to record: the last W (default: 128)")
    parser.add_argument("--layers", metavar="L", type=layers, help="model layers to record: 0,3-5 (default: all)")
    parser.add_argument("--dtype", choices=("F32", "F16", "BF16"), default="F16", help="stored type (default: F16)")
    parser.add_argument("--device", default="cpu", help="where torch runs the model (default: cpu)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("out", metavar="OUT", help="the trace; a name that ends in .index.json makes a shard per layer")
    options = parser.parse_args()
    if options.window and options.window > options.prompt:
        parser.error(f"--window {options.window} is more than --prompt {options.prompt}")
    return options


def record(options):
    ids = read_tokens(options)
    if len(ids) < options.prompt:
        raise InvalidInput(f"{options.tokens or options.bytes} has {len(ids)} tokens, but the prompt has {options.prompt}")
    with Progress("record_hf", options.quiet) as progress:
        def note(text):
            progress.end()
            print(f"record_hf: {text}", file=sys.stderr)
        try:
            record_hf(options.model, ids, prompt=options.prompt, steps=options.steps, out=options.out, window=options.window,
                      layers=options.layers, dtype=options.dtype, device=options.device, progress=progress, note=note,
                      source=Path(options.tokens or options.bytes).name)
        except ImportError as error:
            raise InvalidInput(f"needs the packages of requirements.txt, beside this script: {error}") from None
    print(f"kvbound inspect {options.out} --verify")


def main():
    run("record_hf", lambda: record(parse_options()))


if __name__ == "__main__":
    main()
