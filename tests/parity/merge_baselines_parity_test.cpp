// The weights of D2O and KVMerger on the device: means of keys and values within their bounds.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <kvbound/cuda/merging/merge_baselines.hpp>
#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/merge_baselines.hpp>
#include <kvbound/reference/merging/weighted_mean.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "clusters.hpp"
#include "keys.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

enum class Method { similarity, gaussian };

// Of duplicated keys so few are different that some clusters have no spread; squares of distances of huge
// ones overflow single precision.
constexpr Keys kKinds[] = {Keys::random, Keys::duplicated, Keys::zero, Keys::huge};
constexpr double kHuge = 1e30;
constexpr int64_t kDifferent = 3;

bool all_equal(const Matrix& rows) {
  for (int64_t i = 1; i < rows.rows(); ++i) {
    if (!std::ranges::equal(rows.row(i), rows.row(0))) return false;
  }
  return true;
}

struct Case {
  Method method = Method::similarity;
  ClusterCase clusters = {};
  int64_t head_dim = 10;
  Keys keys = Keys::random;
};

template <class T>
class MergeBaselinesParity : public DeviceTest {
 protected:
  struct Subject {
    Case c;
    Tensor keys, values;

    explicit Subject(const Case& given)
        : c(given),
          keys(rounded<T>(
              keys_of(c.keys, c.clusters.kv_heads(), c.clusters.tokens, c.head_dim, kHuge, kDifferent))),
          values(rounded<T>(random_tensor(2, c.clusters.kv_heads(), c.clusters.tokens, c.head_dim))) {}

    std::vector<std::vector<float>> run() const {
      const int64_t heads = c.clusters.kv_heads(), capacity = c.clusters.capacity();
      ClustersOf clusters(c.clusters);
      const Uploaded<T> device_keys(keys), device_values(values);
      Output kept(heads * capacity), members(heads * c.clusters.tokens);
      const cuda::ClusterWeights weights{1, kept.data(), members.data()};
      WorkingMemory distances(cuda::gaussian_weights_workspace(heads, c.clusters.tokens)),
          sums(cuda::cluster_sums_workspace(heads, 1, c.clusters.tokens, c.head_dim));
      switch (c.method) {
        case Method::similarity:
          cuda::similarity_weights<T>(device_keys.view(), clusters.view(), weights, nullptr);
          break;
        case Method::gaussian:
          cuda::gaussian_weights<T>(device_keys.view(), clusters.view(), weights, distances.view(), nullptr);
          break;
      }
      CacheRows<T> merged_keys(heads, capacity, c.head_dim), merged_values(heads, capacity, c.head_dim);
      cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
      cuda::weighted_means<T>(device_keys.view(), clusters.view(), weights, nullptr, merged_keys.view(),
                              status.data(), sums.view(), nullptr);
      cuda::weighted_means<T>(device_values.view(), clusters.view(), weights, nullptr, merged_values.view(),
                              status.data(), sums.view(), nullptr);
      cuda::synchronise(nullptr);
      EXPECT_EQ(cuda::download(status), std::vector<int>{0});
      return {merged_keys.numbers(), merged_values.numbers()};
    }
  };

  void expect_cluster(const Subject& subject, const std::vector<std::vector<float>>& result, int64_t g,
                      int64_t row, const Positions& cluster) {
    const Case& c = subject.c;
    const reference::ClusterMembers members{reference::rows_of(subject.keys.slice(g), cluster),
                                            reference::rows_of(subject.values.slice(g), cluster),
                                            {},
                                            {}};
    const auto count = std::ssize(cluster);
    const reference::MemberErrors exact{Matrix(count, c.head_dim), Matrix(count, c.head_dim), {}};
    const reference::Arithmetic arithmetic = reference::single_precision();
    const bool by_similarity = c.method == Method::similarity;
    const std::vector<double> weights = by_similarity ? reference::similarity_weights(members.keys)
                                                      : reference::gaussian_weights(members.keys);
    const reference::MergedEntryErrors errors =
        by_similarity ? reference::similarity_mean_errors(members, exact, arithmetic)
                      : reference::gaussian_mean_errors(members, exact, arithmetic);
    const auto expect = [&](const std::vector<float>& all, const Matrix& rows, std::vector<double> off,
                            Comparator& comparator) {
      const std::vector<double> expected = reference::weighted_mean(weights, rows);
      const std::vector<double> bounds = with_storage<T>(std::move(off), expected);
      const std::span<const float> own(all.data() + row * c.head_dim, c.head_dim);
      if (by_similarity || !all_equal(members.keys)) {
        EXPECT_TRUE(comparator.hold(own, expected, bounds));
      } else {  // rounding might have made a spread of none, for which there is no bound
        for (size_t i = 0; i < own.size(); ++i)
          EXPECT_NEAR(own[i], expected[i], 0.01 * (1 + std::abs(expected[i])));
      }
    };
    expect(result[0], members.keys, errors.key, keys_);
    expect(result[1], members.values, errors.value, values_);
  }

