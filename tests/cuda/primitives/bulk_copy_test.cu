// Bulk copies: every byte's place, numbers outside a tensor, pipelines.
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/primitives/bulk_copy.hpp>
#include <kvbound/cuda/primitives/tensor_load.hpp>

#include "support/device_test.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

class BulkCopy : public HopperTest {};

// A pipeline of stages: a producer's thread loads, and all threads of a second warp
// add up what it has loaded.

constexpr int kStages = 3;
constexpr int kConsumers = 32;

struct Pipeline {
  int* numbers;  // [kStages, count]
  uint64_t* full;
  uint64_t* empty;

  __host__ __device__ Pipeline(SharedMemory& memory, int count)
      : numbers(memory.array<int>(kStages * count, 128)),
        full(memory.array<uint64_t>(kStages)),
        empty(memory.array<uint64_t>(kStages)) {}
};

__device__ void consume(const Pipeline& shared, int tiles, int count, int* sums) {
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % kStages;
    mbarrier_wait(shared.full + stage, static_cast<unsigned>(tile / kStages % 2));
    int sum = 0;
    for (int i = 0; i < count; ++i) sum += shared.numbers[stage * count + i] * (i + 1);
    sums[tile * kConsumers + lane()] = sum;
    mbarrier_arrive(shared.empty + stage);
  }
}

__global__ void pipeline_kernel(const int* numbers, int tiles, int count, int* sums) {
  SharedMemory memory;
  const Pipeline shared(memory, count);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(shared.full + stage, 1);
      mbarrier_init(shared.empty + stage, kConsumers);
    }
    mbarrier_fence_init();
  }
  __syncthreads();
  if (warp() == 1) consume(shared, tiles, count, sums);
  if (threadIdx.x != 0) return;
  const int bytes = count * static_cast<int>(sizeof(int));
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % kStages;
    mbarrier_wait(shared.empty + stage, static_cast<unsigned>(tile / kStages % 2 ^ 1));
    mbarrier_arrive_expect(shared.full + stage, bytes);
    bulk_load(shared.numbers + stage * count, numbers + tile * count, bytes / 2, shared.full + stage);
    bulk_load(shared.numbers + stage * count + count / 2, numbers + tile * count + count / 2, bytes / 2,
              shared.full + stage);
  }
}

TEST_F(BulkCopy, ConsumersOfAPipelineGetEveryTile) {
  constexpr int kTiles = 8;
  constexpr int kCount = 24;
  std::vector<int> numbers(kTiles * kCount);
  std::iota(numbers.begin(), numbers.end(), 1);
  std::vector<int> expected;
  for (int tile = 0; tile < kTiles; ++tile) {
    int sum = 0;
    for (int i = 0; i < kCount; ++i) sum += numbers[static_cast<size_t>(tile * kCount + i)] * (i + 1);
    expected.insert(expected.end(), kConsumers, sum);
  }
  const Buffer<int> input = upload(numbers);
  under_every_schedule([&] {
    Buffer<int> sums(kTiles * kConsumers);
    launch<pipeline_kernel>(LaunchShape(extent(1), extent(64), shared_bytes<Pipeline>(kCount), nullptr),
                            input.data(), kTiles, kCount, sums.data());
    EXPECT_EQ(download(sums), expected);
  });
}

// Tensors: every number of the box, wherever it lies.

template <class T>
__global__ void box_kernel(const __grid_constant__ TensorMap map, int count, int column, int row, int plane,
                           T* numbers) {
  SharedMemory memory;
  T* const box = memory.array<T>(count, 1024);
  uint64_t* const barrier = memory.array<uint64_t>(1);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_fence_init();
    mbarrier_arrive_expect(barrier, count * static_cast<int>(sizeof(T)));
    load_box(box, map, barrier, column, row, plane);
  }
  __syncthreads();
  mbarrier_wait(barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    numbers[i] = box[i];
}

// The tensor [planes, rows, columns] whose numbers are all different and not 0.
struct Tensor {
  int64_t columns, rows, planes;
  int64_t pitch;  // numbers from one row to the next

  int64_t number(int64_t x, int64_t y, int64_t z) const {
    const bool inside = 0 <= x && x < columns && 0 <= y && y < rows && 0 <= z && z < planes;
    return inside ? 1 + (z * rows + y) * columns + x : 0;
  }
};

template <class T>
T as(int64_t number) {
  if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(number);
  } else {
    return T{static_cast<uint16_t>(number)};
  }
}

template <class T>
std::vector<T> stored(const Tensor& tensor) {
  std::vector<T> numbers(static_cast<size_t>(tensor.planes * tensor.rows * tensor.pitch), as<T>(0x7777));
  for (int64_t z = 0; z < tensor.planes; ++z) {
    for (int64_t y = 0; y < tensor.rows; ++y) {
      for (int64_t x = 0; x < tensor.columns; ++x) {
        numbers[static_cast<size_t>((z * tensor.rows + y) * tensor.pitch + x)] =
            as<T>(tensor.number(x, y, z));
      }
    }
  }
  return numbers;
}

