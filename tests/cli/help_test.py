"""--help: its layout at any width, that every example in it runs as printed, and what is said of names that are not known.

usage: help_test.py KVBOUND      KVBOUND: the program's path
"""
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios

from support import kvbound_cli
from support.kvbound_cli import INCONCLUSIVE, PASS, REPOSITORY, SAMPLES, USAGE, CommandLineTest

GROUPS = ("Record", "Look", "Compare", "Check", "Prove", "Help")
SHIPPED = ("README.md", "sim", "traces")  # what examples of a fresh clone read
# of an example, on a machine that has other work; all take less than that on two quiet cores
MOST_SECONDS = 60


def commands():
    """The commands by the group that the program's help lists them in."""
    text = kvbound_cli.run("--help", env={**os.environ, "COLUMNS": "200"}).stdout
    groups = re.findall(r"^(\w+)(?::.*)?\n((?:  [a-z].*\n)+)", text.split("Exit codes")[0], re.MULTILINE)
    return {name: re.findall(r"^  ([a-z]+) ", lines, re.MULTILINE) for name, lines in groups}


def examples(command, width=100):
    """(what it needs or "", the command as one line, and as printed) of every example of a command's help."""
    text = kvbound_cli.run(command, "--help", env={**os.environ, "COLUMNS": str(width)}).stdout
    found = []
    for needs, lines in re.findall(r"^Examples(?: that need (.*))?:\n((?:  .*\n)+)", text, re.MULTILINE):
        for printed in re.findall(r"^  \S(?:.*\\\n)*.*$", lines, re.MULTILINE):
            found.append((needs, " ".join(printed.replace("\\\n", " ").split()), printed))
    return found


class Layout(CommandLineTest):
    def test_commands_are_grouped_by_what_they_are_for(self):
        groups = commands()
        self.assertEqual(tuple(groups), GROUPS)
        self.assertEqual(groups["Record"], ["record", "import", "generate"])
        self.assertEqual(groups["Prove"], ["prove"])

    def test_lines_are_as_wide_as_columns_says_but_for_words_and_blocks(self):
        names = [name for group in commands().values() for name in group]
        for width in (60, 80, 132):
            env = {**os.environ, "COLUMNS": str(width)}
            for arguments in (["--help"], ["policies"], *([name, "--help"] for name in names)):
                lines = self.passes(*arguments, env=env).splitlines()
                long = [line for line in lines if len(line) > width and len(line.split()) > 2 and not line.startswith("    ")]
                self.assertEqual(long, [], arguments)
                if len(lines) > 12:
                    self.assertGreater(max(map(len, lines)), width - 22, arguments)

    def test_of_a_terminal_is_as_wide_as_the_terminal(self):
        def widest(columns):
            leader, follower = pty.openpty()
            fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
            process = self.start("recall", "--help", stdout=follower, stderr=follower)
            os.close(follower)
            text = b""
            while True:
                try:
                    text += os.read(leader, 1 << 16)
                except OSError:  # the program has ended
                    break
            process.wait()
            os.close(leader)
            return max(map(len, text.decode().split("\r\n")))

        self.assertLess(widest(60), 61)
        self.assertIn(widest(110), range(100, 111))

    def test_of_a_command_is_the_same_by_help(self):
        for name in ("replay", "prove"):
            self.assertEqual(self.passes("help", name), self.passes(name, "--help"))
        self.assertEqual(self.passes("help"), self.passes("--help"))
        self.refuses(USAGE, "no subcommand 'rplay'; did you mean replay\\?", "help", "rplay")


class Examples(CommandLineTest):
    """Each command's in a folder that has what a fresh clone has, in their order."""

    def fresh_clone(self, name):
        folder = self.folder / name
        folder.mkdir()
        for shipped in SHIPPED:
            (folder / shipped).symlink_to(REPOSITORY / shipped)
        return folder

    def run_example(self, printed, folder):
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        if not (programs / "kvbound").exists():
            (programs / "kvbound").symlink_to(kvbound_cli.program)
        env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run(["bash", "-c", printed], cwd=folder, env=env, capture_output=True, text=True, timeout=MOST_SECONDS,
                              stdin=subprocess.DEVNULL)

    def test_run_as_printed(self):
        ran, waits = 0, []
        for name in (name for group in commands().values() for name in group):
            clone, found = self.fresh_clone(name), examples(name)
            self.assertTrue(found, name)
            for needs, line, printed in found:
                if needs:
                    waits.append(line)
                    continue
                with self.subTest(line):
                    result = self.run_example(printed, clone)
                    self.assertEqual(result.returncode, PASS, f"{result.stdout[-2000:]}\n{result.stderr[-2000:]}")
                    ran += 1
        self.assertGreater(ran, 40)
        self.assertLess(len(waits), 10, "few may need what a machine lacks")

    def test_that_need_something_parse(self):
        for name in (name for group in commands().values() for name in group):
            clone = self.fresh_clone(name)
            for needs, line, printed in examples(name):
                if needs and not ("KVBOUND_COUNTED" in needs and shutil.which("nvcc")):
                    result = self.run_example(printed, clone)
                    self.assertNotIn(result.returncode, (USAGE, 70), f"{line}\n{result.stderr}")

    def test_are_the_same_at_any_width(self):
        for name in ("replay", "sweep", "bench"):
            self.assertEqual([line for _, line, _ in examples(name, 50)], [line for _, line, _ in examples(name, 200)])
            self.assertLess(max(len(row) for _, _, printed in examples(name, 90) for row in printed.splitlines()), 91)


