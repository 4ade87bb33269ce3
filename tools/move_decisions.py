"""Moves the section "Decisions" of READMEs to DECISIONS.md of their top folder; run in the repository's root.

usage: move_decisions.py FOLDER...      FOLDER: of the README, such as sim/diff
"""
import os, re, sys
from pathlib import Path

INTRO = "What was decided in {what}, when, and what was rejected, by the folder that it concerns. Newer lists do not repeat older\nones.\n"
NAMES = {"cuda": "the CUDA kernels", "proofs": "the proofs", "reference": "the reference", "sim": "the program", "tests": "the tests", "traces": "traces"}
ORDER = {"sim": ["sim", "diff", "check", "evaluate", "bench", "report", "sweep"]}

def moved(text, folder, top):
    def link(m):
        target = m[2]
        if re.match(r"https?://", target): return m[0]
        if target.startswith("#"): target = "README.md" + target
        return f"[{m[1]}]({os.path.relpath(os.path.normpath(f'{folder}/{target}'), top)})"
    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", link, text)

for folder in sys.argv[1:]:
    top, _, below = folder.partition("/")
    name = below or top
    readme = Path(folder, "README.md")
    text = readme.read_text("utf-8")
    head, found, section = text.partition("\n## Decisions\n")
    if not found: continue
    assert "\n## " not in section, folder
    target = Path(top, "DECISIONS.md")
    decisions = target.read_text("utf-8") if target.exists() else f"# Decisions\n\nWhat was decided about {NAMES[top]}, when, and what was rejected.\n"
    intro, *sections = re.split(r"^## ", decisions, flags=re.M)
    sections = {s.split("\n", 1)[0]: s.split("\n", 1)[1].strip("\n") for s in sections}
    sections[name] = moved(section, folder, top).strip("\n") + ("\n\n" + sections[name] if name in sections else "")
    order = ORDER.get(top, [top])
    names = sorted(sections, key=lambda n: order.index(n) if n in order else 99)
    target.write_text(intro.strip("\n") + "\n" + "".join(f"\n## {n}\n\n{sections[n]}\n" for n in names), "utf-8")
    back = os.path.relpath(target, folder)
    head = head.replace(f"\n\nWhat was decided here, and what was rejected: [{target}]({back}#{name}).", "")
    head = head.replace("](#decisions)", f"]({back}#{name})")
    readme.write_text(head.rstrip("\n") + f"\n\nWhat was decided here, and what was rejected: [{target}]({back}#{name}).\n", "utf-8")
