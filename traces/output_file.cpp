#include "output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "messages.hpp"
#include "system_call.hpp"

namespace kvbound::traces {

namespace {

constexpr size_t kBufferSize = size_t{1} << 20;

/// Whether the data reached the disk. Files that cannot be synced (pipes, terminals) count as success.
bool sync(int descriptor) {
  return uninterrupted([&] { return fsync(descriptor); }) == 0 || errno == EINVAL || errno == ENOTSUP ||
         errno == EROFS;
}

}  // namespace

bool names_standard_output(std::string_view path) {
  return path == "-" || path == "/dev/stdout" || path == "/dev/fd/1" || path == "/proc/self/fd/1";
}

OutputFile::OutputFile(const std::string& path, Durability durability)
    : path_(path), target_(path), durability_(durability) {
  if (path.empty()) throw io_error("create", "a file without a name", ENOENT);
  struct stat status {};
  if (names_standard_output(path)) {
    open_directly();
    return;
  }
  const bool exists = stat(path.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) throw io_error("write", path, errno);
  if (exists && S_ISDIR(status.st_mode)) throw io_error("write", path, EISDIR);
  if (path == "/dev/stderr" || (exists && !S_ISREG(status.st_mode))) {
    open_directly();
    return;
  }
  if (exists && faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) {
    throw io_error("write", path, errno);
  }
  std::error_code error;
  if (exists) target_ = std::filesystem::canonical(path, error).string();
  if (error) throw io_error("write", path, error.value());
  create_temporary();
  if (exists) fchmod(descriptor_, status.st_mode & 0777);  // best effort: keep the mode of the replaced file
}

void OutputFile::open_directly() {
  // Reopening a standard stream that is redirected to a file would overwrite that file's contents.
  if (names_standard_output(path_)) {
    descriptor_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  } else if (path_ == "/dev/stderr") {
    descriptor_ = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  } else {
    descriptor_ = uninterrupted([&] { return open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY); });
  }
  if (descriptor_ < 0) throw io_error("write", path_, errno);
}

void OutputFile::create_temporary() {
  const auto create = [](const char* name) {
    return uninterrupted([&] { return open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  };
  while (true) {  // the name before the file, so that a signal handler finds it
    temporary_.emplace(TemporaryName::beside(target_));
    descriptor_ = create(temporary_->path());
    if (descriptor_ >= 0 || errno != EEXIST) break;
    temporary_->release();  // the name of a process that had this one's number
  }
  if (descriptor_ < 0) throw io_error("create", path_, errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void OutputFile::write(std::string_view bytes) {
  buffer_.append(bytes);
  if (buffer_.size() >= kBufferSize) flush();
}

void OutputFile::flush() {
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const ssize_t count = uninterrupted([&] { return ::write(descriptor_, rest.data(), rest.size()); });
    if (count < 0) throw io_error("write", path_, errno);
    rest.remove_prefix(static_cast<size_t>(count));
  }
  buffer_.clear();
}

void OutputFile::prepare() {
  flush();
  if (durability_ == Durability::machine && !sync(descriptor_)) throw io_error("write", path_, errno);
  if (!closed(std::exchange(descriptor_, -1))) throw io_error("write", path_, errno);
}

void OutputFile::commit() {
  if (descriptor_ >= 0) prepare();
  if (!temporary_) return;
  if (rename(temporary_->path(), target_.c_str()) != 0) throw io_error("write", path_, errno);
  temporary_->release();
  temporary_.reset();
  if (durability_ == Durability::machine) sync_folder();
}

void OutputFile::sync_folder() const {
  std::string folder = std::filesystem::path(target_).parent_path().string();
  if (folder.empty()) folder = ".";
  const int descriptor =
      uninterrupted([&] { return open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) return;  // a folder that may be written but not read; the file itself is synced
  const bool synced = sync(descriptor);
  const int error = errno;
  close(descriptor);
  if (!synced) throw io_error("sync the folder of", path_, error);
}

}  // namespace kvbound::traces
