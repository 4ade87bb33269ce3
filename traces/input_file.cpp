#include "input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>

#include <kvbound/reference/core/error.hpp>

#include "messages.hpp"

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
  // Checked before opening, because opening alone can affect a device, and again after, because the name may by then
  // refer to another file.
  if (stat(path.c_str(), &status) != 0) throw io_error("open", path, errno);
  require_regular(path, status.st_mode);
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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
    const ssize_t count = pread(descriptor_, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw io_error("read", path_, errno);
    if (count == 0) {
      throw TraceError(path_, offset, field,
                       "the file ended here while it was read; expected bytes up to " + std::to_string(end));
    }
    out = out.subspan(count);
    offset += count;
  }
}

std::string whole_text(const std::string& path, int64_t most) {
  const InputFile file(path);
  if (file.size() > most) {
    throw TraceError(path, -1, "",
                     "has " + std::to_string(file.size()) + " bytes; expected at most " +
                         std::to_string(most >> 20) + " MiB");
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text, "");
  return text;
}

}  // namespace kvbound::traces
