"""A fault of a kernel: what it is, who reported it, and a file that shows it."""
from dataclasses import dataclass, field
from typing import Callable

import numpy as np

from support.kernel_files import KernelFile

FAULTS = {}  # name -> Fault, in the order of their definitions


@dataclass(frozen=True)
class Tolerance:
    """An element passes if it is at most atol + rtol |reference| away: numpy.allclose, torch.testing.assert_close."""
    source: str
    atol: float
    rtol: float

    def passes(self, result, reference):
        return bool(np.allclose(result, reference, atol=self.atol, rtol=self.rtol))


@dataclass(frozen=True)
class Case:
    """One run of a faulty kernel.

    file       its inputs, the arithmetic that it declares, and its results
    right      the results that a sound kernel of the same arithmetic has instead: {tensor: array}
    result     what a test compares, as it is stored, and with what, in single precision
    """
    file: KernelFile
    right: dict
    result: np.ndarray = None
    reference: np.ndarray = None

    @property
    def sound_file(self):
        return self.file.changed(**self.right)


@dataclass(frozen=True)
class Fault:
    """
    operation  of `kvbound check`
    threads    public reports of it
    tolerance  of the project's own tests; None where results are not numbers
    expected   regular expression, for what `check` says of it on standard error
    """
    name: str
    operation: str
    what: str
    threads: tuple
    tolerance: Tolerance
    expected: str
    case: Callable[[], Case] = field(repr=False)


def fault(operation, *threads, expected, tolerance=None):
    """Registers the function that makes a fault's case, under its name; its docstring says what the fault is."""
    def register(case):
        name = case.__name__.replace("_", "-")
        what = " ".join(case.__doc__.split())
        FAULTS[name] = Fault(name, operation, what, threads, tolerance, expected, case)
        return case
    return register
