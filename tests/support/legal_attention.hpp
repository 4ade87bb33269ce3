// Attention as implementations may legally compute it in the arithmetic that they declare: every operation
// rounded once, in one of many orders, tilings and forms.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <kvbound/sim/diff/claims/declared_arithmetic.hpp>
#include <kvbound/sim/diff/claims/input_rounding.hpp>

#include "random_layer.hpp"

namespace kvbound::test {

enum class Order { forwards, backwards, shuffled, in_pairs };
/// How exponentials of logits are formed: e^(z - m); 2^(z' - m') of logits to base 2;
/// 2^(fma(x, f, -m f)) of raw products x.
enum class Exponent { base_e, base_2, folded };

/// One legal way to compute attention.
struct Way {
  int64_t block =
      0;  ///< products that a tensor core aligns and adds at a time; 0: every operation is rounded
  bool fused = false;         ///< multiplications and additions are one operation
  bool flushes = false;       ///< numbers below the normal range become 0
  Order order{};              ///< of the terms of a tile, and of a product
  Order tile_order{};         ///< of a part's tiles; not in_pairs
  int64_t tile = 16;          ///< tokens
  bool handed_on = true;      ///< a tile's sum begins with zero
  std::vector<int64_t> ends;  ///< where the cache's parts end
  bool knows_maximum = true;  ///< two passes; otherwise a running maximum rescales what is summed
  double lag = 0;             ///< by how much a logit may exceed the running maximum before it is replaced
  Exponent exponent{};
  bool scales_query = false;
  bool nudges = false;            ///< exponentials and logarithms are off by a further unit in the last place
  bool normalises_first = false;  ///< weights are divided by their sum before they multiply values
  bool sums_rounded = false;      ///< the sum of the weights is that of the rounded ones
  bool merges_by_log_sum = false;  ///< parts are merged by the logarithms of their sums
  bool truncates = false;          ///< factors are truncated to TF32, where that is declared, not rounded
  bool by_reciprocal = false;      ///< the sum divides as its reciprocal
};

/// A way that the declaration allows. Tensor cores multiply numbers of 16 bits or TF32 only.
inline Way draw_way(const sim::DeclaredArithmetic& declared, int64_t tokens, Random& random) {
  const auto coin = [&] { return random.index(2) == 1; };
  const auto in = [&](int64_t least, int64_t most) { return least + random.index(most - least + 1); };
  Way way;
  const bool has_short_factors =
      declared.storage == Dtype::bf16 || declared.storage == Dtype::f16 || declared.tf32_products;
  if (declared.accumulate == Dtype::f32) way.flushes = coin();
  if (has_short_factors && declared.accumulate == Dtype::f32 && coin()) way.block = in(1, 16);
  way.fused = coin();
  way.order = static_cast<Order>(random.index(4));
  way.tile_order = static_cast<Order>(random.index(declared.tile > 0 ? 2 : 3));
  way.tile = declared.tile > 0 ? declared.tile : in(16, 512);
  way.handed_on = declared.tile > 0 || coin();
  const int64_t most_parts = std::min(tokens, declared.splits > 0 ? declared.splits : 8);
  std::vector<int64_t> ends = random.subset(tokens - 1, random.index(most_parts));
  for (int64_t& end : ends) ++end;
  ends.push_back(tokens);
  way.ends = ends;
  way.knows_maximum = coin();
  if (!way.knows_maximum && coin()) way.lag = 5;
  way.exponent = static_cast<Exponent>(random.index(3));
  way.scales_query = way.block == 0 && way.exponent != Exponent::folded && coin();
  way.nudges = coin();
  way.normalises_first = way.knows_maximum && !declared.partials && coin();
  way.sums_rounded = coin();
  way.merges_by_log_sum = coin();
  way.by_reciprocal = coin();
  way.truncates = coin();
  return way;
}

template <class Real>
class LegalAttention {
 public:
  using Row = std::vector<Real>;

  LegalAttention(const sim::DeclaredArithmetic& declared, Way way, Random& random)
      : declared_(declared), way_(std::move(way)), random_(random) {}

