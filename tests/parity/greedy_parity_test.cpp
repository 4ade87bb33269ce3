// The greedy selection on the device: the candidates that the reference leaves.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/cuda/eviction/greedy.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/greedy.hpp>

#include "distributions.hpp"
#include "scores.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

struct Case {
  int64_t kv_heads = 2;
  int64_t group_size = 2;
  int64_t head_dim = 8;
  int64_t window = 4;
  int64_t tokens = 40;
  std::vector<int64_t> k = {10, 30};  // per KV head
  Distribution distribution = Distribution::random;
  double common = 0;  // added to every value

  int64_t query_heads() const { return kv_heads * group_size; }
  int64_t candidates() const { return tokens - window; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};

std::string text_of(const Case& c) {
  return std::string(name(c.distribution)) + ", " + std::to_string(c.kv_heads) + " x " +
         std::to_string(c.group_size) + " heads of " + std::to_string(c.head_dim) + ", window " +
         std::to_string(c.window) + " of " + std::to_string(c.tokens);
}

template <cuda::Storage T>
struct Subject {
  Case c;
  Tensor queries, keys, values;

  explicit Subject(const Case& given)
      : c(given), queries(rounded<T>(random_tensor(1, c.query_heads(), c.window, c.head_dim))) {
    Matrix first;
    for (int64_t g = 0; g < c.kv_heads; ++g) first.append_row(queries.slice(g * c.group_size).row(0));
    keys = rounded<T>(keys_of(c.distribution, 2, first, c.tokens, c.scale()));
    values = random_tensor(3, c.kv_heads, c.tokens, c.head_dim);
    for (double& number : values.numbers()) number += c.common;
    values = rounded<T>(values);
  }

  struct Result {
    std::vector<std::vector<int64_t>> left;
    int status;
  };

  Result run() const {
    const Uploaded<T> device_queries(queries), device_keys(keys), device_values(values);
    const cuda::Buffer<int64_t> counts{std::span<const int64_t>(c.k)};
    Indices left(c.k);
    WorkingMemory memory(
        cuda::select_greedy_workspace(c.query_heads(), c.kv_heads, c.head_dim, c.window, c.tokens));
    cuda::select_greedy<T>({device_queries.view(), device_keys.view(), c.scale()}, device_values.view(),
                           c.candidates(), counts.data(), left.result(), memory.view(), nullptr);
    std::vector<std::vector<int64_t>> rows = left.rows();
    return {std::move(rows), left.status()};
  }

  std::vector<int64_t> expected(int64_t g) const {
    const LayerView layer{{c.query_heads(), c.kv_heads, c.head_dim, 1}, c.scale(), keys, values, queries, {}};
    std::vector<int64_t> left(c.candidates());
    std::iota(left.begin(), left.end(), 0);
    for (const int64_t position :
         reference::removal_order(layer, g, c.window, c.candidates(), c.candidates() - c.k[g])) {
      left[position] = -1;
    }
    std::erase(left, -1);
    return left;
  }
};

template <class T>
class GreedyParity : public DeviceTest {
 protected:
  static void expect_parity(const Case& c) {
    SCOPED_TRACE(text_of(c));
    const Subject<T> subject(c);
    const auto [left, status] = subject.run();
    EXPECT_EQ(status, 0);
    for (int64_t g = 0; g < c.kv_heads; ++g) EXPECT_EQ(left[g], subject.expected(g)) << "KV head " << g;
  }
};
TYPED_TEST_SUITE(GreedyParity, StorageTypes, StorageName);

TYPED_TEST(GreedyParity, LeavesTheReferencesCandidatesAcrossSizes) {
  for (const int64_t tokens : {5, 31, 32, 33, 70}) {
    const int64_t candidates = tokens - 4;
    this->expect_parity({.tokens = tokens, .k = {0, candidates}});
    this->expect_parity({.tokens = tokens, .k = {candidates / 5, candidates / 2}});
  }
  for (const int64_t head_dim : {1, 10, 64, 256}) this->expect_parity({.head_dim = head_dim});
  for (const int64_t group_size : {1, 5}) this->expect_parity({.group_size = group_size});
  this->expect_parity({.window = 20, .k = {3, 15}});
}

TYPED_TEST(GreedyParity, LeavesTheReferencesCandidatesForEveryKindOfAttention) {
  for (const Distribution distribution : kDistributions) {
    if (distribution == Distribution::extreme)
      continue;  // all weight on one entry: what is left hardly matters
    this->expect_parity({.tokens = 60, .k = {6, 30}, .distribution = distribution});
  }
}

// Removed entries take nearly all of the attention with them.
TYPED_TEST(GreedyParity, FormsSumsAnewThatHaveLostTheirMass) {
  for (const Distribution distribution : {Distribution::peaked, Distribution::extreme}) {
    this->expect_parity({.tokens = 60, .k = {1, 2}, .distribution = distribution});
  }
}

TYPED_TEST(GreedyParity, IsNotMisledByWhatAllValuesHaveInCommon) { this->expect_parity({.common = 1000}); }

TYPED_TEST(GreedyParity, GivesTheSameUnderEverySchedule) {
  const Subject<TypeParam> subject(
      {.kv_heads = 1, .tokens = 30, .k = {5}, .distribution = Distribution::sink});
  in_every_schedule([&] { return subject.run().left; });
}

// Of one KV head only, whichever it is.
TYPED_TEST(GreedyParity, TellsOfNan) {
  for (const int64_t g : {0, 1}) {
    for (Tensor Subject<TypeParam>::*tensor : {&Subject<TypeParam>::keys, &Subject<TypeParam>::values}) {
      Subject<TypeParam> subject({});
      (subject.*tensor).slice(g)(2, 0) = std::numeric_limits<double>::quiet_NaN();
      EXPECT_EQ(subject.run().status, 1) << "KV head " << g;
    }
  }
}

TYPED_TEST(GreedyParity, AsksForNoErrorWhereNothingIsRemoved) {
  Subject<TypeParam> subject({.k = {36, 36}});
  subject.values.slice(0)(2, 0) = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(subject.run().status, 0);
}

TYPED_TEST(GreedyParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const Uploaded<T> queries(Tensor(2, 3, 8)), keys(Tensor(2, 9, 8)), fewer(Tensor(2, 8, 8));
  const auto call = [&](const Uploaded<T>& values, int64_t candidates, cuda::Workspace memory) {
    cuda::select_greedy<T>({queries.view(), keys.view(), 1}, values.view(), candidates, nullptr, {}, memory,
                           nullptr);
  };
  WorkingMemory memory(cuda::select_greedy_workspace(2, 2, 8, 3, 9));
  EXPECT_THROW(call(fewer, 6, memory.view()), ShapeMismatch);
  EXPECT_THROW(call(keys, 7, memory.view()), ShapeMismatch);
  EXPECT_THROW(call(keys, 6, {}), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
