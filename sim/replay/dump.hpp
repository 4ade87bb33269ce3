// What a replay recorded, for kernels to be compared with: one safetensors file per run. Tensors: sim/README.md.
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

/// The file name of a run's dump, POLICY@BUDGET@BACKEND.safetensors; what is no letter, digit or one of
/// =.+@%- becomes an underscore. Of a name that file systems refuse (above 255 bytes) the policy is cut and followed by ~ and
/// 16 hexadecimal digits of its SHA-256.
std::string dump_name(const Run& run);

/// A dump in the making. Layers are spooled to a nameless file on the target's disk, because a safetensors
/// file starts with the shapes of all its tensors; nothing can be seen under the target's name before
/// commit().
class Dump {
 public:
  /// spool_folder  an existing folder. Throws IoError if no file can be made there.
  Dump(const Run& run, const traces::TraceInfo& trace, const std::string& trace_sha256,
       const std::string& spool_folder);
  ~Dump();
  Dump(Dump&&) noexcept;

  /// What a run recorded of a layer; then, once, how that was measured.
  void add(int64_t layer, const LayerRecord& record);
  void add(int64_t layer, const LayerMetrics& metrics);

  /// Writes all that was added to a temporary file beside `path`, and needs no open file from then on. Nothing can
  /// be added any more. Throws IoError.
  void prepare(const std::string& path);
  /// Gives it its name.
  void commit();

 private:
  class Spool;

  template <class Number>
  void append(int64_t layer, const char* tensor, std::vector<int64_t> shape, std::span<const Number> numbers);
  void add_choices(int64_t layer, const char* tensor, const std::vector<StepRecord>& steps,
                   std::vector<int64_t> StepRecord::*choices);
  void add_merges(int64_t layer, const std::vector<HeadMerge>& merges);

  traces::SafetensorsWriter::Strings metadata_;
  LayerShape shape_;
  int64_t trace_layers_;
  bool evicts_;                  // the policy's host chooses in decoding, too
  bool merges_;                  // those who leave merge
  std::vector<int64_t> layers_;  // added; said in the metadata if they are not all
  std::vector<traces::TensorDeclaration> tensors_;
  std::unique_ptr<Spool> spool_;
  std::unique_ptr<traces::SafetensorsWriter> writer_;
};

}  // namespace kvbound::sim
