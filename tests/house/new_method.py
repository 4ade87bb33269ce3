#!/usr/bin/python3
"""Writes the stubs of a new method, and prints what they leave to a person.

usage: new_method.py KIND NAME [ROOT]

KIND  host, score, selection, allocation, merge; key: of a merged entry
NAME  as in a policy's text, for example my-kv: names files my_kv, a type MyKv
ROOT  the checkout that is changed; by default this one

Every stub in C++ begins with an #error that says what is missing, in the words of reference/README.md, "Add a method": the
compiler names the places one by one. Those of that list which no compiler sees are printed.
"""
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the folder of `house`
from house.method_places import alternatives_added, recipe, stubs_added

SECTIONS = {"host": "A host", "score": "A score", "selection": "A selection", "allocation": "An allocation",
            "merge": "A merging method", "key": "A merging key"}
SUFFIXES = (".hpp", ".cuh", ".cpp", ".cu")

HEADER = """// {type}: WHAT IT DOES, in a line.
#pragma once

#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {{

{error}
/// WHAT IT RETURNS, in a sentence.
///
///     FORMULA
///
/// ARGUMENT  [SHAPE]
/// returns   [SHAPE], UNIT; WHAT IT IS FOR NO ENTRIES
/// throws    ShapeMismatch; NonFinite
/// source    AUTHORS OR PAPER (arXiv:NUMBER), section

}}  // namespace kvbound::reference
"""
SOURCE = """#include "{stem}.hpp"

namespace kvbound::reference {{}}
"""
TEST = """#include <gtest/gtest.h>

#include <kvbound/reference/{folder}/{stem}.hpp>

{error}
"""
THEOREMS = """// What {type} claims: {stem}.md.
#include "catalogue.hpp"

namespace kvbound::proofs {{

{error}
std::vector<Theorem> {stem}_theorems() {{ return {{}}; }}

}}  // namespace kvbound::proofs
"""
DESCRIPTION = """{error}
Component describe({type}&) {{ return {{"{name}", "", {{}}}}; }}

"""