  /// The logits of one query, in the units of the way's exponentials.
  Row logits(VectorView query, MatrixView keys, double scale) {
    constexpr double kLog2E = 1.4426950408889634;
    const Real factor = static_cast<Real>(way_.exponent == Exponent::base_e ? scale : scale * kLog2E);
    factor_ = way_.exponent == Exponent::folded ? factor : Real(1);
    std::vector<double> scaled(query.begin(), query.end());
    if (way_.scales_query) {
      for (double& number : scaled) number = kept(static_cast<Real>(number) * factor);
    }
    Row logits;
    for (int64_t j = 0; j < keys.rows; ++j) {
      const Real product = dot(scaled, keys.row(j));
      const bool is_scaled = way_.scales_query || way_.exponent == Exponent::folded;
      logits.push_back(is_scaled ? product : kept(product * factor));
    }
    return logits;
  }

  /// The output of the query with these logits.
  Row output(const Row& logits, MatrixView values) {
    std::vector<Part> parts = parts_of(logits, values);
    Part all = merged(parts);
    if (!way_.normalises_first) {
      for (Real& number : all.output) number = divided(number, all.sum);
    }
    return all.output;
  }

  /// Its weights: divided by their sum, or by the logarithm of the sum. The way has
  /// one part and divides last.
  Row weights(const Row& logits) {
    const Part all = parts_of(logits, MatrixView(nullptr, std::ssize(logits), 0)).front();
    Row weights;
    if (way_.merges_by_log_sum && way_.exponent != Exponent::folded) {
      const Real log_sum = log_of(all.sum) + all.most;
      for (const Real logit : logits) weights.push_back(power(logit, log_sum));
    } else {
      for (const Real logit : logits) weights.push_back(divided(power(logit, all.most), all.sum));
    }
    return weights;
  }

  /// Adds the logarithms of the entries' votes to logits. The way is not folded.
  void add_votes(VectorView votes, Row& logits) {
    for (size_t j = 0; j < logits.size(); ++j)
      logits[j] = kept(logits[j] + log_of(static_cast<Real>(votes[j])));
  }

  /// The logarithm of the sum of the exponentials of these logits, to base e or 2, from
  /// either. The way divides last.
  Real log_sum_exp(const Row& logits, bool to_base_2) {
    constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;
    const std::vector<Part> parts = parts_of(logits, MatrixView(nullptr, std::ssize(logits), 0));
    const Part all = parts.size() == 1 ? parts.front() : weighted(parts);
    const Real log_sum = kept((parts.size() == 1 ? all.most * factor_ : all.most) + log_of(all.sum));
    const bool is_base_2 = way_.exponent != Exponent::base_e;
    if (is_base_2 == to_base_2) return log_sum;
    return kept(log_sum * static_cast<Real>(to_base_2 ? kLog2E : kLn2));
  }

  /// sum_c a_c b_c
  Real dot(VectorView a, VectorView b) {
    Factors factors;
    factors.reserve(a.size());
    for (size_t c = 0; c < a.size(); ++c) factors.emplace_back(short_factor(a[c]), short_factor(b[c]));
    return sum(0, std::move(factors), way_.block > 0);
  }
  /// The sum of these numbers.
  Real sum(const Row& numbers) {
    Factors factors;
    for (const Real number : numbers) factors.emplace_back(number, 1);
    return sum(0, std::move(factors), false);
  }

 private:
  using Factors = std::vector<std::pair<double, double>>;
  // Sums over some of the tokens, in terms of e^-most.
  struct Part {
    Real most = -std::numeric_limits<Real>::infinity(), sum = 0;
    Row output;
  };

