#include "merged_errors.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>
#include <variant>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/numerics/columns.hpp>
#include <kvbound/reference/numerics/vectors.hpp>
#include <kvbound/reference/session/head_merging.hpp>

#include "target_rule.hpp"

namespace kvbound::sim {
namespace {

using reference::Arithmetic;
using reference::HeadCache;

// Bound on |ln s| if no logit exceeds `largest_logit` in magnitude.
double largest_score(double largest_logit, int64_t tokens) {
  return 2 * largest_logit + std::log(static_cast<double>(tokens));
}

std::vector<double> stored(VectorView numbers, std::vector<double> errors, const Arithmetic& arithmetic) {
  const std::vector<double> storage = storage_errors(numbers, arithmetic);
  for (size_t c = 0; c < errors.size(); ++c) errors[c] += storage[c];
  return errors;
}

void add_rounding(const InputRounding& rounding, VectorView numbers, std::vector<double>& errors) {
  for (size_t c = 0; c < errors.size(); ++c) {
    errors[c] += rounding.relative * (std::abs(numbers[c]) + errors[c]) + rounding.floor;
  }
}

}  // namespace

// ln D_h, the log-sum-exp over the cache, per query head, and its error bounds.
struct MergedErrors::Denominators {
  std::vector<double> values, errors;
};

MergedErrors::MergedErrors(const traces::Layer& layer, const Policy& policy, const Arithmetic& arithmetic,
                           Dtype storage, int64_t kv_head)
    : layer_(layer),
      policy_(policy),
      arithmetic_(arithmetic),
      g_(kv_head),
      group_size_(layer.shape.group_size()),
      prediction_(rules_of(policy.merge).prediction),
      storage_(arithmetic.input > 0 ? InputRounding{} : storage_rounding(storage)),
      log_scores_(group_size_, layer.keys.view().rows) {}

EntryErrors MergedErrors::entry(int64_t position) const {
  const auto found = entries_.find(position);
  if (found != entries_.end()) return found->second;
  const std::vector<double> none(layer_.shape.head_dim);
  return {none, none};
}

CacheRowErrors MergedErrors::of(const HeadCache& cache) const {
  CacheRowErrors rows;
  if (entries_.empty()) return rows;
  for (const int64_t position : cache.positions) {
    const EntryErrors errors = entry(position);
    rows.keys.append_row(errors.key);
    rows.values.append_row(errors.value);
  }
  return rows;
}

std::vector<double> MergedErrors::stored_key(int64_t position, VectorView key) const {
  return stored(key, entry(position).key, arithmetic_);
}

std::vector<double> MergedErrors::stored_value(int64_t position, VectorView value) const {
  return stored(value, entry(position).value, arithmetic_);
}

std::vector<reference::PossibleKey> MergedErrors::stored_possible_keys(int64_t position) const {
  std::vector<reference::PossibleKey> keys = entry(position).possible_keys;
  for (reference::PossibleKey& possible : keys) {
    possible.errors = stored(possible.key, std::move(possible.errors), arithmetic_);
  }
  return keys;
}

bool MergedErrors::is_normalised() const {
  return prediction_->predict == Prediction::ema && prediction_->scores == ScoreKind::attention;
}

void MergedErrors::accumulate_prompt(const LayerView& prompt, const Matrix& log_sum_exp_errors) {
  if (!prediction_) return;
  constexpr int64_t kQueries = 32;  // queries per block
  const bool averaged = prediction_->predict == Prediction::ema;
  const MatrixView keys = prompt.keys.slice(g_);
  for (int64_t i = 0; i < group_size_; ++i) {
    const int64_t head = g_ * group_size_ + i;
    const std::span<double> errors = log_scores_.row(i).first(prompt.prompt_tokens());
    double largest = 0;
    const int64_t first = averaged ? 0 : prompt.window_queries() - 1;
    for (int64_t q = first; q < prompt.window_queries(); q += kQueries) {
      const int64_t count = std::min(kQueries, prompt.window_queries() - q);
      const MatrixView queries = prompt.queries.slice(head).middle_rows(q, count);
      const Matrix off = reference::logit_errors(queries, keys, layer_.scale, arithmetic_);
      largest = std::max(
          largest, reference::max_abs(reference::attention_logits(queries, keys, layer_.scale).numbers()));
      for (int64_t row = 0; row < count; ++row) {
        // ln s = z - LSE if scores are normalised, otherwise z; the error is that of z plus that of the LSE.
        const double sum = is_normalised() ? log_sum_exp_errors(head, q + row) : 0;
        for (size_t j = 0; j < errors.size(); ++j) errors[j] = std::max(errors[j], off.row(row)[j] + sum);
      }
    }
    if (!averaged) continue;
    const double average = reference::score_ema_error(
        prompt.window_queries(), prediction_->ema, largest_score(largest, layer_.prompt_tokens), arithmetic_);
    for (double& error : errors) error += average;
  }
}

void MergedErrors::restart(MatrixView queries, MatrixView keys) {
  log_scores_ = Matrix(group_size_, layer_.keys.view().rows);
  const Matrix off = reference::logit_errors(queries, keys, layer_.scale, arithmetic_);
  for (int64_t h = 0; h < group_size_; ++h) std::ranges::copy(off.row(h), log_scores_.row(h).begin());
}

void MergedErrors::observe(MatrixView queries, const HeadCache& cache, int64_t tokens,
                           const reference::AttentionErrors& errors) {
  if (!prediction_) return;
  const bool averaged = prediction_->predict == Prediction::ema;
  const double largest =
      reference::max_abs(reference::attention_logits(queries, cache.keys, layer_.scale).numbers());
  const double rounding =
      averaged ? reference::score_ema_error(1, prediction_->ema, largest_score(largest, tokens), arithmetic_)
               : 0;
  for (int64_t h = 0; h < group_size_; ++h) {
    const double sum = is_normalised() ? errors.log_sum_exp[h] : 0;
    for (int64_t entry = 0; entry < cache.entries(); ++entry) {
      double& error = log_scores_(h, cache.positions[entry]);
      const double own = errors.logits(h, entry) + sum;
      error = averaged ? std::max(error, own) + rounding : own;
    }
  }
}

MergedErrors::Denominators MergedErrors::denominators(const MergingCache& cache) const {
  Denominators result;
  for (int64_t h = 0; h < cache.log_scores.rows(); ++h) {
    std::vector<double> logits(cache.log_scores.row(h).begin(), cache.log_scores.row(h).end());
    double off = 0, size = 0;
    for (size_t j = 0; j < logits.size(); ++j) {
      if (!cache.votes.empty()) logits[j] += std::log(cache.votes[j]);
      off = std::max(off, log_scores_(h, cache.positions[j]));
      if (std::isfinite(logits[j])) size = std::max(size, std::abs(logits[j]));
    }
    const auto count = std::ssize(logits);
    result.values.push_back(reference::log_sum_exp(logits));
    result.errors.push_back(off + reference::sum_rounding(count + 8, arithmetic_) +
                            8 * (arithmetic_.exponential + 0x1p-51) *
                                (1 + size + std::log(static_cast<double>(count))));
  }
  return result;
}

// Error bounds of a cluster's merged entry, one case per merging method.
struct MergedErrors::ClusterErrors {
  const MergedErrors& of;
  const MergingCache& cache;
  const reference::ClusterMembers& members;
  const reference::MemberErrors& errors;
  const reference::MergeDirections& directions;

