#include "given_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>

#include <kvbound/reference/core/error.hpp>

#include "messages.hpp"
#include "metadata_fields.hpp"
#include "number_in.hpp"
#include "sha256.hpp"

namespace kvbound::traces {
namespace {

constexpr const char* kFormat = "kvbound-given";
constexpr const char* kAlwaysKept = "always_kept";
constexpr std::array kTensors{"kept", "kept_offsets", "score", "head_score"};
constexpr const char* kExpected =
    "layers.{l}.kept and layers.{l}.kept_offsets, or layers.{l}.score, layers.{l}.head_score and always_kept";

std::string given_tensor(int64_t layer, const char* tensor) {
  return "layers." + std::to_string(layer) + "." + tensor;
}

// The layer of a name layers.{l}.{tensor}, if the tensor is one of those that a layer may have.
std::optional<int64_t> layer_of(const std::string& name) {
  const size_t begin = std::string_view("layers.").size(), dot = name.find('.', begin);
  if (!name.starts_with("layers.") || dot == std::string::npos) return std::nullopt;
  const auto layer = number_in<int64_t>(name.substr(begin, dot - begin));
  const auto is_it = [&](const char* tensor) { return given_tensor(*layer, tensor) == name; };
  return layer && *layer >= 0 && std::ranges::any_of(kTensors, is_it) ? layer : std::nullopt;
}

[[noreturn]] void refuse(const std::string& path, const TensorEntry& entry, const std::string& problem) {
  throw TraceError(path, entry.header_offset, printable(entry.name), problem);
}

}  // namespace

GivenFile::GivenFile(const std::string& path, const GivenSubject& subject)
    : file_(std::make_unique<SafetensorsFile>(path)), subject_(subject) {
  const MetadataFields fields(file_->metadata());
  fields.require("format", kFormat);
  fields.require("version", "1");
  if (fields.text(subject.field) != subject.id)
    fields.refuse(subject.field, in_quotes(subject.id) + ", " + subject.what);
  if (fields.has("name")) name_ = fields.text("name");
  for (const TensorEntry& entry : file_->tensors()) check_name(entry);
  keeps_ = !subject.wanted.empty() && find(subject.wanted.front(), "kept");
  for (const int64_t layer : subject.wanted) check_layer(layer);
  const TensorEntry* always_kept = file_->find(kAlwaysKept);
  if (always_kept && keeps_) refuse(path, *always_kept, "goes with scores; this file has kept sets");
  if (always_kept) {
    always_kept_ = positions_of(*always_kept);
    require_ascending(*always_kept, 0, always_kept_);
  }
  if (!keeps_) return;
  int64_t whole = 0;
  for (const int64_t layer : subject.wanted) whole += offsets_of(layer).back() / subject.shape.kv_heads;
  layer_entries_.assign(subject.layers, whole / std::ssize(subject.wanted));
  for (const int64_t layer : subject.wanted)
    layer_entries_[layer] = offsets_of(layer).back() / subject.shape.kv_heads;
}

std::string GivenFile::sha256() const {
  const std::array files{&file_->file()};
  return sha256_of(files, {});
}

const TensorEntry* GivenFile::find(int64_t layer, const char* tensor) const {
  return file_->find(given_tensor(layer, tensor));
}

const TensorEntry& GivenFile::require(int64_t layer, const char* tensor) const {
  if (const TensorEntry* found = find(layer, tensor)) return *found;
  throw TraceError(path(), -1, given_tensor(layer, tensor), std::string("is missing; expected ") + kExpected);
}

void GivenFile::check_name(const TensorEntry& entry) const {
  if (entry.name == kAlwaysKept) return;
  const auto layer = layer_of(entry.name);
  if (!layer) refuse(path(), entry, std::string("no tensor of such a file; expected ") + kExpected);
  if (*layer >= subject_.layers) {
    refuse(path(), entry,
           "expected layers 0 to " + std::to_string(subject_.layers - 1) + ", which the trace or model has");
  }
}

// Everything but the scores and positions.
void GivenFile::check_layer(int64_t layer) {
  const LayerShape& shape = subject_.shape;
  for (const char* other : {keeps_ ? "score" : "kept", keeps_ ? "head_score" : "kept_offsets"}) {
    if (const TensorEntry* entry = find(layer, other)) {
      refuse(path(), *entry,
             keeps_ ? "a file has kept sets or scores; this one has kept sets"
                    : "a file has kept sets or scores; this one has scores");
    }
  }
  if (keeps_) {
    offsets_of(layer);
    return;
  }
  require_scores(require(layer, "score"), shape.kv_heads, "[kv_heads, prompt_tokens]");
  if (const TensorEntry* entry = find(layer, "head_score"))
    require_scores(*entry, shape.query_heads, "[query_heads, prompt_tokens]");
}

void GivenFile::require_shape(const TensorEntry& entry, const std::vector<int64_t>& shape,
                              const char* meaning) const {
  if (entry.shape == shape) return;
  refuse(path(), entry,
         "the shape is " + shape_text(entry.shape) + "; expected " + meaning + " = " + shape_text(shape));
}

void GivenFile::require_scores(const TensorEntry& entry, int64_t rows, const char* meaning) const {
  if (entry.dtype != Dtype::f64 && entry.dtype != Dtype::f32)
    refuse(path(), entry, "the type is " + std::string(kvbound::name(entry.dtype)) + "; expected F64 or F32");
  require_shape(entry, {rows, subject_.prompt_tokens}, meaning);
}

// A list of integers.
std::vector<int64_t> GivenFile::positions_of(const TensorEntry& entry) const {
  if (entry.dtype != Dtype::i64)
    refuse(path(), entry, "the type is " + std::string(kvbound::name(entry.dtype)) + "; expected I64");
  if (entry.shape.size() != 1)
    refuse(path(), entry, "the shape is " + shape_text(entry.shape) + "; expected one dimension");
  std::vector<int64_t> numbers(entry.elements);
  file_->read(entry, 0, std::span(numbers));
  return numbers;
}

// first: where in the tensor the positions begin
void GivenFile::require_ascending(const TensorEntry& entry, int64_t first,
                                  std::span<const int64_t> positions) const {
  for (int64_t i = 0; i < std::ssize(positions); ++i) {
    const std::string element =
        "element " + std::to_string(first + i) + " is " + std::to_string(positions[i]);
    if (positions[i] < 0 || positions[i] >= subject_.prompt_tokens) {
      refuse(path(), entry,
             element + "; expected a position from 0 to " + std::to_string(subject_.prompt_tokens - 1));
    }
    if (i > 0 && positions[i] <= positions[i - 1])
      refuse(path(), entry,
             element + " and follows " + std::to_string(positions[i - 1]) + "; expected ascending positions");
  }
}

std::vector<int64_t> GivenFile::offsets_of(int64_t layer) const {
  const TensorEntry& kept = require(layer, "kept");
  const TensorEntry& entry = require(layer, "kept_offsets");
  if (kept.dtype != Dtype::i64 || kept.shape.size() != 1) positions_of(kept);  // which throws
  std::vector<int64_t> offsets = positions_of(entry);
  require_shape(entry, {subject_.shape.kv_heads + 1}, "[kv_heads + 1]");
  const bool ascend = std::ranges::adjacent_find(offsets, std::greater_equal()) == offsets.end();
  if (offsets.front() == 0 && offsets.back() == kept.elements && ascend) return offsets;
  refuse(path(), entry,
         "is " + printable(shape_text(offsets)) + "; expected to ascend from 0 to " +
             std::to_string(kept.elements) + ", the length of " + kept.name +
             ": each KV head keeps an entry");
}

Matrix GivenFile::scores_of(const TensorEntry& entry) const {
  Matrix scores(entry.shape[0], entry.shape[1]);
  file_->read(entry, 0, std::span(scores.data(), static_cast<size_t>(entry.elements)));
  constexpr double kMost = std::numeric_limits<float>::max();
  for (int64_t i = 0; i < entry.elements; ++i) {
    const double score = scores.data()[i];
    if (std::abs(score) <= kMost) continue;
    refuse(path(), entry,
           "element " + std::to_string(i) + " is " + std::to_string(score) +
               "; expected a number within single precision, in which devices compute");
  }
  return scores;
}

std::shared_ptr<const GivenLayer> GivenFile::read_layer(int64_t layer) const {
  GivenLayer result;
  if (keeps_) {
    const TensorEntry& entry = require(layer, "kept");
    const std::vector<int64_t> offsets = offsets_of(layer), all = positions_of(entry);
    for (size_t g = 0; g + 1 < offsets.size(); ++g) {
      result.kept.emplace_back(all.begin() + offsets[g], all.begin() + offsets[g + 1]);
      require_ascending(entry, offsets[g], result.kept.back());
    }
  } else {
    result.always_kept = always_kept_;
    result.score = scores_of(require(layer, "score"));
    if (const TensorEntry* entry = find(layer, "head_score")) result.head_score = scores_of(*entry);
  }
  return std::make_shared<const GivenLayer>(std::move(result));
}

GivenSource::GivenSource(const std::string& path) : path_(path) {
  namespace fs = std::filesystem;
  std::error_code error;
  is_folder_ = fs::is_directory(path, error);
  if (!is_folder_) return;
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::ranges::sort(files);
  for (const std::string& file : files) {
    const SafetensorsFile opened(file);
    const auto& strings = opened.metadata().strings;
    const auto format = strings.find("format");
    if (format == strings.end() || format->second != kFormat) continue;
    for (const char* field : {"trace_sha256", "task_id"}) {
      if (const auto id = strings.find(field); id != strings.end())
        found_[{field, id->second}].push_back(file);
    }
  }
}

GivenFile GivenSource::open(const GivenSubject& subject) const {
  if (!is_folder_) return GivenFile(path_, subject);
  const auto found = found_.find({subject.field, subject.id});
  if (found == found_.end()) {
    throw TraceError(path_, -1, "",
                     std::string("the folder has no *.safetensors of the format ") + kFormat + " whose " +
                         subject.field + " is " + in_quotes(subject.id) + ", " + subject.what);
  }
  if (found->second.size() > 1) {
    throw TraceError(path_, -1, "",
                     "the folder has several files whose " + subject.field + " is " + in_quotes(subject.id) +
                         ": " + printable_path(found->second[0]) + ", " + printable_path(found->second[1]));
  }
  return GivenFile(found->second.front(), subject);
}

}  // namespace kvbound::traces
