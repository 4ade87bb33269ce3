#include "theorem.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace kvbound::proofs {
namespace {

using oracle::Real;

std::string text(const Real& number) { return number.str(20); }

Real tolerance(const Real& terms) { return oracle::oracle_precision() * terms; }

}  // namespace

void Outcome::require(const std::string& claim, bool holds) {
  if (!holds && !failure_) failure_ = claim;
}

void Outcome::at_most(const std::string& claim, const Real& left, const Real& right, const Real& terms) {
  if (!(left <= right + tolerance(terms))) require(claim + ": " + text(left) + " > " + text(right), false);
}

void Outcome::below(const std::string& claim, const Real& left, const Real& right, const Real& terms) {
  if (!(left < right - tolerance(terms))) require(claim + ": " + text(left) + " >= " + text(right), false);
}

void Outcome::equal(const std::string& claim, const Real& left, const Real& right, const Real& terms) {
  if (!(abs(left - right) <= tolerance(terms)))
    require(claim + ": " + text(left) + " is not " + text(right), false);
}

void Outcome::reference_holds(const std::string& claim, bool holds) {
  reference_held_ = true;
  require("the reference: " + claim, holds);
}

void Outcome::reference_within(const std::string& quantity, double computed, const oracle::Bounded& exact) {
  const bool within = std::isfinite(computed) && abs(Real(computed) - exact.value) <= exact.bound;
  reference_holds(quantity + " " + Real(computed).str(20) + " is within " + exact.bound.str(3) + " of " +
                      text(exact.value),
                  within);
}

void Outcome::ratio(const Real& left, const Real& right, const Real& terms) {
  if (!(right > 0) || right * oracle::unit_roundoff() < tolerance(terms)) return;
  const auto ratio = static_cast<double>(Real(left / right));
  ratio_ = std::max(ratio_.value_or(ratio), ratio);
}

const std::vector<Theorem>& catalogue() {
  static const std::vector<Theorem> all = [] {
    std::vector<Theorem> result;
    for (auto part : {perturbation_theorems(), critical_kv_theorems(), theta_sweep_theorems()})
      std::ranges::move(part, std::back_inserter(result));
    return result;
  }();
  return all;
}

}  // namespace kvbound::proofs
