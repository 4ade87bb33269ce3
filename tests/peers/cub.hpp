// CUB's selection and sort of several rows at once.
#pragma once

#include <string>

#include "kernel_library.hpp"

namespace kvbound::sim {

std::string cub_version();

/// DeviceBatchedTopK, with the guarantees of kvbound's: ties go to the smaller index, and the set is the same
/// always; in any order. At most 131,072 scores in a row.
void cub_select_top(const TopCall& call, cuda::Stream stream);

/// DeviceSegmentedRadixSort of whole rows, which is stable.
void cub_rank_top(const TopCall& call, cuda::Stream stream);

}  // namespace kvbound::sim
