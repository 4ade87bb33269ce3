// A choice that a tested implementation made at a step, such as which entry was
// evicted, and how it was judged.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/diff/claims/comparison.hpp>

namespace kvbound::sim {

/// In place of a position: no entry was evicted, or the evicted entry merged with no other.
inline constexpr int64_t kNoPosition = -1;

struct Choice {
  /// The choice that the replay continues with: the tested implementation's, unless that is impossible.
  int64_t teacher_forced = kNoPosition;
  bool judged = true;                    ///< whether the judgement could have found some other choice faulty
  bool near_tie = false;                 ///< differs from the reference's choice, but rounding explains it
  bool undecided = false;                ///< rounding hides whether it is right
  std::optional<Offender> offence = {};  ///< what is wrong with the choice
};

/// Where a choice was made.
struct ChoicePlace {
  int64_t step = 0;
  int64_t kv_head = 0;
};

/// The choice equals the reference's.
inline Choice same_choice(int64_t own) { return {own}; }
/// The reference's own choice, where no choice is claimed or where no other choice
/// could have been found faulty.
inline Choice unjudged_choice(int64_t own) { return {own, false}; }
/// A choice other than the reference's that rounding explains; judged: whether yet another
/// could have been found faulty.
inline Choice near_tie_choice(int64_t claimed, bool judged = true) { return {claimed, judged, true}; }
/// A choice other than the reference's, of which rounding hides whether it is right.
inline Choice undecided_choice(int64_t teacher_forced) { return {teacher_forced, false, false, true}; }
/// A wrong choice.
///
/// error, bound  of the score, or of whatever else the choice was made by
Choice wrong_choice(const ChoicePlace& at, int64_t teacher_forced, int64_t claimed, int64_t expected,
                    const std::string& note, double error = std::numeric_limits<double>::infinity(),
                    double bound = 0);

/// The same of one entry's choice, in the tensor at this index.
Choice wrong_entry(std::vector<int64_t> index, int64_t teacher_forced, int64_t claimed, int64_t expected,
                   const std::string& note);

/// Accumulates the choices of all steps and KV heads into the agreement of one tensor.
class ChoiceTally {
 public:
  /// so_far  the agreement of the tensor's other choices, to which those that follow are added
  explicit ChoiceTally(const std::string& tensor, const TensorAgreement& so_far = {});

  /// The next choice in C order of the tensor.
  void add(const Choice& choice) { add(choice, result_.elements); }
  /// element  the choice's own, in C order of the tensor
  void add(const Choice& choice, int64_t element);
  const TensorAgreement& result() const { return result_; }

 private:
  TensorAgreement result_;
};

}  // namespace kvbound::sim