class Policies(CommandLineTest):
    def test_every_component_has_a_page_with_options_that_policies_take(self):
        kinds = kvbound_cli.component_names()
        self.assertEqual(list(kinds), ["host", "score", "selection", "allocation", "merge"])
        for kind, names in kinds.items():
            for name in names:
                page = self.passes("policies", name)
                self.assertRegex(page, rf"\A{name}, an? {kind}")
                options = dict(re.findall(r"^  :([a-z]+)=(\S+) ", page, re.MULTILINE))
                hosts = re.search(r"Hosts that it goes with: (.*(?:\n.+)*)", page)
                text = ":".join([name, *(f"{key}={value}" for key, value in options.items())])
                policy = text if kind == "host" else f"{hosts[1].split(',')[0]}:window=32+{text}"
                if "PATH" not in text:
                    self.passes("replay", SAMPLES / "pocket-mha.safetensors", "--layers", "0", "--steps", "1", "--policy", policy,
                                "--budget", "20%")

    def test_of_names_that_are_not_known_the_nearest_is_said(self):
        self.refuses(USAGE, r"no component 'snapkb'; did you mean snapkv\? known: snapkv, ", "policies", "snapkb")
        self.refuses(USAGE, "no component 'x'; known: snapkv, ", "policies", "x")


class Suggestions(CommandLineTest):
    def replay(self, pattern, policy, *options):
        self.refuses(USAGE, pattern, "replay", SAMPLES / "pocket-mha.safetensors", "--policy", policy, "--budget", "20%", *options)

    def test_for_commands(self):
        self.refuses(USAGE, r"no subcommand 'reply'; did you mean replay\? known: record, ", "reply")
        self.refuses(USAGE, "no subcommand 'x'; known: record, ", "x")

    def test_for_options(self):
        self.replay(r"unrecognised option '--polcy'; did you mean --policy\? kvbound replay --help has all$", "snapkv", "--polcy", "x")
        self.replay("unrecognised option '--xyzzy'; kvbound replay --help has all$", "snapkv", "--xyzzy")
        self.refuses(USAGE, r"unrecognised option '--case'; did you mean --cases\?", "prove", "--case", "3")

    def test_for_hosts_and_components(self):
        self.replay(r"no host 'snapkb'; did you mean snapkv\? known hosts: snapkv, ", "snapkb")
        self.replay("no host 'critical'; critical is a selection: snapkv\\+critical; known hosts: ", "critical")
        self.replay("no host 'adakv'; adakv is an allocation: snapkv\\+adakv; known hosts: ", "adakv")
        self.replay(r"no component 'critcal'; did you mean critical\? known components: ", "snapkv+critcal")
        self.replay("no component 'h2o'; h2o is a host: a policy begins with one; known components: ", "snapkv+h2o")
        self.replay("snapkv has no option 'critical'; critical is a selection: snapkv\\+critical; it has window, pool", "snapkv:critical")
        self.replay(r"snapkv has no option 'windw'; did you mean window\? it has window, pool", "snapkv:windw=3")

    def test_for_columns(self):
        self.replay(r"--columns: no column 'perturbatin'; did you mean perturbation\? known columns: ", "snapkv", "--columns",
                    "perturbatin")


class JsonAlone(CommandLineTest):
    """Every command that writes JSON prints nothing else, anywhere, if its place is standard output."""

    def test_on_standard_output(self):
        trace = SAMPLES / "pocket-mha.safetensors"
        runs = ("--policy", "snapkv", "--budget", "20%")
        self.passes("replay", trace, *runs, "--dump", "dump.safetensors", "--json", "replay.json")
        (self.folder / "plan.json").write_text(json.dumps(
            {"format": "kvbound-sweep-plan", "version": 1, "traces": [str(trace)], "policies": ["snapkv"], "budgets": ["20%"]}))
        calls = SAMPLES / "calls"
        task = {"id": "a", "prompt_text": "Once upon a time there was a king", "continuation_text": " who"}
        (self.folder / "tasks").write_text(json.dumps(task) + "\n")
        for arguments in (("replay", trace, *runs), ("inspect", trace), ("inspect", trace, "--heads", "--verify"), ("recall", trace),
                          ("predict", trace, "--steps", "1"), ("diff", trace, "dump.safetensors"),
                          ("diff", "dump.safetensors", "dump.safetensors", "--against", trace),
                          ("diff", "--floor", "head_dim=16", "--tokens", "64", "--storage", "F16"),
                          ("check", "topk", calls / "topk.npz"),
                          ("check", "attention", calls / "batch.npz", "--against", calls / "alone.npz"),
                          ("prove", "ckv-3.5", "--cases", "50"), ("bench", "selection", "--shape", "pocket:256", "--repeats", "1"),
                          ("evaluate", SAMPLES / "pocket", "tasks", "--policy", "snapkv:window=4", "--budget", "50%"),
                          ("sweep", "plan.json", "--out", "study"), ("gather", "study")):
            for place in ("-", "/dev/stdout"):
                with self.subTest(arguments=arguments, place=place):
                    result = self.run_program(*arguments, "--json", place)
                    self.assertIn(result.returncode, (PASS, INCONCLUSIVE), result.stderr)
                    self.assertIsInstance(json.loads(result.stdout), dict)
                    self.assertEqual([line for line in result.stderr.splitlines() if not line.startswith("kvbound: ")], [])


if __name__ == "__main__":
    kvbound_cli.main()
