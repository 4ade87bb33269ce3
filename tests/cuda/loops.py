"""The loops of a kernel, found in the labels and branches of its machine code.

A loop is what the branches back to one instruction enclose: all code that reaches them and that cannot be reached but
through that instruction (a natural loop). Its place in memory does not matter: nvcc moves rare paths behind the
kernel's end.
"""
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush


@dataclass(frozen=True)
class Loop:
    code: list          # all Instructions, those of inner loops and of both sides of branches included
    blocks: frozenset
    outer: tuple = ()   # the blocks of the loops around it

    @property
    def depth(self):
        return len(self.outer)


def branches_by(instruction):
    """Whether an instruction (goes to its target, may go on to the next one).

    BRA.DIV is for warps whose threads have diverged at a shuffle, and taken to go on. Subroutines return; BSYNC goes on
    with the next instruction, as BSSY's target is there.
    """
    if instruction.base == "BRA":
        conditional = instruction.predicate or not instruction.operands.startswith("`")
        return instruction.opcode != "BRA.DIV", conditional
    return False, instruction.base not in ("EXIT", "RET") or instruction.predicate not in ("", "PT")


class ControlFlow:
    """The basic blocks of a kernel and their loops."""

    def __init__(self, code):
        """code: labels and Instructions in order, as sass.kernels returns them."""
        self.blocks, self.after, labels = [[]], [], {}
        waits = []
        for entry in code:
            if isinstance(entry, str):
                if self.blocks[-1]:
                    self.blocks.append([])
                labels[entry] = len(self.blocks) - 1
                continue
            self.blocks[-1].append(entry)
            if entry.base == "BSYNC":
                waits.append((entry.operands, len(self.blocks)))
            if entry.base in ("BRA", "EXIT", "RET", "BSYNC"):
                self.blocks.append([])
        self.check_reconvergence(waits, labels)
        for i, block in enumerate(self.blocks):
            taken, goes_on = branches_by(block[-1]) if block else (False, True)
            following = [labels[block[-1].target]] if taken else []
            self.after.append(following + ([i + 1] if goes_on and i + 1 < len(self.blocks) else []))

    def check_reconvergence(self, waits, labels):
        """Every BSYNC lies before the target of a BSSY of its barrier, so that it is no jump."""
        targets = {(entry.operands.split(",")[0], labels[entry.target]) for block in self.blocks for entry in block
                   if entry.base == "BSSY"}
        for barrier, following in waits:
            if (barrier, following) not in targets:
                raise ValueError(f"BSYNC {barrier} does not lie before the target of its BSSY")

    @cached_property
    def order(self):
        """The blocks that can be reached, each before those that follow it, but for loops (reverse postorder)."""
        finished, seen, path = [], {0}, [(0, iter(self.after[0]))]
        while path:
            block, rest = path[-1]
            following = next(rest, None)
            if following is None:
                finished.append(block)
                path.pop()
            elif following not in seen:
                seen.add(following)
                path.append((following, iter(self.after[following])))
        return finished[::-1]

    @cached_property
    def before(self):
        found = defaultdict(list)
        for block in self.order:
            for following in self.after[block]:
                found[following].append(block)
        return found

    @cached_property
    def dominators(self):
        """Of every reachable block the last one that all ways to it pass (Cooper, Harvey and Kennedy, "A Simple, Fast
        Dominance Algorithm", 2001)."""
        place = {block: i for i, block in enumerate(self.order)}
        nearest, changed = {0: 0}, True

        def common(a, b):
            while a != b:
                if place[a] < place[b]:
                    a, b = b, a
                a = nearest[a]
            return a
        while changed:
            changed = False
            for block in self.order[1:]:
                known = [other for other in self.before[block] if other in nearest]
                found = known[0]
                for other in known[1:]:
                    found = common(found, other)
                changed |= nearest.get(block) != found
                nearest[block] = found
        return nearest

    def dominates(self, first, block):
        while block not in (first, 0):
            block = self.dominators[block]
        return block == first

    def fewest_before(self, base, through):
        """The instructions that a thread executes at least before one of `base`, on a way on which it executes one of
        `through`: those of the shortest such way."""
        there = len(self.blocks)
        seen, ways = set(), [(0, 0, False)]  # (instructions executed, block, whether it has been through)
        while ways:
            executed, block, is_through = heappop(ways)
            if block == there:
                return executed
            if (block, is_through) in seen:
                continue
            seen.add((block, is_through))
            bases = [entry.base for entry in self.blocks[block]]
            begin = 0 if is_through else next((place for place, each in enumerate(bases) if each in through), None)
            if begin is not None and base in bases[begin:]:
                heappush(ways, (executed + bases.index(base, begin), there, True))
                continue
            for following in self.after[block]:
                heappush(ways, (executed + len(bases), following, begin is not None))
        raise ValueError(f"no way leads to {base}")

    def unread_before(self, load, base):
        """The loads of this kind from which a way leads to one of `base` on which nothing reads what they load."""
        return [entry for block, entries in enumerate(self.blocks) for place, entry in enumerate(entries)
                if entry.base == load and self.leads_unread(entry, block, place + 1, base)]

    def leads_unread(self, load, block, place, base):
        seen, ways = set(), [(block, place)]
        while ways:
            block, place = ways.pop()
            end = next((entry for entry in self.blocks[block][place:] if entry.base == base or entry.read & load.loaded), None)
            if end is None:
                ways += [(following, 0) for following in self.after[block] if following not in seen]
                seen.update(self.after[block])
            elif not end.read & load.loaded:
                return True
        return False

    @cached_property
    def loops(self):
        """All Loops, those of outer ones before inner ones."""
        bodies, place = {}, {block: i for i, block in enumerate(self.order)}
        for block in self.order:
            for head in self.after[block]:
                if place[head] > place[block]:
                    continue
                if not self.dominates(head, block):
                    raise ValueError("a loop has two entries")
                body, open_ends = bodies.setdefault(head, {head}), [block]
                while open_ends:
                    inside = open_ends.pop()
                    if inside not in body:
                        body.add(inside)
                        open_ends += self.before[inside]
        found = [frozenset(body) for body in sorted(bodies.values(), key=len, reverse=True)]
        return [Loop([entry for block in sorted(body) for entry in self.blocks[block]], body,
                     tuple(other for other in found if other > body)) for body in found]

    @property
    def code(self):
        """All instructions that can be reached."""
        return [entry for block in sorted(self.order) for entry in self.blocks[block]]
