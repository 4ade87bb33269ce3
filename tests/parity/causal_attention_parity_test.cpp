#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/error.hpp>

#include "distributions.hpp"
#include "support.hpp"
#include "support/message_of.hpp"

namespace kvbound::parity {
namespace {

struct Case {
  int64_t kv_heads = 2;
  int64_t group_size = 3;
  int64_t window = 5;
  int64_t head_dim = 16;
  std::vector<int64_t> entries;  // [kv_heads]
  Distribution distribution = Distribution::random;
  bool votes = false;

  int64_t query_heads() const { return kv_heads * group_size; }
  int64_t queries() const { return query_heads() * window; }
  int64_t capacity() const { return *std::ranges::max_element(entries) + 3; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << c.kv_heads << " x " << c.group_size << " heads of " << c.head_dim << ", window " << c.window << ", "
      << name(c.distribution) << (c.votes ? ", votes" : "") << ", entries";
  for (const int64_t entries : c.entries) out << " " << entries;
  return out;
}

struct Attended {
  std::vector<float> output, log_sum_exp, logits;
};
struct Results {
  Attended all, others;
  std::vector<float> dominant_logits;
  std::vector<int64_t> dominant;

  bool same(const Results& other) const {
    return same_bits(all.output, other.all.output) && same_bits(all.log_sum_exp, other.all.log_sum_exp) &&
           same_bits(all.logits, other.all.logits) && same_bits(others.output, other.others.output) &&
           same_bits(others.log_sum_exp, other.others.log_sum_exp) && dominant == other.dominant &&
           same_bits(dominant_logits, other.dominant_logits);
  }
};

// A cache and the queries of its last tokens, exact in T, and the device's results for them.
template <cuda::Storage T>
class Subject {
 public:
  explicit Subject(const Case& c)
      : case_(c),
        queries_(rounded<T>(random_tensor(1, c.query_heads(), c.window, c.head_dim))),
        keys_(rounded<T>(keys_of(c.distribution, 2, first_queries(), c.capacity(), c.scale()))),
        values_(rounded<T>(random_tensor(3, c.kv_heads, c.capacity(), c.head_dim))),
        votes_(c.kv_heads, c.capacity()),
        log_votes_(c.kv_heads * c.capacity()) {
    for (int64_t g = 0; g < c.kv_heads; ++g) {
      for (int64_t j = 0; j < c.capacity(); ++j) {
        float& log_votes = log_votes_[g * c.capacity() + j];
        log_votes = static_cast<float>(std::log(1 + static_cast<double>((7 * j + g) % 5)));
        votes_(g, j) = std::exp(static_cast<double>(log_votes));
      }
    }
  }

  Results run(bool with_logits, bool with_dominants = true) const {
    const Case& c = case_;
    const Uploaded<T> queries(queries_), keys(keys_, c.capacity(), c.entries),
        values(values_, c.capacity(), c.entries);
    const cuda::Buffer<int64_t> entries(c.entries);
    const cuda::Buffer<float> log_votes(log_votes_);
    Output output(c.queries() * c.head_dim), sums(c.queries()), logits(c.queries() * c.capacity()),
        others(c.queries() * c.head_dim), others_sums(c.queries()), dominant_logits(c.queries());
    cuda::Buffer<int64_t> dominant(std::vector<int64_t>(c.queries(), -9));
    WorkingMemory memory(
        cuda::causal_attention_workspace(c.query_heads(), c.window, c.kv_heads, c.head_dim, c.capacity()));
    cuda::DominantEntries wanted{dominant.data(), dominant_logits.data(), others.data(), others_sums.data()};
    if (!with_dominants) wanted = {};
    cuda::causal_attention<T>(
        queries.view(), {keys.view(), values.view(), entries.data(), c.votes ? log_votes.data() : nullptr},
        c.scale(), {output.data(), sums.data(), with_logits ? logits.data() : nullptr}, wanted, memory.view(),
        nullptr);
    return {{output.numbers(), sums.numbers(), logits.numbers()},
            {others.numbers(), others_sums.numbers(), {}},
            dominant_logits.numbers(),
            cuda::download(dominant)};
  }

  // What `attention` gives for one query of each head.
  Attended attention() const {
    const Case& c = case_;
    Tensor one_each(1, c.query_heads(), c.head_dim);
    std::ranges::copy(queries_.numbers(), one_each.numbers().begin());
    const Uploaded<T> queries(one_each), keys(keys_, c.capacity(), c.entries),
        values(values_, c.capacity(), c.entries);
    const cuda::Buffer<int64_t> entries(c.entries);
    const cuda::Buffer<float> log_votes(log_votes_);
    Output output(c.queries() * c.head_dim), sums(c.queries()), logits(c.queries() * c.capacity());
    WorkingMemory memory(cuda::attention_workspace(c.query_heads(), c.kv_heads, c.head_dim, c.capacity()));
    cuda::attention<T>(queries.view(),
                       {keys.view(), values.view(), entries.data(), c.votes ? log_votes.data() : nullptr},
                       c.scale(), {output.data(), sums.data(), logits.data()}, memory.view(), nullptr);
    return {output.numbers(), sums.numbers(), logits.numbers()};
  }

