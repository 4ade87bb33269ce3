"""Which loops of a kernel do its work, and the table of their instructions."""
from dataclasses import dataclass

from cuda import loops, sass

ARITHMETIC = {"fma", "fp32", "fp64", "special"}
MEMORY = {"global", "shared", "async", "atomic"}
WORK = {"mma", "shuffle"} | ARITHMETIC | MEMORY
LISTED = [name for name in sass.CLASSES if name != "local"]


def amount(code, kinds):
    return sum(number for kind, number in sass.count(code).items() if kind in kinds)


def joined(found):
    return [entry for loop in found for entry in loop.code]


def outside(flow):
    """The code outside of all loops."""
    inside = frozenset().union(*(loop.blocks for loop in flow.loops))
    return [entry for block in flow.order if block not in inside for entry in flow.blocks[block]]


def innermost_of(some):
    return [loop for loop in some if not any(loop.blocks in other.outer for other in some)]


def main_loops(flow):
    """The innermost loops that do a kernel's work; none if no loop does any.

    Innermost are loops that contain no other one with work; loops that only wait or count have none. Of a kernel with mma
    they are the innermost loops that have mma, with the loops inside them. Of any other kernel they are the innermost loops inside another loop, or all of them if
    none is; and of these, those with arithmetic if the one with most work has more arithmetic than accesses to memory,
    else those with accesses. A kernel has no main loops, either, if these have no work but accesses and the code outside of
    all loops is more, and mostly arithmetic: such loops search for what the rest computes with.
    """
    working = [loop for loop in flow.loops if amount(loop.code, WORK)]
    if products := [loop for loop in working if amount(loop.code, {"mma"})]:
        return innermost_of(products)
    innermost = innermost_of(working)
    nested = [loop for loop in innermost if loop.outer] or innermost
    if not nested:
        return []
    largest = max(nested, key=lambda loop: amount(loop.code, WORK))
    arithmetic = amount(largest.code, ARITHMETIC) > amount(largest.code, MEMORY)
    chosen = [loop for loop in nested if amount(loop.code, ARITHMETIC if arithmetic else MEMORY)]
    only_search = not amount(joined(chosen), WORK - {"global", "shared"}) and amount(outside(flow), ARITHMETIC) > max(
        amount(joined(chosen), WORK), amount(outside(flow), MEMORY))
    return [] if only_search else chosen


def nests(flow, chosen):
    """The outermost loops that contain these loops."""
    outermost = {loop.outer[0] if loop.outer else loop.blocks for loop in chosen}
    return [loop for loop in flow.loops if loop.blocks in outermost]


@dataclass(frozen=True)
class Row:
    what: str    # "loops", "nests" or "kernel"
    number: int  # of loops
    code: list

    def __str__(self):
        numbers = sass.count(self.code)
        return f"{self.what:6} {self.number:5} {len(self.code):5} " + " ".join(
            f"{numbers[name]:{len(name)}}" for name in LISTED)


HEADER = f"{'':6} count   all " + " ".join(LISTED)


def rows(code):
    """A kernel's rows of the table: its main loops; the nests that contain them, if those are more; and all of its code,
    if more work lies outside of all loops than in these nests."""
    flow = loops.ControlFlow(code)
    chosen = main_loops(flow)
    around = nests(flow, chosen)
    found = [Row("loops", len(chosen), joined(chosen)), Row("nests", len(around), joined(around))]
    if not chosen or amount(outside(flow), WORK) > amount(joined(around), WORK):
        found.append(Row("kernel", len(flow.loops), flow.code))
    return [row for row, before in zip(found, [None, *found]) if row.code and (not before or row.code != before.code)]


def table(kernels):
    """kernels: as sass.disassembled returns them."""
    lines = [HEADER]
    for name, code in sorted(kernels.items()):
        lines += [name, *(str(row) for row in rows(code))]
    return "\n".join(lines) + "\n"