  reference::MergedEntryErrors operator()(const KeepKv& method) const {
    return by_predicted_scores({method.key, method.gqa, method.rank});
  }
  reference::MergedEntryErrors operator()(const ConvexMerge& method) const {
    return by_predicted_scores({MergedKey::convex, method.gqa, 0});
  }
  reference::MergedEntryErrors operator()(const D2o&) const {
    return reference::similarity_mean_errors(members, errors, of.arithmetic_, directions);
  }
  reference::MergedEntryErrors operator()(const KvMerger&) const {
    return reference::gaussian_mean_errors(members, errors, of.arithmetic_, directions);
  }
  reference::MergedEntryErrors operator()(const NoMerge&) const { return none(); }
  reference::MergedEntryErrors operator()(const Cam&) const { return none(); }

 private:
  reference::MergedEntryErrors by_predicted_scores(const KeyRule& rule) const {
    const Denominators sums = of.denominators(cache);
    const reference::MergeErrorsCase given{rule, cache.queries, of.layer_.scale, sums.values, sums.errors};
    return reference::merge_cluster_errors(given, members, errors, of.arithmetic_, directions);
  }
  // For methods that form no clusters; never called.
  static reference::MergedEntryErrors none() {
    assert(false);
    return {};
  }
};

reference::MergedEntryErrors MergedErrors::merged(const MergingCache& cache,
                                                  const reference::ClusterMembers& members,
                                                  const std::vector<int64_t>& positions,
                                                  const reference::MergeDirections& directions) const {
  reference::MemberErrors errors;
  for (size_t j = 0; j < positions.size(); ++j) {
    const auto row = static_cast<int64_t>(j);
    errors.keys.append_row(stored_key(positions[j], members.keys.row(row)));
    errors.values.append_row(stored_value(positions[j], members.values.row(row)));
  }
  errors.log_scores = reference::columns_of(log_scores_, positions);
  return std::visit(ClusterErrors{*this, cache, members, errors, directions}, policy_.merge);
}

void MergedErrors::put(int64_t position, reference::MergedEntryErrors errors) {
  for (size_t h = 0; h < errors.log_scores.size(); ++h) {
    log_scores_(h, position) = errors.log_scores[h];
  }
  entries_[position] = {std::move(errors.key),           std::move(errors.value),
                        std::move(errors.possible_keys), errors.condition_number,
                        std::move(errors.key_savings),   std::move(errors.value_savings)};
}

void MergedErrors::store_key(int64_t position, VectorView key) {
  EntryErrors errors = entry(position);
  add_rounding(storage_, key, errors.key);
  for (reference::PossibleKey& possible : errors.possible_keys) {
    add_rounding(storage_, possible.key, possible.errors);
  }
  entries_[position] = std::move(errors);
}

void MergedErrors::store_value(int64_t position, VectorView value) {
  EntryErrors errors = entry(position);
  add_rounding(storage_, value, errors.value);
  entries_[position] = std::move(errors);
}

void MergedErrors::set_exact_key(int64_t position) {
  const auto found = entries_.find(position);
  if (found == entries_.end()) return;
  std::ranges::fill(found->second.key, 0.0);
  found->second.possible_keys.clear();
  found->second.key_savings.clear();
}

void MergedErrors::set_exact_value(int64_t position) {
  const auto found = entries_.find(position);
  if (found == entries_.end()) return;
  std::ranges::fill(found->second.value, 0.0);
  found->second.value_savings.clear();
}

void MergedErrors::add_storage(int64_t position, VectorView value) {
  EntryErrors errors = entry(position);
  errors.value = stored(value, std::move(errors.value), arithmetic_);
  entries_[position] = std::move(errors);
}

void MergedErrors::add_spread(int64_t position, VectorView own, VectorView value, VectorView value_errors,
                              int64_t sharing) {
  const double share = 1 / static_cast<double>(sharing);
  EntryErrors errors = entry(position);
  for (size_t c = 0; c < errors.value.size(); ++c) {
    errors.value[c] += share * value_errors[c] +
                       4 * unit() * (std::abs(own[c]) + 2 * share * std::abs(value[c]) + errors.value[c]);
  }
  entries_[position] = std::move(errors);
}

void MergedErrors::add_on_the_way(int64_t position, VectorView value, int64_t sharing) {
  EntryErrors errors = entry(position);
  const double share = 4 * unit() * static_cast<double>(layer_.prompt_tokens) / static_cast<double>(sharing);
  for (size_t c = 0; c < errors.value.size(); ++c) errors.value[c] += share * std::abs(value[c]);
  entries_[position] = std::move(errors);
}

}  // namespace kvbound::sim
