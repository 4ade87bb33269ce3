// A text from which tasks are made.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvbound::sim {

/// A text in UTF-8. A byte order mark is dropped, and each CR LF becomes LF.
class Prose {
 public:
  /// Throws TraceError if the file is not valid UTF-8, is no regular file, or has more than 1 GiB; IoError.
  explicit Prose(const std::string& path);

  const std::string& path() const { return path_; }
  std::string_view text() const { return text_; }

  /// Whether no character is cut by a cut before this byte, in 0..text().size().
  bool is_between_characters(int64_t position) const;

  /// Where a passage of `length` bytes begins: after white space, if there is such a place, and cut nowhere in a
  /// character; from `wanted` on backwards.
  ///
  /// cuts    where the passage will be cut, in bytes from its beginning; the last is its length
  /// wanted  in 0..text().size() - length
  /// throws  TraceError if no place from `wanted` on backwards has all its cuts between characters
  int64_t passage(int64_t wanted, std::span<const int64_t> cuts) const;

  /// The different words of 4 to 10 small letters a to z, in ascending order.
  std::vector<std::string> words() const;

 private:
  std::string path_;
  std::string text_;
};

}  // namespace kvbound::sim
