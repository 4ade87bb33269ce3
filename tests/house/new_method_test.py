"""The compiler stops at every place that a new method has to fill in, and reference/README.md lists these places.

usage: new_method_test.py COMPILER [OPTION...]      how C++ is compiled, without -c and -o

In a copy of the sources, core gets a new alternative of every component, a new Change and a new MergedKey, and every
place of FILLERS gets the least code that makes the copy compile. Then
- the copy compiles without a warning: no other place needs a change;
- without the fillers of one function, the compiler's errors name its file, the function and the new alternative;
- the rows of "Add a method" that are marked with a dot are the places of FILLERS.
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("reference", "cuda", "traces", "proofs", "sim")
SUFFIXES = (".hpp", ".cuh", ".cpp", ".cu")
COMPILER = []
PRECOMPILED = ("algorithm", "cmath", "functional", "map", "memory", "numeric", "span", "string", "variant", "vector",
               "boost/multiprecision/mpfr.hpp")

STRUCT = "struct {0} {{\n  friend bool operator==(const {0}&, const {0}&) = default;\n}};\nusing {1} = std::variant<{0}, "
ALTERNATIVES = {"Host": "NewHost", "Score": "NewScore", "Selection": "NewSelection", "Allocation": "NewAllocation",
                "Merge": "NewMerge"}
ENUMERATORS = {"Change": "new_change", "MergedKey": "new_key"}
NEWCOMER = re.compile("|".join((*ALTERNATIVES.values(), *ENUMERATORS.values())))

# Section of "Add a method" -> (file, function or visitor named in the table, the overload or case that it needs). An
# overload is put before the first existing one that begins like it; a case comes first in the function's first switch.
NEW_CHANGE, NEW_KEY = "case Change::new_change:", "case MergedKey::new_key:"
FILLERS = {
    "Every method": (
        *(("reference/core/session_check.hpp", "require_valid", f"inline void require_valid(const {new}&{more}) {{}}")
          for new, more in (("NewHost", ", int64_t"), ("NewAllocation", ""), ("NewMerge", ""))),
        *(("sim/options/component.hpp", "describe", f"Component describe({new}& component);") for new in ALTERNATIVES.values())),
    "A host": (
        ("reference/core/host_rules.hpp", "host_rules",
         "inline HostRules host_rules(const NewHost&, int64_t, int64_t) { return {}; }"),
        ("reference/session/ranking.cpp", "AttentionScores", "Scores operator()(const NewHost&) const { return {}; }"),
        ("reference/session/prompt_selection.cpp", "top_k",
         "std::vector<std::vector<int64_t>> top_k(const NewHost&) { return {}; }"),
        ("cuda/session/ranking.cpp", "HostRanking", "Ranking operator()(const NewHost&) const { return of_window(); }"),
        ("sim/diff/judge/prompt_errors.cpp", "AttentionScoreErrors", "Matrix operator()(const NewHost&) const { return {}; }")),
    "A score": (
        ("reference/core/score_rules.hpp", "score_rules", "inline ScoreRules score_rules(const NewScore&) { return {}; }"),
        ("reference/eviction/obcache.cpp", "table_2", NEW_CHANGE),
        ("reference/eviction/obcache.cpp", "dominant_term", NEW_CHANGE),
        ("reference/eviction/obcache.cpp", "score_entries",
         NEW_CHANGE + " return score_entries<Change::new_change>(terms, scores);"),
        ("reference/core/score_rules.hpp", "leaves_out_dominant", NEW_CHANGE),
        ("cuda/window/obcache_terms.hpp", "require_scored", NEW_CHANGE),
        ("reference/bounds/obcache_errors.cpp", "judge", NEW_CHANGE),
        ("proofs/oracle/output_change.cpp", "change_vector", NEW_CHANGE),
        ("proofs/theorems/score_bounds.cpp", "terms_of", NEW_CHANGE),
        ("proofs/theorems/score_bounds.cpp", "terms_of_aside", NEW_CHANGE)),
    "A selection": (
        ("reference/core/selection_rules.hpp", "selection_rules",
         "inline SelectionRules selection_rules(const NewSelection&) { return {}; }"),
        ("reference/session/prompt_selection.cpp", "PromptSelection::select", "void select(const NewSelection&) {}"),
        ("cuda/session/prompt_selection.cpp", "select", "void select(const NewSelection&) {}"),
        ("sim/diff/judge/kept_sets.cpp", "by",
         "std::optional<Fault> by(const NewSelection&, const Positions&, const Positions&) const { return {}; }")),
    "An allocation": (
        ("reference/core/allocation_rules.hpp", "allocation_rules",
         "inline AllocationRules allocation_rules(const NewAllocation&) { return {}; }"),
        ("reference/session/head_budgets.cpp", "HeadBudgets",
         "std::vector<int64_t> operator()(const NewAllocation&) const { return {}; }"),
        ("cuda/session/head_budgets.cpp", "HeadBudgets",
         "std::vector<int64_t> operator()(const NewAllocation&) const { return {}; }"),
        ("sim/options/layer_budgets.cpp", "LayerBudgets",
         "std::vector<int64_t> operator()(const NewAllocation&) const { return {}; }"),
        ("sim/diff/judge/allocation.cpp", "AllocationJudge",
         "AllocationJudgement operator()(const NewAllocation&) const { return {}; }")),
    "A merging method": (
        ("reference/core/merge_rules.hpp", "merge_rules", "inline MergeRules merge_rules(const NewMerge&) { return {}; }"),
        ("reference/core/session_check.hpp", "require_composable",
         "inline void require_composable(const NewMerge&, const Policy&) {}"),
        ("reference/session/head_merging.cpp", "ClusterMerging",
         "std::vector<MergedEntry> operator()(const NewMerge&) const { return {}; }"),
        ("cuda/session/cluster_merging.cpp", "Method", "void operator()(const NewMerge&) const {}"),
        ("sim/diff/judge/merged_errors.cpp", "ClusterErrors",
         "reference::MergedEntryErrors operator()(const NewMerge&) const { return {}; }")),
    "A merging key": (
        ("reference/merging/keep_kv.cpp", "keep_kv", NEW_KEY),
        ("cuda/session/cluster_merging.cpp", "by_scores", NEW_KEY),
        ("reference/bounds/merge_cluster_errors.cpp", "derive_key_errors", NEW_KEY),
        ("reference/bounds/merge_errors.cpp", "scaling_error", NEW_KEY),
        ("reference/bounds/merge_errors.cpp", "largest_scale", NEW_KEY),
        ("sim/measure/merge_metrics.cpp", "lossless_key", NEW_KEY),
        ("proofs/oracle/merge_bounds.cpp", "merge_cluster", NEW_KEY)),
}
PLACES = [place for places in FILLERS.values() for place in places]
# A missing definition of an overload that a header declares shows in the source that calls it.
SEEN_BY = {"sim/options/component.hpp": "sim/options/policy.cpp"}


def without(file, function):
    """The macro that, when defined, leaves the function's fillers out."""
    return "without_" + re.sub(r"\W", "_", f"{file}_{function}")


