#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/attention_variants.hpp>
#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/eviction/obcache.hpp>
#include <kvbound/cuda/eviction/snap_kv.hpp>
#include <kvbound/cuda/eviction/value_space.hpp>
#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/cuda/session/session.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/infinity.hpp>

#include "distributions.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

// A layer's cache and one query per query head, in double precision, before they are
// rounded to the storage type.
struct Case {
  int64_t kv_heads = 2;
  int64_t group_size = 4;
  int64_t head_dim = 10;
  std::vector<int64_t> entries;  // [kv_heads]
  int64_t capacity = 0;          // raised to the largest of `entries`
  Distribution distribution = Distribution::random;
  bool votes = false;
  int64_t segments = 1;

  int64_t query_heads() const { return kv_heads * group_size; }
  int64_t most_entries() const { return *std::ranges::max_element(entries); }
  int64_t room() const { return std::max(capacity, most_entries()); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << c.kv_heads << " x " << c.group_size << " heads of " << c.head_dim << ", " << name(c.distribution)
      << (c.votes ? ", votes" : "") << ", entries";
  for (const int64_t entries : c.entries) out << " " << entries;
  return out << " of " << c.room();
}

// The case's numbers rounded to T, and the device's results for them.
template <cuda::Storage T>
class Subject {
 public:
  explicit Subject(const Case& c)
      : case_(c),
        queries_(rounded<T>(random_tensor(1, 1, c.query_heads(), c.head_dim))),
        keys_(rounded<T>(keys_of(c.distribution, 2, group_queries(), c.most_entries(), c.scale()))),
        values_(rounded<T>(random_tensor(3, c.kv_heads, c.most_entries(), c.head_dim))),
        votes_(c.kv_heads, c.most_entries()),
        log_votes_(static_cast<size_t>(c.kv_heads * c.room()), std::numeric_limits<float>::quiet_NaN()) {
    for (int64_t g = 0; g < c.kv_heads; ++g) {
      for (int64_t j = 0; j < c.entries[g]; ++j) {
        // Rounded to float, as the device reads them.
        set_log_votes(g, j, static_cast<float>(std::log(1 + static_cast<double>((7 * j + g) % 5))));
      }
    }
  }

  void set_log_votes(int64_t kv_head, int64_t entry, float log_votes) {
    votes_(kv_head, entry) = std::exp(static_cast<double>(log_votes));
    log_votes_[kv_head * case_.room() + entry] = log_votes;
  }

  void clear_value(int64_t kv_head, int64_t entry) {
    std::ranges::fill(values_.slice(kv_head).row(entry), 0.0);
  }

  using Results = std::vector<std::vector<float>>;  // output, log-sum-exp, logits

  Results run(bool with_logits = true) const {
    const Case& c = case_;
    return run_with(cuda::attention_workspace(c.query_heads(), c.kv_heads, c.head_dim, c.room()), with_logits,
                    [](const auto&... arguments) { cuda::attention<T>(arguments...); });
  }
  Results run_by(const cuda::attention_splits::Partition& partition) const {
    using namespace cuda::attention_splits;
    const Case& c = case_;
    return run_with(
        attention_workspace_by(partition, c.query_heads(), c.kv_heads, c.head_dim, c.room(), c.segments),
        true, [&](const auto&... arguments) { attention_by<T>(partition, arguments...); });
  }
  MatrixView queries(int64_t g) const {
    return queries_.slice(0).middle_rows(g * case_.group_size, case_.group_size);
  }
  MatrixView keys(int64_t g) const { return used_rows(keys_, g); }
  MatrixView values(int64_t g) const { return used_rows(values_, g); }
  VectorView votes(int64_t g) const {
    if (!case_.votes) return {};
    return votes_.row(g).first(case_.entries[g]);
  }

