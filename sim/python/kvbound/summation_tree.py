"""The tree of additions of a sum: which partial results are added to which."""
import math
from functools import cached_property

import numpy as np


class SummationTree:
    """The additions of a sum of `terms` terms, which are the nodes 0 to terms - 1; sums follow, the root last.

    children   of sums [sums], each of its nodes by their first term; where there are more than two, they are added at once
    parents    of all nodes; -1 of the root. Equal trees have equal parents
    sizes, first, last, depths   of all nodes: terms below it; the first and last of them; additions above it
    """

    def __init__(self, terms, children):
        """children: of sums numbered from `terms` on, those of a node before the node."""
        self.terms = terms
        sizes, first = [1] * terms, list(range(terms))
        for nodes in children:
            sizes.append(sum(sizes[node] for node in nodes))
            first.append(min(first[node] for node in nodes))
        by_size = sorted(range(terms, len(sizes)), key=lambda node: (sizes[node], first[node]))
        names = dict(zip(range(terms), range(terms))) | {node: terms + i for i, node in enumerate(by_size)}
        self.children = [sorted((names[child] for child in children[node - terms]),
                                key=lambda child: first[child] if child < terms else first[by_size[child - terms]])
                         for node in by_size]
        self._measure()

    def _measure(self):
        nodes = self.terms + len(self.children)
        self.parents, self.depths = np.full(nodes, -1), np.zeros(nodes, int)
        self.sizes, self.first, self.last = np.ones(nodes, int), np.arange(nodes), np.arange(nodes)
        for node, below in enumerate(self.children, self.terms):
            self.parents[below] = node
            self.sizes[node], self.first[node], self.last[node] = (
                self.sizes[below].sum(), self.first[below].min(), self.last[below].max())
        for node in range(nodes - 2, -1, -1):
            self.depths[node] = self.depths[self.parents[node]] + 1

    @property
    def root(self):
        return len(self.parents) - 1

    @property
    def depth(self):
        """The most additions that a term passes through."""
        return int(self.depths.max())

    def below(self, node):
        """The nodes that are added in a node; none of a term."""
        return self.children[node - self.terms] if node >= self.terms else []

    @cached_property
    def running_sums(self):
        """How many sums begin with terms alone."""
        return sum(max(below) < self.terms for below in self.children)

    @cached_property
    def longest_chain(self):
        """The most additions of one running sum: to a sum terms and smaller sums are added, one after the other."""
        lengths = np.zeros(len(self.parents), int)
        for node, below in enumerate(self.children, self.terms):
            lengths[node] = 1 + lengths[max(below, key=lambda child: (self.sizes[child], lengths[child]))]
        return int(lengths.max())

    def nested(self):
        """Tuples of tuples and terms: ((0, 1), 2)."""
        made = list(range(self.terms))
        for below in self.children:
            made.append(tuple(made[child] for child in below))
        return made[-1]

    def sizes_above(self, term):
        """[terms]: the terms below the lowest node above both `term` and each other one; 1 of itself."""
        sizes, node = np.ones(self.terms, int), term
        while node != self.root:
            child, node = node, self.parents[node]
            for other in self.below(node):
                if other != child:
                    sizes[self.terms_below(other)] = self.sizes[node]
        return sizes

    def terms_below(self, node):
        """Ascending."""
        terms, waiting = [], [node]
        while waiting:
            child = waiting.pop()
            waiting.extend(self.below(child))
            terms.extend([child] if child < self.terms else [])
        return sorted(terms)

    def is_run(self, node):
        """Whether the terms of a node follow each other."""
        return bool(self.last[node] - self.first[node] + 1 == self.sizes[node])

    def parts(self, tile):
        """How many running sums are joined: of runs of successive terms each, the sum of its tiles in their order or
        against it. A tile is at most so many terms that follow each other. None if the tree is no such sum."""
        parts = {}
        for node in range(len(self.parents) - self.handed_on(tile), len(self.parents)):
            below = self.below(node)
            if len(below) != 2 or any(child not in parts and not self.is_run(child) for child in below):
                return None
            sums = [parts[child] for child in below if child in parts]
            is_join = len(sums) == 2 or max(sums, default=1) > 1
            if not is_join and not self.is_run(node):
                return None
            parts[node] = sum(sums) + 2 - len(sums) if is_join else 1
        return parts.get(self.root, 1 if self.is_run(self.root) else None)

    def handed_on(self, tile):
        """How many sums there are of more terms than a tile's."""
        # Nodes are in order of size.
        return len(self.parents) - int(np.searchsorted(self.sizes, tile, side="right"))

    def admits(self, tile, parts):
        """Whether the bounds with this tile and so many parts (error_bounds.md, "Long sums") are of this order."""
        found = self.parts(tile)
        return found is not None and found <= parts and self.handed_on(tile) <= math.ceil(self.terms / tile) + parts

    @property
    def usual_parts(self):
        """The most parts that the bounds suppose where none are declared (error_bounds.md, "Parts")."""
        return max(8, math.ceil(self.terms / 256))

    @cached_property
    def order(self):
        """(tile, parts) of the smallest bound that is of this order, whatever the terms are; None if no bound is smaller
        than that of any order, 4 terms. In units of 2^-24:

            bound = ceil(terms / tile) + parts + 4 tile + parts

        A running sum of tiles looks like one of parts: then every tile is counted as a part, too, unless that are more than
        is usual of parts: then there are no parts to declare, None.
        """
        best, least = None, 4 * self.terms
        for tile in np.unique(self.sizes).tolist():
            tiles, handed_on = math.ceil(self.terms / tile), self.handed_on(tile)
            fewest_parts = max(1, handed_on - tiles)  # that would admit it
            if tiles + 4 * tile + 2 * fewest_parts >= least:
                continue
            parts = self.parts(tile)
            is_unclear = parts == 1 and tile > 1
            if is_unclear:
                parts = min(1 + handed_on, self.usual_parts)
            if parts and self.admits(tile, parts) and tiles + 4 * tile + 2 * parts < least:
                best = tile, None if is_unclear and parts <= handed_on else parts
                least = tiles + 4 * tile + 2 * parts
        return best

    def is_usual(self):
        """Whether the bounds hold for which no order is declared (error_bounds.md, "Long sums"): up to 8,192 terms; no term
        passing through more additions than that, of k at once counting 2 k; or 8 to 16 added to a running sum at a time."""
        if self.terms <= 8192:
            return True
        costs = np.zeros(len(self.parents), int)
        for node in range(self.root - 1, -1, -1):
            siblings = len(self.below(self.parents[node]))
            costs[node] = costs[self.parents[node]] + (1 if siblings == 2 else 2 * siblings)
        large = [node for node, below in enumerate(self.children, self.terms) if self.sizes[node] > 16]
        return bool(costs.max() <= 8192) or all(
            self.is_run(node) and (len(self.below(node)) == 2 or 9 <= len(self.below(node)) <= 17) for node in large) and \
            any(len(self.below(node)) > 2 for node in large)

    def drawing(self, lines=16):
        """What is added to what, equal parts once: text of at most so many lines."""
        return "\n".join(_Drawing(self).lines(self.root, lines)[:lines])


