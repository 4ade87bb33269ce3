// The clusters on the device: exactly the entries that the definition puts into each, in ascending order.
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/cuda/eviction/selection.hpp>
#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>

#include "clusters.hpp"
#include "scores.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

// `count` of `tokens` positions, ascending.
Positions spread(int64_t count, int64_t tokens) {
  Positions positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(i * tokens / count);
  return positions;
}

struct Case {
  int64_t tokens = 40;
  std::vector<int64_t> kept = {13, 5};  // per KV head
  std::optional<Decimal> threshold = Decimal{8, 1};
  bool sink = false;  // nearly all entries have the same target
};

class MergeTargetsParity : public DeviceTest {
 protected:
  struct Result {
    std::vector<Positions> left_out;
    std::vector<std::vector<Positions>> clusters;  // per KV head and kept entry
  };

  // The target and cosine of each head's i-th leaving entry.
  static int64_t target_of(const Case& c, int64_t g, int64_t i) {
    if (c.kept[g] == 0) return -1;
    return c.sink && i % 50 != 49 ? 0 : (i * 7919 + g) % c.kept[g];
  }
  static float cosine_of(int64_t g, int64_t i) { return static_cast<float>((i * 31 + g) % 101) / 100; }

  static Result run(const Case& c) {
    const auto heads = std::ssize(c.kept);
    const int64_t capacity = *std::ranges::max_element(c.kept) + 2;
    std::vector<Positions> kept;
    for (const int64_t count : c.kept) kept.push_back(spread(count, c.tokens));
    Lists kept_lists(kept, std::max<int64_t>(capacity, 1)), leaving(std::vector<Positions>(heads), c.tokens);
    WorkingMemory memory(cuda::merge_targets_workspace(heads, c.tokens));
    cuda::entries_left_out(kept_lists.view(), heads, c.tokens, leaving.view(), memory.view(), nullptr);
    cuda::synchronise(nullptr);
    Result result{leaving.download(), {}};
    Positions index(heads * c.tokens, -9);
    std::vector<float> cosines(heads * c.tokens, -9);
    for (int64_t g = 0; g < heads; ++g) {
      for (int64_t i = 0; i < std::ssize(result.left_out[g]); ++i) {
        index[g * c.tokens + i] = target_of(c, g, i);
        cosines[g * c.tokens + i] = cosine_of(g, i);
      }
    }
    cuda::Buffer<int64_t> device_index = cuda::upload(index);
    cuda::Buffer<float> device_cosine = cuda::upload(cosines);
    Positions spare(heads * c.tokens, -5);
    cuda::Buffer<int64_t> members = cuda::upload(spare),
                          offsets = cuda::upload(Positions(heads * (capacity + 1), -5));
    cuda::form_clusters(leaving.view(), {device_index.data(), device_cosine.data(), c.tokens}, {c.threshold},
                        heads, c.tokens, {members.data(), c.tokens, offsets.data(), capacity}, memory.view(),
                        nullptr);
    cuda::synchronise(nullptr);
    const Positions all = cuda::download(members), first = cuda::download(offsets);
    for (int64_t g = 0; g < heads; ++g) {
      std::vector<Positions>& clusters = result.clusters.emplace_back();
      for (int64_t i = 0; i < capacity; ++i) {
        const int64_t* range = first.data() + g * (capacity + 1) + i;
        clusters.emplace_back(all.begin() + g * c.tokens + range[0], all.begin() + g * c.tokens + range[1]);
      }
    }
    return result;
  }

  static void expect_parity(const Case& c) {
    SCOPED_TRACE(std::to_string(c.tokens) + " tokens, " + std::to_string(c.kept.front()) + " kept");
    const Result result = run(c);
    for (size_t g = 0; g < c.kept.size(); ++g) {
      const auto head = static_cast<int64_t>(g);
      const Positions left_out = reference::others_than(spread(c.kept[g], c.tokens), c.tokens);
      EXPECT_EQ(result.left_out[g], left_out);
      std::vector<Positions> expected(result.clusters[g].size());
      for (int64_t i = 0; i < std::ssize(left_out); ++i) {
        const int64_t target = target_of(c, head, i);
        if (target >= 0 && reference::is_similar(cosine_of(head, i), {c.threshold})) {
          expected[target].push_back(left_out[i]);
        }
      }
      EXPECT_EQ(result.clusters[g], expected) << "KV head " << g;
    }
  }
};

TEST_F(MergeTargetsParity, FormsTheClustersOfTheDefinition) {
  for (const int64_t tokens : {1, 31, 32, 33, 100, 3000}) {
    for (const int64_t kept : {int64_t{0}, int64_t{1}, tokens / 3, tokens}) {
      expect_parity({.tokens = tokens, .kept = {kept, tokens / 2, 1}});
    }
  }
}

TEST_F(MergeTargetsParity, DropsEntriesWhoseCosineIsTheThreshold) {
  expect_parity({.tokens = 300, .kept = {40, 9}, .threshold = Decimal{75, 2}});  // exact in fp32
}

TEST_F(MergeTargetsParity, MergesAllWithoutAThreshold) {
  expect_parity({.tokens = 500, .kept = {60, 7}, .threshold = {}});
}

TEST_F(MergeTargetsParity, FormsAClusterOfThousands) {
  expect_parity({.tokens = 5000, .kept = {900, 300}, .threshold = {}, .sink = true});
}

TEST_F(MergeTargetsParity, SortsByTargetsOfTwoAndThreeBytes) {
  expect_parity({.tokens = 2000, .kept = {700, 300}, .threshold = {}});
  expect_parity({.tokens = 70000, .kept = {66000, 20}, .threshold = {}});
}

