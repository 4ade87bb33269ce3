"""The sources follow the rules of tests/house/rules.py, and each rule finds the violations that it is for.

usage: house_test.py
"""
import functools
import tempfile
import unittest
from pathlib import Path

from house import comments, rules
from house.allowances import ALLOWANCES

ROOT = Path(__file__).resolve().parent.parent.parent
POLICY = {"/reference/core/policy.hpp": "struct SnapKv {};\nstruct H2o {};\nusing Host = std::variant<SnapKv, H2o>;\n"}


@functools.cache
def sources():
    return rules.Tree(ROOT)


def planted(files, rule):
    """The rule's findings in a tree of these files, {path: text}, and of POLICY; paths begin with a slash."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in {**POLICY, **files}.items():
            target = Path(folder + path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
        return {"/" + place: what for place, what in rule(rules.Tree(folder)).items()}


def include(*paths):
    return "".join(f"#include <kvbound{path}>\n" for path in paths)


class House(unittest.TestCase):
    def test_the_sources_keep_the_rules(self):
        self.assertEqual(rules.complaints(sources(), ALLOWANCES), [])

    def test_every_folder_is_seen(self):
        tree = sources()
        self.assertGreater(len(tree.files), 400)
        for folder in rules.FOLDERS:
            self.assertTrue(any(file.startswith(folder + "/") for file in tree.files), folder)
        self.assertGreater(sum(map(len, tree.includes.values())), 1500)

    def test_the_alternatives_of_host_are_found(self):
        self.assertEqual(rules.hosts(sources()), ["SnapKv", "H2o", "Tova", "StreamingLlm", "RandomHost", "Given"])


class Includes(unittest.TestCase):
    def test_upwards(self):
        files = {"/reference/numerics/a.hpp": include("/reference/session/b.hpp"), "/reference/session/b.hpp": ""}
        self.assertEqual(planted(files, rules.includes_upwards).keys(), {"/reference/numerics/a.hpp"})

    def test_upwards_by_a_relative_path(self):
        files = {"/sim/measure/a.cpp": '#include "../diff/b.hpp"\n', "/sim/diff/b.hpp": ""}
        self.assertEqual(planted(files, rules.includes_upwards).keys(), {"/sim/measure/a.cpp"})

    def test_upwards_out_of_the_top_folder_s_own_files(self):
        files = {"/reference/a.cpp": include("/reference/merging/b.hpp"), "/reference/merging/b.hpp": include("/reference/c.hpp"),
                 "/reference/c.hpp": ""}
        self.assertEqual(planted(files, rules.includes_upwards).keys(), {"/reference/a.cpp"})

    def test_downwards_and_beside(self):
        files = {"/sim/cli/prove/a.cpp": include("/proofs/engine/b.hpp", "/sim/diff/c.hpp", "/sim/cli/d.hpp"),
                 "/sim/cli/d.hpp": "", "/proofs/engine/b.hpp": include("/reference/bounds/e.hpp", "/proofs/oracle/f.hpp"),
                 "/proofs/oracle/f.hpp": "", "/reference/bounds/e.hpp": include("/reference/core/policy.hpp"),
                 "/sim/diff/c.hpp": include("/cuda/support/g.hpp", "/traces/h.hpp"), "/cuda/support/g.hpp": "",
                 "/traces/h.hpp": "",
                 "/tests/sim/diff/c_test.cpp": include("/sim/cli/d.hpp", "/proofs/oracle/f.hpp")}
        for rule in (rules.includes_upwards, rules.folder_cycles, rules.header_cycles, rules.unresolved_includes):
            self.assertEqual(planted(files, rule), {}, rule.__name__)

    def test_of_another_library(self):
        for file, target in (("/cuda/a.cpp", "/reference/bounds/b.hpp"), ("/traces/a.cpp", "/reference/eviction/b.hpp"),
                             ("/reference/core/a.hpp", "/traces/b.hpp"), ("/proofs/engine/a.cpp", "/sim/diff/b.hpp"),
                             ("/cuda/support/a.hpp", "/sim/options/b.hpp"), ("/sim/cli/a.cpp", "/tests/support/b.hpp"),
                             ("/sim/diff/a.cpp", "/proofs/oracle/b.hpp"), ("/sim/cli/a.cpp", "/proofs/oracle/b.hpp")):
            found = planted({file: include(target), target: ""}, rules.includes_upwards)
            self.assertEqual(found.keys(), {file})

    def test_of_the_products_by_models_alone(self):
        files = {"/reference/numerics/product.hpp": "", "/traces/trace.cpp": include("/reference/numerics/product.hpp"),
                 "/traces/models/attention.cpp": include("/reference/numerics/product.hpp")}
        self.assertEqual(planted(files, rules.includes_upwards).keys(), {"/traces/trace.cpp"})

    def test_in_a_folder_that_has_no_place(self):
        self.assertEqual(planted({"/sim/utilities/a.hpp": ""}, rules.includes_upwards).keys(), {"/sim/utilities/a.hpp"})

    def test_of_a_private_header_by_a_public_one(self):
        files = {"/traces/CMakeLists.txt": "kvbound_public_headers(. a\n  b)\n", "/traces/a.hpp": include("/traces/b.hpp"),
                 "/traces/b.hpp": '#include "c.hpp"\n', "/traces/c.hpp": include("/traces/d.hpp"), "/traces/d.hpp": ""}
        self.assertEqual(planted(files, rules.private_includes).keys(), {"/traces/b.hpp"})

    def test_in_a_circle_of_folders(self):
        files = {"/sim/measure/a.hpp": include("/sim/diff/b.hpp"), "/sim/diff/b.cpp": include("/sim/replay/c.hpp"),
                 "/sim/diff/b.hpp": "", "/sim/replay/c.hpp": include("/sim/measure/d.hpp"), "/sim/measure/d.hpp": ""}
        self.assertEqual(planted(files, rules.folder_cycles),
                         {"/sim/diff": "these include each other: sim/diff, sim/measure, sim/replay"})
        del files["/sim/measure/a.hpp"]
        self.assertEqual(planted(files, rules.folder_cycles), {})

    def test_in_a_circle_of_headers(self):
        files = {"/sim/diff/a.hpp": '#include "b.hpp"\n', "/sim/diff/b.hpp": '#include "a.hpp"\n',
                 "/sim/diff/c.hpp": '#include "c.hpp"\n'}
        self.assertEqual(planted(files, rules.header_cycles).keys(), {"/sim/diff/a.hpp", "/sim/diff/c.hpp"})

    def test_that_do_not_resolve(self):
        files = {"/sim/diff/a.cpp": '#include "gone.hpp"\n', "/sim/diff/b.cpp": include("/sim/diff/gone.hpp"),
                 "/sim/diff/c.cpp": '#include "revision.hpp"\n#include <vector>\n#include <fmt/format.h>\n',
                 "/tests/sim/d_test.cpp": '#include "support/e.hpp"\n  #  include "gone.hpp"\n', "/tests/support/e.hpp": ""}
        self.assertEqual(planted(files, rules.unresolved_includes).keys(),
                         {"/sim/diff/a.cpp", "/sim/diff/b.cpp", "/tests/sim/d_test.cpp"})


class Folders(unittest.TestCase):
    def test_of_too_many_stems(self):
        files = {f"/sim/diff/a{i}.{ending}": "" for i in range(rules.MOST_STEMS) for ending in ("hpp", "cpp")}
        self.assertEqual(planted(files, rules.crowded_folders), {})
        self.assertEqual(planted({**files, "/sim/diff/b.cpp": ""}, rules.crowded_folders).keys(), {"/sim/diff"})


class Code(unittest.TestCase):
    def test_of_vector_lanes(self):
        loop = "void f() { run_at(level, [&](auto lanes) {}); }\n"
        files = {"/reference/numerics/a.cpp": loop, "/reference/eviction/b.cpp": loop, "/tests/reference/c_test.cpp": loop,
                 "/reference/merging/d.cpp": "using V [[gnu::vector_size(16)]] = double;\n",
                 "/reference/merging/e.cpp": "// run_at(level, loop)\nconst char* text = \"Lanes<4>\";\n"}
        self.assertEqual(planted(files, rules.vector_lanes),
                         {"/reference/eviction/b.cpp": "line 1", "/reference/merging/d.cpp": "line 1"})

    def test_of_questions_which_host_it_is(self):
        files = {"/reference/core/host_rules.hpp": "bool b = std::holds_alternative<SnapKv>(host);\n",
                 "/reference/session/a.cpp": "\nbool b = std::holds_alternative<kvbound::SnapKv>(host);\n",
                 "/sim/diff/b.cpp": "auto* h = std::get_if<const H2o>(&host);\n",
                 "/sim/diff/c.cpp": "bool b = std::holds_alternative<NoMerge>(merge);\n",
                 "/cuda/session/d.cpp": "rank(layer, std::get<SnapKv>(policy.host));\n"}
        self.assertEqual(planted(files, rules.host_questions),
                         {"/reference/session/a.cpp": "line 2", "/sim/diff/b.cpp": "line 1", "/cuda/session/d.cpp": "line 1"})

    def test_of_defaults(self):
        ours = "enum class Kind { a, b };\nenum { kOne, kTwo };\n"
        scoped = "switch (k) {\n  case Kind::a:\n    return 1;\n  default:\n    return 2;\n}\n"
        plain = "switch (f(k, (1))) { case kOne: return 1; default : return 2; }\n"
        integer = "switch (i) { case 0: return 1; default: return 2; }\n"
        character = "switch (c) { case 'x': return 1; default: return 2; }\n"
        theirs = "switch (j) { case json::value_t::null: return 1; default: return 2; }\n"
        full = "switch (k) { case Kind::a: return 1; case Kind::b: return 2; }\n"
        inner = f"switch (k) {{ case Kind::a: {integer} case Kind::b: return 1; }}\n"
        outer = f"switch (i) {{ case 0: {full} default: return 1; }}\n"
        remarks = "// switch (k) { case Kind::a: default: }\n"
        files = {"/reference/core/kind.hpp": ours, "/sim/diff/a.cpp": scoped, "/sim/diff/b.cpp": plain,
                 "/sim/diff/c.cpp": integer,
                 "/sim/diff/d.cpp": character, "/sim/diff/e.cpp": theirs, "/sim/diff/f.cpp": full, "/sim/diff/g.cpp": inner,
                 "/sim/diff/h.cpp": outer, "/sim/diff/i.cpp": remarks, "/tests/a_test.cpp": inner + scoped}
        self.assertEqual(planted(files, rules.defaults),
                         {"/sim/diff/a.cpp": "line 4", "/sim/diff/b.cpp": "line 1", "/tests/a_test.cpp": "line 6"})

    def test_of_names_that_a_folder_has_twice(self):
        one = "namespace {\nconstexpr int kWidth = 3;\nstruct Row {\n  int a;\n};\nint at(const Row& row, int i) {\n  return i;\n}\n}\n"
        other = "namespace a {\nnamespace {\nint at(double x) { return 1; }\nint put(int i) { if (i) { at(1); } return 2; }\n}\nint run(int j) { return 1; }\n}\n"
        files = {"/sim/diff/a.cpp": one, "/sim/diff/b.cpp": other, "/sim/cli/c.cpp": one, "/sim/cli/d.cpp": other}
        self.assertEqual(planted(files, rules.repeated_names), {})
        for again in ("const char* const kWidth = \"\";", "enum class Row { a };", "bool at(const Row& other,\n int) { return true; }",
                      "bool at(Row row, int) { return true; }"):
            files["/sim/diff/e.cpp"] = f"namespace {{\n{again}\n}}\n"
            self.assertEqual(planted(files, rules.repeated_names).keys(), {"/sim/diff"}, again)
            self.assertEqual(planted({**files, "/sim/diff/e.cpp": again}, rules.repeated_names), {}, again)


class Allowances(unittest.TestCase):
    FILES = {"/sim/measure/a.hpp": include("/sim/diff/b.hpp"), "/sim/diff/b.hpp": ""}

    def complaints(self, files, allowances):
        return list(planted(files, lambda tree: dict.fromkeys(rules.complaints(tree, allowances))))

    def test_let_a_finding_pass(self):
        self.assertEqual(len(self.complaints(self.FILES, {})), 1)
        self.assertEqual(self.complaints(self.FILES, {"includes_upwards": ["/sim/measure/a.hpp"[1:]]}), [])

    def test_that_nothing_needs_any_more(self):
        said = self.complaints({}, {"includes_upwards": ["sim/measure/gone"], "spelling": []})
        self.assertEqual(said, ["/includes_upwards: sim/measure/gone: is no longer found; take it off the allowances",
                                "/spelling: there is no such rule"])


class Comments(unittest.TestCase):
    def test_are_narrow(self):
        self.assertEqual(comments.wide_comments(ROOT), [], f"comments end by column {comments.MOST_COLUMNS}")

    def test_that_are_wide_are_found(self):
        long, narrow = "x" * comments.MOST_COLUMNS, "x" * (comments.MOST_COLUMNS - 3)
        files = {"/sim/a.cpp": f"// {narrow}\n// {long}\nint a;  // {long}\nauto b = \"// {long}\";\n",
                 "/cuda/b.cu": f"  /// {long}\n", "/sim/d.sh": f"#!/{long}\n# {long}\ntrue {long}\n",
                 "/tests/c.py": f"# {long}\na = 1  # {long}\nb = '# {long}'\n\"\"\"\n# {long}\"\"\"\n",
                 "/CMakeLists.txt": f"# {long}\nset(a b)  # {long}\n", "/traces/e.md": f"# {long}\n", "/.ci/run": f"# {long}\n"}
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                Path(folder + name).parent.mkdir(parents=True, exist_ok=True)
                Path(folder + name).write_text(text, "utf-8")
            found = {"/" + place for place in comments.wide_comments(folder)}
        self.assertEqual(found, {"/.ci/run:1", "/CMakeLists.txt:1", "/CMakeLists.txt:2", "/cuda/b.cu:1", "/sim/a.cpp:2", "/sim/a.cpp:3",
                                 "/sim/d.sh:2", "/tests/c.py:1", "/tests/c.py:2"})


if __name__ == "__main__":
    unittest.main()
