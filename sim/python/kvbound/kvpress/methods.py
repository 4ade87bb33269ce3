"""The presses that are known: the paper's definition, the options in which a press differs, and what its code says of them."""
from collections.abc import Callable
from typing import Any, NamedTuple

from kvbound.errors import InvalidInput
from kvbound.kvpress import ranking


class Option(NamedTuple):
    """One thing in which a press and its paper may differ."""

    name: str  # in the options of ranking.py and kept_sets.py
    paper: Any
    press: Any
    others: tuple  # that are tried where the press' own does not reproduce it
    text: str  # with {press} and {paper}


class Method(NamedTuple):
    """A press' method: rank of ranking.py, its options, and kvbound's policy of the paper's definition, None if there is none."""

    policy: str | None
    rank: Callable
    options: tuple[Option, ...]


BUDGET = Option("budget", "exactly", "in floating point", (), "n (1 - compression_ratio) is rounded down {press}, not {paper}")


def _snapkv(press):
    return Method("snapkv:window=32:pool=7", ranking.snapkv, (
        Option("window", 32, press.window_size, (16, 32, 64), "the window has {press} queries, not {paper}"),
        Option("kernel", 7, press.kernel_size, (1, 3, 5, 7), "pooling over {press} neighbours, not {paper}"),
        Option("pooling", "maximum", "mean", (), "pooling by {press}, not {paper}"),
        Option("group", "mean", "mean", ("maximum",), "the {press} over a KV head's query heads, not the {paper}"),
        BUDGET))


def _tova(press):
    return Method("tova", ranking.tova, (
        Option("heads", "KV head", "layer", (), "mean attention over the query heads of a {press}, not of a {paper}"),
        Option("last", "ranked", "kept", (), "the last entry is {press} in any case, not {paper}"),
        BUDGET))


def _streaming_llm(press):
    return Method("streaming-llm:sinks=4", ranking.streaming_llm, (
        Option("sinks", 4, press.n_sink, (), "the first {press} entries are kept, not {paper}"),
        BUDGET))


def _knorm(press):
    return Method(None, ranking.knorm, (
        Option("whole_layers", 2, 0, (), "the first {paper} layers are compressed as the others"), BUDGET))


def _expected_attention(press):
    return Method(None, ranking.expected_attention, (
        Option("sinks", 0, press.n_sink, (), "the first {press} entries are kept, and their queries do not count"),
        Option("future", 512, press.n_future_positions, (), "the next {press} positions count, not {paper}"),
        Option("epsilon", 0.02, press.epsilon, (), "epsilon is {press:g}, not {paper:g}"),
        Option("values", "v W^O", "v", (), "the norm of {press}, not of {paper}"),
        BUDGET))


def _critical(host, press):
    policy = host.policy and f"{host.policy}+critical"
    return Method(policy, host.rank, (
        *host.options, Option("selection", "critical", "critical", (), ""),
        Option("alpha", 0.5, press.first_stage_ratio, (), "stage one takes {press:g} of the budget, not {paper:g}"),
        Option("epsilon", 1e-4, press.epsilon, (0.0, 1e-2), "epsilon is {press:g}, not {paper:g}"),
        Option("norm", 1, 1, (2,), "projected values in L{press}, not in L{paper}"),
        Option("product", "mean of products", "product of means", (),
               "attention and norm: {press} over a KV head's query heads, not {paper}"),
        Option("always", "apart", "ranked", (), "the always kept entries use up stages, in which they are ranked first")))


def _adakv(host, press):
    policy = host.policy and f"{host.policy}+adakv"
    return Method(policy, host.rank, (
        *host.options, Option("safeguard", 0.2, press.alpha_safeguard, (), "{press:g} of the budget is safe, not {paper:g}"),
        Option("allocation", "shares", "safe entries", (),
               "a head's safeguard is its best entries, not a share of the mean budget"),
        Option("always", "apart", "ranked", (), "the always kept entries use up safeguards, in which they are ranked first")))


def _critical_adakv(host, press):
    allocated, critical = _adakv(host, press), _critical(host, press)
    own = Option("stage_one", "alpha", "alpha or safe entries", (), "safe entries are stage one, where they are more")
    known = {option.name for option in critical.options}
    both = tuple(option for option in allocated.options if option.name not in known)
    return Method(critical.policy and f"{critical.policy}+adakv", host.rank, (*critical.options, *both, own))


HOSTS = {"SnapKVPress": _snapkv, "TOVAPress": _tova, "StreamingLLMPress": _streaming_llm, "KnormPress": _knorm,
         "ExpectedAttentionPress": _expected_attention}
WRAPPERS = {"CriticalKVPress": _critical, "AdaKVPress": _adakv, "CriticalAdaKVPress": _critical_adakv}


def _known(press, table):
    return next((table[kind.__name__] for kind in type(press).__mro__ if kind.__name__ in table), None)


def method_of(press):
    """The Method of a press.      raises  InvalidInput for one that is not known"""
    wrapper, inner = _known(press, WRAPPERS), getattr(press, "press", None)
    host = _known(press if wrapper is None else inner, HOSTS)
    if host is None:
        of = "" if inner is None else f" of {type(inner).__name__}"
        raise InvalidInput(f"press: is {type(press).__name__}{of}; expected {', '.join(HOSTS)}, or {', '.join(WRAPPERS)} of one "
                           "of them")
    return host(press) if wrapper is None else wrapper(host(inner), press)
