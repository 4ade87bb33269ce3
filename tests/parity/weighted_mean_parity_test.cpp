// Weighted means and sums over clusters' rows on the device within the bounds of a sum in any order, wherever clusters begin.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <kvbound/cuda/merging/weighted_mean.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/weighted_mean.hpp>

#include "clusters.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

// Clusters of these sizes, one behind the other in the list of members.
struct Case {
  std::vector<int64_t> sizes = {1, 2};
  int64_t rows = 1;  // of weights
  int64_t head_dim = 10;
  bool shares = false;  // the rows' shares are given

  int64_t capacity() const { return std::ssize(sizes); }
  int64_t members() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }
};

template <class T>
class WeightedMeanParity : public DeviceTest {
 protected:
  struct Subject {
    Case c;
    int64_t tokens;
    Tensor entries;
    std::vector<float> kept_weights, member_weights, shares;
    Positions members, offsets{0}, kept;

    explicit Subject(const Case& given)
        : c(given),
          tokens(c.members() + c.capacity()),
          entries(rounded<T>(random_tensor(1, 1, tokens, c.head_dim))),
          kept_weights(numbers(2, c.rows * c.capacity())),
          member_weights(numbers(3, c.rows * c.members())),
          shares(numbers(4, c.rows * c.capacity())) {
      // Members are in no order; the kept entries are the last rows.
      for (int64_t i = 0; i < c.members(); ++i) members.push_back(i * 7919 % c.members());
      if (c.members() % 7919 == 0) std::iota(members.begin(), members.end(), 0);
      for (int64_t i = 0; i < c.capacity(); ++i) {
        offsets.push_back(offsets.back() + c.sizes[i]);
        kept.push_back(c.members() + i);
      }
    }

    static std::vector<float> numbers(uint64_t seed, int64_t count) {
      const Tensor random = random_tensor(seed, 1, 1, count);
      std::vector<float> result;
      for (const double number : random.numbers())
        result.push_back(static_cast<float>(0.1 + std::abs(number)));
      return result;
    }

    // into: the rows that are replaced; empty: the i-th
    std::vector<float> means(const Positions& into = {}) const {
      const Uploaded<T> device_entries(entries);
      cuda::Buffer<int64_t> device_members = cuda::upload(members), device_offsets = cuda::upload(offsets),
                            device_kept = cuda::upload(kept), device_into = cuda::upload(into);
      cuda::Buffer<float> weights_kept = cuda::upload(kept_weights),
                          weights_members = cuda::upload(member_weights),
                          device_shares = cuda::upload(shares);
      cuda::Buffer<int> status = cuda::upload(std::vector<int>{0});
      CacheRows<T> cache(1, c.capacity() + 3, c.head_dim);
      WorkingMemory memory(cuda::cluster_sums_workspace(1, c.rows, c.members(), c.head_dim));
      cuda::weighted_means<T>(device_entries.view(),
                              {{device_kept.data(), nullptr, c.capacity()},
                               {device_members.data(), c.members(), device_offsets.data(), c.capacity()},
                               into.empty() ? nullptr : device_into.data()},
                              {c.rows, weights_kept.data(), weights_members.data()},
                              c.shares ? device_shares.data() : nullptr, cache.view(), status.data(),
                              memory.view(), nullptr);
      EXPECT_EQ(cuda::download(status), std::vector<int>{0});
      return cache.numbers();
    }

    std::vector<float> sums() const {
      const Uploaded<T> device_entries(entries);
      cuda::Buffer<int64_t> device_members = cuda::upload(members), device_offsets = cuda::upload(offsets);
      cuda::Buffer<float> weights_members = cuda::upload(member_weights);
      Output result(c.capacity() * c.head_dim);
      WorkingMemory memory(cuda::cluster_sums_workspace(1, 1, c.members(), c.head_dim));
      cuda::weighted_sums<T>(device_entries.view(),
                             {device_members.data(), c.members(), device_offsets.data(), c.capacity()},
                             {1, nullptr, weights_members.data()}, result.data(), memory.view(), nullptr);
      return result.numbers();
    }

    // sum_h share_h (w_kept kept + sum_j w_j row_j) of cluster i, with `with_kept`; and the same of absolute values
    std::vector<double> expected(int64_t i, bool with_kept, bool absolute) const {
      std::vector<double> sum(c.head_dim);
      for (int64_t h = 0; h < c.rows; ++h) {
        const double share =
            c.shares && with_kept ? shares[h * c.capacity() + i] : 1.0 / static_cast<double>(c.rows);
        const auto add = [&](double weight, int64_t row) {
          for (int64_t d = 0; d < c.head_dim; ++d) {
            const double number = share * weight * entries.slice(0)(row, d);
            sum[d] += absolute ? std::abs(number) : number;
          }
        };
        if (with_kept) add(kept_weights[h * c.capacity() + i], kept[i]);
        for (int64_t j = offsets[i]; j < offsets[i + 1]; ++j)
          add(member_weights[h * c.members() + j], members[j]);
      }
      return sum;
    }

