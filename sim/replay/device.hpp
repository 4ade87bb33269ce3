// Access to the GPU, if this program was built with CUDA and finds one. The rest of sim/
// builds without a CUDA toolkit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <kvbound/reference/core/arithmetic.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::sim {

struct DeviceSearch {
  bool found = false;
  std::string name;    ///< "NVIDIA H200"
  int64_t memory = 0;  ///< bytes
  std::string why;     ///< why no device was found; empty otherwise
};
DeviceSearch find_device();

/// A session on the device: cuda::native::make_session. Throws NoDevice.
std::unique_ptr<Session> native_session(Dtype storage, OperationTimes* times, int64_t page_size);

/// cuda::session_arithmetic of such a session. Throws NoDevice.
SessionArithmetic native_arithmetic(Dtype storage, const LayerShape& shape, int64_t prompt_tokens,
                                    int64_t entries);

}  // namespace kvbound::sim
