// append copies bits: every KV head's new row goes behind its last row, and nothing else is written.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/cuda/session/append.hpp>
#include <kvbound/reference/core/error.hpp>

#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

template <class T>
class AppendParity : public DeviceTest {};
TYPED_TEST_SUITE(AppendParity, StorageTypes, StorageName);

constexpr int64_t kCapacity = 5;

// A tensor of arbitrary bits, NaN included, with a gap behind each row.
template <cuda::Storage T>
struct Rows {
  int64_t slices, rows, cols;
  std::vector<T> numbers;

  Rows(uint64_t seed, int64_t slice_count, int64_t row_count, int64_t col_count)
      : slices(slice_count), rows(row_count), cols(col_count), numbers(slices * rows * stride()) {
    uint64_t state = seed;
    for (T& number : numbers) {
      state = state * 0x5851f42d4c957f2d + 0x14057b7ef767814f;
      const auto bits = static_cast<uint32_t>(state >> 32);
      std::memcpy(static_cast<void*>(&number), &bits, sizeof(T));
    }
  }

  int64_t stride() const { return cuda::padded<T>(cols) + cuda::kVector<T>; }
  auto row(int64_t slice, int64_t i) { return numbers.begin() + (slice * rows + i) * stride(); }
  cuda::DeviceTensor<T> view(cuda::Buffer<T>& buffer) const {
    return {buffer.data(), slices, rows, cols, stride(), rows * stride()};
  }
};

// The numbers of CacheSlots in device memory.
struct Slots {
  cuda::Buffer<int64_t> entries, free, newest, positions;
  cuda::Buffer<float> votes, log_votes;

  Slots(const std::vector<int64_t>& counts, const std::vector<int64_t>& free_slots)
      : entries(std::span<const int64_t>(counts)),
        free(std::span<const int64_t>(free_slots)),
        newest(std::span<const int64_t>(std::vector<int64_t>(counts.size(), -7))),
        positions(std::span<const int64_t>(std::vector<int64_t>(counts.size() * kCapacity, -9))),
        votes(std::span<const float>(std::vector<float>(counts.size() * kCapacity, 3))),
        log_votes(std::span<const float>(std::vector<float>(counts.size() * kCapacity, 5))) {}

  cuda::CacheSlots view() {
    return {entries.size(), kCapacity,        entries.data(), free.data(),
            newest.data(),  positions.data(), votes.data(),   log_votes.data()};
  }
};

// free: per head the slot that an eviction left, -1 for none
template <cuda::Storage T>
void expect_appended(int64_t head_dim, std::vector<int64_t> entries, std::vector<int64_t> free) {
  constexpr int64_t kPosition = 4711;
  const auto heads = std::ssize(entries);
  Rows<T> keys(1, heads, kCapacity, head_dim), values(2, heads, kCapacity, head_dim);
  Rows<T> new_keys(3, heads, 1, head_dim), new_values(4, heads, 1, head_dim);
  cuda::Buffer<T> key_memory{std::span<const T>(keys.numbers)},
      value_memory{std::span<const T>(values.numbers)};
  cuda::Buffer<T> new_key_memory{std::span<const T>(new_keys.numbers)};
  cuda::Buffer<T> new_value_memory{std::span<const T>(new_values.numbers)};
  Slots slots(entries, free);
  std::vector<int64_t> new_positions(heads);
  std::iota(new_positions.begin(), new_positions.end(), kPosition);
  const cuda::Buffer<int64_t> device_positions = cuda::upload(new_positions);
  cuda::append<T>(new_keys.view(new_key_memory), new_values.view(new_value_memory), keys.view(key_memory),
                  values.view(value_memory), slots.view(), device_positions.data(), nullptr, nullptr);
  cuda::synchronise(nullptr);
  std::vector<int64_t> newest(heads, -1), positions(heads * kCapacity, -9);
  std::vector<float> votes(heads * kCapacity, 3), log_votes(heads * kCapacity, 5);
  for (int64_t g = 0; g < heads; ++g) {
    if (free[g] < 0 && entries[g] == kCapacity) continue;
    newest[g] = free[g] < 0 ? entries[g]++ : free[g];
    free[g] = -1;
    positions[g * kCapacity + newest[g]] = kPosition + g;
    votes[g * kCapacity + newest[g]] = 1;
    log_votes[g * kCapacity + newest[g]] = 0;
    std::copy_n(new_keys.row(g, 0), cuda::padded<T>(head_dim), keys.row(g, newest[g]));
    std::copy_n(new_values.row(g, 0), cuda::padded<T>(head_dim), values.row(g, newest[g]));
  }
  EXPECT_TRUE(same_bits(download(key_memory), keys.numbers));
  EXPECT_TRUE(same_bits(download(value_memory), values.numbers));
  EXPECT_EQ(download(slots.entries), entries);
  EXPECT_EQ(download(slots.free), free);
  EXPECT_EQ(download(slots.newest), newest);
  EXPECT_EQ(download(slots.positions), positions);
  EXPECT_EQ(download(slots.votes), votes);
  EXPECT_EQ(download(slots.log_votes), log_votes);
}

