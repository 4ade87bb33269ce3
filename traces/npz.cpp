#include "npz.hpp"

#include <minizip/unzip.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/float16.hpp>

#include "messages.hpp"
#include "number_in.hpp"

namespace kvbound::traces {
namespace {

constexpr std::string_view kExtension = ".npy";
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr int64_t kMostHeader = 10000;  // bytes, as NumPy reads

// What a .npy file's header says.
struct NpyHeader {
  std::string type;
  std::vector<int64_t> shape;
  bool fortran_order = false;
  int64_t end = 0;  // where its numbers begin
};

struct NpyType {
  std::string_view name;
  Dtype dtype;
};
constexpr std::array kTypes{
    NpyType{"<f8", Dtype::f64},  NpyType{"<f4", Dtype::f32},    NpyType{"<f2", Dtype::f16},
    NpyType{"<V2", Dtype::bf16}, NpyType{"|V2", Dtype::bf16},   NpyType{"<i8", Dtype::i64},
    NpyType{"<i4", Dtype::i32},  NpyType{"<i2", Dtype::i16},    NpyType{"|i1", Dtype::i8},
    NpyType{"<u8", Dtype::u64},  NpyType{"<u4", Dtype::u32},    NpyType{"<u2", Dtype::u16},
    NpyType{"|u1", Dtype::u8},   NpyType{"|b1", Dtype::boolean}};

// Reads the dictionary of a header, {'descr': '<f4', 'fortran_order': False, 'shape':
// (3, 4), }, in any order.
class HeaderText {
 public:
  explicit HeaderText(std::string_view text) : rest_(text) {}

  // False if this is no such dictionary.
  bool read(NpyHeader& header) {
    std::set<std::string> keys;
    if (!take("{")) return false;
    while (!take("}")) {
      const std::optional<std::string> key = quoted();
      if (!key || !keys.insert(*key).second || !take(":") || !value(*key, header)) return false;
      if (!take(",") && !next_is('}')) return false;
    }
    skip_spaces();
    return rest_.empty() && keys == std::set<std::string>{"descr", "fortran_order", "shape"};
  }