def position(text, function, filler):
    """The position in the file's text where the filler is inserted."""
    if filler.startswith("case "):
        return re.search(rf"\b{function}\([^;{{]*\{{.*?switch \([^\n]*\) \{{\n", text, re.DOTALL).end()
    begin = filler[:NEWCOMER.search(filler).start()]
    return re.search(rf"^ *{re.escape(begin)}", text, re.MULTILINE).start()


def copy_with_newcomers(folder):
    """Copies the sources to folder/kvbound, with the new alternatives and enumerators and with FILLERS."""
    copies = {}
    for path in (path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.suffix in SUFFIXES):
        copies[path.relative_to(ROOT).as_posix()] = path.read_text("utf-8")
    for kind, new in (ALTERNATIVES | ENUMERATORS).items():
        old, text = ((f"using {kind} = std::variant<", STRUCT.format(new, kind)) if kind in ALTERNATIVES else
                     (f"enum class {kind} {{", f"enum class {kind} {{\n  {new},"))
        (header,) = (file for file in copies if file.startswith("reference/core/") and old in copies[file])
        copies[header] = copies[header].replace(old, text)
    for file, function, filler in PLACES:
        at = position(copies[file], function, filler)
        copies[file] = f"{copies[file][:at]}#ifndef {without(file, function)}\n{filler}\n#endif\n{copies[file][at:]}"
    for file, text in copies.items():
        copy = folder / "kvbound" / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, "utf-8")


