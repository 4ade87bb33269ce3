// An eviction that appends the next step's entry leaves what an eviction and an append behind it leave.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/cuda/session/append.hpp>
#include <kvbound/cuda/session/head_eviction.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>

#include "cache_slots.hpp"
#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

constexpr int64_t kHeads = 4, kHeadDim = 72, kSinks = 1, kPosition = 100'000;

// A cache of head_dim 72, of which head 0 evicts, head 1 has no more entries than its budget, head 2 not
// either and is full, and head 3 has one entry too many of which all are kept.
template <cuda::Storage T>
class Cache {
 public:
  explicit Cache(int64_t capacity)
      : capacity_(capacity),
        slots_({shuffled(1, capacity), ascending(capacity / 2), shuffled(2, capacity), {0, kPosition}},
               {3, 1, 2, 1}, capacity),
        keys_(random_tensor(3, kHeads, capacity, kHeadDim), nullptr),
        values_(random_tensor(4, kHeads, capacity, kHeadDim), nullptr),
        new_keys_(random_tensor(5, kHeads, 1, kHeadDim), nullptr),
        new_values_(random_tensor(6, kHeads, 1, kHeadDim), nullptr),
        scores_(singles(7, kHeads)),
        running_(singles(8, 2 * kHeads)),
        norms_(singles(9, 2 * kHeads)),
        counts_(cuda::upload(halves(capacity))),
        budgets_(cuda::upload(std::vector<int64_t>{capacity - 1, capacity, capacity, 1})),
        newest_(cuda::upload(std::vector<int64_t>(kHeads, kPosition))),
        next_positions_(
            cuda::upload(std::vector<int64_t>{kPosition + 1, kPosition + 5, kPosition + 2, kPosition + 9})),
        evicted_(cuda::upload(std::vector<int64_t>(kHeads, -7))),
        status_(cuda::upload(std::vector<int>{0})) {}

  void evict(bool critical, bool appends) {
    const auto next =
        appends ? std::optional(cuda::new_entries<T>(new_keys_.view(), new_values_.view(), keys_.view(),
                                                     values_.view(), slots_.view(), next_positions_.data()))
                : std::nullopt;
    const cuda::EvictionRules rules{kSinks, 1, false, budgets_.data()};
    if (critical) {
      const cuda::EvictionStages stages{running_.data(), norms_.data(), counts_.data(), nullptr, 1e-4};
      cuda::evict_critical(rules, slots_.view(), scores_.data(), stages, next, 2 * kHeads, newest_.data(),
                           evicted_.data(), status_.data(), nullptr);
    } else {
      const cuda::ScoreUpdate update{{.contributions = running_.data()},
                                     StepUpdate::replace,
                                     GroupReduction::mean,
                                     {.running = norms_.data()}};
      cuda::evict(rules, slots_.view(), update, next, 2 * kHeads, newest_.data(), evicted_.data(),
                  status_.data(), nullptr);
    }
  }
  void append() {
    cuda::append<T>(new_keys_.view(), new_values_.view(), keys_.view(), values_.view(), slots_.view(),
                    next_positions_.data(), nullptr, nullptr);
  }

  struct Contents {
    std::vector<std::vector<int64_t>> of_slots;
    std::vector<T> keys, values;
    std::vector<int64_t> evicted;
  };
  Contents contents() {
    cuda::synchronise(nullptr);
    return {slots_.contents(), cuda::download(keys_.numbers()), cuda::download(values_.numbers()),
            cuda::download(evicted_)};
  }

 private:
  cuda::Buffer<float> singles(uint64_t seed, int64_t rows) const {
    const Tensor numbers = rounded<float>(random_tensor(seed, 1, rows, capacity_));
    return cuda::upload(std::vector<float>(numbers.numbers().begin(), numbers.numbers().end()));
  }
  static std::vector<int64_t> halves(int64_t capacity) {
    std::vector<int64_t> counts;
    for (int64_t kept = 0; kept <= capacity; ++kept) counts.push_back(kept / 2);
    return counts;
  }

  int64_t capacity_;
  Slots slots_;
  cuda::StoredTensor<T> keys_, values_, new_keys_, new_values_;
  cuda::Buffer<float> scores_, running_, norms_;
  cuda::Buffer<int64_t> counts_, budgets_, newest_, next_positions_, evicted_;
  cuda::Buffer<int> status_;
};

template <class T>
class EvictAppendParity : public DeviceTest {};
TYPED_TEST_SUITE(EvictAppendParity, StorageTypes, StorageName);

template <cuda::Storage T>
void expect_equal(int64_t capacity, bool critical) {
  Cache<T> one_by_one(capacity), at_once(capacity);
  one_by_one.evict(critical, false);
  const std::vector<int64_t> evicted = one_by_one.contents().evicted;
  EXPECT_GE(evicted[0], 0);
  EXPECT_EQ(evicted[1], -1);
  one_by_one.append();
  at_once.evict(critical, true);
  const auto expected = one_by_one.contents(), actual = at_once.contents();
  EXPECT_EQ(actual.of_slots, expected.of_slots);
  EXPECT_TRUE(same_bits(actual.keys, expected.keys));
  EXPECT_TRUE(same_bits(actual.values, expected.values));
  EXPECT_EQ(actual.evicted, expected.evicted);
}

// 1,100 entries of a head are shared by a cluster's blocks where there are clusters.
TYPED_TEST(EvictAppendParity, LeavesWhatTheTwoLeaveUnderEverySchedule) {
  for (const bool critical : {false, true}) {
    for (const int64_t capacity : {8, 40, 1100}) {
      for_each_schedule([&](const std::string& schedule) {
        SCOPED_TRACE(std::to_string(capacity) + (critical ? " slots, two stages, " : " slots, ") + schedule);
        expect_equal<TypeParam>(capacity, critical);
        without_clusters([&] { expect_equal<TypeParam>(capacity, critical); });
      });
    }
  }
}

}  // namespace
}  // namespace kvbound::parity
