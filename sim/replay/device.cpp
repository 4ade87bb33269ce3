#include "device.hpp"

// The only file in sim/ that uses the native CUDA build.
#ifdef KVBOUND_HAS_NATIVE
#define KVBOUND_CUDA_NATIVE
#include <kvbound/cuda/session/session.hpp>
#include <kvbound/cuda/support/device.hpp>
#endif
#include <kvbound/reference/core/error.hpp>

namespace kvbound::sim {

#ifdef KVBOUND_HAS_NATIVE

DeviceSearch find_device() {
  DeviceSearch search;
  if (const auto device = cuda::find_device(&search.why)) {
    search.found = true;
    search.name = device->name;
    search.memory = device->memory;
  }
  return search;
}

std::unique_ptr<Session> native_session(Dtype storage, OperationTimes* times, int64_t page_size) {
  return cuda::native::make_session(storage, times, nullptr, page_size);
}

SessionArithmetic native_arithmetic(Dtype storage, const LayerShape& shape, int64_t prompt_tokens,
                                    int64_t entries) {
  return cuda::native::session_arithmetic(storage, shape, prompt_tokens, entries);
}

#else

DeviceSearch find_device() { return {false, "", 0, "this program was built without a CUDA toolkit"}; }

std::unique_ptr<Session> native_session(Dtype, OperationTimes*, int64_t) {
  throw NoDevice("no CUDA device: " + find_device().why);
}

SessionArithmetic native_arithmetic(Dtype, const LayerShape&, int64_t, int64_t) {
  throw NoDevice("no CUDA device: " + find_device().why);
}

#endif

}  // namespace kvbound::sim
