"""The share of the longest tests that a run takes: K/N in an environment variable, K = 0, 1, ..., N - 1."""
import os
import re
import sys

# programs that a test of the property PROCESSORS 2 runs at once
SIDE_BY_SIDE = min(2, len(os.sched_getaffinity(0)))


def asked_for(variable):
    """K and N of the variable; 0 and 1, all, if it is not set."""
    asked = re.fullmatch(r"(\d+)/(\d+)", os.environ.get(variable, "0/1"))
    if not asked or int(asked[1]) >= int(asked[2]):
        sys.exit(f"{variable} is not K/N with K < N")
    return int(asked[1]), int(asked[2])


def share_of(items):
    """Of the items, only the K-th of every N of KVBOUND_SHARE."""
    k, n = asked_for("KVBOUND_SHARE")
    share = items[k::n]
    if not share:
        sys.exit(f"KVBOUND_SHARE={k}/{n} takes none of {len(items)}, and would test nothing")
    return share


def part_of(items, variable):
    """The K-th of N stretches of the items."""
    k, n = asked_for(variable)
    part = items[len(items) * k // n:len(items) * (k + 1) // n]
    if not part:
        sys.exit(f"{variable}={k}/{n} takes none of {len(items)}, and would test nothing")
    return part