  void expect_parity(const Case& c) {
    SCOPED_TRACE(std::string(name(c.keys)) + " keys, " + std::to_string(c.clusters.tokens) +
                 " entries, head_dim " + std::to_string(c.head_dim) +
                 (c.method == Method::similarity ? ", similarity" : ", gaussian"));
    const Subject subject(c);
    const std::vector<std::vector<float>> result = subject.run();
    const ClustersOf clusters(c.clusters);
    for (int64_t g = 0; g < c.clusters.kv_heads(); ++g) {
      for (int64_t i = 0; i < c.clusters.kept[g]; ++i) {
        const Positions& cluster = clusters.lists()[g][i];
        const int64_t row = g * c.clusters.capacity() + i;
        if (cluster.size() > 1) {
          expect_cluster(subject, result, g, row, cluster);
        } else {
          EXPECT_TRUE(std::isnan(result[0][row * c.head_dim])) << "written without members";
        }
      }
    }
  }

  Comparator keys_{"keys merged by keys, " + std::string(StorageName::GetName<T>(0))},
      values_{"values merged by keys, " + std::string(StorageName::GetName<T>(0))};
};
TYPED_TEST_SUITE(MergeBaselinesParity, StorageTypes, StorageName);

constexpr Method kMethods[] = {Method::similarity, Method::gaussian};

TYPED_TEST(MergeBaselinesParity, MergesAcrossSizes) {
  for (const Method method : kMethods) {
    for (const int64_t tokens : {2, 31, 32, 33, 64, 65, 200}) {
      this->expect_parity({.method = method, .clusters = {.tokens = tokens, .kept = {(tokens + 3) / 4, 1}}});
    }
  }
  EXPECT_TRUE(this->keys_.is_tight());
  EXPECT_TRUE(this->values_.is_tight());
}

TYPED_TEST(MergeBaselinesParity, MergesEveryKindOfKeysAndHeadDim) {
  for (const Method method : kMethods) {
    for (const Keys keys : kKinds) {
      if (keys == Keys::huge && std::is_same_v<TypeParam, cuda::Float16>) {
        continue;  // beyond the type's range
      }
      for (const int64_t head_dim : {1, 8, 64, 80, 256}) {
        this->expect_parity({.method = method,
                             .clusters = {.tokens = 60, .kept = {7, 5}},
                             .head_dim = head_dim,
                             .keys = keys});
      }
    }
  }
}

// A power of two changes no bit of a weight, also where the squares of the keys' numbers over- or underflow.
TYPED_TEST(MergeBaselinesParity, WeightsDoNotDependOnTheSizeOfKeys) {
  const std::vector<double> factors =
      std::is_same_v<TypeParam, cuda::Float16> ? std::vector{0x1p-4, 0x1p4} : std::vector{0x1p-90, 0x1p90};
  for (const Method method : kMethods) {
    typename TestFixture::Subject subject({.method = method, .head_dim = 40});
    const std::vector<float> values = subject.run()[1];
    const Tensor keys = subject.keys;
    for (const double factor : factors) {
      std::ranges::transform(keys.numbers(), subject.keys.data(),
                             [&](double number) { return number * factor; });
      EXPECT_TRUE(same_bits(subject.run()[1], values)) << factor;
    }
  }
}

TYPED_TEST(MergeBaselinesParity, MergesAClusterOfThousands) {
  for (const Method method : kMethods) {
    this->expect_parity({.method = method, .clusters = {.tokens = 3000, .kept = {40, 7}, .sink = true}});
  }
}

TYPED_TEST(MergeBaselinesParity, GivesTheSameUnderEverySchedule) {
  for (const Method method : kMethods) {
    const typename TestFixture::Subject subject(
        {.method = method, .clusters = {.tokens = 300, .kept = {12, 5}, .sink = true}, .head_dim = 40});
    in_every_schedule([&] { return subject.run(); });
  }
}

TYPED_TEST(MergeBaselinesParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const Uploaded<T> keys(Tensor(2, 5, 8)), wide(Tensor(2, 5, 257));
  const cuda::MergedEntries merged{{}, {nullptr, 3, nullptr, 2}, nullptr};
  EXPECT_THROW(cuda::similarity_weights<T>(wide.view(), merged, {}, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::similarity_weights<T>(keys.view(), merged, {2}, nullptr), ShapeMismatch);
  EXPECT_THROW(cuda::gaussian_weights<T>(keys.view(), merged, {}, {}, nullptr), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
