#include "unlikely.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include <kvbound/sim/options/number.hpp>

#include "agreement_summary.hpp"

namespace kvbound::sim {
namespace {

constexpr int kLeastPower = -300;

// By the union bound over all tests.
int power_of(double deviations, int64_t tests) {
  const double natural = std::log(2.0 * static_cast<double>(tests)) - deviations * deviations / 2,
               power = std::ceil(natural / std::numbers::ln10);
  return power > kLeastPower ? static_cast<int>(power) : kLeastPower;
}

// With a rounding the deviation is likely if by the bound it may be among so many tests for certain.
std::string explanation_of(const ChanceTest& test, int64_t tests) {
  const double deviations = std::sqrt(2 * std::log(2.0 * static_cast<double>(tests)));
  const std::span<const UndeclaredRounding> roundings = undeclared_roundings();
  for (size_t i = 0; i < test.undeclared.size(); ++i) {
    if (std::abs(test.value - 1) <= test.bias + deviations * test.undeclared[i]) return roundings[i].name;
  }
  return {};
}

const ChanceTest* farthest_of(const JudgedTensor& tensor) {
  const std::vector<ChanceTest>& tests = tensor.agreement.chances.farthest;
  const auto farthest = std::ranges::max_element(tests, {}, &ChanceTest::deviations);
  return farthest == tests.end() ? nullptr : &*farthest;
}

}  // namespace

std::string index_text(const ChanceTest& test) {
  std::string text;
  for (const int64_t at : test.at) {
    text += text.empty() ? "[" : ", ";
    text += at == ChanceTest::kAll ? ":" : std::to_string(at);
  }
  return text + "]";
}

ChanceVerdict::ChanceVerdict(const std::vector<JudgedTensor>& tensors) {
  for (const JudgedTensor& tensor : tensors) tests += tensor.agreement.chances.count;
  if (tests == 0) return;
  deviations = std::sqrt(2 * std::log(2.0 * static_cast<double>(tests) / kFailure));
  for (const JudgedTensor& tensor : tensors) {
    const ChanceTest* const test = farthest_of(tensor);
    if (!test || !tensor.agreement.agrees() || !(test->deviations() > deviations)) continue;
    const auto known = std::ranges::find(found, tensor.agreement.tensor, [](const UnlikelyOutput& unlikely) {
      return unlikely.tensor->agreement.tensor;
    });
    const UnlikelyOutput unlikely{&tensor, test, test->bias + deviations * test->deviation,
                                  power_of(test->deviations(), tests), explanation_of(*test, tests)};
    if (known == found.end()) {
      found.push_back(unlikely);
      continue;
    }
    const int64_t others = known->others + 1;
    if (test->deviations() > known->test->deviations()) *known = unlikely;
    known->others = others;
  }
}

std::string text_of(const UnlikelyOutput& unlikely) {
  const ChanceTest& test = *unlikely.test;
  const bool is_sum = std::ranges::find(test.at, ChanceTest::kAll) != test.at.end();
  const int digits = places_of(unlikely.band);
  std::string text = fmt::format(
      "{}{}: {} {}{} is unlikely by rounding ({} to {}; probability below 1e{})", name_of(*unlikely.tensor),
      index_text(test), test.functional, with_places(test.value, digits), is_sum ? " of all rows" : "",
      with_places(1 - unlikely.band, digits), with_places(1 + unlikely.band, digits), unlikely.probability);
  if (!unlikely.explained_by.empty()) text += fmt::format("; {} would explain it", unlikely.explained_by);
  if (unlikely.others > 0) {
    text += unlikely.others == 1 ? "; so is 1 more layer"
                                 : fmt::format("; so are {} more layers", unlikely.others);
  }
  return text;
}

}  // namespace kvbound::sim
