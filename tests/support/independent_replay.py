#!/usr/bin/python3
"""An independent replay of kvbound traces: NumPy, double precision, straight from the definitions.

    independent_replay.py TRACE DUMP_DIR_OR_FILE...                 compare dumps with what the trace says
    independent_replay.py --replay TRACE --policy P --budget B      replay without a dump, print the means

Shares no code with the program. Host snapkv, uniform allocation; selection top-k, critical or theta-sweep; no merging.
Exit codes: 0 agree, 1 mismatch, 2 usage, 3 unreadable input.
"""
import argparse
import hashlib
import json
import re
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
import numpy as np

RELATIVE, OF_TERMS, NEAR_TIE = 1e-9, 1e-13, 1e-12
SMALLEST_NORMAL = np.finfo(np.float64).tiny  # below it a double has no relative precision left
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

def parse_policy(text):
    """snapkv[:option]...[+SELECTION[:option]...] -> its options; alpha is a Fraction, or None for adaptive."""
    policy = SimpleNamespace(window=32, pool=7, alpha="0.5", epsilon=1e-4, gqa="mean-of-products", norm="l1")
    found = re.fullmatch(r"snapkv((?::window=\d+|:pool=\d+)*)(?:\+(critical|theta-sweep)((?::alpha=adaptive|:norm=l[12]"
                         r"|:(?:alpha|epsilon)=[\d.e+-]+|:gqa=mean-of-products|:gqa=product-of-means)*))?", text)
    if not found:
        raise ValueError(f"policy {text!r} is not one that this replay covers")
    vars(policy).update(option.split("=") for option in (found[1] + (found[3] or "")).split(":")[1:])
    policy.selection, policy.alpha = found[2] or "top-k", None if policy.alpha == "adaptive" else Fraction(policy.alpha)
    policy.window, policy.pool, policy.epsilon = int(policy.window), int(policy.pool), float(policy.epsilon)
    if policy.window < 1 or policy.pool % 2 == 0 or policy.epsilon < 0 or not 0 <= (policy.alpha or 0) <= 1:
        raise ValueError(f"policy {text!r} has an option out of range")
    return policy

def resolve_budget(text, trace, policy):
    """Entries kept per KV head, the window included: a count, or floor(percent * prompt_tokens / 100) exactly."""
    budget = Fraction(text[:-1]) * trace.prompt_tokens // 100 if text.endswith("%") else int(text)
    if not policy.window <= budget <= trace.prompt_tokens or policy.window > trace.window_queries:
        raise ValueError(f"budget {text}, {budget} entries, or window {policy.window} does not fit the trace")
    return int(budget)

class Trace:
    """The sizes of a trace, and its layers one by one."""

    def __init__(self, path):
        metadata, self.tensors = open_tensors(path)
        if (metadata.get("format"), metadata.get("version")) != ("kvbound-trace", "1"):
            raise ValueError("not a kvbound-trace of version 1")
        for size in "layers query_heads kv_heads head_dim model_dim prompt_tokens decode_tokens window_queries".split():
            setattr(self, size, int(metadata[size]))
        self.sha256 = path.suffix != ".json" and hashlib.sha256(path.read_bytes()).hexdigest()
        self.group = self.query_heads // self.kv_heads
        self.scale = float(metadata.get("scale", 1 / np.sqrt(self.head_dim)))

    def layer(self, index):
        """key, value [kv_heads, prompt+decode, head_dim], query [query_heads, window_queries+decode, head_dim],
        output_projection [query_heads, head_dim, model_dim]"""
        tokens = (self.kv_heads, self.prompt_tokens + self.decode_tokens, self.head_dim)
        layer = SimpleNamespace()
        for kind, shape in (("key", tokens), ("value", tokens),
                            ("query", (self.query_heads, self.window_queries + self.decode_tokens, self.head_dim)),
                            ("output_projection", (self.query_heads * self.head_dim, self.model_dim))):
            array = read_tensor(self.tensors[f"layers.{index}.{kind}"])
            if array.shape != shape or not np.isfinite(array).all():
                raise ValueError(f"layers.{index}.{kind} is not finite, or has shape {array.shape} instead of {shape}")
            setattr(layer, kind, array)
        layer.output_projection = layer.output_projection.reshape(self.query_heads, self.head_dim, self.model_dim)
        return layer

