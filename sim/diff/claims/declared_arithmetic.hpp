// The arithmetic that a dump, or a file of a kernel's results, says it was computed in.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/traces/metadata_fields.hpp>

namespace kvbound::sim {

/// The types that numbers may be stored in.
inline constexpr std::array kRealTypes{Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16};

struct DeclaredArithmetic {
  Dtype storage = Dtype::f64;     ///< type of the cache that the numbers were computed from
  Dtype accumulate = Dtype::f64;  ///< F64 or F32: the type in which products and sums were formed
  std::optional<Dtype> weights =
      {};  ///< type that attention weights were rounded to before multiplying values
  std::optional<Dtype> partials =
      {};              ///< type that outputs of the cache's parts were rounded to before merging
  int64_t splits = 0;  ///< most parts with an output each; 0: not declared
  /// Terms added before their sum is handed on; 0: not declared; reference::kAnyTile: any order.
  int64_t tile = 0;
  /// Whether queries and keys, weights and values, values and W^O are rounded or truncated to TF32
  /// before they are multiplied.
  bool tf32_products = false;

  /// What determines the error bounds.
  ///
  ///     accumulate F64: double precision; F32: tensor cores, whose bounds also hold for single precision
  ///     TF32: 10 bits behind the point, the exponents of F32; truncation errs by 2^-10 of a number, or loses
  ///           one below 2^-126
  reference::Arithmetic arithmetic() const;
  /// The type that inputs were rounded to: the coarser of storage and accumulate.
  Dtype input_storage() const;
  /// The type that merged entries were rounded to: an implementation that accumulates in F64 is taken to keep
  /// them so, others in the type of the cache.
  Dtype merged_storage() const;
  /// "storage BF16, accumulate F32, weights BF16, partials BF16, 8 splits, tile 128, products TF32",
  /// as far as it is declared.
  std::string text() const;
};

/// Reads the fields of these names, each but the first two of which may be missing.
///
/// storage  if given, that of a file without the field, whose accumulate then is F64 or
///          F32, as exact as the storage
/// throws   TraceError
DeclaredArithmetic declared_arithmetic(const traces::MetadataFields& fields,
                                       std::optional<Dtype> storage = std::nullopt);

}  // namespace kvbound::sim
