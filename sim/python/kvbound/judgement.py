"""What every judge of the package says."""
from typing import Any


class Judgement:
    """A verdict. It is true if it is ok."""

    __slots__ = ()
    _native: Any

    @property
    def verdict(self) -> str:
        """"agrees"; "differs"; or "no evidence": bounds so large that zeros would pass, or nothing to judge."""
        return self._native.verdict

    @property
    def ok(self) -> bool:
        """Whether everything agrees with the reference, with evidence."""
        return self.verdict == "agrees"

    def __bool__(self):
        return self.ok

    @property
    def message(self) -> str:
        """One line: what differs, or why nothing can be said; empty if all agrees."""
        return self._native.message

    @property
    def unlikely(self) -> list[str]:
        """A line for each result that is within its bounds, but hardly by rounding (probability below 1e-9)."""
        return self._native.unlikely