 private:
  // queue(queries, cache, scale, result, memory, stream) computes the results.
  template <class Queue>
  Results run_with(int64_t workspace, bool with_logits, const Queue& queue) const {
    const Case& c = case_;
    const Uploaded<T> queries(queries_), keys(keys_, c.room(), c.entries),
        values(values_, c.room(), c.entries);
    const cuda::Buffer<int64_t> entries(c.entries);
    const cuda::Buffer<float> log_votes(log_votes_);
    Output output(c.query_heads() * c.head_dim), log_sum_exp(c.query_heads()),
        logits(c.query_heads() * c.room());
    WorkingMemory memory(workspace);
    const cuda::CacheView<T> cache{keys.view(), values.view(), entries.data(),
                                   c.votes ? log_votes.data() : nullptr, c.segments};
    const cuda::AttentionResult result{output.data(), log_sum_exp.data(),
                                       with_logits ? logits.data() : nullptr};
    queue(queries.view(), cache, c.scale(), result, memory.view(), cuda::Stream{});
    return {output.numbers(), log_sum_exp.numbers(), logits.numbers()};
  }

  // The first query of each group of query heads.
  Matrix group_queries() const {
    Matrix first;
    for (int64_t g = 0; g < case_.kv_heads; ++g) first.append_row(queries(g).row(0));
    return first;
  }
  MatrixView used_rows(const Tensor& tensor, int64_t g) const {
    return tensor.slice(g).middle_rows(0, case_.entries[g]);
  }

  Case case_;
  Tensor queries_, keys_, values_;
  Matrix votes_;
  std::vector<float> log_votes_;
};

template <cuda::Storage T>
reference::Arithmetic arithmetic(int64_t entries, int64_t head_dim) {
  return reference::arithmetic_of(cuda::attention_arithmetic<T>(entries, head_dim));
}

// Comparators of the operation's three results.
struct Comparators {
  explicit Comparators(const std::string& storage)
      : output("attention output " + storage),
        log_sum_exp("attention log-sum-exp " + storage),
        logits("attention logits " + storage) {}

  void expect_tight() const {
    for (const Comparator* each : {&output, &log_sum_exp, &logits}) EXPECT_TRUE(each->is_tight());
  }

  Comparator output, log_sum_exp, logits;
};

std::span<const float> part(const std::vector<float>& all, int64_t first, int64_t count) {
  return std::span(all).subspan(first, count);
}

// Compares the logits of the entries, and requires that nothing else was written.
template <cuda::Storage T>
void expect_logits(const Case& c, const Subject<T>& subject, const std::vector<float>& logits,
                   Comparator& comparator) {
  for (int64_t g = 0; g < c.kv_heads; ++g) {
    const int64_t entries = c.entries[g];
    const Matrix expected = reference::attention_logits(subject.queries(g), subject.keys(g), c.scale());
    const Matrix bounds = reference::logit_errors(subject.queries(g), subject.keys(g), c.scale(),
                                                  arithmetic<T>(entries, c.head_dim));
    for (int64_t i = 0; i < c.group_size; ++i) {
      const int64_t row = (g * c.group_size + i) * c.room();
      if (entries > 0) {
        EXPECT_TRUE(comparator.hold(part(logits, row, entries), expected.row(i), bounds.row(i)))
            << c << ", query " << i << " of group " << g;
      }
      const auto behind = part(logits, row + entries, c.room() - entries);
      EXPECT_TRUE(std::ranges::all_of(behind, Output::is_unwritten)) << c;
    }
  }
}

template <cuda::Storage T>
void expect_outputs(const Case& c, const Subject<T>& subject, const std::vector<float>& output,
                    const std::vector<float>& log_sum_exp, Comparators& comparators) {
  for (int64_t g = 0; g < c.kv_heads; ++g) {
    const int64_t entries = c.entries[g];
    const int64_t first = g * c.group_size;
    const auto actual = part(output, first * c.head_dim, c.group_size * c.head_dim);
    const auto actual_sums = part(log_sum_exp, first, c.group_size);
    if (entries == 0) {
      EXPECT_TRUE(std::ranges::all_of(actual, [](float x) { return x == 0; })) << c;
      EXPECT_TRUE(std::ranges::all_of(actual_sums, [](float x) { return x == -kInfinity; })) << c;
      continue;
    }
    const auto expected = reference::attention(subject.queries(g), subject.keys(g), subject.values(g),
                                               c.scale(), subject.votes(g));
    const auto bounds =
        reference::attention_errors(subject.queries(g), subject.keys(g), subject.values(g), c.scale(),
                                    subject.votes(g), arithmetic<T>(entries, c.head_dim));
    EXPECT_TRUE(comparators.output.hold(actual, expected.output.numbers(), bounds.output.numbers()))
        << c << ", group " << g;
    EXPECT_TRUE(comparators.log_sum_exp.hold(actual_sums, expected.log_sum_exp, bounds.log_sum_exp))
        << c << ", group " << g;
  }
}

template <cuda::Storage T>
void expect_parity(const Case& c, const Subject<T>& subject, const std::vector<std::vector<float>>& results,
                   Comparators& comparators) {
  expect_outputs(c, subject, results[0], results[1], comparators);
  expect_logits(c, subject, results[2], comparators.logits);
}

template <class T>
class AttentionParity : public DeviceTest {
 protected:
  void expect_parity_in_every_schedule(const Case& c) {
    const Subject<T> subject(c);
    expect_parity(c, subject, in_every_schedule([&] { return subject.run(); }), comparators_);
  }

