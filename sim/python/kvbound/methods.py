"""Methods of one's own, in Python, beside those of the program.

A method is an object with `score`, or with `select`:

    class KnormPress:
        def score(self, queries, keys, values, output_projection):
            return -np.linalg.norm(keys, axis=2)

    score(queries, keys, values, output_projection) -> [num_kv_heads, prompt_tokens]
        larger ones are kept. Or a pair: those, and [num_qo_heads, prompt_tokens] before they are reduced over the heads
        that share a cache, which two-stage selections (critical) use.
    select(queries, keys, values, output_projection, budget) -> for each KV head the positions that are kept
        budget: how many, on average over the layer's KV heads.
    evict(weights, keys, values, positions) -> the position to evict, optional, of either: called in every decode step
        for each KV head whose cache is above its budget. weights [group_size, entries]: the step's attention weights;
        keys, values [entries, head_dim]; positions [entries], the step's own entry last. Without it all that is decoded is
        kept. Heads come one after the other, each with all steps; the reference alone can ask.
    always_kept(prompt_tokens) -> positions, optional, with `score`
    name, optional: what results call it; the class's name by default

Arrays are those of Layer: float64, read-only. Each layer is asked for once, in ascending order, and by one thread.
"""
import numpy as np

from kvbound.errors import InvalidInput, InvalidOption


def is_method(thing):
    """Whether it is an object with `score` or `select`, and no class."""
    return not isinstance(thing, type) and any(callable(getattr(thing, name, None)) for name in ("score", "select"))


class CheckedMethod:
    """A method, whose answers are held against what they must be. The module asks for these names."""

    def __init__(self, method):
        self._method = method
        self.name = str(getattr(method, "name", type(method).__name__))
        self.selects = callable(getattr(method, "select", None))
        self.evicts = callable(getattr(method, "evict", None))
        if self.selects and callable(getattr(method, "score", None)):
            raise InvalidOption(f"{self.name}: has score and select; expected one of them")

    def always_kept(self, prompt_tokens):
        """Ascending positions."""
        ask = getattr(self._method, "always_kept", None)
        return [] if ask is None or self.selects else self._positions(f"{self.name}.always_kept", ask(prompt_tokens), prompt_tokens)

    def score(self, layer):
        """(scores, scores of query heads or None), as the module takes them."""
        answer = self._method.score(layer.queries, layer.keys, layer.values, layer.output_projection)
        scores, of_query_heads = answer if isinstance(answer, tuple) else (answer, None)
        tokens = layer.keys.shape[1]
        return (self._scores(layer, "score", scores, ("num_kv_heads", layer.keys.shape[0]), tokens),
                None if of_query_heads is None else
                self._scores(layer, "score, of query heads", of_query_heads, ("num_qo_heads", layer.queries.shape[0]), tokens))

    def select(self, layer, budget):
        """Lists of ascending positions."""
        where, (heads, tokens, _) = f"{self.name}.select, layer {layer.index}", layer.keys.shape
        answer = self._method.select(layer.queries, layer.keys, layer.values, layer.output_projection, budget)
        if len(answer) != heads:
            raise InvalidInput(f"{where}: is of {len(answer)} heads; expected the positions of each of {heads} KV heads")
        kept = [self._positions(f"{where}, KV head {head}", positions, tokens) for head, positions in enumerate(answer)]
        if not all(kept):
            raise InvalidInput(f"{where}: keeps nothing of KV head {kept.index([])}; expected one entry or more")
        if sum(map(len, kept)) > budget * heads:
            raise InvalidInput(f"{where}: keeps {sum(map(len, kept))} entries; expected {budget * heads} or fewer: "
                               f"a budget of {budget} for each of {heads} KV heads")
        return kept

    def eviction(self, layer):
        """The function that is asked for the position to evict in that layer."""
        def evicted(weights, keys, values, positions):
            position = self._method.evict(weights, keys, values, positions)
            try:
                return int(position)
            except (TypeError, ValueError):
                raise InvalidInput(f"{self.name}.evict, layer {layer}: is {position!r}; expected a position") from None
        return evicted

    def _scores(self, layer, what, scores, rows, tokens):
        where = f"{self.name}.{what}, layer {layer.index}"
        try:
            scores = np.ascontiguousarray(scores, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{where}: {error}; expected numbers") from None
        if scores.shape != (rows[1], tokens):
            raise InvalidInput(f"{where}: has the shape {list(scores.shape)}; expected [{rows[0]}, prompt_tokens] = "
                               f"[{rows[1]}, {tokens}]")
        beyond = np.flatnonzero(~(np.abs(scores) <= np.finfo(np.float32).max))
        if beyond.size:
            raise InvalidInput(f"{where}: element {beyond[0]} is {scores.flat[beyond[0]]}; expected a number within single "
                               "precision, in which devices compute")
        return scores

    @staticmethod
    def _positions(where, positions, tokens):
        kept = np.sort(np.asarray(positions, dtype=object if len(positions) == 0 else None).ravel())
        if kept.size and kept.dtype.kind not in "iu":
            raise InvalidInput(f"{where}: has numbers of type {kept.dtype}; expected integers")
        if kept.size and not (kept[0] >= 0 and kept[-1] < tokens):
            raise InvalidInput(f"{where}: has position {kept[0] if kept[0] < 0 else kept[-1]}; expected 0 to {tokens - 1}")
        twice = np.flatnonzero(kept[1:] == kept[:-1])
        if twice.size:
            raise InvalidInput(f"{where}: has position {kept[twice[0]]} twice")
        return kept.tolist()