  // As it is multiplied: of TF32 the first 10 bits behind the point of a number in single precision.
  double short_factor(double number) const {
    if (!declared_.tf32_products) return number;
    constexpr uint32_t kDropped = (1u << 13) - 1;
    uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(number));
    if (!way_.truncates) bits += kDropped / 2 + (bits >> 13 & 1);  // to nearest, ties to even
    return std::bit_cast<float>(bits & ~kDropped);
  }
  Real kept(Real number) const {
    return way_.flushes && std::abs(number) < std::numeric_limits<Real>::min() ? Real(0) : number;
  }
  // A unit in the last place up or down, or none.
  Real nudged(Real number) {
    if (!way_.nudges || number == 0 || !std::isfinite(number)) return kept(number);
    constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
    const int64_t direction = random_.index(3) - 1;
    return kept(direction == 0 ? number : std::nextafter(number, direction > 0 ? kInfinity : -kInfinity));
  }
  Real raised(Real x) { return nudged(way_.exponent == Exponent::base_e ? std::exp(x) : std::exp2(x)); }
  Real log_of(Real x) { return nudged(way_.exponent == Exponent::base_e ? std::log(x) : std::log2(x)); }
  // The exponential of a logit, in terms of that of `most`.
  Real power(Real logit, Real most) {
    if (way_.exponent != Exponent::folded) return raised(logit - most);
    return way_.fused ? raised(std::fma(logit, factor_, -(most * factor_)))
                      : raised(logit * factor_ - most * factor_);
  }
  Real rescaling(Real before, Real now) { return before == now ? Real(1) : raised((before - now) * factor_); }
  Real divided(Real number, Real by) const {
    return kept(way_.by_reciprocal && by > std::numeric_limits<Real>::min() ? number * (1 / by)
                                                                            : number / by);
  }

  // Adds up in the way's order.
  Real sum(Real start, Factors factors, bool on_tensor_cores) {
    if (way_.order == Order::backwards) std::ranges::reverse(factors);
    if (way_.order == Order::shuffled) {
      for (size_t i = factors.size(); i > 1; --i)
        std::swap(factors[i - 1], factors[random_.index(static_cast<int64_t>(i))]);
    }
    if (on_tensor_cores) return truncated_sum(start, factors);
    if (way_.order == Order::in_pairs && !factors.empty()) return start + in_pairs(factors);
    for (const auto& [a, b] : factors) {
      const Real x = static_cast<Real>(a), y = static_cast<Real>(b);
      start = kept(way_.fused ? std::fma(x, y, start) : start + kept(x * y));
    }
    return start;
  }
  Real in_pairs(std::span<const std::pair<double, double>> factors) {
    if (factors.size() == 1)
      return kept(static_cast<Real>(factors[0].first) * static_cast<Real>(factors[0].second));
    const size_t half = factors.size() / 2;
    return kept(in_pairs(factors.first(half)) + in_pairs(factors.subspan(half)));
  }
  // As tensor cores add: a block of exact products and the running sum, aligned to the
  // largest of them and truncated.
  Real truncated_sum(double running, const Factors& factors) const {
    const auto last_place = [](double x) {  // of 24 bits
      return std::ldexp(1.0, (x == 0 ? -126 : std::max(std::ilogb(x), -126)) - 23);
    };
    for (size_t first = 0; first < factors.size(); first += way_.block) {
      const size_t end = std::min(factors.size(), first + way_.block);
      double largest = std::abs(running);
      for (size_t i = first; i < end; ++i)
        largest = std::max(largest, std::abs(factors[i].first * factors[i].second));
      const double place = last_place(largest);
      double total = std::trunc(running / place);
      for (size_t i = first; i < end; ++i) total += std::trunc(factors[i].first * factors[i].second / place);
      total *= place;
      running = std::trunc(total / last_place(total)) * last_place(total);
    }
    return static_cast<Real>(running);
  }

  struct Tile {
    int64_t first = 0, end = 0;
  };
  std::vector<Tile> tiles_of(int64_t first, int64_t end) {
    std::vector<Tile> tiles;
    for (int64_t at = first; at < end; at += way_.tile) tiles.push_back({at, std::min(end, at + way_.tile)});
    if (way_.tile_order == Order::backwards) std::ranges::reverse(tiles);
    if (way_.tile_order == Order::shuffled) {
      for (size_t i = tiles.size(); i > 1; --i)
        std::swap(tiles[i - 1], tiles[random_.index(static_cast<int64_t>(i))]);
    }
    return tiles;
  }

  std::vector<Part> parts_of(const Row& logits, MatrixView values) {
    Real known = -std::numeric_limits<Real>::infinity(), total = 0;
    if (way_.normalises_first) {
      known = *std::ranges::max_element(logits);
      Row powers;
      for (const Real logit : logits) powers.push_back(power(logit, known));
      total = sum(powers);
    }
    std::vector<Part> parts;
    int64_t first = 0;
    for (const int64_t end : way_.ends) {
      Part part;
      part.output.resize(values.cols);
      part.most = way_.knows_maximum && !way_.normalises_first
                      ? *std::max_element(logits.begin() + first, logits.begin() + end)
                      : known;
      for (const Tile& tile : tiles_of(first, end)) add(tile, logits, values, total, part);
      parts.push_back(std::move(part));
      first = end;
    }
    return parts;
  }

