// The argument checks of every backend's session, so that all
// backends reject the same arguments with the same messages.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "allocation_rules.hpp"
#include "error.hpp"
#include "host_rules.hpp"
#include "policy.hpp"
#include "score_rules.hpp"
#include "selection_rules.hpp"
#include "session.hpp"
#include "shape_check.hpp"

namespace kvbound {
namespace detail {

inline void require_heads(const std::string& what, TensorView heads, int64_t count, int64_t head_dim) {
  require_equal("slices of " + what, heads.slices, "heads of the layer", count);
  require_equal("columns of " + what, heads.cols, "head_dim", head_dim);
}

inline void require_rows(const std::string& what, MatrixView rows, int64_t heads, int64_t head_dim) {
  require_equal("rows of " + what, rows.rows, "heads of the layer", heads);
  require_equal("columns of " + what, rows.cols, "head_dim", head_dim);
}

inline void require_option(const char* name, int64_t value, int64_t least) {
  if (value >= least) return;
  throw InvalidPolicy(std::string(name) + "=" + std::to_string(value) + " but it must be at least " +
                      std::to_string(least));
}

inline void require_valid(const SnapKv& host, int64_t budget) {
  require_option("window", host.window, 1);
  if (host.pool < 1 || host.pool % 2 == 0) {
    throw InvalidPolicy("pool=" + std::to_string(host.pool) + " but it must be odd");
  }
  if (budget < host.window) {
    throw InvalidPolicy("budget of " + std::to_string(budget) + " entries is below the " +
                        std::to_string(host.window) + " of the observation window, which are always kept");
  }
}

// The comparison is written so that sinks + recent, which may overflow, is never formed.
inline void require_room(int64_t sinks, int64_t recent, int64_t budget) {
  require_option("sinks", sinks, 0);
  require_option("recent", recent, 0);
  if (sinks <= budget && recent <= budget - sinks) return;
  throw InvalidPolicy("budget of " + std::to_string(budget) + " entries is below the " +
                      std::to_string(sinks) + " sinks and " + std::to_string(recent) +
                      " recent entries, which are always kept");
}

inline void require_valid(const H2o& host, int64_t budget) {
  require_option("window", host.window, 1);
  require_room(host.sinks, host.recent_entries(), budget);
}
inline void require_valid(const Tova& host, int64_t budget) { require_room(host.sinks, 0, budget); }
inline void require_valid(const StreamingLlm& host, int64_t budget) { require_room(host.sinks, 0, budget); }
inline void require_valid(const RandomHost& host, int64_t budget) {
  require_option("seed", host.seed, 0);
  require_option("window", host.window, 0);
  require_room(host.sinks, host.window, budget);
}

inline void require_valid(const Given& host, int64_t budget) {
  require_option("window", host.window, 1);
  const int64_t always_kept = host.layer ? std::ssize(host.layer->always_kept) : 0;
  if (budget >= always_kept) return;
  throw InvalidPolicy("budget of " + std::to_string(budget) + " entries is below the " +
                      std::to_string(always_kept) + " that given's file always keeps");
}

// Throws InvalidPolicy for a host that ranks nothing.
inline void require_ranks(const Host& host, const std::string& before, const std::string& after) {
  if (ranks(host)) return;
  throw InvalidPolicy(before + std::string(name_of(host)) + " ranks nothing" + after +
                      "; hosts that do are " + ranking_hosts());
}

// Throws InvalidPolicy for scores that were given, for they cannot be computed again.
inline void require_computed(const HostRules& host, const std::string& what) {
  if (host.scores_given) throw InvalidPolicy(what + ", but given has the scores of its file alone");
}

inline void require_share(const char* name, const std::optional<Decimal>& value) {
  if (!value || !exceeds(*value, 1)) return;
  throw InvalidPolicy(std::string(name) + "=" + to_string(*value) + " but it must be at most 1");
}

inline void require_number(const char* name, double value, bool valid, const char* expected) {
  if (valid) return;
  char digits[32];  // the shortest text that reads back as the same number has at most 24 characters
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value).ptr;
  throw InvalidPolicy(std::string(name) + "=" + std::string(digits, end) + " but it must be " + expected);
}

// With a smaller ema, the past's share of the average is far below a double's resolution.
inline void require_valid(const PredictedScores& prediction) {
  const double ema = prediction.ema;
  require_number("ema", ema, ema == 0 || (ema >= 1e-270 && ema < 1), "0, or from 1e-270 to below 1");
}

inline void require_valid(const NoMerge&) {}
inline void require_valid(const SimilarTarget& merge) { require_share("threshold", merge.threshold); }
inline void require_valid(const KeepKv& merge) {
  require_share("threshold", merge.threshold);
  require_valid(merge.prediction);
  require_number("rank", merge.rank, merge.rank >= 0 && merge.rank <= 1, "from 0 to 1");
  require_option("period", merge.period.value_or(1), 1);
}
inline void require_valid(const ConvexMerge& merge) {
  require_share("threshold", merge.threshold);
  require_valid(merge.prediction);
}
inline void require_valid(const Cam& merge) {
  require_option("neighbours", merge.neighbours, 1);
  require_option("seed", merge.seed, 0);
}

inline void require_valid(const Uniform&) {}
inline void require_valid(const AdaKv& allocation) { require_share("safeguard", allocation.safeguard); }
inline void require_valid(const Pyramid& allocation) { require_option("beta", allocation.beta, 1); }
inline void require_valid(const HeadKv& allocation) {
  if (!allocation.read)
    throw InvalidPolicy("headkv's file of scores is read by replay, evaluate, sweep, predict and diff alone");
  if (floor_of_product(allocation.beta, 1) < 1)
    throw InvalidPolicy("beta=" + to_string(allocation.beta) + " but it must be at least 1");
  const double power = allocation.temperature;
  require_number("temperature", power, power >= 0 && power <= std::numeric_limits<double>::max(),
                 "a finite number >= 0");
}

inline void require_composable(const NoMerge&, const Policy&) {}
inline void require_composable(const ConvexMerge&, const Policy&) {}
inline void require_composable(const D2o&, const Policy&) {}
inline void require_composable(const KvMerger&, const Policy&) {}
inline void require_composable(const Cam&, const Policy&) {}
inline void require_composable(const KeepKv& merge, const Policy& policy) {
  if (merge.key == MergedKey::zip && merge.gqa == MergeGqa::joint) {
    throw InvalidPolicy("keepkv:key=zip scales a key by one factor: it takes gqa=mean, not gqa=joint");
  }
  const SelectionRules selection = rules_of(policy.selection);
  if (merge.order == MergeOrder::merge_first &&
      !(ranks(policy.host) && !rules_of(policy.score).change && selection.keeps_largest_scores)) {
    throw InvalidPolicy(
        "keepkv:order=merge-first merges by attention before the entries of largest attention stay: it takes the hosts " +
        ranking_hosts() + ", and no score and no selection");
  }
  if (!merge.period) return;
  require_ranks(policy.host, "keepkv:period selects anew by the current query, but ", "");
  require_computed(rules_of(policy.host, 0, 0), "keepkv:period selects anew by the current query");
  if (selection.is_greedy) {
    throw InvalidPolicy("keepkv:period selects anew by the current query alone, which greedy cannot");
  }
}

}  // namespace detail

