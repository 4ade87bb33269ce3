// Dumps: what a replay recorded, for kernels to be compared with; one safetensors file per
// run. Tensors: sim/README.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kvbound/traces/safetensors_writer.hpp>
#include <kvbound/traces/trace.hpp>

#include "replay.hpp"

namespace kvbound::sim {

class Spool;

struct MergedRows;

/// The file name of a run's dump, POLICY@BUDGET@BACKEND.safetensors. Characters other than letters, digits
/// and =.+@%- become underscores. In names longer than file systems allow (255 bytes) the policy is truncated
/// and followed by ~ and 16 hexadecimal digits of the policy's SHA-256.
std::string dump_name(const Run& run);

/// A dump being written. A safetensors file begins with the shapes of all its tensors, so layers
/// are spooled to a temporary file on the target's disk first. Nothing is visible under the
/// target's name before commit().
class Dump {
 public:
  /// spool_folder  an existing folder. Throws IoError if no file can be created in it.
  /// facts         of the run's file, if its host is `given`
  Dump(const Run& run, const traces::TraceInfo& trace, const std::string& trace_sha256,
       const std::string& spool_folder, const GivenFacts& facts = {});
  ~Dump();
  Dump(Dump&&) noexcept;

  /// Adds a run's record of a layer; then, once, the metrics measured on that record.
  void add(int64_t layer, const LayerRecord& record);
  void add(int64_t layer, const LayerMetrics& metrics);

  /// Writes everything that was added to a temporary file beside `path` and closes it. Nothing can be added
  /// afterwards. Throws IoError.
  void prepare(const std::string& path);
  /// Gives the file its name.
  void commit();

 private:
  template <class Number>
  void append(int64_t layer, const char* tensor, std::vector<int64_t> shape, std::span<const Number> numbers);
  void add_choices(int64_t layer, const char* tensor, const std::vector<StepRecord>& steps,
                   std::vector<int64_t> StepRecord::*choices);
  void add_rows(int64_t layer, const std::string& prefix, const std::vector<int64_t>& extents,
                const MergedRows& rows);

  traces::SafetensorsWriter::Strings metadata_;
  LayerShape shape_;
  int64_t trace_layers_;
  int64_t prompt_tokens_;
  bool evicts_;                  // whether the policy's host evicts while decoding
  bool merges_;                  // whether evicted entries merge
  bool records_targets_;         // whether clusters are recorded: the reference's follow from what it keeps
  std::vector<int64_t> layers_;  // those added; listed in the metadata unless they are all of the trace's
  std::vector<traces::TensorDeclaration> tensors_;
  std::unique_ptr<Spool> spool_;
  std::unique_ptr<traces::SafetensorsWriter> writer_;
};

}  // namespace kvbound::sim
