#include "gguf.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <utility>

#include <kvbound/reference/core/error.hpp>

#include "../messages.hpp"
#include "binary_reader.hpp"

namespace kvbound::traces {
namespace {

constexpr std::string_view kMagic = "GGUF";
// Of a file with holes, which may be larger than any disk: what is read piece by piece, or kept.
constexpr int64_t kMostTextBytes = int64_t{1} << 28;  // of all keys and values; tokenizers have some 10^7
constexpr int64_t kMostPieces = int64_t{1} << 22;     // texts and arrays in arrays; tokenizers have some 10^6
constexpr int64_t kMostKept = int64_t{1} << 20;  // metadata entries, tensors, items of an array that is read
constexpr int64_t kMostNameBytes = 256;
constexpr int64_t kMostDimensions = 4;
constexpr int kMostArrayLevels = 8;
constexpr int64_t kLeastTextBytes = 8, kLeastArrayBytes = 4 + 8;
constexpr int64_t kLeastEntryBytes = 8 + 4 + 1;  // of a metadata entry
constexpr int64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;
constexpr int64_t kUsualAlignment = 32, kMostAlignment = int64_t{1} << 20;

// The types of metadata values, by their numbers, and the bytes of each; 0: of several.
enum class ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
constexpr std::array<int64_t, 13> kValueBytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

int64_t round_up(int64_t number, int64_t unit) { return (number + unit - 1) / unit * unit; }

// Nullopt if one of them is 0 or the product is not below 2^63.
std::optional<int64_t> product(const std::vector<uint64_t>& dimensions) {
  int64_t elements = 1;
  for (const uint64_t dimension : dimensions) {
    if (dimension == 0 || !std::in_range<int64_t>(dimension) ||
        __builtin_mul_overflow(elements, static_cast<int64_t>(dimension), &elements)) {
      return std::nullopt;
    }
  }
  return elements;
}

std::string dimensions_text(const std::vector<uint64_t>& dimensions) {
  std::string text;
  for (const uint64_t dimension : dimensions)
    (text += text.empty() ? "[" : ", ") += std::to_string(dimension);
  return text + "]";
}

}  // namespace

int64_t GgufTensor::rows() const {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows;
}

namespace {

[[noreturn]] void refuse_number(const BinaryReader& reader, const std::string& field, const char* things,
                                int64_t most) {
  reader.refuse(reader.offset(), field,
                std::string("has more ") + things + " than any model: more than " + std::to_string(most));
}

// A number of things that take at least so many bytes each, which is not above kMostKept.
int64_t count_kept(BinaryReader& reader, const char* things, int64_t least_bytes) {
  const std::string field = std::string("number of ") + things;
  const int64_t at = reader.offset(), count = reader.count(field, least_bytes);
  if (count > kMostKept)
    reader.refuse(at, field,
                  "is " + std::to_string(count) + "; expected at most " + std::to_string(kMostKept));
  return count;
}

// Passes over the items, and counts those that are passed over one by one. Arrays may be nested in
// each other, `levels` deep.
GgufArray read_array(BinaryReader& reader, const std::string& field, int levels, int64_t& pieces) {
  const int64_t at = reader.offset();
  const auto type = reader.number<uint32_t>(field);
  if (type >= kValueBytes.size()) {
    reader.refuse(at, field, "has items of type " + std::to_string(type) + ", which GGUF does not have");
  }
  if (levels == 0) {
    reader.refuse(at, field, "has arrays nested deeper than " + std::to_string(kMostArrayLevels) + " levels");
  }
  const bool texts = type == static_cast<uint32_t>(ValueType::string);
  const int64_t least = texts ? kLeastTextBytes : kValueBytes[type] ? kValueBytes[type] : kLeastArrayBytes;
  const int64_t items = reader.count(field, least);
  const GgufArray array{type, items, reader.offset()};
  if (kValueBytes[type] != 0) {
    reader.skip(items * kValueBytes[type], field);
    return array;
  }
  pieces += items;
  if (pieces > kMostPieces) refuse_number(reader, field, "texts and arrays in its metadata", kMostPieces);
  for (int64_t i = 0; i < items; ++i) {
    if (texts) {
      reader.skip(reader.count(field, 1), field);
    } else {
      read_array(reader, field, levels - 1, pieces);
    }
  }
  return array;
}

// A metadata value of the given type; counts the pieces of arrays.
GgufValue read_value(BinaryReader& reader, const std::string& field, uint32_t type, int64_t& pieces) {
  const int64_t at = reader.offset();
  if (type >= kValueBytes.size()) {
    reader.refuse(at, field, "has type " + std::to_string(type) + ", which GGUF does not have");
  }
  const auto integer = [&](auto number) -> GgufValue {
    if (std::in_range<int64_t>(number)) return {static_cast<int64_t>(number), at};
    return {static_cast<uint64_t>(number), at};
  };
  const auto truth = [&] {
    const auto number = reader.number<uint8_t>(field);
    if (number > 1) {
      reader.refuse(at, field, "is " + std::to_string(number) + "; expected a truth value, 0 or 1");
    }
    return number == 1;
  };
  switch (static_cast<ValueType>(type)) {
    case ValueType::u8:
      return integer(reader.number<uint8_t>(field));
    case ValueType::i8:
      return integer(reader.number<int8_t>(field));
    case ValueType::u16:
      return integer(reader.number<uint16_t>(field));
    case ValueType::i16:
      return integer(reader.number<int16_t>(field));
    case ValueType::u32:
      return integer(reader.number<uint32_t>(field));
    case ValueType::i32:
      return integer(reader.number<int32_t>(field));
    case ValueType::u64:
      return integer(reader.number<uint64_t>(field));
    case ValueType::i64:
      return integer(reader.number<int64_t>(field));
    case ValueType::f32:
      return {double{reader.number<float>(field)}, at};
    case ValueType::f64:
      return {reader.number<double>(field), at};
    case ValueType::boolean:
      return {truth(), at};
    case ValueType::string:
      return {reader.text(field, kMostTextBytes), at};
    case ValueType::array:
      return {read_array(reader, field, kMostArrayLevels, pieces), at};
  }
  __builtin_unreachable();
}

// The bytes of a tensor that has one of kWeightFormats.
int64_t bytes_of(const BinaryReader& reader, const GgufTensor& tensor, int64_t elements) {
  const WeightFormatTraits& own = traits(*tensor.format);
  const std::string field = printable(tensor.name);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(elements / own.block_elements, own.block_bytes, &bytes)) {
    reader.refuse(tensor.header_offset, field, "has more bytes than 2^63 - 1, which no tensor can have");
  }
  if (tensor.cols() % own.block_elements == 0) return bytes;
  reader.refuse(tensor.header_offset, field,
                "has rows of " + std::to_string(tensor.cols()) + " numbers; " + std::string(own.name) +
                    " has blocks of " + std::to_string(own.block_elements));
}

// A tensor whose data begin at the offset that the file says.
GgufTensor read_tensor(BinaryReader& reader, int64_t index) {
  GgufTensor tensor;
  tensor.name = reader.text("name of tensor " + std::to_string(index), kMostNameBytes);
  const std::string field = printable(tensor.name);
  const int64_t at = tensor.header_offset = reader.offset();
  const auto rank = reader.number<uint32_t>(field);
  if (rank < 1 || rank > kMostDimensions) {
    reader.refuse(at, field, "has " + std::to_string(rank) + " dimensions; expected 1 to 4");
  }
  std::vector<uint64_t> dimensions(rank);
  for (uint64_t& dimension : dimensions) dimension = reader.number<uint64_t>(field);
  tensor.type = reader.number<uint32_t>(field);
  tensor.format = weight_format_of_ggml(tensor.type);
  const std::optional<int64_t> elements = product(dimensions);
  if (!elements) {
    reader.refuse(at, field, "has dimensions " + dimensions_text(dimensions) + ", which no tensor can have");
  }
  tensor.shape.assign(dimensions.rbegin(), dimensions.rend());
  if (tensor.format) tensor.bytes = bytes_of(reader, tensor, *elements);
  const int64_t offset_at = reader.offset();
  const auto offset = reader.number<uint64_t>(field);
  if (!std::in_range<int64_t>(offset))
    reader.refuse(offset_at, field, "has offset " + std::to_string(offset));
  tensor.begin = static_cast<int64_t>(offset);
  return tensor;
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : file_(path) {
  BinaryReader reader(file_);
  std::array<char, 4> magic{};
  reader.read(magic, "magic");
  if (std::string_view(magic.data(), magic.size()) != kMagic) {
    reader.refuse(0, "magic", "is " + in_quotes({magic.data(), magic.size()}) + "; expected \"GGUF\"");
  }
  const auto version = reader.number<uint32_t>("version");
  if (version != 2 && version != 3) {
    const bool swapped = version != 0 && (version & 0xffffff) == 0;
    reader.refuse(4, "version",
                  swapped ? "the file is big-endian; expected little-endian"
                          : "is " + std::to_string(version) + "; expected 2 or 3");
  }
  const int64_t tensors = count_kept(reader, "tensors", kLeastTensorBytes);
  const int64_t entries = count_kept(reader, "metadata entries", kLeastEntryBytes);
  read_metadata(reader, entries);
  read_tensors(reader, tensors);
  place_tensors(round_up(reader.offset(), alignment()));
}

void GgufFile::read_metadata(BinaryReader& reader, int64_t count) {
  int64_t pieces = 0, text_bytes = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = reader.offset();
    const std::string key = reader.text("key of metadata entry " + std::to_string(i), int64_t{1} << 16);
    const std::string field = printable(key);
    const auto type = reader.number<uint32_t>(field);
    const auto [entry, is_new] = metadata_.emplace(key, read_value(reader, field, type, pieces));
    if (!is_new) reader.refuse(at, field, "is there twice");
    const auto* text = std::get_if<std::string>(&entry->second.value);
    text_bytes += std::ssize(key) + (text ? std::ssize(*text) : 0);
    if (text_bytes > kMostTextBytes)
      refuse_number(reader, field, "bytes of text in its metadata", kMostTextBytes);
  }
}

int64_t GgufFile::alignment() const {
  const auto found = metadata_.find("general.alignment");
  if (found == metadata_.end()) return kUsualAlignment;
  const auto* alignment = std::get_if<int64_t>(&found->second.value);
  if (alignment && *alignment >= 8 && *alignment <= kMostAlignment &&
      std::has_single_bit(uint64_t(*alignment))) {
    return *alignment;
  }
  throw TraceError(path(), found->second.offset, "general.alignment", "is not a power of two from 8 to 2^20");
}

void GgufFile::read_tensors(BinaryReader& reader, int64_t count) {
  tensors_.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = reader.offset();
    tensors_.push_back(read_tensor(reader, i));
    const std::string& name = tensors_.back().name;
    if (!by_name_.emplace(name, &tensors_.back()).second)
      reader.refuse(at, printable(name), "is there twice");
  }
}