    std::vector<double> bounds(int64_t i, bool with_kept) const {
      std::vector<double> errors = expected(i, with_kept, true);
      const double rounding =
          reference::sum_rounding(c.rows * (c.sizes[i] + 1) + 4, reference::single_precision());
      for (double& error : errors) error = rounding * error + 1e-37;
      return errors;
    }
  };

  void expect_means(const Case& c, const Positions& into = {}) {
    const Subject subject(c);
    const std::vector<float> all = subject.means(into);
    for (int64_t row = 0; row < c.capacity() + 3; ++row) {
      const auto at = into.empty() ? row : std::ranges::find(into, row) - into.begin();
      const std::span<const float> own(all.data() + row * c.head_dim, c.head_dim);
      if (at >= c.capacity() || c.sizes[at] == 0) {
        EXPECT_TRUE(std::isnan(own.front())) << "row " << row << " was written";
        continue;
      }
      const std::vector<double> expected = subject.expected(at, true, false);
      EXPECT_TRUE(means_.hold(own, expected, with_storage<T>(subject.bounds(at, true), expected)))
          << "cluster " << at;
    }
  }

  void expect_sums(const Case& c) {
    const Subject subject(c);
    const std::vector<float> all = subject.sums();
    for (int64_t i = 0; i < c.capacity(); ++i) {
      const std::span<const float> own(all.data() + i * c.head_dim, c.head_dim);
      if (c.sizes[i] == 0) {
        EXPECT_EQ(std::vector<float>(own.begin(), own.end()), std::vector<float>(c.head_dim, 0));
      } else {
        EXPECT_TRUE(sums_.hold(own, subject.expected(i, false, false), subject.bounds(i, false)))
            << "cluster " << i;
      }
    }
  }

  Comparator means_{"weighted_means, " + std::string(StorageName::GetName<T>(0))},
      sums_{"weighted_sums, " + std::string(StorageName::GetName<T>(0))};
};
TYPED_TEST_SUITE(WeightedMeanParity, StorageTypes, StorageName);

TYPED_TEST(WeightedMeanParity, HoldsForClustersOfEverySizeAtEveryPlace) {
  for (const int64_t before : {0, 1, 31, 63, 64, 65, 127}) {
    for (const int64_t size : {1, 63, 64, 65, 127, 128, 129, 200, 3000}) {
      SCOPED_TRACE(std::to_string(size) + " members behind " + std::to_string(before));
      this->expect_means({.sizes = {before, size, 0, 70, 1}});
      this->expect_sums({.sizes = {before, size, 0, 70, 1}});
    }
  }
  EXPECT_TRUE(this->means_.is_tight());
  EXPECT_TRUE(this->sums_.is_tight());
}

TYPED_TEST(WeightedMeanParity, HoldsForEveryHeadDimAndNumberOfRows) {
  for (const int64_t head_dim : {1, 8, 31, 32, 33, 128, 256}) {
    for (const int64_t rows : {1, 2, 3, 7}) {
      for (const bool shares : {false, true}) {
        this->expect_means({.sizes = {3, 0, 100, 5}, .rows = rows, .head_dim = head_dim, .shares = shares});
      }
    }
  }
}

TYPED_TEST(WeightedMeanParity, ReplacesTheRowsThatAreNamed) {
  this->expect_means({.sizes = {3, 70, 2}}, {5, 0, 3});
}

TYPED_TEST(WeightedMeanParity, GivesTheSameUnderEverySchedule) {
  const typename TestFixture::Subject subject(
      {.sizes = {40, 500, 3, 90, 0, 65}, .rows = 3, .head_dim = 40, .shares = true});
  in_every_schedule([&] { return subject.means(); });
  in_every_schedule([&] { return subject.sums(); });
}

TYPED_TEST(WeightedMeanParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const Uploaded<T> entries(Tensor(2, 5, 8)), wide(Tensor(2, 5, 257));
  CacheRows<T> cache(2, 5, 8), narrow(2, 5, 7), one(1, 5, 8);
  const auto mean = [](const Uploaded<T>& rows, CacheRows<T>& to, int64_t stride) {
    cuda::weighted_means<T>(rows.view(), {{}, {nullptr, stride, nullptr, 2}, nullptr}, {1}, nullptr,
                            to.view(), nullptr, {}, nullptr);
  };
  EXPECT_THROW(mean(entries, narrow, 3), ShapeMismatch);
  EXPECT_THROW(mean(entries, one, 3), ShapeMismatch);
  EXPECT_THROW(mean(wide, cache, 3), ShapeMismatch);
  EXPECT_THROW(mean(entries, cache, 65), ShapeMismatch) << "no workspace";
  EXPECT_THROW(cuda::weighted_sums<T>(entries.view(), {nullptr, 3, nullptr, 2}, {2}, nullptr, {}, nullptr),
               ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
