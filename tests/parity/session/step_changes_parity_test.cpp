// keep_changes: the lengths of merged keys are those of key_norms; all else is copied, bit for bit, and
// nothing else is written.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/cuda/session/step_changes.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/error.hpp>

#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

constexpr int64_t kHeads = 3, kGroup = 70, kCapacity = 5, kQueryHeads = kHeads * kGroup;
// The second head's entry has not merged.
const std::vector<int64_t> kKept{3, -1, 0}, kCounts{1, 0, 1}, kMembers{2, 4, 4};

std::vector<float> numbered(int64_t count, float first) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(first + static_cast<float>(i));
  return numbers;
}

template <cuda::Storage T>
class StepChangesParity : public DeviceTest {
 protected:
  struct Result {
    std::vector<float> key_norms, votes, kept_scores, member_scores;
    std::vector<T> keys, values;  // padded
  };

  static std::vector<T> padded_row(VectorView row) {
    std::vector<T> numbers(cuda::padded<T>(std::ssize(row)));
    std::ranges::transform(row, numbers.begin(), [](double number) { return stored<T>(number); });
    return numbers;
  }
  static std::vector<T> row_of(const std::vector<T>& rows, int64_t g) {
    const int64_t size = std::ssize(rows) / kHeads;
    return {rows.begin() + g * size, rows.begin() + (g + 1) * size};
  }

  static Result run(const Tensor& keys, const Tensor& values, bool has_votes, bool has_scores) {
    const int64_t head_dim = keys.view().cols;
    const Uploaded<T> device_keys(keys), device_values(values);
    cuda::Buffer<int64_t> kept = cuda::upload(kKept), counts = cuda::upload(kCounts),
                          members = cuda::upload(kMembers);
    cuda::Buffer<float> key_norms = cuda::upload(std::vector<float>(kHeads * kCapacity, -7)),
                        votes = cuda::upload(numbered(kHeads * kCapacity, 100)),
                        scores = cuda::upload(numbered(kQueryHeads * kCapacity, 0.5f)),
                        changed = cuda::upload(std::vector<float>(kHeads, -7)),
                        of_kept = cuda::upload(std::vector<float>(kQueryHeads, -7)),
                        of_members = cuda::upload(std::vector<float>(kQueryHeads, -7));
    cuda::StoredTensor<T> new_keys(kHeads, 1, head_dim), new_values(kHeads, 1, head_dim);
    const cuda::CacheSlots slots{
        kHeads, kCapacity, nullptr, nullptr, nullptr, nullptr, has_votes ? votes.data() : nullptr};
    cuda::keep_changes<T>(
        device_keys.view(), device_values.view(), slots,
        {{kept.data(), counts.data(), 1}, {members.data(), 1, nullptr, 1}, kept.data()}, kQueryHeads,
        {key_norms.data(), new_keys.view(), new_values.view(), has_votes ? changed.data() : nullptr,
         has_scores ? scores.data() : nullptr, of_kept.data(), of_members.data()},
        nullptr);
    cuda::synchronise(nullptr);
    return {cuda::download(key_norms),
            cuda::download(changed),
            cuda::download(of_kept),
            cuda::download(of_members),
            cuda::download(new_keys.numbers()),
            cuda::download(new_values.numbers())};
  }

  static void expect_changes(int64_t head_dim, bool has_votes, bool has_scores) {
    const Tensor keys = rounded<T>(random_tensor(1, kHeads, kCapacity, head_dim)),
                 values = rounded<T>(random_tensor(2, kHeads, kCapacity, head_dim));
    const Uploaded<T> device_keys(keys);
    cuda::Buffer<float> all_norms(kHeads * kCapacity);
    cuda::key_norms<T>(device_keys.view(), nullptr, all_norms.data(), nullptr);
    const std::vector<float> norms = cuda::download(all_norms);
    const Result result = run(keys, values, has_votes, has_scores);
    std::vector<float> expected(kHeads * kCapacity, -7);
    for (int64_t g = 0; g < kHeads; ++g) {
      if (kCounts[g] == 0) continue;
      const int64_t place = g * kCapacity + kKept[g];
      expected[place] = norms[place];
      EXPECT_TRUE(same_bits(row_of(result.keys, g), padded_row(keys.slice(g).row(kKept[g]))));
      EXPECT_TRUE(same_bits(row_of(result.values, g), padded_row(values.slice(g).row(kKept[g]))));
    }
    EXPECT_EQ(result.key_norms, expected);
    const auto copied = [](bool is_copied, int64_t group, float first, const std::vector<int64_t>& slots) {
      std::vector<float> numbers(kHeads * group, -7);
      for (int64_t h = 0; is_copied && h < kHeads * group; ++h) {
        const int64_t g = h / group;
        if (kCounts[g] > 0) numbers[h] = first + static_cast<float>(h * kCapacity + slots[g]);
      }
      return numbers;
    };
    EXPECT_EQ(result.votes, copied(has_votes, 1, 100, kKept));
    EXPECT_EQ(result.kept_scores, copied(has_scores, kGroup, 0.5f, kKept));
    EXPECT_EQ(result.member_scores, copied(has_scores, kGroup, 0.5f, kMembers));
  }
};
TYPED_TEST_SUITE(StepChangesParity, StorageTypes, StorageName);

TYPED_TEST(StepChangesParity, KeepsWhatMergesChange) {
  for (const int64_t head_dim : {1, 8, 10, 64, 80, 128, 200, 256}) {
    for_each_schedule([&](const std::string& schedule) {
      SCOPED_TRACE("head_dim " + std::to_string(head_dim) + ", " + schedule);
      TestFixture::expect_changes(head_dim, true, true);
    });
  }
}

TYPED_TEST(StepChangesParity, KeepsNoVotesOrScoresWhereThereAreNone) {
  TestFixture::expect_changes(10, false, true);
  TestFixture::expect_changes(10, true, false);
}

TYPED_TEST(StepChangesParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const Uploaded<T> rows(Tensor(2, 4, 8)), narrow(Tensor(2, 4, 7)), wide(Tensor(2, 4, 257));
  cuda::StoredTensor<T> copies(2, 1, 8);
  const auto call = [&](const Uploaded<T>& keys, const Uploaded<T>& values, int64_t capacity,
                        int64_t query_heads, int64_t stride) {
    cuda::keep_changes<T>(keys.view(), values.view(), {2, capacity},
                          {{nullptr, nullptr, stride}, {}, nullptr}, query_heads,
                          {nullptr, copies.view(), copies.view()}, nullptr);
  };
  EXPECT_THROW(call(rows, narrow, 4, 2, 1), ShapeMismatch);
  EXPECT_THROW(call(narrow, narrow, 4, 2, 1), ShapeMismatch);
  EXPECT_THROW(call(wide, wide, 4, 2, 1), ShapeMismatch);
  EXPECT_THROW(call(rows, rows, 5, 2, 1), ShapeMismatch);
  EXPECT_THROW(call(rows, rows, 4, 3, 1), ShapeMismatch);
  EXPECT_THROW(call(rows, rows, 4, 2, 2), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
