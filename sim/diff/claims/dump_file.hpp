// Reads a dump strictly: a file that does not fit the trace is rejected before any number is judged. Format:
// sim/README.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/options/budget.hpp>
#include <kvbound/sim/options/given_files.hpp>
#include <kvbound/traces/safetensors.hpp>
#include <kvbound/traces/trace.hpp>

#include "claims.hpp"
#include "declared_arithmetic.hpp"

namespace kvbound::sim {

/// Which heads had a cache in what a dump records, by its metadata; KV heads if they don't say. Throws
/// TraceError for another text, and for a file that is no safetensors file; IoError.
traces::CacheHeads cache_heads_of_dump(const std::string& path, int64_t header_limit);

/// A dump's metadata and the tensors that it holds.
struct DumpInfo {
  Policy policy;  ///< with what is known of all layers of its file, if its host is `given`: with_facts
  Budget budget;
  int64_t entries = 0;  ///< the budget for the trace's prompt: the mean over layers and heads
  HeadBudgets budgets;  ///< of all layers of the trace
  std::string backend;
  DeclaredArithmetic declared;
  std::string trace_sha256;
  std::vector<int64_t> layers;  ///< ascending
  int64_t steps = 0;            ///< decode steps recorded; the trace's if no tensor has a step dimension

  std::vector<std::string> tensors;  ///< names of those that every layer has, in the order of dump_tensors()
};

class DumpFile {
 public:
  /// Opens a dump of this trace and checks everything but its numbers and the trace's hash.
  ///
  /// throws  TraceError, naming file, byte, field, what was found and what was expected: for a file that is
  ///         not a dump or was made for another trace's shape; a policy or budget that is unknown or does not
  ///         fit; a tensor that is unknown, that dumps of this policy do not have, that has a wrong type or
  ///         shape, that some layers lack, or that belongs to a layer that does not exist; for a file of the
  ///         host `given` that is not the one that the dump was computed with; for caches of other heads than
  ///         the trace was opened with; IoError
  DumpFile(const std::string& path, const traces::TraceInfo& trace, int64_t header_limit);

  /// Of tensors wherever they are.
  DumpFile(std::unique_ptr<traces::TensorFile> file, const traces::TraceInfo& trace);

  const std::string& path() const { return file_->path(); }
  const DumpInfo& info() const { return info_; }
  /// The policy with what its file has of a layer, if its host is `given`. Throws as
  /// traces::GivenFile::read_layer.
  Policy policy_of(int64_t layer) const { return given_.bound(info_.policy, layer); }

  /// Throws TraceError unless the dump's metadata name a trace with this SHA-256.
  void require_trace(const std::string& sha256) const;

  /// One layer's claims; numbers may be NaN or infinite. Throws TraceError if kept_offsets are not valid
  /// offsets, or if the file was truncated after it was opened.
  LayerClaims read_layer(int64_t layer) const;

 private:
  const traces::TensorEntry* find(int64_t layer, const std::string& tensor) const;
  std::vector<int64_t> read_integers(const traces::TensorEntry& entry) const;
  std::optional<RealClaim> read_claim(int64_t layer, const std::string& tensor) const;
  std::vector<std::vector<int64_t>> read_kept(int64_t layer, const std::vector<int64_t>& offsets) const;

  std::unique_ptr<traces::TensorFile> file_;
  traces::TraceInfo trace_;
  GivenFiles given_;
  DumpInfo info_;
};

}  // namespace kvbound::sim
