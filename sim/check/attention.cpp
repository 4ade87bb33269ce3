#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include <fmt/format.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/sim/diff/judge/output_rows.hpp>

#include "check_arithmetic.hpp"
#include "input_digest.hpp"
#include "kv_tensors.hpp"

namespace kvbound::sim {
namespace {

using traces::TensorEntry;

// The tokens that a query sees.
struct Visible {
  int64_t first = 0, count = 0;
};

class AttentionCheck {
 public:
  explicit AttentionCheck(CheckFile& file)
      : file_(file), cache_(file), queries_(find_queries()), out_(find_out()) {
    const traces::MetadataFields options = file.options();
    const auto head_dim = static_cast<double>(cache_.head_dim());
    scale_ = options.has("sm_scale") ? options.positive("sm_scale") : 1 / std::sqrt(head_dim);
    causal_ = options.has("causal") && options.boolean("causal");
    if (options.has("window_left")) window_left_ = options.count("window_left", -1, kMostTokens);
    arithmetic_ = check_arithmetic(file, {"q", "k", "v"});
    find_lse();
    rows_.emplace(out_, scale_);
    expected_.resize(out_.numbers.size());
    bounds_.resize(out_.numbers.size());
  }

  CheckResult judge(const std::function<void(int64_t, int64_t)>& progress) {
    for (int64_t b = 0; b < cache_.sequences(); ++b) {
      judge_sequence(b);
      if (progress) progress(offsets_[b + 1], offsets_.back());
    }
    CheckResult result{{compare("out", out_, expected_, bounds_)}, arithmetic_.declared};
    rows_->complete(expected_, result.tensors.back());
    if (lse_) result.tensors.push_back(compare("lse", *lse_, lse_expected_, lse_bounds_));
    result.cases = cases(result.tensors);
    return result;
  }

 private:
  static constexpr int64_t kMostTokens = int64_t{1} << 40;

  // Once, at the end: takes the claims.
  CheckCases cases(const std::vector<TensorAgreement>& tensors) {
    CheckCases cases{"sequence", std::move(inputs_)};
    const std::vector<int64_t> extents{offsets_.back(), query_heads_};
    std::vector<int64_t> begins;
    for (const int64_t query : offsets_) begins.push_back(query * query_heads_);
    if (lse_) {
      cases.rows.push_back(checked_rows(std::move(*lse_), tensors[1], extents, begins));
      cases.rows.back().unit = lse_unit_ == 1 ? "e" : "2";
    }
    cases.rows.insert(cases.rows.begin(), checked_rows(std::move(out_), tensors[0], extents, begins));
    return cases;
  }

  const TensorEntry* find_queries() {
    const int64_t batch = cache_.sequences();
    const bool prefill = file_.has("qo_indptr") || batch == 1;
    const TensorEntry& entry = file_.real(
        "q", {prefill ? Dimension("queries") : Dimension("batch", batch), "query_heads", "head_dim"});
    query_heads_ = file_.length("query_heads");
    if (query_heads_ == 0 || query_heads_ % cache_.kv_heads() != 0) {
      file_.refuse(entry, ".shape",
                   fmt::format("has {} query heads; expected a multiple of the {} KV heads of k",
                               query_heads_, cache_.kv_heads()));
    }
    const int64_t rows = entry.shape.front();
    if (file_.has("qo_indptr")) {
      offsets_ = file_.offsets("qo_indptr", {{"batch + 1", batch + 1}}, rows);
    } else {
      for (int64_t b = 0; b <= batch; ++b) offsets_.push_back(prefill ? b * rows : b);
    }
    return &entry;
  }

  RealClaim find_out() {
    const int64_t rows = queries_->shape.front();
    return file_.claim(
        file_.real("out", {{"queries of q", rows}, "query_heads", {"value_dim", cache_.value_dim()}}));
  }

  void find_lse() {
    if (!file_.has("lse")) return;
    lse_ = file_.claim(file_.real("lse", {{"queries of q", queries_->shape.front()}, "query_heads"}));
    lse_expected_.resize(lse_->numbers.size());
    lse_bounds_.resize(lse_->numbers.size());
    const traces::MetadataFields options = file_.options();
    if (!options.has("lse_base")) return;
    const std::string& base = options.text("lse_base");
    if (base != "e" && base != "2") options.refuse("lse_base", "e or 2");
    if (base == "2") lse_unit_ = std::numbers::log2e;
  }

  Visible visible(int64_t sequence, int64_t query) const {
    const int64_t tokens = cache_.tokens(sequence), queries = offsets_[sequence + 1] - offsets_[sequence];
    if (tokens == 0) return {};
    const int64_t position = tokens - queries + query;
    const int64_t first = window_left_ < 0 ? 0 : std::max<int64_t>(0, position - window_left_);
    return {first, (causal_ ? position + 1 : tokens) - first};
  }

