// The files of an input, in memory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvbound::fuzz {

/// A folder in memory, in which every input has its files; it goes when the program ends.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }

  /// Removes what was made since the last call.
  void empty();
  /// Writes a file and returns its path.
  std::string write(const std::string& name, std::string_view bytes);
  /// False if there is one.
  bool make_folder(const std::string& name);

 private:
  std::string path_;
  std::vector<std::string> made_;
};

}  // namespace kvbound::fuzz
