#include "diagnosis.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/sim/diff/claims/comparison.hpp>
#include <kvbound/sim/options/number.hpp>

#include "entry_ranges.hpp"

namespace kvbound::sim {
namespace {

using Output = std::vector<double>;

double inner(VectorView a, VectorView b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

// One row's attention, with a factor of its logits.
class RowAttention {
 public:
  explicit RowAttention(const DifferingOutput& row) : row_(row), output_(output(1)) {
    logits_ = logits(1);
    const double largest = *std::ranges::max_element(logits_);
    for (const double logit : logits_) weights_.push_back(std::exp(logit - largest));
    log_sum_ = largest + std::log(std::reduce(weights_.begin(), weights_.end()));
  }

  const DifferingOutput& row() const { return row_; }
  const Output& output() const { return output_; }
  Output output(double factor) const { return turned(factor).output; }
  bool fits(const Output& output) const { return row_.fits(output); }
  /// [tokens], the largest 1
  const std::vector<double>& weights() const { return weights_; }
  /// ln sum_j e^z_j
  double log_sum() const { return log_sum_; }

  // The factor of the logits whose output is nearest to the claimed one, by Gauss and Newton.
  double nearest_factor() const {
    constexpr int kTurns = 30;
    constexpr double kMost = 0.5;  // of a step, as a logarithm
    double factor = 1;
    for (int turn = 0; turn < kTurns; ++turn) {
      const Turned at = turned(factor);
      const double size = inner(at.direction, at.direction);
      if (!(size > 0)) break;
      Output difference(row_.claimed.begin(), row_.claimed.end());
      for (size_t c = 0; c < difference.size(); ++c) difference[c] -= at.output[c];
      const double step = std::clamp(inner(at.direction, difference) / size, -kMost, kMost);
      factor *= std::exp(step);
      if (std::abs(step) < 1e-9) break;
    }
    return factor;
  }

 private:
  struct Turned {
    Output output, direction;  // direction: d output / d ln factor
  };

  std::vector<double> logits(double factor) const {
    std::vector<double> all;
    for (int64_t j = 0; j < row_.keys.rows; ++j) {
      all.push_back(factor * row_.scale * inner(row_.query, row_.keys.row(j)) +
                    (row_.votes.empty() ? 0 : std::log(row_.votes[j])));
    }
    return all;
  }

  Turned turned(double factor) const {
    const std::vector<double> all = logits(factor);
    const double largest = *std::ranges::max_element(all);
    Output output(row_.values.cols), direction(row_.values.cols);
    double sum = 0, mean = 0;
    for (int64_t j = 0; j < row_.values.rows; ++j) {
      const double weight = std::exp(all[j] - largest),
                   logit = all[j] - (row_.votes.empty() ? 0 : std::log(row_.votes[j]));
      sum += weight;
      mean += weight * logit;
      for (int64_t c = 0; c < row_.values.cols; ++c) {
        output[c] += weight * row_.values(j, c);
        direction[c] += weight * logit * row_.values(j, c);
      }
    }
    for (size_t c = 0; c < output.size(); ++c) {
      output[c] /= sum;
      direction[c] = direction[c] / sum - mean / sum * output[c];
    }
    return {output, direction};
  }

  const DifferingOutput& row_;
  Output output_;
  std::vector<double> logits_, weights_;
  double log_sum_ = 0;
};

using Rows = std::vector<RowAttention>;

// Whether a fault explains all rows: output(row) with it.
bool explains(const Rows& rows, const std::function<Output(const RowAttention&)>& output) {
  return std::ranges::all_of(rows, [&](const RowAttention& row) { return row.fits(output(row)); });
}

// For each query head of the rows the one candidate, of so many, that explains all of its rows:
// fits(row, candidate). Empty if a head has none.
std::map<int64_t, int64_t> sources(const Rows& rows, int64_t candidates,
                                   const std::function<bool(const DifferingOutput&, int64_t)>& fits) {
  std::map<int64_t, int64_t> of_heads;
  for (const RowAttention& row : rows) {
    const int64_t head = row.row().head;
    if (of_heads.contains(head)) {
      if (!fits(row.row(), of_heads[head])) return {};
      continue;
    }
    int64_t found = 0;
    while (found < candidates && !fits(row.row(), found)) ++found;
    if (found == candidates) return {};
    of_heads[head] = found;
  }
  return of_heads;
}

// What `of` says of each pair.
std::string listed(const std::map<int64_t, int64_t>& pairs, const auto& of) {
  std::vector<int64_t> numbers;
  for (const auto& pair : pairs) numbers.push_back(of(pair));
  return fmt::format("{}", fmt::join(numbers, ", "));
}
int64_t key_of(const std::pair<const int64_t, int64_t>& pair) { return pair.first; }
int64_t value_of(const std::pair<const int64_t, int64_t>& pair) { return pair.second; }

std::optional<std::string> heads_fault(const Rows& rows) {
  const auto holds =
      sources(rows, rows.front().row().outputs.rows, [](const DifferingOutput& row, int64_t other) {
        return other != row.head && row.fits(row.outputs.row(other));
      });
  if (holds.empty()) return std::nullopt;
  const bool is_one = holds.size() == 1;
  return fmt::format("query head{} {} hold{} the output{} of {}", is_one ? "" : "s", listed(holds, key_of),
                     is_one ? "s" : "", is_one ? "" : "s", listed(holds, value_of));
}

// Queries that attend to the entries of another KV head.
std::optional<std::string> kv_heads_fault(const Rows& rows) {
  const int64_t kv_heads = rows.front().row().of_kv_heads.rows;
  if (kv_heads < 2) return std::nullopt;
  const int64_t group = rows.front().row().outputs.rows / kv_heads;
  const auto fits = [&](const DifferingOutput& row, int64_t other) {
    return other != row.head / group && row.fits(row.of_kv_heads.row(other));
  };
  const auto reads = sources(rows, kv_heads, fits);
  if (reads.empty()) return std::nullopt;
  const bool is_tiled = reads.size() > 1 && std::ranges::all_of(rows, [&](const RowAttention& row) {
                          return fits(row.row(), row.row().head % kv_heads);
                        });
  if (is_tiled) return fmt::format("query heads read KV head h mod {}; expected h div {}", kv_heads, group);
  const bool is_one = reads.size() == 1;
  const auto own = [&](const auto& pair) { return pair.first / group; };
  return fmt::format("query head{} {} read{} KV head{} {}; expected {}", is_one ? "" : "s",
                     listed(reads, key_of), is_one ? "s" : "", is_one ? "" : "s", listed(reads, value_of),
                     listed(reads, own));
}

// How far the claimed outputs are from those with a fault, as a sum of squares.
double distance(const Rows& rows, const std::function<Output(const RowAttention&)>& output) {
  double square = 0;
  for (const RowAttention& row : rows) {
    Output difference = output(row);
    for (size_t c = 0; c < difference.size(); ++c) difference[c] -= row.row().claimed[c];
    square += inner(difference, difference);
  }
  return square;
}

// Entries beside the cache's, of logit 0 and value 0: so many that the first row's output is explained.
struct Padding {
  double entries = 0;

  Output operator()(const RowAttention& row) const {
    Output output = row.output();
    for (double& number : output) number /= 1 + entries * std::exp(-row.log_sum());
    return output;
  }
};

// A whole number of lanes, as far as that explains the rows; 0 if none does.
Padding padding(const Rows& rows) {
  constexpr double kMost = 1e9, kLanes = 256;
  const RowAttention& first = rows.front();
  const double gain = inner(first.output(), first.row().claimed) / inner(first.output(), first.output()),
               entries = (1 / gain - 1) * std::exp(first.log_sum());
  if (!(gain > 0 && entries > 0 && entries < kMost)) return {};
  for (double lanes = kLanes; lanes >= 1; lanes /= 2) {
    const Padding found{std::round(entries / lanes) * lanes};
    if (found.entries >= 1 && explains(rows, found)) return found;
  }
  return {};
}

// A factor, or padding, which is one that depends on the row: whichever is nearer.
std::optional<std::string> factor_fault(const Rows& rows) {
  double along = 0, size = 0;
  for (const RowAttention& row : rows) {
    along += inner(row.output(), row.row().claimed);
    size += inner(row.output(), row.output());
  }
  if (!(size > 0)) return std::nullopt;
  const double factor = along / size;
  const auto scaled = [&](const RowAttention& row) {
    Output output = row.output();
    for (double& number : output) number *= factor;
    return output;
  };
  const bool is_factor = explains(rows, scaled);
  const Padding padded = padding(rows);
  if (padded.entries > 0 && !(is_factor && distance(rows, scaled) <= distance(rows, padded))) {
    return fmt::format("{:.0f} entr{} with logit 0 {} in the denominator", padded.entries,
                       padded.entries == 1 ? "y" : "ies", padded.entries == 1 ? "is" : "are");
  }
  if (!is_factor) return std::nullopt;
  return fmt::format("outputs are {} of what they should be", factor_text(factor));
}

std::optional<std::string> logits_fault(const Rows& rows) {
  const auto is = [&](double factor) {
    return explains(rows, [&](const RowAttention& row) { return row.output(factor); });
  };
  const double scale = rows.front().row().scale;
  if (is(std::numbers::ln2)) return "exponentials are to base 2";
  if (is(1 / std::numbers::ln2)) return "logits are scaled by log2 e, but exponentials to base e";
  if (scale > 0 && scale != 1) {
    if (is(1 / scale)) return "logits are not scaled";
    if (is(scale)) return "logits are scaled twice";
  }
  double logarithms = 0;
  for (const RowAttention& row : rows) logarithms += std::log(row.nearest_factor());
  const double factor = std::exp(logarithms / static_cast<double>(rows.size()));
  if (!is(factor)) return std::nullopt;
  return fmt::format("logits are scaled by {}", factor_text(factor));
}

std::string text_of(const EntryRange& range, int64_t tokens, bool from_end) {
  const char* const what = range.times == 0 ? "missing" : "counted twice";
  const bool is_one = range.last - range.first == 1;
  if (from_end && is_one) return fmt::format("the last entry is {}", what);
  if (from_end) return fmt::format("the last {} entries are {}", tokens - range.first, what);
  if (is_one) return fmt::format("entry {} is {}", range.first, what);
  return fmt::format("entries {}-{} are {}", range.first, range.last - 1, what);
}

std::optional<std::string> entries_fault(const Rows& rows) {
  std::vector<RangedOutputs> ranged;
  for (const RowAttention& row : rows) ranged.emplace_back(row.weights(), row.row().values);
  const int64_t tokens = ranged.front().tokens();
  // from_end: the range is as far from the end in every row
  const auto is = [&](const EntryRange& range, bool from_end) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t later = from_end ? ranged[i].tokens() - tokens : 0;
      const EntryRange moved{range.first + later, range.last + later, range.times};
      if (moved.first < 0 || moved.last > ranged[i].tokens()) return false;
      if (!rows[i].fits(ranged[i].output(moved))) return false;
    }
    return true;
  };
  for (const int times : {0, 2}) {
    const EntryRange near = ranged.front().nearest(rows.front().row().claimed, times);
    // Whole pages or tiles, as far as that explains the rows as well.
    for (int64_t page = 1024; page >= 1; page /= 2) {
      const auto rounded = [&](int64_t entry) {
        return entry == tokens ? entry : std::min((entry + page / 2) / page * page, tokens);
      };
      const EntryRange range{rounded(near.first), rounded(near.last), times};
      if (range.first >= range.last || range.last - range.first == tokens) continue;
      const bool at_end = range.last == tokens;
      if (is(range, at_end)) return text_of(range, tokens, at_end);
      if (at_end && is(range, false)) return text_of(range, tokens, false);
    }
  }
  return std::nullopt;
}

}  // namespace

