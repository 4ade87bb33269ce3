#include "recorded_call.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/input_file.hpp>

#include "../messages.hpp"
#include "../number_in.hpp"

namespace kvbound::traces {
namespace {

constexpr int64_t kMostMetadataBytes = int64_t{16} << 20;
constexpr JsonLimits kMetadataLimits{.levels = 40, .items = 65536, .python = true};
constexpr const char* kSaferTensors = "run FlashInfer with FLASHINFER_DUMP_SAFETENSORS=1";

std::string joined(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

bool is_there(const std::string& path) {
  return std::filesystem::exists(std::filesystem::symlink_status(path));
}

void refuse_link(const std::string& path) {
  if (!std::filesystem::is_symlink(std::filesystem::symlink_status(path))) return;
  throw TraceError(path, -1, "", "is a symbolic link; expected a file in its own folder");
}

// The last line that is not empty, as JSON. Every line before it has to be well-formed, too.
Json last_record(const std::string& path) {
  const std::string text = whole_text(path, kMostMetadataBytes);
  std::optional<Json> record;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      record = parse_strict_json(path, static_cast<int64_t>(begin), "record", line, kMetadataLimits);
    }
    begin = end + 1;
  }
  if (!record) throw TraceError(path, -1, "", "is empty; expected one JSON object per line");
  return *std::move(record);
}

// A default as Python prints it: the same value as JSON has it in the metadata.
Json::Other other(std::string text) { return {std::move(text)}; }
Json value_of_default(const std::string& text, int64_t offset) {
  const bool quoted =
      text.size() >= 2 && (text.front() == '\'' || text.front() == '"') && text.back() == text.front();
  if (quoted) return {text.substr(1, text.size() - 2), offset};
  if (text == "None") return {other("null"), offset};
  if (text == "True") return {other("true"), offset};
  if (text == "False") return {other("false"), offset};
  if (const auto number = number_in<uint64_t>(text)) return {*number, offset};
  return {other(text), offset};
}

// BatchDecodeWithPagedKVCacheWrapper.plan of FlashInfer 0.7 takes these by position, too, but its signature
// has one name for all of them.
constexpr std::string_view kUnnamedArguments = "*deprecated_positional_args";
constexpr auto kPlanArguments = std::to_array<std::string_view>(
    {"pos_encoding_mode", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type", "o_data_type",
     "data_type", "sm_scale", "rope_scale", "rope_theta", "non_blocking", "block_tables", "seq_lens",
     "fixed_split_size", "disable_split_kv", "q_len_per_req"});

std::optional<std::vector<PythonParameter>> parameters_of(const std::string& function,
                                                          const std::string& signature) {
  std::optional<std::vector<PythonParameter>> parameters = python_parameters(signature);
  const bool is_plan = function.ends_with("BatchDecodeWithPagedKVCacheWrapper.plan");
  if (!parameters || !is_plan || signature.find(kUnnamedArguments) == std::string::npos) return parameters;
  std::vector<PythonParameter> unnamed;
  for (const std::string_view name : kPlanArguments) unnamed.push_back({std::string(name), "None", true});
  const auto first_named = std::ranges::find(*parameters, false, &PythonParameter::positional);
  parameters->insert(first_named, unnamed.begin(), unnamed.end());
  return parameters;
}

// The names of the tensors that an argument holds: its own, or those of all items of a tuple.
std::vector<std::string> tensor_names(const Json& value) {
  std::vector<std::string> names;
  if (const Json* key = value.member("tensor_key"); key && key->text()) names.push_back(*key->text());
  const Json* items = value.member("items");
  for (size_t i = 0; items && items->array() && i < items->array()->size(); ++i) {
    const Json* key = (*items->array())[i].member("tensor_key");
    if (!key || !key->text()) return {};
    names.push_back(*key->text());
  }
  return names;
}

}  // namespace

bool Argument::is_none() const { return tensors.empty() && description(value) == "null"; }

std::optional<double> Argument::number() const {
  if (!tensors.empty()) return std::nullopt;
  if (value.number()) return static_cast<double>(*value.number());
  const auto* literal = std::get_if<Json::Other>(&value.value);
  return literal ? number_in<double>(literal->text) : std::nullopt;
}

std::optional<bool> Argument::truth() const {
  const std::string text = description(value);
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return std::nullopt;
}

std::string description(const Argument& argument) {
  return argument.tensors.empty() ? description(argument.value) : "a tensor";
}

RecordedCall::RecordedCall(const std::string& folder)
    : folder_(folder), metadata_path_(joined(folder, "metadata.jsonl")) {
  refuse_link(metadata_path_);
  metadata_ = last_record(metadata_path_);
  read_fields();
}

std::string RecordedCall::name() const { return std::filesystem::path(folder_).filename().string(); }

std::string RecordedCall::text(const char* field) const { return record().member(field).any_text(); }