def attention_weights(queries, keys, first_position, scale, cached=True):
    """softmax over j of scale * q_i.k_j, where query i at first_position + i sees the cached j <= its position:
    queries [queries, head_dim], keys [tokens, head_dim], cached [tokens] booleans -> [queries, tokens], 0 if not seen
    """
    seen = (np.arange(len(keys)) <= first_position + np.arange(len(queries))[:, None]) & cached
    logits = np.where(seen, queries @ keys.T * scale, -np.inf)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)

def projected_value_norms(values, projection, norm="l1"):
    """|| values[j,:] * projection || in l1 or l2: [tokens, head_dim], [head_dim, model_dim] -> [tokens]."""
    return np.linalg.norm(values @ projection, ord=1 if norm == "l1" else 2, axis=1)

def max_pool(score, pool):
    """The maximum over j - pool//2 .. j + pool//2, cut at both ends: [heads, candidates] -> the same shape."""
    pooled = np.zeros_like(score)
    for j in range(score.shape[1]):
        pooled[:, j] = score[:, max(0, j - pool // 2):j + pool // 2 + 1].max(axis=1)
    return pooled

def select_top(score, count):
    """The count largest, ties to the smaller index: [candidates] -> indices, best first."""
    return np.argsort(-score, kind="stable")[:count]

def prompt_scores(trace, layer, policy, group):
    """What decides in one KV head; h are its query heads, candidates the prompt without the window.

    weights [heads, window, prompt]  A of each window query;  mean [heads, prompt]   their mean over the window
    score [candidates]               mean_h of the pooled mean;  norms [heads, prompt]  N^h_j = ||v_j W^O_h||
    stage_two [candidates]           mean_h (pooled^h + epsilon) N^h, or (score + epsilon) mean_h N^h
    *_terms: the same with |v| and |W^O|, the sums of absolute terms
    """
    first, recorded, n = trace.prompt_tokens - policy.window, trace.window_queries, trace.prompt_tokens
    heads = range(group * trace.group, (group + 1) * trace.group)
    weights = np.stack([attention_weights(layer.query[head, recorded - policy.window:recorded], layer.key[group, :n],
                                          first, trace.scale) for head in heads])
    mean = weights.mean(axis=1)
    pooled = max_pool(mean[:, :first], policy.pool)
    scores = SimpleNamespace(weights=weights, mean=mean, score=pooled.mean(axis=0))
    factor = pooled if policy.gqa == "mean-of-products" else scores.score
    for suffix, change in (("", np.asarray), ("_terms", np.abs)):
        norms = np.stack([projected_value_norms(change(layer.value[group, :n]), change(layer.output_projection[head]),
                                                policy.norm) for head in heads])
        setattr(scores, "norms" + suffix, norms)
        setattr(scores, "stage_two" + suffix, ((factor + policy.epsilon) * norms[:, :first]).mean(axis=0))
    return scores

def stage_one_count(alpha, count, score, weights):
    """floor(alpha * k); adaptive: the fewest entries whose mass with the window exceeds 1/2 for all queries, else k."""
    if alpha is not None:
        return int(alpha * count // 1)
    window_mass, ranked = weights[:, :, len(score):].sum(axis=2), select_top(score, count)
    return next((taken for taken in range(count + 1)
                 if (window_mass + weights[:, :, ranked[:taken]].sum(axis=2) > 0.5).all()), count)

def choices(policy, count, scores, score, stage_two):
    """What the policy weighs for one KV head: [(stage 1, the score that decides the rest, all chosen, ascending)].

    theta-sweep: lambda in 0, 25 points from 1e-3 to 1e3, infinity by mean_h A^h (lambda + N^h / mean_j N^h), unpooled;
    then the top-k set and the critical set of the pooled scores.
    """
    def choice(deciding, stage_one=np.zeros(0, np.int64)):
        left = np.setdiff1d(np.arange(len(score)), stage_one)
        rest = left[select_top(deciding[left], count - len(stage_one))]
        return stage_one, deciding, np.sort(np.append(stage_one, rest))

    if policy.selection == "top-k":
        return [choice(stage_two, select_top(score, count))]  # stage 1 is everything
    critical = choice(stage_two, select_top(score, stage_one_count(policy.alpha, count, score, scores.weights)))
    if policy.selection == "critical":
        return [critical]
    mean_norms = scores.norms.mean(axis=1, keepdims=True)
    ratio = np.divide(scores.norms, mean_norms, out=np.zeros_like(scores.norms), where=mean_norms > 0)
    sweep = [(scores.mean * (weight + ratio)).mean(axis=0) for weight in (0.0, *np.geomspace(1e-3, 1e3, 25))]
    sweep.append(scores.mean.mean(axis=0))
    return [*(choice(deciding[:len(score)]) for deciding in sweep), choice(score), critical]

def window_bound(scores, chosen):
    """sum_h theta_h of the window's mean A: sum_evicted A N + (e / sum_kept A) sum_kept A N, e = sum_evicted A."""
    kept = np.arange(scores.mean.shape[1]) >= len(scores.score)
    kept[chosen] = True
    products, lost = scores.mean * scores.norms, scores.mean[:, ~kept].sum(axis=1)
    share = lost / scores.mean[:, kept].sum(axis=1)
    return (products[:, ~kept].sum(axis=1) + share * products[:, kept].sum(axis=1)).sum()

def keep(policy, count, scores):
    """The positions kept in one KV head, ascending: the choice of smallest bound (the first such) and the window."""
    weighed = [chosen for _, _, chosen in choices(policy, count, scores, scores.score, scores.stage_two)]
    chosen = min(weighed, key=lambda chosen: window_bound(scores, chosen))
    return np.append(chosen, np.arange(len(scores.score), scores.mean.shape[1]))

def replay_layer(trace, layer, kept):
    """What is measured in the decode steps, and the sums of absolute terms: two dicts of [steps, query_heads, ...].

    A over all entries, a over the cache, e = sum_evicted A; signed = A on evicted entries, -e a on cached ones:
        output = sum_j a_j v_j, perturbation = ||sum_j signed_j v_j W||_1, bound = sum_j |signed_j| ||v_j W||_1
    """
    results, terms, difference = {}, {}, 0.0
    for head in range(trace.query_heads):
        group = head // trace.group
        values, projection = layer.value[group], layer.output_projection[head]
        cached = np.arange(len(values)) >= trace.prompt_tokens
        cached[kept[group]] = True
        attention = layer.query[head, trace.window_queries:], layer.key[group], trace.prompt_tokens, trace.scale
        full, compressed = attention_weights(*attention), attention_weights(*attention, cached)
        evicted, mass = np.where(cached, 0.0, full), np.where(cached, full, 0.0).sum(axis=1)
        signed = evicted - evicted.sum(axis=1, keepdims=True) * compressed
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

def near_tie(deciding, ours, theirs):
    """Are the sets equal, but for swaps of entries whose deciding scores differ by at most 1e-12 relative?"""
    missing, extra = deciding[np.setdiff1d(ours, theirs)], deciding[np.setdiff1d(theirs, ours)]
    return len(ours) == len(theirs) and (not missing.size
                                         or missing.max() - extra.min() <= NEAR_TIE * max(missing.max(), extra.min()))

def explained_by_near_ties(policy, count, scores, chosen, score, stage_two):
    """Is the dump's set, other than ours, legal? score, stage_two [candidates]: the dump's own.

    It must be what the policy picks by the dump's own scores, and every swap, stage by stage, a near tie by ours.
    For theta-sweep, whose deciding scores are not dumped: a near tie of one of the choices, no worse than the best.
    """
    weighed = choices(policy, count, scores, scores.score, scores.stage_two)
    if policy.selection == "theta-sweep":
        best = min(window_bound(scores, ours) for _, _, ours in weighed)
        tied = [set(taken) <= set(chosen) and near_tie(deciding, ours, chosen) for taken, deciding, ours in weighed]
        return any(tied) and window_bound(scores, chosen) <= best * (1 + NEAR_TIE)
    forced_stage_one, deciding, forced = choices(policy, count, scores, score, scores.stage_two)[0]
    return (np.array_equal(choices(policy, count, scores, score, stage_two)[0][2], chosen)
            and near_tie(scores.score, weighed[0][0], forced_stage_one) and near_tie(deciding, forced, chosen))

class Judgement:
    """One dump against the trace: near-tie swaps, the worst share of the tolerance per tensor, and the failures."""

    def __init__(self, trace, path):
        self.metadata, self.tensors = open_tensors(path)
        if (self.metadata.get("format"), self.metadata.get("version")) != ("kvbound-dump", "1"):
            raise ValueError("not a kvbound-dump of version 1")
        self.swaps, self.worst, self.failures, self.asked = 0, {}, [], set()  # failures: (share of the tolerance, text)
        if trace.sha256 and self.metadata.get("trace_sha256") != trace.sha256:
            self.failures.append((np.inf, f"trace_sha256 is not {trace.sha256}"))
        policy = parse_policy(self.metadata["policy"])
        budget = resolve_budget(self.metadata["budget"], trace, policy)
        self.relative = np.nanmean([self.judge_layer(trace, policy, budget, index) for index in range(trace.layers)])
        self.failures += [(np.inf, f"{name} is not a tensor of this policy and trace")
                          for name in sorted(set(self.tensors) - self.asked)]

    def fetch(self, name, dtype, shape):
        """The dump's tensor; a failure, and -1 everywhere, where it is missing or has another type or shape."""
        self.asked.add(name)
        found = self.tensors.get(name, ("missing", (), b""))
        if found[:2] == (dtype, tuple(shape)):
            return read_tensor(found)
        self.failures.append((np.inf, f"{name} is {found[0]} {list(found[1])} where {dtype} {list(shape)} is expected"))
        return np.full(shape, -1)

    def judge(self, name, ours, terms=0):
        """Hold one tensor against ours within the tolerance (below 1 for integers); returns the dump's tensor."""
        theirs = self.fetch(name, "I64" if ours.dtype == np.int64 else "F64", ours.shape)
        tolerance = RELATIVE * abs(ours) + OF_TERMS * terms + SMALLEST_NORMAL
        with np.errstate(invalid="ignore", over="ignore"):
            share = np.nan_to_num(abs(theirs - ours) / tolerance, nan=np.inf, posinf=np.inf)
        if share.size:
            at, kind = np.unravel_index(np.argmax(share), share.shape), name.split(".")[-1]
            self.worst[kind] = max(self.worst.get(kind, 0.0), share[at])
            if not share[at] <= 1:
                self.failures.append((share[at], f"{name}{list(map(int, at))} is {theirs[at]} where {ours[at]} is "
                                      f"expected, tolerance {tolerance[at]:.3g}"))
        return theirs

    def judge_layer(self, trace, policy, budget, index):
        """Every tensor of one layer, the decode steps on the dump's kept set; relative L [steps, query_heads]."""
        layer, prefix, count = trace.layer(index), f"layers.{index}.", budget - policy.window
        heads = [prompt_scores(trace, layer, policy, group) for group in range(trace.kv_heads)]
        score, stage_two, stage_two_terms, norms, norms_terms = (
            np.stack([getattr(scores, kind) for scores in heads])
            for kind in ("score", "stage_two", "stage_two_terms", "norms", "norms_terms"))
        self.judge(prefix + "score_positions", np.arange(trace.prompt_tokens - policy.window))
        their_score = their_stage_two = self.judge(prefix + "score", score, score)
        if policy.selection == "critical":
            their_stage_two = self.judge(prefix + "stage_two_score", stage_two, stage_two_terms)
        if policy.selection != "top-k":
            self.judge(prefix + "projected_value_norms", np.concatenate(norms), np.concatenate(norms_terms))
        self.judge(prefix + "kept_offsets", np.arange(trace.kv_heads + 1) * budget)
        their_kept = self.fetch(prefix + "kept", "I64", [trace.kv_heads * budget]).reshape(trace.kv_heads, budget)
        kept = [keep(policy, count, scores) for scores in heads]
        for group, (scores, ours, theirs) in enumerate(zip(heads, kept, their_kept)):
            valid = np.all(np.diff(theirs) > 0) and theirs[0] >= 0 and np.array_equal(theirs[count:], ours[count:])
            missing, extra = (np.setdiff1d(*pair) for pair in ((ours, theirs), (theirs, ours)))
            if valid and (not missing.size or explained_by_near_ties(
                    policy, count, scores, theirs[:count], their_score[group], their_stage_two[group])):
                self.swaps += len(missing)
            else:
                self.failures.append((np.inf, f"{prefix}kept of KV head {group} has {extra[:4]} where {missing[:4]} is "
                                      f"expected ({len(missing)} differ), not by near ties ({NEAR_TIE} relative)"))
            kept[group] = theirs if valid else ours
        results, terms = replay_layer(trace, layer, kept)
        for kind in ("output", "perturbation", "kept_mass", "bound", "layer_perturbation"):
            self.judge(prefix + kind, results[kind], terms[kind])
        return results["relative"]

def replay(trace, policy, budget):
    """The means over layers, steps and query heads, as a line; violations are L > bound * (1 + 1e-9)."""
    parts = []
    for layer in map(trace.layer, range(trace.layers)):
        heads = [prompt_scores(trace, layer, policy, group) for group in range(trace.kv_heads)]
        parts.append(replay_layer(trace, layer, [keep(policy, budget - policy.window, scores) for scores in heads])[0])
    loss, bound, mass, relative = (np.stack([part[kind] for part in parts])
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
