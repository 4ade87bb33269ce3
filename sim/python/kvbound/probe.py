"""The order in which a kernel sums, found by probing, and declared to the bounds of its errors.

A sum of n terms of which term i is +M, term j is -M and all others are units so small that M swallows them is the
number of units that are added after i and j have met:

    f(terms) / unit = n - size(i, j),   size(i, j): terms below the lowest node of the tree of additions above both

From the sizes of a few pairs follows the tree. A node has more than two children where a tensor core adds several
terms at once. How large M must be to swallow a unit tells the precision of the accumulator.

source  FPRev (arXiv:2411.00442)
"""
import math
from dataclasses import dataclass

import numpy as np

from kvbound.errors import InvalidInput
from kvbound.summation_tree import SummationTree

# M and the unit, by the type of the terms.
_MASKS = {np.dtype("f8"): (2.0**600, 1.0), np.dtype("f4"): (2.0**100, 1.0), np.dtype("f2"): (2.0**15, 2.0**-24)}
_BITS = {"F64": 53, "F32": 24, "F16": 11, "BF16": 8}


@dataclass
class Accumulation:
    """How a kernel sums. Prints as its tree; `declared` are options for the checks of its results.

    tree          SummationTree
    bits          of the accumulator, 24 for F32; None: nothing that was tried was lost
    partial_bits  of the partial results that are added last
    term_bits     that are kept of a term alone; None: all
    calls         of the kernel
    weights       of attention: the type that weights are rounded to before they multiply values, where that is found;
                  those of 8 bits are refused by checks, which have no bounds of them
    """
    tree: SummationTree
    bits: int | None
    partial_bits: int | None
    term_bits: int | None
    calls: int
    weights: str | None = None

    @property
    def declared(self):
        """{option: value} of check_attention and other checks: tile, splits, accumulate, partials, products, storage,
        weights, as far as they are found, and only what the bounds hold for. Parts of the cache are what is added last; a
        kernel may add another number of terms in another order."""
        options = {"accumulate": _type_of(self.bits)}
        if self.tree.order:
            options["tile"], options["splits"] = self.tree.order
        elif not self.tree.is_usual():
            options["tile"] = "any"
        if self.partial_bits and self.partial_bits < (self.bits or 64):
            options["partials"] = _type_of(self.partial_bits)
        if self.term_bits and self.term_bits < (self.bits or 64):
            options |= {"products": "TF32"} if self.term_bits == 11 else {"storage": _type_of(self.term_bits)}
        if "products" not in options:  # of which weights are factors
            options["weights"] = self.weights
        return {name: value for name, value in options.items() if value is not None}

    def contradiction(self, *, tile=None, splits=None, accumulate=None, partials=None, **_):
        """One line: what of a declaration is not so; empty if all may be so."""
        tree, terms = self.tree, self.tree.terms
        for what, declared, bits in (("accumulate", accumulate, self.bits), ("partials", partials, self.partial_bits)):
            if declared and bits and bits < _BITS[declared]:
                return f"{what}: {declared} is declared, of {_BITS[declared]} bits; {bits} are kept"
        if tile in (None, "any"):
            return ""
        parts = tree.parts(tile)
        if parts is None:
            return f"tile: {tile} is declared; terms are added in another order than one run of {tile} after the other"
        if splits and parts > splits:
            return f"splits: {splits} is declared; {parts} sums are joined"
        most = math.ceil(terms / tile) + (splits or tree.usual_parts)
        if tree.handed_on(tile) > most:
            return f"tile: {tile} is declared; {tree.handed_on(tile)} sums of more terms are handed on, expected at most {most}"
        return ""

    def __str__(self):
        tree = self.tree
        return (f"{tree.drawing()}\n{_words(tree.depth, 'addition')} deep, longest chain {tree.longest_chain}, "
                f"{_words(tree.running_sums, 'running sum')} of {_type_of(self.bits) or 'more bits than were tried'}; declared: "
                + ", ".join(f"{name}={value}" for name, value in self.declared.items()))