  void judge_sequence(int64_t b) {
    const int64_t queries = offsets_[b + 1] - offsets_[b];
    const bool has_positions = causal_ || window_left_ >= 0;
    if (has_positions && queries > cache_.tokens(b) && cache_.tokens(b) > 0) {
      throw TraceError(file_.path(), -1, fmt::format("sequence {}", b),
                       fmt::format("has {} queries, but {} tokens; its queries are its last tokens", queries,
                                   cache_.tokens(b)));
    }
    const Tensor keys = cache_.keys(b), values = cache_.values(b);
    Matrix rows(queries * query_heads_, cache_.head_dim());
    file_.tensors().read(*queries_, offsets_[b] * query_heads_ * rows.cols(),
                         std::span(rows.data(), rows.numbers().size()));
    inputs_.push_back(digest_of(b, rows, keys, values));
    const reference::Arithmetic arithmetic =
        arithmetic_.with_rounding_of({keys.numbers(), values.numbers(), rows.numbers()});
    const int64_t kv_heads = cache_.kv_heads(), group = query_heads_ / kv_heads;
    reference::parallel_for(queries * kv_heads, [&](int64_t i) {
      const int64_t query = i / kv_heads, g = i % kv_heads;
      const Visible seen = visible(b, query);
      const auto of_head = [&](TensorView all, int64_t head) {
        return all.slice(head).middle_rows(seen.first, seen.count);
      };
      judge_group((offsets_[b] + query) * query_heads_ + g * group,
                  rows.view().middle_rows(query * query_heads_ + g * group, group), of_head(keys.view(), g),
                  of_head(values.view(), g), arithmetic, [&](VectorView one) {
                    Matrix outputs(kv_heads, cache_.value_dim());
                    for (int64_t other = 0; other < kv_heads; ++other) {
                      const Matrix of_other = reference::attention(MatrixView(one.data(), 1, std::ssize(one)),
                                                                   of_head(keys.view(), other),
                                                                   of_head(values.view(), other), scale_)
                                                  .output;
                      std::ranges::copy(of_other.row(0), outputs.row(other).begin());
                    }
                    return outputs;
                  });
    });
  }

  // Of what decides a sequence's outputs, whatever settings say it: a scale as kernels take it, in single
  // precision, and what each query sees.
  std::string digest_of(int64_t b, const Matrix& rows, const Tensor& keys, const Tensor& values) const {
    const int64_t tokens = cache_.tokens(b), queries = offsets_[b + 1] - offsets_[b];
    std::string settings = fmt::format("{} {}", static_cast<float>(scale_), query_heads_);
    for (int64_t query = 0; query < queries; ++query) {
      const Visible seen = visible(b, query);
      settings += fmt::format(" {}+{}", seen.first, seen.count);
    }
    return InputDigest()
        .add(settings)
        .add({rows.rows(), rows.cols()}, rows.numbers())
        .add({cache_.kv_heads(), tokens, cache_.head_dim()}, keys.numbers())
        .add({cache_.kv_heads(), tokens, cache_.value_dim()}, values.numbers())
        .text();
  }

  // first        row of `out` and `lse`, of the group's first head
  // of_kv_heads  DifferingRows::add
  void judge_group(int64_t first, MatrixView queries, MatrixView keys, MatrixView values,
                   const reference::Arithmetic& arithmetic, const OfKvHeads& of_kv_heads) {
    const reference::AttentionOutput expected = reference::attention(queries, keys, values, scale_);
    const reference::AttentionErrors errors =
        reference::attention_errors(queries, keys, values, scale_, {}, arithmetic);
    const int64_t value_dim = cache_.value_dim();
    std::ranges::copy(expected.output.numbers(), expected_.begin() + first * value_dim);
    std::ranges::copy(errors.output.numbers(), bounds_.begin() + first * value_dim);
    if (keys.rows > 0) rows_->add(first, queries, keys, values, {}, errors, arithmetic, of_kv_heads);
    for (int64_t h = 0; lse_ && h < queries.rows; ++h) {
      const double lse = expected.log_sum_exp[h];
      lse_expected_[first + h] = lse_unit_ * lse;
      if (keys.rows == 0) continue;  // -infinity
      lse_bounds_[first + h] =
          lse_unit_ * reference::stated_log_sum_exp_error(errors.log_sum_exp[h], lse, keys.rows, arithmetic);
    }
  }

  CheckFile& file_;
  KvTensors cache_;
  int64_t query_heads_ = 0;
  std::vector<int64_t> offsets_;  // [sequences + 1]: rows of q
  const TensorEntry* queries_;
  RealClaim out_;
  std::optional<OutputRows> rows_;
  std::optional<RealClaim> lse_;
  double lse_unit_ = 1;  // of the base's logarithm in natural ones
  double scale_ = 1;
  bool causal_ = false;
  int64_t window_left_ = -1;
  CheckArithmetic arithmetic_;
  std::vector<double> expected_, bounds_, lse_expected_, lse_bounds_;
  std::vector<std::string> inputs_;  // [sequences]: digests
};

}  // namespace

CheckResult check_attention(CheckFile& file, const std::function<void(int64_t, int64_t)>& progress) {
  file.refuse_unsupported();
  return AttentionCheck(file).judge(progress);
}

}  // namespace kvbound::sim
