"""Faults for tests of `diff`: in a right dump, in what it is computed from, or in the independent implementation.

Generators of wrong dumps yield pairs (what `diff` says of it, dump). Unless a KV head is given, the fault is in the last one.
"""
import numpy as np

from independent.scores import softmax, squares
from support.dumps import INTEGRAL, Dump


# Copies of a dump with one change

def with_array(dump, layer, kind, change):
    """A copy with one tensor changed: change(array) edits the array in place or returns a new one."""
    copy = dump.copy()
    array = change(copy.array(layer, kind))
    if array is not None:
        copy.put(layer, kind, array)
    return copy


def with_element(dump, layer, kind, index, number):
    return with_array(dump, layer, kind, lambda array: array.__setitem__(index, number))


def with_metadata(dump, **fields):
    copy = dump.copy()
    copy.metadata = {key: text for key, text in (copy.metadata | fields).items() if text is not None}
    return copy


# Numbers. item: an entry of `tensors` in diff's report on the right dump

def is_judged(item):
    """Whether the item is of real numbers, some of which have a bound that tells them from others."""
    return item["tensor"] not in INTEGRAL and item["worst"] is not None and item["judged"] > 0


def move_by_bounds(dump, item, bounds):
    """Moves the worst element by this many bounds from the expected number."""
    worst = item["worst"]
    array = dump.array(item["layer"], item["tensor"])
    array[tuple(worst["index"])] = float(worst["expected"]) + bounds * worst["bound"]


def scale_by_bounds(dump, item, bounds):
    """Scales the tensor so that its worst element moves by this many bounds from the expected number."""
    worst = item["worst"]
    expected = abs(float(worst["expected"]))
    dump.array(item["layer"], item["tensor"])[...] *= 1 + (bounds * worst["bound"] + worst["error"]) / expected


def scale_output(dump):
    for name, (_, array) in dump.tensors.items():
        if name.endswith(".output"):
            array *= 1.01


# What a dump is computed from

def transpose_heads(projection, heads=slice(None)):
    """Transposes W^O within query heads in place: [query_heads, head_dim, model_dim]"""
    for head in projection[heads]:
        head[...] = head.reshape(head.shape[1], head.shape[0]).T.copy()


def swap_queries(query):
    query[[1, 2]] = query[[2, 1]]


def peak(trace):
    """Scales a TraceFile's logits so that one weight is often 1 - e^-40."""
    for name, (_, array) in trace.tensors.items():
        if name.endswith((".key", ".query")):
            array *= 12


# Wrong functions, made from right ones of the independent implementation

def unmasked(right):
    """seen_logits whose queries see one entry too many, where there is one more"""
    return lambda queries, keys, first, *rest: right(queries, keys, first + (len(keys) > first + len(queries)
                                                                             or len(queries) == 8), *rest)


def masking_itself(right):
    """seen_logits or attention_weights whose queries do not see their own entry"""
    return lambda queries, keys, first, *rest: right(queries, keys, first - 1, *rest)


def forgetting(right):
    """DecodingHead.accumulate without the running sum"""
    def wrong(head, step):
        head.per_head[...] = 0
        return right(head, step)
    return wrong


def cancelling(right):
    """removal_scores by the form (A / (1 - A))^2 ||v - o||^2, whose digits cancel where A is nearly 1"""
    def wrong(kind, logits, values):
        weights = softmax(logits)
        with np.errstate(divide="ignore", invalid="ignore"):
            return (weights / (1 - weights))**2 * squares(values - weights @ values)
    return wrong


# The first decode step, whose cache is that of the prompt and one new entry

def everything(entries):
    return np.ones(entries, bool)


def all_but_the_newest(entries):
    return np.arange(entries) < entries - 1


def all_but_a_part(entries):
    """All but one of four parts of split-k."""
    sees = everything(entries)
    sees[np.array_split(np.arange(entries), 4)[1]] = False
    return sees


