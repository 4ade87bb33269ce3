// The floor of merged entries against the judge itself.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/merging/merge_baselines.hpp>
#include <kvbound/reference/numerics/columns.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/diff/claims/input_rounding.hpp>
#include <kvbound/sim/diff/floor/merged_floor.hpp>
#include <kvbound/sim/diff/floor/random_shape.hpp>
#include <kvbound/sim/options/policy.hpp>

namespace kvbound::sim::merged_floor_test {
namespace {

constexpr Dtype kF64 = Dtype::f64, kF32 = Dtype::f32, kBf16 = Dtype::bf16;
constexpr int64_t kDim = 8;
using Tensor = std::optional<RealClaim> LayerClaims::*;

traces::Layer small_layer(Dtype numbers) {
  return random_layer(parse_shape("tokens=100:head_dim=8:query_heads=4:kv_heads=2:window=3"), numbers);
}

// The rows of a cluster of one KV head as an implementation computes them.
using Merging = std::function<std::vector<double>(int64_t g, const MergeCluster& cluster)>;

// A prompt that a policy merges, and an implementation that keeps and merges what the reference does.
class Merged {
 public:
  // storage  of the tensors
  Merged(const DeclaredArithmetic& declared, Dtype storage, traces::Layer numbers, const std::string& merge,
         int64_t entries = 20)
      : layer(std::move(numbers)),
        implementation_{parse_policy("snapkv:window=3:pool=1+" + merge),
                        entries,
                        0,
                        declared.arithmetic(),
                        declared.input_storage(),
                        declared.merged_storage()},
        storage_(storage) {
    record_.prompt = reference::make_session()->compress(layer.prompt(), implementation_.policy,
                                                         std::vector(layer.shape.kv_heads, entries));
  }

  std::vector<DetectionFloor> floors() const {
    return merged_floors(layer, with_input_rounding(implementation_, layer), "m", storage_);
  }
  const std::vector<HeadMerge>& merges() const { return record_.prompt.merges; }
  int64_t merged_entries() const {
    return std::accumulate(
        merges().begin(), merges().end(), int64_t{0},
        [](int64_t sum, const HeadMerge& head) { return sum + std::ssize(head.clusters); });
  }

  bool is_found(Tensor tensor, double factor, const Merging& merging = {}) const {
    return !judged(tensor, factor, merging).agrees();
  }
  // The judgement of the dump of an implementation that records this tensor, and merges so,
  // or as the reference does.
  TensorAgreement judged(Tensor tensor, double factor, const Merging& merging = {}) const {
    LayerClaims claims = claims_of(record_, storage_), recorded;
    recorded.kept = claims.kept;
    recorded.target_of = claims.target_of;
    recorded.*tensor = claims.*tensor;
    int64_t first = 0;
    for (size_t g = 0; g < merges().size(); ++g) {
      for (const MergeCluster& cluster : merges()[g].clusters)
        merge(first + entry_of(g, cluster), static_cast<int64_t>(g), cluster, merging, factor,
              *(recorded.*tensor));
      first += std::ssize(merges()[g].positions);
    }
    for (double& number : (recorded.*tensor)->numbers) number = rounded_to(number, storage_);
    return agreement(layer, implementation_, recorded).back();
  }

  const traces::Layer layer;

 private:
  int64_t entry_of(size_t g, const MergeCluster& cluster) const {
    return std::ranges::lower_bound(merges()[g].positions, cluster.into) - merges()[g].positions.begin();
  }
  void merge(int64_t row, int64_t g, const MergeCluster& cluster, const Merging& merging, double factor,
             RealClaim& claim) const {
    const int64_t columns = std::ssize(claim.numbers) / claim.shape.front();
    const auto begin = claim.numbers.begin() + row * columns;
    if (merging) std::ranges::copy(merging(g, cluster), begin);
    std::for_each_n(begin, columns, [&](double& number) { number *= factor; });
  }

