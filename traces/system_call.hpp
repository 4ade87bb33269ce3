// System calls that a signal interrupts, as Linux means it.
#pragma once

#include <unistd.h>
#include <cerrno>

namespace kvbound::traces {

/// Calls a system call until no signal interrupts it. Returns what it does, with errno.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// Closes a file; false, with errno, if its last bytes could not be written. An interrupted close has closed
/// the file, and is not repeated: its number may be another thread's file by then.
inline bool closed(int descriptor) { return close(descriptor) == 0 || errno == EINTR; }

}  // namespace kvbound::traces
