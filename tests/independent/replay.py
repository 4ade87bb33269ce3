#!/usr/bin/python3
"""An independent replay of kvbound traces: NumPy, double precision, straight from the definitions.

    replay.py TRACE DUMP_DIR_OR_FILE...                 compare dumps with a replay of the trace
    replay.py --replay TRACE --policy P --budget B      replay without a dump, print the means

Shares no code with the program. Beside it: policy.py (text), allocation.py, draws.py, scores.py, prompt.py and selection.py
(the prompt's end), decoding.py; for merging prediction.py, targets.py, merging.py, merged_cache.py and merged_replay.py.
Exit codes: 0 agree, 1 mismatch, 2 usage, 3 unreadable input.
"""
import argparse
import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np

# the folder of `independent`, for when this file is run
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from independent import merged_replay
from independent.allocation import head_budgets, layer_budgets, legal_head_budgets
from independent.decoding import decode
from independent.policy import parse_policy, resolve_budget
from independent.prompt import prompt_scores
from independent.scores import attention_weights, projected_value_norms
from independent.selection import NEAR_TIE, OF_TERMS, explained_by_near_ties, keep

RELATIVE = 1e-9
SMALLEST_NORMAL = np.finfo(np.float64).tiny  # below it doubles lose relative precision
STORAGE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}

def open_tensors(path):
    """Path of a safetensors file, or of an *.index.json with shards -> (metadata, {name: (dtype, shape, bytes)})."""
    if path.name.endswith(".index.json"):
        weight_map = json.loads(path.read_text("utf-8"))["weight_map"]
        shards = {shard: open_tensors(path.parent / shard) for shard in sorted(set(weight_map.values()))}
        metadata = {key: value for shard in shards.values() for key, value in shard[0].items()}
        return metadata, {name: shards[shard][1][name] for name, shard in weight_map.items()}
    data = memoryview(path.read_bytes())
    data_start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:data_start]).decode("utf-8"))
    metadata, data = header.pop("__metadata__", {}), data[data_start:]
    return metadata, {name: (entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
                      for name, entry in header.items()}

def read_tensor(entry):
    """One entry of open_tensors as float64 (every storage type widens exactly) or int64; refuses a wrong byte count."""
    dtype, shape, data = entry
    array = np.frombuffer(data, STORAGE[dtype]).reshape(shape)
    if dtype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.int64 if dtype in ("I64", "I32") else np.float64)

