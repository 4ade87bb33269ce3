#include "spool.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>

#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/system_call.hpp>
#include <kvbound/traces/temporary_name.hpp>

namespace kvbound::sim {

using traces::uninterrupted;

Spool::Spool(const std::string& folder) : folder_(folder) {
  descriptor_ = uninterrupted([&] { return open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600); });
  if (descriptor_ >= 0) return;
  // A file system without files that have no name: one whose name is removed at once.
  const auto name = traces::TemporaryName::beside(folder + "/spool");
  descriptor_ = uninterrupted([&] { return open(name.path(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600); });
  if (descriptor_ < 0) throw traces::io_error("create a temporary file in", folder, errno);
}

Spool::~Spool() { close(descriptor_); }

void Spool::write_bytes(std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count =
        uninterrupted([&] { return ::write(descriptor_, bytes.data() + done, bytes.size() - done); });
    if (count < 0) throw traces::io_error("write a temporary file in", folder_, errno);
    done += static_cast<size_t>(count);
    written_ += count;
  }
}

void Spool::read_bytes(std::span<std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = uninterrupted(
        [&] { return pread(descriptor_, bytes.data() + done, bytes.size() - done, position_); });
    if (count <= 0) throw traces::io_error("read a temporary file in", folder_, count < 0 ? errno : EIO);
    done += static_cast<size_t>(count);
    position_ += count;
  }
}

}  // namespace kvbound::sim
