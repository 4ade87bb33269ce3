#include "declared_arithmetic.hpp"

#include <fmt/format.h>

namespace kvbound::sim {
namespace {

constexpr std::array kAccumulated{Dtype::f64, Dtype::f32};
constexpr int64_t kMostTokens = int64_t{1} << 40;  // that `splits` and `tile` may name

}  // namespace

reference::Arithmetic DeclaredArithmetic::arithmetic() const {
  reference::Arithmetic result =
      accumulate == Dtype::f64 ? reference::double_precision() : reference::tensor_core_precision();
  const auto unit = [](Dtype rounded) { return real_format(rounded)->unit_roundoff(); };
  const auto floor = [](Dtype rounded) { return real_format(rounded)->smallest_subnormal() / 2; };
  if (weights) {
    result.weights = unit(*weights);
    result.weights_floor = floor(*weights);
  }
  if (partials) {
    result.partials = unit(*partials);
    result.partials_floor = floor(*partials);
  }
  result.splits = splits;
  result.tile = tile;
  return result;
}

std::string DeclaredArithmetic::text() const {
  std::string text;
  if (weights) text += fmt::format(", weights {}", name(*weights));
  if (partials) text += fmt::format(", partials {}", name(*partials));
  if (splits > 0) text += fmt::format(", {} split{}", splits, splits == 1 ? "" : "s");
  if (tile != 0) text += tile > 0 ? fmt::format(", tile {}", tile) : ", any tile";
  return text;
}

DeclaredArithmetic declared_arithmetic(const traces::MetadataFields& fields,
                                       std::optional<Dtype> accumulate) {
  DeclaredArithmetic declared;
  declared.accumulate =
      accumulate && !fields.has("accumulate") ? *accumulate : fields.dtype("accumulate", kAccumulated);
  if (fields.has("weights")) declared.weights = fields.dtype("weights", kRealTypes);
  if (fields.has("partials")) declared.partials = fields.dtype("partials", kRealTypes);
  if (fields.has("splits")) declared.splits = fields.count("splits", 1, kMostTokens);
  if (fields.has("tile")) {
    declared.tile = fields.text("tile") == "any" ? reference::kAnyTile : fields.count("tile", 1, kMostTokens);
  }
  return declared;
}

}  // namespace kvbound::sim
