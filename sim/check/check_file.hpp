// A file of a kernel's inputs and results, for `check`: safetensors or NumPy's .npz. Tensors are asked for by
// name, with dimensions that tensors share by name; what does not fit is refused in one line.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <kvbound/sim/diff/claims/claims.hpp>
#include <kvbound/traces/metadata_fields.hpp>
#include <kvbound/traces/tensor_file.hpp>

namespace kvbound::sim {

/// A dimension of a tensor: as long as it is in the first tensor that has it, or of a known length.
struct Dimension {
  Dimension(const char* name_) : name(name_) {}
  Dimension(const char* name_, int64_t length_) : name(name_), length(length_) {}

  std::string name;
  std::optional<int64_t> length = {};
};
using Dimensions = std::vector<Dimension>;

class CheckFile {
 public:
  /// options  of the command line, which go before the file's metadata
  /// throws   TraceError if this is neither a safetensors file nor an .npz; IoError
  CheckFile(const std::string& path, int64_t header_limit, const std::map<std::string, std::string>& options);
  /// Of tensors wherever they are.
  CheckFile(std::unique_ptr<traces::TensorFile> tensors, const std::map<std::string, std::string>& options);

  const std::string& path() const { return tensors_->path(); }
  const traces::TensorFile& tensors() const { return *tensors_; }
  /// The options: those of the command line, and of the others the file's.
  traces::MetadataFields options() const { return traces::MetadataFields(options_); }

  /// Whether the file has the tensor.
  bool has(const std::string& name) const { return tensors_->find(name) != nullptr; }
  /// A tensor that must be there, of a type among F64, F32, F16 and BF16; of I64 and I32; of any type.
  ///
  /// throws  TraceError if it is missing, or of another type or shape
  const traces::TensorEntry& real(const std::string& name, const Dimensions& shape);
  const traces::TensorEntry& integral(const std::string& name, const Dimensions& shape);
  const traces::TensorEntry& any(const std::string& name, const Dimensions& shape);
  /// The length of a dimension of a tensor that was asked for.
  int64_t length(const std::string& dimension) const { return lengths_.at(dimension).first; }

  /// All numbers. Those of a claim may be NaN or infinite.
  RealClaim claim(const traces::TensorEntry& entry) const;
  std::vector<int64_t> integers(const traces::TensorEntry& entry) const;
  /// The same of a tensor of offsets, which must ascend from 0 to at most `most`, or end there exactly.
  std::vector<int64_t> offsets(const std::string& name, const Dimensions& shape, int64_t most,
                               bool exactly = true);

  [[noreturn]] void refuse(const traces::TensorEntry& entry, const std::string& field,
                           const std::string& problem) const;
  /// Throws TraceError for tensors and metadata that are known to change what attention computes,
  /// and that no check knows.
  void refuse_unsupported() const;
  /// Names of the file's tensors and metadata that were not asked for, in ascending order.
  std::vector<std::string> not_read(const std::set<std::string>& known_options) const;

 private:
  const traces::TensorEntry& find(const std::string& name);
  void require_shape(const traces::TensorEntry& entry, const Dimensions& shape);
  void require_plausible(const traces::TensorEntry& entry) const;

  std::unique_ptr<traces::TensorFile> tensors_;
  traces::Metadata options_;
  std::set<std::string> read_;
  std::map<std::string, std::pair<int64_t, std::string>> lengths_;  // and the tensor that each is from
};

}  // namespace kvbound::sim
