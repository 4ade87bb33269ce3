"""A page that `kvbound report` made: its data, as its script reads them."""
import json
import re

import numpy as np


class Page:
    """text    the HTML
    data    what the figures are drawn from
    """

    def __init__(self, path):
        self.text = path.read_text("utf-8")
        self.data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', self.text, re.DOTALL)[1])
        self.cubes = {cube["id"]: cube for section in self.data["sections"] for cube in section["cubes"]}

    def figures(self):
        return [figure for section in self.data["sections"] for figure in section["figures"]]

    def figure(self, title):
        """The first figure whose title begins so."""
        return next(figure for figure in self.figures() if figure["title"].startswith(title))

    def cube_of(self, title):
        return self.cubes[self.figure(title)["cube"]]

    def lines(self):
        return [line for section in self.data["sections"] for line in section["lines"]]


def column(cube, name):
    """A column as an array with the cube's axes; NaN where there is no number."""
    numbers = [float("nan") if number is None else number for number in cube["columns"][name]]
    return np.array(numbers, dtype=float).reshape([axis["size"] for axis in cube["axes"]])


def keys(cube, name):
    return next(axis["keys"][name] for axis in cube["axes"] if name in axis["keys"])


def six_digits(numbers):
    """The numbers in six significant digits, null as NaN: what a page has of them."""
    return np.array([float("nan") if number is None else float(f"{number:.6g}") for number in np.ravel(np.array(numbers, dtype=object))])
