// compact moves bits: every kept row and its padding, and nothing else is written.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <kvbound/cuda/session/compaction.hpp>

#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

template <class T>
class CompactionParity : public DeviceTest {};
TYPED_TEST_SUITE(CompactionParity, StorageTypes, StorageName);

struct Shape {
  int64_t tokens;
  int64_t head_dim;
  std::vector<int64_t> count;  // per KV head
  int64_t capacity;
};

// `count` different positions in a random order.
std::vector<int64_t> kept_positions(uint64_t seed, int64_t tokens, int64_t count) {
  const Tensor order = random_tensor(seed, 1, 1, tokens);
  std::vector<int64_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), 0);
  std::ranges::sort(positions, {}, [&](int64_t i) { return order.numbers()[i]; });
  positions.resize(count);
  return positions;
}

template <cuda::Storage T>
std::vector<T> with_bits(const std::function<uint32_t(size_t)>& bits, int64_t size) {
  std::vector<T> numbers(size);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const uint32_t word = bits(i);
    std::memcpy(static_cast<void*>(&numbers[i]), &word, sizeof(T));
  }
  return numbers;
}

// Arbitrary bits, NaN included.
uint32_t any_bits(size_t index) {
  uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<uint32_t>(x >> 16);
}

template <cuda::Storage T>
void expect_moved(const Shape& shape) {
  const auto heads = std::ssize(shape.count);
  const int64_t length = cuda::padded<T>(shape.head_dim);
  const int64_t stride = length + cuda::kVector<T>;
  const int64_t kept_stride = shape.capacity + 3;
  const std::vector<T> rows = with_bits<T>(any_bits, heads * shape.tokens * stride);
  std::vector<T> expected = with_bits<T>([](size_t) { return 0xabcdabcdu; }, heads * shape.capacity * stride);
  cuda::Buffer<T> compacted{std::span<const T>(expected)};
  std::vector<int64_t> kept(heads * kept_stride, -1);
  for (int64_t g = 0; g < heads; ++g) {
    const int64_t count = shape.count[g];
    const auto positions = kept_positions(static_cast<uint64_t>(g + 1), shape.tokens, count);
    std::ranges::copy(positions, kept.begin() + g * kept_stride);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(rows.begin() + (g * shape.tokens + positions[i]) * stride, length,
                  expected.begin() + (g * shape.capacity + i) * stride);
    }
  }
  const cuda::Buffer<T> from{std::span<const T>(rows)};
  const cuda::Buffer<int64_t> device_kept{std::span<const int64_t>(kept)};
  const cuda::Buffer<int64_t> count{std::span<const int64_t>(shape.count)};
  const auto of = [&]<class N>(N* numbers, int64_t length_of_head) {
    return cuda::DeviceTensor<N>{numbers,        heads,  length_of_head,
                                 shape.head_dim, stride, length_of_head * stride};
  };
  const auto result = [&](cuda::Buffer<T>& buffer) {
    std::vector<T> actual(expected.size());
    cuda::synchronise(nullptr);
    buffer.download(actual);
    return actual;
  };
  cuda::compact<T>(of(from.data(), shape.tokens), device_kept.data(), kept_stride, count.data(),
                   of(compacted.data(), shape.capacity), nullptr);
  EXPECT_TRUE(same_bits(result(compacted), expected));
  // As keys and values, each from and to memory of its own.
  const std::vector<T> untouched =
      with_bits<T>([](size_t) { return 0xabcdabcdu; }, heads * shape.capacity * stride);
  cuda::Buffer<T> keys{std::span<const T>(untouched)}, values{std::span<const T>(untouched)};
  const std::vector<T> ones = with_bits<T>([](size_t) { return 0x3f803f80u; }, std::ssize(rows));
  const cuda::Buffer<T> from_ones{std::span<const T>(ones)};
  cuda::compact<T>(of(from_ones.data(), shape.tokens), of(from.data(), shape.tokens), device_kept.data(),
                   kept_stride, count.data(), of(keys.data(), shape.capacity),
                   of(values.data(), shape.capacity), nullptr);
  std::vector<T> expected_ones = untouched;
  for (int64_t g = 0; g < heads; ++g) {
    for (int64_t i = 0; i < shape.count[g]; ++i)
      std::copy_n(ones.begin(), length, expected_ones.begin() + (g * shape.capacity + i) * stride);
  }
  EXPECT_TRUE(same_bits(result(keys), expected_ones));
  EXPECT_TRUE(same_bits(result(values), expected));
}

