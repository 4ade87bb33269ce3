#include "output_floor.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <numbers>

#include <kvbound/reference/core/parallel.hpp>

#include "certain_findings.hpp"

namespace kvbound::sim {
namespace {

// A tensor with a number of rows of zeros behind each slice's own.
Tensor padded(TensorView view, int64_t rows) {
  Tensor result(view.slices, view.rows + rows, view.cols);
  for (int64_t g = 0; g < view.slices; ++g) {
    const MatrixView slice = view.slice(g);
    std::copy_n(slice.data, slice.rows * slice.cols, result.slice(g).data);
  }
  return result;
}

// Searches the faults of the outputs of all query heads.
class OutputFaults {
 public:
  OutputFaults(const traces::Layer& layer, const reference::Arithmetic& arithmetic, Dtype storage)
      : layer_(layer), arithmetic_(arithmetic), heads_(layer.shape.query_heads) {
    right_.resize(heads_);
    findings_.resize(heads_);
    reference::parallel_for(heads_, [&](int64_t h) {
      right_[h] = bounded(h, layer_.keys.view(), layer_.values.view(), layer_.prompt_tokens, layer_.scale);
      findings_[h] = std::make_unique<CertainFindings>(*right_[h], storage);
    });
  }

  DetectionFloor floor() const {
    DetectionFloor floor{"prompt_output", layer_.index, layer_.prompt_tokens, heads_};
    for (const auto& findings : findings_) {
      const std::optional<double> gain = findings->factor_floor();
      if (gain && (!floor.factor || *gain < *floor.factor)) floor.factor = gain;
    }
    floor.halved = finds_factor(0.5);
    floor.zeros = finds_factor(0);
    floor.logit_scale = logit_scale();
    floor.base_2 = finds_scale(std::numbers::ln2);
    floor.missing = missing(floor.factor.value_or(1));
    floor.padding = padding(floor.factor.value_or(1));
    floor.swaps = swaps();
    return floor;
  }

 private:
  using Bounded = std::unique_ptr<const BoundedOutput>;

  // The output of the prompt's last query over the first entries of a cache.
  Bounded bounded(int64_t h, TensorView keys, TensorView values, int64_t entries, double scale) const {
    const int64_t g = layer_.shape.kv_head_of(h);
    return std::make_unique<const BoundedOutput>(
        layer_.queries.view().slice(h).row(layer_.window_queries - 1), keys.slice(g).middle_rows(0, entries),
        values.slice(g).middle_rows(0, entries), scale, arithmetic_);
  }

  bool finds_factor(double factor) const {
    return std::ranges::any_of(findings_,
                               [&](const auto& findings) { return findings->always_find_factor(factor); });
  }
  // Whether the faulty output of some query head is always found.
  bool finds(TensorView keys, TensorView values, int64_t entries, double scale) const {
    std::atomic<bool> found = false;
    reference::parallel_for(heads_, [&](int64_t h) {
      if (found) return;
      if (findings_[h]->always_find(*bounded(h, keys, values, entries, scale))) found = true;
    });
    return found;
  }

  bool finds_scale(double factor) const {
    return finds(layer_.keys.view(), layer_.values.view(), layer_.prompt_tokens, factor * layer_.scale);
  }
  std::optional<double> logit_scale() const {
    double band = 1;
    for (const auto& findings : findings_) band = std::min(band, findings->logit_scale_band());
    return smallest_found(2 * band, 0x1p-52, 1,
                          [&](double x) { return finds_scale(1 + x) && finds_scale(1 - x); });
  }

  std::optional<FaultyEntries> missing(double share) const {
    const auto tokens = static_cast<double>(layer_.prompt_tokens);
    if (tokens == 1) return std::nullopt;
    const std::optional<double> entries =
        smallest_found(std::ceil(share * tokens), 1, tokens - 1, [&](double count) {
          return finds(layer_.keys.view(), layer_.values.view(),
                       layer_.prompt_tokens - static_cast<int64_t>(std::ceil(count)), layer_.scale);
        });
    if (!entries) return std::nullopt;
    FaultyEntries result{static_cast<int64_t>(std::ceil(*entries))};
    for (const Bounded& right : right_) {
      result.weight +=
          right->weight_from(layer_.prompt_tokens - result.entries) / static_cast<double>(heads_);
    }
    return result;
  }

  std::optional<FaultyEntries> padding(double share) const {
    const int64_t tokens = layer_.prompt_tokens;
    const Tensor keys = padded(layer_.keys.view().middle_rows(0, tokens), tokens),
                 values = padded(layer_.values.view().middle_rows(0, tokens), tokens);
    const std::optional<double> entries = smallest_found(
        std::ceil(share * static_cast<double>(tokens)), 1, static_cast<double>(tokens), [&](double count) {
          return finds(keys.view(), values.view(), tokens + static_cast<int64_t>(std::ceil(count)),
                       layer_.scale);
        });
    if (!entries) return std::nullopt;
    FaultyEntries result{static_cast<int64_t>(std::ceil(*entries))};
    for (int64_t h = 0; h < heads_; ++h) {
      const Bounded faulty = bounded(h, keys.view(), values.view(), tokens + result.entries, layer_.scale);
      result.weight += faulty->weight_from(tokens) / static_cast<double>(heads_);
    }
    return result;
  }

  std::optional<Swaps> swaps() const {
    if (heads_ == 1) return std::nullopt;
    Swaps swaps{0, heads_ - 1};
    for (int64_t h = 0; h + 1 < heads_; ++h) {
      swaps.found += findings_[h]->always_find(*right_[h + 1]) || findings_[h + 1]->always_find(*right_[h]);
    }
    return swaps;
  }

  const traces::Layer& layer_;
  const reference::Arithmetic& arithmetic_;
  const int64_t heads_;
  std::vector<Bounded> right_;
  std::vector<std::unique_ptr<const CertainFindings>> findings_;
};

}  // namespace

DetectionFloor output_floor(const traces::Layer& layer, const reference::Arithmetic& arithmetic,
                            Dtype storage) {
  return OutputFaults(layer, arithmetic, storage).floor();
}

}  // namespace kvbound::sim