  const TestedImplementation implementation_;
  const Dtype storage_;
  LayerRecord record_;
};

// The claim that an operation such as "merged_key, m" is of.
Tensor tensor_of(const DetectionFloor& floor) {
  if (floor.operation == "votes, m") return &LayerClaims::votes;
  return floor.operation == "merged_key, m" ? &LayerClaims::merged_key : &LayerClaims::merged_value;
}

TEST(MergedFloor, IsWhereTheJudgeBeginsToFindFactorsOfMergedEntries) {
  for (const std::string method : {"d2o:threshold=none", "keepkv:threshold=none"}) {
    const Merged merged({kF64, kF32}, kF64, small_layer(kF32), method, 50);
    ASSERT_LT(merged.merged_entries(), 90) << "others than those that merge";
    std::vector<std::string> operations;
    for (const DetectionFloor& floor : merged.floors()) {
      operations.push_back(floor.operation);
      const bool is_votes = floor.operation == "votes, m";
      EXPECT_EQ(floor.tokens, 100);
      EXPECT_EQ(floor.judged, merged.merged_entries() * (is_votes ? 1 : kDim));
      EXPECT_TRUE(floor.halved && floor.zeros);
      ASSERT_TRUE(floor.factor) << method << ", " << floor.operation;
      EXPECT_FALSE(merged.is_found(tensor_of(floor), 1));
      for (const double sign : {-1, 1}) {
        const auto is_found = [&](double share) {
          return merged.is_found(tensor_of(floor), 1 + sign * share * *floor.factor);
        };
        EXPECT_TRUE(is_found(1.01)) << method << ", " << floor.operation;
        if (is_votes) continue;  // they are exact: the floor is that of storage alone
        // An implementation that does not round can have half of the floor: the other
        // half is for its rounding.
        EXPECT_TRUE(is_found(0.51)) << method << ", " << floor.operation;
        EXPECT_FALSE(is_found(0.49)) << method << ", " << floor.operation;
      }
    }
    std::vector<std::string> expected{"merged_key, m", "merged_value, m"};
    if (method.starts_with("keepkv")) expected.insert(expected.begin(), "votes, m");
    EXPECT_EQ(operations, expected);
  }
}

// D2O's merged values of an implementation that rounds keys and values as far as its storage may, each in the
// direction that moves the merged value, times a factor, back towards the right one.
std::vector<double> hidden(const traces::Layer& layer, int64_t g, const MergeCluster& cluster,
                           double factor) {
  constexpr double kUnit = 0x1p-8;  // of BF16
  std::vector<int64_t> positions{cluster.into};
  positions.insert(positions.end(), cluster.from.begin(), cluster.from.end());
  Matrix keys = reference::rows_of(layer.keys.slice(g), positions),
         values = reference::rows_of(layer.values.slice(g), positions);
  const auto mean = [&] {
    const std::vector<double> weights = reference::similarity_weights(keys);
    std::vector<double> sum(values.cols());
    for (int64_t j = 0; j < keys.rows(); ++j)
      for (int64_t c = 0; c < values.cols(); ++c) sum[c] += weights[j] * values(j, c);
    return sum;
  };
  const std::vector<double> right = mean();
  const auto along = [&](VectorView value) {
    return std::inner_product(value.begin(), value.end(), right.begin(), 0.0);
  };
  const double back = factor > 1 ? -1 : 1, whole = along(right);
  for (int64_t j = 0; j < keys.rows(); ++j) {
    const double nearer = back * (along(values.row(j)) - whole);  // whether its weight is to grow
    for (int64_t c = 0; c < values.cols(); ++c) {
      // The target's own weight grows where the others' fall: its key is left alone.
      if (j > 0) keys(j, c) += std::copysign(kUnit * keys(j, c), nearer * keys(0, c));
      values(j, c) += std::copysign(kUnit * values(j, c), back * right[c]);
    }
  }
  return mean();
}

// Merged values of large clusters in which no element is far larger than others.
Merged large_clusters() {
  traces::Layer layer = random_layer(parse_shape("tokens=400:head_dim=64:window=3"), kF64);
  for (double& number : layer.values.numbers()) number = 1 + number / 2;
  return {{kBf16, kF64}, kF64, std::move(layer), "d2o:threshold=none", 4};
}

TEST(MergedFloor, IsFoundWhateverTheRounding) {
  const Merged small({kBf16, kF64}, kF64, small_layer(kF64), "d2o:threshold=none"), large = large_clusters();
  for (const Merged* merged : {&small, &large}) {
    const double floor = *merged->floors().back().factor;
    const auto is_found = [&](double factor) {
      return merged->is_found(
          &LayerClaims::merged_value, factor,
          [&](int64_t g, const MergeCluster& cluster) { return hidden(merged->layer, g, cluster, factor); });
    };
    for (const double sign : {-1, 1}) {
      EXPECT_FALSE(is_found(1 + sign * 1e-9)) << "legal";
      EXPECT_FALSE(is_found(1 + sign * 0.65 * floor)) << floor;
      EXPECT_TRUE(is_found(1 + sign * 1.01 * floor)) << floor;
    }
  }
}

TEST(MergedFloor, IsThatOfTheGainWhereItSeesMore) {
  const Merged merged = large_clusters();
  const double floor = *merged.floors().back().factor;
  for (const double sign : {-1, 1}) {
    const TensorAgreement found = merged.judged(&LayerClaims::merged_value, 1 + sign * 0.51 * floor);
    EXPECT_EQ(found.outside, 0) << "no element shows it";
    EXPECT_GT(found.functionals.front().outside, 0);
    EXPECT_TRUE(merged.judged(&LayerClaims::merged_value, 1 + sign * 0.49 * floor).agrees());
  }
}

TEST(MergedFloor, CountsTheCachesOwnRounding) {
  const auto factor = [](const DeclaredArithmetic& declared) {
    return *Merged(declared, declared.storage, small_layer(kBf16), "d2o:threshold=none")
                .floors()
                .back()
                .factor;
  };
  EXPECT_GT(factor({kBf16, kF32}), 0x1p-7) << "of the cache and of the dump, both";
  EXPECT_LT(factor({kF32, kF32}), 0x1p-12);
}

TEST(MergedFloor, IsNoneWhereNothingMerges) {
  EXPECT_TRUE(Merged({kF32, kF32}, kF32, small_layer(kF32), "d2o:threshold=1").floors().empty());
}

}  // namespace
}  // namespace kvbound::sim::merged_floor_test
