"""Results as cubes: figures over the product of axes, such as L of each run, layer and query head."""
import itertools
import json
import shutil
from pathlib import Path

import numpy as np


class Cube:
    """Figures over the product of axes.

    axes      {axis: {key: its values}}: of runs policy, budget and backend
    shape     how many places each axis has
    cube[figure]        an array of that shape; NaN where there is no number
    cube.describe(figure)  what it means, in a line
    """

    def __init__(self, parts):
        self.name, axes, columns = parts
        self.axes = {axis: {key: _array(values) for key, _, values in keys} for axis, keys in axes}
        self.shape = tuple(len(next(iter(keys.values()))) for keys in self.axes.values())
        self._meanings = {name: meaning for name, meaning, _ in itertools.chain(columns, *(keys for _, keys in axes))}
        self._columns = {name: _array(values).reshape(self.shape) for name, _, values in columns}

    @property
    def figures(self):
        """The figures' names."""
        return list(self._columns)

    def __getitem__(self, figure):
        try:
            return self._columns[figure]
        except KeyError:
            raise KeyError(f"{figure}; {self.name} has {', '.join(self._columns)}") from None

    def describe(self, figure):
        """What a figure, or a key of an axis, means."""
        return self._meanings[figure]

    def columns(self):
        """{name: array} with one value a row: keys of the axes, and figures. The last axis varies fastest."""
        places = np.indices(self.shape).reshape(len(self.shape), -1)
        keys = {key: values[places[a]] for a, axis in enumerate(self.axes.values()) for key, values in axis.items()}
        return keys | {name: values.ravel() for name, values in self._columns.items()}

    def to_pandas(self):
        """A DataFrame with a row for each combination of places (pandas must be installed)."""
        import pandas

        return pandas.DataFrame(self.columns())

    def __repr__(self):
        return f"<Cube {self.name} [{', '.join(f'{axis} {n}' for axis, n in zip(self.axes, self.shape))}]: {', '.join(self.figures)}>"


class Result:
    """What a replay or an evaluation found. It prints as the command does.

    result["runs"]      a Cube; result.cubes names them all
    result.facts        what was asked, and of what, as a dict
    """

    def __init__(self, native):
        self._native = native
        self._parts = {}

    def _part(self, with_rows):
        if with_rows not in self._parts:
            facts, cubes = self._native.part(with_rows)
            self._parts[with_rows] = json.loads(facts), {cube[0]: cube for cube in cubes}
        return self._parts[with_rows]

    @property
    def facts(self):
        """The input and the options."""
        return self._part(False)[0]

    @property
    def cubes(self):
        """The cubes' names, without those that only CSV has."""
        return list(self._part(False)[1])

    def __getitem__(self, cube):
        for with_rows in (False, True):
            known = self._part(with_rows)[1]
            if cube in known:
                return Cube(known[cube])
        raise KeyError(f"{cube}; there are {', '.join(known)}")

    def to_pandas(self, cube="runs"):
        """A cube as a DataFrame; by default one row a run."""
        return self[cube].to_pandas()

    def document(self) -> dict:
        """What the command writes with --json, as a dict."""
        return json.loads(self._native.document())

    def save(self, path):
        """Writes that document, which `kvbound report` reads, or with a name that ends in .csv the rows of --csv."""
        text = self._native.csv() if str(path).endswith(".csv") else self._native.document()
        Path(path).write_text(text, "utf-8")

    def __str__(self):
        return self._native.text(shutil.get_terminal_size().columns).rstrip("\n")

    def __repr__(self):
        return f"<{type(self).__name__}: {', '.join(self.cubes)}>"


def _array(values):
    return values if isinstance(values, np.ndarray) else np.array(values, dtype=object)
