// order=merge-first on the device: parents within their bounds; roots, sums, kept entries and
// clusters exactly as they follow.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/cuda/eviction/selection.hpp>
#include <kvbound/cuda/merging/merge_first.hpp>
#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>
#include <kvbound/reference/merging/nearest_key.hpp>
#include <kvbound/reference/numerics/directions.hpp>

#include "clusters.hpp"
#include "keys.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

constexpr Keys kKinds[] = {Keys::random, Keys::duplicated, Keys::zero, Keys::equal};

struct Case {
  Keys kind = Keys::random;
  int64_t head_dim = 10;
  int64_t sinks = 2;
  int64_t candidates = 40;
  int64_t recent = 3;
  Positions k = {9, 4};  // per KV head
  std::optional<Decimal> threshold = Decimal{3, 1};
  int64_t scores = 1000;  // how many different ones
  cuda::SearchKernel kernel = cuda::SearchKernel::chosen;

  int64_t heads() const { return std::ssize(k); }
  int64_t tokens() const { return sinks + candidates + recent; }
};

template <class T>
class MergeFirstParity : public DeviceTest {
 protected:
  struct Result {
    Positions parents, roots, kept, counts, members, offsets;
    std::vector<float> cosines, sums;
  };

  struct Subject {
    Case c;
    Tensor keys;
    Matrix scores;  // [heads, candidates], exact in single precision

    explicit Subject(const Case& given)
        : c(given),
          keys(rounded<T>(keys_of(c.kind, c.heads(), c.tokens(), c.head_dim))),
          scores(c.heads(), c.candidates) {
      for (int64_t g = 0; g < c.heads(); ++g) {
        for (int64_t i = 0; i < c.candidates; ++i) {
          scores(g, i) = static_cast<double>((i * 7919 + 31 * g) % c.scores) / 1024;
        }
      }
    }
    int64_t capacity() const { return *std::ranges::max_element(c.k) + c.sinks + c.recent + 2; }

    Result run() const {
      const int64_t heads = c.heads(), count = c.candidates, tokens = c.tokens(), stride = count + 5;
      const Uploaded<T> all(keys);
      std::vector<float> numbers(heads * stride, std::nanf(""));
      for (int64_t g = 0; g < heads; ++g) {
        std::ranges::transform(scores.row(g), numbers.begin() + g * stride,
                               [](double score) { return static_cast<float>(score); });
      }
      const cuda::Buffer<float> device_scores = cuda::upload(numbers);
      cuda::DeviceTensor<const T> own = all.view();
      own.data += c.sinks * own.row_stride;
      own.rows = count;
      cuda::Buffer<float> norms(heads * count), cosines = cuda::upload(std::vector<float>(heads * count, -9));
      cuda::Buffer<int64_t> parents = cuda::upload(Positions(heads * count, -9)),
                            roots = cuda::upload(Positions(heads * count, -9)),
                            kept = cuda::upload(Positions(heads * capacity(), -5)),
                            counts = cuda::upload(Positions(heads, -5)), k = cuda::upload(c.k);
      Output sums(heads * count);
      const cuda::MergingCandidates candidates{c.sinks, count, tokens, {device_scores.data(), heads, stride}};
      const cuda::PositionLists lists{kept.data(), counts.data(), capacity()};
      WorkingMemory memory(cuda::merge_first_workspace(heads, tokens)),
          sorting(cuda::merge_targets_workspace(heads, tokens));
      cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
      cuda::key_norms<T>(own, nullptr, norms.data(), nullptr);
      cuda::nearest_better_keys<T>({own, norms.data()}, candidates.scores,
                                   {parents.data(), cosines.data(), count}, nullptr, c.kernel);
      cuda::merge_first(candidates, {parents.data(), cosines.data(), count}, {c.threshold}, k.data(),
                        {roots.data(), sums.data()}, lists, heads, status.data(), memory.view(), nullptr);
      cuda::Buffer<int64_t> leaving = cuda::upload(Positions(heads * tokens, -5)),
                            left = cuda::upload(Positions(heads, -5)),
                            members = cuda::upload(Positions(heads * tokens, -5)),
                            offsets = cuda::upload(Positions(heads * (capacity() + 1), -5));
      const cuda::PositionLists others{leaving.data(), left.data(), tokens};
      cuda::entries_left_out(lists, heads, tokens, others, sorting.view(), nullptr);
      cuda::root_clusters(candidates, roots.data(), lists, others, heads,
                          {members.data(), tokens, offsets.data(), capacity()}, memory.view(), nullptr);
      EXPECT_EQ(cuda::download(status), std::vector<int>{0});
      return {cuda::download(parents), cuda::download(roots),   cuda::download(kept),
              cuda::download(counts),  cuda::download(members), cuda::download(offsets),
              cuda::download(cosines), sums.numbers()};
    }
  };

