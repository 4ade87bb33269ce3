// The arithmetic that a checked kernel declares, with defaults by the types of its inputs.
#pragma once

#include <initializer_list>

#include <kvbound/sim/diff/claims/declared_arithmetic.hpp>

#include "check_file.hpp"

namespace kvbound::sim {

/// What an operation rounds, of all that a kernel may declare.
enum class Rounds {
  products,  ///< of stored inputs alone
  /// attention weights and, for some policies, outputs, too; no sum is declared by its parts and tiles
  scores,
  outputs  ///< all of it
};

struct CheckArithmetic {
  DeclaredArithmetic declared;
  Dtype inputs = Dtype::f64;  ///< the type that inputs are rounded to, if theirs is wider

  /// The arithmetic, with the rounding of these inputs.
  reference::Arithmetic with_rounding_of(std::initializer_list<VectorView> numbers) const;
};

/// The options storage, accumulate, weights, partials, splits, tile and products. Without `storage`
/// each input is in its own type; without `accumulate` products are formed in F64 if all inputs have
/// that type, otherwise in F32.
///
/// inputs  the input tensors' names, one of which is there at least
/// rounds  what else is declared does not count
/// throws  TraceError
CheckArithmetic check_arithmetic(const CheckFile& file, std::initializer_list<const char*> inputs,
                                 Rounds rounds = Rounds::outputs);

}  // namespace kvbound::sim
