// Theorems in executable form: the statement, the hypotheses, and properties by which
// counterexamples are searched.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/proofs/oracle/bounded.hpp>

#include "draw_instance.hpp"

namespace kvbound::proofs {

/// The outcome of a property for one instance. Claims are checked one by one; the
/// first that fails is reported.
class Outcome {
 public:
  /// Claims left <= right, for numbers in 50 digits; `terms` is the sum of the absolute terms that were
  /// rounded to 50 digits. A side that is NaN or infinite leaves the claim undecided.
  void at_most(const std::string& claim, const oracle::Real& left, const oracle::Real& right,
               const oracle::Real& terms);
  /// Claims left < right, likewise.
  void below(const std::string& claim, const oracle::Real& left, const oracle::Real& right,
             const oracle::Real& terms);
  /// Claims left == right, likewise.
  void equal(const std::string& claim, const oracle::Real& left, const oracle::Real& right,
             const oracle::Real& terms);
  /// Claims that a number computed by the double-precision reference is within its error bound.
  void reference_within(const std::string& quantity, double computed, const oracle::Bounded& exact);
  /// Any other claim about the reference's results or selections.
  void reference_holds(const std::string& claim, bool holds);
  /// Any other claim about the theorem.
  void require(const std::string& claim, bool holds);
  /// Marks the outcome as undecided: the instance could not be
  /// evaluated, which neither refutes nor supports the property.
  void undecide(const std::string& why);

  /// Records the claim's left side over its right side, if 50 digits give it to double precision; `terms` as
  /// above, by default the right side itself. The largest ratio is kept.
  void ratio(const oracle::Real& left, const oracle::Real& right, const oracle::Real& terms);
  void ratio(const oracle::Real& left, const oracle::Real& right) { ratio(left, right, right); }

  bool holds() const { return !failure_; }
  bool undecided() const { return undecided_; }
  /// Whether a claim was decided and fails.
  bool fails() const { return failure_ && !undecided_; }
  /// The first failed claim, or the reason why the outcome is undecided; only if holds() is false.
  const std::string& failure() const { return *failure_; }
  std::optional<double> ratio() const { return ratio_; }
  bool reference_held() const { return reference_held_; }

 private:
  bool decidable(const std::string& claim, const oracle::Real& left, const oracle::Real& right,
                 const oracle::Real& terms);

  std::optional<std::string> failure_;
  bool undecided_ = false;
  std::optional<double> ratio_;
  bool reference_held_ = false;
};

/// A claim about every instance.
struct Property {
  /// The theorem's id; for a weakened claim followed by the dropped hypothesis: "ckv-3.5:small-stage-one".
  std::string id;
  std::string claim;  ///< in words
  Outcome (*check)(const Instance&);
};

struct Theorem {
  /// The location of the written proof: "proofs/critical_kv.md#ckv-3.3"
  std::string proof() const { return "proofs/" + page + "#" + id; }

  std::string id;
  std::string title;
  std::string statement;
  std::string hypotheses;
  std::string source;
  std::string page = {};           ///< file of the written proof, in proofs/; set by the catalogue
  std::string ratio;               ///< meaning of Outcome::ratio; empty: no ratio is recorded
  Sizes sizes;                     ///< largest instances that are drawn
  Property property;               ///< the theorem itself; its id is the theorem's
  std::vector<Property> weakened;  ///< claims with a hypothesis dropped; each must have a counterexample
};

}  // namespace kvbound::proofs
