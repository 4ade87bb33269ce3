"""HeadKV's budgets, for replay.py: in exact fractions, from a file of scores."""
import json
from decimal import Decimal
from fractions import Fraction


def importances(path, kv_heads, temperature):
    """[layers][KV heads]: sums of the query heads' scores; as they are printed, or their powers in double precision."""
    def power(score):
        return Fraction(score) if temperature == 1 else Fraction(float(score) ** temperature)
    with open(path, encoding="utf-8") as file:
        layers = json.load(file, parse_float=Decimal, parse_int=Decimal)["scores"]
    powers = [[power(score) for score in layer] for layer in layers]
    return [[sum(layer[group * len(layer) // kv_heads:(group + 1) * len(layer) // kv_heads]) for group in range(kv_heads)] for layer in powers]


def head_kv_budgets(weights, budget, always, tokens, beta):
    """The entries of heads of these importances, `budget` in the mean, of which `always` are kept whatever the importance.

    b_h = b - s + pool w_h / sum w, s = floor((b - always) / beta), pool = heads s; no more than all tokens.
    """
    share = (budget - always) // beta
    pool, most, sharing, full = len(weights) * share, tokens - budget + share, set(range(len(weights))), set()
    while True:
        total = sum(weights[head] for head in sharing)
        parts = {head: pool * weights[head] / total if total else Fraction(pool, len(sharing)) for head in sharing}
        full = {head for head in sharing if parts[head] > most}
        if not full:
            break
        sharing -= full
        pool -= len(full) * most
    whole = {head: parts[head] // 1 for head in sharing}
    rest = sorted(sharing, key=lambda head: (whole[head] - parts[head], head))[:int(pool - sum(whole.values()))]
    return [int(budget - share + whole[head]) + (head in rest) if head in sharing else tokens for head in range(len(weights))]
