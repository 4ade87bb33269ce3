#include "output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "messages.hpp"

namespace kvbound::traces {

// The name of a temporary file, readable by a signal handler at any time. Entries are reused and never freed.
struct PendingName {
  enum class State { unused, taken, pending };
  std::atomic<State> state{State::taken};
  std::array<char, PATH_MAX> path{};
  PendingName* next = nullptr;
};

namespace {

static_assert(std::atomic<PendingName::State>::is_always_lock_free &&
              std::atomic<PendingName*>::is_always_lock_free);

std::atomic<PendingName*> pending_names{nullptr};

PendingName* take_pending_name() {
  for (PendingName* entry = pending_names.load(); entry; entry = entry->next) {
    auto unused = PendingName::State::unused;
    if (entry->state.compare_exchange_strong(unused, PendingName::State::taken)) return entry;
  }
  auto* entry = new PendingName;
  entry->next = pending_names.load();
  while (!pending_names.compare_exchange_weak(entry->next, entry)) {
  }
  return entry;
}

constexpr size_t kBufferSize = size_t{1} << 20;
constexpr size_t kLongestStem = 200;  // leaves room for the prefix and suffix within NAME_MAX = 255

/// Whether the data reached the disk. Files that cannot be synced (pipes, terminals) count as success.
bool sync(int descriptor) {
  return fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS;
}

}  // namespace

bool names_standard_output(std::string_view path) {
  return path == "-" || path == "/dev/stdout" || path == "/dev/fd/1" || path == "/proc/self/fd/1";
}

OutputFile::OutputFile(const std::string& path) : path_(path), target_(path) {
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
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  }
  if (descriptor_ < 0) throw io_error("write", path_, errno);
}

void OutputFile::create_temporary() {
  static std::atomic<unsigned> counter{0};
  const std::filesystem::path target(target_);
  std::string stem = target.filename().string().substr(0, kLongestStem);
  stem = std::string(".").append(stem).append(".").append(std::to_string(getpid())).append("-");
  pending_ = take_pending_name();
  do {
    const std::string name = (target.parent_path() / (stem + std::to_string(counter++) + ".tmp")).string();
    errno = ENAMETOOLONG;
    if (name.size() >= pending_->path.size()) break;
    std::copy_n(name.c_str(), name.size() + 1, pending_->path.begin());
    // Before the file exists, so that a signal handler finds it. No other process uses a name with this pid.
    pending_->state = PendingName::State::pending;
    descriptor_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ >= 0) return;
  const int error = errno;
  pending_->state = PendingName::State::unused;
  throw io_error("create", path_, error);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!pending_) return;
  unlink(pending_->path.data());
  pending_->state = PendingName::State::unused;
}

void OutputFile::write(std::string_view bytes) {
  buffer_.append(bytes);
  if (buffer_.size() >= kBufferSize) flush();
}

void OutputFile::flush() {
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const ssize_t count = ::write(descriptor_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw io_error("write", path_, errno);
    rest.remove_prefix(static_cast<size_t>(count));
  }
  buffer_.clear();
}

void OutputFile::prepare() {
  flush();
  if (!sync(descriptor_)) throw io_error("write", path_, errno);
  const int closed = close(descriptor_);
  descriptor_ = -1;
  if (closed != 0) throw io_error("write", path_, errno);
}

void OutputFile::commit() {
  if (descriptor_ >= 0) prepare();
  if (!pending_) return;
  if (rename(pending_->path.data(), target_.c_str()) != 0) throw io_error("write", path_, errno);
  pending_->state = PendingName::State::unused;
  pending_ = nullptr;
  const std::string folder = std::filesystem::path(target_).parent_path().string();
  const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // a folder that may be written but not read; the file itself is synced
  const bool synced = sync(descriptor);
  const int error = errno;
  close(descriptor);
  if (!synced) throw io_error("sync the folder of", path_, error);
}

void remove_pending_output_files() noexcept {
  const int saved = errno;
  for (PendingName* entry = pending_names.load(); entry; entry = entry->next) {
    if (entry->state == PendingName::State::pending) unlink(entry->path.data());
  }
  errno = saved;
}

}  // namespace kvbound::traces
