#!/usr/bin/python3
"""Rewraps comments that are wider than 110 columns; changes comments only, which it checks. A temporary tool.

usage: wrap.py ROOT [PATH...]      PATH: files or folders below ROOT, by default all that git knows
       wrap.py --check ROOT        prints comments that are too wide, changes nothing

C++ and CUDA: // and ///, also behind code; Python, shell and CMake: #. Of a block of comment lines it changes only the
paragraphs (list items, entries of a list with aligned columns) that have a line that is too wide. Formulas, drawings and
tables, that is lines that begin with four spaces or more or have several columns, stay; those that are too wide are
printed, and are to be changed by hand. Python, shell and CMake code behind which a comment is too wide gets it above.
"""
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

WIDTH = 110
CPP = (".cpp", ".hpp", ".cu", ".cuh")
HASH = (".py", ".sh", ".cmake", ".txt")
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|'
                   r"(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def is_cpp(path):
    return path.suffix in CPP


def comment_starts(path, text):
    """{line number from 0: column at which its comment begins}"""
    found = {}
    if is_cpp(path):
        for m in TOKEN.finditer(text):
            if m[0].startswith("//"):
                found[text.count("\n", 0, m.start())] = m.start() - (text.rfind("\n", 0, m.start()) + 1)
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                found[token.start[0] - 1] = token.start[1]
    else:
        heredoc = None
        for number, line in enumerate(text.split("\n")):
            if heredoc is not None:
                if line.strip() == heredoc:
                    heredoc = None
                continue
            if m := re.match(r"(\s*)#", line):
                found[number] = len(m[1])
            elif (m := re.search(r"(?<=\s)# ", line)) and not quoted(line[:m.start()]):
                found[number] = m.start()
            if path.suffix != ".txt" and (m := re.search(r"<<-?\s*(['\"]?)([A-Z]+)\1", line)) and number not in found:
                heredoc = m[2]
    if text.startswith("#!"):
        found.pop(0, None)
    return found


def quoted(before):
    return before.count('"') % 2 or before.count("'") % 2


def wide(path, text):
    lines = text.split("\n")
    return [number for number in comment_starts(path, text) if len(lines[number]) > WIDTH]


def words_of(text):
    """Words that are wrapped as one: a line must not begin as a list does, nor end in a backslash."""
    words = []
    for word in glued(text.split()):
        if words and (re.fullmatch(r"[-*+=<>|&/^~!?:;,.)\]}•·×≤≥≠∈→]+|[-−]>|\d+[.)]|#.*|==|\|\|", word) or words[-1].endswith("\\")):
            words[-1] += " " + word
        elif words and re.fullmatch(r"[-+=<>*/×·≤≥≠∈^|]+|\|\||<=|>=|==", words[-1].split(" ")[-1]):
            words[-1] += " " + word
        else:
            words.append(word)
    return words


def glued(words):
    """What is short and between brackets of an index or a call, or between backticks, is one word."""
    out = []
    for word in words:
        if out and (open_index(out[-1]) or out[-1].count("`") % 2) and len(out[-1]) < 40:
            out[-1] += " " + word
        else:
            out.append(word)
    return out


def open_index(word):
    depth = 0
    for at, c in enumerate(word):
        call = c in "[" or c == "(" and at and (word[at - 1].isalnum() or word[at - 1] in "_(") or c == "(" and depth
        depth += 1 if call else -1 if c in ")]" and depth else 0
    return depth > 0


def filled(text, first, rest, width):
    """The text as lines of at most `width`, which begin with these."""
    lines, line, empty = [], first, True
    for word in words_of(text):
        if not empty and len(line) + 1 + len(word) > width:
            lines.append(line)
            line, empty = rest, True
        line += ("" if empty else " ") + word
        empty = False
    return lines + [line]


