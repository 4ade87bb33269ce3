#include "input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <array>
#include <cerrno>

#include <kvbound/reference/core/error.hpp>

#include "messages.hpp"
#include "system_call.hpp"

namespace kvbound::traces {

namespace {

void require_regular(const std::string& path, mode_t mode) {
  if (S_ISREG(mode)) return;
  const char* kind = S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a FIFO" : "not a regular file";
  throw TraceError(path, -1, "", std::string("is ") + kind + "; expected a regular file");
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
  struct stat status {};
  // Checked before opening, because opening alone can affect a device, and again after, because the name may
  // by then refer to another file.
  if (stat(path.c_str(), &status) != 0) throw io_error("open", path, errno);
  require_regular(path, status.st_mode);
  descriptor_ = uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (descriptor_ < 0) throw io_error("open", path, errno);
  try {
    if (fstat(descriptor_, &status) != 0) throw io_error("open", path, errno);
    require_regular(path, status.st_mode);
  } catch (...) {
    close(descriptor_);
    throw;
  }
  size_ = status.st_size;
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read(int64_t offset, std::span<char> out, const std::string& field) const {
  const int64_t end = offset + std::ssize(out);
  while (!out.empty()) {
    const ssize_t count = uninterrupted([&] { return pread(descriptor_, out.data(), out.size(), offset); });
    if (count < 0) throw io_error("read", path_, errno);
    if (count == 0) {
      throw TraceError(path_, offset, field,
                       "the file ended here while it was read; expected bytes up to " + std::to_string(end));
    }
    out = out.subspan(count);
    offset += count;
  }
}

namespace {

[[noreturn]] void refuse_size(const std::string& path, const std::string& size, int64_t most) {
  throw TraceError(path, -1, "",
                   "has " + size + " bytes; expected at most " + std::to_string(most >> 20) + " MiB");
}

bool is_standard_input(const std::string& path) { return path == "-" || path == "/dev/stdin"; }

// Whether a path leads to something without a size, which can only be read from its beginning to its end.
bool is_stream(const std::string& path) {
  struct stat status {};
  const bool found =
      is_standard_input(path) ? fstat(STDIN_FILENO, &status) == 0 : stat(path.c_str(), &status) == 0;
  return found && (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode) || S_ISSOCK(status.st_mode));
}

std::string whole_stream(const std::string& path, int64_t most) {
  const int descriptor = uninterrupted([&] {
    return is_standard_input(path) ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                                   : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  });
  if (descriptor < 0) throw io_error("open", path, errno);
  std::string text;
  std::array<char, 1 << 16> piece;
  ssize_t count = 1;
  int error = 0;
  while (count != 0 && std::ssize(text) <= most) {
    count = uninterrupted([&] { return read(descriptor, piece.data(), piece.size()); });
    error = errno;
    if (count < 0) break;
    text.append(piece.data(), static_cast<size_t>(count));
  }
  close(descriptor);
  if (count < 0) throw io_error("read", path, error);
  if (std::ssize(text) > most) refuse_size(path, "more", most);
  return text;
}

}  // namespace

std::string whole_text(const std::string& path, int64_t most) {
  const InputFile file(path);
  if (file.size() > most) refuse_size(path, std::to_string(file.size()), most);
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text, "");
  return text;
}

std::string whole_input(const std::string& path, int64_t most) {
  return is_stream(path) ? whole_stream(path, most) : whole_text(path == "-" ? "/dev/stdin" : path, most);
}

}  // namespace kvbound::traces
