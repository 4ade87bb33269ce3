#include "multiprocessors.hpp"

#include <atomic>

namespace kvbound::cuda::emulation {
namespace {

std::atomic<int> current_count = kMultiprocessors;

}  // namespace

int multiprocessors() { return current_count; }
void set_multiprocessors(int count) { current_count = count; }

}  // namespace kvbound::cuda::emulation