 private:
  void skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size())); }
  bool next_is(char character) {
    skip_spaces();
    return rest_.starts_with(character);
  }
  bool take(std::string_view token) {
    skip_spaces();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  std::optional<std::string> quoted() {
    if (!take("'")) return std::nullopt;
    const size_t end = rest_.find('\'');
    if (end == std::string_view::npos) return std::nullopt;
    std::string text(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return text;
  }

  bool value(const std::string& key, NpyHeader& header) {
    if (key == "descr") {
      const std::optional<std::string> type = quoted();
      header.type = type.value_or("");
      return type.has_value();
    }
    if (key == "fortran_order") return (header.fortran_order = take("True")) || take("False");
    return key == "shape" && shape(header.shape);
  }

  // (), (3,) or (3, 4)
  bool shape(std::vector<int64_t>& lengths) {
    if (!take("(")) return false;
    while (!take(")")) {
      skip_spaces();
      const size_t end = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
      const auto length = number_in<int64_t>(rest_.substr(0, end));
      if (!length) return false;
      rest_.remove_prefix(end);
      lengths.push_back(*length);
      if (!take(",") && !(next_is(')') && lengths.size() > 1)) return false;
    }
    return true;
  }

  std::string_view rest_;
};

// One array of an archive; errors name it.
class NpyArray {
 public:
  NpyArray(const std::string& path, std::string name) : path_(path), name_(std::move(name)) {}

  [[noreturn]] void refuse(const std::string& problem) const {
    throw TraceError(path_, -1, printable(name_), problem);
  }

  NpyHeader header(std::string_view bytes) const {
    constexpr size_t kVersionEnd = kMagic.size() + 2;
    if (!bytes.starts_with(kMagic) || bytes.size() < kVersionEnd + 4) refuse("is no .npy file");
    const int version = bytes[kMagic.size()];
    if (version < 1 || version > 3)
      refuse("is of version " + std::to_string(version) + "; expected 1, 2 or 3");
    // Version 1 has two bytes for the header's length, later ones four.
    uint32_t length = 0;
    std::memcpy(&length, bytes.data() + kVersionEnd, version == 1 ? 2 : 4);
    const size_t begin = kVersionEnd + (version == 1 ? 2 : 4);
    if (length > kMostHeader || length > bytes.size() - begin) {
      refuse("has a header of " + std::to_string(length) + " bytes; expected at most " +
             std::to_string(kMostHeader) + ", and no more than there are");
    }
    const std::string_view text = bytes.substr(begin, length);
    NpyHeader header;
    if (!HeaderText(text).read(header)) {
      refuse("has the header " + in_quotes(text) + "; expected descr, fortran_order and shape");
    }
    header.end = static_cast<int64_t>(begin + length);
    return header;
  }

  // An array's shape and size.
  TensorEntry entry(const NpyHeader& header, Dtype dtype) const {
    if (header.fortran_order && header.shape.size() > 1) {
      refuse("is in Fortran order; expected C order, as numpy.ascontiguousarray makes it");
    }
    TensorEntry entry{name_, dtype, header.shape, 1, 0, -1, -1};
    bool overflows = false;
    for (const int64_t length : header.shape)
      overflows |= __builtin_mul_overflow(entry.elements, length, &entry.elements);
    int64_t end = 0;
    if (overflows || __builtin_mul_overflow(entry.elements, size_of(dtype), &entry.bytes) ||
        __builtin_add_overflow(entry.bytes, header.end, &end)) {
      refuse(shape_text(header.shape) + " has more bytes than 2^63 - 1");
    }
    return entry;
  }

  // The text that an array without dimensions stands for; none if it is of another type.
  std::optional<std::string> text(const std::string& type, std::string_view bytes) const {
    if (type.starts_with("<U")) return ascii(bytes);
    if (type.starts_with("|S")) return std::string(bytes.substr(0, bytes.find('\0')));
    if (type == "|b1") return std::string(!bytes.empty() && bytes.front() != 0 ? "true" : "false");
    if (type == "<f8") return number<double>(bytes);
    if (type == "<f4") return number<float>(bytes);
    if (type == "<i8") return number<int64_t>(bytes);
    if (type == "<i4") return number<int32_t>(bytes);
    if (type == "<i2") return number<int16_t>(bytes);
    if (type == "|i1") return number<int8_t>(bytes);
    if (type == "<u8") return number<uint64_t>(bytes);
    if (type == "<u4") return number<uint32_t>(bytes);
    if (type == "<u2") return number<uint16_t>(bytes);
    if (type == "|u1") return number<uint8_t>(bytes);
    if (type != "<f2") return std::nullopt;
    uint16_t half = 0;
    std::memcpy(&half, bytes.data(), std::min(bytes.size(), sizeof half));
    return decimal(from_float16(half));
  }

 private:
  template <class Number>
  std::string number(std::string_view bytes) const {
    Number value{};
    if (bytes.size() != sizeof value) refuse("has " + std::to_string(bytes.size()) + " bytes of data");
    std::memcpy(&value, bytes.data(), sizeof value);
    return decimal(value);
  }

  template <class Number>
  static std::string decimal(Number value) {
    std::array<char, 32> digits{};
    return {digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr};
  }

  // Characters of four bytes each, padded with zeros; others than ASCII as ?.
  static std::string ascii(std::string_view bytes) {
    std::string text;
    for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
      uint32_t character = 0;
      std::memcpy(&character, bytes.data() + i, 4);
      if (character != 0) text += character <= 0x7e ? static_cast<char>(character) : '?';
    }
    return text;
  }

  const std::string& path_;
  std::string name_;
};

}  // namespace

// The members of a ZIP archive.
class NpzFile::Archive {
 public:
  explicit Archive(const std::string& path) : path_(path), handle_(unzOpen64(path.c_str())) {
    if (!handle_) throw TraceError(path, -1, "", "is no complete ZIP archive, as NumPy's savez writes it");
  }
  ~Archive() { unzClose(handle_); }
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  bool first() { return unzGoToFirstFile(handle_) == UNZ_OK; }
  bool next() { return unzGoToNextFile(handle_) == UNZ_OK; }

  std::string name() const {
    std::string name(info().size_filename, '\0');
    unz_file_info64 ignored{};
    const auto size = static_cast<unsigned long>(name.size());
    if (unzGetCurrentFileInfo64(handle_, &ignored, name.data(), size, nullptr, 0, nullptr, 0) != UNZ_OK)
      damaged();
    return name;
  }
  // Bytes that the current member is said to have, and where it is.
  int64_t size() const { return static_cast<int64_t>(info().uncompressed_size); }
  unz64_file_pos position() const {
    unz64_file_pos position{};
    if (unzGetFilePos64(handle_, &position) != UNZ_OK) damaged();
    return position;
  }
  void go_to(const unz64_file_pos& position) const {
    if (unzGoToFilePos64(handle_, &position) != UNZ_OK) damaged();
  }

