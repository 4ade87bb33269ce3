"""Policies and budgets for replay.py: parsing, refusals, and the entries that are always kept."""
import re
from fractions import Fraction
from types import SimpleNamespace

import numpy as np

COUNT, REAL = r"\d+", r"[\d.]+(?:e[+-]?\d+)?"
HOSTS = {"snapkv": {"window": ("32", COUNT), "pool": ("7", COUNT)},
         # recent: default window
         "h2o": {"window": ("32", COUNT), "sinks": ("0", COUNT), "recent": (None, COUNT)},
         "tova": {"sinks": ("0", COUNT)},
         "streaming-llm": {"sinks": ("4", COUNT)},
         "random": {"seed": ("0", COUNT), "sinks": ("4", COUNT), "window": ("32", COUNT)}}
SCORES = {name: {"space": ("head", "head|projected")}
          for name in ("obcache-value", "obcache-key", "obcache-joint", "exact")}
WEIGHED = {"alpha": ("0.5", r"adaptive|[\d.]+"), "epsilon": ("1e-4", REAL),
           "gqa": ("mean-of-products", "mean-of-products|product-of-means"), "norm": ("l1", "l1|l2")}
SELECTIONS = {"critical": WEIGHED, "theta-sweep": WEIGHED, "greedy": {}}
ALLOCATIONS = {"adakv": {"safeguard": ("0.2", REAL)},
               "pyramid": {"beta": ("20", COUNT), "shape": ("linear", "linear|cosine")},
               "headkv": {"scores": (None, "[^:+,]+"), "beta": ("1.2", r"[\d.]+"), "temperature": ("1", REAL)}}
THRESHOLD = {"threshold": ("0.8", rf"none|{REAL}")}
PREDICTED = {**THRESHOLD, "predict": ("ema", "ema|current"), "ema": ("0.9", REAL), "scores": ("attention", "attention|raw"),
             "normalisation": ("exact", "exact|paper"), "gqa": ("joint", "joint|mean")}
KEEPKV = {**PREDICTED, "key": ("min-norm", "min-norm|zip|convex"), "rank": ("0.3", REAL),
          "order": ("evict-first", "evict-first|merge-first"), "period": ("none", rf"none|{COUNT}")}
PAPER = {"key": "zip", "gqa": "mean", "scores": "raw", "normalisation": "paper"}
MERGES = {"keepkv": KEEPKV,
          "keepkv-paper": {name: (PAPER.get(name, default), form) for name, (default, form) in KEEPKV.items()},
          "convex": PREDICTED, "d2o": THRESHOLD, "kvmerger": THRESHOLD,
          "cam": {"neighbours": ("32", COUNT), "seed": ("0", COUNT)}}
KINDS = {"score": SCORES, "selection": SELECTIONS, "allocation": ALLOCATIONS, "merge": MERGES}


def named_options(text, known):
    """NAME[:key=value]... -> the name and all its options as text, with defaults for those not given."""
    name, *given = text.split(":")
    if name not in known:
        raise ValueError(f"{name!r} is none of {', '.join(known)}")
    options, pairs = {option: default for option, (default, _) in known[name].items()}, [item.split("=") for item in given]
    for option, *value in pairs:
        if option not in options or len(value) != 1 or not re.fullmatch(known[name][option][1], value[0]):
            raise ValueError(f"{text!r} has an option that {name} has not")
        options[option] = value[0]
    if len(dict(pairs)) != len(pairs):
        raise ValueError(f"{text!r} says something twice")
    return name, options


def merge_options(name, options):
    """The merging options, numbers parsed; threshold None: merge whatever the cosine. keepkv-paper becomes a keepkv.

    convex, like keepkv, weighs by predicted scores; its key is the weighted mean.
    """
    merge = SimpleNamespace(**{"name": "keepkv" if name == "keepkv-paper" else name, "key": "convex", "period": None,
                               "order": "evict-first", "threshold": None, **options})
    for option in ("threshold", "ema", "rank", "period", "neighbours", "seed"):
        number = getattr(merge, option, None)
        if number is not None:
            setattr(merge, option, None if number == "none" else float(number) if option in ("threshold", "ema", "rank")
                    else int(number))
    merge.predicts = name in ("keepkv", "keepkv-paper", "convex")
    merge.votes = name in ("keepkv", "keepkv-paper")
    if not (0 <= (merge.threshold or 0) <= 1 and 0 <= getattr(merge, "ema", 0) < 1 and 0 <= getattr(merge, "rank", 0) <= 1
            and merge.period != 0 and getattr(merge, "neighbours", 1) > 0):
        raise ValueError(f"{name} has an option out of range")
    if merge.key == "zip" and merge.gqa == "joint":
        raise ValueError("zip is one key for one score: it cannot be joint")
    return merge


