// A file that exists whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace kvbound::traces {

struct PendingName;

/// Writes to a temporary name in the same folder, and renames it when all of it has reached the disk. An
/// OutputFile that is destroyed without commit() leaves nothing behind, and whatever had the name untouched.
///
/// What is no regular file (/dev/stdout, /dev/null, a FIFO) is written directly, since it can't be replaced.
/// Every function but the destructor throws IoError, with the path and the system's reason.
class OutputFile {
 public:
  /// Throws too if the path is a directory, or an existing file that may not be written.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }

  void write(std::string_view bytes);
  /// All that can fail for want of space: flushes, syncs and closes. No write() after it. Several outputs are
  /// best prepared all before the first is committed.
  void prepare();
  /// prepare(), unless that has been done, and gives the file its name.
  void commit();

 private:
  void create_temporary();
  void open_directly();
  void flush();

  std::string path_;                // as the caller said it, for messages
  std::string target_;              // symbolic links resolved
  PendingName* pending_ = nullptr;  // the temporary name; null if written directly
  int descriptor_ = -1;
  std::string buffer_;
};

/// Unlinks the temporary files that exist at this moment. For handlers of signals that end the program: it
/// takes no lock and allocates nothing.
void remove_pending_output_files() noexcept;

}  // namespace kvbound::traces
