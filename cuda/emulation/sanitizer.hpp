// The calls that tell AddressSanitizer and ThreadSanitizer of switched stacks and of forbidden memory;
// empty without a sanitizer.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define KVBOUND_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVBOUND_ASAN
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define KVBOUND_TSAN
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVBOUND_TSAN
#endif
#endif

#ifdef KVBOUND_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef KVBOUND_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace kvbound::cuda::emulation {

#ifdef KVBOUND_ASAN
inline constexpr bool kAddressSanitizer = true;
inline void forbid([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
  __asan_poison_memory_region(memory, bytes);
}
inline void allow([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
  __asan_unpoison_memory_region(memory, bytes);
}
#else
inline constexpr bool kAddressSanitizer = false;
inline void forbid(const void*, size_t) {}
inline void allow(const void*, size_t) {}
#endif

}  // namespace kvbound::cuda::emulation
