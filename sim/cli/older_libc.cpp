// For portable programs only: what libstdc++ asks of the libc that it was built with, and older ones lack.
#include <sys/random.h>
#include <cstdint>
#include <cstdlib>

/// A random number, for std::random_device. Of libc since glibc 2.36; Ubuntu 22.04 has 2.35.
extern "C" uint32_t arc4random() {
  uint32_t number = 0;
  if (getentropy(&number, sizeof number) != 0) std::abort();  // as libc's own does
  return number;
}
