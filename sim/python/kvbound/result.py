"""What a check found."""
import json
import shutil
from typing import NamedTuple

import numpy as np

from kvbound import _native
from kvbound.cubes import Result
from kvbound.judgement import Judgement


class Worst(NamedTuple):
    """The element of a tensor that is farthest beyond its bound, or comes closest."""
    tensor: str
    index: tuple[int, ...]  # type: ignore[assignment]
    # one number a dimension: of `out` (step or query, head, dim)
    claimed: float
    expected: float
    error: float  # |claimed - expected|
    bound: float  # the largest error that rounding explains
    ulps: float  # the error in units of the expected number's last place
    note: str  # of selections: what is wrong with the choice


class Factor(NamedTuple):
    """A number that tells of rows as wholes, such as the gain, which should be 1."""
    value: float  # of all rows together
    band: float  # how far rounding can take it
    worst_value: float  # of the row that is farthest beyond its band
    worst_band: float
    worst_at: tuple[int, ...]
    rows: int
    outside: int  # rows beyond their band


class CheckResult(Judgement):
    """Whether a kernel's results are what they should be. It prints as `kvbound check` does."""

    __slots__ = ("_native", "_shape")

    def __init__(self, native, tensors):
        self._native = native
        main = next(iter(tensors.values()))  # the kernel's main result is the first argument of every check
        self._shape = (main[0] if type(main) is tuple else main).shape

    @property
    def tensors(self):
        """The names of what was judged; the first is the kernel's main result."""
        return self._native.tensors

    def worst(self, tensor=None):
        """The Worst element of a tensor (by default the first), None of no elements."""
        found = self._native.worst(tensor or self.tensors[0])
        return None if found is None else Worst(*found)

    def factors(self, tensor=None):
        """{name: Factor} of a tensor that is judged as rows, too: "gain", and others that its operation has."""
        return {name: Factor(*found) for name, found in self._native.functionals(tensor or self.tensors[0]).items()}

    @property
    def gain(self):
        """The Factor by which outputs are off as wholes; None where rows are not judged."""
        return self.factors().get("gain")

    @property
    def heads_outside(self):
        """Ascending: heads of `out`, `lse`, norms or scores that have an element, or a whole row, beyond its bound."""
        tensor = self.tensors[0]
        shape = self._shape
        head = len(shape) - 2 if tensor == "out" else 0 if len(shape) == 2 else len(shape) - 1
        elements = np.asarray(self._native.outside(tensor), dtype=np.int64)
        return sorted(set(np.unravel_index(elements, shape)[head].tolist())) if elements.size else []

    def diagnosis(self, tensor=None) -> str:
        """The one fault that explains the rows that differ, in words; empty if none does."""
        return self._native.diagnosis(tensor or self.tensors[0])

    def document(self) -> dict:
        """What `kvbound check --json` writes, as a dict."""
        return json.loads(_native.document([(self._native, "")]))

    def __str__(self):
        return self._native.text(shutil.get_terminal_size().columns)

    def __repr__(self):
        return f"<CheckResult {self.verdict}{': ' if self.message else ''}{self.message}>"


class Comparison(Judgement, Result):
    """What compare() found; it differs also where rows must be identical and are not. Cubes: tensors, differing, apart, pairs."""