ITEM = re.compile(r"( *)([-*•]|\d+[.)]|\([a-z0-9]\)) +(?=\S)")
DEFINITION = re.compile(r"( *)(\S+(?: \S+)*?)( {2,})(?=\S)")
DRAWING = re.compile(r"[│┌└─├┐┘┬┴┼]|\+--|--\+| \|  |\|  | \| .* \| |\.\.  ")


def indent_of(text):
    return len(text) - len(text.lstrip(" "))


class Unit:
    """Lines that are filled together. hang: the column at which lines after the first begin."""

    def __init__(self, line, hang, fixed=False):
        self.lines, self.hang, self.fixed = [line], hang, fixed


def units(texts):
    """The texts of a block, without markers, as units."""
    found, base = [], min((indent_of(t) for t in texts if t.strip()), default=0)
    base = min(base, 1)
    widest = max(map(len, texts))
    for text in texts:
        last = found[-1] if found else None
        indent = indent_of(text)
        if not text.strip():
            found.append(Unit(text, 0, True))
            continue
        columns = len(re.findall(r"(?<=\S) {2,}(?=\S)", re.sub(r"(?<=[.!?]) {2}(?=[A-Z])", " ", text)))
        drawing = DRAWING.search(text) and (indent - base >= 4 or columns > 1)
        item = ITEM.match(text)
        definition = DEFINITION.match(text) if columns >= 1 and not drawing else None
        if definition and columns > 1:  # the last column is that which is filled
            at = [m.end() for m in re.finditer(r"(?<=\S) {2,}(?=\S)", text)][-1]
        elif definition:
            at = definition.end()
        continues = (last and not last.fixed and last.lines and indent == last.hang and not item and columns == 0
                     and last.lines[-1].strip())
        if drawing:
            found.append(Unit(text, 0, True))
        elif continues and not broken_on_purpose(last.lines[-1], text, widest):
            last.lines.append(text)
        elif item:
            found.append(Unit(text, item.end()))
        elif definition and (indent - base >= 4 and columns > 1 or at > WIDTH - 45):
            found.append(Unit(text, 0, True))
        elif definition:
            found.append(Unit(text, at))
        elif indent - base >= 4:
            found.append(Unit(text, 0, True))
        else:
            found.append(Unit(text, indent))
    return found


def broken_on_purpose(line, following, widest):
    first = words_of(following.strip())[0]
    return len(line) + 1 + len(first) < min(widest, WIDTH) - 24


def wrapped_block(prefix, texts):
    """The block's lines; prefix: indentation and marker."""
    out = []
    for unit in units(texts):
        width = WIDTH - len(prefix)
        if unit.fixed or max(map(len, unit.lines)) <= width:
            out += unit.lines
            continue
        first = unit.lines[0]
        start = unit.hang if len(unit.lines) and re.match(r"\s*\S", first[:unit.hang]) else indent_of(first)
        head, body = first[:start], first[start:]
        text = " ".join([body.strip(), *(line.strip() for line in unit.lines[1:])])
        lines = filled(text, head, " " * unit.hang, width)
        for narrower in range(width - 1, width - 30, -1):  # no single word on the last line
            if len(lines) == 1 or len(lines[-1].strip()) >= 24:
                break
            again = filled(text, head, " " * unit.hang, narrower)
            if len(again) > len(lines):
                break
            lines = again if len(again[-1].strip()) >= 24 else lines
        out += lines
    return [(prefix + text).rstrip() for text in out]