def includes(folder, path, seen):
    """All files of the copy that a file includes, directly or not, and the file itself."""
    if path not in seen:
        seen.add(path)
        for name in re.findall(r'^#include ["<]([\w./-]+)[">]', path.read_text("utf-8"), re.MULTILINE):
            for found in (path.parent / name, folder / name):
                if found.is_file() and folder in found.parents:
                    includes(folder, found.resolve(), seen)
    return seen


def sources(folder):
    """The files that may need a filler: those that see core/policy.hpp and visit alternatives, count them or switch on
    them."""
    policy = folder / "kvbound" / "reference" / "core" / "policy.hpp"
    return [path for path in sorted((folder / "kvbound").rglob("*")) if path.suffix in SUFFIXES
            if re.search(rf"\bvisit\b|\bvariant_|\bcase [\w:]*\b(?:{'|'.join(ENUMERATORS)})::", path.read_text("utf-8"))
            if policy in includes(folder, path, set())]


def precompile(folder):
    """Precompiles the third-party headers that many sources include, which halves the time of this test."""
    (folder / "precompiled.hpp").write_text("".join(f"#include <{name}>\n" for name in PRECOMPILED), "utf-8")
    subprocess.run([*COMPILER, "-x", "c++-header", "precompiled.hpp", "-o", "precompiled.hpp.gch"], check=True, cwd=folder)


def complaints(folder, file, *options):
    """The compiler's errors for a file, and its warnings about switches that lack a case."""
    run = subprocess.run([*COMPILER, "-fsyntax-only", "-Wswitch", *options, "-I.", "-include", "precompiled.hpp",
                          "-x", "c++", "-include", file, os.devnull],  # a header is compiled in the same way
                         capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, "LC_ALL": "C"})
    return run.stderr


def marked(section):
    """The (file, function) pairs that a dot marks in a section's table; each function of a row with each C++ file of
    the row."""
    text = (ROOT / "reference" / "README.md").read_text("utf-8")
    table = re.search(rf"^### {re.escape(section)}$(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)[1]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("|")]
    return {(file, function) for files, what in rows for file in re.findall(r"`([\w./]+\.[ch]pp)`", files)
            for function in re.findall(r"`([\w:]+)(?:\([^`]*\))?` ●", what)}


class NewMethods(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name).resolve()
        copy_with_newcomers(cls.folder)
        precompile(cls.folder)
        cls.pool = concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()
        cls.scratch.cleanup()

    def test_the_compiler_needs_nothing_but_the_fillers(self):
        files = sources(self.folder)
        places = {self.folder / "kvbound" / SEEN_BY.get(file, file) for file, _, _ in PLACES}
        self.assertLessEqual(places, set(files), "this test does not find all sources any more")
        for file, said in zip(files, self.pool.map(lambda file: complaints(self.folder, file), files)):
            self.assertEqual(said, "", f"{file}: is a place missing in FILLERS?")

    def test_the_compiler_names_every_place_without_its_filler(self):
        def named(place):
            file = SEEN_BY.get(place[0], place[0])
            return complaints(self.folder, self.folder / "kvbound" / file, f"-D{without(*place)}")
        functions = sorted({(file, function) for file, function, _ in PLACES})
        words = dict(zip(functions, self.pool.map(named, functions)))
        for file, function, filler in PLACES:
            newcomer = NEWCOMER.search(filler)[0]
            for what in (f"/kvbound/{file}:", function.split("::")[-1], newcomer):
                self.assertIn(what, words[file, function], f"{file}: the compiler does not ask {function} for {newcomer}")

    def test_the_recipe_marks_the_places_that_the_compiler_names(self):
        for section, places in FILLERS.items():
            with self.subTest(section):
                self.assertEqual(marked(section), {(file, function) for file, function, _ in places})


if __name__ == "__main__":
    COMPILER += sys.argv[1:]
    del sys.argv[1:]
    unittest.main()