void RecordedCall::read_fields() {
  function_ = text("function_name");
  status_ = text("execution_status");
  timestamp_ = text("timestamp");
  // The folder may have been moved as a whole, but a record that names another folder is not this call's.
  if (std::filesystem::path(text("dump_dir")).filename() != name()) {
    refuse("dump_dir", "is " + in_quotes(text("dump_dir"), kMostQuoted) + "; expected this folder, " +
                           in_quotes(name(), kMostQuoted));
  }
  process_ = record().member("process_id").integer();
  if (const auto object = record().find("self_id")) object_ = object->integer();
  const auto graph = record().find("graph_capture");
  in_cuda_graph_ = graph && graph->description() == "true";
  const Json* versions = metadata_.member("versions");
  const Json* version = versions ? versions->member("flashinfer") : nullptr;
  version_ = version && version->text() ? *version->text() : "of unknown version";
  if (const JsonField given = record().member("input_metadata"); !given.is_object())
    given.expected("an object");
  for (const JsonField& key : record().member("tensor_info").member("input_tensor_keys").items(true))
    tensors_.push_back(key.any_text());
  parameters_ = parameters_of(function_, text("function_signature"));
}

const std::vector<PythonParameter>& RecordedCall::parameters() const {
  if (parameters_) return *parameters_;
  refuse("function_signature",
         "is " + in_quotes(text("function_signature")) + "; expected a Python signature");
}

bool RecordedCall::same_object(const RecordedCall& other) const {
  const auto class_of = [](const std::string& function) { return function.substr(0, function.find('.')); };
  return object_ && object_ == other.object_ && process_ == other.process_ &&
         class_of(function_) == class_of(other.function_);
}

std::optional<Argument> RecordedCall::given_as(const std::string& key) const {
  Argument argument;
  argument.field = "input_metadata." + printable(key);
  if (std::ranges::find(tensors_, key) != tensors_.end()) {
    argument.field = "tensor " + printable(key);
    argument.tensors.push_back(key);
    return argument;
  }
  const Json* value = metadata_.member("input_metadata")->member(key);
  if (!value) return std::nullopt;
  argument.value = *value;
  argument.tensors = tensor_names(*value);
  return argument;
}

Argument RecordedCall::default_of(const PythonParameter& parameter) const {
  const Json& signature = *metadata_.member("function_signature");
  if (!parameter.otherwise) refuse("input_metadata", "has no argument " + in_quotes(parameter.name));
  return {
      "function_signature." + parameter.name, value_of_default(*parameter.otherwise, signature.offset), {}};
}

Argument RecordedCall::argument(const std::string& parameter) const {
  if (auto named = given_as("kwarg_" + parameter)) return *std::move(named);
  const auto found = std::ranges::find(parameters(), parameter, &PythonParameter::name);
  if (found == parameters().end()) {
    // A position without a name, or a parameter that the function does not have.
    return given_as(parameter).value_or(Argument{parameter, {other("null"), -1}, {}});
  }
  const auto position = std::to_string(found - parameters().begin());
  if (auto placed = found->positional ? given_as("arg_" + position) : std::nullopt) return *std::move(placed);
  return default_of(*found);
}

std::vector<std::string> RecordedCall::given() const {
  const std::vector<PythonParameter>& known = parameters();
  std::vector<std::string> keys = tensors_, names;
  for (const auto& [key, value] : *metadata_.member("input_metadata")->object()) keys.push_back(key);
  std::erase_if(keys,
                [](const std::string& key) { return key.find("__") != std::string::npos; });  // in tuples
  for (const std::string& key : keys) {
    constexpr auto kNone = std::numeric_limits<uint64_t>::max();
    const uint64_t position =
        key.starts_with("arg_") ? number_in<uint64_t>(key.substr(4)).value_or(kNone) : kNone;
    if (key.starts_with("kwarg_")) {
      names.push_back(key.substr(6));
    } else if (position < known.size() && known[position].positional) {
      names.push_back(known[position].name);
    } else {
      names.push_back(key);
    }
  }
  return names;
}

std::unique_ptr<SafetensorsFile> RecordedCall::open(const std::string& kind) const {
  if (text("tensor_format") != "safetensors") {
    refuse("tensor_format", "is " + in_quotes(text("tensor_format")) + "; " + kSaferTensors);
  }
  const std::string path = joined(folder_, kind + ".safetensors"), pickled = joined(folder_, kind + ".pt");
  if (is_there(pickled))
    throw TraceError(pickled, -1, "", std::string("is in PyTorch's format; ") + kSaferTensors);
  if (!is_there(path)) throw TraceError(path, -1, "", "is missing");
  refuse_link(path);
  return std::make_unique<SafetensorsFile>(path);
}

std::unique_ptr<SafetensorsFile> RecordedCall::outputs() const {
  if (status_ != "completed") {
    refuse("execution_status",
           "is " + in_quotes(status_) + ": the call did not finish, so that its output was not recorded");
  }
  return open("outputs");
}

std::vector<std::string> RecordedCall::paths() const {
  std::vector<std::string> paths;
  for (const char* file : {"metadata.jsonl", "inputs.safetensors", "outputs.safetensors"}) {
    if (is_there(joined(folder_, file))) paths.push_back(joined(folder_, file));
  }
  return paths;
}

void RecordedCall::refuse(const std::string& field, const std::string& problem) const {
  const Json* json = metadata_.member(field);
  throw TraceError(metadata_path_, json ? json->offset : -1, field, problem);
}

void RecordedCall::refuse(const Argument& argument, const std::string& problem) const {
  throw TraceError(metadata_path_, argument.tensors.empty() ? argument.value.offset : -1, argument.field,
                   problem);
}

}  // namespace kvbound::traces