def _words(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _type_of(bits):
    """The type of no more bits: None of None."""
    return next((name for name, has in _BITS.items() if bits >= has), None) if bits else None


def accumulation(f, terms, *, dtype=np.float32, large=None, unit=None):
    """How f adds its terms.

    f        called with arrays [terms] of `dtype`; returns their sum, as anything that float() takes
    terms    how many
    dtype    of NumPy; float32 also for an f that rounds its terms to BF16 or TF32, which hold all that are passed
    large    M, a power of two: by default 2^100, of float64 2^600, of float16, and where f overflows, 2^15
    unit     a power of two: by default 1, of float16, and where f overflows, 2^-24; results must be able to hold it

    returns  Accumulation; calls f from n times, for chains, to n log2(n) times, for balanced trees
    raises   InvalidInput if f is no sum in a fixed order, or loses nothing, as compensated sums do
    """
    probe = _Probe(lambda rows: [float(f(row)) for row in rows], terms, 1, dtype, large, unit)
    return probe.found()


def accumulation_of_attention(f, tokens, head_dim, *, num_qo_heads=1, num_kv_heads=1, columns=None, dtype=np.float32,
                              large=None, unit=None):
    """How a decode kernel adds values over tokens. Queries and keys are 0, so that all weights are equal.

    f        called with q [1, num_qo_heads, head_dim], k and v [1, tokens, num_kv_heads, head_dim] of `dtype`; returns out,
             as q
    tokens   of the cache; most of all a power of two, of which a weight is an exact share
    columns  of head_dim that are probed, all by default, each of each KV head for a pair of its own: all must be added in
             one order, which is not so in some libraries' products of matrices

    returns  Accumulation of so many tokens, with `weights`
    raises   as accumulation
    """
    group = num_qo_heads // num_kv_heads
    zeros = np.zeros((1, num_qo_heads, head_dim), dtype), np.zeros((1, tokens, num_kv_heads, head_dim), dtype)
    columns = list(range(head_dim)) if columns is None else list(columns)

    def sums(rows):
        masks = np.zeros((num_kv_heads * len(columns), tokens), dtype)
        masks[:len(rows)] = rows
        v = np.zeros_like(zeros[1])
        v[0][:, :, columns] = masks.reshape(num_kv_heads, len(columns), tokens).transpose(2, 0, 1)
        out = np.asarray(f(*zeros, v), "f8").reshape(num_kv_heads, group, head_dim)
        return out[:, 0, columns].reshape(-1)[:len(rows)] * tokens

    exact = tokens & (tokens - 1) == 0
    width = num_kv_heads * len(columns)
    found = _Probe(sums, tokens, width, dtype, large, unit, 0 if exact else 0.25, weights=tokens).found()
    found.weights = _rounding_of_weights(f, *zeros)
    return found


def _rounding_of_weights(f, q, k):
    """The type of attention weights, of which tokens 0 and 1 alone have any; None for F32.

    Where a kernel rounds weights beside a largest one of 1, and divides by their sum at last, token 0 has the weight 1 and
    the value -g, token 1 the weight p and the value 1: the output is 0 where p, as it is rounded, is g, for some g of its
    type. Where weights are divided before they are rounded, values of 1 give them, if the output has no smaller type; with
    each other's as values, -w_1 and w_0, they then give 0. In F32 both happen once in 2^13 times, and are asked for 8 times.
    """
    q, k = q.copy(), k.copy()
    q[..., 0], k[0, 2:, :, 0] = 1, -3e4
    head_dim = q.shape[2]

    def outputs(first, second):
        v = np.zeros_like(k)
        v[0, 0], v[0, 1] = first, second
        return np.asarray(f(q, k, v), "f8").reshape(-1, head_dim)[0]

    beside_largest = {"F8_E5M2": 3, "F8_E4M3": 4, "BF16": 8, "F16": 11}
    divided = beside_largest.copy()
    for logit in np.linspace(-0.2, -1.9, 8):
        k[0, 1, :, 0] = logit * math.sqrt(head_dim)
        shares = np.array([outputs(1, 0)[0], outputs(0, 1)[0]])
        if not (shares > 0).all():
            return None
        weight = shares[1] / shares[0]
        for name, bits in list(beside_largest.items()):
            spacing = 2.0**(math.floor(math.log2(weight)) + 1 - bits)
            near = spacing * (round(weight / spacing) + np.arange(head_dim) - head_dim // 2)
            if (outputs(-near, 1) != 0).all():
                del beside_largest[name]
        cancel = outputs(-shares[1], shares[0])[0] == 0
        divided = {name: bits for name, bits in divided.items() if cancel and (np.frexp(shares)[0] * 2.0**bits % 1 == 0).all()}
    return next(iter(beside_largest | divided), None)


def accumulation_of_products(f, tokens, head_dim, *, num_qo_heads=1, num_kv_heads=1, sm_scale=None, dtype=np.float32):
    """How a decode kernel adds the products of a logit over head_dim, found from the weights of tokens.

        out_t / out_0 = exp(sm_scale q . k_t),   v the unit matrix, k_0 = 0

    f        as of accumulation_of_attention
    tokens   2 or more: a call probes as many pairs less one, up to head_dim - 1

    returns  Accumulation of head_dim terms
    raises   as accumulation
    """
    half = np.dtype(dtype) == np.float16
    query = 2.0**15 if half else 1.0
    in_logit = query * (sm_scale or head_dim**-0.5)
    step = 2.0**round(math.log2(16 * in_logit))  # a unit of the logit is nearly 1/16
    q = np.full((1, num_qo_heads, head_dim), query, dtype)
    width = min(tokens, head_dim) - 1

    def sums(rows):
        k, v = (np.zeros((1, tokens, num_kv_heads, head_dim), dtype) for _ in range(2))
        k[0, 1:len(rows) + 1] = rows[:, None]
        v[0, np.arange(width + 1), :, np.arange(width + 1)] = 1
        out = np.asarray(f(q, k, v), "f8").reshape(-1, head_dim)[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(out[1:len(rows) + 1] / out[0]) / in_logit

    # 64 units are a factor of e^4 to e^6: 64 such weights and one without stay in the normal range of F16.
    return _Probe(sums, head_dim, width, dtype, None, 1 / step, 0.25, most_units=64).found()


class _Probe:
    """f, asked for numbers of units.

    sums     called with rows [at most width, terms]; returns a sum each
    slack    how far a sum may be from a number of units: rounding of weights that are no powers of two
    weights  the share of a term in a result is 1/weights
    """

    def __init__(self, sums, terms, width, dtype, large, unit, slack=0, weights=1, most_units=None):
        self.sums, self.terms, self.width, self.dtype, self.slack = sums, terms, width, np.dtype(dtype), slack
        if terms < 2:
            raise InvalidInput(f"probe: terms: is {terms}; expected 2 or more")
        if self.dtype not in _MASKS:
            raise InvalidInput(f"probe: dtype: is {self.dtype}; expected float64, float32 or float16")
        self.random = np.random.default_rng(terms)
        self.calls = 0
        self.children = []  # of node terms + i
        self.choose_masks(large, unit, weights)
        # M less so many units, which has one bit less than M, rounds to M: in types up to 64 bits, or F32.
        ratio = self.large / self.unit
        swallowed = ratio * 2.0**-(65 if ratio >= 2.0**65 * terms else 25)
        self.most_units = self.units_held(min(terms, most_units or terms, max(1, int(swallowed))))

    def choose_masks(self, large, unit, weights):
        row = np.zeros((1, self.terms))
        for of_type in (self.dtype, np.dtype("f2")):
            usual, least = _MASKS[of_type]
            # A result in F16 holds a share of a unit.
            share = 2.0**math.ceil(math.log2(weights)) if of_type == np.float16 else 1
            self.large, self.unit = large or usual, unit or least * share
            row[0, [0, -1]] = self.large, -self.large
            if np.isfinite(self.raw(row)).all():
                return

    def found(self):
        self.nodes(np.arange(self.terms))
        tree = SummationTree(self.terms, self.children)
        if not self.agrees(tree):
            self.refuse("another call gave other numbers of units; expected a sum in a fixed order")
        deepest = tree.parents[tree.depths.argmax()]
        first, second, *rest = (tree.first[node] for node in tree.below(deepest))
        above = rest if deepest == tree.root else [
            tree.first[node] for node in tree.below(tree.parents[deepest]) if node != deepest]
        last = [node for node in tree.below(tree.root) if first not in tree.terms_below(node)]
        return Accumulation(tree, self.bits(first, second, above[0]) if above else None,
                            self.bits(first, second, tree.first[last[-1]]) if above else None,
                            self.bits(first, first, second), self.calls)

    def refuse(self, what):
        raise InvalidInput(f"probe: f: {what}")

    def raw(self, rows):
        """Sums in units, in blocks of `width` rows."""
        results = []
        for begin in range(0, len(rows), self.width):
            block = np.asarray(rows[begin:begin + self.width], self.dtype)
            self.calls += len(block) if self.width == 1 else 1
            with np.errstate(all="ignore"):  # of what f does with M
                results.extend(self.sums(block))
        return np.asarray(results, "f8") / self.unit

    def counted(self, rows):
        """Numbers of units; refuses what is none."""
        found = self.raw(rows)
        whole = np.rint(found)
        wrong = ~(np.abs(found - whole) <= self.slack) | (whole < 0) | (whole > self.terms)
        if wrong.any():
            self.refuse(f"gave {found[wrong][0]:g} units; expected a whole number up to {self.terms}: is it a sum of its terms?")
        return whole.astype(np.int64)

    def units_held(self, most):
        """How many units, up to `most`, the accumulator and the result tell from one less."""
        def hold(count):
            at = np.linspace(0, self.terms - 1, count).round().astype(int)  # count <= terms: no two are equal
            rows = np.zeros((2, self.terms))
            rows[0, at] = rows[1, at[1:]] = self.unit
            return (np.abs(self.raw(rows) - [count, count - 1]) <= self.slack).all()  # one of them is odd

        single = self.raw(self.unit * np.eye(self.terms)[[0, self.terms // 2, -1]])
        if not (np.abs(single - 1) <= self.slack).all():
            self.refuse(f"of one unit, and of zeros, is {single.min():g} units; expected 1: is it a sum of its terms?")
        while most > 1 and not hold(most):
            most = (most + 1) // 2
        return most

    def sizes(self, i, others, units):
        """How many of the terms `units` are below the lowest node above i and each j of others."""
        sizes = np.full(len(others), len(units))
        for run in np.array_split(units, math.ceil(len(units) / self.most_units)):
            for begin in range(0, len(others), 1024):  # rows of a block take 4 KB a term
                some = others[begin:begin + 1024]
                rows = np.zeros((len(some), self.terms))
                rows[:, run] = self.unit
                rows[:, i] = self.large
                rows[np.arange(len(some)), some] = -self.large
                sizes[begin:begin + 1024] -= self.counted(rows)
        return sizes

    def nodes(self, terms, aside=None):
        """Adds the tree over these terms. Returns the node of them all; or, where they are several children of the node
        that first adds them to the term `aside`, those children."""
        i = int(self.random.choice(terms))
        if len(terms) == 1:
            return [i]
        others = terms[terms != i]
        sizes = self.sizes(i, others, terms if aside is None else np.append(terms, aside))
        node, below = i, 1
        for size in np.unique(sizes):
            group = others[sizes == size]
            if size > len(terms):
                return [node, *self.nodes(group, aside)]
            below += len(group)
            if below != size:
                self.refuse("loses no unit beside M: it sums exactly, with compensation, or in a wider type"
                            if (sizes == 2).all() and len(sizes) > 1 else
                            f"adds {size} terms, by one count, and {below}, by another; expected a sum in a fixed order"
                            + (", the same of all columns" if self.width > 1 else ""))
            self.children.append([node, *self.nodes(group, i)])
            node = self.terms + len(self.children) - 1
        return [node]

    def agrees(self, tree):
        """Whether sizes that were not measured before, or are measured again, are those of the tree."""
        i = int(self.random.integers(self.terms))
        others = np.delete(np.arange(self.terms), i)
        return np.array_equal(self.sizes(i, others, np.arange(self.terms)), tree.sizes_above(i)[others])

    def bits(self, high, low, cancelled):
        """p, if high + low is high from high = 2^p low on; high + low + cancelled is probed. None if it never is."""
        most = min(64, int(math.log2(self.large / self.unit)), np.finfo(self.dtype).nmant if high == low else 64)
        rows = np.zeros((most, self.terms))
        powers = self.unit * 2.0**np.arange(1, most + 1)
        rows[:, high] = powers
        rows[:, low] += self.unit
        rows[:, cancelled] = -powers
        lost = np.flatnonzero(np.rint(self.raw(rows)) != 1)
        return int(lost[0]) + 1 if lost.size else None
