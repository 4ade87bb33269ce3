"""Faults of kernels that select the k entries of largest score."""
import numpy as np

from fault import Case, fault
from support.kernel_files import KernelFile


def best(scores, k):
    return np.argsort(-scores, axis=-1, kind="stable")[..., :k]


def case(scores, wrong, lengths=None):
    """The case of a kernel that selects `wrong` [rows, k] of scores [rows, n], of which the first `lengths` count."""
    right = np.full(wrong.shape, -1)
    for row, length in enumerate([scores.shape[1]] * len(scores) if lengths is None else lengths):
        selected = best(scores[row, :length], wrong.shape[1])
        right[row, :len(selected)] = selected
    ragged = {} if lengths is None else {"lengths": ("I32", lengths)}
    return Case(KernelFile({"scores": ("F32", scores), "indices": ("I32", wrong), **ragged}), {"indices": right})


def drawn(rows, n, seed=1):
    return np.random.default_rng(seed).standard_normal((rows, n), np.float32)


@fault("topk", "SGLang 36807", "vLLM 51782", "SGLang 35257", "b12x 55",
       expected=r"indices\[.*\]: is \d+ rather than \d+, by score: .*; \d+ of 2048 entries are wrong")
def candidates_overflow():
    """A buffer holds 4,096 candidates of the threshold's coarse bin, those that come later are dropped: k = 2,048 of 262,144."""
    scores, k = drawn(2, 262144), 2048
    bins = scores.astype(np.float16).view(np.uint16) >> 8  # positive numbers: exponent and two digits
    wrong = []
    for row, coarse in zip(scores, bins):
        coarse = np.where(row > 0, coarse, 0)
        threshold = coarse[best(row, k)[-1]]
        above, candidates = np.flatnonzero(coarse > threshold), np.flatnonzero(coarse == threshold)[:4096]
        wrong.append(np.concatenate([above, candidates[best(row[candidates], k - len(above))]]))
    return case(scores, np.array(wrong))


@fault("topk", "SGLang 30645", "SGLang 30512", expected=r"indices\[.*\]: holds 1124 entries; expected 2048")
def ties_overflow_to_no_entry():
    """At most 1,024 ties at the threshold are kept: of 100 scores and 8,220 zeros, 924 of 2,048 slots hold -1."""
    scores, k = np.zeros((2, 8320), np.float32), 2048
    scores[:, ::83][:, :100] = np.abs(drawn(2, 100)) + 1
    wrong = best(scores, k)
    wrong[:, 100 + 1024:] = -1
    return case(scores, wrong)


@fault("topk", "tt-metal 25359", expected=r"indices\[.*\]: is \d+ rather than \d+, by score: .*; \d+ of 64 entries are wrong")
def indices_of_16_bits():
    """Indices are stored in 16 bits: entry 65,536 and those behind it are taken for the first ones."""
    scores = drawn(4, 131072)
    return case(scores, best(scores, 64) % 65536)


@fault("topk", "aiter 4661", expected=r"indices\[.*\]: is \d+; the row has entries 0 to \d+")
def length_of_another_unit():
    """Rows have an entry for every 4 tokens, but end at their number of tokens: stale scores behind the last entry compete."""
    lengths = np.array([300, 512, 1000, 700])
    scores = drawn(4, 4096)
    return case(scores, np.array([best(row[:4 * length], 256) for row, length in zip(scores, lengths)]), lengths)


@fault("topk", "NeMo Automodel 2152", expected=r"indices\[.*\]: is 0, which the row holds already")
def no_entry_clamped_to_zero():
    """Rows with fewer than k entries have slots of -1, which are clamped to 0: entry 0 is selected again and again."""
    lengths = np.array([200, 90, 250, 31])
    scores = drawn(4, 512)
    wrong = case(scores, np.zeros((4, 256), int), lengths).right["indices"].clip(min=0)
    return case(scores, wrong, lengths)
