// What the compiler calls at every access of a kernel to memory. It does so where it is asked to instrument
// code for ThreadSanitizer (-fsanitize=thread); the functions are that sanitizer's by name, and ours in
// effect. They are also called by host code in the kernels' files, where nobody observes.
#include <cstddef>
#include <cstdint>

#include <kvbound/cuda/emulation/block.hpp>
#include <kvbound/cuda/emulation/observer.hpp>

namespace {

using kvbound::cuda::emulation::Instruction;

inline void observe(Instruction what, const void* address, size_t bytes, const void* site) {
  if (kvbound::cuda::emulation::has_yet_to_wait)
    kvbound::cuda::emulation::refuse_early_access(address, bytes, {});
  if (auto* const observer = kvbound::cuda::emulation::observer)
    observer->access(what, reinterpret_cast<uintptr_t>(address), static_cast<int>(bytes),
                     reinterpret_cast<uintptr_t>(site));
}

void observe_range(Instruction what, const void* begin, size_t bytes, const void* site) {
  constexpr size_t kWidest = 16;
  constexpr int kFreeBits = 48;  // above those of an address
  const auto* const from = static_cast<const char*>(begin);
  for (size_t done = 0; done < bytes;) {
    const auto place = reinterpret_cast<uintptr_t>(from + done);
    size_t width = kWidest;
    while (width > bytes - done || place % width != 0) width /= 2;
    observe(what, from + done, width,
            reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(site) | done << kFreeBits));
    done += width;
  }
}

}  // namespace

#define KVBOUND_SITE __builtin_return_address(0)

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming,cppcoreguidelines-macro-usage)
#define KVBOUND_ACCESS(bytes)                                                                          \
  void __tsan_read##bytes(void* at) { observe(Instruction::load, at, bytes, KVBOUND_SITE); }           \
  void __tsan_write##bytes(void* at) { observe(Instruction::store, at, bytes, KVBOUND_SITE); }         \
  void __tsan_unaligned_read##bytes(void* at) { observe(Instruction::load, at, bytes, KVBOUND_SITE); } \
  void __tsan_unaligned_write##bytes(void* at) { observe(Instruction::store, at, bytes, KVBOUND_SITE); }

#define KVBOUND_ATOMIC_UPDATE(bits, name, builtin)                                                      \
  uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t* at, uint##bits##_t value, int) { \
    observe(Instruction::atomic, const_cast<const uint##bits##_t*>(at), bits / 8, KVBOUND_SITE);        \
    return builtin(at, value, __ATOMIC_SEQ_CST);                                                        \
  }

#define KVBOUND_ATOMIC(bits)                                                                                \
  uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* at, int) {                       \
    observe(Instruction::load, const_cast<const uint##bits##_t*>(at), bits / 8, KVBOUND_SITE);              \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                           \
  }                                                                                                         \
  void __tsan_atomic##bits##_store(volatile uint##bits##_t* at, uint##bits##_t value, int) {                \
    observe(Instruction::store, const_cast<const uint##bits##_t*>(at), bits / 8, KVBOUND_SITE);             \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                         \
  KVBOUND_ATOMIC_UPDATE(bits, exchange, __atomic_exchange_n)                                                \
  KVBOUND_ATOMIC_UPDATE(bits, fetch_add, __atomic_fetch_add)                                                \
  KVBOUND_ATOMIC_UPDATE(bits, fetch_sub, __atomic_fetch_sub)                                                \
  KVBOUND_ATOMIC_UPDATE(bits, fetch_and, __atomic_fetch_and)                                                \
  KVBOUND_ATOMIC_UPDATE(bits, fetch_or, __atomic_fetch_or)                                                  \
  KVBOUND_ATOMIC_UPDATE(bits, fetch_xor, __atomic_fetch_xor)                                                \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile uint##bits##_t* at, uint##bits##_t* expected,  \
                                                    uint##bits##_t value, int, int) {                       \
    observe(Instruction::atomic, const_cast<const uint##bits##_t*>(at), bits / 8, KVBOUND_SITE);            \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) ? 1  \
                                                                                                       : 0; \
  }                                                                                                         \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile uint##bits##_t* at, uint##bits##_t* expected,    \
                                                  uint##bits##_t value, int, int) {                         \
    observe(Instruction::atomic, const_cast<const uint##bits##_t*>(at), bits / 8, KVBOUND_SITE);            \
    return __atomic_compare_exchange_n(at, expected, value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) ? 1   \
                                                                                                      : 0;  \
  }

extern "C" {

KVBOUND_ACCESS(1)
KVBOUND_ACCESS(2)
KVBOUND_ACCESS(4)
KVBOUND_ACCESS(8)
KVBOUND_ACCESS(16)
KVBOUND_ATOMIC(8)
KVBOUND_ATOMIC(16)
KVBOUND_ATOMIC(32)
KVBOUND_ATOMIC(64)

// Objects that a thread copies as a whole: by words as wide as their places allow, as nvcc does it.
void __tsan_read_range(void* at, size_t bytes) { observe_range(Instruction::load, at, bytes, KVBOUND_SITE); }
void __tsan_write_range(void* at, size_t bytes) {
  observe_range(Instruction::store, at, bytes, KVBOUND_SITE);
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
void __tsan_init() {}
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming,cppcoreguidelines-macro-usage)