class Trace:
    """The sizes of a trace, and its layers one by one.

    heads    "kv", or "query": every query head has a cache of its own
    """

    def __init__(self, path, heads="kv"):
        metadata, self.tensors = open_tensors(path)
        if (metadata.get("format"), metadata.get("version")) != ("kvbound-trace", "1"):
            raise ValueError("not a kvbound-trace of version 1")
        for size in "layers query_heads kv_heads head_dim model_dim prompt_tokens decode_tokens window_queries".split():
            setattr(self, size, int(metadata[size]))
        self.sha256 = path.suffix != ".json" and hashlib.sha256(path.read_bytes()).hexdigest()
        self.recorded_kv_heads = self.kv_heads
        if heads == "query":
            self.kv_heads = self.query_heads
        self.group = self.query_heads // self.kv_heads
        self.scale = float(metadata.get("scale", 1 / np.sqrt(self.head_dim)))

    def layer(self, index):
        """key, value [kv_heads, prompt+decode, head_dim], query [query_heads, window_queries+decode, head_dim],
        output_projection [query_heads, head_dim, model_dim]"""
        tokens = (self.recorded_kv_heads, self.prompt_tokens + self.decode_tokens, self.head_dim)
        layer = SimpleNamespace(index=index)
        for kind, shape in (("key", tokens), ("value", tokens),
                            ("query", (self.query_heads, self.window_queries + self.decode_tokens, self.head_dim)),
                            ("output_projection", (self.query_heads * self.head_dim, self.model_dim))):
            array = read_tensor(self.tensors[f"layers.{index}.{kind}"])
            if array.shape != shape or not np.isfinite(array).all():
                raise ValueError(f"layers.{index}.{kind} is not finite, or has shape {array.shape} instead of {shape}")
            setattr(layer, kind, array)
        layer.key, layer.value = (np.repeat(array, self.kv_heads // self.recorded_kv_heads, axis=0) for array in (layer.key, layer.value))
        layer.output_projection = layer.output_projection.reshape(self.query_heads, self.head_dim, self.model_dim)
        return layer

def cached_entries(trace, kept, evicted=None):
    """The tokens that one KV head's queries see while decoding: booleans [tokens], or [steps, tokens] with evictions.

    kept: the positions after the prompt; evicted [steps]: the position that is evicted after each step's query, -1 for none
    """
    cached = np.arange(trace.prompt_tokens + trace.decode_tokens) >= trace.prompt_tokens
    cached[kept] = True
    if evicted is None:
        return cached
    cached = np.tile(cached, (trace.decode_tokens, 1))
    for step, position in enumerate(evicted):
        if position >= 0:
            cached[step + 1:, position] = False
    return cached

def replay_layer(trace, layer, kept, evicted=None):
    """The measures of the decode steps, and their sums of absolute terms: two dicts of [steps, query_heads, ...].

    kept: positions per KV head; evicted [steps, kv_heads]: the positions that are evicted after each step, None for hosts that keep all.
    A over all entries, a over the cache, e = sum_evicted A; signed = A on evicted entries, -e a on cached ones:
        output = sum_j a_j v_j, perturbation = ||sum_j signed_j v_j W||_1, bound = sum_j |signed_j| ||v_j W||_1
    """
    results, terms, difference = {}, {}, 0.0
    for head in range(trace.query_heads):
        group = head // trace.group
        values, projection = layer.value[group], layer.output_projection[head]
        cached = cached_entries(trace, kept[group], None if evicted is None else evicted[:, group])
        attention = layer.query[head, trace.window_queries:], layer.key[group], trace.prompt_tokens, trace.scale
        full, compressed = attention_weights(*attention), attention_weights(*attention, cached)
        lost, mass = np.where(cached, 0.0, full), np.where(cached, full, 0.0).sum(axis=1)
        signed = lost - lost.sum(axis=1, keepdims=True) * compressed
        head_difference = signed @ values @ projection  # [steps, model_dim]
        difference = difference + head_difference
        loss, original = (abs(outputs).sum(axis=1) for outputs in (head_difference, full @ values @ projection))
        norm_terms = abs(signed) @ projected_value_norms(abs(values), abs(projection))
        relative = np.divide(loss, original, out=np.where(loss > 0, np.nan, 0.0), where=original > 0)
        for kind, value, term in (
                ("output", compressed @ values, compressed @ abs(values)), ("perturbation", loss, norm_terms),
                ("bound", abs(signed) @ projected_value_norms(values, projection), norm_terms),
                ("kept_mass", mass, mass), ("relative", relative, relative)):
            results.setdefault(kind, []).append(value)
            terms.setdefault(kind, []).append(term)
    results, terms = ({kind: np.stack(heads, axis=1) for kind, heads in side.items()} for side in (results, terms))
    results["layer_perturbation"] = abs(difference).sum(axis=1)
    terms["layer_perturbation"] = terms["perturbation"].sum(axis=1)
    return results, terms

class Judgement:
    """A dump compared with the trace: near-tie swaps, the worst share of the tolerance per tensor, the failures.

    layers: those that were replayed, None: all
    """

    def __init__(self, trace, path, layers=None):
        self.metadata, self.tensors = open_tensors(path)
        if (self.metadata.get("format"), self.metadata.get("version")) != ("kvbound-dump", "1"):
            raise ValueError("not a kvbound-dump of version 1")
        # failures: (share of the tolerance, text)
        self.swaps, self.worst, self.failures, self.asked = 0, {}, [], set()
        if trace.sha256 and self.metadata.get("trace_sha256") != trace.sha256:
            self.failures.append((np.inf, f"trace_sha256 is not {trace.sha256}"))
        policy = parse_policy(self.metadata["policy"])
        budget = resolve_budget(self.metadata["budget"], trace, policy)
        self.tolerance = merged_replay.RELATIVE if policy.merge else RELATIVE
        self.relative = np.nanmean([self.judge_layer(trace, policy, budget, index)
                                    for index, budget in enumerate(layer_budgets(trace, policy, budget, layers))
                                    if layers is None or index in layers])
        self.failures += [(np.inf, f"{name} is not a tensor of this policy and trace")
                          for name in sorted(set(self.tensors) - self.asked)]

    def fetch(self, name, dtype, shape):
        """The dump's tensor; where it is missing or of another type or shape: a failure, and a tensor of -1."""
        self.asked.add(name)
        found = self.tensors.get(name, ("missing", (), b""))
        if found[:2] == (dtype, tuple(shape)):
            return read_tensor(found)
        self.failures.append((np.inf, f"{name} is {found[0]} {list(found[1])} where {dtype} {list(shape)} is expected"))
        return np.full(shape, -1)

    def judge(self, name, ours, terms=0):
        """Compares the dump's tensor with ours within the tolerance (below 1 for integers); returns the dump's."""
        theirs = self.fetch(name, "I64" if ours.dtype == np.int64 else "F64", ours.shape)
        tolerance = self.tolerance * abs(ours) + OF_TERMS * terms + SMALLEST_NORMAL
        with np.errstate(invalid="ignore", over="ignore"):
            share = np.nan_to_num(abs(theirs - ours) / tolerance, nan=np.inf, posinf=np.inf)
        share[theirs == ours] = 0  # infinities too
        if share.size:
            at, kind = np.unravel_index(np.argmax(share), share.shape), name.split(".")[-1]
            self.worst[kind] = max(self.worst.get(kind, 0.0), share[at])
            if not share[at] <= 1:
                self.failures.append((share[at], f"{name}{list(map(int, at))} is {theirs[at]} where {ours[at]} is "
                                      f"expected, tolerance {tolerance[at]:.3g}"))
        return theirs

    def judge_layer(self, trace, policy, budget, index):
        """Judges every tensor of one layer, decoding with the dump's choices; returns relative L [steps, heads]."""
        layer, prefix = trace.layer(index), f"layers.{index}."
        heads = [prompt_scores(trace, layer, policy, group, budget) for group in range(trace.kv_heads)]
        their_scores = self.judge_scores(policy, heads, prefix)
        budgets, kept, members = self.judge_kept(trace, policy, budget, layer, heads, their_scores, prefix)
        if policy.merge:
            return self.judge_merging(trace, layer, policy, budgets, heads, kept, members, prefix)
        evicted = None
        if policy.dynamic:
            theirs = self.fetch(prefix + "evicted", "I64", (trace.decode_tokens, trace.kv_heads))
            evicted, swaps, failures = decode(trace, layer, policy, budgets, heads, kept, theirs)
            self.swaps += swaps
            self.failures += [(np.inf, prefix + failure) for failure in failures]
        results, terms = replay_layer(trace, layer, kept, evicted)
        for kind in ("output", "perturbation", "kept_mass", "bound", "layer_perturbation"):
            self.judge(prefix + kind, results[kind], terms[kind])
        return results["relative"]

    def judge_merging(self, trace, layer, policy, budgets, heads, kept, members, prefix):
        """Judges the cache after the prompt and the decode steps; near ties are decided as the dump's numbers show."""
        steps, ends = (trace.decode_tokens, trace.kv_heads), np.cumsum([len(positions) for positions in kept])
        votes, key, value = (self.fetch(prefix + kind, "F64", (ends[-1], *width)) for kind, width in (
            ("votes", ()), ("merged_key", (trace.head_dim,)), ("merged_value", (trace.head_dim,))))
        shown = [SimpleNamespace(votes=part[0], key=part[1], value=part[2])
                 for part in zip(*(np.split(whole, ends[:-1]) for whole in (votes, key, value)))]
        evicted, merged_into = (self.fetch(prefix + kind, "I64", steps) if policy.dynamic else None
                             for kind in ("evicted", "merged_into"))
        output = self.fetch(prefix + "output", "F64", (trace.decode_tokens, trace.query_heads, trace.head_dim))
        recorded = [SimpleNamespace(output=output[:, group * trace.group:(group + 1) * trace.group],
                                    evicted=evicted if evicted is None else evicted[:, group],
                                    merged_into=evicted if evicted is None else merged_into[:, group])
                    for group in range(trace.kv_heads)]
        results, terms, found = merged_replay.replay_layer(trace, layer, policy, budgets, heads, kept, members,
                                                                       shown, recorded)
        self.swaps += found.swaps
        self.failures += [(np.inf, prefix + text) for text in found.texts]
        self.judge(prefix + "votes", np.concatenate([cache.votes for cache in found.caches]))
        for kind in ("key", "value"):
            self.judge(f"{prefix}merged_{kind}", *(np.concatenate([getattr(cache, part) for cache in found.caches])
                                                   for part in (kind, kind + "_terms")))
        # optional in a dump
        if prefix + "step_votes" in self.tensors and policy.dynamic and policy.merge.name != "cam":
            def of_steps(part):
                return np.swapaxes([[getattr(entry, part) for entry in entries] for entries in found.changed], 0, 1)
            self.judge(prefix + "step_votes", of_steps("votes"))
            for kind in ("key", "value"):
                self.judge(f"{prefix}step_merged_{kind}", of_steps(kind), of_steps(kind + "_terms"))
        for kind in ("output", "perturbation", "kept_mass", "layer_perturbation"):
            self.judge(prefix + kind, results[kind], terms[kind])
        return results["relative"]

    def judge_scores(self, policy, heads, prefix):
        """Judges the scores at the prompt's end, if there are any; returns the dump's score and stage two per head."""
        if not policy.ranks:
            return [(None, None)] * len(heads)
        score, score_terms, stage_two, stage_two_terms, norms, norms_terms = (
            np.stack([getattr(scores, kind + suffix) for scores in heads])
            for kind in ("score", "stage_two", "norms") for suffix in ("", "_terms"))
        self.judge(prefix + "score_positions", np.arange(score.shape[1]))
        their_score = their_stage_two = self.judge(prefix + "score", score, score_terms)
        if policy.selection == "critical":
            their_stage_two = self.judge(prefix + "stage_two_score", stage_two, stage_two_terms)
        if policy.selection in ("critical", "theta-sweep"):
            self.judge(prefix + "projected_value_norms", np.concatenate(norms), np.concatenate(norms_terms))
        return list(zip(their_score, their_stage_two))

    def judge_kept(self, trace, policy, budget, layer, heads, their_scores, prefix):
        """Judges the budgets and kept sets; returns every KV head's budget, its kept set, and merge-first's members
        or None: those of the dump, unless the policy cannot have chosen them.
        """
        offsets = self.fetch(prefix + "kept_offsets", "I64", [trace.kv_heads + 1])
        counts, merge_first = np.diff(offsets), policy.merge is not None and policy.merge.order == "merge-first"
        legal = not merge_first and legal_head_budgets(policy, budget, heads, counts.tolist())
        budgets = counts.tolist() if legal else head_budgets(policy, budget, heads)
        if offsets[0] or (counts < 0).any() or offsets[-1] > trace.kv_heads * trace.prompt_tokens:
            counts = budgets
        their_kept = np.split(self.fetch(prefix + "kept", "I64", [sum(counts)]), np.cumsum(counts)[:-1])
        kept, members = [], []
        for group, (scores, theirs) in enumerate(zip(heads, their_kept)):
            always, count = np.flatnonzero(scores.always), budgets[group] - scores.always.sum()
            valid = bool(np.all(np.diff(theirs) > 0) and np.isin(theirs, np.arange(trace.prompt_tokens)).all()
                         and np.isin(always, theirs).all() and (merge_first or len(theirs) == budgets[group]))
            if policy.merge:
                ours, merged = merged_replay.keep_and_merge(
                    policy, budgets[group], layer, group, scores, np.setdiff1d(theirs, always) if valid else None,
                    their_scores[group][0] if valid else None)
            else:
                ours, merged = keep(policy, count, scores), None
            missing, extra = (np.setdiff1d(*pair) for pair in ((ours, theirs), (theirs, ours)))
            if valid and (not (missing.size or extra.size) or not merge_first and explained_by_near_ties(
                    policy, count, scores, np.setdiff1d(theirs, always), *their_scores[group])):
                self.swaps += len(missing)
            else:
                self.failures.append((np.inf, f"{prefix}kept of KV head {group} has {extra[:4]} where {missing[:4]} is "
                                      f"expected ({len(missing)} differ), not by near ties ({NEAR_TIE} relative)"))
            kept.append(theirs if valid and not merge_first else ours)
            members.append(merged)
        self.judge(prefix + "kept_offsets", np.cumsum([0, *(map(len, kept) if merge_first else budgets)]))
        return budgets, kept, members

def prompt_choices(trace, layer, policy, budget, kept=None):
    """Per KV head, at the prompt's end: the scores, budgets, kept positions, and merge-first's members or None.
    kept: positions to keep instead of the policy's choice.
    """
    heads = [prompt_scores(trace, layer, policy, group, budget) for group in range(trace.kv_heads)]
    budgets = head_budgets(policy, budget, heads)
    if kept is not None:
        return heads, budgets, kept, [None] * trace.kv_heads
    chosen = [merged_replay.keep_and_merge(policy, entries, layer, group, scores) if policy.merge
              else (keep(policy, entries - scores.always.sum(), scores), None)
              for group, (entries, scores) in enumerate(zip(budgets, heads))]
    return heads, budgets, *(list(part) for part in zip(*chosen))

def replayed_layer(trace, layer, policy, budget, kept=None, evicted=None):
    """A replay by the policy alone: the measures, and all tensors of a dump's layer, both {kind: array}.

    kept: per KV head, evicted [steps, kv_heads]: choices to make instead of the policy's (without merging).
    """
    heads, budgets, kept, members = prompt_choices(trace, layer, policy, budget, kept)
    tensors = {"kept": np.concatenate(kept).astype(np.int64),
               "kept_offsets": np.cumsum([0] + [len(positions) for positions in kept])}
    if policy.ranks:
        tensors["score"] = np.stack([scores.score for scores in heads])
        tensors["score_positions"] = np.arange(tensors["score"].shape[1])
    if policy.selection == "critical":
        tensors["stage_two_score"] = np.stack([scores.stage_two for scores in heads])
    if policy.selection in ("critical", "theta-sweep"):
        tensors["projected_value_norms"] = np.concatenate([scores.norms for scores in heads])
    if policy.merge:
        results, _, found = merged_replay.replay_layer(trace, layer, policy, budgets, heads, kept, members)
        for kind in ("votes", "key", "value"):
            tensors[kind if kind == "votes" else "merged_" + kind] = np.concatenate(
                [getattr(cache, kind) for cache in found.caches])
        if policy.dynamic:
            tensors.update(evicted=found.evicted, merged_into=found.merged_into)
    else:
        if policy.dynamic:
            evicted = tensors["evicted"] = decode(trace, layer, policy, budgets, heads, kept, evicted)[0]
        results, _ = replay_layer(trace, layer, kept, evicted) if policy.dynamic else replay_layer(trace, layer, kept)
    tensors.update({kind: array for kind, array in results.items() if kind != "relative"})
    return results, tensors

def replay(trace, policy, budget):
    """The means over layers, steps and query heads as one line; a violation is L > bound * (1 + 1e-9)."""
    parts = []
    for index, entries in enumerate(layer_budgets(trace, policy, budget)):
        parts.append(replayed_layer(trace, trace.layer(index), policy, entries)[0])
    loss, bound, mass, relative = (np.stack([part[kind] for part in parts if kind in part] or [np.array(np.nan)])
                                   for kind in ("perturbation", "bound", "kept_mass", "relative"))
    return (f"mean relative L {np.nanmean(relative):.6f}, mean L {loss.mean():.6f}, mean bound {bound.mean():.6f}, "
            f"violations {int((loss > bound * (1 + 1e-9)).sum())} of {loss.size}, mean kept mass {mass.mean():.6f}")

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("dumps", type=Path, nargs="*", help="safetensors files, or folders of them")
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--policy", type=parse_policy)
    parser.add_argument("--budget")
    given, code = parser.parse_args(), 0
    if given.replay != bool(given.policy and given.budget) or given.replay == bool(given.dumps):
        parser.error("give dumps, or --replay with --policy and --budget")
    try:
        path = given.trace
        trace = Trace(path)
        if given.replay:
            print(replay(trace, given.policy, resolve_budget(given.budget, trace, given.policy)))
        for path in (path for dump in given.dumps for path in sorted(dump.glob("*.safetensors")) or [dump]):
            judged = Judgement(trace, path)
            shares = ", ".join(f"{kind} {share:.2g}" for kind, share in judged.worst.items())
            print("differs" if judged.failures else "agrees", judged.metadata["policy"], "@", judged.metadata["budget"],
                  f"mean relative L {judged.relative:.6f}, near-tie swaps {judged.swaps}, worst/tolerance: {shares}")
            if judged.failures:
                print(f"  {max(judged.failures, key=lambda failure: failure[0])[1]} (failures: {len(judged.failures)})")
                code = 1
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        print(f"{path}: {error!r}", file=sys.stderr)
        return 3
    return code

if __name__ == "__main__":
    sys.exit(main())
