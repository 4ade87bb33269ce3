// Stacks that take turns on one thread of the operating system.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(KVBOUND_PORTABLE_FIBERS)
#define KVBOUND_UCONTEXT
#include <ucontext.h>
#else
/// Saves the caller's place and goes on where the other stack was left.
extern "C" void kvbound_switch_stack(void** save, void* to);
#endif

#include "sanitizer.hpp"

namespace kvbound::cuda::emulation {

/// A stack, and where on it to go on.
class Fiber {
 public:
  /// The stack on which the caller already is.
  Fiber();
  /// A stack of its own, above an inaccessible page. `number` says where on its page the stack begins: fibers
  /// that all began at the same place would fight over the same lines of the cache.
  Fiber(void (*entry)(), int number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Forgets what is on the stack: the next switch to it begins at its entry.
  void restart();

  /// Saves the caller's place in `from` and goes on in `to`; returns when another fiber switches to `from`.
  static void change(Fiber& from, Fiber& to);
  /// The same without a way back: `from` has to be restarted before anybody may switch to it.
  [[noreturn]] static void leave(Fiber& from, Fiber& to);
  /// What an entry has to call first; `first` is the fiber that was there before all others.
  static void begin(Fiber& first);

  /// Whether the address lies below this stack: the mark of one that has overflown.
  bool overflown_at(const void* address) const;
  /// Gives up all frames, and with them their red zones. Returns the stack's upper end, where a function may begin.
  std::byte* clear() const;

 private:
  void jump(Fiber& to, void** fake_stack);

  void (*entry_)() = nullptr;
  std::byte* mapped_ = nullptr;
  std::byte* top_ = nullptr;
#ifdef KVBOUND_UCONTEXT
  ucontext_t context_{};
#else
  void* stack_pointer_ = nullptr;
#endif
  // For the sanitizers.
  const void* bottom_ = nullptr;
  size_t bytes_ = 0;
  void* fake_stack_ = nullptr;
  [[maybe_unused]] void* shadow_ = nullptr;
};

inline void Fiber::change(Fiber& from, Fiber& to) { from.jump(to, &from.fake_stack_); }

inline void Fiber::jump(Fiber& to, [[maybe_unused]] void** fake_stack) {
#ifdef KVBOUND_ASAN
  __sanitizer_start_switch_fiber(fake_stack, to.bottom_, to.bytes_);
#endif
#ifdef KVBOUND_TSAN
  __tsan_switch_to_fiber(to.shadow_, 0);
#endif
#ifdef KVBOUND_UCONTEXT
  swapcontext(&context_, &to.context_);
#else
  kvbound_switch_stack(&stack_pointer_, to.stack_pointer_);
#endif
#ifdef KVBOUND_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

}  // namespace kvbound::cuda::emulation
