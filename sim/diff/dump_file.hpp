// A dump, read strictly: what does not fit the trace is refused before any number is judged. Format: sim/README.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/sim/options/budget.hpp>
#include <kvbound/traces/safetensors.hpp>
#include <kvbound/traces/trace.hpp>

#include "claims.hpp"

namespace kvbound::sim {

/// What a dump says of itself.
struct DumpInfo {
  Policy policy;
  Budget budget;
  int64_t entries = 0;                 ///< the budget for the trace's prompt: the mean over layers and heads
  std::vector<int64_t> layer_entries;  ///< [layers of the trace]: each layer's, the mean over its heads
  std::string backend;
  Dtype storage = Dtype::f64;     ///< of the cache that it was computed from
  Dtype accumulate = Dtype::f64;  ///< F64 or F32: what products and sums were formed in
  std::optional<Dtype> weights;   ///< what attention weights were rounded to before they multiplied values
  std::string trace_sha256;
  std::vector<int64_t> layers;  ///< ascending
  int64_t steps = 0;            ///< decode steps recorded; the trace's if no tensor has any

  std::vector<std::string> tensors;  ///< what there is of every layer, in the order of dump_tensors()
};

class DumpFile {
 public:
  /// Opens a dump of this trace and checks all but its numbers and the trace's hash.
  ///
  /// throws  TraceError, naming file, byte, field, what was found and what was expected: for a file that is no dump or
  ///         speaks of another trace's shape; a policy or budget that is unknown or does not fit; a tensor that is
  ///         unknown, that this policy has not, of a wrong type or shape, missing in some layers, or in a layer that
  ///         there is not; IoError
  DumpFile(const std::string& path, const traces::TraceInfo& trace, int64_t header_limit);

  const std::string& path() const { return file_.path(); }
  const DumpInfo& info() const { return info_; }

  /// Throws TraceError unless the dump was made from the trace of this SHA-256.
  void require_trace(const std::string& sha256) const;

  /// One layer's claims, any number included. Throws TraceError if offsets are none, or the file was cut since.
  LayerClaims read_layer(int64_t layer) const;

  /// The arithmetic that the numbers are to be judged by.
  ///
  ///     accumulate F64: double precision; F32: tensor cores, whose bounds hold for single precision, too
  reference::Arithmetic arithmetic() const;
  /// The type that inputs were rounded to: the coarser one of storage and accumulate.
  Dtype input_storage() const;

 private:
  const traces::TensorEntry* find(int64_t layer, const std::string& tensor) const;
  std::vector<int64_t> read_integers(const traces::TensorEntry& entry) const;
  std::optional<RealClaim> read_claim(int64_t layer, const std::string& tensor) const;
  std::vector<std::vector<int64_t>> read_kept(int64_t layer, const std::vector<int64_t>& offsets) const;

  traces::SafetensorsFile file_;
  traces::TraceInfo trace_;
  DumpInfo info_;
};

}  // namespace kvbound::sim
