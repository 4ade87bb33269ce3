"""Faults of kernels that move the entries of a cache."""
import numpy as np

from fault import Case, fault
from kernels import stored
from support.kernel_files import KernelFile


def case(before, kept, wrong, right=None, **pages):
    """The case of a kernel that leaves `wrong` after it keeps rows `kept` of each head of `before` [G, n, d].

    right  by default the kept rows [kept rows, d]
    """
    right = np.concatenate([rows[positions] for rows, positions in zip(before, kept)]) if right is None else right
    return Case(KernelFile({"before": ("BF16", before), "kept": ("I64", np.concatenate(kept)),
                            "kept_offsets": ("I64", np.cumsum([0, *map(len, kept)])), "after": ("BF16", wrong), **pages}),
                {"after": right})


def drawn(kv_heads, n, width, kept, seed=1):
    """A cache, and the positions that every KV head keeps, ascending."""
    random = np.random.default_rng(seed)
    before = stored(random.standard_normal((kv_heads, n, width), np.float32), "BF16")
    return before, [np.sort(random.permutation(n)[:kept]) for _ in range(kv_heads)]


@fault("compact", "llama.cpp 12253", "vLLM 53505", expected=r"after\[\d+\]: holds row \d+ of KV head \d, which is (not|held)")
def moved_in_place():
    """Rows move to the front in place, 64 at once, the last ones first: some are overwritten before they have moved."""
    before, kept = drawn(2, 4096, 128, 3000)
    after = []
    for rows, positions in zip(before, kept):
        rows = rows.copy()
        for first in reversed(range(0, len(positions), 64)):
            rows[first:first + 64][:len(positions) - first] = rows[positions[first:first + 64]]
        after.append(rows[:len(positions)])
    return case(before, kept, np.concatenate(after))


@fault("compact", "SGLang 31218", expected=r"after\[\d+\]: holds no row of before")
def moved_across_the_page_layout():
    """A page of 64 tokens has their 128 numbers first, then their 4 scales, but rows of 132 are moved: half-moved rows."""
    before, kept = drawn(1, 1024, 132, 512)

    def page(rows):
        return np.concatenate([rows[:, :128].ravel(), rows[:, 128:].ravel()])
    source = np.concatenate([page(before[0, first:first + 64]) for first in range(0, 1024, 64)]).reshape(-1, 132)
    target = source[kept[0]].reshape(-1, 64 * 132)
    after = [np.concatenate([memory[:64 * 128].reshape(64, 128), memory[64 * 128:].reshape(64, 4)], axis=1) for memory in target]
    return case(before, kept, np.concatenate(after))


@fault("compact", "tt-metal 54742", expected=r"after\[[\d, ]+\]: holds row \d+ of KV head \d, which is not kept")
def behind_the_previous_head():
    """A KV head's rows are written directly behind those of the head before, not at the start of its own pages."""
    before, kept = drawn(4, 2048, 128, 1000)
    rows = [rows[positions] for rows, positions in zip(before, kept)]
    right, wrong = np.zeros((4, 1024, 128), np.float32), np.zeros((4 * 1024, 128), np.float32)
    right[:, :1000], wrong[:4000] = rows, np.concatenate(rows)
    pages = {"kv_indptr": ("I32", 16 * np.arange(5)), "kv_indices": ("I32", np.arange(64)),
             "kv_last_page_len": ("I32", np.full(4, 1000 - 15 * 64))}
    return case(before, kept, wrong.reshape(64, 64, 128), right.reshape(64, 64, 128), **pages)
