// The emulated device's memory: every buffer between two stretches of inaccessible pages.
//
//     | no access | canaries | the buffer | canaries | no access |
//
// The buffer begins on 256 bytes as cudaMalloc's do and ends as near to the pages behind it as that allows.
// An access beyond the canaries raises SIGSEGV, which becomes a fault of the accessing thread; a write to the
// canaries is detected after the kernel; a read from them returns NaN in every storage type. For
// AddressSanitizer they are poisoned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvbound::cuda::emulation {

inline constexpr size_t kPage = 4096;
/// Inaccessible bytes on either side of device memory and of a block's shared memory; they take
/// addresses, but no memory.
inline constexpr size_t kGuard = size_t{64} << 20;

/// Bytes, all of them 0xff unless fill_new_buffers_with says otherwise. Throws std::bad_alloc.
///
/// room  bytes that it may have when it is renewed
void* allocate_device_memory(size_t bytes, size_t room);
/// Releases a buffer, also one that is set aside. Overwritten canaries are recorded for
/// overwritten_canaries().
void release_device_memory(void* memory) noexcept;
/// Makes a buffer inaccessible; returns what it is renewed by.
void* set_aside_device_memory(void* memory) noexcept;
/// Makes a buffer of so many bytes, as a new one, of what was set aside: where the last one with as many was,
/// as a pool on a GPU does it, so that a pointer to that one is valid again.
/// Throws std::bad_alloc.
void* renew_device_memory(void* set_aside, size_t bytes);

/// A description of a write outside a buffer since the last call; nullopt if there was none.
std::optional<std::string> overwritten_canaries();

/// Whether the bytes lie within one buffer.
bool is_device_memory(const void* memory, size_t bytes);

/// All buffers, in ascending order.
std::vector<std::span<std::byte>> device_buffers();

/// What new buffers are filled with by default: NaN in every storage type.
inline constexpr std::byte kNan{0xff};
void fill_new_buffers_with(std::byte each);

/// Where the address lies, seen from the nearest buffer: "5 bytes past the end of a buffer of 400 bytes".
std::string place_in_device_memory(const void* address);

/// Fills memory with canaries, which are NaN in fp32, fp16 and bf16.
void write_canaries(void* memory, size_t bytes);
/// The first byte of `bytes` that differs from what write_canaries wrote; -1 if none does.
int64_t overwritten_byte(const void* memory, size_t bytes);

}  // namespace kvbound::cuda::emulation
