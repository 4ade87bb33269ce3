// topk.cuh uses the first three without including them
#include <algorithm>
#include <cstring>
#include <flashinfer/math.cuh>

#include <flashinfer/topk.cuh>

#include <kvbound/cuda/native/check.hpp>

#include "flashinfer.hpp"

namespace kvbound::sim {

void flashinfer_select_top(const TopCall& call, cuda::Stream stream) {
  namespace sampling = flashinfer::sampling;
  cuda::native::check(
      sampling::TopKDispatch<float, int32_t>(const_cast<float*>(call.scores), call.indices, call.values,
                                             static_cast<uint32_t>(call.rows), static_cast<uint32_t>(call.k),
                                             static_cast<uint32_t>(call.cols),
                                             static_cast<sampling::RadixRowState*>(call.workspace.data),
                                             false, true, sampling::TopKTieBreak::None, stream),
      "FlashInfer's top-k");
}

}  // namespace kvbound::sim
