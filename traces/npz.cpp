#include "npz.hpp"

#include <minizip/unzip.h>
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <regex>
#include <utility>

#include <kvbound/reference/core/error.hpp>

#include "messages.hpp"
#include "number_in.hpp"

namespace kvbound::traces {
namespace {

constexpr std::string_view kExtension = ".npy";
constexpr std::string_view kMagic = "\x93NUMPY";

// What a .npy file's header says.
struct NpyHeader {
  std::string type;
  std::vector<int64_t> shape;
  int64_t end = 0;  // where its numbers begin
};

struct NpyType {
  std::string_view name;
  Dtype dtype;
};
constexpr std::array kTypes{NpyType{"<f8", Dtype::f64},  NpyType{"<f4", Dtype::f32},
                            NpyType{"<f2", Dtype::f16},  NpyType{"<V2", Dtype::bf16},
                            NpyType{"|V2", Dtype::bf16}, NpyType{"<i8", Dtype::i64},
                            NpyType{"<i4", Dtype::i32},  NpyType{"<u4", Dtype::u32}};

// One array of an archive; errors name it.
class NpyArray {
 public:
  NpyArray(const std::string& path, std::string name) : path_(path), name_(std::move(name)) {}

  [[noreturn]] void refuse(const std::string& problem) const {
    throw TraceError(path_, -1, printable(name_), problem);
  }
  const std::string& name() const { return name_; }

  NpyHeader header(std::string_view bytes) const {
    constexpr size_t kVersionEnd = kMagic.size() + 2;
    if (!bytes.starts_with(kMagic) || bytes.size() < kVersionEnd + 4) refuse("is no .npy file");
    const bool is_short =
        bytes[kMagic.size()] == 1;  // version 1 has two bytes for the header's length, later ones four
    uint32_t length = 0;
    std::memcpy(&length, bytes.data() + kVersionEnd, is_short ? 2 : 4);
    const size_t begin = kVersionEnd + (is_short ? 2 : 4);
    if (length > bytes.size() - begin)
      refuse("has a header of " + std::to_string(length) + " bytes, more than there are");
    const std::string text(bytes.substr(begin, length));
    static const std::regex dictionary(
        R"(\{'descr': '([^']*)', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\),? *\}\s*)");
    std::smatch parts;
    if (!std::regex_match(text, parts, dictionary)) {
      refuse("has the header " + in_quotes(text) + "; expected descr, fortran_order and shape");
    }
    if (parts[2] == "True")
      refuse("is in Fortran order; expected C order, as numpy.ascontiguousarray makes it");
    return {parts[1], shape_of(parts[3]), static_cast<int64_t>(begin + length)};
  }

  // An array's type, shape and size.
  TensorEntry entry(const NpyHeader& header) const {
    const auto known = std::ranges::find(kTypes, header.type, &NpyType::name);
    if (known == kTypes.end()) {
      refuse("is of type " + in_quotes(header.type) +
             "; expected f8, f4, f2, i8, i4, u4 (little-endian) or ml_dtypes' bfloat16");
    }
    TensorEntry entry{name_, known->dtype, header.shape, 1, 0, 0, -1};
    bool overflows = false;
    for (const int64_t length : header.shape)
      overflows |= __builtin_mul_overflow(entry.elements, length, &entry.elements);
    if (overflows || __builtin_mul_overflow(entry.elements, size_of(known->dtype), &entry.bytes)) {
      refuse(shape_text(header.shape) + " has more bytes than 2^63 - 1");
    }
    return entry;
  }

  // The text that an array without dimensions stands for; none if it is of another type.
  std::optional<std::string> text(const std::string& type, std::string_view bytes) const {
    const auto number = [&]<class Number>(Number value) {
      if (bytes.size() != sizeof(Number)) refuse("has " + std::to_string(bytes.size()) + " bytes of data");
      std::memcpy(&value, bytes.data(), sizeof(Number));
      std::array<char, 32> digits{};
      return std::string(digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr);
    };
    if (type.starts_with("<U")) return ascii(bytes);
    if (type == "|b1") return std::string(!bytes.empty() && bytes.front() != 0 ? "true" : "false");
    if (type == "<f8") return number(double{});
    if (type == "<f4") return number(float{});
    if (type == "<i8") return number(int64_t{});
    if (type == "<i4") return number(int32_t{});
    return std::nullopt;
  }

