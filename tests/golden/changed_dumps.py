"""Dumps for `kvbound diff`, made from a right one: right ones in other forms, wrong ones, and files that must be refused.

All tensors have their newer names (same_files.RENAMED). The verdict that each should get is not stated here: the same
dumps are judged by two programs, whose verdicts must be equal.
"""
import itertools

import numpy as np

from same_files import newer_name
from support.dumps import BY_STEP, INTEGRAL, Dump, recompute
from support.faults import with_array, with_element, with_metadata

# Changes of a canonical policy's text: the dump of one policy states that it is of another one.
OTHER_POLICIES = (
    (":pool=7", ":pool=5"), (":window=32", ":window=30"), (":window=8", ":window=9"), (":recent=8", ":recent=7"),
    (":sinks=0", ":sinks=1"), (":sinks=4", ":sinks=3"), (":space=head", ":space=projected"), ("+exact", "+obcache-value"),
    ("+obcache-key", "+obcache-joint"), (":alpha=0.5", ":alpha=0.25"), (":alpha=adaptive", ":alpha=0.75"),
    (":epsilon=1e-4", ":epsilon=0.01"), (":norm=l1", ":norm=l2"), (":gqa=mean-of-products", ":gqa=product-of-means"),
    (":safeguard=0.2", ":safeguard=0.9"), (":beta=20", ":beta=2"), (":shape=linear", ":shape=cosine"),
    (":threshold=none", ":threshold=0.99"), (":threshold=0.5", ":threshold=none"), (":ema=0.9", ":ema=0.8"),
    (":scores=attention", ":scores=raw"), (":normalisation=exact", ":normalisation=paper"), (":key=min-norm", ":key=convex"),
    (":gqa=joint", ":gqa=mean"), (":rank=0.3", ":rank=0"), (":predict=ema", ":predict=current"),
    (":period=none", ":period=2"), (":neighbours=32", ":neighbours=8"), (":seed=0", ":seed=1"), ("+d2o", "+kvmerger"),
    ("+greedy", ""))


def in_newer_names(dump):
    return Dump(dict(dump.metadata), {newer_name(name): tensor for name, tensor in dump.tensors.items()})


def other_forms(right):
    """The same dump stored in other types, and subsets of it."""
    for dtype in ("F32", "F16", "BF16"):
        stored = right.stored(dtype)
        stored.tensors = {name: (dtype if name.split(".")[-1] not in INTEGRAL else "I64", array)
                          for name, (_, array) in right.tensors.items()}
        yield f"stored as {dtype}", stored
        yield f"stored as {dtype}, accumulated in F32", with_metadata(stored, accumulate="F32", storage="BF16")
    kinds = right.kinds()
    for kind in sorted(kinds):
        yield f"only {kind}", right.only({kind})
        yield f"without {kind}", right.only(kinds - {kind})
    steps = right.copy()
    steps.tensors = {name: (dtype, array[:3] if name.split(".")[-1] in BY_STEP else array)
                     for name, (dtype, array) in right.tensors.items()}
    yield "the first three steps", steps
    layer = right.copy()
    layer.tensors = {name: tensor for name, tensor in right.tensors.items() if name.startswith("layers.1.")}
    yield "one layer", with_metadata(layer, layers="1")
    yield "no tensors", right.only(set())


