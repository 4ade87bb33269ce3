"""The documentation speaks of what there is: links, paths, options, commands, the printed table, the layout.

usage: documentation_test.py KVBOUND ROOT      KVBOUND: the program's path; ROOT: the project's top folder
"""
import re
import shlex
import subprocess
import sys
import unicodedata
from pathlib import Path

from support import kvbound_cli
from support.kvbound_cli import INCONCLUSIVE, PASS, SAMPLES, CommandLineTest

ROOT = Path(sys.argv.pop(2)).resolve(strict=True) if len(sys.argv) > 2 else kvbound_cli.REPOSITORY
FOLDERS = ("reference", "cuda", "traces", "proofs", "sim", "tests")
TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE", *FOLDERS}
TEXT = (".md", ".hpp", ".cpp", ".cu", ".cuh", ".py", ".sh", ".txt", ".cmake", ".json")
MENTION = re.compile(rf"(?<![\w/.{{}}-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w"
                     r"\.(?:md|hpp|cpp|cu|cuh|py|sh|json|txt|safetensors)(?:#[\w.-]+)?\b")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def documents():
    return [ROOT / "README.md", *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md")))]


def anchors(path):
    """What a Markdown file can be entered at: GitHub's slugs of its headings, and explicit ids."""
    text = path.read_text("utf-8")
    slugs = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ +(.*?)\s*$", text, re.MULTILINE):
        kept = (c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LN")
        slugs.add("".join(kept).replace(" ", "-"))
    return slugs


def code_blocks(path):
    """The text of all fenced and indented code blocks."""
    text = path.read_text("utf-8")
    fenced = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"\n\n((?:    .*\n|\n(?=    ))+)", rest)
    return fenced + [re.sub("^    ", "", block, flags=re.MULTILINE) for block in indented]


def commands(path):
    """The lines of code blocks that run kvbound, continued ones joined, as words."""
    for block in code_blocks(path):
        for line in block.replace("\\\n", "").splitlines():  # as a shell joins them
            if re.match(r"\s*(\./|build/\S*/)?kvbound\s", line):
                yield shlex.split(line, comments=True)[1:]


class Documentation(CommandLineTest):
    def require_target(self, target, folder, where):
        path, _, anchor = target.partition("#")
        found = folder / path if path else where
        self.assertTrue(found.exists(), f"{where} points to {target}, which does not exist")
        if anchor and found.suffix == ".md":
            self.assertIn(anchor, anchors(found), f"{where} points to {target}")

    def test_links_lead_somewhere(self):
        links = 0
        for document in documents():
            for target in LINK.findall(re.sub(r"`[^`\n]*`", "", document.read_text("utf-8"))):
                links += 1
                if not re.match(r"https?://", target):
                    self.require_target(target, document.parent, document)
        self.assertGreater(links, 5, "this test finds no links any more")

    def test_paths_that_sources_and_documents_mention_exist(self):
        mentions = 0
        sources = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in TEXT)
        for path in (ROOT / "README.md", ROOT / "CMakeLists.txt", *sources):
            for target in MENTION.findall(path.read_text("utf-8")):
                if re.search("STEM|my_kv", target):
                    continue  # stands for any name
                mentions += 1
                self.require_target(target, ROOT, path)
        self.assertGreater(mentions, 5, "this test finds no paths any more")

    def test_options_that_documents_mention_exist(self):
        known = {"--help", "--version"}
        for command in ("inspect", "replay", "recall", "predict", "diff", "generate", "prove", "bench"):
            known |= set(re.findall(r"--[a-z][a-z-]+", self.passes(command, "--help")))
        for document in documents():
            text = re.sub(r"(cmake|ctest|git|apt-get|tests/\w+\.py) --.*", "", document.read_text("utf-8"))
            mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
            self.assertEqual(mentioned - known, set(), f"{document} mentions options that no command has")

    def test_commands_in_documents_run(self):
        (self.folder / "traces").symlink_to(ROOT / "traces")
        sample = SAMPLES / "pocket-gqa.safetensors"
        subprocess.run([sys.executable, ROOT / "traces" / "scripts" / "write_dump.py", sample, self.folder / "dump.safetensors"],
                       check=True)
        ran = 0
        for document in documents():
            for words in commands(document):
                words = [
                    str(sample) if word.rstrip(".") == "TRACE" else word for word in words
                ]
                if words[0] == "bench":
                    words += "--shape", "pocket:256", "--repeats", "1"  # what is measured in documents takes minutes
                    if "--blas-core" in words:  # which cores there are depends on the machine
                        at = words.index("--blas-core")
                        words[at:at + 2] = []
                if words[0] == "prove":
                    words += "--cases", "100"  # all of them take half a minute
                with self.subTest(" ".join(words)):
                    result = self.run_program(*words)
                    no_device = any("cuda" in word.split(",") for word in words) and result.returncode == INCONCLUSIVE
                    self.assertTrue(result.returncode == PASS or no_device, result.stderr)
                    ran += 1
        self.assertGreaterEqual(ran, 3, "this test finds no commands any more")

    def test_the_table_in_the_readme_is_what_the_quickstart_prints(self):
        script = (ROOT / "sim" / "quickstart.sh").read_text("utf-8").replace("\\\n", " ")
        command = re.search(r"run build/\S*kvbound (replay [^>\n]*)", script)[1].split()
        printed = [
            line.rstrip() for line in self.passes(*command, cwd=ROOT).splitlines()
            if "reference" in line or "L/bound" in line
        ]
        readme = [line.strip() for line in (ROOT / "README.md").read_text("utf-8").splitlines()]
        missing = [line for line in printed if line.strip() not in readme]
        self.assertEqual(missing, [], "README.md has another table than sim/quickstart.sh prints")

    def test_the_tables_of_hosts_merging_recall_and_predict_in_the_readme_are_what_their_commands_print(self):
        readme = (ROOT / "README.md").read_text("utf-8")
        (self.folder / "traces").symlink_to(ROOT / "traces")
        shown = re.findall(r"\n\n((?:    [^\n]*\n)+)\n```\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
        tables = 0
        for block, table in shown:
            command = re.sub("^    ", "", block, flags=re.MULTILINE).replace("\\\n", "").strip()
            if re.match("kvbound (replay .*--columns|recall |predict )", command):
                printed = [line.rstrip() for line in self.passes(*shlex.split(command)[1:]).splitlines()]
                self.assertEqual([line for line in table.splitlines() if line not in printed], [], command)
                self.assertGreater(len(table.splitlines()), 3)
                tables += 1
        self.assertEqual(tables, 6, "this test finds the tables no more")

    def test_the_top_level_holds_what_the_layout_says_and_no_more(self):
        ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
        entries = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")} - ignored
        self.assertEqual(entries - TOP_LEVEL, set())
        self.assertLessEqual({"CMakeLists.txt", "README.md", "LICENSE", "reference", "traces", "sim", "tests"}, entries)


if __name__ == "__main__":
    kvbound_cli.main()
