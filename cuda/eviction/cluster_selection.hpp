// Selection by a cluster of blocks (compute capability 9.0): select_top and
// select_critical where a row is long.
#pragma once

#include <cstdint>

#include "selection.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace cluster_selection {

struct Arguments {
  const float* scores;     ///< [rows, cols]: of stage one, if there are two stages
  const float* stage_two;  ///< likewise; null: there is one stage
  int64_t cols, row_stride;
  const int64_t* k;                ///< [rows]
  const int64_t* stage_one_count;  ///< [rows], with two stages
  SelectionResult selection, stage_one;
};

/// The most columns whose keys fit into the registers of a cluster.
inline constexpr int64_t kMostColumns = 131072;

/// Whether this device has clusters, and so many rows of so many columns are long enough for them, and not
/// too long.
bool can(int64_t rows, int64_t cols);

/// As select_top or select_critical, without workspace.
void launch_selection(const Arguments& arguments, int64_t rows, Stream stream);

}  // namespace cluster_selection
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
