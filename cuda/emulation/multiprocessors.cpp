#include "multiprocessors.hpp"

#include <atomic>

namespace kvbound::cuda::emulation {
namespace {

std::atomic<int> current = kMultiprocessors;

}  // namespace

int multiprocessors() { return current; }
void set_multiprocessors(int count) { current = count; }

}  // namespace kvbound::cuda::emulation
