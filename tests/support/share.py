"""The share of the longest tests that a run takes: KVBOUND_SHARE=K/N in the environment, K = 0, 1, ..., N - 1."""
import os
import re
import sys


def share_of(items):
    """Of the items, only the K-th of every N; all of them if KVBOUND_SHARE is not set."""
    chosen = re.fullmatch(r"(\d+)/(\d+)", os.environ.get("KVBOUND_SHARE", "0/1"))
    if not chosen or int(chosen[1]) >= int(chosen[2]):
        sys.exit("KVBOUND_SHARE is not K/N with K < N")
    share = items[int(chosen[1])::int(chosen[2])]
    if not share:
        sys.exit(f"KVBOUND_SHARE={chosen[0]} takes none of {len(items)}, and would test nothing")
    return share
