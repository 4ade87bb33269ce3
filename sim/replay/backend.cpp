#include "backend.hpp"

#include <string>

#include <kvbound/cuda/session/session.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/options/runs.hpp>
#include <kvbound/traces/messages.hpp>

#include "device.hpp"

namespace kvbound::sim {

bool is_backend(std::string_view name) { return name == kReference || name == "emulated" || name == "cuda"; }

void require_backend(std::string_view name) {
  if (name == "cuda") {
    if (const DeviceSearch search = find_device(); !search.found)
      throw NoDevice("no CUDA device: " + search.why);
  } else if (!is_backend(name)) {
    throw InvalidPolicy("no backend " + traces::quoted(name) + "; known backends: reference, emulated, cuda");
  }
}

Dtype storage_of(std::string_view backend, Dtype trace) {
  return backend != kReference && trace == Dtype::f64 ? Dtype::f32 : trace;
}

Dtype accumulation_of(std::string_view backend) { return backend == kReference ? Dtype::f64 : Dtype::f32; }

SessionArithmetic arithmetic_of(std::string_view backend, Dtype storage, const LayerShape& shape,
                                int64_t prompt_tokens, int64_t entries) {
  require_backend(backend);
  if (backend == kReference) {
    const KernelArithmetic doubles{.precision = Precision::fp64};
    return {doubles, doubles, doubles, doubles, doubles, doubles, doubles};
  }
  const Dtype stored = storage_of(backend, storage);
  if (backend == "emulated") {
    return cuda::emulated::session_arithmetic(stored, shape, prompt_tokens, entries);
  }
  return native_arithmetic(stored, shape, prompt_tokens, entries);
}

std::unique_ptr<Session> open_session(std::string_view backend, Dtype storage, OperationTimes* times,
                                      int64_t page_size) {
  require_backend(backend);
  if (backend == kReference) return reference::make_session(times);
  if (backend == "emulated")
    return cuda::emulated::make_session(storage_of(backend, storage), times, nullptr, page_size);
  return native_session(storage_of(backend, storage), times, page_size);
}

}  // namespace kvbound::sim
