#include <kvbound/cuda/emulation/memory.hpp>

#include "roofline.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

void copy(void* to, const void* from, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  for (const void* memory : {static_cast<const void*>(to), from}) {
    if (bytes < 0 || !emulation::is_device_memory(memory, static_cast<size_t>(bytes))) {
      throw DeviceError("copy",
                        std::to_string(bytes) + " bytes at " + emulation::place_in_device_memory(memory),
                        __FILE__, __LINE__);
    }
  }
  detail::queue_on_device(to, from, bytes, stream);
}

std::unique_ptr<MatrixLibrary> MatrixLibrary::open(std::string* why) {
  if (why != nullptr) *why = "the emulation has none";
  return nullptr;
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
