#include "spool.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>

#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {

Spool::Spool(const std::string& folder) : folder_(folder) {
  std::string name = folder + "/.kvbound-spool-XXXXXX";
  descriptor_ = mkostemp(name.data(), O_CLOEXEC);
  if (descriptor_ < 0) throw traces::io_error("create a temporary file in", folder, errno);
  unlink(name.c_str());
}

Spool::~Spool() { close(descriptor_); }

void Spool::write_bytes(std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw traces::io_error("write a temporary file in", folder_, errno);
    done += static_cast<size_t>(count);
    written_ += count;
  }
}

void Spool::read_bytes(std::span<std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = pread(descriptor_, bytes.data() + done, bytes.size() - done, position_);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw traces::io_error("read a temporary file in", folder_, count < 0 ? errno : EIO);
    done += static_cast<size_t>(count);
    position_ += count;
  }
}

}  // namespace kvbound::sim