  // No key of higher score is clearly nearer than the parent, and of equal ones it is the first.
  static void expect_parent(const Subject& subject, const Result& result, int64_t g, int64_t i) {
    const auto key = [&](int64_t j) { return subject.keys.slice(g).row(subject.c.sinks + j); };
    const auto cosine = [&](int64_t j) {
      return reference::cosine(key(i), reference::length(key(i)), key(j), reference::length(key(j)));
    };
    const std::vector<double> none(subject.c.head_dim);
    const cuda::SearchKernel kernel = subject.c.kernel == cuda::SearchKernel::chosen
                                          ? cuda::chosen_search_kernel<T>(subject.c.head_dim)
                                          : subject.c.kernel;
    const reference::Arithmetic arithmetic =
        reference::arithmetic_of(cuda::nearest_keys_arithmetic(subject.c.head_dim, kernel));
    const auto bound = [&](int64_t j) {
      return reference::cosine_error(key(i), none, key(j), none, arithmetic);
    };
    const int64_t parent = result.parents[g * subject.c.candidates + i];
    const double own = subject.scores(g, i);
    if (parent < 0) {
      for (int64_t j = 0; j < subject.c.candidates; ++j) EXPECT_LE(subject.scores(g, j), own);
      return;
    }
    EXPECT_GT(subject.scores(g, parent), own);
    EXPECT_NEAR(result.cosines[g * subject.c.candidates + i], cosine(parent), bound(parent));
    for (int64_t j = 0; j < subject.c.candidates; ++j) {
      if (!(subject.scores(g, j) > own)) continue;
      EXPECT_LE(cosine(j), cosine(parent) + bound(parent) + bound(j)) << "candidate " << i << " and " << j;
      const bool same = std::ranges::equal(key(j), key(parent));
      EXPECT_TRUE(!same || parent <= j) << "an equal key stands before the parent of " << i;
    }
  }

  static int64_t root_of(const Subject& subject, const Result& result, int64_t g, int64_t i) {
    const double limit = subject.c.threshold ? subject.c.threshold->value() : -2;
    for (int64_t links = 0; links <= subject.c.candidates; ++links) {
      const int64_t place = g * subject.c.candidates + i;
      if (result.parents[place] < 0 || !(result.cosines[place] > limit)) return i;
      i = result.parents[place];
    }
    ADD_FAILURE() << "parents form a cycle";
    return i;
  }