TYPED_TEST(CompactionParity, MovesTheBitsOfKeptRowsAndNothingElse) {
  for (const int64_t head_dim : {1, 8, 10, 64, 80, 128, 256}) {
    for (const int64_t count : {0, 1, 31, 32, 33}) {
      SCOPED_TRACE("head_dim " + std::to_string(head_dim) + ", count " + std::to_string(count));
      expect_moved<TypeParam>({70, head_dim, {count, 33 - count, count}, 40});
    }
  }
}

TYPED_TEST(CompactionParity, MovesManyRows) { expect_moved<TypeParam>({3000, 128, {1200, 7, 999}, 1200}); }

TYPED_TEST(CompactionParity, LeavesAnEmptyCacheAlone) { expect_moved<TypeParam>({5, 64, {0, 0}, 0}); }

TYPED_TEST(CompactionParity, GivesTheSameUnderEverySchedule) {
  for_each_schedule([](const std::string& schedule) {
    SCOPED_TRACE(schedule);
    expect_moved<TypeParam>({50, 80, {33, 12}, 37});
  });
}

class CompactNumbersParity : public DeviceTest {};

// Rows of numbers with spare columns, in device memory and as they are expected.
void expect_numbers_moved(int64_t rows_per_head, int64_t tokens, const std::vector<int64_t>& count,
                          int64_t capacity) {
  const auto heads = std::ssize(count);
  const int64_t rows = heads * rows_per_head, kept_stride = *std::ranges::max_element(count) + 3;
  const Tensor random = random_tensor(5, 1, rows, tokens);
  const std::vector<float> numbers(random.numbers().begin(), random.numbers().end());
  std::vector<float> expected(rows * capacity, -1);
  std::vector<int64_t> kept(heads * kept_stride, -1);
  for (int64_t g = 0; g < heads; ++g) {
    const auto positions = kept_positions(static_cast<uint64_t>(g + 1), tokens, count[g]);
    std::ranges::copy(positions, kept.begin() + g * kept_stride);
    for (int64_t r = g * rows_per_head; r < (g + 1) * rows_per_head; ++r) {
      for (int64_t i = 0; i < count[g]; ++i) expected[r * capacity + i] = numbers[r * tokens + positions[i]];
    }
  }
  const cuda::Buffer<float> from = cuda::upload(numbers);
  cuda::Buffer<float> compacted = cuda::upload(std::vector<float>(expected.size(), -1));
  const cuda::Buffer<int64_t> device_kept = cuda::upload(kept), device_count = cuda::upload(count);
  cuda::compact_numbers({from.data(), rows, tokens}, heads, device_kept.data(), kept_stride,
                        device_count.data(), {compacted.data(), rows, capacity}, nullptr);
  cuda::synchronise(nullptr);
  EXPECT_TRUE(same_bits(cuda::download(compacted), expected));

  // Back to where they were.
  std::vector<float> scattered(rows * tokens, -2);
  cuda::Buffer<float> to = cuda::upload(scattered);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < count[row / rows_per_head]; ++i) {
      const int64_t place = row * tokens + kept[row / rows_per_head * kept_stride + i];
      scattered[place] = numbers[place];
    }
  }
  cuda::scatter_numbers({compacted.data(), rows, capacity}, heads, device_kept.data(), kept_stride,
                        device_count.data(), {to.data(), rows, tokens}, nullptr);
  cuda::synchronise(nullptr);
  EXPECT_TRUE(same_bits(cuda::download(to), scattered));
}

TEST_F(CompactNumbersParity, MovesTheNumbersOfKeptEntriesThereAndBackAndNothingElse) {
  for (const int64_t count : {0, 1, 31, 32, 33}) {
    for (const int64_t rows_per_head : {1, 4}) {
      for_each_schedule([&](const std::string& schedule) {
        SCOPED_TRACE(schedule + ", count " + std::to_string(count));
        expect_numbers_moved(rows_per_head, 70, {count, 33 - count, count}, 40);
      });
    }
  }
  expect_numbers_moved(3, 3000, {1200, 7, 999}, 1201);
}