// Checks that the tensors' data follow each other, each at the next multiple of the
// alignment, within the file.
void GgufFile::place_tensors(int64_t data) {
  int64_t next = 0;  // from `data` on
  for (size_t i = 0; i < tensors_.size(); ++i) {
    GgufTensor& tensor = tensors_[i];
    const std::string field = printable(tensor.name);
    if (tensor.begin != next) {
      throw TraceError(path(), -1, field,
                       "has offset " + std::to_string(tensor.begin) + "; expected " + std::to_string(next) +
                           ", behind the tensor before");
    }
    const int64_t left = file_.size() - data - next;
    if (!tensor.format) {
      tensor.bytes = std::max<int64_t>(0, i + 1 < tensors_.size() ? tensors_[i + 1].begin - next : left);
    }
    if (tensor.bytes > left) {
      throw TraceError(path(), -1, field,
                       "ends behind the file's " + std::to_string(file_.size()) + " bytes");
    }
    tensor.begin += data;
    next = round_up(next + tensor.bytes, alignment());
  }
}

std::vector<GgufValue> GgufFile::items(const std::string& key, const GgufArray& array) const {
  BinaryReader reader(file_);
  const std::string field = printable(key);
  reader.skip(array.begin, field);
  if (array.items > kMostKept) refuse_number(reader, field, "items", kMostKept);
  int64_t pieces = 0;
  std::vector<GgufValue> items;
  for (int64_t i = 0; i < array.items; ++i) items.push_back(read_value(reader, field, array.type, pieces));
  return items;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Weight GgufFile::weight(const GgufTensor& tensor) const {
  if (tensor.format) {
    return {&file_, tensor.name, *tensor.format, tensor.rows(), tensor.cols(), tensor.begin};
  }
  const std::string_view name = other_ggml_type(tensor.type);
  throw TraceError(path(), tensor.header_offset, printable(tensor.name),
                   (name.empty() ? "has type " + std::to_string(tensor.type) : "is " + std::string(name)) +
                       "; expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K");
}

}  // namespace kvbound::traces
