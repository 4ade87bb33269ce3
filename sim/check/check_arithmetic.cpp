#include "check_arithmetic.hpp"

#include <kvbound/sim/diff/claims/input_rounding.hpp>

namespace kvbound::sim {

reference::Arithmetic CheckArithmetic::with_rounding_of(std::initializer_list<VectorView> numbers) const {
  return with_input_rounding(declared.arithmetic(), input_rounding(numbers, inputs));
}

CheckArithmetic check_arithmetic(const CheckFile& file, std::initializer_list<const char*> inputs,
                                 Rounds rounds) {
  Dtype narrowest = Dtype::f64;
  for (const char* name : inputs) {
    const traces::TensorEntry* const entry = file.tensors().find(name);
    if (!entry || !is_real(entry->dtype)) continue;
    const bool is_narrower =
        real_format(entry->dtype)->unit_roundoff() > real_format(narrowest)->unit_roundoff();
    if (is_narrower) narrowest = entry->dtype;
  }
  const traces::MetadataFields options = file.options();
  CheckArithmetic result{declared_arithmetic(options, narrowest)};
  if (rounds != Rounds::outputs) result.declared.splits = result.declared.tile = 0;
  if (rounds == Rounds::products) result.declared.weights = result.declared.partials = std::nullopt;
  result.inputs = options.has("storage") ? result.declared.input_storage() : result.declared.accumulate;
  return result;
}

}  // namespace kvbound::sim
