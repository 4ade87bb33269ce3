#include "gguf_set.hpp"

#include <array>
#include <cstdio>

#include <kvbound/reference/core/error.hpp>

#include "../messages.hpp"

namespace kvbound::traces {
namespace {

constexpr int64_t kMostParts = 99999;  // their numbers have five digits

// An integer of the metadata from 0 to `most`; `otherwise` if it is not there.
int64_t integer(const GgufFile& file, const std::string& key, int64_t most, int64_t otherwise) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) return otherwise;
  const auto* number = std::get_if<int64_t>(&found->second.value);
  if (number && 0 <= *number && *number <= most) return *number;
  throw TraceError(file.path(), found->second.offset, key,
                   "is not an integer from 0 to " + std::to_string(most));
}

// How the name of a part ends, such as "-00001-of-00003.gguf".
std::string ending(int64_t part, int64_t count) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "-%05lld-of-%05lld.gguf", static_cast<long long>(part + 1),
                static_cast<long long>(count));
  return text.data();
}

void require_split(const GgufFile& file, const std::string& key, int64_t found, int64_t expected) {
  if (found == expected) return;
  const auto entry = file.metadata().find(key);
  throw TraceError(
      file.path(), entry == file.metadata().end() ? -1 : entry->second.offset, key,
      (found < 0 ? "is missing" : "is " + std::to_string(found)) + "; expected " + std::to_string(expected));
}

}  // namespace

GgufSet::GgufSet(const std::string& path) {
  files_.emplace_back(path);
  const int64_t count = integer(first(), "split.count", kMostParts, 1);
  if (count > 1) open_parts(count);
  for (const GgufFile& file : files_) add_tensors(file);
  const auto tensors = std::ssize(tensors_);
  if (count > 1)
    require_split(first(), "split.tensors.count", integer(first(), "split.tensors.count", INT32_MAX, tensors),
                  tensors);
}

void GgufSet::open_parts(int64_t count) {
  const std::string& path = first().path();
  const int64_t own = integer(first(), "split.no", kMostParts, 0);
  if (!path.ends_with(ending(own, count))) {
    throw TraceError(path, first().metadata().at("split.count").offset, "split.count",
                     "is " + std::to_string(count) +
                         ", and the parts of a split model are found by their names; expected one "
                         "that ends in " +
                         ending(own, count));
  }
  const std::string stem = path.substr(0, path.size() - ending(own, count).size());
  if (own != 0) {
    throw TraceError(path, first().metadata().at("split.no").offset, "split.no",
                     "is " + std::to_string(own) + "; give the first part of the split model, " +
                         printable_path(stem + ending(0, count)));
  }
  for (int64_t part = 1; part < count; ++part) {
    const GgufFile& file = files_.emplace_back(stem + ending(part, count));
    require_split(file, "split.no", integer(file, "split.no", kMostParts, -1), part);
    require_split(file, "split.count", integer(file, "split.count", kMostParts, -1), count);
  }
}

void GgufSet::add_tensors(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    const auto [place, is_new] = tensors_.emplace(tensor.name, PlacedGgufTensor{&file, &tensor});
    if (is_new) continue;
    throw TraceError(file.path(), tensor.header_offset, printable(tensor.name),
                     "is in " + without_middle(place->second.file->path()) + ", too");
  }
}

PlacedGgufTensor GgufSet::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? PlacedGgufTensor{} : found->second;
}

std::vector<std::string> GgufSet::paths() const {
  std::vector<std::string> paths;
  for (const GgufFile& file : files_) paths.push_back(file.path());
  return paths;
}

}  // namespace kvbound::traces
