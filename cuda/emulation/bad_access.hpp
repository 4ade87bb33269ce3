// Signals that a kernel's thread raises become its faults: SIGSEGV and SIGBUS for inaccessible memory, SIGFPE
// for a division of integers by zero.
//
// The handler makes the thread continue, still on its own stack, in a function that records the fault and
// never returns; so no frame is skipped that a sanitizer has recorded. On other processors than x86-64 and
// AArch64, and for signals of other code, the previous handler acts.
#pragma once

#include <cstddef>
#include <memory>

namespace kvbound::cuda::emulation {

/// Installs the handlers, and gives this thread of the operating system a signal stack
/// for the guard's lifetime.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  std::unique_ptr<std::byte[]> stack_;  // null: the thread had a signal stack before
};

}  // namespace kvbound::cuda::emulation