  // The entries that query i of a head of group g sees, but for one of them; -1: all.
  struct Seen {
    Matrix keys, values;
    std::vector<double> votes;
  };
  Seen seen(int64_t g, int64_t i, int64_t without = -1) const {
    Seen seen;
    for (int64_t j = 0; j < case_.entries[g] - (case_.window - 1 - i); ++j) {
      if (j == without) continue;
      seen.keys.append_row(keys_.slice(g).row(j));
      seen.values.append_row(values_.slice(g).row(j));
      if (case_.votes) seen.votes.push_back(votes_(g, j));
    }
    return seen;
  }
  MatrixView query(int64_t head, int64_t i) const { return queries_.slice(head).middle_rows(i, 1); }

 private:
  Matrix first_queries() const {
    Matrix first;
    for (int64_t g = 0; g < case_.kv_heads; ++g) {
      first.append_row(queries_.slice(g * case_.group_size).row(case_.window - 1));
    }
    return first;
  }

  Case case_;
  Tensor queries_, keys_, values_;
  Matrix votes_;
  std::vector<float> log_votes_;
};

std::span<const float> part(const std::vector<float>& all, int64_t first, int64_t count) {
  return std::span(all).subspan(first, count);
}

template <class T>
class CausalAttentionParity : public DeviceTest {
 protected:
  using Seen = typename Subject<T>::Seen;

  // Compares one query's results; n: the query among all.
  void expect_attended(const Case& c, MatrixView query, const Seen& seen, const Attended& actual, int64_t n) {
    const auto output = part(actual.output, n * c.head_dim, c.head_dim);
    const auto sum = part(actual.log_sum_exp, n, 1);
    if (seen.keys.rows() == 0) {
      EXPECT_TRUE(std::ranges::all_of(output, [](float x) { return x == 0; })) << c;
      EXPECT_EQ(sum.front(), -std::numeric_limits<float>::infinity()) << c;
      return;
    }
    const auto arithmetic =
        reference::arithmetic_of(cuda::attention_arithmetic<T>(seen.keys.rows(), c.head_dim));
    const auto expected = reference::attention(query, seen.keys, seen.values, c.scale(), seen.votes);
    const auto bounds =
        reference::attention_errors(query, seen.keys, seen.values, c.scale(), seen.votes, arithmetic);
    EXPECT_TRUE(output_.hold(output, expected.output.numbers(), bounds.output.numbers())) << c << ", " << n;
    EXPECT_TRUE(log_sum_exp_.hold(sum, expected.log_sum_exp, bounds.log_sum_exp)) << c << ", " << n;
  }

  // The row that holds more than half of a query's attention, which must not be too close to tell; -1: none.
  static int64_t dominant_of(const Case& c, MatrixView query, const Seen& seen) {
    if (seen.keys.rows() == 0) return -1;
    const auto attended = reference::attention(query, seen.keys, seen.values, c.scale(), seen.votes);
    const VectorView weights = attended.weights.row(0);
    const auto most = std::ranges::max_element(weights);
    EXPECT_GT(std::abs(*most - 0.5), 1e-4) << c;
    return *most > 0.5 ? most - weights.begin() : -1;
  }

  void expect_logits(const Case& c, MatrixView query, const Seen& seen, const std::vector<float>& logits,
                     int64_t n) {
    const int64_t rows = seen.keys.rows();
    const auto unseen = part(logits, n * c.capacity() + rows, c.capacity() - rows);
    EXPECT_TRUE(std::ranges::all_of(unseen, Output::is_unwritten)) << c << ", " << n;
    if (rows == 0) return;
    const auto arithmetic = reference::arithmetic_of(cuda::attention_arithmetic<T>(rows, c.head_dim));
    const Matrix expected = reference::attention_logits(query, seen.keys, c.scale());
    const Matrix bounds = reference::logit_errors(query, seen.keys, c.scale(), arithmetic);
    EXPECT_TRUE(logits_.hold(part(logits, n * c.capacity(), rows), expected.row(0), bounds.row(0)))
        << c << ", " << n;
  }