def wrapped(path, text):
    lines, starts = text.split("\n"), comment_starts(path, text)
    out, number = [], 0
    marker = r"//[/!]?<?" if is_cpp(path) else r"#+:?"
    while number < len(lines):
        line = lines[number]
        if number not in starts:
            out.append(line)
            number += 1
            continue
        column = starts[number]
        kind = re.match(marker, line[column:])[0]
        if line[:column].strip():  # behind code, and the lines that continue it
            end = number + 1
            while end < len(lines) and starts.get(end) == column and not lines[end][:column].strip():
                end += 1
            block = [lines[i][column + len(re.match(marker, lines[i][column:])[0]):] for i in range(number, end)]
            if max(len(lines[i]) for i in range(number, end)) <= WIDTH:
                out += lines[number:end]
            else:
                indent = line[:len(line) - len(line.lstrip(" "))]
                above = wrapped_block(indent + kind.replace("<", ""), [" " + " ".join(t.strip() for t in block)])
                at = len(out)  # above the line, or above the statement of which it is the last line
                if re.match(r"\s*[\w]+;\s*$", line[:column]) and is_cpp(path) and out and not out[-1].rstrip().endswith((";", "{", "}", ",")):
                    at -= 1
                    indent = out[at][:len(out[at]) - len(out[at].lstrip(" "))]
                    above = wrapped_block(indent + kind.replace("<", ""), [" " + " ".join(t.strip() for t in block)])
                out[at:at] = above
                out.append(line[:column].rstrip())
            number = end
            continue
        end = number + 1
        while end < len(lines) and starts.get(end) == column and not lines[end][:column].strip() and \
                re.match(marker, lines[end][column:])[0] == kind:
            end += 1
        block = lines[number:end]
        block = [re.sub(r"-{20,}$", lambda m: "-" * max(20, WIDTH - m.start()) if m.end() > WIDTH else m[0], entry) for entry in block]
        if max(map(len, block)) > WIDTH:
            block = wrapped_block(line[:column] + kind, [entry[column + len(kind):] for entry in block])
        out += block
        number = end
    return "\n".join(out)


def code_of(path, text):
    """What must not change: the tokens without comments."""
    if is_cpp(path):
        code = TOKEN.sub(lambda m: " " if m[0].startswith("//") else m[0], text)
        return TOKEN.sub(lambda m: m[0] if not m[0].startswith("/") else " ", code).split()
    if path.suffix == ".py":
        return [(t.type, t.string) for t in tokenize.generate_tokens(io.StringIO(text).readline)
                if t.type not in (tokenize.COMMENT, tokenize.NL)]
    starts, lines = comment_starts(path, text), text.split("\n")
    code = [line[:starts[i]].rstrip() if i in starts else line for i, line in enumerate(lines)]
    return [line for i, line in enumerate(code) if line or i not in starts]


def words_of_comments(path, text):
    starts = comment_starts(path, text)
    return sorted(w for i, line in enumerate(text.split("\n")) if i in starts
                  for w in re.sub(r"-{20,}$", "", re.sub(r"^(//[/!]?<?|#+:?)", "", line[starts[i]:])).split())


def files_of(root, paths):
    names = subprocess.run(["git", "ls-files", *paths], cwd=root, text=True, capture_output=True, check=True).stdout.split("\n")
    for name in filter(None, names):
        path = root / name
        if path.suffix in CPP + (".py", ".sh", ".cmake") or path.name == "CMakeLists.txt" or name == ".ci/run":
            yield path


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    root, *paths = [a for a in arguments if a != "--check"]
    root, changed, left = Path(root).resolve(), [], 0
    for path in files_of(root, paths):
        text = path.read_text("utf-8")
        new = text if check else wrapped(path, text)
        if new != text:
            if code_of(path, new) != code_of(path, text) or words_of_comments(path, new) != words_of_comments(path, text):
                sys.exit(f"{path}: more than the wrapping of comments would change: left as it is")
            path.write_text(new, "utf-8")
            if is_cpp(path):
                subprocess.run(["clang-format-14", "-i", path], check=True, cwd=root)
                new = path.read_text("utf-8")
                if code_of(path, new) != code_of(path, text):
                    sys.exit(f"{path}: clang-format changed more than comments")
            changed.append(path)
        for number in wide(path, new):
            left += 1
            print(f"{path.relative_to(root)}:{number + 1}: {len(new.splitlines()[number])} columns: {new.splitlines()[number].strip()}")
    print(f"{len(changed)} files changed, {left} comments are too wide", file=sys.stderr)


main()
