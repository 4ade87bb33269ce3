"""What the scripts share: the package, one line for an error, kvbound's exit codes."""
import argparse
import re
import signal
import sys
from pathlib import Path

# before a package that is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sim" / "python"))

from kvbound.errors import InvalidInput, InvalidOption  # noqa: E402

# Controls, separators of lines, what changes the direction of text, and bytes of names that are not UTF-8.
NOT_PLAIN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MOST_BYTES = 1 << 28  # of a text


def one_line(text):
    """Text of unknown origin on one line of a terminal: bytes that are not plain as \\xNN, as kvbound shows them."""
    def shown(match):
        how = "surrogateescape" if "\udc80" <= match[0] <= "\udcff" else "surrogatepass"
        return "".join(f"\\x{byte:02x}" for byte in match[0].encode("utf-8", how))
    return NOT_PLAIN.sub(shown, str(text))


def whole_file(path):
    """A file's bytes, at most MOST_BYTES; errors name it, also those of reading."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    if len(data) > MOST_BYTES:
        raise InvalidInput(f"{path}: has more than {MOST_BYTES >> 20} MiB")
    return data


class Parser(argparse.ArgumentParser):
    """Shows a script's docstring as its help; a usage error is one line and exit code 2."""

    def __init__(self, description):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        print(one_line(f"{self.prog.removesuffix('.py')}: {message}; --help lists the options"), file=sys.stderr)
        sys.exit(2)


def count(least):
    """An option's type: a decimal integer from `least` on, of at most nine digits."""
    def parse(text):
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {least} on")
        return int(text)
    return parse


def layers(text):
    """An option's type: ascending numbers or ranges, such as 0,3-5, as a list."""
    numbers = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or numbers and first <= numbers[-1]:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of ascending numbers or ranges such as 0,3-5")
        numbers += range(first, last + 1)
    return numbers


class Progress:
    """One line on a terminal, rewritten; silent elsewhere."""

    def __init__(self, name, quiet):
        self.name = name
        self.shown = not quiet and sys.stderr.isatty()

    def __call__(self, text):
        if self.shown:
            print(f"\r\033[K{self.name}: {text}", end="", file=sys.stderr, flush=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.end()

    def end(self):
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def run(name, action):
    """Runs a script. Exit codes: 2 InvalidOption; 3 InvalidInput; 4 I/O; 129, 130, 143 interrupted; one line on stderr each."""
    def terminate(number, frame):
        raise SystemExit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores the latter
            signal.signal(number, terminate)
    try:
        action()
    except (InvalidInput, InvalidOption) as error:
        print(one_line(f"{name}: {error}"), file=sys.stderr)
        sys.exit(3 if isinstance(error, InvalidInput) else 2)
    except OSError as error:
        print(one_line(f"{name}: {error.filename or 'I/O'}: {error.strerror or error}"), file=sys.stderr)
        sys.exit(4)
    except KeyboardInterrupt:
        print(f"{name}: interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
