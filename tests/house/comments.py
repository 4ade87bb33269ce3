"""Where comments stand in sources, and how wide they are: C++, CUDA, Python, shell and CMake."""
import io
import re
import tokenize
from pathlib import Path

from house import rules

MOST_COLUMNS = 110
SCRIPTS = (".py", ".sh", ".cmake")


def commented_lines(path, text):
    """The numbers, from 1, of the lines that have a comment, or end with one."""
    if path.suffix in rules.SOURCES:
        return [rules.line_of(text, m.start()) for m in rules.TOKEN.finditer(text) if m[0].startswith("//")]
    if path.suffix == ".py":
        return [token.start[0] for token in tokenize.generate_tokens(io.StringIO(text).readline)
                if token.type == tokenize.COMMENT]
    lines = enumerate(text.split("\n"), 1)
    return [number for number, line in lines if re.match(r"\s*#(?!!)", line) or re.search(r"\s# [^\"']*$", line)]


def wide_comments(root, folders=(*rules.FOLDERS, ".ci")):
    """FILE:LINE of every comment that ends behind column MOST_COLUMNS; docstrings are not comments."""
    root, found = Path(root), []
    files = [*root.glob("*.txt"), *(path for folder in folders for path in sorted((root / folder).rglob("*")))]
    for path in files:
        if path.suffix in (*rules.SOURCES, *SCRIPTS) or path.name == "CMakeLists.txt" or path.parent.name == ".ci":
            text = path.read_text("utf-8")
            lines = text.split("\n")
            found += [f"{path.relative_to(root).as_posix()}:{number}" for number in commented_lines(path, text)
                      if len(lines[number - 1]) > MOST_COLUMNS]
    return found
