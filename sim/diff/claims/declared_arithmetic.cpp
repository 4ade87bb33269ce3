#include "declared_arithmetic.hpp"

#include <algorithm>

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
  if (tf32_products) {
    constexpr double kTruncation = 0x1p-10, kLeast = 0x1p-126, kStored = 0x1p-24;  // of F32, before that
    result.weights = std::max(result.weights, kTruncation);
    result.weights_floor = std::max(result.weights_floor, kLeast);
    // Also where storage has fewer bits: a query may be scaled before it is a factor.
    result.input = kTruncation + kStored;
    result.input_floor = kLeast;
  }
  result.splits = splits;
  result.tile = tile;
  return result;
}

Dtype DeclaredArithmetic::input_storage() const {
  return unit_roundoff(storage) > unit_roundoff(accumulate) ? storage : accumulate;
}

Dtype DeclaredArithmetic::merged_storage() const { return accumulate == Dtype::f64 ? Dtype::f64 : storage; }

std::string DeclaredArithmetic::text() const {
  std::string text = fmt::format("storage {}, accumulate {}", name(storage), name(accumulate));
  if (weights) text += fmt::format(", weights {}", name(*weights));
  if (partials) text += fmt::format(", partials {}", name(*partials));
  if (splits > 0) text += fmt::format(", {} split{}", splits, splits == 1 ? "" : "s");
  if (tile != 0) text += tile > 0 ? fmt::format(", tile {}", tile) : ", any tile";
  if (tf32_products) text += ", products TF32";
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
  if ((declared.tf32_products = fields.has("products"))) fields.require("products", "TF32");
  return declared;
}

}  // namespace kvbound::sim
