#include "safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include <kvbound/reference/core/error.hpp>

#include "file_format.hpp"
#include "json_field.hpp"
#include "messages.hpp"

namespace kvbound::traces {

static_assert(std::endian::native == std::endian::little, "safetensors numbers are copied as they are");

namespace {

constexpr int64_t kLengthBytes = 8;  // size of the field with the header's length

/// What a file that is no safetensors file looks like, for messages; empty if it is not recognised.
std::string other_format(std::string_view first) {
  const std::string format = apparent_format(first);
  if (format.empty()) return "";
  const bool index = format == "JSON";
  return "; this looks like " + format +
         (index ? " (the index of a sharded trace must be named *.index.json)" : "");
}

std::string read_header(const InputFile& file, int64_t limit) {
  const std::string field = "header length";
  const std::string size = std::to_string(file.size());
  if (file.size() < kLengthBytes) {
    throw TraceError(file.path(), file.size(), field,
                     file.size() == 0 ? "the file is empty; expected a safetensors file"
                                      : "the file ends after " + size + " bytes; expected at least 8");
  }
  std::array<char, kLengthBytes> prefix{};
  file.read(0, prefix, field);
  const auto length = std::bit_cast<uint64_t>(prefix);
  const std::string guess = other_format({prefix.data(), prefix.size()});
  if (length > static_cast<uint64_t>(file.size() - kLengthBytes)) {
    throw TraceError(file.path(), 0, field,
                     "is " + std::to_string(length) + ", but the file has only " + size + " bytes" + guess);
  }
  if (length > static_cast<uint64_t>(std::max<int64_t>(limit, 0))) {
    throw TraceError(file.path(), 0, field,
                     "is " + std::to_string(length) + " bytes; the limit is " + std::to_string(limit) +
                         " (raise it with --header-limit)" + guess);
  }
  std::string header(length, '\0');
  file.read(kLengthBytes, header, "header");
  return header;
}

constexpr std::array<std::string_view, 3> kEntryMembers{"dtype", "shape", "data_offsets"};

std::string safetensors_types() {
  std::string names = "a safetensors type:";
  for (const DtypeTraits& type : kDtypes) names += " " + std::string(type.name);
  return names;
}

/// One tensor's description in the header.
TensorEntry entry_of(const std::string& name, const JsonField& json, int64_t data_begin) {
  json.require_known(kEntryMembers, "a tensor");
  const JsonField dtype = json.member("dtype"), shape = json.member("shape"),
                  place = json.member("data_offsets");
  const auto known = dtype.is_text() ? dtype_named(dtype.any_text()) : std::nullopt;
  if (!known) dtype.expected(safetensors_types());
  TensorEntry result{name, *known, shape.integers(), 1, 0, 0, json.offset()};
  bool overflows = false;
  for (const int64_t dimension : result.shape) {
    overflows |= __builtin_mul_overflow(result.elements, dimension, &result.elements);
  }
  int64_t largest = 0;
  if (overflows || __builtin_mul_overflow(result.elements, std::max<int64_t>(1, size_of(*known)), &largest))
    shape.refuse(shape_text(result.shape) + " has more bytes than 2^63 - 1");
  const std::optional<int64_t> bytes = bytes_of(*known, result.elements);
  if (!bytes) {
    shape.refuse(shape_text(result.shape) + " of " + std::string(kvbound::name(*known)) +
                 " has no whole number of bytes");
  }
  result.bytes = *bytes;
  const std::vector<int64_t> ends = place.integers();
  if (ends.size() != 2) place.refuse("has " + std::to_string(ends.size()) + " items; expected 2");
  if (ends[0] > ends[1] || ends[1] - ends[0] != result.bytes) {
    place.refuse("is " + shape_text(ends) + "; shape " + shape_text(result.shape) + " of " +
                 std::string(kvbound::name(*known)) + " needs " + std::to_string(result.bytes) + " bytes");
  }
  if (__builtin_add_overflow(data_begin, ends[0], &result.begin)) place.refuse("overflows");
  return result;
}

Metadata read_metadata(const JsonField& header) {
  Metadata metadata{header.path(), -1, {}};
  const auto json = header.find("__metadata__");
  if (!json) return metadata;
  metadata.offset = json->offset();
  for (const auto& [key, value] : json->members()) metadata.strings.emplace(key, value.any_text());
  return metadata;
}

/// Requires that the tensors, sorted by position, fill data_begin..file_end exactly.
void require_contiguous(const std::string& path, const std::vector<TensorEntry>& tensors, int64_t data_begin,
                        int64_t file_end) {
  int64_t end = data_begin;
  for (const TensorEntry& tensor : tensors) {
    const int64_t size = tensor.bytes;
    if (tensor.begin != end) {
      throw TraceError(path, tensor.header_offset, printable(tensor.name) + ".data_offsets",
                       "begins at " + std::to_string(tensor.begin - data_begin) + ", which leaves " +
                           (tensor.begin > end ? "a hole" : "an overlap") + "; expected " +
                           std::to_string(end - data_begin));
    }
    if (size > file_end - end) {
      throw TraceError(path, file_end, printable(tensor.name),
                       "the file ends here, but the tensor's data fills bytes " + std::to_string(end) +
                           " to " + std::to_string(static_cast<uint64_t>(end) + static_cast<uint64_t>(size)));
    }
    end += size;
  }
  if (end != file_end) {
    throw TraceError(path, end, "",
                     std::to_string(file_end - end) + " surplus bytes follow the last tensor's data");
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path, int64_t header_limit) : file_(path) {
  const std::string text = read_header(file_, header_limit);
  const Json json = parse_strict_json(path, kLengthBytes, "header", text);
  const JsonField header(path, "", json);
  const int64_t data_begin = kLengthBytes + std::ssize(text);
  metadata_ = read_metadata(header);
  std::vector<TensorEntry> tensors;
  for (const auto& [name, entry] : header.members()) {
    if (name != "__metadata__") tensors.push_back(entry_of(name, entry, data_begin));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.elements) < std::pair(b.begin, b.elements);
  });
  require_contiguous(path, tensors, data_begin, file_.size());
  set_tensors(std::move(tensors));
}

void SafetensorsFile::read_bytes(const TensorEntry& tensor, int64_t first, std::span<char> out) const {
  file_.read(tensor.begin + first, out, printable(tensor.name));
}

}  // namespace kvbound::traces