/// Throws InvalidPolicy unless the policy's components can be combined.
inline void require_composable(const Policy& policy) {
  const bool by_attention = !rules_of(policy.score).change;
  const SelectionRules selection = rules_of(policy.selection);
  const HostRules host = rules_of(policy.host, 0, 0);
  if (!(by_attention && selection.keeps_largest_scores)) {
    detail::require_ranks(policy.host, "", ": it takes no score and no selection");
  }
  if (!selection.keeps_largest_scores && !by_attention) {
    throw InvalidPolicy(
        "critical, theta-sweep and greedy choose by attention and take no other score; with another score "
        "the entries of largest score stay");
  }
  if (!by_attention) detail::require_computed(host, "a score ranks entries in the place of the host's");
  if (selection.is_greedy && (host.evicts || host.scores_given)) {
    throw InvalidPolicy("greedy has a meaning with the host snapkv alone");
  }
  if (rules_of(policy.allocation).by_scores) {
    detail::require_ranks(policy.host, "adakv shares out by scores, but ", "");
  }
  if (rules_of(policy.allocation).across_layers && host.given && host.given->keeps()) {
    throw InvalidPolicy(
        "pyramid and headkv share out a budget, but given's file has kept sets: it takes no allocation");
  }
  std::visit([&](const auto& merge) { detail::require_composable(merge, policy); }, policy.merge);
}

