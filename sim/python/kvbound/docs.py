"""The package's documentation as one page that needs no network, made of its docstrings.

    python -m kvbound.docs kvbound.html
"""
import html
import importlib
import inspect
import sys
from pathlib import Path

import kvbound

# Chapters: what they are for, and the modules whose public names they have.
CHAPTERS = {
    "Check what a kernel has computed": ["kvbound.checks", "kvbound.result"],
    "In tests": ["kvbound.testing", "kvbound.pytest_plugin"],
    "Replay recorded decode steps": ["kvbound.trace", "kvbound.replays", "kvbound.cubes", "kvbound.diffs"],
    "Methods of your own": ["kvbound.methods"],
    "A model through compressed caches": ["kvbound.evaluations"],
    "Errors": ["kvbound.errors"],
}
# Modules whose public names are the package's, others being for its own use.
OF_THE_PACKAGE = ("kvbound.checks", "kvbound.result", "kvbound.trace", "kvbound.replays", "kvbound.cubes", "kvbound.diffs",
                  "kvbound.methods",                  "kvbound.evaluations", "kvbound.errors")
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #1a1a1a; background: #fff }
pre { font: 13.5px/1.45 ui-monospace, monospace; overflow-x: auto; margin: .5em 0 1.5em }
h3 { font: 600 15px/1.45 ui-monospace, monospace; margin: 2em 0 0; border-top: 1px solid #ccc; padding-top: .6em; white-space: pre-wrap }
nav a { font-family: ui-monospace, monospace; margin-right: 1em; display: inline-block }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616 } a { color: #8ab4f8 } h3 { border-color: #444 } }
"""


def public(module):
    """The (name, object) of a module's own classes and functions that users call, in the order of its source."""
    own = [(name, thing) for name, thing in vars(module).items()
           if name[0] != "_" and getattr(thing, "__module__", None) == module.__name__ and inspect.getdoc(thing)
           and (name in kvbound.__all__ or module.__name__ not in OF_THE_PACKAGE)]
    return sorted(own, key=lambda one: inspect.getsourcelines(one[1])[1])


def members(thing):
    """(heading, docstring) of the thing, and of the public methods and properties that a class defines."""
    def signature(name, what):
        try:
            return name + str(inspect.signature(what))
        except (TypeError, ValueError):
            return name
    name = thing.__name__
    yield signature(name, thing) if not is_exception(thing) else name, inspect.getdoc(thing)
    for attribute, value in vars(thing).items() if isinstance(thing, type) else ():
        called = value.fget if isinstance(value, property) else value
        if attribute[0] != "_" and inspect.isfunction(called) and inspect.getdoc(called):
            yield f"{name}.{attribute}" if isinstance(value, property) else signature(f"{name}.{attribute}", called), inspect.getdoc(called)


def is_exception(thing):
    """Whether it is a class of exceptions, whose signature says nothing."""
    return isinstance(thing, type) and issubclass(thing, BaseException)


def page():
    """The page's HTML."""
    links, body = [], []
    for chapter, names in CHAPTERS.items():
        links.append(f"<p>{html.escape(chapter)}<br>")
        body.append(f"<h2>{html.escape(chapter)}</h2>")
        for name in names:
            module = importlib.import_module(name)
            body.append(f"<p><code>{name}</code></p><pre>{html.escape(inspect.getdoc(module))}</pre>")
            for own, thing in public(module):
                links.append(f'<a href="#{own}">{own}</a>')
                for i, (heading, text) in enumerate(members(thing)):
                    anchor = f' id="{own}"' if i == 0 else ""
                    body.append(f"<h3{anchor}>{html.escape(heading)}</h3><pre>{html.escape(text)}</pre>")
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
