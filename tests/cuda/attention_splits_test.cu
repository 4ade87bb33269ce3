// Splits without divisions, against divisions.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/attention_splits.hpp>

#include "support/device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using attention_splits::kPartitions;
using attention_splits::SplitLengths;

class AttentionSplits : public DeviceTest {};

LaunchShape warps(int64_t count) {
  return LaunchShape(extent(1), extent(32 * count), 0, nullptr, CallSite::current());
}

__global__ void quotients_kernel(SplitLengths lengths, const uint32_t* numbers, uint32_t* quotients) {
  for (uint32_t further = 0; further < SplitLengths::kMostTiles; ++further) {
    quotients[further * blockDim.x + threadIdx.x] = lengths.quotient(numbers[threadIdx.x], further);
  }
}

TEST_F(AttentionSplits, QuotientsAreThoseOfADivisionAlsoOfTheLargestCache) {
  constexpr int64_t kMost = (int64_t{INT32_MAX} - kTileTokens) / kTileTokens + 1;  // tiles of all KV heads
  std::vector<uint32_t> numbers;
  for (int64_t around : {int64_t{16}, int64_t{720720}, kMost / 2, kMost - 16}) {
    for (int64_t i = -16; i < 16; ++i) numbers.push_back(static_cast<uint32_t>(around + i));
  }
  const Buffer<uint32_t> input = upload(numbers);
  Buffer<uint32_t> output(static_cast<int64_t>(numbers.size()) * SplitLengths::kMostTiles);
  launch<quotients_kernel>(warps(4), SplitLengths(kPartitions[0]), input.data(), output.data());
  const std::vector<uint32_t> found = download(output);
  for (uint32_t further = 0; further < SplitLengths::kMostTiles; ++further) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_EQ(found[further * numbers.size() + i], (numbers[i] + further) / (further + 1))
          << numbers[i] << " / " << further + 1;
    }
  }
}

__global__ void further_tiles_kernel(SplitLengths lengths, const uint32_t* totals, int count,
                                     uint32_t* tiles) {
  for (int i = 0; i < count; ++i) tiles[i] = lengths.further_tiles(totals[i]);
}

TEST_F(AttentionSplits, LanesFindTheTilesOfASplit) {
  for (const auto& partition : kPartitions) {
    const SplitLengths lengths(partition);
    std::vector<uint32_t> totals{0, 1, static_cast<uint32_t>(INT32_MAX)};
    for (uint32_t tiles = 1; tiles <= SplitLengths::kMostTiles; ++tiles) {
      for (uint32_t i = 0; i < 3; ++i)
        totals.push_back(tiles * partition.blocks_wanted * kTileTokens + i - 1);
    }
    const auto count = static_cast<int>(totals.size());
    const Buffer<uint32_t> input = upload(totals);
    Buffer<uint32_t> output(count);
    launch<further_tiles_kernel>(warps(1), lengths, input.data(), count, output.data());
    const std::vector<uint32_t> found = download(output);
    for (int i = 0; i < count; ++i) {
      const int64_t wanted = ceil_division(totals[i], int64_t{partition.blocks_wanted} * kTileTokens);
      const int64_t most = partition.most_split_tokens / kTileTokens;
      EXPECT_EQ(found[i] + 1, std::clamp<int64_t>(wanted, 1, most)) << totals[i];
      EXPECT_EQ(found[i] + 1, lengths.tiles(totals[i])) << totals[i];
    }
  }
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
