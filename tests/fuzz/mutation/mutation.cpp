#include "mutation.hpp"

#include <algorithm>
#include <vector>

// Of libFuzzer; or of reader_replay.cpp.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace kvbound::fuzz {
namespace {

// No part may need more than this for itself: a text that is repeated has to end somewhere.
constexpr size_t kMostRoom = size_t{1} << 20;

std::optional<std::string> changed_file(Format format, std::string_view file, size_t room,
                                        const ChangeText& change, Draw& draw) {
  switch (format) {
    case Format::text:
      return change(file, room, draw);
    case Format::cbor:
      return changed_cbor(file, room, change, draw);
    case Format::gguf:
      return changed_gguf(file, room, change, draw);
    case Format::tensors:
      return file.starts_with("PK") ? changed_npz(file, room, change, draw)
                                    : changed_safetensors(file, room, change, draw);
  }
  return std::nullopt;
}

std::vector<std::string> copies(const std::vector<std::string_view>& parts) {
  return {parts.begin(), parts.end()};
}

Format format_of(const Reader& reader, size_t part) { return reader.parts[part % reader.parts.size()]; }

// One of the parts, a large one rather than a small one.
size_t drawn_part(const std::vector<std::string>& parts, Draw& draw) {
  const size_t one = draw.below(parts.size()), other = draw.below(parts.size());
  return parts[one].size() >= parts[other].size() ? one : other;
}

// All parts of one repetition twice, or not at all.
void repeat_or_remove(const Reader& reader, std::vector<std::string>& parts, Draw& draw) {
  const auto count = std::ssize(reader.parts);
  const auto begin = parts.begin() + static_cast<int64_t>(draw.below(parts.size() / count)) * count;
  const std::vector<std::string> group(begin, begin + count);
  if (draw.one_in(2)) {
    parts.insert(parts.end(), group.begin(), group.end());
  } else if (std::ssize(parts) > count) {
    parts.erase(begin, begin + count);
  }
}

std::string with_letter(const Reader& reader, std::string_view input, size_t most) {
  return reader.letter + changed_bytes(input.substr(1), most - 1);
}

// The input with a part changed by `change` within its form, or as bytes; the latter, too,
// if it would be too long.
std::string changed(const Reader& reader, std::string_view input, size_t most, const ChangeText& change,
                    Draw& draw) {
  std::vector<std::string> parts = copies(parts_of(reader, input));
  if (reader.repeats && draw.one_in(10)) {
    repeat_or_remove(reader, parts, draw);
  } else {
    const size_t part = drawn_part(parts, draw);
    const size_t others = input.size() - parts[part].size();
    const size_t room = others < most ? std::min(most - others, kMostRoom) : 0;
    if (auto file = changed_file(format_of(reader, part), parts[part], room, change, draw)) {
      parts[part] = std::move(*file);
    } else {
      parts[part] = changed_bytes(parts[part], room);
    }
  }
  std::string result = input_of(reader, parts);
  return result.size() <= most ? result : with_letter(reader, input, most);
}

}  // namespace

size_t Draw::magnitude(size_t digits) {
  size_t number = 1 + below(9);
  for (size_t digit = below(digits + 1); digit > 0; --digit) number *= 10;
  return number;
}

std::string changed_bytes(std::string_view bytes, size_t room) {
  std::string result(bytes.substr(0, room));
  result.resize(std::max<size_t>(room, 1));
  result.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(result.data()), std::min(bytes.size(), room),
                                 result.size()));
  return result;
}

std::string mutated(std::string_view input, size_t most, Draw& draw) {
  const Reader* const reader = reader_of(input);
  if (!reader) return readers()[draw.below(readers().size())].letter + changed_bytes(input, most - 1);
  if (draw.one_in(8)) return with_letter(*reader, input, most);
  return changed(*reader, input, most, changed_text, draw);
}

std::string crossed(std::string_view input, std::string_view other, size_t most, Draw& draw) {
  const Reader* const reader = reader_of(input);
  if (!reader || reader_of(other) != reader) return std::string(input);
  const auto own = parts_of(*reader, input), others = parts_of(*reader, other);
  const size_t part = draw.below(std::min(own.size(), others.size()));
  if (draw.one_in(4)) {
    std::vector<std::string> parts = copies(own);
    parts[part] = others[part];
    const std::string result = input_of(*reader, parts);
    if (result.size() <= most) return result;
  }
  const auto splice = [&](std::string_view text, size_t, Draw& drawn) {
    return spliced_text(text, others[part], drawn);
  };
  return changed(*reader, input, most, splice, draw);
}

}  // namespace kvbound::fuzz
