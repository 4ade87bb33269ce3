#include "gguf.hpp"

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
constexpr int64_t kMostTextBytes = int64_t{1}
                                   << 24;  // of a key, a name or a value; templates of chats have some 10,000
constexpr int64_t kMostNameBytes = 256;
constexpr int64_t kMostDimensions = 4;
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

// The items are passed over.
GgufArray read_array(BinaryReader& reader, const std::string& field) {
  const int64_t at = reader.offset();
  const auto type = reader.number<uint32_t>(field);
  const bool texts = type == static_cast<uint32_t>(ValueType::string);
  if (!texts && (type >= kValueBytes.size() || kValueBytes[type] == 0)) {
    reader.refuse(at, field,
                  "has items of type " + std::to_string(type) + "; expected numbers, truth values or texts");
  }
  const int64_t items = reader.count(field, texts ? 8 : kValueBytes[type]);
  if (!texts) reader.skip(items * kValueBytes[type], field);
  for (int64_t i = 0; texts && i < items; ++i) reader.text(field, kMostTextBytes);
  return {type, items};
}

// A metadata value of the given type.
GgufValue read_value(BinaryReader& reader, const std::string& field, uint32_t type) {
  const int64_t at = reader.offset();
  if (type >= kValueBytes.size()) {
    reader.refuse(at, field, "has type " + std::to_string(type) + ", which GGUF does not have");
  }
  const auto integer = [&]<class Number>(Number number) {
    if (!std::in_range<int64_t>(number))
      reader.refuse(at, field, "is " + std::to_string(number) + ", beyond 2^63 - 1");
    return static_cast<int64_t>(number);
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
      return {integer(reader.number<uint8_t>(field)), at};
    case ValueType::i8:
      return {integer(reader.number<int8_t>(field)), at};
    case ValueType::u16:
      return {integer(reader.number<uint16_t>(field)), at};
    case ValueType::i16:
      return {integer(reader.number<int16_t>(field)), at};
    case ValueType::u32:
      return {integer(reader.number<uint32_t>(field)), at};
    case ValueType::i32:
      return {integer(reader.number<int32_t>(field)), at};
    case ValueType::u64:
      return {integer(reader.number<uint64_t>(field)), at};
    case ValueType::i64:
      return {integer(reader.number<int64_t>(field)), at};
    case ValueType::f32:
      return {double{reader.number<float>(field)}, at};
    case ValueType::f64:
      return {reader.number<double>(field), at};
    case ValueType::boolean:
      return {truth(), at};
    case ValueType::string:
      return {reader.text(field, kMostTextBytes), at};
    case ValueType::array:
      return {read_array(reader, field), at};
  }
  __builtin_unreachable();
}

WeightFormat read_format(BinaryReader& reader, const std::string& field) {
  const int64_t at = reader.offset();
  const auto type = reader.number<uint32_t>(field);
  if (const std::optional<WeightFormat> format = weight_format_of_ggml(type)) return *format;
  const std::string_view name = other_ggml_type(type);
  reader.refuse(at, field,
                (name.empty() ? "has type " + std::to_string(type) : "is " + std::string(name)) +
                    "; expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K");
}

// A tensor whose data begin at the offset that the file says.
GgufTensor read_tensor(BinaryReader& reader, int64_t index) {
  GgufTensor tensor;
  tensor.name = reader.text("name of tensor " + std::to_string(index), kMostNameBytes);
  const std::string field = printable(tensor.name);
  const int64_t at = reader.offset();
  const auto rank = reader.number<uint32_t>(field);
  if (rank < 1 || rank > kMostDimensions) {
    reader.refuse(at, field, "has " + std::to_string(rank) + " dimensions; expected 1 to 4");
  }
  std::vector<uint64_t> dimensions(rank);
  for (uint64_t& dimension : dimensions) dimension = reader.number<uint64_t>(field);
  tensor.format = read_format(reader, field);
  const std::optional<int64_t> elements = product(dimensions);
  const WeightFormatTraits& own = traits(tensor.format);
  if (!elements || __builtin_mul_overflow(*elements / own.block_elements, own.block_bytes, &tensor.bytes)) {
    reader.refuse(at, field, "has dimensions " + dimensions_text(dimensions) + ", which no tensor can have");
  }
  tensor.shape.assign(dimensions.rbegin(), dimensions.rend());
  if (tensor.cols() % own.block_elements != 0) {
    reader.refuse(at, field,
                  "has rows of " + std::to_string(tensor.cols()) + " numbers; " + std::string(own.name) +
                      " has blocks of " + std::to_string(own.block_elements));
  }
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
  const int64_t tensors = reader.count("number of tensors", kLeastTensorBytes);
  const int64_t entries = reader.count("number of metadata entries", kLeastEntryBytes);
  read_metadata(reader, entries);
  read_tensors(reader, tensors);
  place_tensors(round_up(reader.offset(), alignment()));
}

void GgufFile::read_metadata(BinaryReader& reader, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = reader.offset();
    const std::string key = reader.text("key of metadata entry " + std::to_string(i), int64_t{1} << 16);
    const std::string field = printable(key);
    const auto type = reader.number<uint32_t>(field);
    if (!metadata_.emplace(key, read_value(reader, field, type)).second) {
      reader.refuse(at, field, "is there twice");
    }
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

// Checks that the tensors' data follow each other, each at the next multiple of the alignment, up to the file's end.
void GgufFile::place_tensors(int64_t data) {
  int64_t next = 0;  // from `data` on
  for (GgufTensor& tensor : tensors_) {
    const std::string field = printable(tensor.name);
    if (tensor.begin != next) {
      throw TraceError(path(), -1, field,
                       "has offset " + std::to_string(tensor.begin) + "; expected " + std::to_string(next) +
                           ", behind the tensor before");
    }
    if (data > file_.size() || tensor.bytes > file_.size() - data - next) {
      throw TraceError(path(), -1, field,
                       "ends behind the file's " + std::to_string(file_.size()) + " bytes");
    }
    tensor.begin += data;
    next = round_up(next + tensor.bytes, alignment());
  }
  if (file_.size() > data + next) {
    throw TraceError(path(), data + next, "",
                     "has " + std::to_string(file_.size() - data - next) + " bytes behind the last tensor");
  }
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Weight GgufFile::weight(const GgufTensor& tensor) const {
  return {&file_, tensor.name, tensor.format, tensor.rows(), tensor.cols(), tensor.begin};
}

}  // namespace kvbound::traces