class _Drawing:
    def __init__(self, tree):
        self.tree = tree
        known = {}
        self.shapes = [0] * tree.terms
        for below in tree.children:
            key = tuple(sorted(self.shapes[child] for child in below))
            self.shapes.append(known.setdefault(key, len(known) + 1))

    def running(self, node):
        """The nodes that a running sum adds, in its order: down to where what it began with is no larger than others."""
        added, largest = [], 0
        while True:
            *others, sum_so_far = sorted(self.tree.below(node), key=lambda child: (self.tree.sizes[child], -child))
            added.append(others)
            largest = max(largest, *(self.tree.sizes[other] for other in others))
            if self.tree.sizes[sum_so_far] <= largest or len(self.tree.below(sum_so_far)) != len(others) + 1:
                return [[sum_so_far], *reversed(added)]
            node = sum_so_far

    def terms(self, node):
        """ "0..63", or where they do not follow each other "0, 8, .. 120"."""
        tree = self.tree
        first, last = tree.first[node], tree.last[node]
        if tree.is_run(node):
            return f"{first}" if first == last else f"{first}..{last}"
        second = tree.terms_below(node)[1]
        return f"{first}, {last}" if second == last else f"{first}, {second}, .. {last}"

    def lines(self, node, levels):
        tree = self.tree
        steps = self.running(node)
        at_once = len(steps[-1]) + (len(steps) == 2)
        all_added = [child for step in steps for child in step]
        how = "together" if len(steps) == 2 and at_once > 2 else \
            f"{at_once} at a time" if at_once > 1 and len(steps) > 2 else "one after the other" if len(all_added) > 2 else ""
        kinds = {}
        for child in all_added:
            kinds.setdefault(self.shapes[child], []).append(child)
        head = f"{tree.sizes[node]} terms {self.terms(node)}: " + " + ".join(
            f"{len(nodes)}{'' if tree.sizes[nodes[0]] == 1 else f' x {tree.sizes[nodes[0]]}'}" for nodes in kinds.values())
        lines = [head + (f", {how}" if how else "")]
        large = [nodes[0] for nodes in kinds.values() if tree.sizes[nodes[0]] > 1 and levels > 1]
        for i, child in enumerate(large):
            bar = "   " if i == len(large) - 1 else "|  "
            first, *rest = self.lines(child, levels - 1)
            lines += ["+- " + first, *(bar + line for line in rest)]
        return lines
