// The emulated device's memory: every buffer between two stretches of inaccessible pages.
//
//     | no access | canaries | the buffer | canaries | no access |
//
// The buffer begins on 256 bytes as cudaMalloc's do and ends as near to the pages behind it as that allows. An access beyond
// the canaries raises SIGSEGV, which becomes a fault of the thread that did it; what is written to the canaries is found
// after the kernel; what is read from them is NaN in every storage type. AddressSanitizer knows them to be forbidden.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace kvbound::cuda::emulation {

/// Bytes, all of them 0xff. Throws std::bad_alloc.
void* allocate_device_memory(size_t bytes);
/// Of what allocate_device_memory returned. Canaries that were overwritten are remembered for overwritten_canaries().
void release_device_memory(void* memory) noexcept;

/// What was written outside a buffer since the last call, in words; nullopt if nothing was.
std::optional<std::string> overwritten_canaries();

/// Whether the bytes lie within one buffer.
bool is_device_memory(const void* memory, size_t bytes);

/// Where the address lies, seen from the nearest buffer: "5 bytes past the end of a buffer of 400 bytes".
std::string place_in_device_memory(const void* address);

/// Fills memory with what may not be overwritten: NaN in fp32, fp16 and bf16.
void write_canaries(void* memory, size_t bytes);
/// The first byte of `bytes` that is no longer as write_canaries left it; -1 if all are.
int64_t overwritten_byte(const void* memory, size_t bytes);

}  // namespace kvbound::cuda::emulation
