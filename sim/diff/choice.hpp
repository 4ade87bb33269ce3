// A choice that a tested implementation made at a step, such as which entry was evicted, and what it is worth.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "comparison.hpp"

namespace kvbound::sim {

/// No position: no entry was evicted, or it merged with none.
inline constexpr int64_t kNoPosition = -1;

struct Choice {
  int64_t teacher_forced =
      kNoPosition;  ///< what is taken for chosen from now on: the tested implementation's, if that can be followed
  bool judged = true;                    ///< whether some other choice would have been a fault
  bool near_tie = false;                 ///< it is not the reference's, but rounding explains it
  bool undecided = false;                ///< nothing tells whether it is right
  std::optional<Offender> offence = {};  ///< what is wrong with it
};

/// Where a choice was made.
struct ChoicePlace {
  int64_t step = 0;
  int64_t kv_head = 0;
};

/// The reference's own choice.
inline Choice same_choice(int64_t own) { return {own}; }
/// The reference's own choice, where nothing is claimed or nothing could have been a fault.
inline Choice unjudged_choice(int64_t own) { return {own, false}; }
/// Another choice, which rounding explains.
inline Choice near_tie_choice(int64_t claimed) { return {claimed, true, true}; }
/// Another choice, of which nothing tells whether it is right.
inline Choice undecided_choice(int64_t teacher_forced) { return {teacher_forced, false, false, true}; }
/// A wrong one.
///
/// error, bound  of what it was chosen by
Choice wrong_choice(const ChoicePlace& at, int64_t teacher_forced, int64_t claimed, int64_t expected,
                    const std::string& note, double error = std::numeric_limits<double>::infinity(),
                    double bound = 0);

/// Choices of all steps and KV heads as one tensor.
class ChoiceTally {
 public:
  explicit ChoiceTally(const std::string& tensor);

  void add(const Choice& choice);
  const TensorAgreement& result() const { return result_; }

 private:
  TensorAgreement result_;
};

}  // namespace kvbound::sim