 private:
  std::vector<int64_t> shape_of(const std::string& text) const {
    std::vector<int64_t> shape;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      std::string part = text.substr(begin, end - begin);
      std::erase(part, ' ');
      begin = end + 1;
      if (part.empty() && begin >= text.size()) break;  // (3,)
      const auto length = number_in<int64_t>(part);
      if (!length) refuse("has the shape " + in_quotes(text));
      shape.push_back(*length);
    }
    return shape;
  }

  // Characters of four bytes each, padded with zeros.
  std::string ascii(std::string_view bytes) const {
    std::string text;
    for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
      uint32_t character = 0;
      std::memcpy(&character, bytes.data() + i, 4);
      if (character > 0x7e) refuse("has characters that are not ASCII");
      if (character != 0) text += static_cast<char>(character);
    }
    return text;
  }

  const std::string& path_;
  std::string name_;
};

// The members of a ZIP archive, one after the other.
class Archive {
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
    std::array<char, 1024> name{};
    unz_file_info64 info{};
    const int result =
        unzGetCurrentFileInfo64(handle_, &info, name.data(), name.size() - 1, nullptr, 0, nullptr, 0);
    if (result != UNZ_OK) throw TraceError(path_, -1, "", "has a damaged directory of members");
    return name.data();
  }

  // The current member's contents, at most `most` bytes of it.
  std::vector<char> read(const NpyArray& array, int64_t most) const {
    constexpr int64_t kAtOnce = int64_t{1} << 20;
    if (unzOpenCurrentFile(handle_) != UNZ_OK)
      array.refuse("is damaged, or compressed by another method than NumPy's");
    std::vector<char> bytes;
    int count = 1;
    while (count > 0 && std::ssize(bytes) < most) {
      const int64_t wanted = std::min(kAtOnce, most - std::ssize(bytes)), before = std::ssize(bytes);
      bytes.resize(static_cast<size_t>(before + wanted));
      count = unzReadCurrentFile(handle_, bytes.data() + before, static_cast<unsigned>(wanted));
      bytes.resize(static_cast<size_t>(before + std::max(count, 0)));
    }
    if (unzCloseCurrentFile(handle_) != UNZ_OK || count < 0)
      array.refuse("is damaged: its checksum is another one");
    return bytes;
  }

 private:
  std::string path_;
  unzFile handle_;
};

}  // namespace

NpzFile::NpzFile(const std::string& path) : path_(path) {
  constexpr int64_t kMostHeader = int64_t{1} << 16;
  metadata_.path = path;
  std::vector<TensorEntry> tensors;
  Archive archive(path);
  for (bool more = archive.first(); more; more = archive.next()) {
    std::string name = archive.name();
    if (name.ends_with(kExtension)) name.resize(name.size() - kExtension.size());
    const NpyArray array(path, name);
    const std::vector<char> begin = archive.read(array, kMostHeader);
    const NpyHeader header = array.header({begin.data(), begin.size()});
    const std::string_view rest(begin.data() + header.end, begin.size() - static_cast<size_t>(header.end));
    if (const auto text = header.shape.empty() ? array.text(header.type, rest) : std::nullopt) {
      metadata_.strings.emplace(name, *text);
      continue;
    }
    const TensorEntry entry = array.entry(header);
    std::vector<char> bytes = archive.read(array, header.end + entry.bytes + 1);
    if (std::ssize(bytes) != header.end + entry.bytes) {
      array.refuse("has " + std::string(std::ssize(bytes) > header.end + entry.bytes ? "more" : "fewer") +
                   " bytes than the " + std::to_string(entry.bytes) + " that " + shape_text(entry.shape) +
                   " of " + std::string(kvbound::name(entry.dtype)) + " needs");
    }
    bytes.erase(bytes.begin(), bytes.begin() + header.end);
    if (!numbers_.emplace(name, std::move(bytes)).second) array.refuse("is there twice");
    tensors.push_back(entry);
  }
  set_tensors(std::move(tensors));
}

void NpzFile::read_bytes(const TensorEntry& tensor, int64_t first, std::span<char> out) const {
  const std::vector<char>& all = numbers_.find(tensor.name)->second;
  std::copy_n(all.begin() + first, out.size(), out.begin());
}

}  // namespace kvbound::traces
