"""KV-cache compression as eager PyTorch: what bench_torch.py measures.

Written as public code writes it, in whole tensors: all attention weights of the observation window, a product
of all values with W^O per query head, torch.topk, gather, scaled_dot_product_attention. The definitions are
those of kvbound's policies.

    G KV heads, H query heads, n prompt tokens, W recorded prompt queries, d head_dim, m model_dim, b budget
"""
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Policy:
    """snapkv or h2o with top-k, snapkv also with critical or keepkv; other options are kvbound's defaults."""
    host: str
    window: int = 32  # of the queries that score; snapkv always keeps its positions
    pool: int = 7
    sinks: int = 0  # first positions that h2o always keeps
    recent: int = 32  # newest entries that h2o always keeps
    critical: bool = False
    keepkv: bool = False


POLICIES = {
    "snapkv": Policy("snapkv"), "snapkv+critical": Policy("snapkv", critical=True),
    "snapkv+keepkv": Policy("snapkv",
                            keepkv=True), "h2o": Policy("h2o"), "h2o:sinks=4": Policy("h2o", sinks=4)
}
ALPHA, EPSILON = 0.5, 1e-4  # of critical
EMA, THRESHOLD, RANK = 0.9, 0.8, 0.3  # of keepkv


@dataclass
class Layer:
    keys: torch.Tensor  # [G, n, d], after RoPE
    values: torch.Tensor  # [G, n, d]
    queries: torch.Tensor  # [H, W, d]: of the last W prompt tokens, after RoPE
    projection: torch.Tensor  # [H, d, m]: every query head's rows of W^O
    scale: float

    @property
    def group(self):
        return len(self.queries) // len(self.keys)


@dataclass
class Cache:
    """A layer's entries that are kept, and how they were chosen."""
    keys: torch.Tensor  # [G, b, d]
    values: torch.Tensor  # [G, b, d]
    positions: torch.Tensor  # [G, b], ascending
    running: torch.Tensor = None  # [G, b]: h2o's sums of attention
    votes: torch.Tensor = None  # [G, b]: keepkv's
    score: torch.Tensor = None  # [G, scored positions]
    stage_two_score: torch.Tensor = None  # likewise: critical's
    projected_value_norms: torch.Tensor = None  # [H, n]: critical's


def wide(tensor):
    """At least float32, in which sums of 16-bit numbers are formed."""
    return tensor.float() if tensor.element_size() < 4 else tensor


# ---- scores ------------------------------------------------------------------------------------------------


def window_attention(queries, keys, scale):
    """Attention weights [H, W, n] of the prompt's last W queries, [H, W, d], over its keys."""
    (heads, window, dim), (kv_heads, tokens, _) = queries.shape, keys.shape
    logits = scale * queries.reshape(kv_heads, -1, dim) @ keys.transpose(1, 2)
    logits = wide(logits).view(heads, window, tokens)
    future = torch.ones(window, window, dtype=torch.bool, device=keys.device).triu(1)
    logits[..., -window:].masked_fill_(future, -torch.inf)
    return logits.softmax(-1)


def group_mean(scores, group):
    """[H, n] -> [G, n]"""
    return scores.view(-1, group, scores.shape[-1]).mean(1)


