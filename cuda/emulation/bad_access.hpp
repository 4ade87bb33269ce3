// Signals that a kernel's thread raises become its faults: SIGSEGV and SIGBUS for memory that is not there, SIGFPE for a
// division of integers by zero.
//
// The handler sends the thread, still on its own stack, into a function that records the fault and never returns; so
// nothing is jumped over that a sanitizer knows of. Where it does not know how (neither x86-64 nor AArch64), and for
// signals of others, what was in place before acts.
#pragma once

#include <cstddef>
#include <memory>

namespace kvbound::cuda::emulation {

/// Has the handlers in place, and a stack for them on this thread of the operating system, as long as it lives.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  std::unique_ptr<std::byte[]> stack_;  // null: there was one
};

}  // namespace kvbound::cuda::emulation
