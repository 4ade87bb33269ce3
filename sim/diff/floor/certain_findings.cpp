#include "certain_findings.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <kvbound/sim/diff/claims/comparison.hpp>

namespace kvbound::sim {
namespace {

double product(VectorView a, VectorView b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

// What storing a number of at most this magnitude can take, and what the judge allows for it.
double storing(Dtype storage, double most) {
  const double rounding = half_spacing(storage, most);
  return rounding + half_spacing(storage, most + rounding);
}

}  // namespace

BoundedOutput::BoundedOutput(VectorView query, MatrixView keys, MatrixView values, double scale,
                             const reference::Arithmetic& arithmetic)
    : errors_(reference::attention_errors({query.data(), 1, std::ssize(query)}, keys, values, scale, {},
                                          arithmetic)),
      functionals_(errors_, 0, values, {}, arithmetic) {}

double BoundedOutput::weight_from(int64_t first) const {
  double weight = 0;
  for (const double log_weight : errors_.log_weights.row(0).subspan(first)) weight += std::exp(log_weight);
  return weight;
}

CertainFindings::CertainFindings(const BoundedOutput& right, Dtype storage)
    : right_(right),
      storage_(storage),
      gain_(direction(right.output())),
      logit_scale_(direction(right.functionals().scale_direction())) {}

JudgedDirection CertainFindings::direction(std::vector<double> w) const {
  const double bound = right_.error(w), size = product(w, w);
  return {std::move(w), bound, size};
}

bool CertainFindings::finds_element(VectorView outputs, VectorView errors) const {
  for (size_t c = 0; c < outputs.size(); ++c) {
    if (always_finds_element(right_.output()[c], right_.errors()[c], outputs[c], errors[c], storage_))
      return true;
  }
  return false;
}

bool CertainFindings::finds(const JudgedDirection& direction, VectorView outputs, VectorView errors,
                            double bound) const {
  return always_finds_along(direction, right_.output(), outputs, errors, bound, storage_);
}

bool CertainFindings::always_find(const BoundedOutput& faulty) const {
  const std::vector<double>& outputs = faulty.output();
  return finds_element(outputs, faulty.errors()) ||
         finds(gain_, outputs, faulty.errors(), faulty.error(gain_.w)) ||
         finds(logit_scale_, outputs, faulty.errors(), faulty.error(logit_scale_.w));
}

bool CertainFindings::always_find_factor(double factor) const {
  std::vector<double> outputs = right_.output(), errors(right_.errors().begin(), right_.errors().end());
  for (double& number : outputs) number *= factor;
  for (double& number : errors) number *= std::abs(factor);
  return finds_element(outputs, errors) || finds(gain_, outputs, errors, std::abs(factor) * gain_.bound) ||
         finds(logit_scale_, outputs, errors, std::abs(factor) * logit_scale_.bound);
}

std::optional<double> CertainFindings::factor_floor() const {
  return smallest_factor([&](double factor) { return always_find_factor(factor); });
}

bool always_finds_element(double expected, double bound, double faulty, double faulty_error, Dtype storage) {
  return std::abs(faulty - expected) >
         bound + faulty_error + storing(storage, std::abs(faulty) + faulty_error);
}

bool always_finds_along(const JudgedDirection& direction, VectorView right, VectorView faulty,
                        VectorView faulty_errors, double faulty_bound, Dtype storage) {
  const double summing = static_cast<double>(right.size() + 2) * 0x1p-52;  // the judge's allowance, twice
  double moved = 0, lost = direction.bound + faulty_bound;
  for (size_t c = 0; c < right.size(); ++c) {
    const double most = std::abs(faulty[c]) + faulty_errors[c];
    moved += direction.w[c] * (faulty[c] - right[c]);
    if (direction.w[c] == 0) continue;  // whose error may be infinite
    lost += std::abs(direction.w[c]) * (storing(storage, most) + summing * (most + std::abs(right[c])));
  }
  return std::abs(moved) > lost;
}

std::optional<double> smallest_factor(const std::function<bool(double factor)>& finds) {
  constexpr int kSteps = 60;
  const auto is_found = [&](double x) { return finds(1 - x) && finds(1 + x); };
  if (!is_found(1)) return std::nullopt;
  double low = -52, high = 0;  // log2
  for (int step = 0; step < kSteps; ++step) {
    const double middle = (low + high) / 2;
    (is_found(std::exp2(middle)) ? high : low) = middle;
  }
  return std::exp2(high);
}

bool always_find_factor(VectorView expected, VectorView bounds, double factor, Dtype storage) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (always_finds_element(expected[i], bounds[i], factor * expected[i], std::abs(factor) * bounds[i],
                             storage)) {
      return true;
    }
  }
  return false;
}

std::optional<double> factor_floor(VectorView expected, VectorView bounds, Dtype storage) {
  size_t best = 0;
  double least = kInfinity;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double share = (bounds[i] + half_spacing(storage, expected[i])) / std::abs(expected[i]);
    if (!(share < least)) continue;
    least = share;
    best = i;
  }
  if (!(least < kInfinity)) return std::nullopt;
  return smallest_factor([&](double factor) {
    return always_find_factor(expected.subspan(best, 1), bounds.subspan(best, 1), factor, storage);
  });
}

std::optional<double> smallest_found(double guess, double least, double most,
                                     const std::function<bool(double)>& is_found) {
  double high = std::clamp(guess, least, most), low = high;
  if (is_found(high)) {
    while (true) {
      if (high <= least) return high;
      low = std::max(least, high / 2);
      if (!is_found(low)) break;
      high = low;
    }
  } else {
    do {
      if (high >= most) return std::nullopt;
      low = high;
      high = std::min(most, high * 2);
    } while (!is_found(high));
  }
  for (int bisection = 0; bisection < 3; ++bisection) {
    const double middle = std::sqrt(low * high);
    (is_found(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace kvbound::sim
