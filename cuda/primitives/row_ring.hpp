// A ring of tiles in shared memory through which rows of device memory pass.
#pragma once

#include "row_fragments.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Stages of a ring where shared memory has room for them.
inline constexpr int kMostRingStages = 3;

/// The same rows of kSlices slices as tiles of kRows, one slice's behind the other's, padded to kSteps steps,
/// from the first to the last, `passes` times. Results do not depend on the number of stages.
template <int kSteps, int kRows, int kSlices = 1>
class RowRing {
 public:
  static constexpr int kSlice = kRows * PaddedRows<kSteps>::kStride;  ///< vectors
  static constexpr int kTile = kSlices * kSlice;

  /// ring  [stages, kTile]; stages 1..kMostRingStages
  __device__ RowRing(const TokenRows (&slices)[kSlices], int64_t first, int count, int passes, uint4* ring,
                     int stages)
      : count_(count), passes_(passes), ring_(ring), stages_(stages) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i) rows_[i] = typename PaddedRows<kSteps>::Share(slices[i], first);
    for (int n = 1; n < stages; ++n) load();
  }

  /// The next tile, once all threads of the block have called this; none may read the previous one any more.
  __device__ const uint4* next() {
    if (stages_ == 1) {
      __syncthreads();  // no thread reads the previous tile any more
      load();
    }
    if (stages_ == kMostRingStages) {
      async_wait<kMostRingStages - 2>();
    } else {
      async_wait<0>();
    }
    __syncthreads();  // all threads see the tile, and none reads the stage that is filled next
    if (stages_ > 1) load();
    const uint4* const tile = ring_ + full_ * kTile;
    full_ = full_ + 1 == stages_ ? 0 : full_ + 1;
    return tile;
  }

 private:
  __device__ void load() {
    if (passes_ > 0) {
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        rows_[i].copy(loaded_, min(kRows, count_ - loaded_), ring_ + empty_ * kTile + i * kSlice);
      }
      empty_ = empty_ + 1 == stages_ ? 0 : empty_ + 1;
      loaded_ += kRows;
      if (loaded_ >= count_) {
        loaded_ = 0;
        --passes_;
      }
    }
    async_commit();
  }

  typename PaddedRows<kSteps>::Share rows_[kSlices];
  int count_, passes_;
  uint4* ring_;
  int stages_;
  int loaded_ = 0;            // rows of this pass
  int full_ = 0, empty_ = 0;  // stages
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