  static void expect_parity(const Case& c) {
    SCOPED_TRACE(std::to_string(c.candidates) + " candidates, kind " +
                 std::to_string(static_cast<int>(c.kind)) + ", k " + std::to_string(c.k.front()) + ", " +
                 std::to_string(c.scores) + " scores");
    const Subject subject(c);
    const Result result = subject.run();
    for (int64_t g = 0; g < c.heads(); ++g) {
      std::map<int64_t, Positions> clusters;
      for (int64_t i = 0; i < c.candidates; ++i) {
        expect_parent(subject, result, g, i);
        clusters[root_of(subject, result, g, i)].push_back(i);
        EXPECT_EQ(result.roots[g * c.candidates + i], root_of(subject, result, g, i));
      }
      Positions roots;
      std::vector<double> sums;
      for (const auto& [root, members] : clusters) {
        double sum = 0;
        for (const int64_t member : members) sum += subject.scores(g, member);
        roots.push_back(root);
        sums.push_back(sum);
        EXPECT_EQ(result.sums[g * c.candidates + root], sum) << "sums of a few multiples of 2^-10 are exact";
      }
      for (int64_t i = 0; i < c.candidates; ++i) {
        if (clusters.contains(i)) continue;
        EXPECT_EQ(result.sums[g * c.candidates + i], -std::numeric_limits<float>::infinity());
      }
      Positions kept(c.sinks);
      std::iota(kept.begin(), kept.end(), 0);
      for (const int64_t index : reference::select_top(sums, std::min(c.k[g], std::ssize(sums)))) {
        kept.push_back(c.sinks + roots[index]);
      }
      for (int64_t i = 0; i < c.recent; ++i) kept.push_back(c.sinks + c.candidates + i);
      ASSERT_EQ(result.counts[g], std::ssize(kept));
      const auto first = result.kept.begin() + g * subject.capacity();
      EXPECT_EQ(Positions(first, first + std::ssize(kept)), kept);
      EXPECT_TRUE(std::all_of(first + std::ssize(kept), first + subject.capacity(),
                              [](int64_t p) { return p == -5; }));
      for (int64_t i = 0; i < subject.capacity(); ++i) {
        Positions expected;
        if (i < std::ssize(kept) && clusters.contains(kept[i] - c.sinks)) {
          for (const int64_t member : clusters[kept[i] - c.sinks]) {
            if (c.sinks + member != kept[i]) expected.push_back(c.sinks + member);
          }
        }
        const int64_t* const range = result.offsets.data() + g * (subject.capacity() + 1) + i;
        const auto members = result.members.begin() + g * c.tokens();
        EXPECT_EQ(Positions(members + range[0], members + range[1]), expected) << "kept entry " << i;
      }
    }
  }
};
TYPED_TEST_SUITE(MergeFirstParity, StorageTypes, StorageName);

TYPED_TEST(MergeFirstParity, FollowsTheDefinitionAcrossSizes) {
  for (const int64_t candidates : {1, 31, 32, 33, 64, 65, 300}) {
    for (const int64_t k : {int64_t{0}, int64_t{1}, candidates / 4, candidates}) {
      for (const auto kernel : {cuda::SearchKernel::chosen, cuda::SearchKernel::portable}) {
        this->expect_parity({.candidates = candidates, .k = {k, candidates / 2}, .kernel = kernel});
      }
    }
  }
}

TYPED_TEST(MergeFirstParity, FollowsTheDefinitionForEveryKindOfKeysAndThreshold) {
  for (const Keys kind : kKinds) {
    for (const std::optional<Decimal>& threshold :
         {std::optional<Decimal>{}, std::optional(Decimal{0, 0}), std::optional(Decimal{9, 1})}) {
      for (const int64_t scores : {1, 3, 1000}) {
        this->expect_parity({.kind = kind,
                             .head_dim = 40,
                             .candidates = 90,
                             .k = {20, 90},
                             .threshold = threshold,
                             .scores = scores});
      }
    }
  }
}

TYPED_TEST(MergeFirstParity, FollowsTheDefinitionWithoutAlwaysKeptEntries) {
  this->expect_parity({.sinks = 0, .candidates = 70, .recent = 0, .k = {70, 5, 0}});
}

TYPED_TEST(MergeFirstParity, OneRootAttractsThousands) {
  this->expect_parity({.kind = Keys::equal, .head_dim = 8, .candidates = 2000, .k = {7}, .scores = 2000});
}

