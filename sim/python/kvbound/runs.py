"""Policies at budgets, as replay and evaluate are asked for them."""
from collections.abc import Iterable

from kvbound import _native
from kvbound.errors import InvalidOption
from kvbound.methods import CheckedMethod, is_method
from kvbound.policies import budget_text


class Runs:
    """What the module needs to know: texts, and the methods that some of them name."""

    def __init__(self, policies, budget, compression_ratio, base, backends):
        self.methods = {}
        self._names = {}  # by id of the method
        texts = [self._text(policy) for policy in _listed(policies)]
        if budget is not None and compression_ratio is not None:
            budget_text(budget, compression_ratio)  # which says what is wrong
        budgets = ([budget_text(one) for one in _listed(budget)] if budget is not None
                   else [budget_text(None, ratio) for ratio in _listed(compression_ratio)])
        if not texts or not budgets or budgets == [None]:
            raise InvalidOption("policies and budgets: expected at least one of each, such as \"snapkv\" and \"20%\"")
        for what, names in (("budget", budgets), ("backend", _listed(backends))):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise InvalidOption(f"{what}: {twice} is given twice")
        self.native = _native.WantedRuns(texts, budgets, _listed(backends), None if base is None else self._text(base))

    def _text(self, policy):
        """A policy's text: of a method, or of (method, "critical+adakv"), the host `given` with the method's name as file."""
        if isinstance(policy, str):
            return policy
        method, rest = policy if isinstance(policy, tuple) and len(policy) == 2 else (policy, "")
        if not is_method(method) or not isinstance(rest, str):
            raise InvalidOption(f"policies: {policy!r} is none; expected a text such as \"snapkv+critical\", an object with score "
                                "or select, or a pair of such an object and a text such as \"critical\"")
        if id(method) not in self._names:
            checked = CheckedMethod(method)
            same = sum(known.name == checked.name for known in self.methods.values())
            name = checked.name.translate({ord('"'): "'", ord("\\"): "/"}) + (f" {same + 1}" if same else "")
            self._names[id(method)] = name
            self.methods[name] = checked
        return f'given:file="{self._names[id(method)]}"' + ("+" + rest if rest else "")


def _listed(items):
    if items is None:
        return []
    is_pair = isinstance(items, tuple) and items and is_method(items[0])
    return list(items) if isinstance(items, Iterable) and not (isinstance(items, str) or is_pair or is_method(items)) else [items]