def wrong_numbers(right, verdicts, layer):
    """Single wrong elements, and whole tensors scaled.

    verdicts: `diff`'s on the right dump, by tensor; each tensor's worst element is moved by half its bound and by twice it
    """
    for kind in sorted(right.kinds() - set(INTEGRAL)):
        array = right.array(layer, kind)
        middle = np.unravel_index(array.size // 2, array.shape)
        changes = [(f"times {factor}", array[middle] * factor) for factor in (1 + 1e-13, 1 + 1e-9, 1.01)]
        for change, number in (*changes, ("NaN", np.nan), ("infinite", np.inf), ("zero", 0.0)):
            yield f"an element of {kind} {change}", with_element(right, layer, kind, middle, number)
        yield f"{kind} times 1.01", with_array(right, layer, kind, lambda array: array * 1.01)
        worst = verdicts.get(f"layers.{layer}.{kind}", {}).get("worst")
        if worst and worst["bound"]:
            for bounds in (0.5, 2):
                yield f"{kind} off by {bounds} bounds", with_element(right, layer, kind, tuple(worst["index"]),
                                                                     float(worst["expected"]) + bounds * worst["bound"])


def exchanges(right, layer, prompt_tokens):
    """Pairs (kept, not kept) of the last KV head: the largest and the smallest score, then the two scores nearest to the
    selection's threshold, then the ends of the cache."""
    offsets = right.array(layer, "kept_offsets")
    kept = right.array(layer, "kept")[offsets[-2]:]
    out = np.setdiff1d(np.arange(prompt_tokens), kept)
    scored = next((kind for kind in ("stage_two_score", "score") if kind in right.kinds()), None)
    score = right.array(layer, scored)[-1] if scored else np.arange(float(prompt_tokens))
    kept, out = (positions[positions < len(score)] for positions in (kept, out))
    if len(kept) and len(out):
        yield kept[np.argmax(score[kept])], out[np.argmin(score[out])]
        yield kept[np.argmin(score[kept])], out[np.argmax(score[out])]
        yield kept[0], out[-1]


def wrong_kept_sets(right, layer, prompt_tokens):
    offsets = right.array(layer, "kept_offsets")
    first, kept = offsets[-2], right.array(layer, "kept")
    for gone, instead in exchanges(right, layer, prompt_tokens):
        def exchange(kept, gone=gone, instead=instead):
            head = kept[first:]
            kept[first:] = np.sort(np.append(head[head != gone], instead))

        yield f"{instead} kept rather than {gone}", with_array(right, layer, "kept", exchange)
    for what, index, numbers in (("position -1", first, -1), ("a position beyond the prompt", -1, prompt_tokens),
                                 ("a position twice", first + 1, kept[first]),
                                 ("positions out of order", slice(first, first + 2), kept[[first + 1, first]]),
                                 ("the first positions", slice(first, None), np.arange(offsets[-1] - first))):
        yield f"kept: {what}", with_element(right, layer, "kept", index, numbers)
    fewer = with_array(right, layer, "kept", lambda kept: np.delete(kept, first + 1))
    yield "an entry fewer", with_element(fewer.only(fewer.kinds() - {"votes", "merged_key", "merged_value"}), layer,
                                         "kept_offsets", -1, offsets[-1] - 1)
    yield "offsets that share otherwise", with_element(right, layer, "kept_offsets", 1, offsets[1] - 1)
    if "score_positions" in right.kinds():
        yield "a wrong score position", with_element(right, layer, "score_positions", 7, 8)


def wrong_evictions(right, layer, prompt_tokens):
    """Wrong choices during decoding: the evicted entry, and the entry that it merged into; and wrong votes."""
    kept = right.array(layer, "kept")[right.array(layer, "kept_offsets")[-2]:]
    if "evicted" in right.kinds():
        evicted = right.array(layer, "evicted")
        steps = len(evicted)
        best_and_worst = (position for position, _ in exchanges(right, layer, prompt_tokens))
        for number in dict.fromkeys((-1, -7, 0, 999, prompt_tokens, prompt_tokens + steps, evicted[1, -1], evicted[-1, -1],
                                     *kept[:3], *kept[-2:], *best_and_worst)):
            yield f"evicted: {number}", with_element(right, layer, "evicted", (2, -1), number)
        order = [1, 0, *range(2, steps)]
        yield "evicted: two steps exchanged", with_array(right, layer, "evicted", lambda array: array[order])
        yield "evicted: heads exchanged", with_array(right, layer, "evicted", lambda array: array[:, ::-1])
    if "merged_into" in right.kinds():
        for number in dict.fromkeys((-2, -1, -3, 1000, evicted[-1, -1], evicted[0, -1], *kept[:3], *kept[-2:])):
            for step in (1, -1):
                yield f"merged into {number}", with_element(right, layer, "merged_into", (step, -1), number)
    if "votes" in right.kinds():
        votes = right.array(layer, "votes")
        yield "a vote more", with_element(right, layer, "votes", 7, votes[7] + 1)
        yield "a vote fewer", with_element(right, layer, "votes", np.argmax(votes), votes.max() - 1)


def other_claims(right):
    """Metadata that do not describe what was computed."""
    for old, new in OTHER_POLICIES:
        if old in right.metadata["policy"]:
            yield f"claims {new}", with_metadata(right, policy=right.metadata["policy"].replace(old, new, 1))
    entries = int(right.metadata["budget"])
    for fields in ({"budget": str(entries + 1)}, {"budget": str(entries - 1)}, {"storage": "BF16"}, {"storage": "F64"},
                   {"accumulate": "F32"}, {"accumulate": "F32", "weights": "BF16"}, {"backend": "another"}):
        yield f"claims {fields}", with_metadata(right, **fields)


def unfit_files(right):
    """Files, as bytes, that must be refused."""
    for field in right.metadata:
        for text in (None, "", "x"):
            yield f"{field} {text!r}", with_metadata(right, **{field: text}).bytes()
    for kind in sorted(right.kinds()):
        dtype, array = right.tensors[f"layers.1.{kind}"]
        for what, wrong in (("shorter", array[:-1]), ("a column", array.reshape(-1)[:, None]), ("deeper", array[None])):
            yield f"{kind} {what}", with_array(right, 1, kind, lambda _, wrong=wrong: wrong).bytes()
        for name, tensor in ((f"layers.1.{kind}", ("F32" if dtype == "I64" else "I64", array)),
                             (f"layers.2.{kind}", (dtype, array)), (f"layers.00.{kind}", (dtype, array))):
            other = right.copy()
            other.tensors[name] = tensor
            yield f"{name} as {tensor[0]}", other.bytes()
        missing = right.copy()
        del missing.tensors[f"layers.0.{kind}"]
        yield f"{kind} missing in a layer", missing.bytes()
    for kind in ("scores", "stage_two_score", "projected_value_norms", "bound", "evicted", "votes", "merged_into"):
        if kind not in right.kinds():
            other = right.copy()
            other.tensors[f"layers.0.{kind}"] = "F64", np.zeros(3)
            yield f"{kind} that the policy does not have", other.bytes()
    data = right.bytes()
    yield from (("cut", data[:-8]), ("empty", b""), ("seven bytes", data[:7]), ("longer", data + b"\0"))


def recomputed_dumps(trace, policy, budget):
    """Dumps by the independent implementation, whose rounding errors differ."""
    yield "recomputed in F64", in_newer_names(recompute(trace, policy, budget))
    single = in_newer_names(recompute(trace, policy, budget, np.float32))
    yield "recomputed in F32", single
    yield "recomputed in F32, claims F64", with_metadata(single, accumulate="F64", storage="F64")


def dumps_to_judge(right, verdicts, trace, prompt_tokens, one_in=1, first=0):
    """(description, the file's bytes) of every dump; right: a dump of two layers.

    one_in, first   if one_in > 1, only the right dump and every one_in-th of its changes, beginning with number `first`
    """
    yield "right", right.bytes()
    changed = itertools.chain(other_forms(right), wrong_numbers(right, verdicts, 1), wrong_kept_sets(right, 1, prompt_tokens),
                              wrong_evictions(right, 1, prompt_tokens), other_claims(right))
    for number, (label, dump) in enumerate(changed):
        if number % one_in == first % one_in:
            yield label, dump.bytes()
    if one_in == 1:
        for label, dump in recomputed_dumps(trace, right.metadata["policy"], right.metadata["budget"]):
            yield label, dump.bytes()
        yield from unfit_files(right)