struct Place {
  int column, row, plane;
};

// Where the numbers of a box lie in shared memory: in units of 16 bytes, eight to a line of 128 bytes.
template <class T>
std::vector<int64_t> expected_box(const Tensor& tensor, const TensorTile& tile, Place first) {
  constexpr int64_t kOfUnit = 16 / sizeof(T);
  std::vector<int64_t> numbers(static_cast<size_t>(tile.box[0] * tile.box[1] * tile.box[2]));
  int64_t i = 0;
  for (int64_t z = 0; z < tile.box[2]; ++z) {
    for (int64_t y = 0; y < tile.box[1]; ++y) {
      for (int64_t x = 0; x < tile.box[0]; ++x, ++i) {
        const int64_t line = i / (8 * kOfUnit);
        const int64_t unit = i / kOfUnit % 8 ^ line % 8;
        numbers[static_cast<size_t>((8 * line + unit) * kOfUnit + i % kOfUnit)] =
            tensor.number(first.column + x, first.row + y, first.plane + z);
      }
    }
  }
  return numbers;
}

template <class T>
void check_boxes(const Tensor& tensor, const TensorTile& tile, const std::vector<Place>& places) {
  const Buffer<T> input = upload(stored<T>(tensor));
  const TensorMap map = tensor_map(input.data(), tile);
  const int64_t count = std::accumulate(tile.box.begin(), tile.box.end(), int64_t{1}, std::multiplies<>());
  for (const Place& first : places) {
    SCOPED_TRACE("box at " + std::to_string(first.column) + ", " + std::to_string(first.row) + ", " +
                 std::to_string(first.plane));
    std::vector<T> expected;
    for (const int64_t number : expected_box<T>(tensor, tile, first)) expected.push_back(as<T>(number));
    Buffer<T> numbers(count);
    std::vector<T> found;
    ASSERT_NO_THROW({
      launch<box_kernel<T>>(
          LaunchShape(extent(1), extent(32), count * static_cast<int64_t>(sizeof(T)) + 64, nullptr), map,
          static_cast<int>(count), first.column, first.row, first.plane, numbers.data());
      found = download(numbers);
    });
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(T)), 0);
  }
}

// Inside, across every edge, and wholly outside; from columns at 16 bytes.
const std::vector<Place> kPlaces{{0, 0, 0},  {8, 3, 1},  {-8, -2, 0}, {32, 19, 2},
                                 {64, 2, 0}, {8, 40, 0}, {0, 0, -1}};

template <class T>
void check_matrix(int64_t rows) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  std::vector<Place> places = kPlaces;
  for (Place& place : places) place.plane = 0;
  const Tensor tensor{37, 21, 1, 40};
  const TensorTile tile{{37, 21, 1}, {40 * kBytes, 40 * 21 * kBytes}, {128 / kBytes, rows, 1}};
  under_every_schedule([&] { check_boxes<T>(tensor, tile, places); });
}

TEST_F(BulkCopy, BoxesOfBfloat16LieWhereTheirSwizzleSaysWithZerosOutside) { check_matrix<Bfloat16>(20); }

TEST_F(BulkCopy, BoxesOfFloat16LieWhereTheirSwizzleSaysWithZerosOutside) { check_matrix<Float16>(9); }

TEST_F(BulkCopy, BoxesOfFloatLieWhereTheirSwizzleSaysWithZerosOutside) { check_matrix<float>(16); }

TEST_F(BulkCopy, BoxesOfThreeDimensionsAreTheirPlanesOneBehindTheOther) {
  const Tensor tensor{37, 21, 3, 40};
  under_every_schedule([&] {
    check_boxes<Bfloat16>(tensor, {{37, 21, 3}, {80, 80 * 21}, {64, 7, 2}}, kPlaces);
  });
}

TEST_F(BulkCopy, OfTensorsThatCannotBeMappedTheHostSaysWhat) {
  const Buffer<float> numbers(4096);
  const TensorTile good{{60, 60, 1}, {256, 256 * 60}, {32, 8, 1}};
  const auto refusal = [&](const std::function<void(TensorTile&)>& change, int64_t first = 0) {
    TensorTile tile = good;
    change(tile);
    try {
      static_cast<void>(tensor_map(numbers.data() + first, tile));
    } catch (const ShapeMismatch& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const auto expect = [](const std::string& said, const std::string& words) {
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  EXPECT_EQ(refusal([](TensorTile&) {}), "none");
  expect(refusal([](TensorTile&) {}, 1), "last bits 4, not 0..0");
  expect(refusal([](TensorTile& tile) { tile.extents[1] = 0; }), "extent of 0");
  expect(refusal([](TensorTile& tile) { tile.strides[0] = 240 + 8; }), "stride of 248");
  expect(refusal([](TensorTile& tile) { tile.strides[0] = int64_t{1} << 40; }), "stride of 1099511627776");
  expect(refusal([](TensorTile& tile) { tile.box[1] = 257; }), "box length of 257");
  expect(refusal([](TensorTile& tile) { tile.box[0] = 16; }), "bytes in a box's row: 64, not 128..128");
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
