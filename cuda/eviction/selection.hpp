// Selection of the entries with the largest scores, on the device.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/device.hpp>

namespace kvbound::cuda {

/// Where a selection is written; device memory.
struct SelectionResult {
  int64_t* indices = nullptr;  ///< row r's begin at indices + r * stride; stride >= the largest k
  int64_t stride = 0;
  int* status = nullptr;  ///< set to 1 if a score is NaN, else left as it is
  int64_t first = 0;      ///< added to every index: the position of a row's first score
};

inline namespace KVBOUND_CUDA_BUILD {

/// The most scores in a row.
inline constexpr int64_t kMostScores = int64_t{1} << 27;
/// Positions of entries that are ranked while decoding are below this.
inline constexpr int64_t kMostPositions = 2 * kMostScores;

/// Bytes that `select_top` and `rank_top` need for a matrix of this shape.
int64_t select_top_workspace(int64_t rows, int64_t cols);

/// The k largest scores of every row, as ascending indices: reference::select_top. Ties: the smaller index
/// wins; -0 and +0 are equal. Exact, and the same bits always.
///
/// scores  [rows, cols], device memory, row_stride numbers from row to row, cols <= kMostScores
/// k       [rows], device memory, 0..cols
/// throws  ShapeMismatch; DeviceError
void select_top(const float* scores, int64_t rows, int64_t cols, int64_t row_stride, const int64_t* k,
                const SelectionResult& result, Workspace workspace, Stream stream);

/// The same entries, best first: reference::rank_top.
void rank_top(const float* scores, int64_t rows, int64_t cols, int64_t row_stride, const int64_t* k,
              const SelectionResult& result, Workspace workspace, Stream stream);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
