#include "declared_arithmetic.hpp"

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

constexpr std::array kAccumulated{Dtype::f64, Dtype::f32};
constexpr int64_t kMostTokens = int64_t{1} << 40;  // that `splits` and `tile` may name

double unit_roundoff(Dtype type) { return real_format(type)->unit_roundoff(); }

}  // namespace

reference::Arithmetic DeclaredArithmetic::arithmetic() const {
  reference::Arithmetic result =
      accumulate == Dtype::f64 ? reference::double_precision() : reference::tensor_core_precision();
  const auto floor = [](Dtype rounded) { return real_format(rounded)->smallest_subnormal() / 2; };
  if (weights) {
    result.weights = unit_roundoff(*weights);
    result.weights_floor = floor(*weights);
  }
  if (partials) {
    result.partials = unit_roundoff(*partials);
    result.partials_floor = floor(*partials);
  }
  result.splits = splits;
  result.tile = tile;
  return result;
}

Dtype DeclaredArithmetic::input_storage() const {
  return unit_roundoff(storage) > unit_roundoff(accumulate) ? storage : accumulate;
}

std::string DeclaredArithmetic::text() const {
  std::string text = fmt::format("storage {}, accumulate {}", name(storage), name(accumulate));
  if (weights) text += fmt::format(", weights {}", name(*weights));
  if (partials) text += fmt::format(", partials {}", name(*partials));
  if (splits > 0) text += fmt::format(", {} split{}", splits, splits == 1 ? "" : "s");
  if (tile != 0) text += tile > 0 ? fmt::format(", tile {}", tile) : ", any tile";
  return text;
}

DeclaredArithmetic declared_arithmetic(const traces::MetadataFields& fields, std::optional<Dtype> storage) {
  DeclaredArithmetic declared;
  declared.storage = storage && !fields.has("storage") ? *storage : fields.dtype("storage", kRealTypes);
  const Dtype natural = declared.storage == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  declared.accumulate =
      storage && !fields.has("accumulate") ? natural : fields.dtype("accumulate", kAccumulated);
  if (fields.has("weights")) declared.weights = fields.dtype("weights", kRealTypes);
  if (fields.has("partials")) declared.partials = fields.dtype("partials", kRealTypes);
  if (fields.has("splits")) declared.splits = fields.count("splits", 1, kMostTokens);
  if (fields.has("tile")) {
    declared.tile = fields.text("tile") == "any" ? reference::kAnyTile : fields.count("tile", 1, kMostTokens);
  }
  return declared;
}

}  // namespace kvbound::sim
