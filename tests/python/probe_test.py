"""Orders of summation are found as they are, of sums written out here, of libraries, and of attention; others are refused."""
import math
import subprocess
import sys

import kvbound
import numpy as np
import pytest
from kvbound import probe, testing
from kvbound.summation_tree import SummationTree


def added(numbers):
    """One after the other, in their type."""
    total = numbers[0]
    for number in numbers[1:]:
        total = total + number
    return total


def added_at_once(numbers):
    """As tensor cores add: aligned to the largest, cut to 24 bits, and so is their sum."""
    quantum = 2.0**(math.frexp(max(abs(number) for number in numbers))[1] - 24)
    mantissa, exponent = math.frexp(sum(math.trunc(number / quantum) for number in map(float, numbers)) * quantum)
    return np.float32(math.ldexp(math.trunc(mantissa * 2**24), exponent - 24))


def evaluated(tree, numbers):
    """What a SummationTree makes of numbers: additions in their type, of more than two at once."""
    results = list(numbers)
    for below in tree.children:
        terms = [results[node] for node in below]
        results.append(added(terms) if len(terms) == 2 else added_at_once(terms))
    return results[-1]


def random_tree(seed, widest):
    """Of 2 to 64 terms in any order, of which up to `widest` are added at once."""
    random = np.random.default_rng(seed)
    terms = int(random.integers(2, 65))
    free, children = list(range(terms)), []
    while len(free) > 1:
        below = random.permutation(free)[:random.integers(2, widest + 1)].tolist()
        free = [node for node in free if node not in below] + [terms + len(children)]
        children.append(below)
    return SummationTree(terms, children)


@pytest.mark.parametrize("widest", [2, 17])
@pytest.mark.parametrize("seed", range(100))
def test_random_trees_are_recovered(seed, widest):
    tree = random_tree(seed, widest)
    found = probe.accumulation(lambda x: evaluated(tree, x), tree.terms)
    assert np.array_equal(found.tree.parents, tree.parents)


def test_a_chain_needs_few_calls():
    for f in (added, lambda x: added(x[::-1])):
        found = probe.accumulation(f, 256)
        assert found.tree.depth == found.tree.longest_chain == 255 and found.tree.running_sums == 1
        assert found.declared == {"accumulate": "F32", "tile": 1, "splits": 1}
        assert found.calls < 5 * 256