TYPED_TEST(AppendParity, WritesOneRowBehindEachHeadsLastAndLeavesAFullHeadAlone) {
  for (const int64_t head_dim : {1, 8, 10, 64, 80, 128, 256}) {
    for_each_schedule([&](const std::string& schedule) {
      SCOPED_TRACE("head_dim " + std::to_string(head_dim) + ", " + schedule);
      expect_appended<TypeParam>(head_dim, {0, 3, kCapacity, kCapacity - 1}, {-1, -1, -1, -1});
    });
  }
}

TYPED_TEST(AppendParity, TakesTheFreeSlotWhereThereIsOne) {
  for_each_schedule([&](const std::string& schedule) {
    SCOPED_TRACE(schedule);
    expect_appended<TypeParam>(10, {3, kCapacity, kCapacity, 1}, {-1, 0, kCapacity - 1, 0});
  });
}

TYPED_TEST(AppendParity, KeepsTheLengthsOfNewKeys) {
  using T = TypeParam;
  const std::vector<int64_t> entries{3, kCapacity, kCapacity}, free{-1, 1, -1};
  for (const int64_t head_dim : {1, 10, 64, 128, 256}) {
    SCOPED_TRACE(head_dim);
    const Uploaded<T> new_rows(rounded<T>(random_tensor(7, 3, 1, head_dim)));
    Rows<T> cache(1, 3, kCapacity, head_dim);
    cuda::Buffer<T> memory{std::span<const T>(cache.numbers)};
    Slots slots(entries, free);
    const cuda::Buffer<int64_t> new_positions = cuda::upload(std::vector<int64_t>(3, 9));
    cuda::Buffer<float> norms = cuda::upload(std::vector<float>(3 * kCapacity, -7)), new_norms(3);
    cuda::key_norms<T>(new_rows.view(), nullptr, new_norms.data(), nullptr);
    cuda::append<T>(new_rows.view(), new_rows.view(), cache.view(memory), cache.view(memory), slots.view(),
                    new_positions.data(), norms.data(), nullptr);
    cuda::synchronise(nullptr);
    std::vector<float> expected(3 * kCapacity, -7);
    expected[3] = cuda::download(new_norms)[0];
    expected[kCapacity + 1] = cuda::download(new_norms)[1];
    EXPECT_EQ(cuda::download(norms), expected);
  }
}

class AppendNumbersParity : public DeviceTest {};

TEST_F(AppendNumbersParity, WritesEachHeadsNumberToItsNewestSlot) {
  for (const int64_t group_size : {1, 3, 33}) {
    for_each_schedule([&](const std::string& schedule) {
      SCOPED_TRACE(schedule + ", groups of " + std::to_string(group_size));
      const std::vector<int64_t> newest{2, -1, 0, 4};
      Slots slots({3, 5, 5, 5}, {-1, -1, -1, -1});
      slots.newest = cuda::upload(newest);
      const int64_t heads = 4 * group_size;
      std::vector<float> numbers, expected(heads * kCapacity, -1);
      for (int64_t h = 0; h < heads; ++h) {
        numbers.push_back(static_cast<float>(h) + 0.5f);
        const int64_t slot = newest[h / group_size];
        if (slot >= 0) expected[h * kCapacity + slot] = numbers.back();
      }
      const cuda::Buffer<float> from = cuda::upload(numbers);
      cuda::Buffer<float> to = cuda::upload(std::vector<float>(expected.size(), -1));
      cuda::append_numbers(from.data(), heads, slots.view(), to.data(), nullptr);
      cuda::synchronise(nullptr);
      EXPECT_EQ(cuda::download(to), expected);
    });
  }
  Slots slots({1, 1}, {-1, -1});
  EXPECT_THROW(cuda::append_numbers(nullptr, 3, slots.view(), nullptr, nullptr), ShapeMismatch);
}

TYPED_TEST(AppendParity, RefusesShapesThatDoNotFit) {
  const auto call = [](int64_t new_heads, int64_t new_rows, int64_t new_cols, int64_t value_rows) {
    cuda::Buffer<TypeParam> memory(std::vector<TypeParam>(1000));
    const auto view = [&](int64_t slices, int64_t rows, int64_t cols) {
      return Rows<TypeParam>(1, slices, rows, cols).view(memory);
    };
    cuda::append<TypeParam>(view(new_heads, new_rows, new_cols), view(2, 1, 8), view(2, kCapacity, 8),
                            view(2, value_rows, 8), {2, kCapacity}, nullptr, nullptr, nullptr);
  };
  const auto call_for_head_dim = [](int64_t head_dim) {
    cuda::Buffer<TypeParam> memory(std::vector<TypeParam>(4000));
    const auto view = [&](int64_t rows) { return Rows<TypeParam>(1, 1, rows, head_dim).view(memory); };
    cuda::append<TypeParam>(view(1), view(1), view(kCapacity), view(kCapacity), {1, kCapacity}, nullptr,
                            nullptr, nullptr);
  };
  EXPECT_THROW(call(3, 1, 8, kCapacity), ShapeMismatch);
  EXPECT_THROW(call(2, 2, 8, kCapacity), ShapeMismatch);
  EXPECT_THROW(call(2, 1, 9, kCapacity), ShapeMismatch);
  EXPECT_THROW(call(2, 1, 8, kCapacity + 1), ShapeMismatch);
  EXPECT_THROW(call_for_head_dim(257), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