  // total  of all exponentials, if weights are divided by it first
  void add(const Tile& tile, const Row& logits, MatrixView values, Real total, Part& part) {
    const Real most = *std::max_element(logits.begin() + tile.first, logits.begin() + tile.end);
    if (!(most * factor_ <= part.most * factor_ + static_cast<Real>(way_.lag))) {
      if (std::isfinite(part.most)) rescale(part, rescaling(part.most, most));
      part.most = most;
    }
    Row weights;
    Factors counted;
    for (int64_t j = tile.first; j < tile.end; ++j) {
      Real weight = power(logits[j], part.most);
      const Real whole = weight;
      if (way_.normalises_first) weight = divided(weight, total);
      if (declared_.weights) weight = static_cast<Real>(sim::rounded_to(weight, *declared_.weights));
      weight = static_cast<Real>(short_factor(weight));
      weights.push_back(weight);
      counted.emplace_back(way_.sums_rounded ? weight : whole, 1);
    }
    part.sum = added(part.sum, std::move(counted), false);
    const bool on_tensor_cores = way_.block > 0 && (declared_.weights || declared_.tf32_products);
    for (size_t c = 0; c < part.output.size(); ++c) {
      Factors factors;
      for (int64_t j = tile.first; j < tile.end; ++j)
        factors.emplace_back(weights[j - tile.first], short_factor(values(j, static_cast<int64_t>(c))));
      part.output[c] = added(part.output[c], std::move(factors), on_tensor_cores);
    }
  }
  Real added(Real running, Factors factors, bool on_tensor_cores) {
    if (!way_.handed_on) return sum(running, std::move(factors), on_tensor_cores);
    return kept(running + sum(0, std::move(factors), on_tensor_cores));
  }
  void rescale(Part& part, Real factor) const {
    part.sum = kept(part.sum * factor);
    for (Real& number : part.output) number = kept(number * factor);
  }

  // The whole, whose output its sum still divides unless weights were normalised first.
  Part merged(std::vector<Part>& parts) {
    if (declared_.partials) {
      for (Part& part : parts) {
        for (Real& number : part.output) {
          number = static_cast<Real>(sim::rounded_to(divided(number, part.sum), *declared_.partials));
        }
      }
    }
    if (parts.size() == 1 && !declared_.partials) return parts.front();
    return way_.normalises_first ? added_up(parts) : weighted(parts);
  }
  static Part added_up(const std::vector<Part>& parts) {
    Part all = parts.front();
    for (size_t s = 1; s < parts.size(); ++s) {
      all.sum += parts[s].sum;
      for (size_t c = 0; c < all.output.size(); ++c) all.output[c] += parts[s].output[c];
    }
    return all;
  }
  Part weighted(const std::vector<Part>& parts) {
    Row places;  // of each part's exponentials, in their units
    for (const Part& part : parts) {
      places.push_back(way_.merges_by_log_sum ? part.most * factor_ + log_of(part.sum) : part.most);
    }
    const bool outputs_are_means = declared_.partials.has_value();
    const Real most = *std::ranges::max_element(places);
    Part all;
    all.most = way_.merges_by_log_sum ? most : most * factor_;  // in the units of exponentials
    all.output.resize(parts.front().output.size());
    for (size_t s = 0; s < parts.size(); ++s) {
      Real share = 0, whole = 0;  // what multiplies the part's output, and what the part counts
      if (way_.merges_by_log_sum) {
        whole = raised(places[s] - most);
        share = outputs_are_means ? whole : divided(whole, parts[s].sum);
      } else {
        const Real factor = rescaling(places[s], most);
        whole = kept(factor * parts[s].sum);
        share = outputs_are_means ? whole : factor;
      }
      all.sum += whole;
      for (size_t c = 0; c < all.output.size(); ++c)
        all.output[c] = kept(all.output[c] + kept(share * parts[s].output[c]));
    }
    return all;
  }

  const sim::DeclaredArithmetic& declared_;
  const Way way_;
  Random& random_;
  Real factor_ = 1;  // of a folded way: by which raw products become logits to base 2
};

}  // namespace kvbound::test
