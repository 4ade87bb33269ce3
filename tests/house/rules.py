"""The house rules for any tree of C++ sources: which folder may include which, and which constructs may stand where.

Every rule returns its findings as {file: the violations}; files are paths below the tree's root, with slashes.
"""
import re
from collections import defaultdict
from pathlib import Path, PurePosixPath

SOURCES = (".hpp", ".cpp", ".cu", ".cuh")
FOLDERS = ("reference", "cuda", "traces", "proofs", "sim", "tests")
MOST_STEMS = 30
# sim/CMakeLists.txt, page_files.cmake and revision.cmake write them
GENERATED = {"embedded.hpp", "page_files.hpp", "revision.hpp"}

# A folder may include itself and the folders before it in its list; "." is the top folder itself.
ORDER = {
    "reference": ["core", "numerics", ".", "eviction", "merging", "session", "bounds"],
    "cuda": ["support", "emulation", "counting", "primitives", "native", "roofline", ".", "window", "eviction", "merging", "session"],
    "traces": [".", "flashinfer", "models"],
    "proofs": ["oracle", "engine", "theorems"],
    "sim": ["options", "figures", "measure", "diff/claims", "diff/judge", "diff/replay", "diff/floor", "diff", "check", "replay", "study", "evaluate", "roofline", "bench", "report", "report/page", "sweep", "cli", "cli/prove", "python/bindings"],
}
# The other top folders that it may also include; tests may include everything.
USES = {
    "reference": [],
    "cuda": ["reference/core"],
    "cuda/support": ["reference/core", "reference/numerics"],
    "cuda/session": ["reference/core", "reference/numerics"],
    "traces": ["reference/core"],
    "traces/models": ["reference/core", "reference/numerics"],
    "proofs": ["reference"],
    "sim": ["reference", "cuda", "traces"],
    # only the program uses proofs, which need rapidcheck
    "sim/cli/prove": ["reference", "cuda", "traces", "proofs"],
}


class Tree:
    """A tree's sources, with comments and the text of literals blanked out, and their includes."""

    def __init__(self, root):
        self.root = Path(root)
        self.files = sorted(path.relative_to(self.root).as_posix() for folder in FOLDERS
                            for path in (self.root / folder).rglob("*") if path.suffix in SOURCES)
        self.code = {file: code_of((self.root / file).read_text("utf-8")) for file in self.files}
        known = set(self.files)
        self.includes = {}  # file -> the files that it includes
        self.unresolved = defaultdict(list)
        for file in self.files:
            self.includes[file] = []
            for quote, name in includes_of((self.root / file).read_text("utf-8")):
                target = self.target(file, quote, name, known)
                if target:
                    self.includes[file].append(target)
                elif target is None:
                    self.unresolved[file].append(name)

    @staticmethod
    def target(file, quote, name, known):
        """The included file; None if it does not exist; "" if it is not a file of this tree."""
        if quote == "<" and not name.startswith("kvbound/"):
            return ""
        places = [name.removeprefix("kvbound/")] if quote == "<" else [
            normal(f"{PurePosixPath(file).parent}/{name}"), f"tests/{name}"]
        return next((place for place in places if place in known), "" if name in GENERATED else None)