TYPED_TEST(MergeFirstParity, GivesTheSameUnderEverySchedule) {
  const typename TestFixture::Subject subject(
      {.kind = Keys::duplicated, .head_dim = 64, .candidates = 200, .k = {30, 9}});
  in_every_schedule([&] { return subject.run().roots; });
  in_every_schedule([&] { return subject.run().sums; });
  in_every_schedule([&] { return subject.run().kept; });
  in_every_schedule([&] { return subject.run().offsets; });
}

class MergeFirstOperations : public DeviceTest {};

// Every chain of so many candidates ends at its first one, a link at a time.
TEST_F(MergeFirstOperations, BlocksOfAClusterFollowChainsTogetherUnderEverySchedule) {
  constexpr int64_t kCount = 5000, kChain = 1000, kKept = 3;
  Positions parents(kCount), expected(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    parents[i] = i % kChain == 0 ? -1 : i - 1;
    expected[i] = i - i % kChain;
  }
  const auto run = [&] {
    cuda::Buffer<int64_t> links = cuda::upload(parents), k = cuda::upload(Positions{kKept});
    const std::vector<float> ones(kCount, 1);
    const cuda::Buffer<float> scores = cuda::upload(ones);
    cuda::Buffer<float> cosines = cuda::upload(ones);
    cuda::Buffer<int64_t> roots(kCount), kept(kCount), count(1);
    cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
    Output sums(kCount);
    WorkingMemory memory(cuda::merge_first_workspace(1, kCount));
    cuda::merge_first({0, kCount, kCount, {scores.data(), 1, kCount}}, {links.data(), cosines.data(), kCount},
                      {}, k.data(), {roots.data(), sums.data()}, {kept.data(), count.data(), kCount}, 1,
                      status.data(), memory.view(), nullptr);
    EXPECT_EQ(cuda::download(count), Positions{kKept});
    Positions first = cuda::download(kept);
    first.resize(kKept);
    EXPECT_EQ(first, (Positions{0, kChain, 2 * kChain})) << "of equal sums the first";
    EXPECT_EQ(sums.numbers()[4 * kChain], static_cast<float>(kChain));
    return cuda::download(roots);
  };
  in_every_schedule(run);
  EXPECT_EQ(run(), expected);
  without_clusters([&] { EXPECT_EQ(run(), expected); });
}

TEST_F(MergeFirstOperations, RefuseShapesThatDoNotFit) {
  WorkingMemory memory(cuda::merge_first_workspace(2, 10));
  const auto merge = [&](const cuda::MergingCandidates& candidates, int64_t stride, cuda::Workspace working) {
    cuda::merge_first(candidates, {nullptr, nullptr, stride}, {}, nullptr, {}, {nullptr, nullptr, 3}, 2,
                      nullptr, working, nullptr);
  };
  EXPECT_THROW(merge({1, 10, 10, {nullptr, 2, 10}}, 10, memory.view()), ShapeMismatch)
      << "more than there are";
  EXPECT_THROW(merge({1, 9, 10, {nullptr, 3, 10}}, 10, memory.view()), ShapeMismatch)
      << "scores of other heads";
  EXPECT_THROW(merge({1, 9, 10, {nullptr, 2, 10}}, 8, memory.view()), ShapeMismatch) << "too few parents";
  EXPECT_THROW(merge({1, 9, 10, {nullptr, 2, 10}}, 9, {}), ShapeMismatch) << "no workspace";
  EXPECT_THROW(merge({0, 9, cuda::kMostScores + 1, {nullptr, 2, 10}}, 9, memory.view()), ShapeMismatch);
  EXPECT_THROW(cuda::root_clusters({1, 9, 10, {nullptr, 2, 10}}, nullptr, {}, {nullptr, nullptr, 11}, 2, {},
                                   memory.view(), nullptr),
               ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
