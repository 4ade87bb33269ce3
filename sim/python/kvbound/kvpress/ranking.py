"""How hosts rank a prompt's entries: SnapKV, TOVA, StreamingLLM, Knorm, Expected Attention; in NumPy, in double precision.

Every function takes a PromptLayer and options, {name: value}, and returns a Ranking. Errors are what single precision can do to
a score, for sums in any order, to first order; the queries, keys and values are taken as the model's attention got them.
"""
import functools
from dataclasses import dataclass

import numpy as np

from kvbound.errors import InvalidInput

ROUNDOFF = 2.0**-24  # of single precision


@dataclass(frozen=True)
class Ranking:
    """scores       [num_kv_heads, n], larger ones are kept
    head_scores  [num_qo_heads, n]: before query heads of a KV head are joined
    error        [num_kv_heads, n]: how far scores may be off; head_error likewise
    always       [n] of bool: kept whatever their scores, which are not used
    """

    scores: np.ndarray
    head_scores: np.ndarray
    error: np.ndarray
    head_error: np.ndarray
    always: np.ndarray

    @classmethod
    def within(cls, relative, scores, head_scores, always):
        """With errors that are relative to the scores."""
        return cls(scores, head_scores, np.abs(scores) * relative, np.abs(head_scores) * relative, always)


def remembered(function):
    """A function of a layer and options that is computed once for the layer."""
    @functools.wraps(function)
    def call(layer, *options):
        key = function.__name__, *options
        if key not in layer.memory:
            layer.memory[key] = function(layer, *options)
        return layer.memory[key]
    return call


def by_group(array, num_kv_heads):
    """[num_qo_heads, ...] as [num_kv_heads, group, ...]."""
    return array.reshape(num_kv_heads, -1, *array.shape[1:])