def first_output(trace, dump, layer, seen=everything, adds_votes=True, reads_merged=True):
    """The output of step 0 [query_heads, head_dim] in double precision, from the dump's own cache."""
    inputs, result, merges = trace.layer(layer), [], "votes" in dump.kinds()
    ends = dump.array(layer, "kept_offsets")[1:-1]
    for group, kept in enumerate(kept_sets(dump, layer)):
        now = np.append(kept, trace.prompt_tokens)
        key, value, votes = inputs.key[group, now], inputs.value[group, now], np.ones(len(now))
        if merges and reads_merged:
            key[:-1], value[:-1] = (np.split(dump.array(layer, kind), ends)[group] for kind in ("merged_key", "merged_value"))
        if merges and adds_votes:
            votes[:-1] = np.split(dump.array(layer, "votes"), ends)[group]
        sees = seen(len(now))
        for head in range(group * trace.group, (group + 1) * trace.group):
            logits = trace.scale * key @ inputs.query[head, trace.window_queries] + np.log(votes)
            result.append(softmax(logits[sees]) @ value[sees])
    return np.stack(result)


# Kept sets

def kept_sets(dump, layer):
    """The positions that each KV head kept after the prompt."""
    return np.split(dump.array(layer, "kept"), dump.array(layer, "kept_offsets")[1:-1])


def all_kept_sets(dump):
    """{layer: positions per KV head} of a dump of two layers"""
    return {layer: kept_sets(dump, layer) for layer in range(2)}


def with_kept(dump, layer, head, kept):
    """A copy in which this KV head keeps other positions, as many."""
    copy = dump.copy()
    kept_sets(copy, layer)[head][...] = kept
    return copy


def exchanged(positions, gone, instead):
    return np.sort(np.append(positions[positions != gone], instead))


def candidates(scores, kept, newest):
    """The kept candidates and the others. newest: the number of scored entries at the end that are always kept"""
    everyone = np.arange(len(scores) - newest)
    return np.intersect1d(everyone, kept), np.setdiff1d(everyone, kept)


def clear_exchange(scores, kept, newest=0):
    """The best kept entry, and the worst that is not kept."""
    inside, outside = candidates(scores, kept, newest)
    return inside[np.argmax(scores[inside])], outside[np.argmin(scores[outside])]


def neighbours_exchange(scores, kept, newest=0):
    """A kept entry and its neighbour that is not kept: of all such pairs, those whose scores differ most."""
    inside, outside = candidates(scores, kept, newest)
    pairs = [(entry, other) for entry in inside for other in (entry - 1, entry + 1) if other in outside]
    return max(pairs, key=lambda pair: scores[pair[0]] - scores[pair[1]])


def kept_by_negated_scores(scores, kept, newest=0):
    inside, outside = candidates(scores, kept, newest)
    everyone = np.append(inside, outside)
    return np.sort(np.append(np.setdiff1d(kept, inside), everyone[np.argsort(scores[everyone])][:len(inside)]))


def impossible_kept_sets(dump, layer, prompt_tokens):
    kept = kept_sets(dump, layer)[-1]
    beyond = f"is no position of a prompt of {prompt_tokens} tokens"
    for what, change in ((beyond, {0: -1}), (beyond, {5: prompt_tokens}), ("positions must ascend", {5: kept[4]}),
                         ("positions must ascend", {5: kept[6], 6: kept[5]})):
        wrong = kept.copy()
        wrong[list(change)] = list(change.values())
        yield what, with_kept(dump, layer, -1, wrong)
    yield r"position \d+ (is missing, which is always kept|rather than)", with_kept(dump, layer, -1, np.arange(len(kept)))


def with_one_less(dump, layer, head):
    """A copy in which a KV head keeps one entry less; without the merged cache, which has a row for every kept entry."""
    copy = dump.only(dump.kinds() - {"votes", "merged_key", "merged_value"}).copy()
    offsets = copy.array(layer, "kept_offsets")
    copy.put(layer, "kept", np.delete(copy.array(layer, "kept"), offsets[head] + 3))
    offsets[head + 1:] -= 1
    return copy


# Evictions

