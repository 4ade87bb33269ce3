// Names of files and folders that are there for a while, and go however the program ends.
#pragma once

#include <string>

namespace kvbound::traces {

struct HeldName;

/// A name whose file or folder is removed when the object is destroyed, or by remove_temporary_files() when a
/// signal ends the program. Whoever has it makes the file. A folder is removed if it is empty: its files have
/// names of their own, which are to be destroyed before it. Throws IoError for a name that is too long.
class TemporaryName {
 public:
  /// A name of the caller's choice, that no other process uses.
  explicit TemporaryName(const std::string& path);
  /// One that no process has used, in the folder of `target`, where it can be renamed to
  /// it: `.TARGET.PID-N-MACHINE.tmp`. What killed processes left in that folder is removed
  /// first (remove_leftovers).
  static TemporaryName beside(const std::string& target);
  ~TemporaryName();
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;
  TemporaryName(TemporaryName&& other) noexcept;

  const char* path() const;
  /// Gives the file up without removing it, because it has another name by now.
  void release() noexcept;

 private:
  HeldName* held_;  // null: released
};

/// Removes what processes of this program that were killed left in a folder; once per folder and process,
/// since large folders take long to read. That is what has a name as TemporaryName::beside gives it, of a
/// process that does not live.
///
/// A process number means something only among processes that see each other. MACHINE, 12 hexadecimal digits,
/// stands for them: a digest of the kernel's boot_id and of the namespace of process numbers. What another
/// machine or container wrote to a shared file system is left alone, and so is what was left before this
/// machine was started again: it looks the same. A process number that was given to another process meanwhile
/// delays the removal. Errors are ignored.
void remove_leftovers(const std::string& folder) noexcept;

/// Removes the files and empty folders of all names that are held at this moment. For handlers of signals
/// that terminate the program: it takes no lock and allocates no memory.
void remove_temporary_files() noexcept;

}  // namespace kvbound::traces
