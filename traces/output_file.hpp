// An output file that appears complete or not at all.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "temporary_name.hpp"

namespace kvbound::traces {

/// Whether a path is `-`, /dev/stdout, /dev/fd/1 or /proc/self/fd/1.
bool names_standard_output(std::string_view path);

/// Writes to a temporary file in the same folder, and renames it once all data has reached the
/// disk. An OutputFile that is destroyed without commit() leaves no file behind, and an existing
/// file of that name unchanged.
///
/// A path that is not a regular file (/dev/null, a FIFO), or that names standard output, is written
/// directly, because it cannot be replaced. Every function but the destructor throws IoError, with the path
/// and the system's reason.
class OutputFile {
 public:
  /// What a committed file outlives: the machine's failure, for which it is synced, or
  /// that of this process only.
  enum class Durability { machine, process };

  /// Also throws if the path is a directory, or an existing file that may not be written.
  explicit OutputFile(const std::string& path, Durability durability = Durability::machine);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  /// The file that has the bytes until commit(): path() if it is written directly.
  std::string place() const { return temporary_ ? temporary_->path() : path_; }

  void write(std::string_view bytes);
  /// Flushes, syncs and closes: everything that can fail for lack of space. No write() may follow. With
  /// several outputs, prepare all of them before committing the first.
  void prepare();
  /// Calls prepare() if it has not been called, and gives the file its name.
  void commit();

 private:
  void create_temporary();
  void open_directly();
  void flush();
  void sync_folder() const;

  std::string path_;    // as given by the caller, for messages
  std::string target_;  // symbolic links resolved
  Durability durability_;
  std::optional<TemporaryName> temporary_;  // none if written directly, or committed
  int descriptor_ = -1;
  std::string buffer_;
};

}  // namespace kvbound::traces