def halves(x):
    return x[0] if len(x) == 1 else halves(x[:len(x) // 2]) + halves(x[len(x) // 2:])


def test_pairwise():
    found = probe.accumulation(halves, 8)
    assert found.tree.nested() == (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    assert str(found).splitlines()[:3] == ["8 terms 0..7: 2 x 4", "+- 4 terms 0..3: 2 x 2", "   +- 2 terms 0..1: 2"]
    assert found.tree.depth == 3 and found.tree.running_sums == 4


def test_lanes():
    found = probe.accumulation(lambda x: halves([added(x[lane::4]) for lane in range(4)]), 32)
    assert found.tree.running_sums == 4 and found.tree.depth == 7 + 2 and found.tree.order is None
    assert "8 terms 0, 4, .. 28: 8, one after the other" in str(found)
    assert found.declared == {"accumulate": "F32"}  # of terms that do not follow each other there is no tile


def test_blocks_of_lanes():
    """What a lane adds is not a run, but what the lanes add together is: the tile."""
    def blocks(x):
        return added([halves([added(block[lane::4]) for lane in range(4)]) for block in x.reshape(8, 16)])
    found = probe.accumulation(blocks, 128)
    assert found.declared == {"accumulate": "F32", "tile": 16, "splits": 8}
    assert str(found).startswith("128 terms 0..127: 8 x 16, one after the other\n+- 16 terms 0..15: 2 x 8\n")


def test_parts_with_a_join():
    found = probe.accumulation(lambda x: added([added([added(tile) for tile in part]) for part in x.reshape(4, 4, 16)]), 256)
    assert found.declared == {"accumulate": "F32", "tile": 16, "splits": 4}
    assert [line.strip("+-|` ") for line in str(found).splitlines()[:2]] == [
        "256 terms 0..255: 4 x 64, one after the other", "64 terms 0..63: 4 x 16, one after the other"]


def test_a_part_of_one_tile_beside_longer_ones():
    def f(x):
        return added([added([added(tile) for tile in part.reshape(-1, 16)]) for part in np.split(x, [64, 128])])
    tree = probe.accumulation(f, 144).tree
    assert tree.parts(16) == 3 and tree.handed_on(16) == 3 + 3 + 2
    assert tree.admits(16, 3) and not tree.admits(16, 2)


def test_products_of_tensor_cores():
    """16 at a time, with the sum so far; first from zero."""
    def products(x):
        total = np.float32(0)
        for some in x.reshape(-1, 16):
            total = added_at_once([total, *some])
        return total
    found = probe.accumulation(products, 64)
    assert [len(below) for below in found.tree.children] == [16, 17, 17, 17]
    assert found.bits == 24 and "16 at a time" in str(found)


def require_added_as_found(sums, terms):
    tree = probe.accumulation(sums, terms).tree
    random = np.random.default_rng(terms)
    for _ in range(20):
        numbers = random.standard_normal(terms).astype("f4")
        assert evaluated(tree, numbers) == sums(numbers)


@pytest.mark.parametrize("library", ["sum", "matmul"])
@pytest.mark.parametrize("terms", [7, 100, 1000])
def test_libraries_add_as_the_tree_says(library, terms):
    """To the last bit."""
    ones = np.ones((terms, 8), "f4")
    require_added_as_found({"sum": np.sum, "matmul": lambda x: (np.stack([x, x]) @ ones)[1, 3]}[library], terms)


def rounded(x, bits):
    """To the nearest number of so many bits, ties to even, with the exponents of F32."""
    mantissa, exponent = np.frexp(np.asarray(x, "f8"))
    return np.ldexp(np.rint(mantissa * 2.0**bits), exponent - bits).astype("f4")


def test_precision_of_accumulators_and_terms():
    def of(f, terms=32, dtype="f4"):
        found = probe.accumulation(f, terms, dtype=dtype)
        return found.bits, found.partial_bits, found.term_bits, found.declared

    def in_bits(x, bits):
        total = rounded(x[0], bits)
        for term in x[1:]:
            total = rounded(total + term, bits)
        return total

    sequential = {"tile": 1, "splits": 1}
    assert of(added, dtype="f8") == (53, 53, None, {"accumulate": "F64"} | sequential)
    assert of(lambda x: added(x.astype("f4")), dtype="f8") == (24, 24, 24, {"accumulate": "F32"} | sequential)
    assert of(added, dtype="f2") == (11, 11, None, {"accumulate": "F16"} | sequential)
    assert of(lambda x: in_bits(x, 8)) == (8, 8, 8, {"accumulate": "BF16"} | sequential)
    assert of(lambda x: added(rounded(x, 11))) == (24, 24, 11, {"accumulate": "F32", "products": "TF32"} | sequential)
    assert of(lambda x: added(rounded(x, 8))) == (24, 24, 8, {"accumulate": "F32", "storage": "BF16"} | sequential)
    assert of(lambda x: rounded(added([rounded(added(part), 8) for part in x.reshape(4, 8)]), 8))[:2] == (24, 8)


def test_results_that_hold_few_units():
    """In BF16 there is no 257: units are passed in runs."""
    random = np.random.default_rng(3)
    order = random.permutation(600)
    found = probe.accumulation(lambda x: rounded(added(x[order]), 8), 600)
    chain = [[int(order[0]), int(order[1])]] + [[600 + i, int(term)] for i, term in enumerate(order[2:])]
    assert np.array_equal(found.tree.parents, SummationTree(600, chain).parents)


@pytest.mark.parametrize("f, what", [
    (np.max, "is it a sum"), (np.mean, "of one unit, and of zeros, is 0.05 units; expected 1"),
    (lambda x: (x**2).sum(), "is it a sum"), (lambda x: x[:-1].sum(), "of one unit, and of zeros, is 0 units"),
    (lambda x: x.sum() * np.nan, "is it a sum"),
    (lambda x: np.abs(x).sum(), "is it a sum"), (math.fsum, "loses no unit beside M"),
    (lambda x: added(sorted(x, key=lambda a: -abs(a))), "loses no unit beside M")])
def test_what_is_no_sum_is_refused(f, what):
    with np.errstate(all="ignore"), pytest.raises(kvbound.InvalidInput, match=what):
        probe.accumulation(f, 20)


def test_changing_orders_are_refused():
    random = np.random.default_rng(5)
    with pytest.raises(kvbound.InvalidInput, match="expected a sum in a fixed order"):
        probe.accumulation(lambda x: added(random.permutation(x)), 20)


def test_an_order_that_changes_later_is_refused():
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        return added(x if calls <= last else x[::-1])

    # Behind the tree come its check and the precisions.
    last = probe.accumulation(added, 20).calls - 64 - 64 - 23 - 19
    with pytest.raises(kvbound.InvalidInput, match="another call gave other numbers of units"):
        probe.accumulation(f, 20)
    calls, last = 0, last + 19
    assert probe.accumulation(f, 20).tree.depth == 19


def test_the_package_has_it_without_another_import():
    code = ("import kvbound; print(kvbound.probe.accumulation(sum, 3).tree.nested(), "
            "kvbound.testing.assert_topk([[0]], [[2.0, 1.0]]).ok)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "((0, 1), 2) True\n"


@pytest.mark.parametrize("arguments, what", [({"terms": 1}, "terms: is 1"), ({"terms": 8, "dtype": "i4"}, "dtype: is int32")])
def test_arguments_are_refused(arguments, what):
    with pytest.raises(kvbound.InvalidInput, match=what):
        probe.accumulation(np.sum, **arguments)


@pytest.mark.parametrize("lanes, at_once, usual", [(1, 16, True), (1, 4, False), (2, 1, False), (4, 1, True), (2, 16, False)])
def test_long_sums_beyond_what_bounds_take_for_usual_are_of_any_order(lanes, at_once, usual):
    """A lane is a running sum to which terms of every lanes-th place are added, so many at once."""
    terms, children, sums = 2**15 - 16 + lanes, [], []
    for lane in range(lanes):
        node = lane
        for begin in range(lane + lanes, terms, lanes * at_once):
            children.append([node, *range(begin, min(begin + lanes * at_once, terms), lanes)])
            node = terms + len(children) - 1
        sums.append(node)
    for node in sums[1:]:
        children.append([sums[0], node])
        sums[0] = terms + len(children) - 1
    tree = SummationTree(terms, children)
    assert tree.is_usual() == usual
    found = probe.Accumulation(tree, 24, 24, None, 0)
    assert found.declared == {"accumulate": "F32"} | ({} if usual else {"tile": "any"})


def test_wrong_declarations_are_noticed():
    found = probe.accumulation(added, 256)
    assert found.contradiction(tile=16) == "tile: 16 is declared; 240 sums of more terms are handed on, expected at most 24"
    assert found.contradiction(tile=1, splits=1, accumulate="F32") == ""
    assert found.contradiction(accumulate="F64") == "accumulate: F64 is declared, of 53 bits; 24 are kept"
    parts = probe.accumulation(lambda x: added([added([added(tile) for tile in part]) for part in x.reshape(4, 4, 16)]), 256)
    assert parts.contradiction(tile=16, splits=2) == "splits: 2 is declared; 4 sums are joined"
    assert parts.contradiction(tile=16, splits=4) == parts.contradiction(**parts.declared) == ""
    lanes = probe.accumulation(lambda x: added([added(x[lane::4]) for lane in range(4)]), 256)
    assert lanes.contradiction(tile=16).startswith("tile: 16 is declared; terms are added in another order")


def flash_decode(q, k, v, splits, tile, partials=None, rounded_weights=lambda x: x):
    """Split-KV with online softmax: sums of `tile` tokens, one token after the other, in `splits` parts."""
    head, group = np.arange(q.shape[1]), q.shape[1] // k.shape[2]
    q, k, v = (x[0].astype("f4") for x in (q, k, v))
    logits = np.einsum("hd,thd->ht", q, k[:, head // group]) * np.float32(q.shape[1]**-0.5)
    parts = []
    for run in np.array_split(np.arange(k.shape[0]), splits):
        largest, total, out = np.full(head.shape, -np.inf, "f4"), np.zeros(head.shape, "f4"), np.zeros(q.shape, "f4")
        for tokens in np.split(run, range(tile, len(run), tile)):
            before, largest = largest, np.maximum(largest, logits[:, tokens].max(1))
            weights, rescaled = np.exp(logits[:, tokens] - largest[:, None]), np.exp(before - largest)
            to_multiply = rounded_weights(weights)
            values = added([to_multiply[:, t, None] * v[token, head // group] for t, token in enumerate(tokens)])
            out, total = out * rescaled[:, None] + values, total * rescaled + weights.sum(1)
        parts.append((largest, total, out if partials is None else out.astype(partials).astype("f4")))
    shares = np.exp(np.stack([part[0] for part in parts]) - np.max([part[0] for part in parts], axis=0))
    return (added([share[:, None] * part[2] for share, part in zip(shares, parts)])
            / added([share * part[1] for share, part in zip(shares, parts)])[:, None])[None]


HEADS = {"num_qo_heads": 4, "num_kv_heads": 2}


@pytest.mark.parametrize("splits, tile, tokens, partials", [(4, 64, 1024, None), (1, 1, 256, None), (3, 32, 600, None),
                                                            (4, 16, 256, "f2")])
def test_attention_is_recovered_and_bounds_get_tighter(splits, tile, tokens, partials):
    found = probe.accumulation_of_attention(lambda q, k, v: flash_decode(q, k, v, splits, tile, partials), tokens, 32, **HEADS)
    expected = {"accumulate": "F32", "tile": tile, "splits": splits}
    assert found.declared == expected | ({"partials": "F16"} if partials else {})
    q, k, v = testing.decode_case("flat", tokens=tokens, head_dim=32, **HEADS)
    out = flash_decode(q, k, v, splits, tile, partials)
    options = {"partials": "F16"} if partials else {}
    undeclared = kvbound.check_attention(out, q, k, v, **options)
    declared = kvbound.check_attention(out, q, k, v, **found.declared)
    assert undeclared.ok and declared.ok
    assert declared.worst().bound < undeclared.worst().bound / (1 if partials else 3)
    assert declared.gain.band < undeclared.gain.band


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("bits, weights", [(24, None), (11, "F16"), (8, "BF16"), (4, "F8_E4M3")])
def test_rounding_of_weights_is_found(bits, weights, dtype):
    """Whatever the type of the output is."""
    def kernel(q, k, v):
        return flash_decode(q, k, v, 2, 8, rounded_weights=lambda x: rounded(x, bits)).astype(dtype)
    assert probe.accumulation_of_attention(kernel, 32, 32, **HEADS, dtype=dtype).weights == weights


def test_products_in_tf32_say_it_of_weights_too():
    def kernel(q, k, v):
        return flash_decode(q, k, rounded(v, 11), 2, 8, rounded_weights=lambda x: rounded(x, 11))
    found = probe.accumulation_of_attention(kernel, 32, 32, **HEADS)
    assert found.declared == {"accumulate": "F32", "tile": 8, "splits": 2, "products": "TF32"}


def test_weights_that_vanish_are_not_told():
    assert probe.accumulation_of_attention(lambda q, k, v: flash_decode(1e4 * q, k, v, 1, 8), 32, 32, **HEADS).weights is None


@pytest.mark.parametrize("bits, of_output, weights", [(8, 24, "BF16"), (11, 11, "F16"), (24, 8, None), (24, 24, None)])
def test_rounding_of_weights_that_are_divided_before_is_found(bits, of_output, weights):
    def kernel(q, k, v):
        logits = np.einsum("hd,td->ht", q[0], k[0, :, 0]) * np.float32(q.shape[2]**-0.5)
        exponentials = np.exp(logits - logits.max(1, keepdims=True))
        shares = rounded(exponentials / exponentials.sum(1, keepdims=True), bits)
        return rounded((shares[..., None] * v[0, :, 0]).sum(1), of_output)[None]
    assert probe.accumulation_of_attention(kernel, 32, 32).weights == weights


def test_columns_that_are_added_in_different_orders():
    def kernel(q, k, v):
        out = flash_decode(q, k, v, 1, 8)
        out[..., 5] = flash_decode(q, k[:, ::-1], v[:, ::-1], 1, 8)[..., 5]
        return out
    with pytest.raises(kvbound.InvalidInput, match="expected a sum in a fixed order, the same of all columns"):
        probe.accumulation_of_attention(kernel, 40, 32, **HEADS)
    first, fifth = (probe.accumulation_of_attention(kernel, 40, 32, **HEADS, columns=[column]).tree for column in (0, 5))
    assert first.parts(8) == fifth.parts(8) == 1 and not np.array_equal(first.parents, fifth.parents)


def test_more_tiles_than_there_are_parts_are_no_parts():
    found = probe.accumulation_of_attention(lambda q, k, v: flash_decode(q, k, v, 1, 16), 256, 32, **HEADS)
    assert found.declared == {"accumulate": "F32", "tile": 16}
    assert found.contradiction(tile=16) == "" and found.contradiction(tile=8) != ""


def test_attention_of_half_precision():
    """Results hold few units, and M is small."""
    def kernel(q, k, v):
        return flash_decode(q, k, v, 2, 16).astype("f2")
    found = probe.accumulation_of_attention(kernel, 128, 32, **HEADS, dtype="f2")
    assert found.declared == {"accumulate": "F32", "tile": 16, "splits": 2}


def test_products_of_a_logit():
    def kernel(q, k, v):
        logits = [added((q[0, 0] * key).reshape(2, -1).T).sum(dtype="f4") * np.float32(q.shape[2]**-0.5) for key in k[0, :, 0]]
        weights = np.exp(logits - np.max(logits))
        return (weights / weights.sum() @ v[0, :, 0])[None, None]
    found = probe.accumulation_of_products(kernel, 16, 32)
    lanes = probe.accumulation(lambda x: added(x.reshape(2, -1).T).sum(), 32)
    assert np.array_equal(found.tree.parents, lanes.tree.parents)
    assert found.bits == 24