def max_pool(scores, width):
    return F.max_pool1d(scores, width, stride=1, padding=width // 2)


def projected_value_norms(values, projection, order=1):
    """Norms [n] of one head's projected values: values [n, d], its rows [d, m] of W^O."""
    return torch.linalg.vector_norm(wide(values @ projection), order, dim=-1)


def layer_norms(values, projection):
    """The L1 norms [H, n] of all query heads."""
    group = len(projection) // len(values)
    return torch.stack([projected_value_norms(values[h // group], rows) for h, rows in enumerate(projection)])


def stage_two_scores(scores, norms, group):
    """mean_h (a_h + epsilon) N_h: [H, m] and [H, m] -> [G, m]"""
    return group_mean((scores + EPSILON) * norms, group)


# ---- selections: ascending positions -----------------------------------------------------------------------


def select_top(scores, k):
    return scores.topk(k, dim=-1, sorted=False).indices.sort(dim=-1).values


def select_critical(scores, stage_two, k):
    """Stage one: the floor(k / 2) largest scores; stage two: of the others the largest of stage two's."""
    first = scores.topk(int(ALPHA * k), dim=-1, sorted=False).indices
    others = stage_two.scatter(-1, first, -torch.inf)
    second = others.topk(k - first.shape[-1], dim=-1, sorted=False).indices
    return torch.cat([first, second], -1).sort(dim=-1).values


def compact(tensor, positions):
    """[G, n, d] at the positions [G, b] -> [G, b, d]"""
    return tensor.gather(1, positions[..., None].expand(-1, -1, tensor.shape[-1]))


def compress(layer, policy, budget):
    """A layer's cache after the prompt: the same budget for every KV head."""
    kv_heads, tokens, _ = layer.keys.shape
    queries = layer.queries if policy.keepkv else layer.queries[:, -policy.window:]
    attention = window_attention(queries, layer.keys, layer.scale)
    if policy.host == "snapkv":
        first, last = 0, policy.window
        means = attention[:, -policy.window:].mean(1)
        scores = max_pool(means[:, :tokens - policy.window], policy.pool)
    else:
        first, last = policy.sinks, policy.recent
        scores = attention.sum(1)
    score = group_mean(scores, layer.group)
    candidates, k = score[:, first:tokens - last], budget - first - last
    norms = stage_two = None
    if policy.critical:
        norms = layer_norms(layer.values, layer.projection)
        stage_two = stage_two_scores(scores, norms[:, :tokens - policy.window], layer.group)
        chosen = select_critical(candidates, stage_two, k)
    else:
        chosen = select_top(candidates, k)
    every = torch.arange(tokens, device=chosen.device).expand(kv_heads, -1)
    kept = torch.cat([every[:, :first], first + chosen, every[:, tokens - last:]], 1)
    running = score.gather(1, kept) if policy.host == "h2o" else None
    cache = Cache(compact(layer.keys, kept), compact(layer.values, kept), kept, running, None, score,
                  stage_two, norms)
    return merge(layer, cache, predicted_scores(attention)) if policy.keepkv else cache


# ---- merging: KeepKV, minimum-norm keys, joint over the query heads of a KV head ---------------------------


def predicted_scores(attention):
    """Moving averages [H, n] of queries' attention [H, W, n], each over those that see the entry."""
    _, window, tokens = attention.shape
    age = EMA**torch.arange(window - 1, -1, -1, dtype=attention.dtype, device=attention.device)
    sees = torch.ones(window, tokens, dtype=attention.dtype, device=attention.device).tril(tokens - window)
    return torch.einsum("w,hwn->hn", age, attention) / (age @ sees)


def nearest_keys(leaving, staying):
    """The largest cosine of every leaving key [.., e, d] with the staying ones [.., b, d], and whose."""
    return (F.normalize(leaving, dim=-1) @ F.normalize(staying, dim=-1).transpose(-1, -2)).max(-1)


def slots(layer, cache):
    """The kept entry [G, n] into which each entry goes, itself if it is kept; b for dropped entries."""
    kv_heads, tokens, _ = layer.keys.shape
    budget = cache.positions.shape[1]
    own = torch.arange(budget, device=layer.keys.device).expand(kv_heads, -1)
    slot = torch.full((kv_heads, tokens), budget, device=layer.keys.device).scatter_(1, cache.positions, own)
    evicted = (slot == budget).nonzero()[:, 1].view(kv_heads, -1)
    leaving = compact(layer.keys, evicted)
    for g in range(kv_heads):  # head by head: the cosines of all heads at once need gigabytes
        cosine, target = nearest_keys(leaving[g], cache.keys[g])
        slot[g, evicted[g]] = torch.where(cosine > THRESHOLD, target, budget)
    return slot


def merge(layer, cache, predicted):
    """Merges every evicted entry into the kept one of the nearest key, if their cosine exceeds THRESHOLD.

    predicted   [H, n]: predicted scores
    """
    (kv_heads, budget, dim), group = cache.keys.shape, layer.group
    slot = slots(layer, cache)

    def sums(numbers):  # [G, n, ..] -> [G, b, ..]: over the entries that go into each kept one
        index = slot.view(*slot.shape, *[1] * (numbers.dim() - 2)).expand_as(numbers)
        zeros = numbers.new_zeros(kv_heads, budget + 1, *numbers.shape[2:])
        return zeros.scatter_add_(1, index, numbers)[:, :budget]

    keys, values = wide(layer.keys), wide(layer.values)
    votes = sums(torch.ones_like(predicted[:kv_heads]))
    own_votes = torch.cat([votes, votes.new_ones(kv_heads, 1)], 1).gather(1, slot)
    queries = layer.scale * wide(layer.queries[:, -1]).view(kv_heads, group, dim)
    heads = []  # of each: its keys and values [G, b, d], logits that it asks for and importance [G, b]
    for h, weights in enumerate(predicted.view(kv_heads, group, -1).unbind(1)):
        total = sums(weights)
        shares = weights / torch.cat([total, total.new_ones(kv_heads, 1)], 1).gather(1, slot)
        key, value = sums(shares[..., None] * keys), sums(shares[..., None] * values)
        divergence = sums(torch.xlogy(shares, shares * own_votes))
        target = (key @ queries[:, h, :, None])[..., 0] - divergence
        heads.append((key, value, target, (total / weights.sum(1, keepdim=True))**2))
    merged_keys, merged_values, targets, importance = (torch.stack(parts, 1) for parts in zip(*heads))
    mean_key = merged_keys.mean(1)
    missing = targets - queries @ mean_key.transpose(1, 2)
    key = mean_key + (torch.linalg.pinv(queries, rtol=RANK) @ missing).transpose(1, 2)
    value = (importance[..., None] * merged_values).sum(1) / importance.sum(1)[..., None]
    is_merged = (votes > 1)[..., None]
    return replace(cache, keys=torch.where(is_merged, key.to(cache.keys.dtype), cache.keys),
                   values=torch.where(is_merged, value.to(cache.values.dtype), cache.values), votes=votes)


# ---- decoding ----------------------------------------------------------------------------------------------


def attention(queries, keys, values, scale, votes=None):
    """Outputs [H, d] of one query per query head, [H, d], over a cache [G, b, d] with votes [G, b]."""
    mask = None
    if votes is not None:
        mask = votes.log().to(queries.dtype).repeat_interleave(len(queries) // len(keys), 0)[None, :, None]
    output = F.scaled_dot_product_attention(queries[None, :, None], keys[None], values[None], mask,
                                            scale=scale, enable_gqa=True)
    return output[0, :, 0]


def step(cache, policy, entry, queries, scale):
    """A decode step: (outputs [H, d], the cache after it, the slots [G] that were evicted or None).

    entry     the new key and value, each [G, d]
    queries   [H, d]
    """
    key, value = entry
    keys, values = torch.cat([cache.keys, key[:, None]], 1), torch.cat([cache.values, value[:, None]], 1)
    kv_heads, entries, dim = keys.shape
    positions = torch.cat([cache.positions, cache.positions[:, -1:] + 1], 1)
    if policy.host == "snapkv":
        votes = None if cache.votes is None else F.pad(cache.votes, (0, 1), value=1)
        return (attention(queries, keys, values, scale, votes), Cache(keys, values, positions,
                                                                      votes=votes), None)
    weights = wide(scale * queries.view(kv_heads, -1, dim) @ keys.transpose(1, 2)).softmax(
        -1)  # [G, H/G, b + 1]
    output = (weights.to(values.dtype) @ values).view(-1, dim)
    running = F.pad(cache.running, (0, 1)) + weights.mean(1)
    evicted = policy.sinks + running[:, policy.sinks:entries - policy.recent].argmin(1)
    kept = torch.arange(entries - 1, device=keys.device).expand(kv_heads, -1)
    kept = kept + (kept >= evicted[:, None])
    after = Cache(compact(keys, kept), compact(values, kept), positions.gather(1, kept),
                  running.gather(1, kept))
    return output, after, evicted
