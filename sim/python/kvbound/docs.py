"""The package's documentation as one page that needs no network, made of its docstrings.

    python -m kvbound.docs kvbound.html
"""
import ast
import html
import sys
from pathlib import Path

import kvbound

# Chapters: what they are for, and the modules that they describe, with the names of each that users need:
# those of the package where there is an ellipsis.
CHAPTERS = {
    "Check what a kernel has computed": {"checks": ..., "result": ..., "judgement": ("Judgement",)},
    "In tests": {"testing": ("assert_attention", "assert_topk", "decode_case", "has_teeth"), "pytest_plugin": ()},
    "Replay recorded decode steps": {"trace": ..., "replays": ..., "cubes": ..., "diffs": ...},
    "Methods of your own": {"methods": ()},
    "A model through compressed caches": {"evaluations": ...},
    "Record a model": {"recording.hf_recording": ..., "recording.trace_writer": ..., "recording.dump_writer": ...},
    "The order in which a kernel sums": {"probe": ("Accumulation", "accumulation", "accumulation_of_attention",
                                                   "accumulation_of_products")},
    "Presses of kvpress": {"kvpress.press_check": ("Difference", "Unexplained", "PressCheck", "check")},
    "Solutions of flashinfer-bench": {"flashinfer_bench": ("register", "Evaluator")},
    "Errors": {"errors": ...},
}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #1a1a1a; background: #fff }
pre { font: 13.5px/1.45 ui-monospace, monospace; overflow-x: auto; margin: .5em 0 1.5em }
h3 { font: 600 15px/1.45 ui-monospace, monospace; margin: 2em 0 0; border-top: 1px solid #ccc; padding-top: .6em; white-space: pre-wrap }
nav a { font-family: ui-monospace, monospace; margin-right: 1em; display: inline-block }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616 } a { color: #8ab4f8 } h3 { border-color: #444 } }
"""


def described(node, within=""):
    """(heading, docstring) of a function or class, and of a class' public methods and properties."""
    name = within + node.name
    if isinstance(node, ast.ClassDef):
        yield f"class {name}", ast.get_docstring(node)
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name[0] != "_" and ast.get_docstring(member):
                yield from described(member, f"{name}.")
    else:
        is_property = any(ast.unparse(one) == "property" for one in node.decorator_list)
        yield name if is_property else f"{name}({ast.unparse(node.args)})", ast.get_docstring(node)


def page():
    """The page's HTML. Modules are read and not loaded: what some of them need may be missing."""
    links, body = [], []
    for chapter, modules in CHAPTERS.items():
        links.append(f"<p>{html.escape(chapter)}<br>")
        body.append(f"<h2>{html.escape(chapter)}</h2>")
        for module, names in modules.items():
            tree = ast.parse((Path(__file__).parent / f"{module.replace('.', '/')}.py").read_text("utf-8"))
            body.append(f"<p><code>kvbound.{module}</code></p><pre>{html.escape(ast.get_docstring(tree))}</pre>")
            for node in tree.body:
                if getattr(node, "name", None) not in (kvbound.__all__ if names is ... else names):
                    continue
                anchor = node.name if names is ... else f"{module}.{node.name}"
                links.append(f'<a href="#{anchor}">{node.name}</a>')
                body.append(f'<a id="{anchor}"></a>')
                body += [f"<h3>{html.escape(heading)}</h3><pre>{html.escape(text)}</pre>" for heading, text in described(node)]
        links.append("</p>")
    title = f"kvbound {kvbound.__version__} ({kvbound.__revision__})"
    return (f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1><p>{html.escape(kvbound.__doc__)}</p>"
            f"<nav>{''.join(links)}</nav>{''.join(body)}</html>\n")


def main(arguments):
    """Writes the page to the path that is given; returns the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m kvbound.docs PAGE.html", file=sys.stderr)
        return 2
    Path(arguments[0]).write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
