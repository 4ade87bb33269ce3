// A theorem as something that can be run: what it says, under which hypotheses, and properties that look for
// counterexamples.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/proofs/oracle/bounded.hpp>

#include "draw_instance.hpp"

namespace kvbound::proofs {

/// What one instance says of a property: gathered claim by claim, of which the first that does not hold is told.
class Outcome {
 public:
  /// left <= right, both exact; `terms` is the sum of the absolute terms that 50 digits rounded. A side that is no
  /// number leaves the claim undecided.
  void at_most(const std::string& claim, const oracle::Real& left, const oracle::Real& right,
               const oracle::Real& terms);
  /// left < right, likewise.
  void below(const std::string& claim, const oracle::Real& left, const oracle::Real& right,
             const oracle::Real& terms);
  /// left == right, likewise.
  void equal(const std::string& claim, const oracle::Real& left, const oracle::Real& right,
             const oracle::Real& terms);
  /// What the double-precision reference computed is where its error bound says.
  void reference_within(const std::string& quantity, double computed, const oracle::Bounded& exact);
  /// A claim about what the reference computed or chose.
  void reference_holds(const std::string& claim, bool holds);
  /// Any other claim.
  void require(const std::string& claim, bool holds);
  /// The instance could not be evaluated: this refutes nothing, and supports nothing.
  void undecide(const std::string& why);

  /// The claim's left side over its right side, where 50 digits tell it to a double's precision; `terms` as above,
  /// by default the right side itself.
  void ratio(const oracle::Real& left, const oracle::Real& right, const oracle::Real& terms);
  void ratio(const oracle::Real& left, const oracle::Real& right) { ratio(left, right, right); }

  bool holds() const { return !failure_; }
  bool undecided() const { return undecided_; }
  /// A claim was decided, and fails.
  bool fails() const { return failure_ && !undecided_; }
  /// Why it does not hold.
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
  std::string id;     ///< the theorem's, or with what is dropped: "ckv-3.5:small-stage-one"
  std::string claim;  ///< in words
  Outcome (*check)(const Instance&);
};

struct Theorem {
  /// Where the proof is written down: "proofs/critical_kv.md#ckv-3.3"
  std::string proof() const { return "proofs/" + page + "#" + id; }

  std::string id;
  std::string title;
  std::string statement;
  std::string hypotheses;
  std::string source;
  std::string page = {};           ///< of the written proof, in proofs/; the catalogue fills it in
  std::string ratio;               ///< what Outcome::ratio is; empty: nothing
  Sizes sizes;                     ///< of the instances
  Property property;               ///< the theorem itself; its id is the theorem's
  std::vector<Property> weakened;  ///< with a hypothesis dropped: each must find a counterexample
};

}  // namespace kvbound::proofs
