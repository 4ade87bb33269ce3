// Stacks that take turns on one thread of the operating system.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(KVBOUND_PORTABLE_FIBERS)
#define KVBOUND_UCONTEXT
#include <ucontext.h>
#else
/// Saves the caller's stack pointer and continues where the other stack was left.
extern "C" void kvbound_switch_stack(void** save, void* to);
#endif

#include "sanitizer.hpp"

namespace kvbound::cuda::emulation {

/// A stack and the place on it where execution continues.
class Fiber {
 public:
  /// The caller's own stack.
  Fiber();
  /// A new stack, above an inaccessible page. `number` selects the stack's first cache line in its page, so
  /// that fibers' stacks do not all use the same sets of the cache.
  Fiber(void (*entry)(), int number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Discards the stack's contents: the next switch to it begins at its entry.
  void restart();

  /// Saves the caller's state in `from` and continues in `to`; returns when another fiber switches to `from`.
  static void change(Fiber& from, Fiber& to);
  /// Continues in `to` without saving the caller's state: `from` has to be restarted
  /// before the next switch to it.
  [[noreturn]] static void leave(Fiber& from, Fiber& to);
  /// An entry calls this first; `first` is the fiber of the caller's own stack.
  static void begin(Fiber& first);

  /// Whether the address lies in the page below this stack, which an overflow accesses.
  bool overflown_at(const void* address) const;
  /// Gives up all frames, and with them their red zones. Returns the stack's upper end,
  /// where a function may begin.
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
