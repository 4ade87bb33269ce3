#include "shards.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <vector>

#include <kvbound/reference/core/error.hpp>

#include "json_field.hpp"
#include "messages.hpp"
#include "sha256.hpp"

namespace kvbound::traces {

namespace {

constexpr std::string_view kIndexSuffix = ".index.json";

Json read_index(const InputFile& file, int64_t limit) {
  if (file.size() > limit) {
    throw TraceError(file.path(), -1, "index",
                     "has " + std::to_string(file.size()) + " bytes; the limit is " + std::to_string(limit) +
                         " (raise it with --header-limit)");
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text, "index");
  return parse_strict_json(file.path(), 0, "index", text);
}

/// The strings of the index's "metadata"; values of other types, such as "total_size", are ignored.
Metadata index_metadata(const JsonField& index) {
  Metadata metadata{index.path(), -1, {}};
  const auto json = index.find("metadata");
  if (!json) return metadata;
  metadata.offset = json->offset();
  for (const auto& [key, value] : json->members()) {
    if (value.is_text()) metadata.strings.emplace(key, value.any_text());
  }
  return metadata;
}

/// Whether a name is that of a file in the index's own folder, and printable.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

/// A map from tensor to the name of its shard.
std::map<std::string, std::string> weight_map(const JsonField& index) {
  const JsonField json = index.member("weight_map");
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : json.members()) {
    if (!shard.is_text() || !is_plain_file_name(shard.any_text()))
      shard.expected("the name of a file beside the index");
    shards.emplace(tensor, shard.any_text());
  }
  if (shards.empty()) json.refuse("is an object without entries; expected an object from tensor to file");
  return shards;
}

bool describes_a_trace(const Metadata& metadata) {
  const auto format = metadata.strings.find("format");
  return format != metadata.strings.end() && format->second == "kvbound-trace";
}

// A folder is no trace, but may hold one.
void refuse_folder(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return;
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kIndexSuffix) || name.ends_with(".safetensors")) found.insert(name);
  }
  throw TraceError(path, -1, "",
                   "is a directory; expected a safetensors file or the index of its shards, *" +
                       std::string(kIndexSuffix) +
                       (found.empty() ? "" : "; it holds " + printable(*found.begin())));
}

void require_agreement(const Metadata& first, const Metadata& second) {
  for (const auto& [key, value] : second.strings) {
    const auto found = first.strings.find(key);
    if (found == first.strings.end() || found->second == value) continue;
    throw TraceError(second.path, second.offset, "__metadata__." + printable(key),
                     "is " + in_quotes(value) + ", but " + without_middle(first.path) + " says " +
                         in_quotes(found->second));
  }
}

}  // namespace

ShardSet::ShardSet(const std::string& path, int64_t header_limit, Kind kind) : path_(path) {
  if (kind == Kind::trace) refuse_folder(path);
  if (path.ends_with(kIndexSuffix)) {
    open_shards(header_limit, kind);
    return;
  }
  const SafetensorsFile& file = files_.emplace_back(path, header_limit);
  metadata_ = file.metadata();
  for (const TensorEntry& entry : file.tensors()) tensors_.emplace(entry.name, StoredTensor{&file, &entry});
}

void ShardSet::open_shards(int64_t header_limit, Kind kind) {
  index_ = std::make_unique<InputFile>(path_);
  const Json json = read_index(*index_, header_limit);
  const JsonField index(path_, "", json);
  const std::map<std::string, std::string> shard_of = weight_map(index);

  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);

  metadata_ = index_metadata(index);
  for (const std::string& shard : shards) {
    const auto shard_path = std::filesystem::path(path_).parent_path() / shard;
    const SafetensorsFile& file = files_.emplace_back(shard_path.string(), header_limit);
    add_tensors(file, shard_of, kind);
    if (!describes_a_trace(file.metadata())) continue;
    if (describes_a_trace(metadata_)) {
      require_agreement(metadata_, file.metadata());
    } else {
      metadata_ = file.metadata();
    }
  }
  if (kind == Kind::checkpoint) return;
  for (const auto& [tensor, shard] : shard_of) {
    if (!find(tensor)) {
      throw TraceError(path_, -1, "weight_map." + printable(tensor),
                       "is " + printable_path(shard) + ", which lacks this tensor");
    }
  }
}

void ShardSet::add_tensors(const SafetensorsFile& file, const std::map<std::string, std::string>& shard_of,
                           Kind kind) {
  const std::string shard = std::filesystem::path(file.path()).filename().string();
  for (const TensorEntry& entry : file.tensors()) {
    const auto mapped = shard_of.find(entry.name);
    const bool as_mapped = mapped != shard_of.end() && mapped->second == shard;
    if (!as_mapped && kind == Kind::trace) {
      throw TraceError(file.path(), entry.header_offset, printable(entry.name),
                       mapped == shard_of.end()
                           ? "the index does not list this tensor"
                           : "the index puts this tensor into " + printable_path(mapped->second));
    }
    const auto [place, is_new] = tensors_.emplace(entry.name, StoredTensor{&file, &entry});
    if (is_new) continue;
    const std::string& other = place->second.file->path();
    if (as_mapped) {
      place->second = {&file, &entry};
    } else if (mapped == shard_of.end() || std::filesystem::path(other).filename() != mapped->second) {
      throw TraceError(file.path(), entry.header_offset, printable(entry.name),
                       "is in " + without_middle(other) + ", too, and the index names neither");
    }
  }
}

std::vector<std::string> ShardSet::paths() const {
  std::vector<std::string> paths;
  if (index_) paths.push_back(path_);
  for (const SafetensorsFile& file : files_) paths.push_back(file.path());
  return paths;
}

StoredTensor ShardSet::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? StoredTensor{} : found->second;
}

std::string ShardSet::sha256(const std::function<void(int64_t, int64_t)>& progress) const {
  std::vector<const InputFile*> inputs;
  if (index_) inputs.push_back(index_.get());
  for (const SafetensorsFile& file : files_) inputs.push_back(&file.file());
  return sha256_of(inputs, progress);
}

}  // namespace kvbound::traces
