#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "mutation.hpp"

namespace kvbound::fuzz {
namespace {

constexpr uint32_t kText = 8, kArray = 9;
constexpr std::array<size_t, 13> kBytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};  // of a value by its type

// Bytes from the front on; after what is not there, nothing is.
class Source {
 public:
  explicit Source(std::string_view bytes) : rest_(bytes) {}

  bool is_good() const { return good_; }
  size_t left() const { return rest_.size(); }
  std::string_view take(uint64_t count) {
    good_ = good_ && count <= rest_.size();
    const std::string_view bytes = rest_.substr(0, good_ ? count : 0);
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  template <class Number>
  Number number() {
    Number number{};
    const std::string_view bytes = take(sizeof number);
    std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }
  std::string text() { return std::string(take(number<uint64_t>())); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

template <class Number>
void append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void append_text(std::string& bytes, const std::string& text) {
  append<uint64_t>(bytes, text.size());
  bytes += text;
}

// A metadata entry, or a tensor's description: what follows the name, and the number that says what that is.
struct Entry {
  std::string name;
  uint32_t type = 0;  // of a tensor the number of its dimensions
  std::string rest;
};

struct File {
  uint32_t version = 3;
  std::vector<Entry> tensors, metadata;
  std::string data;  // behind the descriptions
};

// Up to the data, of the alignment that files without general.alignment have.
size_t padding_of(size_t descriptions) { return (32 - descriptions % 32) % 32; }

// The bytes of a value, for which the source is left behind it.
std::string value(Source& source, uint32_t type, int levels) {
  std::string bytes;
  if (type == kText) {
    append_text(bytes, source.text());
  } else if (type == kArray && levels > 0) {
    const auto items = source.number<uint32_t>();
    const auto count = source.number<uint64_t>();
    append(bytes, items);
    append(bytes, count);
    for (uint64_t i = 0; i < count && source.is_good(); ++i) bytes += value(source, items, levels - 1);
  } else if (type < kBytes.size() && kBytes[type] > 0) {
    bytes = source.take(kBytes[type]);
  } else {
    source.take(source.left() + 1);  // is then no longer good
  }
  return bytes;
}

std::optional<File> file_of(std::string_view bytes) {
  Source source(bytes);
  File file;
  if (source.take(4) != "GGUF") return std::nullopt;
  file.version = source.number<uint32_t>();
  const auto tensors = source.number<uint64_t>(), entries = source.number<uint64_t>();
  for (uint64_t i = 0; i < entries && source.is_good(); ++i) {
    Entry& entry = file.metadata.emplace_back();
    entry.name = source.text();
    entry.type = source.number<uint32_t>();
    entry.rest = value(source, entry.type, 4);
  }
  for (uint64_t i = 0; i < tensors && source.is_good(); ++i) {
    Entry& entry = file.tensors.emplace_back();
    entry.name = source.text();
    entry.type = source.number<uint32_t>();
    entry.rest = source.take(uint64_t{8} * entry.type + 12);
  }
  if (!source.is_good()) return std::nullopt;
  file.data = source.take(source.left());
  file.data.erase(0, padding_of(bytes.size() - file.data.size()));
  return file;
}

std::string bytes_of(const File& file) {
  std::string bytes = "GGUF";
  append(bytes, file.version);
  append<uint64_t>(bytes, file.tensors.size());
  append<uint64_t>(bytes, file.metadata.size());
  for (const std::vector<Entry>* entries : {&file.metadata, &file.tensors}) {
    for (const Entry& entry : *entries) {
      append_text(bytes, entry.name);
      append(bytes, entry.type);
      bytes += entry.rest;
    }
  }
  bytes.append(padding_of(bytes.size()), '\0');
  return bytes + file.data;
}

// One of the numbers of four or eight bytes becomes an extreme, or one of another place.
void change_number(std::string& bytes, Draw& draw) {
  constexpr std::array<uint64_t, 14> kExtremes{0,          1,          2,         3,         31,
                                               32,         255,        INT32_MAX, 1u << 31,  UINT32_MAX,
                                               1ull << 32, 1ull << 53, INT64_MAX, UINT64_MAX};
  const size_t width = draw.one_in(2) ? 4 : 8;
  if (bytes.size() < width) return;
  const size_t at = draw.below(bytes.size() / 4 - width / 4 + 1) * 4;
  const uint64_t number = kExtremes[draw.below(kExtremes.size())];
  std::memcpy(bytes.data() + at, &number, width);
}

// A text as the value, of the type that says so; an array of many items; arrays within arrays; or a number.
void change_value(Entry& entry, size_t room, const ChangeText& change, Draw& draw) {
  if (entry.type == kText && !draw.one_in(4)) {
    const std::string text =
        change(std::string_view(entry.rest).substr(std::min<size_t>(entry.rest.size(), 8)), room, draw);
    entry.rest.clear();
    return append_text(entry.rest, text);
  }
  if (!draw.one_in(4)) return change_number(entry.rest, draw);
  const bool deep = draw.one_in(2);
  const size_t count = std::min(draw.magnitude(deep ? 4 : 5), room / 24);
  entry.type = kArray;
  entry.rest.clear();
  for (size_t i = 0; deep && i < count; ++i) {
    append(entry.rest, kArray);
    append(entry.rest, uint64_t{1});
  }
  append(entry.rest, uint32_t{0});
  append<uint64_t>(entry.rest, deep ? 1 : count);
  entry.rest.resize(entry.rest.size() + (deep ? 1 : count));
}

void change_entries(std::vector<Entry>& entries, bool are_tensors, size_t room, const ChangeText& change,
                    Draw& draw) {
  if (entries.empty()) return;
  const size_t at = draw.below(entries.size()), other = draw.below(entries.size());
  switch (draw.below(8)) {
    case 0:
      entries.push_back(Entry(entries[at]));
      return;
    case 1:
      entries.erase(entries.begin() + static_cast<int64_t>(at));
      return;
    case 2:
      std::swap(entries[at].rest, entries[other].rest);
      std::swap(entries[at].type, entries[other].type);
      return;
    case 3:
      entries[at].name = draw.one_in(2) ? entries[other].name : change(entries[at].name, room, draw);
      return;
    case 4:
      if (are_tensors) entries[at].type = static_cast<uint32_t>(draw.below(6));
      if (are_tensors) entries[at].rest.resize(8 * entries[at].type + 12);
      return change_number(entries[at].rest, draw);
    default:
      return are_tensors ? change_number(entries[at].rest, draw)
                         : change_value(entries[at], room, change, draw);
  }
}

}  // namespace

std::optional<std::string> changed_gguf(std::string_view bytes, size_t room, const ChangeText& change,
                                        Draw& draw) {
  std::optional<File> file = file_of(bytes);
  if (!file) return std::nullopt;
  const size_t left = room - std::min(room, bytes.size());
  switch (draw.below(8)) {
    case 0:
      file->data = changed_bytes(file->data, file->data.size() + std::min<size_t>(left, 64));
      return bytes_of(*file);
    case 1:
    case 2:
    case 3:
      change_entries(file->tensors, true, left, change, draw);
      break;
    default:
      change_entries(file->metadata, false, left, change, draw);
  }
  return bytes_of(*file);
}

}  // namespace kvbound::fuzz
