"""Policies and budgets, with the names that other libraries give their parts."""
from decimal import Decimal

from kvbound.errors import InvalidOption


def policy_text(policy, window_size=None, kernel_size=None):
    """A policy's text: its host with `window` (queries that score) and `pool` (of scores), where they are given.

        policy_text("snapkv+critical", 32, 7) == "snapkv:window=32:pool=7+critical"
    """
    host, plus, rest = policy.partition("+")
    for name, value in (("window", window_size), ("pool", kernel_size)):
        if value is not None:
            host += f":{name}={value}"
    return host + plus + rest


def budget_text(budget=None, compression_ratio=None):
    """A budget's text, None if neither is given: what is kept, or all but compression_ratio, a share of 0 to 1."""
    if compression_ratio is None:
        return None if budget is None else str(budget)
    if budget is not None:
        raise InvalidOption("budget and compression_ratio are both given; expected one: what is kept, or what is removed")
    if not 0 <= compression_ratio < 1:
        raise InvalidOption(f"compression_ratio: is {compression_ratio}; expected the share that is removed, of 0 to below 1")
    return f"{(1 - Decimal(str(compression_ratio))) * 100:f}%"
