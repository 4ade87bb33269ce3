// Archives of NumPy's savez: ZIP files of stored .npy files.
#include <zlib.h>
#include <algorithm>
#include <cstring>
#include <vector>

#include "mutation.hpp"

namespace kvbound::fuzz {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr size_t kLocalBytes = 30;

struct Member {
  std::string name, content;
};

template <class Number>
Number number_at(std::string_view bytes, size_t at) {
  Number number{};
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

template <class... Numbers>
void append(std::string& bytes, Numbers... numbers) {
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof numbers), ...);
}

// The members of an archive, as their own headers have them; none if it is another, or compresses them.
std::optional<std::vector<Member>> members_of(std::string_view bytes) {
  std::vector<Member> members;
  while (bytes.size() >= kLocalBytes && number_at<uint32_t>(bytes, 0) == kLocal) {
    const auto method = number_at<uint16_t>(bytes, 8);
    const size_t name = number_at<uint16_t>(bytes, 26), extra = number_at<uint16_t>(bytes, 28);
    size_t content = number_at<uint32_t>(bytes, 18);
    if (content == UINT32_MAX && extra >= 20 &&
        bytes.size() >= kLocalBytes + name + 20)  // ZIP64: the sizes are in the extra field
      content = number_at<uint64_t>(bytes, kLocalBytes + name + 12);
    const size_t begin = kLocalBytes + name + extra;
    if (method != 0 || begin > bytes.size() || content > bytes.size() - begin) return std::nullopt;
    members.push_back(
        {std::string(bytes.substr(kLocalBytes, name)), std::string(bytes.substr(begin, content))});
    bytes.remove_prefix(begin + content);
  }
  return members.empty() ? std::nullopt : std::optional(std::move(members));
}

// What a member's two headers have in common: time, checksum, sizes, the name's length.
std::string facts_of(const Member& member) {
  const auto size = static_cast<uint32_t>(member.content.size());
  const auto checksum =
      static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(member.content.data()), size));
  std::string facts;
  append(facts, uint16_t{20}, uint16_t{0}, uint16_t{0}, uint16_t{0}, uint16_t{0x21}, checksum, size, size,
         static_cast<uint16_t>(member.name.size()), uint16_t{0});
  return facts;
}

std::string archive_of(const std::vector<Member>& members) {
  std::string bytes, directory;
  for (const Member& member : members) {
    const auto offset = static_cast<uint32_t>(bytes.size());
    const std::string facts = facts_of(member);
    append(bytes, kLocal);
    bytes.append(facts).append(member.name).append(member.content);
    append(directory, kCentral, uint16_t{20});
    directory += facts;
    append(directory, uint16_t{0}, uint16_t{0}, uint16_t{0}, uint32_t{0}, offset);
    directory += member.name;
  }
  const auto begin = static_cast<uint32_t>(bytes.size()), size = static_cast<uint32_t>(directory.size());
  const auto count = static_cast<uint16_t>(members.size());
  bytes += directory;
  append(bytes, kEnd, uint16_t{0}, uint16_t{0}, count, count, size, begin, uint16_t{0});
  return bytes;
}

// Changes the dictionary of a .npy file of version 1, and mends its length; or the file as bytes.
std::string changed_npy(std::string_view file, size_t room, const ChangeText& change, Draw& draw) {
  constexpr size_t kBegin = 10;
  const size_t length = file.size() < kBegin ? 0 : number_at<uint16_t>(file, 8);
  if (length == 0 || length > file.size() - kBegin || draw.one_in(4)) return changed_bytes(file, room);
  const std::string dictionary = change(file.substr(kBegin, length), room, draw);
  std::string result(file.substr(0, 8));
  append(result, static_cast<uint16_t>(dictionary.size()));
  return result.append(dictionary).append(file.substr(kBegin + length));
}

}  // namespace

std::optional<std::string> changed_npz(std::string_view file, size_t room, const ChangeText& change,
                                       Draw& draw) {
  std::optional<std::vector<Member>> members = members_of(file);
  if (!members) return std::nullopt;
  Member& one = (*members)[draw.below(members->size())];
  switch (draw.below(6)) {
    case 0:
      members->push_back(Member(one));
      break;
    case 1:
      std::swap(one, members->back());
      members->pop_back();
      break;
    case 2:
      one.name =
          draw.one_in(2) ? members->front().name : change(one.name, std::min<size_t>(room, UINT16_MAX), draw);
      break;
    default:
      one.content =
          changed_npy(one.content, room - std::min(room, file.size()) + one.content.size(), change, draw);
  }
  return archive_of(*members);
}

}  // namespace kvbound::fuzz
