"""Budgets that differ by layer or KV head, for replay.py: pyramid, adakv and headkv in exact arithmetic."""
import itertools
from fractions import Fraction

import numpy as np

from independent.head_kv import head_kv_budgets, importances
from independent.selection import select_top, within_tie

COSINES = {Fraction(0): 1, Fraction(1, 3): Fraction(1, 2), Fraction(1, 2): 0, Fraction(2, 3): Fraction(-1, 2), Fraction(1): -1}


def floors_and_largest_fractions(shares, total):
    """Integers with this total: floors, plus one for the largest fractional parts; ties go to the smaller index."""
    whole = [int(share // 1) for share in shares]
    rest = sorted(range(len(shares)), key=lambda i: (whole[i] - shares[i], i))[:total - sum(whole)]
    return [number + (i in rest) for i, number in enumerate(whole)]


def least_kept(policy):
    """The smallest valid budget: the always-kept entries and one more; none of streaming-llm's window is always kept.
    """
    return max(1, policy.window if policy.host == "snapkv" else policy.sinks + policy.recent)


def shared_by_importance(trace, policy, budget, layers):
    """headkv's budgets of the KV heads of each layer, where these layers are replayed."""
    given, budgets = policy.allocation, [[budget] * trace.kv_heads for _ in range(trace.layers)]
    weights = importances(given.scores, trace.kv_heads, given.temperature)
    always = policy.window if policy.host == "snapkv" else policy.sinks + policy.recent
    shared = iter(head_kv_budgets([one for layer in layers for one in weights[layer]], budget, always, trace.prompt_tokens, given.beta))
    for layer in layers:
        budgets[layer] = [next(shared) for _ in range(trace.kv_heads)]
    return budgets


def layer_budgets(trace, policy, budget, layers=None):
    """Entries per KV head of each layer, of headkv those of all its KV heads. layers: those that are replayed, None: all.

    pyramid: b + d (1 - 2 l / (L - 1)) or b + d cos(pi l / (L - 1)), d = min(b - b / beta, b - always kept, prompt - b); cosines
    that are rational are exactly so.
    """
    given = policy.allocation
    if given and given.name == "headkv":
        return shared_by_importance(trace, policy, budget, range(trace.layers) if layers is None else layers)
    if given is None or given.name != "pyramid" or trace.layers == 1:
        return [budget] * trace.layers
    reach = min(budget - Fraction(budget, given.beta), budget - least_kept(policy), trace.prompt_tokens - budget)
    places = [Fraction(layer, trace.layers - 1) for layer in range(trace.layers)]
    heights = [1 - 2 * x if given.shape == "linear" else COSINES.get(x, Fraction(float(np.cos(np.pi * float(x)))))
               for x in places]
    return floors_and_largest_fractions([budget + reach * height for height in heights], budget * trace.layers)


def adakv_shares(policy, wins, count):
    """The candidates' budgets from the counts f_h of wins: (1 - s) f_h + s k with k = count."""
    safeguard = policy.allocation.safeguard
    return floors_and_largest_fractions([(1 - safeguard) * won + safeguard * count for won in wins], len(wins) * count)


def adakv_wins(heads, count):
    """f_h, how many of the KV_heads * count largest attention scores are head h's (ties: smaller head, then index), and
    the least and the largest number that rounding allows. heads: the prompt's scores per KV head.
    """
    scores = [scores.attention[scores.candidates] for scores in heads]
    everyone, owners = np.concatenate(scores), np.repeat(np.arange(len(heads)), [len(part) for part in scores])
    ranked = select_top(everyone, len(everyone))
    taken, total = ranked[:len(heads) * count], len(heads) * count
    wins = np.bincount(owners[taken], minlength=len(heads))
    if not 0 < total < len(everyone):
        return wins, wins, wins
    first_out, last_in = everyone[ranked[total]], everyone[ranked[total - 1]]
    surely = ~within_tie(everyone, first_out, everyone)
    perhaps = within_tie(last_in, everyone, everyone)
    return (wins, *(np.bincount(owners[group], minlength=len(heads)) for group in (surely, perhaps)))


def head_budgets(policy, budget, heads):
    """Entries kept per KV head of one layer, the always-kept ones included. budget: of the layer, by layer_budgets"""
    if policy.allocation is None or policy.allocation.name != "adakv":
        return np.broadcast_to(budget, len(heads)).tolist()
    always = int(heads[0].always.sum())
    return [always + share for share in adakv_shares(policy, adakv_wins(heads, budget - always)[0].tolist(), budget - always)]


def legal_head_budgets(policy, budget, heads, theirs):
    """Whether `theirs` may be the budgets, given the rounding of attention scores."""
    if list(theirs) == head_budgets(policy, budget, heads):
        return True
    if policy.allocation is None or policy.allocation.name != "adakv":
        return False
    always = int(heads[0].always.sum())
    count, safeguard = budget - always, policy.allocation.safeguard
    _, least, most = adakv_wins(heads, count)
    possible = [[won for won in range(low, high + 1)
                 if abs((1 - safeguard) * won + safeguard * count - (their - always)) < 1]
                for low, high, their in zip(map(int, least), map(int, most), theirs)]
    return any(sum(wins) == len(heads) * count
               and [always + share for share in adakv_shares(policy, wins, count)] == list(theirs)
               for wins in itertools.product(*possible))
