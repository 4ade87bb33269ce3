#include "long_sums.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/numerics/priced_runs.hpp>

#include "softmax_errors.hpp"

namespace kvbound::reference::rounding {
namespace {

constexpr int64_t kDepth = 8192;  // of additions that a term passes through in single precision, in any order
constexpr double kSingleUnit = 0x1p-24;
constexpr double kLongestChain = 131072;      // tokens of a running sum: longer caches are split
constexpr double kBlockError = 18 * 0x1p-23;  // error_bounds.md, "The model"

double gamma_of(double roundings, double unit) {
  const double product = roundings * unit;
  return product < 1 ? product / (1 - product) : kInfinity;
}

}  // namespace

bool is_long(const Arithmetic& arithmetic, int64_t tokens) {
  if (arithmetic.accumulation_depth >= 0 || arithmetic.unit < kSingleUnit) return false;
  return arithmetic.tile > 0 || (arithmetic.tile == 0 && tokens > kDepth);
}

double single_depth(const Arithmetic& arithmetic, int64_t tokens) {
  const double depth = accumulation_depth(arithmetic, tokens);
  return is_long(arithmetic, tokens) ? std::min(depth, static_cast<double>(kDepth)) : depth;
}

double most_rescalings_in_order(VectorView logits) {
  struct Larger {
    double logit;
    int64_t changes;  // from it on
  };
  int64_t most = 0;
  const auto visit = [&](double logit, std::vector<Larger>& ahead) {
    while (!ahead.empty() && ahead.back().logit <= logit) ahead.pop_back();
    ahead.push_back({logit, 1 + (ahead.empty() ? 0 : ahead.back().changes)});
    most = std::max(most, ahead.back().changes);
  };
  std::vector<Larger> forwards, backwards;
  for (size_t j = logits.size(); j-- > 0;) visit(logits[j], forwards);
  for (const double logit : logits) visit(logit, backwards);
  return static_cast<double>(most);
}

double most_rescalings(VectorView logits) {
  size_t most = 0;
  for (const double sign : {1.0, -1.0}) {
    std::vector<double> last;  // the least last number of a rising subsequence of each length
    for (const double logit : logits) {
      const auto at = std::ranges::lower_bound(last, sign * logit);
      if (at == last.end()) {
        last.push_back(sign * logit);
      } else {
        *at = sign * logit;
      }
    }
    most = std::max(most, last.size());
  }
  return static_cast<double>(most);
}

int64_t most_parts(const Arithmetic& arithmetic, int64_t tokens) {
  constexpr int64_t kLeastTokens = 256, kFew = 8;  // of a part; so many parts may be shorter
  const int64_t most =
      arithmetic.splits > 0 ? arithmetic.splits : std::max(kFew, (tokens + kLeastTokens - 1) / kLeastTokens);
  return std::min(most, tokens);
}

// The bound is convex in the price, so that its least value is found by golden section
// of the price's logarithm.
std::vector<double> largest_runs(MatrixView terms, int64_t runs) {
  constexpr int kSections = 12;
  constexpr double kGolden = 0.6180339887498949,
                   kLeastPrice = -20;  // ln, as a share of the sum of absolute values
  const auto columns = static_cast<size_t>(terms.cols);
  std::vector<double> least(columns);
  for (int64_t j = 0; j < terms.rows; ++j) {
    for (size_t c = 0; c < columns; ++c) least[c] += std::abs(terms(j, c));
  }
  const std::vector<double> all = least;
  const auto bound_at = [&](const std::vector<double>& logarithms) {
    std::vector<double> prices(columns);
    for (size_t c = 0; c < columns; ++c) prices[c] = all[c] * std::exp(logarithms[c]);
    std::vector<double> bounds = priced_runs(terms, prices);
    for (size_t c = 0; c < columns; ++c) {
      bounds[c] += prices[c] * static_cast<double>(runs);  // weak duality: a bound whatever the price
      least[c] = std::min(least[c], bounds[c]);
    }
    return bounds;
  };
  std::vector<double> low(columns, kLeastPrice), high(columns, 0.0), left(columns, kGolden * kLeastPrice),
      right(columns, (1 - kGolden) * kLeastPrice);
  std::vector<double> at_left = bound_at(left), at_right = bound_at(right);
  for (int section = 0; section < kSections; ++section) {
    std::vector<double> next(columns);
    std::vector<char> is_left(columns);
    for (size_t c = 0; c < columns; ++c) {
      is_left[c] = at_left[c] < at_right[c];
      if (is_left[c]) {
        high[c] = right[c];
        right[c] = left[c];
        at_right[c] = at_left[c];
        next[c] = left[c] = high[c] - kGolden * (high[c] - low[c]);
      } else {
        low[c] = left[c];
        left[c] = right[c];
        at_left[c] = at_right[c];
        next[c] = right[c] = low[c] + kGolden * (high[c] - low[c]);
      }
    }
    const std::vector<double> bounds = bound_at(next);
    for (size_t c = 0; c < columns; ++c) (is_left[c] ? at_left : at_right)[c] = bounds[c];
  }
  return least;
}

LongSums::LongSums(int64_t count, double changes, const Arithmetic& arithmetic) {
  const auto tokens = static_cast<double>(count), parts = static_cast<double>(most_parts(arithmetic, count));
  const double merged = gamma_of(parts, kSingleUnit) + reference_error(count);
  const double rescaled = std::min(parts * changes, std::ceil(tokens / kBlock));  // in all parts
  if (arithmetic.tile > 0) {
    const double tile = std::min(static_cast<double>(arithmetic.tile), tokens);
    const double chained = (std::ceil(tokens / tile) + parts + rescaled) * kSingleUnit;
    chain_ = std::exp(chained) * chained;
    blocks_ = std::exp(chained) * (gamma_of(tile, unit(arithmetic)) + kSingleUnit) + merged;
  } else {
    any_order_ = gamma_of(kDepth, kSingleUnit) + merged;
    const double chain = arithmetic.splits == 1
                             ? tokens
                             : std::min(tokens, std::max(kLongestChain, std::ceil(tokens / parts)));
    // The errors of all chains add up; they grow along the longest one.
    const double growing = std::exp(chain / kBlock * kBlockError + 2 * changes * kSingleUnit);
    chain_ = growing * ((tokens / kBlock + parts) * kBlockError + 2 * rescaled * kSingleUnit);
    blocks_ = growing * 2 * kBlockError + merged;
  }
  of_weights_ = std::max(any_order_, chain_ + blocks_);  // no running sum of weights exceeds their sum
}

std::vector<double> LongSums::of_values(VectorView ranges, VectorView sizes) const {
  std::vector<double> errors;
  for (size_t c = 0; c < sizes.size(); ++c) {
    const bool is_nothing = sizes[c] == 0;  // whatever the shares are
    errors.push_back(is_nothing ? 0
                                : std::max(any_order_ * sizes[c], chain_ * ranges[c] + blocks_ * sizes[c]));
  }
  return errors;
}

}  // namespace kvbound::reference::rounding