/// Throws InvalidPolicy unless the policy can compress a prompt of n tokens to this budget per KV head: the
/// components can be combined, least <= budget <= n, the budget is at least the number of always-kept
/// entries, and the window is at most the number of recorded queries.
inline void require_valid(const Policy& policy, int64_t budget, int64_t prompt_tokens, int64_t window_queries,
                          int64_t least = 1) {
  if (budget < least || budget > prompt_tokens) {
    throw InvalidPolicy("budget of " + std::to_string(budget) + " entries is outside 1.." +
                        std::to_string(prompt_tokens) + ", the prompt's tokens");
  }
  require_composable(policy);
  const HostRules host = rules_of(policy.host, prompt_tokens, budget);
  const int64_t window = host.scores_given && !rules_of(policy.selection).weighs_attention ? 0 : host.window;
  if (window > window_queries) {
    throw InvalidPolicy("window=" + std::to_string(window) + " but the trace records only " +
                        std::to_string(window_queries) + " prompt queries");
  }
  std::visit([&](const auto& one) { detail::require_valid(one, budget); }, policy.host);
  std::visit([](const auto& allocation) { detail::require_valid(allocation); }, policy.allocation);
  std::visit([](const auto& merge) { detail::require_valid(merge); }, policy.merge);
}

namespace detail {

// Throws InvalidPolicy unless what was given is that of a layer of this shape, and
// kept sets have these sizes.
inline void require_given(const HostRules& host, const LayerView& layer, std::span<const int64_t> budgets) {
  if (!host.scores_given) return;
  if (!host.given) throw InvalidPolicy("given's file is read by replay, evaluate, sweep and diff alone");
  const GivenLayer& given = *host.given;
  if (given.keeps()) {
    require_equal("kept sets", std::ssize(given.kept), "kv_heads", layer.shape.kv_heads);
    const auto fits = [](const std::vector<int64_t>& kept, int64_t budget) {
      return std::ssize(kept) == budget;
    };
    if (std::ranges::equal(given.kept, budgets, fits)) return;
    throw InvalidPolicy("given's file has kept sets, whose sizes are the budgets");
  }
  require_equal("rows of score", given.score.rows(), "kv_heads", layer.shape.kv_heads);
  require_equal("columns of score", given.score.cols(), "tokens of the prompt", layer.prompt_tokens());
  if (given.head_score.rows() == 0) return;
  require_equal("rows of head_score", given.head_score.rows(), "query_heads", layer.shape.query_heads);
  require_equal("columns of head_score", given.head_score.cols(), "tokens of the prompt",
                layer.prompt_tokens());
}

}  // namespace detail

/// Throws ShapeMismatch unless the shapes of a layer's arrays are consistent.
inline void require_consistent(const LayerView& layer) {
  const LayerShape& shape = layer.shape;
  if (shape.kv_heads < 1 || shape.query_heads % shape.kv_heads != 0) {
    throw ShapeMismatch(std::to_string(shape.query_heads) + " query heads cannot share " +
                        std::to_string(shape.kv_heads) + " KV heads");
  }
  detail::require_heads("keys", layer.keys, shape.kv_heads, shape.head_dim);
  detail::require_heads("values", layer.values, shape.kv_heads, shape.head_dim);
  detail::require_heads("queries", layer.queries, shape.query_heads, shape.head_dim);
  require_equal("rows of keys", layer.keys.rows, "rows of values", layer.values.rows);
  require_equal("rows of output_projection", layer.output_projection.rows, "query_heads * head_dim",
                shape.query_heads * shape.head_dim);
  require_equal("columns of output_projection", layer.output_projection.cols, "model_dim", shape.model_dim);
}

/// Checks the arguments of `compress`. Throws ShapeMismatch, InvalidPolicy.
inline void require_valid(const LayerView& layer, const Policy& policy, std::span<const int64_t> budgets) {
  require_consistent(layer);
  require_equal("budgets", std::ssize(budgets), "kv_heads", layer.shape.kv_heads);
  detail::require_given(rules_of(policy.host, layer.prompt_tokens(), 0), layer, budgets);
  // An allocation may leave a KV head without any entry.
  for (const int64_t budget : budgets)
    require_valid(policy, budget, layer.prompt_tokens(), layer.window_queries(), 0);
}

/// Throws ShapeMismatch unless a step's arrays have the layer's shape.
inline void require_consistent(const StepView& step, const LayerShape& shape) {
  detail::require_rows("keys", step.keys, shape.kv_heads, shape.head_dim);
  detail::require_rows("values", step.values, shape.kv_heads, shape.head_dim);
  detail::require_rows("queries", step.queries, shape.query_heads, shape.head_dim);
}

}  // namespace kvbound