std::function<bool(VectorView)> fit_of(const reference::AttentionErrors& errors, int64_t query,
                                       const reference::OutputFunctionals& functionals, VectorView claimed,
                                       Dtype storage) {
  return [&errors, &functionals, query, claimed, storage](VectorView output) {
    Output difference, half;
    for (size_t c = 0; c < claimed.size(); ++c) {
      difference.push_back(claimed[c] - output[c]);
      half.push_back(half_spacing(storage, claimed[c]));
      const double bound = errors.output(query, static_cast<int64_t>(c)) + half.back();
      if (!(std::abs(difference.back()) <= bound)) return false;
    }
    for (const Output& direction : {functionals.output(), difference}) {
      double stored = 0;
      for (size_t c = 0; c < half.size(); ++c) stored += std::abs(direction[c]) * half[c];
      if (!(std::abs(inner(direction, difference)) <= functionals.error(direction) + stored)) return false;
    }
    return true;
  };
}

std::optional<std::string> diagnosis(const std::vector<DifferingOutput>& differing) {
  if (differing.empty()) return std::nullopt;
  const auto is_finite = [](double number) { return std::isfinite(number); };
  const auto all = [&](const auto& holds) {
    return std::ranges::all_of(differing, [&](const DifferingOutput& row) { return holds(row.claimed); });
  };
  if (all([](VectorView row) { return std::ranges::all_of(row, [](double x) { return x == 0; }); })) {
    return "rows are zero";
  }
  if (all([&](VectorView row) { return std::ranges::none_of(row, is_finite); })) return "rows are not finite";
  if (!all([&](VectorView row) { return std::ranges::all_of(row, is_finite); })) return std::nullopt;
  if (std::ranges::any_of(differing, [](const DifferingOutput& row) { return row.keys.rows == 0; }))
    return std::nullopt;
  const Rows rows(differing.begin(), differing.end());
  for (const auto& fault : {heads_fault, kv_heads_fault, factor_fault, logits_fault, entries_fault}) {
    if (const std::optional<std::string> found = fault(rows)) return found;
  }
  return std::nullopt;
}

}  // namespace kvbound::sim
