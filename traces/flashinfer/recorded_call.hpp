// One call of a FlashInfer function as level-10 logging records it: a folder of its own with
//
//     metadata.jsonl         one JSON object per line; the last one is the most complete
//     inputs.safetensors     the tensors among the arguments: arg_0, arg_1, ... by position, kwarg_NAME by
//                            name, and KEY__0, KEY__1, ... where an argument is a tuple
//     outputs.safetensors    result, or result_0, result_1, ... of a tuple; absent if the call did not finish
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/traces/json_field.hpp>
#include <kvbound/traces/safetensors.hpp>

#include "python_signature.hpp"

namespace kvbound::traces {

/// What a parameter of a recorded call was given, or has by default.
struct Argument {
  std::string field;  ///< its place in the metadata, for messages
  Json value;         ///< Python's None is null; of a tensor its description
  std::vector<std::string>
      tensors;  ///< names in inputs.safetensors: of one tensor, or of all items of a tuple

  bool is_none() const;
  std::optional<double> number() const;
  std::optional<bool> truth() const;  ///< of 0 and 1, too, as Python has it
};

/// The argument's value for messages: as the JSON value's description has it, or "a tensor".
std::string description(const Argument& argument);

class RecordedCall {
 public:
  /// Reads the metadata of a call. Throws TraceError, naming file, byte and field, for metadata that are not
  /// as FlashInfer writes them, that belong to another folder, or that are a symbolic link; IoError.
  explicit RecordedCall(const std::string& folder);

  const std::string& folder() const { return folder_; }
  std::string name() const;  ///< the folder's own name

  const std::string& function() const {
    return function_;
  }  ///< with its class: BatchDecodeWithPagedKVCacheWrapper.run
  const std::string& status() const { return status_; }  ///< "completed", or what FlashInfer last said of it
  bool in_cuda_graph() const { return in_cuda_graph_; }
  const std::string& timestamp() const { return timestamp_; }
  const std::string& version() const { return version_; }  ///< of FlashInfer
  /// Whether both are methods of one object: the same process, class and identity.
  bool same_object(const RecordedCall& other) const;

  /// The argument of a parameter by its name (of given()): as it was given, by name or by position, or
  /// its default. None for a parameter that the function does not have. Throws TraceError if it was not
  /// given and has no default.
  Argument argument(const std::string& parameter) const;
  /// The names of all parameters that were given; of positions without a name, arg_0 and so on.
  std::vector<std::string> given() const;

  /// Opens inputs.safetensors and outputs.safetensors. Throws TraceError for one that is missing, a symbolic
  /// link, in PyTorch's format, or not well-formed.
  std::unique_ptr<SafetensorsFile> inputs() const { return open("inputs"); }
  std::unique_ptr<SafetensorsFile> outputs() const;
  /// The files that exist of these two and metadata.jsonl.
  std::vector<std::string> paths() const;

  /// Throws TraceError of the metadata.
  [[noreturn]] void refuse(const std::string& field, const std::string& problem) const;
  [[noreturn]] void refuse(const Argument& argument, const std::string& problem) const;

 private:
  void read_fields();
  const std::vector<PythonParameter>& parameters() const;
  JsonField record() const { return {metadata_path_, "", metadata_}; }
  std::string text(const char* field) const;
  std::unique_ptr<SafetensorsFile> open(const std::string& kind) const;
  std::optional<Argument> given_as(const std::string& key) const;
  Argument default_of(const PythonParameter& parameter) const;

  std::string folder_, metadata_path_;
  Json metadata_;
  std::string function_, status_, timestamp_, version_;
  bool in_cuda_graph_ = false;
  int64_t process_ = 0;
  std::optional<int64_t> object_;
  std::vector<std::string> tensors_;                        // names of the tensors among the arguments
  std::optional<std::vector<PythonParameter>> parameters_;  // none: the signature cannot be read
};

}  // namespace kvbound::traces