def impossible_evictions(dump, layer, prompt_tokens, always_kept=None):
    """always_kept: an entry of the first step's cache that is never evicted, if there is any"""
    evicted, kept = dump.array(layer, "evicted")[:, -1], kept_sets(dump, layer)
    entries, head = len(kept[-1]), len(kept) - 1
    absent = "position {} was evicted, which is not in the cache"
    wrong = [(1, position, absent) for position in (evicted[0], 999, prompt_tokens + 4, -7)]
    wrong.append((1, -1, f"nothing was evicted, but the cache has {entries + 1} entries and the budget is {entries}"))
    if always_kept is not None:
        wrong.append((0, always_kept, "position {} was evicted, which is always kept"))
    for step, position, what in wrong:
        yield (f"layers.{layer}.evicted[{step}, {head}]: step {step}, KV head {head}: {what.format(position)}",
               with_element(dump, layer, "evicted", (step, head), position))


def best_of_those_that_stay(dump, layer, scores, newest=0):
    """The best entry by the prompt's scores of those that are kept and never evicted."""
    stay, _ = candidates(scores, kept_sets(dump, layer)[-1], newest)
    stay = np.setdiff1d(stay, dump.array(layer, "evicted")[:, -1])
    return stay[np.argmax(scores[stay])]


def neighbour_in_cache(dump, layer, newest, prompt_tokens):
    """A neighbour of the entry that the first step evicted, not one of the newest."""
    cache = np.append(kept_sets(dump, layer)[-1], prompt_tokens)
    cache = cache[:len(cache) - newest]
    at = np.searchsorted(cache, dump.array(layer, "evicted")[0, -1])
    return cache[at - 1 if at else 1]


# Merging

def wrong_votes(dump, layer):
    votes = dump.array(layer, "votes")
    largest = np.argmax(votes)
    for index, number in ((7, votes[7] + 1), (largest, votes[largest] - 1)):
        yield (rf"votes\[{index}\] is {number:.0f}, the reference says {votes[index]:.0f}",
               with_element(dump, layer, "votes", index, number))


def wrong_step_merges(dump, layer):
    """One vote too many, and the key or value of another step's merge, in the last step that merged; a number where nothing did."""
    votes = dump.array(layer, "step_votes")
    merged, nothing = np.argwhere(votes > 0), np.argwhere(votes == 0)
    for index in map(tuple, merged[-1:]):
        yield (rf"step_votes\[{index[0]}, {index[1]}\] is {votes[index] + 1:.0f}, the reference says {votes[index]:.0f}",
               with_element(dump, layer, "step_votes", index, votes[index] + 1))
        for kind in ("step_merged_key", "step_merged_value"):
            array = dump.array(layer, kind)
            yield (rf"{kind}\[{index[0]}, {index[1]}, \d+\] is ",
                   with_element(dump, layer, kind, index, array[tuple(merged[0])] if len(merged) > 1 else 2 * array[index]))
    for index in map(tuple, nothing[-1:]):
        yield (rf"step_votes\[{index[0]}, {index[1]}\] is 1, the reference says 0",
               with_element(dump, layer, "step_votes", index, 1))


def wrong_rebuilt_merges(dump, layer):
    """One vote too many, and rows one entry off."""
    votes = dump.array(layer, "rebuilt_votes")
    yield (rf"rebuilt_votes\[7\] is {votes[7] + 1:.0f}, the reference says {votes[7]:.0f}",
           with_element(dump, layer, "rebuilt_votes", 7, votes[7] + 1))
    for kind in ("rebuilt_merged_key", "rebuilt_merged_value"):
        yield kind, with_array(dump, layer, kind, lambda rows: np.roll(rows, 1, axis=0))


def least_similar(keys, position, others):
    cosines = keys[others] @ keys[position] / np.linalg.norm(keys[others], axis=1)
    return others[np.argmin(cosines)]