TEST_F(CompactNumbersParity, RefusesRowsThatDoNotFit) {
  const auto compact = [](int64_t rows, int64_t compacted_rows, int64_t kv_heads) {
    cuda::compact_numbers({nullptr, rows, 9}, kv_heads, nullptr, 1, nullptr, {nullptr, compacted_rows, 9},
                          nullptr);
  };
  EXPECT_THROW(compact(4, 3, 2), ShapeMismatch);
  EXPECT_THROW(compact(4, 4, 3), ShapeMismatch);
  EXPECT_THROW(cuda::scatter_numbers({nullptr, 4, 9}, 3, nullptr, 1, nullptr, {nullptr, 4, 9}, nullptr),
               ShapeMismatch);
  EXPECT_THROW(cuda::scatter_numbers({nullptr, 4, 9}, 2, nullptr, 1, nullptr, {nullptr, 2, 9}, nullptr),
               ShapeMismatch);
}

class CompactPositionsParity : public DeviceTest {};

TEST_F(CompactPositionsParity, TakesThePositionsOfTheChosenSlots) {
  constexpr int64_t kCapacity = 40, kStride = 300;
  std::vector<int64_t> positions, chosen(3 * kStride, -1), expected(3 * kStride, -4);
  const std::vector<int64_t> counts{3, 0, 300};
  for (int64_t i = 0; i < 3 * kCapacity; ++i) positions.push_back(1000 + 7 * i);
  for (int64_t g = 0; g < 3; ++g) {
    for (int64_t i = 0; i < counts[g]; ++i) {
      chosen[g * kStride + i] = (11 * i + g) % kCapacity;
      expected[g * kStride + i] = positions[g * kCapacity + (11 * i + g) % kCapacity];
    }
  }
  cuda::Buffer<int64_t> device_positions = cuda::upload(positions), device_chosen = cuda::upload(chosen),
                        count = cuda::upload(counts),
                        result = cuda::upload(std::vector<int64_t>(3 * kStride, -4));
  cuda::compact_positions({3, kCapacity, nullptr, nullptr, nullptr, device_positions.data()},
                          {device_chosen.data(), count.data(), kStride}, result.data(), nullptr);
  EXPECT_EQ(cuda::download(result), expected);
  EXPECT_THROW(cuda::compact_positions({}, {nullptr, nullptr, -1}, nullptr, nullptr), ShapeMismatch);
}

TYPED_TEST(CompactionParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const int64_t stride = cuda::padded<T>(16);
  const cuda::DeviceTensor<const T> rows{nullptr, 2, 4, 16, stride, 4 * stride};
  const auto compact_into = [&](cuda::DeviceTensor<T> compacted) {
    cuda::compact<T>(rows, nullptr, 0, nullptr, compacted, nullptr);
  };
  EXPECT_THROW(compact_into({nullptr, 3, 4, 16, stride, 4 * stride}), ShapeMismatch);
  EXPECT_THROW(compact_into({nullptr, 2, 4, 15, stride, 4 * stride}), ShapeMismatch);
  EXPECT_THROW(compact_into({nullptr, 2, 4, 16, stride + 1, 4 * stride}), ShapeMismatch);
  EXPECT_THROW(compact_into({nullptr, 2, 4, 16, stride - cuda::kVector<T>, 4 * stride}), ShapeMismatch);
  const auto compact_with = [&](cuda::DeviceTensor<const T> values, cuda::DeviceTensor<T> compacted_values) {
    cuda::compact<T>(rows, values, nullptr, 0, nullptr, {nullptr, 2, 4, 16, stride, 4 * stride},
                     compacted_values, nullptr);
  };
  EXPECT_THROW(compact_with(rows, {nullptr, 2, 5, 16, stride, 5 * stride}), ShapeMismatch);
  EXPECT_THROW(compact_with({nullptr, 2, 4, 15, stride, 4 * stride}, {nullptr, 2, 4, 15, stride, 4 * stride}),
               ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
