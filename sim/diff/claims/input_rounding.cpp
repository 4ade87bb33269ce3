#include "input_rounding.hpp"

#include <algorithm>

#include <kvbound/reference/core/float16.hpp>

namespace kvbound::sim {

double rounded_to(double number, Dtype storage) {
  if (storage == Dtype::f16) return from_float16(to_float16(number));
  if (storage == Dtype::bf16) return from_bfloat16(to_bfloat16(number));
  return storage == Dtype::f32 ? static_cast<double>(static_cast<float>(number)) : number;
}

InputRounding storage_rounding(Dtype storage) {
  if (storage == Dtype::f64) return {};
  const RealFormat format = *real_format(storage);
  return {format.unit_roundoff(), format.smallest_subnormal() / 2};
}

InputRounding input_rounding(std::initializer_list<VectorView> inputs, Dtype storage) {
  const auto fits = [&](VectorView numbers) {
    return std::ranges::all_of(numbers, [&](double number) { return rounded_to(number, storage) == number; });
  };
  return std::ranges::all_of(inputs, fits) ? InputRounding{} : storage_rounding(storage);
}

InputRounding input_rounding(const traces::Layer& layer, Dtype storage) {
  return input_rounding({layer.keys.numbers(), layer.values.numbers(), layer.queries.numbers(),
                         layer.output_projection.numbers()},
                        storage);
}

reference::Arithmetic with_input_rounding(reference::Arithmetic arithmetic, const InputRounding& rounding) {
  arithmetic.input_floor += rounding.floor * (1 + arithmetic.input);
  arithmetic.input += rounding.relative * (1 + arithmetic.input);
  return arithmetic;
}

TestedImplementation with_input_rounding(TestedImplementation implementation, const traces::Layer& layer) {
  const InputRounding rounding = input_rounding(layer, implementation.storage);
  OperationArithmetic& operations = implementation.arithmetic;
  for (reference::Arithmetic* arithmetic :
       {&operations.window_attention, &operations.change_scores, &operations.projected_value_norms,
        &operations.projected_value_norms_l2, &operations.attention, &operations.nearest_keys,
        &operations.nearest_key}) {
    *arithmetic = with_input_rounding(*arithmetic, rounding);
  }
  return implementation;
}

}  // namespace kvbound::sim