TEST_F(MergeTargetsParity, GivesTheSameUnderEverySchedule) {
  const Case c{.tokens = 600, .kept = {200, 31}, .threshold = {}, .sink = true};
  in_every_schedule([&] { return run(c).clusters.front(); });
}

// More than 4,096 tokens, of which the blocks of a cluster sort a part each.
TEST_F(MergeTargetsParity, AClusterGivesTheSameUnderEverySchedule) {
  const Case c{.tokens = 4500, .kept = {400}, .threshold = {}, .sink = true};
  in_every_schedule([&] { return run(c).clusters.front(); });
  expect_parity(c);
  without_clusters([&] { expect_parity(c); });
}

TEST_F(MergeTargetsParity, JoinsAnEvictedEntryToItsNearestOne) {
  constexpr int64_t kHeads = 70, kCapacity = 5, kColumns = 8;
  constexpr std::array<double, 5> kThreeQuarters{3, 2, 1, 1, 1}, kFourFifths{4, 3};  // of lengths 4 and 5
  Positions free, nearest, positions, entries;
  Tensor keys(kHeads, kCapacity, kColumns);
  for (int64_t g = 0; g < kHeads; ++g) {
    const bool is_alone = g % 7 == 6;
    free.push_back(g % 4 == 0 ? -1 : is_alone ? 0 : g % kCapacity);
    nearest.push_back(is_alone ? -1 : (g + 2) % kCapacity);
    entries.push_back(is_alone ? 1 : kCapacity);
    for (int64_t slot = 0; slot < kCapacity; ++slot) {
      positions.push_back(100 * g + slot * 3);
      double* const key = keys.data() + (g * kCapacity + slot) * kColumns;
      if (slot == free.back()) {
        key[0] = 1;
      } else if (slot != nearest.back()) {
        key[1] = 1;
      } else {
        std::ranges::copy(g % 3 == 0 ? kThreeQuarters : kFourFifths, key);
      }
    }
  }
  const Uploaded<float> device_keys(keys);
  cuda::Buffer<float> norms(kHeads * kCapacity), cosines(kHeads);
  cuda::key_norms<float>(device_keys.view(), nullptr, norms.data(), nullptr);
  cuda::Buffer<int64_t> device_free = cuda::upload(free), device_entries = cuda::upload(entries),
                        device_positions = cuda::upload(positions), device_nearest(kHeads);
  const Positions nothing(2 * kHeads, -9);
  cuda::Buffer<int64_t> kept = cuda::upload(nothing), count = cuda::upload(nothing),
                        members = cuda::upload(nothing), offsets = cuda::upload(nothing),
                        into = cuda::upload(nothing);
  const cuda::CacheSlots slots{
      kHeads, kCapacity, device_entries.data(), device_free.data(), nullptr, device_positions.data()};
  cuda::join_nearest<float>(
      {device_keys.view(), norms.data()}, slots, {device_nearest.data(), cosines.data(), 1}, {Decimal{75, 2}},
      {kept.data(), count.data(), 1}, {members.data(), 1, offsets.data(), 1}, into.data(), nullptr);
  const Positions all_kept = cuda::download(kept), counts = cuda::download(count),
                  all = cuda::download(members), first = cuda::download(offsets),
                  joined = cuda::download(into);
  for (int64_t g = 0; g < kHeads; ++g) {
    SCOPED_TRACE(g);
    const bool merges = free[g] >= 0 && nearest[g] >= 0 && g % 3 != 0;
    EXPECT_EQ(counts[g], merges ? 1 : 0);
    EXPECT_EQ(first[2 * g], 0);
    EXPECT_EQ(first[2 * g + 1], merges ? 1 : 0);
    if (merges) {
      EXPECT_EQ(all_kept[g], nearest[g]);
      EXPECT_EQ(all[g], free[g]);
    }
    const int64_t dropped = free[g] >= 0 ? kNotMerged : kNothingEvicted;
    EXPECT_EQ(joined[g], merges ? positions[g * kCapacity + nearest[g]] : dropped);
  }
  EXPECT_EQ(joined[kHeads], -9);
}

TEST_F(MergeTargetsParity, RefusesWhatDoesNotFit) {
  const Uploaded<float> keys(Tensor(2, 5, 8));
  const auto join = [&](const cuda::CacheSlots& slots, int64_t nearest, int64_t stride, int64_t capacity) {
    cuda::join_nearest<float>({keys.view()}, slots, {nullptr, nullptr, nearest}, {}, {},
                              {nullptr, stride, nullptr, capacity}, nullptr, nullptr);
  };
  EXPECT_THROW(join({1, 5}, 1, 1, 1), ShapeMismatch);
  EXPECT_THROW(join({2, 4}, 1, 1, 1), ShapeMismatch);
  EXPECT_THROW(join({2, 5}, 2, 1, 1), ShapeMismatch);
  EXPECT_THROW(join({2, 5}, 1, 2, 1), ShapeMismatch);
  EXPECT_THROW(join({2, 5}, 1, 1, 2), ShapeMismatch);
  WorkingMemory memory(cuda::merge_targets_workspace(2, 10) - 1);
  EXPECT_THROW(cuda::entries_left_out({}, 2, 10, {}, memory.view(), nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::form_clusters({}, {}, {}, 2, 10, {}, memory.view(), nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::entries_left_out({}, 2, cuda::kMostScores + 1, {}, {}, nullptr), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
