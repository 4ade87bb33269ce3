#include "head_kv.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include <kvbound/reference/core/error.hpp>

#include "largest_remainders.hpp"

namespace kvbound::reference {
namespace {

using Integer = HeadImportance;

constexpr int64_t kMostEntries = int64_t{1} << 62;  // whose number int64_t holds

void require_valid(const HeadKvBudget& budget, std::span<const Integer> importances) {
  if (floor_of_product(budget.beta, 1) < 1) {
    throw InvalidPolicy("beta=" + std::to_string(budget.beta.value()) + " but it must be at least 1");
  }
  if (!(0 <= budget.always_kept && budget.always_kept <= budget.budget && budget.budget <= budget.tokens)) {
    throw ShapeMismatch("no budget of " + std::to_string(budget.budget) + " entries, of which " +
                        std::to_string(budget.always_kept) + " are always kept, of " +
                        std::to_string(budget.tokens) + " tokens");
  }
  const auto negative = std::ranges::find_if(importances, [](const Integer& own) { return own < 0; });
  if (negative != importances.end()) {
    throw ShapeMismatch("the importance of head " + std::to_string(negative - importances.begin()) +
                        " is negative: " + negative->str());
  }
  if (std::ssize(importances) > kMostEntries / std::max<int64_t>(1, budget.budget)) {
    throw ShapeMismatch("no more than 2^62 entries can be shared out: " + std::to_string(importances.size()) +
                        " heads of " + std::to_string(budget.budget));
  }
}

// floor(count / beta)
int64_t shared_of(int64_t count, Decimal beta) {
  const Integer unit = pow(Integer(10), static_cast<unsigned>(beta.places));
  return static_cast<int64_t>(count * unit / beta.digits);
}

// The heads among which a pool is shared, with their weights, whose sum is positive.
struct Sharing {
  std::vector<size_t> heads;
  std::vector<Integer> weights;
  Integer sum = 0;
  Integer pool = 0;

  Sharing(std::vector<size_t> sharing, std::span<const Integer> importances, Integer rest)
      : heads(std::move(sharing)), pool(std::move(rest)) {
    for (const size_t head : heads) weights.push_back(importances[head]);
    sum = std::accumulate(weights.begin(), weights.end(), Integer(0));
    if (sum > 0) return;
    weights.assign(heads.size(), Integer(1));
    sum = heads.size();
  }

  // Heads whose share is at most `room`.
  std::vector<size_t> fitting(const Integer& room) const {
    std::vector<size_t> result;
    for (size_t i = 0; i < heads.size(); ++i) {
      if (pool * weights[i] <= room * sum) result.push_back(heads[i]);
    }
    return result;
  }
};

// digits 10^exponent
struct Printed {
  Integer digits = 0;
  int exponent = 0;
};

// A number of a JSON text.
Printed printed(const std::string& text) {
  Printed number;
  const size_t end = std::min(text.find_first_of("eE"), text.size());
  bool behind_point = false;
  for (const char c : text.substr(0, end)) {
    if (c == '.') behind_point = true;
    if (c < '0' || c > '9') continue;
    number.digits = number.digits * 10 + (c - '0');
    number.exponent -= behind_point;
  }
  if (end < text.size()) number.exponent += std::atoi(text.c_str() + end + 1);
  return number;
}

// All query heads' importances, of layer by layer, in one unit.
std::vector<Integer> exact(const std::vector<std::string>& texts) {
  std::vector<Printed> numbers;
  std::ranges::transform(texts, std::back_inserter(numbers), printed);
  const int unit = std::ranges::min(numbers, {}, &Printed::exponent).exponent;
  std::vector<Integer> result;
  for (const Printed& number : numbers)
    result.push_back(number.digits * pow(Integer(10), static_cast<unsigned>(number.exponent - unit)));
  return result;
}

// The same of their powers, in units of the least positive double.
std::vector<Integer> powers(const std::vector<std::string>& texts, double temperature) {
  constexpr int kDigits = std::numeric_limits<double>::digits, kUnit = 1074;
  std::vector<Integer> result;
  for (const std::string& text : texts) {
    const double power = std::pow(std::strtod(text.c_str(), nullptr), temperature);
    if (!std::isfinite(power)) {
      throw InvalidPolicy("headkv:temperature makes the score " + text + " infinite");
    }
    int exponent = 0;
    const auto mantissa = static_cast<int64_t>(std::ldexp(std::frexp(power, &exponent), kDigits));
    const int shift =
        exponent - kDigits + kUnit;  // below 0 for subnormal numbers, which end in as many zeros
    result.push_back(shift >= 0 ? Integer(mantissa) << shift : Integer(mantissa) >> -shift);
  }
  return result;
}

}  // namespace

std::vector<Integer> head_importances(const HeadScores& scores, std::span<const int64_t> layers,
                                      int64_t kv_heads, double temperature) {
  std::vector<std::string> texts;
  for (const int64_t layer : layers) std::ranges::copy(scores.scores[layer], std::back_inserter(texts));
  const std::vector<Integer> own = temperature == 1 ? exact(texts) : powers(texts, temperature);
  std::vector<Integer> result(layers.size() * kv_heads, 0);
  const size_t group_size = own.size() / result.size();
  for (size_t h = 0; h < own.size(); ++h) result[h / group_size] += own[h];
  return result;
}

std::vector<int64_t> head_kv_budgets(const HeadKvBudget& budget, std::span<const Integer> importances) {
  require_valid(budget, importances);
  const auto heads = std::ssize(importances);
  const int64_t shared = shared_of(budget.budget - budget.always_kept, budget.beta);
  const int64_t least = budget.budget - shared, room = budget.tokens - least;
  std::vector<size_t> all(importances.size());
  std::iota(all.begin(), all.end(), size_t{0});
  Sharing sharing(all, importances, Integer(shared) * heads);
  for (;;) {
    std::vector<size_t> fitting = sharing.fitting(room);
    const size_t full = sharing.heads.size() - fitting.size();
    if (full == 0) break;
    sharing = Sharing(std::move(fitting), importances, sharing.pool - Integer(room) * full);
  }
  std::vector<int64_t> whole;
  std::vector<Integer> rest;
  for (const Integer& weight : sharing.weights) {
    const Integer product = sharing.pool * weight;
    whole.push_back(static_cast<int64_t>(product / sharing.sum));
    rest.push_back(product % sharing.sum);
  }
  const std::vector<int64_t> more =
      largest_remainders(std::move(whole), rest, static_cast<int64_t>(sharing.pool));
  std::vector<int64_t> result(importances.size(), budget.tokens);
  for (size_t i = 0; i < more.size(); ++i) result[sharing.heads[i]] = least + more[i];
  return result;
}

}  // namespace kvbound::reference