class Stubs:
    """What is written: files' texts in memory, until all of it is known to fit."""

    def __init__(self, root, kind, name):
        self.root, self.kind, self.name, self.stem = Path(root), kind, name, name.replace("-", "_")
        self.type = "".join(word.capitalize() for word in name.split("-"))
        readme = (self.root / "reference/README.md").read_text("utf-8")
        self.rows = recipe(readme, SECTIONS[kind]) + (recipe(readme, "Every method") if kind != "key" else [])
        self.texts = {path.relative_to(self.root).as_posix(): path.read_text("utf-8")
                      for folder in ("reference", "cuda", "traces", "sim", "proofs") for path in (self.root / folder).rglob("*")
                      if path.suffix in SUFFIXES}
        self.written, self.places = {}, []

    def error(self, file, what):
        self.places.append((file, what))
        return f'#error "{self.name}: {what}"'

    def wanted(self, file, function=""):
        """What the list says of a file, or of a function in it."""
        file = file.replace(self.stem, "my_kv")
        said = [what for files, what in self.rows if f"`{file}`" in files and function.split("::")[-1] in what]
        if not said:
            sys.exit(f"reference/README.md, \"Add a method\", does not list {file}: {function}")
        what = re.sub(r" ●|[`\\\"]|\[([^]]*)\]\([^)]*\)", lambda m: m[1] or "", said[0]).replace("MyKv", self.type)
        return what if not function or what.startswith(f"{function}:") else f"{function}; {what}"

    def text(self, file):
        if file not in self.texts:
            self.texts[file] = (self.root / file).read_text("utf-8")
        return self.texts[file]

    def changed(self, file, pattern, replacement):
        new, count = re.subn(pattern, lambda _: replacement, self.text(file), count=1, flags=re.MULTILINE)
        if not count:
            sys.exit(f"{file}: has no place for {self.name}: {pattern}")
        self.texts[file] = new

    def stem_listed(self, file, call):
        """Adds the stem to a list of stems, in its order."""
        text = self.text(file)
        begin = text.index(call) + len(call)
        end = text.index(")", begin)
        at = next((m.start() for m in re.finditer(r"\w+", text[begin:end]) if m[0] > self.stem), None)
        self.texts[file] = (f"{text[:end]} {self.stem}{text[end:]}" if at is None else
                            f"{text[:begin + at]}{self.stem} {text[begin + at:]}")

    def new_file(self, file, template, what=None, **more):
        if (self.root / file).exists():
            sys.exit(f"{file}: is there already")
        error = self.error(file, what) if what else ""
        self.texts[file] = template.format(type=self.type, stem=self.stem, name=self.name, error=error, **more)

    def make(self):
        names = {"MergedKey": self.stem} if self.kind == "key" else {self.kind.capitalize(): self.type}
        if self.kind == "score":
            names["Change"] = self.stem
        before = dict(self.texts)
        alternatives_added(self.texts, names, names)
        sections = [SECTIONS[self.kind]] + (["Every method"] if self.kind != "key" else [])
        stubs_added(self.texts, sections, names, self.stub)
        if self.kind != "key":
            self.make_method()
        self.written = {file: text for file, text in self.texts.items() if before.get(file) != text}

    def stub(self, file, function, code):
        if function == "describe":  # a declaration, of which nothing is left to do
            return code
        return f"{self.error(file, self.wanted(file, function))}\n{code}"

    def make_method(self):
        folder, stem = "merging" if self.kind == "merge" else "eviction", self.stem
        if self.kind != "score":  # whose formula is in table_2
            self.new_file(f"reference/{folder}/{stem}.hpp", HEADER, self.wanted("reference/eviction/my_kv.hpp"))
            self.new_file(f"reference/{folder}/{stem}.cpp", SOURCE)
            self.stem_listed("reference/CMakeLists.txt", f"kvbound_folder(reference {folder}")
            test = "tests/reference/eviction/my_kv_test.cpp"
            self.new_file(test.replace("eviction/my_kv", f"{folder}/{stem}"), TEST, self.wanted(test), folder=folder)
            self.stem_listed("tests/CMakeLists.txt", f"kvbound_test_sources(reference_test reference/{folder}")
        description = DESCRIPTION.format(error=self.error("sim/options/component.cpp", self.wanted("sim/options/component.cpp")),
                                         type=self.type, name=self.name)
        first = {"Host": "SnapKv", "Score": "AttentionScore", "Selection": "TopK", "Allocation": "Uniform", "Merge": "NoMerge"}
        before = f"Component describe({first[self.kind.capitalize()]}&"
        self.changed("sim/options/component.cpp", rf"^{re.escape(before)}", description + before)
        self.new_file(f"proofs/theorems/{stem}.cpp", THEOREMS, self.wanted("proofs/theorems/my_kv.cpp"))
        self.new_file(f"proofs/{stem}.md", "# {type}\n\nWhat {type} claims, with proofs.\n")
        self.stem_listed("proofs/CMakeLists.txt", "kvbound_folder(proofs theorems")
        self.changed("proofs/theorems/catalogue.hpp", r"\n}  // namespace", f"std::vector<Theorem> {stem}_theorems();\n\n}}  // namespace")
        self.changed("proofs/theorems/catalogue.cpp", r"^    return result;",
                     f'    add("{stem}.md", {{{stem}_theorems()}});\n    return result;')

    def left(self):
        """The rows of the list of which no file has a stub."""
        touched = {file.replace(self.stem, "my_kv").replace("merging/my_kv", "eviction/my_kv") for file in self.written}
        if self.kind == "score":
            touched |= {"reference/eviction/my_kv.hpp", "reference/CMakeLists.txt"}
        return [(files, what) for files, what in self.rows
                if not any(file in touched for file in re.findall(r"`([\w./]+\.\w+)`", files))]

    def write(self):
        for file, text in self.written.items():
            path = self.root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")


def main(kind, name, root=Path(__file__).resolve().parent.parent.parent):
    if kind not in SECTIONS or not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        sys.exit(f"new_method.py: KIND is one of {', '.join(SECTIONS)}; NAME is words of small letters and digits joined by '-'")
    stubs = Stubs(root, kind, name)
    stubs.make()
    stubs.write()
    print(f"{kind} {name}: {len(stubs.places)} places at which the compiler stops:\n")
    for file, what in stubs.places:
        print(f"  {file}: {what}")
    print("\nWhat no compiler names (reference/README.md, \"Add a method\"):\n")
    for files, what in stubs.left():
        print(f"  {files.replace('`', '')}: {what}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
