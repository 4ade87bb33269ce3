#include "input_rounding.hpp"

#include <algorithm>

#include <kvbound/reference/core/float16.hpp>

namespace kvbound::sim {
namespace {

double stored(double number, Dtype storage) {
  switch (storage) {
    case Dtype::f16:
      return from_float16(to_float16(number));
    case Dtype::bf16:
      return from_bfloat16(to_bfloat16(number));
    case Dtype::f32:
      return static_cast<double>(static_cast<float>(number));
    default:
      return number;
  }
}

InputRounding rounding_of(Dtype storage) {
  switch (storage) {
    case Dtype::f16:
      return {0x1p-11, 0x1p-25};
    case Dtype::bf16:
      return {0x1p-8, 0x1p-134};
    case Dtype::f32:
      return {0x1p-24, 0x1p-150};
    default:
      return {};
  }
}

}  // namespace

InputRounding input_rounding(const traces::Layer& layer, Dtype storage) {
  const auto fits = [&](VectorView numbers) {
    return std::ranges::all_of(numbers, [&](double number) { return stored(number, storage) == number; });
  };
  const bool all_fit = fits(layer.keys.numbers()) && fits(layer.values.numbers()) &&
                       fits(layer.queries.numbers()) && fits(layer.output_projection.numbers());
  return all_fit ? InputRounding{} : rounding_of(storage);
}

}  // namespace kvbound::sim