  void expect_parity(const Case& c) {
    const Subject<T> subject(c);
    const Results results = subject.run(true);
    for (int64_t n = 0; n < c.queries(); ++n) {
      const int64_t head = n / c.window, i = n % c.window, g = head / c.group_size;
      const MatrixView query = subject.query(head, i);
      const Seen seen = subject.seen(g, i);
      expect_attended(c, query, seen, results.all, n);
      expect_logits(c, query, seen, results.all.logits, n);
      const int64_t row = dominant_of(c, query, seen);
      ASSERT_EQ(results.dominant[n], row) << c << ", " << n;
      expect_attended(c, query, subject.seen(g, i, row), results.others, n);
      if (row < 0) continue;
      ++dominants_;
      EXPECT_EQ(results.dominant_logits[n], results.all.logits[n * c.capacity() + row]) << c << ", " << n;
    }
  }

  static void expect_the_same_in_every_schedule(const Case& c) {
    const Subject<T> subject(c);
    const Results results = subject.run(true);
    for_each_schedule([&](const std::string& schedule) {
      EXPECT_TRUE(subject.run(true).same(results)) << c << ": other bits with " << schedule;
    });
  }

  Comparator output_{"causal attention output " + StorageName::GetName<T>(0)};
  Comparator log_sum_exp_{"causal attention log-sum-exp " + StorageName::GetName<T>(0)};
  Comparator logits_{"causal attention logits " + StorageName::GetName<T>(0)};
  int64_t dominants_ = 0;
};
TYPED_TEST_SUITE(CausalAttentionParity, StorageTypes, StorageName);

TYPED_TEST(CausalAttentionParity, MatchesReferenceAcrossGroupsAndWindows) {
  for (const Distribution distribution : {Distribution::random, Distribution::peaked}) {
    for (const auto& [group_size, window] : {std::pair{1, 1}, {1, 33}, {3, 2}, {3, 33}, {8, 7}}) {
      this->expect_parity({.group_size = group_size,
                           .window = window,
                           .head_dim = 24,
                           .entries = {130, 64},
                           .distribution = distribution});
    }
  }
  EXPECT_GT(this->dominants_, 20);
  EXPECT_TRUE(this->output_.is_tight());
  EXPECT_TRUE(this->log_sum_exp_.is_tight());
  EXPECT_TRUE(this->logits_.is_tight());
}

TYPED_TEST(CausalAttentionParity, MatchesReferenceWithVotes) {
  this->expect_parity(
      {.window = 4, .entries = {200, 77}, .distribution = Distribution::peaked, .votes = true});
  EXPECT_GT(this->dominants_, 5);
}

// Queries that see no row, or one; splits whose tokens lie in the future of some queries.
TYPED_TEST(CausalAttentionParity, MatchesReferenceForFewRows) {
  for (const int64_t entries : {0, 1, 3, 6, 65, 129}) {
    this->expect_parity({.kv_heads = 1, .window = 6, .entries = {entries}});
  }
}

TYPED_TEST(CausalAttentionParity, MatchesReferenceForManySplits) {
  this->expect_parity({.kv_heads = 1,
                       .group_size = 2,
                       .window = 12,
                       .head_dim = 4,
                       .entries = {3000},
                       .distribution = Distribution::peaked});
  EXPECT_GT(this->dominants_, 5);
}

// 33 blocks for each split, of 192 tokens.
TYPED_TEST(CausalAttentionParity, MatchesReferenceForSplitsOfSeveralTiles) {
  this->expect_parity({.kv_heads = 1,
                       .group_size = 1,
                       .window = 528,
                       .head_dim = 4,
                       .entries = {2100},
                       .distribution = Distribution::peaked});
  EXPECT_GT(this->dominants_, 5);
}

TYPED_TEST(CausalAttentionParity, GivesTheSameUnderEverySchedule) {
  this->expect_the_same_in_every_schedule(
      {.window = 7, .entries = {200, 77}, .distribution = Distribution::peaked, .votes = true});
  this->expect_the_same_in_every_schedule({.kv_heads = 1,
                                           .group_size = 2,
                                           .window = 5,
                                           .head_dim = 4,
                                           .entries = {3000},
                                           .distribution = Distribution::peaked});
}

TYPED_TEST(CausalAttentionParity, GivesTheBitsOfAttentionForOneQuery) {
  for (const int64_t group_size : {1, 8, 16}) {
    const Case c{.group_size = group_size, .window = 1, .entries = {300, 5}, .votes = true};
    const Subject<TypeParam> subject(c);
    const Results causal = subject.run(true, false);
    const Attended attended = subject.attention();
    EXPECT_TRUE(same_bits(causal.all.output, attended.output)) << c;
    EXPECT_TRUE(same_bits(causal.all.log_sum_exp, attended.log_sum_exp)) << c;
    EXPECT_TRUE(same_bits(causal.all.logits, attended.logits)) << c;
  }
}

TYPED_TEST(CausalAttentionParity, DoesWithoutDominants) {
  const Case c{.window = 2, .entries = {300, 5}, .votes = true};
  const Subject<TypeParam> subject(c);
  const Results without = subject.run(true, false);
  EXPECT_TRUE(std::ranges::all_of(without.dominant, [](int64_t row) { return row == -9; }));
  EXPECT_TRUE(std::ranges::all_of(without.others.output, Output::is_unwritten));
  const Results with = subject.run(true, true);
  EXPECT_TRUE(same_bits(with.all.output, without.all.output));
  EXPECT_TRUE(same_bits(with.all.log_sum_exp, without.all.log_sum_exp));
}

// Without logits in memory, the dominant entry's is the same.
TYPED_TEST(CausalAttentionParity, DoesWithoutLogits) {
  const Case c{.window = 3, .entries = {90, 150}, .distribution = Distribution::peaked};
  const Subject<TypeParam> subject(c);
  const Results with = subject.run(true), without = subject.run(false);
  EXPECT_TRUE(same_bits(with.dominant_logits, without.dominant_logits));
  EXPECT_TRUE(same_bits(with.others.output, without.others.output));
  EXPECT_EQ(with.dominant, without.dominant);
  EXPECT_TRUE(std::ranges::all_of(without.all.logits, Output::is_unwritten));
}

TYPED_TEST(CausalAttentionParity, NamesWhatDoesNotFit) {
  const Case c{.entries = {9, 9}, .votes = true};
  EXPECT_EQ(
      test::message_of<ShapeMismatch>([&] { Subject<TypeParam>(c).run(false); }),
      "result.logits is null, but the dominant entries' logits of a cache with votes are taken from it");
  const Uploaded<TypeParam> none(Tensor(2, 0, 16)), queries(Tensor(2, 3, 16)), rows(Tensor(1, 9, 16));
  const auto attend = [&](const Uploaded<TypeParam>& of) {
    cuda::causal_attention<TypeParam>(of.view(), {rows.view(), rows.view(), nullptr}, 1, {}, {}, {}, nullptr);
  };
  EXPECT_THAT(test::message_of<ShapeMismatch>([&] { attend(none); }),
              testing::HasSubstr("queries of a head"));
  EXPECT_THAT(test::message_of<ShapeMismatch>([&] { attend(queries); }), testing::HasSubstr("workspace"));
}

class DominantEntriesParity : public DeviceTest {};

// A head of one number, so that keys are logits.
TEST_F(DominantEntriesParity, AreTheRowsThatHoldMoreThanHalf) {
  constexpr int64_t kCapacity = 600;
  const auto find = [](const std::vector<std::pair<int64_t, float>>& large, int64_t entries) {
    Tensor keys(1, kCapacity, 1), one(1, 1, 1);
    for (double& key : keys.numbers()) key = -20;
    for (const auto& [row, logit] : large) keys.slice(0).row(row)[0] = logit;
    one.numbers()[0] = 1;
    const Uploaded<float> rows(keys), query(one);
    const cuda::Buffer<int64_t> count = cuda::upload(std::vector<int64_t>{entries});
    cuda::Buffer<int64_t> dominant = cuda::upload(std::vector<int64_t>{-5});
    Output output(1), sums(1), others(1), others_sums(1), logits(1);
    WorkingMemory memory(cuda::causal_attention_workspace(1, 1, 1, 1, kCapacity));
    cuda::causal_attention<float>(
        query.view(), {rows.view(), rows.view(), count.data()}, 1, {output.data(), sums.data()},
        {dominant.data(), logits.data(), others.data(), others_sums.data()}, memory.view(), nullptr);
    return cuda::download(dominant).front();
  };
  for (const int64_t row : {0, 31, 255, 256, 599}) EXPECT_EQ(find({{row, 1}}, kCapacity), row);
  EXPECT_EQ(find({{3, 1}, {9, 1}}, kCapacity), -1) << "two rows that hold less than half each";
  EXPECT_EQ(find({{3, 1}, {9, 1.2f}}, kCapacity), 9);
  EXPECT_EQ(find({{599, 1}}, 599), -1) << "a row that is not in use";
  EXPECT_EQ(find({{3, 1}, {9, 1}}, 10), -1);
  EXPECT_EQ(find({{0, 1e4F}, {1, 1e4F}}, 2), -1) << "half each";
  EXPECT_EQ(find({{0, 1e4F}, {1, std::nextafter(1e4F, 2e4F)}}, 2), 1)
      << "logits far larger than their difference";
  EXPECT_EQ(find({}, 1), 0) << "the only row";
  EXPECT_EQ(find({}, 0), -1);
}

}  // namespace
}  // namespace kvbound::parity
