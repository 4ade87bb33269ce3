// For portable programs only: functions that libstdc++ needs and that older versions of libc lack.
#include <sys/random.h>
#include <cstdint>
#include <cstdlib>

/// A random number, for std::random_device. Part of glibc since 2.36; Ubuntu 22.04 has 2.35.
extern "C" uint32_t arc4random() {
  uint32_t number = 0;
  if (getentropy(&number, sizeof number) != 0) std::abort();  // as libc's own function does
  return number;
}