  Comparators comparators_{StorageName::GetName<T>(0)};
};
TYPED_TEST_SUITE(AttentionParity, StorageTypes, StorageName);

TYPED_TEST(AttentionParity, MatchesReferenceAcrossSizes) {
  for (const int64_t entries : {1, 31, 32, 33, 64, 65, 200}) {
    this->expect_parity_in_every_schedule({.entries = {entries, entries}});
  }
  this->comparators_.expect_tight();
}

TYPED_TEST(AttentionParity, MatchesReferenceAcrossHeadDims) {
  for (const int64_t head_dim : {1, 8, 10, 64, 80, 128, 256}) {
    for (const Distribution distribution : {Distribution::random, Distribution::peaked}) {
      this->expect_parity_in_every_schedule(
          {.head_dim = head_dim, .entries = {70, 33}, .distribution = distribution});
    }
  }
  this->comparators_.expect_tight();
}

TYPED_TEST(AttentionParity, MatchesReferenceAcrossGroups) {
  for (const int64_t group_size : {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 20}) {
    this->expect_parity_in_every_schedule({.group_size = group_size, .head_dim = 16, .entries = {70, 33}});
  }
  this->comparators_.expect_tight();
}

TYPED_TEST(AttentionParity, MatchesReferenceAcrossDistributions) {
  for (const Distribution distribution : kDistributions) {
    for (const bool votes : {false, true}) {
      this->expect_parity_in_every_schedule({.head_dim = 64,
                                             .entries = {130, 33},
                                             .capacity = 140,
                                             .distribution = distribution,
                                             .votes = votes});
    }
  }
  this->comparators_.expect_tight();
}

TYPED_TEST(AttentionParity, MatchesReferenceForRaggedCaches) {
  for (const bool votes : {false, true}) {
    this->expect_parity_in_every_schedule({.kv_heads = 6,
                                           .group_size = 3,
                                           .head_dim = 24,
                                           .entries = {0, 33, 1, 300, 64, 129},
                                           .capacity = 333,
                                           .votes = votes});
  }
  this->comparators_.expect_tight();
}

// Where attention is spread over thousands of entries their errors average out, which a worst-case bound
// cannot reflect: tightness is required of concentrated attention only.
TYPED_TEST(AttentionParity, MatchesReferenceForALargeCache) {
  Comparators spread("spread out");
  for (const Distribution distribution : {Distribution::random, Distribution::peaked}) {
    const Case c{.kv_heads = 8,
                 .group_size = 4,
                 .head_dim = 32,
                 .entries = {4000, 1, 512, 513, 0, 1023, 1025, 64},
                 .capacity = 40000,
                 .distribution = distribution,
                 .votes = true};
    const Subject<TypeParam> subject(c);
    const auto results = subject.run();
    EXPECT_TRUE(same_bits(results, subject.run()));
    expect_parity(c, subject, results, distribution == Distribution::peaked ? this->comparators_ : spread);
  }
  this->comparators_.expect_tight();
}

// So many entries of all KV heads together that a split has two tiles, and one in
// which it has the most, eight.
TYPED_TEST(AttentionParity, MatchesReferenceForSplitsOfSeveralTiles) {
  for (const int64_t most : {40000, 240000}) {
    const Case c{.kv_heads = 3,
                 .group_size = 2,
                 .head_dim = 2,
                 .entries = {100, most, 1000},
                 .distribution = Distribution::peaked,
                 .votes = true};
    const Subject<TypeParam> subject(c);
    expect_parity(c, subject, subject.run(), this->comparators_);
  }
  this->comparators_.expect_tight();
}

// More KV heads than a warp has lanes: what a block looks up to find its split.
TYPED_TEST(AttentionParity, MatchesReferenceForManyRaggedHeads) {
  Case c{.kv_heads = 70, .group_size = 1, .head_dim = 8, .entries = {}};
  for (int64_t g = 0; g < c.kv_heads; ++g) c.entries.push_back(g % 9 == 4 ? 150 + g : g % 5);
  this->expect_parity_in_every_schedule(c);
  this->comparators_.expect_tight();
}

// The same entries in caches with different room for more of them.
TYPED_TEST(AttentionParity, DoesNotDependOnTheCapacity) {
  const auto run = [](int64_t capacity) {
    const Case c{.kv_heads = 3, .entries = {700, 0, 33}, .capacity = capacity, .votes = true};
    auto results = Subject<TypeParam>(c).run();
    std::vector<float> logits;
    for (int64_t h = 0; h < c.query_heads(); ++h) {
      const auto used = part(results[2], h * c.room(), c.entries[h / c.group_size]);
      logits.insert(logits.end(), used.begin(), used.end());
    }
    return std::vector{results[0], results[1], logits};
  };
  const auto tight = run(700);
  for (const int64_t capacity : {701, 5000, 100000}) EXPECT_TRUE(same_bits(run(capacity), tight)) << capacity;
}

// One KV head with so many entries that the threads that join the splits add up more than one part each, and
// that there are more splits than threads.
TYPED_TEST(AttentionParity, MatchesReferenceForManySplits) {
  for (const int64_t entries : {5000, 20000}) {
    for (const Distribution distribution : {Distribution::random, Distribution::peaked}) {
      this->expect_parity_in_every_schedule({.kv_heads = 1,
                                             .group_size = 1,
                                             .head_dim = 8,
                                             .entries = {entries},
                                             .distribution = distribution});
    }
  }
}

// With little shared memory a block has one tile at a time, then one team; the results must not depend on it.
TYPED_TEST(AttentionParity, GivesTheSameBitsOnDevicesWithLessSharedMemory) {
  for (const int64_t head_dim : {128, 256}) {
    for (const int64_t group_size : {7, 16}) {
      const Case c{
          .kv_heads = 1, .group_size = group_size, .head_dim = head_dim, .entries = {150}, .votes = true};
      const Subject<TypeParam> subject(c);
      const auto results = subject.run();
      for_each_device([&](const std::string& device) {
        SCOPED_TRACE(device);
        EXPECT_TRUE(same_bits(in_every_schedule([&] { return subject.run(); }), results)) << c;
      });
      expect_parity(c, subject, results, this->comparators_);
    }
  }
}

// The largest request for shared memory of a block: 16 heads of 256 numbers, and a total capacity of all KV
// heads at which a split has the most tokens. All KV heads read the same keys and values.
TYPED_TEST(AttentionParity, FitsItsLargestBlocksOnEveryDevice) {
  constexpr int64_t kKvHeads = 30, kGroup = 16, kHeadDim = 256, kCapacity = 8000;
  const Uploaded<TypeParam> queries(rounded<TypeParam>(random_tensor(1, 1, kKvHeads * kGroup, kHeadDim)));
  const Uploaded<TypeParam> stored(rounded<TypeParam>(random_tensor(2, 1, 70, kHeadDim)), kCapacity);
  cuda::DeviceTensor<const TypeParam> shared = stored.view();
  shared.slices = kKvHeads;
  shared.slice_stride = 0;
  std::vector<int64_t> counts(kKvHeads, 0);
  counts[1] = 70;
  const cuda::Buffer<int64_t> entries(counts);
  const auto run = [&] {
    Output output(kKvHeads * kGroup * kHeadDim), log_sum_exp(kKvHeads * kGroup);
    WorkingMemory memory(cuda::attention_workspace(kKvHeads * kGroup, kKvHeads, kHeadDim, kCapacity));
    cuda::attention<TypeParam>(queries.view(), {shared, shared, entries.data(), nullptr}, 1.0 / 16,
                               {output.data(), log_sum_exp.data(), nullptr}, memory.view(), nullptr);
    return std::vector{output.numbers(), log_sum_exp.numbers()};
  };
  const auto results = run();
  EXPECT_TRUE(std::isfinite(results[1][kGroup]));
  for_each_device([&](const std::string& device) { EXPECT_TRUE(same_bits(run(), results)) << device; });
}

class TmaAttentionParity : public DeviceTest {
 protected:
  TmaAttentionParity() : DeviceTest(90) {}
};

// Splits of one tile, of two and of eight; caches that end amid a tile, and rows behind them that are NaN.
TEST_F(TmaAttentionParity, HasTheBitsOfCopiedTilesUnderEverySchedule) {
  for (const int64_t head_dim : {64, 128}) {
    for (const int64_t group_size : {4, 12}) {
      const bool is_small = group_size == 4;
      const Case c{4,   group_size,           head_dim, {130, 1, 0, 517},
                   700, Distribution::random, is_small, is_small ? 2 : 1};
      SCOPED_TRACE(testing::Message() << c);
      const Subject<cuda::Bfloat16> subject(c);
      using cuda::attention_splits::Partition;
      for (Partition partition : {Partition{528, 512}, Partition{2, 128}, Partition{1, 512}}) {
        const auto by_tma = in_every_schedule([&] { return subject.run_by(partition); });
        partition.copies_tiles = true;
        const auto copied = subject.run_by(partition);
        EXPECT_TRUE(same_bits(by_tma, copied));
      }
    }
  }
}

TYPED_TEST(AttentionParity, OfAnEmptyCacheIsNothing) {
  for (const int64_t capacity : {0, 1, 100}) {
    this->expect_parity_in_every_schedule({.entries = {0, 0}, .capacity = capacity});
  }
}

TYPED_TEST(AttentionParity, DoesWithoutLogits) {
  const Subject<TypeParam> subject({.entries = {33, 70}});
  const auto with = subject.run(), without = subject.run(false);
  EXPECT_TRUE(same_bits(with[0], without[0]));
  EXPECT_TRUE(same_bits(with[1], without[1]));
  EXPECT_TRUE(std::ranges::all_of(without[2], Output::is_unwritten));
}

TYPED_TEST(AttentionParity, GivesEqualKeysEqualLogits) {
  const Case c{
      .kv_heads = 1, .group_size = 5, .head_dim = 80, .entries = {300}, .distribution = Distribution::tied};
  const std::vector<float> logits = Subject<TypeParam>(c).run()[2];
  for (int64_t h = 0; h < c.group_size; ++h) {
    const auto row = part(logits, h * c.room(), c.room());
    EXPECT_NE(row[0], row[1]);
    for (size_t j = 3; j < row.size(); ++j) ASSERT_EQ(row[j], row[j % 3]) << "head " << h << ", entry " << j;
  }
}

// An entry whose log votes are -infinity has no weight; if all entries are such, the output is 0 and
// the log-sum-exp -infinity.
TYPED_TEST(AttentionParity, LeavesOutEntriesWithoutVotes) {
  const auto nothing = static_cast<float>(-kInfinity);
  const Case c{.kv_heads = 1, .entries = {70}, .votes = true};
  Subject<TypeParam> subject(c);
  for (int64_t j = 1; j < 70; ++j) subject.set_log_votes(0, j, nothing);
  const auto one_left = subject.run();
  for (int64_t i = 0; i < c.query_heads() * c.head_dim; ++i) {
    ASSERT_EQ(one_left[0][i], subject.values(0)(0, i % c.head_dim));
  }
  subject.set_log_votes(0, 0, nothing);
  const auto none_left = subject.run();
  EXPECT_TRUE(std::ranges::all_of(none_left[0], [](float x) { return x == 0; }));
  EXPECT_TRUE(std::ranges::all_of(none_left[1], [](float x) { return x == -kInfinity; }));
  EXPECT_TRUE(same_bits(none_left[2], one_left[2])) << "logits are without votes";
}

// The entry with nearly all weight has a value of 0: the output is what the weights of the others,
// about 2^-29, make of theirs.
TYPED_TEST(AttentionParity, KeepsWeightsThatAreSmallBesideTheLargest) {
  const Case c{.kv_heads = 1, .head_dim = 64, .entries = {70}, .votes = true};
  Subject<TypeParam> subject(c);
  subject.set_log_votes(0, 7, 20);
  subject.clear_value(0, 7);
  expect_parity(c, subject, subject.run(), this->comparators_);
  this->comparators_.expect_tight();
}

TYPED_TEST(AttentionParity, ShowsNumbersThatAreNone) {
  Case c{.kv_heads = 1, .group_size = 1, .head_dim = 8, .entries = {40}, .votes = true};
  Subject<TypeParam> subject(c);
  subject.set_log_votes(0, 17, std::numeric_limits<float>::quiet_NaN());
  const auto results = subject.run();
  EXPECT_TRUE(std::ranges::all_of(results[0], [](float x) { return std::isnan(x); }));
  EXPECT_TRUE(std::isnan(results[1][0]));
}

TYPED_TEST(AttentionParity, NamesShapesThatDoNotFit) {
  const Uploaded<TypeParam> two_heads(Tensor(1, 2, 8)), keys(Tensor(2, 5, 8)), three(Tensor(3, 5, 8)),
      wide(Tensor(2, 5, 9)), short_values(Tensor(2, 4, 8)), too_wide(Tensor(2, 5, 257));
  const cuda::Buffer<int64_t> entries(std::vector<int64_t>{5, 5, 5});
  Output output(16), log_sum_exp(2);
  WorkingMemory memory(cuda::attention_workspace(2, 2, 8, 5));
  const auto message = [&](const auto& queries, const auto& k, const auto& v, cuda::Workspace workspace) {
    try {
      cuda::attention<TypeParam>(queries.view(), {k.view(), v.view(), entries.data(), nullptr}, 1,
                                 {output.data(), log_sum_exp.data(), nullptr}, workspace, nullptr);
    } catch (const ShapeMismatch& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(two_heads, keys, keys, memory.view()), "no error");
  EXPECT_EQ(message(two_heads, three, three, memory.view()), "2 query heads cannot share 3 KV heads");
  EXPECT_EQ(message(two_heads, wide, wide, memory.view()),
            "columns of queries is 8 but columns of keys is 9");
  EXPECT_EQ(message(two_heads, keys, wide, memory.view()), "columns of keys is 8 but columns of values is 9");
  EXPECT_EQ(message(two_heads, keys, short_values, memory.view()),
            "rows of keys is 5 but rows of values is 4");
  EXPECT_EQ(message(keys, keys, keys, memory.view()), "slices of queries is 2 but queries of a head is 1");
  const Uploaded<TypeParam> wide_queries(Tensor(1, 2, 257));
  EXPECT_EQ(message(wide_queries, too_wide, too_wide, memory.view()), "head_dim is 257, outside 1..256");
  EXPECT_EQ(message(two_heads, keys, keys, {memory.view().data, 8}),
            "the workspace has 8 bytes but " + std::to_string(memory.view().bytes) + " are needed");
}

template <cuda::Storage T>
void expect_possible_depths() {
  const auto depth = [](int64_t entries) {
    return cuda::attention_arithmetic<T>(entries, 128).accumulation_depth;
  };
  EXPECT_EQ(depth(0), 0);
  for (const int64_t entries : {1, 33, 512, 513, 32768, 1000000}) {
    EXPECT_GE(depth(entries), static_cast<int64_t>(std::log2(static_cast<double>(entries))));
    EXPECT_LE(depth(entries), entries + 8);
    EXPECT_LE(depth(entries), depth(entries + 1)) << "does not fall";
  }
}

TEST(AttentionArithmetic, CountsAdditionsThatATermMayPassThrough) {
  expect_possible_depths<float>();
  expect_possible_depths<cuda::Bfloat16>();
  EXPECT_EQ(cuda::attention_arithmetic<float>(9, 1).product_depth, 1 + 2 + 1);
  EXPECT_EQ(cuda::attention_arithmetic<float>(9, 128).product_depth, 8 + 2 + 4);
  EXPECT_EQ(cuda::attention_arithmetic<cuda::Bfloat16>(9, 1).product_depth, 2);
  EXPECT_EQ(cuda::attention_arithmetic<cuda::Bfloat16>(9, 128).product_depth, 9);
}

std::array<double, 9> numbers(const KernelArithmetic& arithmetic) {
  EXPECT_EQ(arithmetic.precision, Precision::fp32);
  return {static_cast<double>(arithmetic.accumulation_depth),
          static_cast<double>(arithmetic.product_depth),
          static_cast<double>(arithmetic.rescalings),
          arithmetic.tensor_sums,
          arithmetic.tensor_weighted_sums,
          arithmetic.weights_floor,
          arithmetic.tensor_lengths,
          arithmetic.lengths_floor,
          static_cast<double>(arithmetic.gram_factor)};
}

class SessionArithmeticParity : public DeviceTest {};

TEST_F(SessionArithmeticParity, IsWhatItsKernelsDeclare) {
  const LayerShape shape{.query_heads = 4, .kv_heads = 2, .head_dim = 64, .model_dim = 96};
  const auto expect_of = [&]<cuda::Storage T>(Dtype storage, T) {
    const SessionArithmetic session = cuda::session_arithmetic(storage, shape, 500, 40);
    EXPECT_EQ(numbers(session.window_attention), numbers(cuda::window_arithmetic<T>(500, 64)));
    EXPECT_EQ(numbers(session.change_scores), numbers(cuda::change_score_arithmetic<T>(500, 64)));
    EXPECT_EQ(numbers(session.projected_value_norms),
              numbers(cuda::norms_arithmetic(64, 96, cuda::chosen_norms_kernel<T>(64))));
    EXPECT_EQ(numbers(session.projected_value_norms_l2), numbers(cuda::norms_l2_arithmetic<T>(64)));
    EXPECT_EQ(numbers(session.attention), numbers(cuda::attention_arithmetic<T>(40, 64)));
    EXPECT_EQ(numbers(session.nearest_keys),
              numbers(cuda::nearest_keys_arithmetic(64, cuda::chosen_search_kernel<T>(64))));
    EXPECT_EQ(numbers(session.nearest_key), numbers(cuda::nearest_key_arithmetic<T>(64)));
  };
  expect_of(Dtype::f32, float{});
  expect_of(Dtype::f16, cuda::Float16{});
  expect_of(Dtype::bf16, cuda::Bfloat16{});
  EXPECT_THROW(cuda::session_arithmetic(Dtype::f64, shape, 500, 40), InvalidPolicy);
}

}  // namespace
}  // namespace kvbound::parity
