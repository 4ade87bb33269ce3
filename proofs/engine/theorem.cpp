#include "theorem.hpp"

#include <algorithm>
#include <cmath>

namespace kvbound::proofs {
namespace {

using oracle::Real;

std::string text(const Real& number) { return number.str(20); }

Real tolerance(const Real& terms) { return oracle::oracle_precision() * terms; }

}  // namespace

void Outcome::require(const std::string& claim, bool holds) {
  if (!holds && !failure_) failure_ = claim;
}

void Outcome::undecide(const std::string& why) {
  if (failure_) return;
  failure_ = why;
  undecided_ = true;
}

bool Outcome::decidable(const std::string& claim, const Real& left, const Real& right, const Real& terms) {
  const bool decidable = isfinite(left) && isfinite(right) && isfinite(terms);
  if (!decidable) undecide(claim + " cannot be decided: " + text(left) + " against " + text(right));
  return decidable;
}

void Outcome::at_most(const std::string& claim, const Real& left, const Real& right, const Real& terms) {
  if (!decidable(claim, left, right, terms)) return;
  if (!(left <= right + tolerance(terms))) require(claim + ": " + text(left) + " > " + text(right), false);
}

void Outcome::below(const std::string& claim, const Real& left, const Real& right, const Real& terms) {
  if (!decidable(claim, left, right, terms)) return;
  if (!(left < right - tolerance(terms))) require(claim + ": " + text(left) + " >= " + text(right), false);
}

void Outcome::equal(const std::string& claim, const Real& left, const Real& right, const Real& terms) {
  if (!decidable(claim, left, right, terms)) return;
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

}  // namespace kvbound::proofs
