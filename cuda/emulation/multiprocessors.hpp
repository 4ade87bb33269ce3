// The number of multiprocessors that the emulated device claims to have: it decides how some
// operations divide their work.
#pragma once

namespace kvbound::cuda::emulation {

/// By default; a constant, so that launches do not depend on the machine.
inline constexpr int kMultiprocessors = 16;

/// The current number, in all threads.
int multiprocessors();
void set_multiprocessors(int count);

}  // namespace kvbound::cuda::emulation
