#include "allocation.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <utility>

#include <kvbound/reference/core/shape_check.hpp>

#include "largest_remainders.hpp"
#include "selection.hpp"

namespace kvbound::reference {
namespace {

using detail::Wide;

// Budgets before rounding: whole parts, and fractional parts >= 0 in one common unit.
struct Shares {
  std::vector<int64_t> whole;
  std::vector<Wide> fraction;

  void add(int64_t whole_part, Wide fractional_part) {
    whole.push_back(whole_part);
    fraction.push_back(fractional_part);
  }
  // numerator / denominator + offset, denominator > 0, in units of 1 / denominator.
  void add(Wide numerator, Wide denominator, int64_t offset) {
    Wide quotient = numerator / denominator;
    Wide rest = numerator % denominator;
    if (rest < 0) {
      rest += denominator;
      --quotient;
    }
    add(offset + static_cast<int64_t>(quotient), rest);
  }
};

void require_candidates(MatrixView scores, std::span<const int64_t> candidates) {
  require_equal("budgets of candidates", std::ssize(candidates), "rows of scores", scores.rows);
  for (const int64_t count : candidates) {
    if (0 <= count && count <= scores.cols) continue;
    throw ShapeMismatch("a head cannot keep " + std::to_string(count) + " of " + std::to_string(scores.cols) +
                        " candidates");
  }
}

// The number of each row's scores among the `count` largest scores of all rows.
std::vector<int64_t> largest_by_head(MatrixView scores, int64_t count) {
  std::vector<double> all;
  all.reserve(scores.rows * scores.cols);
  for (int64_t h = 0; h < scores.rows; ++h) {
    const VectorView row = scores.row(h);
    all.insert(all.end(), row.begin(), row.end());
  }
  std::vector<int64_t> result(scores.rows);
  for (const int64_t index : select_top(all, count)) ++result[index / scores.cols];
  return result;
}

// With larger numbers the products below would exceed 127 bits: 2^42 * 2^63 * 2^21.
constexpr int64_t kMostTokens = int64_t{1} << 42;
constexpr int64_t kMostLayers = int64_t{1} << 20;

void require_pyramid(const Pyramid& options, int64_t layers, int64_t budget, int64_t least, int64_t tokens) {
  if (options.beta < 1) {
    throw InvalidPolicy("beta=" + std::to_string(options.beta) + " but it must be at least 1");
  }
  if (layers < 1 || layers > kMostLayers || tokens > kMostTokens) {
    throw ShapeMismatch("no pyramid over " + std::to_string(layers) + " layers of " + std::to_string(tokens) +
                        " tokens");
  }
  if (1 <= least && least <= budget && budget <= tokens) return;
  throw ShapeMismatch("a mean budget of " + std::to_string(budget) + " entries is outside " +
                      std::to_string(least) + ".." + std::to_string(tokens));
}

// The first layer's budget above the mean, numerator / denominator.
struct Ratio {
  Wide numerator = 0;
  int64_t denominator = 1;
};

Ratio height(const Pyramid& options, int64_t budget, int64_t least, int64_t tokens) {
  const Wide wanted = static_cast<Wide>(budget) * (options.beta - 1);  // in units of 1 / beta
  const int64_t room = std::min(budget - least, tokens - budget);
  if (wanted <= static_cast<Wide>(room) * options.beta) return {wanted, options.beta};
  return {room, 1};
}

Shares linear(Ratio height, int64_t layers, int64_t budget) {
  Shares shares;
  for (int64_t l = 0; l < layers; ++l) {
    shares.add(height.numerator * (layers - 1 - 2 * l), static_cast<Wide>(height.denominator) * (layers - 1),
               budget);
  }
  return shares;
}

// cos(pi l / last) for 2 l <= last; exact where the cosine is rational.
double decay(int64_t l, int64_t last) {
  if (2 * l == last) return 0;
  if (3 * l == last) return 0.5;
  return std::cos(std::numbers::pi * static_cast<double>(l) / static_cast<double>(last));
}

// Cosines are antisymmetric to the last bit, so the total is exact. Fractions are rounded to
// multiples of 2^-30, because some that are equal differ in double precision, such as those of 6 cos
// 36 degrees and 6 cos 72 degrees.
Shares cosine(Ratio height, int64_t layers, int64_t budget) {
  const int64_t last = layers - 1;
  const double size = static_cast<double>(height.numerator) / static_cast<double>(height.denominator);
  Shares shares;
  for (int64_t l = 0; l < layers; ++l) {
    const double above = size * (2 * l <= last ? decay(l, last) : -decay(last - l, last));
    const double whole = std::floor(above);
    shares.add(budget + static_cast<int64_t>(whole),
               static_cast<Wide>(std::nearbyint(std::ldexp(above - whole, 30))));
  }
  return shares;
}

}  // namespace

std::vector<int64_t> adakv_budgets(const AdaKv& options, MatrixView scores,
                                   std::span<const int64_t> candidates) {
  require_candidates(scores, candidates);
  const int64_t total = std::accumulate(candidates.begin(), candidates.end(), int64_t{0});
  return adakv_shares(options, largest_by_head(scores, total), candidates);
}

std::vector<int64_t> adakv_shares(const AdaKv& options, std::span<const int64_t> found,
                                  std::span<const int64_t> candidates) {
  require_equal("counts of large scores", std::ssize(found), "budgets of candidates", std::ssize(candidates));
  const int64_t total = std::accumulate(candidates.begin(), candidates.end(), int64_t{0});
  require_equal("large scores", std::accumulate(found.begin(), found.end(), int64_t{0}), "the budget", total);
  const Wide unit = detail::power_of_ten(options.safeguard.places);
  Shares shares;
  for (size_t h = 0; h < found.size(); ++h) {
    // f + s (k - f), whose products are smaller than those of (1 - s) f + s k, which might overflow.
    shares.add(static_cast<Wide>(options.safeguard.digits) * (candidates[h] - found[h]), unit, found[h]);
  }
  return largest_remainders(std::move(shares.whole), shares.fraction, total);
}

std::vector<int64_t> pyramid_budgets(const Pyramid& options, int64_t layers, int64_t budget, int64_t least,
                                     int64_t tokens) {
  require_pyramid(options, layers, budget, least, tokens);
  if (layers == 1) return {budget};
  const Ratio above = height(options, budget, least, tokens);
  Shares shares =
      options.shape == Decay::linear ? linear(above, layers, budget) : cosine(above, layers, budget);
  return largest_remainders(std::move(shares.whole), shares.fraction, layers * budget);
}

}  // namespace kvbound::reference