def wrong_targets(targets, keys, entries):
    """Wrong targets of one KV head's entries, as (what is wrong, {position: target}).

    targets, keys   of all positions, of which the first `entries` are there
    """
    everyone = np.arange(entries)
    kept, gone = everyone[targets[:entries] == everyone], everyone[targets[:entries] != everyone]
    merged, dropped = gone[targets[gone] >= 0], gone[targets[gone] < 0]
    entry, other = merged[0], merged[1]
    yield "another kept entry", {entry: least_similar(keys, entry, kept[kept != targets[entry]])}
    yield "dropped", {entry: -1}
    yield "an entry that is not kept", {entry: other}
    yield "no entry", {entry: len(targets)}
    yield "no entry", {entry: -2}
    yield "a kept entry elsewhere", {kept[0]: kept[1]}
    if len(dropped):
        yield "not dropped", {dropped[0]: least_similar(keys, dropped[0], kept)}


def wrong_receivers(dump, layer, keys, step):
    """Wrong elements of merged_into at one step, at which an entry was evicted."""
    evicted, head = dump.array(layer, "evicted")[:, -1], len(kept_sets(dump, layer)) - 1
    right, position = dump.array(layer, "merged_into")[step, head], evicted[step]
    others = np.setdiff1d(kept_sets(dump, layer)[head], [*evicted, right])
    numbers = [least_similar(keys, position, others), -2, 1000, position]
    numbers += [-1] if right >= 0 else list(others[others > position][:1])  # with cam: another draw
    for number in numbers:
        what = "was dropped" if number == -1 else f"merged with {number}"
        yield (rf"step {step}, KV head {head}: (position {position} {what}|the value of position {position} is)",
               with_element(dump, layer, "merged_into", (step, head), number))


def tie_targets(path, dump, layer, head):
    """Gives the trace's KV head two equal entries, of those that the dump keeps: one that others merge with, and the next
    one with which none merges. Returns their positions."""
    targets = dump.array(layer, "target_of")[head]
    merging = targets[(targets != np.arange(len(targets))) & (targets < len(targets) - 12)]
    first = np.bincount(merging[merging >= 0]).argmax()
    kept = kept_sets(dump, layer)[head]
    second = next(position for position in kept if position > first and (merging != position).all())
    trace = Dump.read(path)
    for kind in ("key", "value"):
        entries = trace.array(layer, kind)[head]
        entries[second] = entries[first]
    trace.write(path)
    return first, second


def with_targets_renamed(dump, layer, head, first, second):
    """A copy in which what merged with the first entry has the second as its target."""
    copy = dump.copy()
    targets = copy.array(layer, "target_of")[head]
    targets[(targets == first) & (np.arange(len(targets)) != first)] = second
    return copy


def exchange_rows(dump, layer, head, first, second):
    """Exchanges two entries of the merged cache."""
    rows = dump.array(layer, "kept_offsets")[head] + np.searchsorted(kept_sets(dump, layer)[head], [first, second])
    for kind in ("votes", "merged_key", "merged_value"):
        array = dump.array(layer, kind)
        array[rows] = array[rows[::-1]]


# Policies

def claiming(dump, other):
    """A copy that claims to be of the other dump's policy and budget."""
    return with_metadata(dump, policy=other.metadata["policy"], budget=other.metadata["budget"])


def with_moved_budget(dump, layer, giver, newest=0):
    """A copy in which one of two KV heads gives its worst entry's place to the best that the other does not keep."""
    kept = kept_sets(dump, layer)
    scores = dump.array(layer, "score")
    inside, _ = candidates(scores[giver], kept[giver], newest)
    _, outside = candidates(scores[1 - giver], kept[1 - giver], newest)
    kept[giver] = np.setdiff1d(kept[giver], inside[np.argmin(scores[giver][inside])])
    kept[1 - giver] = np.union1d(kept[1 - giver], outside[np.argmax(scores[1 - giver][outside])])
    copy = dump.copy()
    copy.put(layer, "kept", np.concatenate(kept))
    copy.put(layer, "kept_offsets", np.array([0, len(kept[0]), len(kept[0]) + len(kept[1])]))
    return copy
