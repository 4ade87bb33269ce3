#!/usr/bin/env python3
"""kvbound.from_torch and kvbound.write_dump for programs that do not install the package: from a checkout, with NumPy alone.

    import sys; sys.path.insert(0, "traces/scripts")
    from from_torch import from_torch, write_dump
"""
import sys
from pathlib import Path

# Behind a package that is installed, whose checks a program may need, too.
sys.path.append(str(Path(__file__).resolve().parents[2] / "sim" / "python"))

from kvbound.recording.dump_writer import write_dump  # noqa: E402
from kvbound.recording.trace_writer import from_torch  # noqa: E402

__all__ = ["from_torch", "write_dump"]

if __name__ == "__main__":
    sys.exit(__doc__ + from_torch.__doc__ + write_dump.__doc__)