def normal(path):
    parts = []
    for part in path.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def includes_of(text):
    return re.findall(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', text, re.MULTILINE)


TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|'
                   r"(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def code_of(text):
    """The text with comments and literals blanked out; every line keeps its length."""
    def blank(match):
        kept = "".join(c if c == "\n" else " " for c in match[0])
        return kept if match[0].startswith("/") else '"' + kept[1:-1] + '"'
    return TOKEN.sub(blank, text)


def folder_of(file):
    return str(PurePosixPath(file).parent)


def line_of(code, index):
    return code.count("\n", 0, index) + 1


def unresolved_includes(tree):
    return {file: "includes what is not there: " + ", ".join(names) for file, names in tree.unresolved.items()}


def place_of(folder):
    """The top folder and the folder in it; "." for the top folder itself."""
    top, _, below = folder.partition("/")
    return top, below or "."


def may_include(folder, other):
    """Whether a file of `folder` may include a file of `other`; None if a folder is missing from ORDER."""
    top, below = place_of(folder)
    other_top, other_below = place_of(other)
    if top == "tests":
        return True
    order = ORDER.get(top, [])
    if below not in order:
        return None
    if top == other_top:
        return order.index(other_below) <= order.index(below) if other_below in order else None
    return any(other == used or other.startswith(used + "/") for used in USES.get(folder, USES[top]))


def includes_upwards(tree):
    found = defaultdict(list)
    for file, targets in tree.includes.items():
        if may_include(folder_of(file), folder_of(file)) is None:
            found[file].append(f"{folder_of(file)} has no place in the order of folders")
            continue
        for target in targets:
            if not may_include(folder_of(file), folder_of(target)):
                found[file].append(f"{folder_of(file)} must not include {target}")
    return {file: "; ".join(what) for file, what in found.items()}


def public_headers(tree):
    """The headers that the top folders' CMakeLists.txt have installed."""
    return {normal(f"{top}/{folder}/{stem}.hpp") for top in FOLDERS if (tree.root / top / "CMakeLists.txt").exists()
            for folder, stems in re.findall(r"^kvbound_public_headers\((\S+)\s+([^)]*)\)",
                                            (tree.root / top / "CMakeLists.txt").read_text("utf-8"), re.MULTILINE)
            for stem in stems.split()}


def private_includes(tree):
    """Headers that are installed and include one that is not."""
    public = public_headers(tree)
    private = {file: [target for target in tree.includes.get(file, ()) if target not in public] for file in public}
    return {file: "is public and includes " + ", ".join(names) for file, names in private.items() if names}


def cycles(graph):
    """The sets of two nodes and more that reach each other (Tarjan's algorithm, without recursion)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for start in sorted(graph):
        work = [(start, iter(sorted(graph[start])))] if start not in index else []
        if work:
            index[start] = low[start] = len(index)
            stack.append(start)
            on_stack.add(start)
        while work:
            node, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members = stack[stack.index(node):]
                    del stack[stack.index(node):]
                    on_stack.difference_update(members)
                    if len(members) > 1:
                        found.append(sorted(members))
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(sorted(graph.get(following, ())))))
            elif following in on_stack:
                low[node] = min(low[node], index[following])
    return found


def folder_cycles(tree):
    graph = defaultdict(set)
    for file, targets in tree.includes.items():
        for target in targets:
            if folder_of(file) != folder_of(target):
                graph[folder_of(file)].add(folder_of(target))
    return {members[0]: "these include each other: " + ", ".join(members) for members in cycles(graph)}


def header_cycles(tree):
    graph = {file: {target for target in targets if target != file} for file, targets in tree.includes.items()}
    found = {members[0]: "these include each other: " + ", ".join(members) for members in cycles(graph)}
    return found | {file: "includes itself" for file, targets in tree.includes.items() if file in targets}


def crowded_folders(tree):
    stems = defaultdict(set)
    for file in tree.files:
        stems[folder_of(file)].add(PurePosixPath(file).stem)
    return {folder: f"has {len(names)} stems; {MOST_STEMS} are the most" for folder, names in stems.items()
            if len(names) > MOST_STEMS}


def matches(tree, pattern, allowed):
    """Where a pattern occurs outside tests and the files for which allowed(file) holds."""
    found = {}
    for file in tree.files:
        if file.startswith("tests/") or allowed(file):
            continue
        lines = [line_of(tree.code[file], match.start()) for match in re.finditer(pattern, tree.code[file])]
        if lines:
            found[file] = "line " + ", ".join(map(str, lines))
    return found


def vector_lanes(tree):
    """Loops over vector registers (reference/numerics/instruction_set.hpp) outside reference/numerics."""
    return matches(tree, r"\brun_at\s*\(|\bvector_size\b|\bLanes\s*<",
                   lambda file: file.startswith("reference/numerics/"))


def hosts(tree):
    """The alternatives of the variant Host, as reference/core/policy.hpp has them."""
    variant = re.search(r"\busing\s+Host\s*=\s*std::variant<([^>]*)>", tree.code.get("reference/core/policy.hpp", ""))
    return [name.strip() for name in variant[1].split(",")] if variant else []


def host_questions(tree):
    """Tests for a certain host outside reference/core: other folders must use the properties in host_rules.hpp."""
    names = "|".join(hosts(tree))
    if not names:
        return {"reference/core/policy.hpp": "has no variant Host, or not where it was"}
    return matches(tree, rf"\b(?:holds_alternative|get|get_if)\s*<\s*(?:const\s+)?(?:\w+::)*(?:{names})\s*>",
                   lambda file: file.startswith("reference/core/"))


def enums(tree):
    """The names of all scoped enums, and the enumerators of all others."""
    scoped, enumerators = set(), set()
    for code in tree.code.values():
        for match in re.finditer(r"\benum\s+(class\s+|struct\s+)?(\w+)?\s*(?::\s*[\w:\s]+)?\{([^}]*)\}", code):
            if match[2]:
                scoped.add(match[2])
            if not match[1]:
                enumerators.update(re.findall(r"(?:^|,)\s*(\w+)", match[3]))
    return scoped, enumerators


def closing(code, opening):
    """Where the brace that opens at `opening` closes."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.start()
    return len(code)


def defaults_in(code, scoped, enumerators):
    """The line numbers of every `default:` in a switch over one of these enums."""
    blocks = []
    for match in re.finditer(r"\bswitch\s*\(", code):
        depth, end = 0, match.end() - 1
        for bracket in re.compile(r"[()]").finditer(code, end):
            depth += 1 if bracket[0] == "(" else -1
            if depth == 0:
                end = bracket.end()
                break
        opening = code.find("{", end)
        if opening >= 0:
            blocks.append((opening, closing(code, opening)))
    found = []
    for opening, end in blocks:
        inner = [block for block in blocks if opening < block[0] < end]

        def own(match):
            return not any(first < match.start() < last for first, last in inner)
        body = code[:end]
        labels = [match[1] for match in re.compile(r"\bcase\s+(\w+(?:::\w+)*)\s*:(?!:)").finditer(body, opening)
                  if own(match)]
        ours = any((label.split("::")[-2] in scoped) if "::" in label else label in enumerators for label in labels)
        if ours:
            found += [line_of(code, match.start()) for match in re.compile(r"\bdefault\s*:").finditer(body, opening)
                      if own(match)]
    return found


def defaults(tree):
    """Switches over an enum of the tree that have a default: the compiler would not report a missing enumerator."""
    scoped, enumerators = enums(tree)
    found = {}
    for file in tree.files:
        lines = defaults_in(tree.code[file], scoped, enumerators)
        if lines:
            found[file] = "line " + ", ".join(map(str, lines))
    return found


def outline(code, opening):
    """What a brace's block declares: its text, every block inside reduced to {}."""
    end, parts, index = closing(code, opening), [], opening + 1
    while (inner := code.find("{", index, end)) >= 0:
        parts.append(code[index:inner] + "{};")
        index = closing(code, inner) + 1
    return "".join(parts) + code[index:end]


def unnamed(code):
    """What a file's unnamed namespaces define: "struct Name", "kName", "name(int64_t, Type)": a call cannot tell
    Type from const Type&."""
    names = set()
    for match in re.finditer(r"^namespace\s*\{", code, re.MULTILINE):
        declared = re.sub(r"^[ \t]*#[^\n]*", "", outline(code, match.end() - 1), flags=re.MULTILINE)
        for part in (" ".join(part.split()) for part in declared.split(";")):
            if kind := re.match(r"(?:template ?<.*?> ?)?(?:struct|class|enum(?: class)?) (\w+)", part):
                names.add("struct " + kind[1])
            elif function := re.match(r"[^=(]*?\b(\w+) ?\((.*)\)[^)]*\{\}$", part):
                types = [re.sub(r"(?<=[\w>&*])( ?)(?<=[ &*])[a-z]\w*( ?=.*)?$", "", p.strip()).strip()
                         for p in function[2].split(",")]
                types = [re.sub(r"^const (.*[^*])&$", r"\1", p) for p in types]
                names.add(f"{function[1]}({', '.join(types)})")
            elif constant := re.match(r"(?:inline |static |thread_local |const |constexpr )+[^=({]*?\b(\w+) ?(?:\[\w*\] ?)?[={(]", part):
                names.add(constant[1])
    return names


def repeated_names(tree):
    """Names that two files of a folder define in unnamed namespaces: a unity build compiles a folder as one file."""
    files = defaultdict(lambda: defaultdict(list))
    for file in tree.files:
        if file.endswith(".cpp") and not file.startswith(("cuda/", "tests/")):
            for name in unnamed(tree.code[file]):
                files[folder_of(file)][name].append(file)
    return {folder: "; ".join(f"{name} is in {', '.join(where)}" for name, where in sorted(names.items()) if len(where) > 1)
            for folder, names in files.items() if any(len(where) > 1 for where in names.values())}


RULES = [unresolved_includes, includes_upwards, private_includes, folder_cycles, header_cycles, crowded_folders, vector_lanes,
         host_questions, defaults, repeated_names]


def complaints(tree, allowances):
    """All findings that are not allowed, and all allowances that have become unnecessary.

    allowances  {name of a rule: files whose findings are tolerated}
    """
    said = []
    for rule in RULES:
        found, allowed = rule(tree), set(allowances.get(rule.__name__, ()))
        said += [f"{rule.__name__}: {file}: {found[file]}" for file in sorted(found.keys() - allowed)]
        said += [f"{rule.__name__}: {file}: is no longer found; take it off the allowances"
                 for file in sorted(allowed - found.keys())]
    unknown = allowances.keys() - {rule.__name__ for rule in RULES}
    return said + [f"{name}: there is no such rule" for name in sorted(unknown)]
