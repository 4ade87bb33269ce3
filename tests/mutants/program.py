"""Programs with a mutation: one source, mutated and compiled, linked with the tests that may notice it.

The mutated object comes before the tests and the libraries, so that the linker takes the original neither from these nor, of a
header, from the tests' inline functions. A library compiles the sources of a folder as one file (a unity build), which would
bring the original back: the other sources of that file are therefore compiled one by one, once for all mutants, and linked, too.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GROUPS = ("emulation", ["cuda/emulation"]), ("kernels", ["cuda"]), ("library", ["reference", "proofs", "traces", "sim"])


def group_of(file):
    """The group of tests (CMakeLists.txt) that notices the mutants of a file."""
    return next(group for group, folders in GROUPS if any(Path(file).is_relative_to(folder) for folder in folders))


def source_of(mutant):
    """The source that is compiled for it."""
    return mutant.get("compiled_in", mutant["file"])


class Programs:
    def __init__(self, cmake, build):
        self.build_folder = build
        self.folder = build / "tests" / "mutants"
        self.run([cmake, "--build", build, "--target", "mutants"])
        self.commands = {group: self.commands_of(group) for group, _ in GROUPS}
        # not all that lie there: earlier builds left some
        inputs = self.run(["ninja", "-t", "inputs", "mutants"]).splitlines()
        self.unities = [list(map(os.path.normpath, re.findall(r'#include "(.+)"', (build / path).read_text("utf-8"))))
                        for path in inputs if "/Unity/" in path and path.endswith(".cxx")]

    def run(self, command):
        done = subprocess.run(command, cwd=self.build_folder, text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            sys.exit(f"{shlex.join(map(str, command))}\n{done.stdout}\na mutant cannot be built")
        return done.stdout

    def commands_of(self, group):
        """The words that compile begin.cpp and that link the group's program."""
        lines = self.run(["ninja", "-t", "commands", f"tests/mutants/mutants_{group}"]).splitlines()
        compile_line = next(line for line in lines if line.endswith("tests/mutants/begin.cpp") and f"mutants_{group}.dir" in line)
        link_line = next(line for line in reversed(lines) if f"-o tests/mutants/mutants_{group} " in line)
        return shlex.split(compile_line), shlex.split(link_line.removeprefix(": && ").removesuffix(" && :"))

    def unmutated(self, mutant):
        """The group's program without a mutation."""
        return self.folder / f"mutants_{group_of(mutant['file'])}"

    def compile(self, group, source, object_file, *folders):
        """Compiles a source, with these folders first among those that are searched for includes."""
        words = list(self.commands[group][0])
        words[words.index("-c") + 1] = str(source)
        words[words.index("-o") + 1] = str(object_file)
        if "-MF" in words:
            words[words.index("-MF") + 1] = f"{object_file}.d"
        at = next(i for i, word in enumerate(words) if word.startswith("-I"))
        words[at:at] = [f"-I{folder}" for folder in folders]
        object_file.parent.mkdir(parents=True, exist_ok=True)
        self.run([*words[:-2], "-x", "c++", *words[-2:]])

    def beside(self, source):
        """The sources that the library compiles in one file with this one."""
        path = str(ROOT / source)
        return [Path(each).relative_to(ROOT) for unity in self.unities if path in unity for each in unity if each != path]

    def plain_object(self, source):
        return self.folder / "unmutated" / f"{source}.o"

    def beside_any(self, sources):
        return sorted({each for source in sources for each in self.beside(source)})

    def compile_unmutated(self, source):
        self.compile(group_of(source), ROOT / source, self.plain_object(source))

    def build(self, mutant):
        """The path of the mutant's program."""
        folder, group, source = self.folder / mutant["name"], group_of(mutant["file"]), Path(source_of(mutant))
        text = (ROOT / mutant["file"]).read_text("utf-8").replace(mutant["original"], mutant["mutated"])
        copy = folder / "kvbound" / source
        shutil.rmtree(folder / "kvbound", ignore_errors=True)  # of a mutant of this name in another file
        copy.parent.mkdir(parents=True, exist_ok=True)
        include_folders = [ROOT / source.parent]
        if "compiled_in" in mutant:
            # A header in quotes is first looked for in the folder of the file that includes it: so the
            # including source is copied, and the folder of the mutated header is searched first; its other
            # headers are linked there.
            copy.write_bytes((ROOT / source).read_bytes())
            header = folder / "kvbound" / mutant["file"]
            header.parent.mkdir(parents=True, exist_ok=True)
            for sibling in (ROOT / mutant["file"]).parent.glob("*.hpp"):
                header.with_name(sibling.name).symlink_to(sibling)
            header.unlink()
            header.write_text(text, "utf-8")
            include_folders = [folder, *include_folders, (ROOT / mutant["file"]).parent]
        else:
            copy.write_text(text, "utf-8")
        self.compile(group, copy, folder / "mutated.o", *include_folders)
        return self.link(group, folder, [self.plain_object(each) for each in self.beside(source)])

    def link(self, group, folder, objects):
        words = list(self.commands[group][1])
        words[words.index("-o") + 1] = str(folder / "program")
        words.remove(next(word for word in words if word.endswith("begin.cpp.o")))
        killers = next(i for i, word in enumerate(words) if word.endswith("_killers.o"))
        words[killers:killers] = map(str, [folder / "mutated.o", *objects])
        self.run(words)
        return folder / "program"
