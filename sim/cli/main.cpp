#include <new>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <kvbound/reference/numerics/quiet_threads.hpp>

#include "program.hpp"

namespace {

// Before static objects, some of which allocate.
[[gnu::constructor(101)]] void end_without_memory() {
  std::set_new_handler(kvbound::sim::end_for_want_of_memory);
}

// Memory that is given back to the system comes again as pages that are cleared, which costs a decode step's
// record more than its numbers do: the heap keeps what it has, as replays ask for the same again and again.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kMiB = 1 << 20;
  mallopt(M_TRIM_THRESHOLD, 256 * kMiB);
  mallopt(M_MMAP_THRESHOLD, 32 * kMiB);  // the most that glibc takes, and as of itself comes to
#endif
}

}  // namespace

int main(int argc, char** argv) {
  kvbound::reference::quiet_threads(argv);
  keep_freed_memory();
  return kvbound::sim::run_program({argv + 1, argv + argc});
}