  // The current member's contents, at most `most` bytes of it.
  std::vector<char> read(const NpyArray& array, int64_t most) const {
    constexpr int64_t kAtOnce = int64_t{1} << 20;
    require_readable(array);
    if (unzOpenCurrentFile(handle_) != UNZ_OK) array.refuse("is damaged");
    std::vector<char> bytes;
    int count = 1;
    while (count > 0 && std::ssize(bytes) < most) {
      const int64_t before = std::ssize(bytes), wanted = std::min(kAtOnce, most - before);
      bytes.resize(static_cast<size_t>(before + wanted));
      count = unzReadCurrentFile(handle_, bytes.data() + before, static_cast<unsigned>(wanted));
      bytes.resize(static_cast<size_t>(before + std::max(count, 0)));
    }
    if (unzCloseCurrentFile(handle_) != UNZ_OK || count < 0)
      array.refuse("is damaged: its checksum is another one");
    return bytes;
  }

 private:
  [[noreturn]] void damaged() const { throw TraceError(path_, -1, "", "has a damaged directory of members"); }
  // The current member as NumPy writes it: neither encrypted nor compressed otherwise,
  // whatever the library could do.
  void require_readable(const NpyArray& array) const {
    constexpr unsigned long kEncrypted = 1;  // of the flags
    const unz_file_info64 member = info();
    if ((member.flag & kEncrypted) != 0) array.refuse("is encrypted; expected a member without a password");
    switch (member.compression_method) {
      case 0:
      case Z_DEFLATED:
        return;
      case 12:
        array.refuse("is compressed by bzip2; expected deflate, or none, as NumPy writes it");
      case 14:
        array.refuse("is compressed by LZMA; expected deflate, or none, as NumPy writes it");
      default:
        array.refuse("is compressed by ZIP's method " + std::to_string(member.compression_method) +
                     "; expected deflate, or none, as NumPy writes it");
    }
  }
  unz_file_info64 info() const {
    unz_file_info64 info{};
    if (unzGetCurrentFileInfo64(handle_, &info, nullptr, 0, nullptr, 0, nullptr, 0) != UNZ_OK) damaged();
    return info;
  }

  std::string path_;
  unzFile handle_;
};

// A tensor's place in the archive, and its numbers once they have been read.
struct NpzFile::Member {
  unz64_file_pos position{};
  int64_t header = 0;  // bytes before its numbers
  std::vector<char> numbers = {};
};

NpzFile::NpzFile(const std::string& path) : path_(path), archive_(std::make_unique<Archive>(path)) {
  metadata_.path = path;
  std::vector<TensorEntry> tensors;
  std::set<std::string> names;
  for (bool more = archive_->first(); more; more = archive_->next()) {
    std::string name = archive_->name();
    if (name.ends_with(kExtension)) name.resize(name.size() - kExtension.size());
    const NpyArray array(path, name);
    if (!names.insert(name).second) array.refuse("is there twice");
    const std::vector<char> begin = archive_->read(array, 2 * kMostHeader);
    const NpyHeader header = array.header({begin.data(), begin.size()});
    const std::string_view rest(begin.data() + header.end, begin.size() - static_cast<size_t>(header.end));
    const auto known = std::ranges::find(kTypes, header.type, &NpyType::name);
    std::optional<std::string> text = header.shape.empty() ? array.text(header.type, rest) : std::nullopt;
    if (text || known == kTypes.end()) {
      metadata_.strings.emplace(name, text ? *text : "an array of type " + header.type);
      continue;
    }
    const TensorEntry entry = array.entry(header, known->dtype);
    if (archive_->size() != header.end + entry.bytes) {
      array.refuse("has " + std::to_string(archive_->size() - header.end) + " bytes of numbers; expected " +
                   std::to_string(entry.bytes) + ", as " + shape_text(entry.shape) + " of " +
                   std::string(kvbound::name(entry.dtype)) + " needs");
    }
    members_.emplace(name, Member{archive_->position(), header.end});
    tensors.push_back(entry);
  }
  set_tensors(std::move(tensors));
}

NpzFile::~NpzFile() = default;

void NpzFile::read_bytes(const TensorEntry& tensor, int64_t first, std::span<char> out) const {
  const std::lock_guard lock(mutex_);
  Member& member = members_.find(tensor.name)->second;
  if (member.numbers.empty() && tensor.bytes > 0) {
    const NpyArray array(path_, tensor.name);
    archive_->go_to(member.position);
    member.numbers = archive_->read(array, member.header + tensor.bytes + 1);
    if (std::ssize(member.numbers) != member.header + tensor.bytes) {
      array.refuse("has other numbers of bytes than the archive says");
    }
    member.numbers.erase(member.numbers.begin(), member.numbers.begin() + member.header);
  }
  std::copy_n(member.numbers.begin() + first, out.size(), out.begin());
}

}  // namespace kvbound::traces