@remembered
def window_attention(layer, window):
    """The mean attention of the last `window` queries over the whole prompt, and its relative error.

        mean[h, j] = (1 / window) sum_i A^h_ij,   A = causal softmax

    returns  [num_qo_heads, n], float
    """
    n, num_kv_heads, head_dim = layer.keys.shape
    heads, queries = layer.queries.shape[1], layer.queries[-window:].astype("f8")
    mean, largest = np.empty((heads, n)), 0
    later = np.arange(n) > np.arange(n - window, n)[:, None]
    for head in range(heads):
        keys = layer.keys[:, head * num_kv_heads // heads].astype("f8")
        logits = layer.sm_scale * queries[:, head] @ keys.T
        logits[later] = -np.inf
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        mean[head] = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
        largest = max(largest, (np.abs(queries[:, head]) @ np.abs(keys).T).max())
    logit_error = (head_dim + 3) * ROUNDOFF * layer.sm_scale * largest
    return mean, np.expm1(2 * logit_error) + (n + window + 8) * ROUNDOFF


def pooled(scores, width, kind):
    """[heads, m]: the largest of `width` neighbours, or their sum (zeros beyond both ends) over width."""
    padded = np.pad(scores, ((0, 0), (width // 2, width // 2)))
    neighbours = np.lib.stride_tricks.sliding_window_view(padded, width, axis=1)
    return neighbours.max(axis=2) if kind == "maximum" else neighbours.mean(axis=2)


def snapkv(layer, options):
    """The last `window` entries are kept; the others are ranked by their mean attention from the window, pooled.

    options  window, kernel, pooling ("maximum" or "mean"), group ("mean" or "maximum", over a KV head's query heads)
    source   SnapKV (arXiv:2404.14469), Listing 1, which has one query head per KV head
    """
    n, num_kv_heads, _ = layer.keys.shape
    weights, error = window_attention(layer, options["window"])
    always = np.arange(n) >= n - options["window"]
    heads = np.zeros_like(weights)
    heads[:, ~always] = pooled(weights[:, ~always], options["kernel"], options["pooling"])
    groups = by_group(heads, num_kv_heads)
    scores = groups.mean(axis=1) if options["group"] == "mean" else groups.max(axis=1)
    return Ranking.within(error, scores, heads, always)


def tova(layer, options):
    """Entries are ranked by the attention that they receive from the last query.

    options  heads: whose attention is averaged ("KV head": its query heads', "layer"); last ("ranked" as the others, "kept")
    source   TOVA (arXiv:2401.06104), section 3
    """
    n, num_kv_heads, _ = layer.keys.shape
    weights, error = window_attention(layer, 1)
    if options["heads"] == "layer":
        scores = np.broadcast_to(weights.mean(axis=0), (num_kv_heads, n)).copy()
    else:
        scores = by_group(weights, num_kv_heads).mean(axis=1)
    return Ranking.within(error, scores, weights, (np.arange(n) == n - 1) & (options["last"] == "kept"))


def streaming_llm(layer, options):
    """The first `sinks` and the newest entries are kept.      source  StreamingLLM (arXiv:2309.17453)"""
    n, num_kv_heads, _ = layer.keys.shape
    newest = np.arange(n, dtype=float)
    return Ranking.within(0, np.tile(newest, (num_kv_heads, 1)), np.tile(newest, (layer.queries.shape[1], 1)),
                          np.arange(n) < options["sinks"])


def knorm(layer, options):
    """Entries are ranked by -|| k ||_2.      source  arXiv:2406.11430, section 2"""
    norms = np.linalg.norm(layer.keys.astype("f8"), axis=2).T
    group = layer.queries.shape[1] // len(norms)
    return Ranking.within((layer.keys.shape[2] + 4) * ROUNDOFF, -norms, np.repeat(-norms, group, axis=0),
                          np.zeros(norms.shape[1], bool))


@remembered
def projected_value_norms(layer, order):
    """(|| v_j W^O_h || in L1 or L2, its error), both [num_qo_heads, n]."""
    n, num_kv_heads, head_dim = layer.values.shape
    heads = layer.queries.shape[1]
    norms, errors = np.empty((heads, n)), np.empty((heads, n))
    for head in range(heads):
        values = layer.values[:, head * num_kv_heads // heads].astype("f8")
        projection = layer.projection[head * head_dim:(head + 1) * head_dim].astype("f8")
        norms[head] = np.linalg.norm(values @ projection, order, axis=1)
        errors[head] = np.linalg.norm(np.abs(values) @ np.abs(projection), order, axis=1)
    return norms, (head_dim + projection.shape[1] + 4) * ROUNDOFF * errors


def expected_attention(layer, options):
    """The first `sinks` entries are kept; the others are ranked by the attention that future queries are expected to give them.

        x_j = s mu^T k_j + s^2 / 2 k_j^T Sigma k_j,   a = softmax(x),   score_j = (a_j + epsilon) || v_j W^O_h ||_2

    with the mean mu and the covariance Sigma of the prompt's queries before RoPE, without those of the sinks, turned by the mean
    rotation of the next `future` positions; the mean over a KV head's query heads.

    options  sinks, future, epsilon, values ("v W^O", or "v": || v_j ||_2 in place of the projected value's norm)
    source   Expected Attention (arXiv:2510.00636), equations 5 to 9
    """
    n, num_kv_heads, _ = layer.keys.shape
    attention, errors = expected_weights(layer, options["sinks"], options["future"])
    always = np.arange(n) < options["sinks"]
    if options["values"] == "v W^O":
        norms, norm_errors = projected_value_norms(layer, 2)
    else:
        norms = np.repeat(np.linalg.norm(layer.values.astype("f8"), axis=2).T, len(attention) // num_kv_heads, axis=0)
        norm_errors = (layer.values.shape[2] + 8) * ROUNDOFF * norms
    by_head = (attention + options["epsilon"]) * norms
    error = errors * norms + (attention + options["epsilon"]) * norm_errors
    scores, errors = (by_group(part, num_kv_heads).mean(axis=1) for part in (by_head, error))
    return Ranking(scores, by_head, errors, error, always)


@remembered
def expected_weights(layer, sinks, future):
    """(a, its error) of expected_attention, both [num_qo_heads, n]."""
    if layer.rotation is None:
        raise InvalidInput("model: has no RoPE; ExpectedAttentionPress needs it")
    n, num_kv_heads, _ = layer.keys.shape
    heads = layer.queries.shape[1]
    cos, sin = (part[:n, None] for part in layer.rotation)
    straight = (layer.queries * cos - half_turned(layer.queries) * sin) / (cos**2 + sin**2)
    turn = mean_rotation(layer.rotation, n, future)
    attention, errors = np.zeros((heads, n)), np.zeros((heads, n))
    for head in range(heads):
        keys = layer.keys[sinks:, head * num_kv_heads // heads].astype("f8")
        logits, logit_errors = gaussian_logits(straight[sinks:, head], keys, turn, layer.sm_scale)
        weights = np.exp(logits - logits.max())
        attention[head, sinks:] = weights / weights.sum()
        errors[head, sinks:] = np.expm1(2 * logit_errors.max()) + n * ROUNDOFF
    return attention, attention * errors


def half_turned(x):
    """RoPE's (-x_2, x_1) of halves (x_1, x_2)."""
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def mean_rotation(rotation, first, count):
    """[head_dim, head_dim]: RoPE's matrix, its mean over the positions first ... first + count - 1."""
    cos, sin = (part[first:first + count].mean(axis=0) for part in rotation)
    identity = np.eye(len(cos))
    return cos[:, None] * identity + sin[:, None] * half_turned(identity).T


def gaussian_logits(queries, keys, turn, scale):
    """(ln E exp(scale q . k_j), its error), both [n], for Gaussian q with the turned mean and covariance of queries."""
    m, head_dim = queries.shape
    mean = queries.mean(axis=0)
    centred = queries - mean
    turned = turn @ mean
    covariance = turn @ (centred.T @ centred / m) @ turn.T
    logits = scale * keys @ turned + scale**2 / 2 * np.einsum("nd,de,ne->n", keys, covariance, keys, optimize=True)
    size, spread, bend = np.abs(queries).mean(axis=0), np.abs(centred), np.abs(turn)
    crossed = np.outer(spread.mean(axis=0), size)
    sizes = bend @ (spread.T @ spread / m + crossed + crossed.T) @ bend.T
    magnitude = scale * np.abs(keys) @ (bend @ size) + scale**2 / 2 * np.einsum("nd,de,ne->n", np.abs(keys), sizes, np.abs(keys),
                                                                               optimize=True)
    return logits, (m + 4 * head_dim + 8) * ROUNDOFF * magnitude
