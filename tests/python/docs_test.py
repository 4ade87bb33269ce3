"""The documentation has every public name, and each says what it needs, returns and raises."""
import ast
import inspect
import re
from pathlib import Path

import kvbound
import pytest
from kvbound import docs

FUNCTIONS = [name for name in kvbound.__all__ if inspect.isfunction(getattr(kvbound, name))]


def test_every_public_name_is_on_the_page(tmp_path):
    assert docs.main([str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    for name in kvbound.__all__:
        assert name.startswith("__") or f'id="{name}"' in page, name
    assert not re.search(r"<(script|link|img)|src=|url\(", page)  # it needs no network


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_say_what_is_needed_returned_and_raised(name):
    function = getattr(kvbound, name)
    text = inspect.getdoc(function)
    for word in ("returns", "raises"):
        assert re.search(rf"^\s*{word}\s", text, re.M) or name == "open", f"{name} does not say what it {word}"
    for parameter, how in inspect.signature(function).parameters.items():
        assert how.default is not how.empty or re.search(rf"\b{parameter}\b", text), f"{name} does not say what {parameter} is"


def test_type_checkers_see_the_names_that_python_finds():
    tree = ast.parse(Path(kvbound.__file__).read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert set(seen) | {"InvalidInput", "InvalidOption"} == set(kvbound.__all__)
    for name, module in seen.items():
        if name[0] != "_":
            assert getattr(kvbound, name).__module__ == module


@pytest.mark.parametrize("arguments", [[], ["-h"], ["a", "b"]])
def test_wrong_usage(arguments, capsys):
    assert docs.main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m kvbound.docs PAGE.html\n"