def refuse_compositions(policy):
    """Raises ValueError where merging or allocation is meaningless with the host, score or selection."""
    merge, allocation = policy.merge, policy.allocation
    if merge and merge.order == "merge-first" and not (policy.ranks and policy.score == "attention"
                                                        and policy.selection == "top-k"):
        raise ValueError("merge-first needs top-k by attention")
    if merge and merge.period and not (policy.ranks and policy.selection != "greedy"):
        raise ValueError("a rebuild needs the score of one query")
    if allocation and allocation.name == "adakv" and not policy.ranks:
        raise ValueError("adakv needs scores")


def parse_policy(text):
    """HOST[:option]...[+COMPONENT[:option]...]... -> all options by name; allocation and merge separately, or None.

    alpha is a Fraction, or None for adaptive. An option that the policy does not have has its default, without effect.
    window: the number of queries that judge (tova: 1); recent: the newest entries that are always kept, if window are not.
    """
    host, *components = text.split("+")
    policy = SimpleNamespace(window=1, pool=1, sinks=0, recent=0, seed=0, space="head", score="attention", selection="top-k",
                             allocation=None, merge=None, **{option: default for option, (default, _) in WEIGHED.items()})
    policy.host, options = named_options(host, HOSTS)
    vars(policy).update(options)
    kinds = []
    for component in components:
        name, options = named_options(component, {name: known for names in KINDS.values() for name, known in names.items()})
        kinds.append(next(kind for kind, names in KINDS.items() if name in names))
        if kinds[-1] == "merge":
            policy.merge = merge_options(name, options)
        elif kinds[-1] == "allocation":
            policy.allocation = SimpleNamespace(name=name, **options)
        else:
            vars(policy).update({kinds[-1]: name}, **options)
    if len(set(kinds)) != len(kinds):
        raise ValueError(f"policy {text!r} has two components of one kind")
    if policy.host == "h2o" and policy.recent is None:
        policy.recent = policy.window
    if policy.host == "random":  # whose window judges nothing
        policy.recent, policy.window = policy.window, 1
    for option in ("window", "pool", "sinks", "recent", "seed"):
        setattr(policy, option, int(getattr(policy, option)))
    policy.alpha = None if policy.alpha == "adaptive" else Fraction(policy.alpha)
    policy.epsilon = float(policy.epsilon)
    if policy.window < 1 or policy.pool % 2 == 0 or not 0 <= (policy.alpha or 0) <= 1 or not np.isfinite(policy.epsilon):
        raise ValueError(f"policy {text!r} has an option out of range")
    for option, number in (("safeguard", Fraction), ("beta", Fraction), ("temperature", float)):
        if hasattr(policy.allocation, option):
            setattr(policy.allocation, option, number(getattr(policy.allocation, option)))
    if policy.allocation and not (getattr(policy.allocation, "safeguard", 0) <= 1 <= getattr(policy.allocation, "beta", 1)):
        raise ValueError(f"policy {text!r} has an allocation out of range")
    policy.ranks, policy.dynamic = policy.host not in ("streaming-llm", "random"), policy.host not in ("snapkv", "random")
    if not policy.ranks and {"score", "selection"} & set(kinds):
        raise ValueError(f"{policy.host} takes no score and no selection")
    if policy.selection != "top-k" and policy.score != "attention":
        raise ValueError(f"{policy.selection} needs the attention score")
    if policy.selection == "greedy" and policy.host != "snapkv":
        raise ValueError("greedy needs the host snapkv")
    refuse_compositions(policy)
    return policy


def resolve_budget(text, trace, policy):
    """Entries kept per KV head, the always-kept ones included: a count, or floor(percent * prompt / 100)."""
    budget = int(Fraction(text[:-1]) * trace.prompt_tokens // 100 if text.endswith("%") else int(text))
    always = policy.window if policy.host == "snapkv" else policy.sinks + policy.recent
    if not max(1, always) <= budget <= trace.prompt_tokens or policy.window > trace.window_queries:
        raise ValueError(f"budget {text}, {budget} entries, or window {policy.window} does not fit the trace")
    return budget


def always_kept(policy, budget, positions):
    """Which of the cache's entries are always kept: positions [entries], ascending -> booleans."""
    newest = {"snapkv": policy.window, "streaming-llm": budget - policy.sinks}.get(policy.host, policy.recent)
    return (positions < policy.sinks) | (np.arange(len(positions)) >= len(positions) - newest)
