// Weighted sums and means over clusters on the device, within the rounding of their sums: clusters of every
// size, wherever they begin in the chunks by which large ones are summed.
#include <algorithm>
#include <cmath>
#include <limits>
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

struct Case {
  std::vector<Positions> members = {{3, 0, 1}};  // per KV head: how many each kept entry has
  int64_t head_dim = 10;
  int64_t rows = 1;  // of weights
  bool shares = false;
  bool into = false;  // the rows of the cache are others than the first ones, in another order

  int64_t kv_heads() const { return std::ssize(members); }
  int64_t capacity() const {
    return std::ssize(*std::ranges::max_element(members, {}, &Positions::size)) + 2;
  }
  int64_t tokens() const {
    int64_t most = 0;
    for (const Positions& own : members) {
      most = std::max(most, std::ssize(own) + std::accumulate(own.begin(), own.end(), int64_t{0}));
    }
    return most + 1;
  }
  int64_t cache_rows() const { return into ? 2 * capacity() + 1 : capacity(); }
  int64_t row_of(int64_t i) const { return into ? 2 * (capacity() - i) - 1 : i; }
};

// A KV head's clusters in terms of the rows of `entries`.
struct Cluster {
  int64_t kept;
  Positions members;  // ascending
  int64_t first;      // the first one's place in the list of all members
};

template <class T>
struct Subject {
  Case c;
  int64_t tokens;
  Tensor entries;
  std::vector<std::vector<Cluster>> clusters;
  // NaN wherever there is nothing to read, in the order of WeightLayout
  std::vector<float> kept, members, shares;

  explicit Subject(const Case& given)
      : c(given),
        tokens(c.tokens()),
        entries(rounded<T>(random_tensor(1, c.kv_heads(), tokens, c.head_dim))),
        kept(c.kv_heads() * c.rows * c.capacity(), std::nanf("")),
        members(c.kv_heads() * c.rows * tokens, std::nanf("")),
        shares(kept) {
    const Tensor order = random_tensor(2, 1, c.kv_heads(), tokens),
                 weights = random_tensor(3, c.kv_heads(), c.rows, 2 * c.capacity() + tokens);
    for (int64_t g = 0; g < c.kv_heads(); ++g) {
      Positions all(tokens);
      std::iota(all.begin(), all.end(), 0);
      std::ranges::sort(all, {}, [&](int64_t row) { return order.slice(0)(g, row); });
      auto next = all.begin();
      int64_t place = 0;
      std::vector<Cluster>& own = clusters.emplace_back();
      for (const int64_t count : c.members[g]) {
        Cluster cluster{*next, {next + 1, next + 1 + count}, place};
        std::ranges::sort(cluster.members);
        next += 1 + count;
        place += count;
        own.push_back(std::move(cluster));
      }
      for (int64_t h = 0; h < c.rows; ++h) {
        const VectorView random = weights.slice(g).row(h);
        for (int64_t i = 0; i < std::ssize(own); ++i) {
          if (own[i].members.empty()) continue;
          kept[at(g, h, i)] = static_cast<float>(random[i]);
          shares[at(g, h, i)] = (i + h) % 5 == 4 ? 0 : static_cast<float>(random[c.capacity() + i]);
        }
        for (int64_t m = 0; m < place; ++m) {
          members[member_at(g, h, m)] = m % 7 == 6 ? 0 : static_cast<float>(random[2 * c.capacity() + m]);
        }
      }
    }
  }

  int64_t at(int64_t g, int64_t h, int64_t i) const {
    return cuda::WeightLayout{c.rows, c.kv_heads(), c.capacity()}.place(h, g, i);
  }
  int64_t member_at(int64_t g, int64_t h, int64_t place) const {
    return cuda::WeightLayout{c.rows, c.kv_heads(), tokens}.place(h, g, place);
  }

  struct Device {
    Device(const Subject& subject, int64_t heads, int64_t capacity)
        : kept_weights(cuda::upload(subject.kept)),
          member_weights(cuda::upload(subject.members)),
          shares(cuda::upload(subject.shares)),
          status(cuda::upload(std::vector<int>{0})),
          sums(cuda::cluster_sums_workspace(heads, subject.c.rows, subject.tokens, subject.c.head_dim)) {
      Positions kept_rows(heads * capacity, -5), counts, places(heads * subject.tokens, -5), offsets,
          rows(heads * capacity, -5);
      for (int64_t g = 0; g < heads; ++g) {
        const std::vector<Cluster>& own = subject.clusters[g];
        int64_t end = 0;
        for (int64_t i = 0; i <= capacity; ++i) {
          offsets.push_back(end);
          if (i >= std::ssize(own)) continue;
          kept_rows[g * capacity + i] = own[i].kept;
          rows[g * capacity + i] = subject.c.row_of(i);
          std::ranges::copy(own[i].members, places.begin() + g * subject.tokens + end);
          end += std::ssize(own[i].members);
        }
        counts.push_back(std::ssize(own));
      }
      kept_positions = cuda::upload(kept_rows);
      count = cuda::upload(counts);
      member_rows = cuda::upload(places);
      first = cuda::upload(offsets);
      into = cuda::upload(rows);
      merged = {{kept_positions.data(), count.data(), capacity},
                {member_rows.data(), subject.tokens, first.data(), capacity},
                subject.c.into ? into.data() : nullptr};
      weights = {subject.c.rows, kept_weights.data(), member_weights.data()};
    }

    cuda::Buffer<float> kept_weights, member_weights, shares;
    cuda::Buffer<int64_t> kept_positions, count, member_rows, first, into;
    cuda::Buffer<int> status;
    WorkingMemory sums;
    cuda::MergedEntries merged;
    cuda::ClusterWeights weights;
  };

  std::vector<float> means() const {
    Device device(*this, c.kv_heads(), c.capacity());
    const Uploaded<T> rows(entries);
    CacheRows<T> cache(c.kv_heads(), c.cache_rows(), c.head_dim);
    cuda::weighted_means<T>(rows.view(), device.merged, device.weights,
                            c.shares ? device.shares.data() : nullptr, cache.view(), device.status.data(),
                            device.sums.view(), nullptr);
    cuda::synchronise(nullptr);
    EXPECT_EQ(cuda::download(device.status), std::vector<int>{0});
    return cache.numbers();
  }

  std::vector<float> sums() const {
    Device device(*this, c.kv_heads(), c.capacity());
    const Uploaded<T> rows(entries);
    Output sums(c.kv_heads() * c.capacity() * c.head_dim);
    cuda::weighted_sums<T>(rows.view(), device.merged.clusters, device.weights, sums.data(),
                           device.sums.view(), nullptr);
    return sums.numbers();
  }

  // The weighted sum of one cluster with the weights of row h, of the numbers themselves or
  // of their absolute values.
  std::vector<double> sum(int64_t g, int64_t h, const Cluster& cluster, double of_kept, bool absolute) const {
    std::vector<double> weights{of_kept};
    Matrix rows(1, c.head_dim);
    std::ranges::copy(entries.slice(g).row(cluster.kept), rows.row(0).begin());
    for (int64_t m = 0; m < std::ssize(cluster.members); ++m) {
      weights.push_back(members[member_at(g, h, cluster.first + m)]);
      rows.append_row(entries.slice(g).row(cluster.members[m]));
    }
    if (absolute) {
      for (double& weight : weights) weight = std::abs(weight);
      for (int64_t m = 0; m < rows.rows(); ++m) {
        for (double& entry : rows.row(m)) entry = std::abs(entry);
      }
    }
    return reference::weighted_mean(weights, rows);
  }
};

void add(double factor, const std::vector<double>& from, std::vector<double>& to) {
  for (size_t c = 0; c < to.size(); ++c) to[c] += factor * from[c];
}

template <class T>
class WeightedMeanParity : public DeviceTest {
 protected:
  // Every product is rounded once; then follow the additions of a cluster, and what `further` counts.
  static std::vector<double> errors(int64_t members, int64_t further, std::vector<double> sizes) {
    const double share =
        reference::sum_rounding(accumulation_depth(members) + 1 + further, reference::single_precision());
    for (double& size : sizes) size *= share;
    return sizes;
  }

  void expect_means(const Case& c) {
    const Subject<T> subject(c);
    const std::vector<float> result = subject.means();
    std::vector<bool> written(c.kv_heads() * c.cache_rows());
    for (int64_t g = 0; g < c.kv_heads(); ++g) {
      std::vector<float> actual;
      std::vector<double> expected, bounds;
      for (int64_t i = 0; i < std::ssize(subject.clusters[g]); ++i) {
        const Cluster& cluster = subject.clusters[g][i];
        if (cluster.members.empty()) continue;
        std::vector<double> mean(c.head_dim), size(c.head_dim);
        for (int64_t h = 0; h < c.rows; ++h) {
          const double share =
              c.shares ? subject.shares[subject.at(g, h, i)] : 1 / static_cast<double>(c.rows);
          const double own = subject.kept[subject.at(g, h, i)];
          add(share, subject.sum(g, h, cluster, own, false), mean);
          add(std::abs(share), subject.sum(g, h, cluster, own, true), size);
        }
        // Further roundings: the kept entry's addition, the share itself, its product,
        // and the rows' additions.
        const std::vector<double> own_bounds =
            with_storage<T>(errors(std::ssize(cluster.members), 3 + c.rows, std::move(size)), mean);
        const int64_t row = g * c.cache_rows() + c.row_of(i);
        written[row] = true;
        actual.insert(actual.end(), result.begin() + row * c.head_dim,
                      result.begin() + (row + 1) * c.head_dim);
        expected.insert(expected.end(), mean.begin(), mean.end());
        bounds.insert(bounds.end(), own_bounds.begin(), own_bounds.end());
      }
      if (expected.empty()) continue;
      EXPECT_TRUE(means_.hold(actual, expected, bounds)) << "KV head " << g;
    }
    for (int64_t row = 0; row < std::ssize(written); ++row) {
      if (!written[row]) {
        EXPECT_TRUE(std::all_of(result.begin() + row * c.head_dim, result.begin() + (row + 1) * c.head_dim,
                                [](float number) { return std::isnan(number); }))
            << "row " << row << " was written without members";
      }
    }
  }

  void expect_sums(const Case& c) {
    const Subject<T> subject(c);
    const std::vector<float> result = subject.sums();
    for (int64_t g = 0; g < c.kv_heads(); ++g) {
      std::vector<double> expected, bounds;
      for (int64_t i = 0; i < c.capacity(); ++i) {
        const bool merges = i < std::ssize(subject.clusters[g]) && !subject.clusters[g][i].members.empty();
        std::vector<double> sum(c.head_dim), size(c.head_dim);
        if (merges) {
          sum = subject.sum(g, 0, subject.clusters[g][i], 0, false);
          size = errors(std::ssize(subject.clusters[g][i].members), 0,
                        subject.sum(g, 0, subject.clusters[g][i], 0, true));
        }
        expected.insert(expected.end(), sum.begin(), sum.end());
        bounds.insert(bounds.end(), size.begin(), size.end());
      }
      if (std::ranges::all_of(expected, [](double number) { return number == 0; })) {
        EXPECT_TRUE(std::all_of(result.begin() + g * c.capacity() * c.head_dim,
                                result.begin() + (g + 1) * c.capacity() * c.head_dim,
                                [](float number) { return number == 0; }));
        continue;
      }
      const std::span<const float> own(result.data() + g * c.capacity() * c.head_dim, expected.size());
      EXPECT_TRUE(sums_.hold(own, expected, bounds)) << "KV head " << g;
    }
  }

  void expect_parity(const Case& c) {
    std::string sizes;
    for (const int64_t members : c.members.front()) sizes += " " + std::to_string(members);
    SCOPED_TRACE("clusters of" + sizes + ", head_dim " + std::to_string(c.head_dim) + ", " +
                 std::to_string(c.rows) + " rows of weights" + (c.shares ? ", shares" : "") +
                 (c.into ? ", into other rows" : ""));
    expect_means(c);
    if (c.rows == 1) expect_sums(c);
  }

  Comparator means_{"weighted means, " + std::string(StorageName::GetName<T>(0))},
      sums_{"weighted sums, " + std::string(StorageName::GetName<T>(0))};
};
TYPED_TEST_SUITE(WeightedMeanParity, StorageTypes, StorageName);

TYPED_TEST(WeightedMeanParity, SumsClustersOfEverySize) {
  for (const int64_t members : {0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300}) {
    this->expect_parity({.members = {{members}, {}, {0, members, 0, members}, {members, members, members}}});
  }
  EXPECT_TRUE(this->means_.is_tight());
  EXPECT_TRUE(this->sums_.is_tight());
}

// Large clusters begin and end at every place of a chunk, next to each other and to small ones.
TYPED_TEST(WeightedMeanParity, SumsClustersThatBeginAtEveryPlaceOfAChunk) {
  for (int64_t place = 0; place <= 64; ++place) {
    this->expect_parity(
        {.members = {{place, 65, 64, 129, 0, 63, 128, 66, 1}, {place, 0, 130, 190 - place, 70, 0}},
         .head_dim = 3});
  }
}

// The large ones among hundreds of clusters, of which a warp lists the parts by 32, and
// 256 one behind the other.
TYPED_TEST(WeightedMeanParity, SumsLargeClustersAmongHundreds) {
  for (const int64_t large : {30, 31, 32, 63, 255, 256, 299}) {
    std::vector<int64_t> members(300);
    members[large] = 65;
    this->expect_parity({.members = {members, {}, members}, .head_dim = 3});
  }
}

TYPED_TEST(WeightedMeanParity, SumsAClusterOfThousands) {
  this->expect_parity({.members = {{5, 3001, 0, 100, 7}, {2000, 1, 70}}});
  this->expect_parity({.members = {{5, 3001, 0, 100, 7}, {2000, 1, 70}}, .rows = 2, .shares = true});
}

TYPED_TEST(WeightedMeanParity, SumsForEveryHeadDim) {
  for (const int64_t head_dim : {1, 8, 31, 32, 33, 80, 128, 255, 256}) {
    this->expect_parity({.members = {{3, 0, 70, 129}, {66, 1}}, .head_dim = head_dim});
  }
}

TYPED_TEST(WeightedMeanParity, WeighsByEveryRowAndItsShare) {
  for (const int64_t rows : {1, 2, 4, 5, 9}) {
    for (const bool shares : {false, true}) {
      for (const bool into : {false, true}) {
        this->expect_parity({.members = {{3, 0, 70, 129, 2, 64}, {66, 1, 1, 1, 1, 200}},
                             .rows = rows,
                             .shares = shares,
                             .into = into});
      }
    }
  }
}

TYPED_TEST(WeightedMeanParity, GivesTheSameUnderEverySchedule) {
  const Case c{.members = {{10, 65, 300, 0, 64, 5}, {129, 3}}, .head_dim = 40};
  const Subject<TypeParam> one(c);
  in_every_schedule([&] { return one.sums(); });
  Case several = c;
  several.rows = 5;
  several.shares = several.into = true;
  const Subject<TypeParam> subject(several);
  in_every_schedule([&] { return subject.means(); });
}

// During decoding an evicted entry merges within the cache.
TYPED_TEST(WeightedMeanParity, MergesOneClusterOfEachHeadInPlace) {
  using T = TypeParam;
  for (const int64_t members : {1, 64, 65, 200}) {
    SCOPED_TRACE(members);
    const Case c{.members = {{members}, {0}, {members}}, .head_dim = 40};
    const Subject<T> subject(c);
    typename Subject<T>::Device device(subject, 3, c.capacity());
    device.merged.into = device.kept_positions.data();
    CacheRows<T> cache(subject.entries, {subject.tokens, subject.tokens, subject.tokens});
    const std::vector<float> apart = subject.means(), before = cache.numbers();
    cuda::weighted_means<T>(cache.view(), device.merged, device.weights, nullptr, cache.view(),
                            device.status.data(), device.sums.view(), nullptr);
    std::vector<float> expected = before;
    for (const int64_t g : {0, 2}) {
      std::copy_n(apart.begin() + g * c.capacity() * c.head_dim, c.head_dim,
                  expected.begin() + (g * subject.tokens + subject.clusters[g][0].kept) * c.head_dim);
    }
    EXPECT_TRUE(same_bits(cache.numbers(), expected));
    EXPECT_FALSE(same_bits(before, expected));
    EXPECT_EQ(cuda::download(device.status), std::vector<int>{0});
  }
}

TYPED_TEST(WeightedMeanParity, ReportsMeansThatDoNotFit) {
  using T = TypeParam;
  constexpr double kMost = std::is_same_v<T, cuda::Float16> ? 65504 : 3e38;
  const auto status_of = [&](int64_t head_dim, double entry, float weight) {
    Subject<T> subject({.members = {{2, 0}, {0, 1}}, .head_dim = head_dim});
    std::ranges::fill(subject.entries.numbers(), 1);
    subject.entries
        .data()[subject.clusters[1][1].members[0] * head_dim + subject.tokens * head_dim + head_dim - 1] =
        entry;
    subject.entries = rounded<T>(subject.entries);
    subject.members[subject.tokens] = weight;
    typename Subject<T>::Device device(subject, 2, subject.c.capacity());
    const Uploaded<T> rows(subject.entries);
    CacheRows<T> cache(2, subject.c.capacity(), head_dim);
    cuda::weighted_means<T>(rows.view(), device.merged, device.weights, nullptr, cache.view(),
                            device.status.data(), device.sums.view(), nullptr);
    return cuda::download(device.status).front();
  };
  for (const int64_t head_dim : {33, 40}) {  // written number by number, and by vectors
    EXPECT_EQ(status_of(head_dim, kMost, 0.5f), 0);
    EXPECT_EQ(status_of(head_dim, kMost, 1.5f), 1);
    EXPECT_EQ(status_of(head_dim, -kMost, 1.5f), 1);
    EXPECT_EQ(status_of(head_dim, 1, std::nanf("")), 1);
  }
}

TYPED_TEST(WeightedMeanParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const Uploaded<T> entries(Tensor(2, 100, 8)), wide(Tensor(2, 100, 257));
  CacheRows<T> cache(2, 5, 8), narrow(2, 5, 7), one(1, 5, 8);
  const cuda::MergedEntries merged{{}, {nullptr, 65, nullptr, 5}, nullptr};
  WorkingMemory enough(cuda::cluster_sums_workspace(2, 1, 65, 8)),
      less(cuda::cluster_sums_workspace(2, 1, 65, 8) - 1);
  const auto means = [&](const Uploaded<T>& from, CacheRows<T>& to, int64_t rows, WorkingMemory& memory) {
    cuda::weighted_means<T>(from.view(), merged, {rows}, nullptr, to.view(), nullptr, memory.view(), nullptr);
  };
  EXPECT_THROW(means(entries, narrow, 1, enough), ShapeMismatch);
  EXPECT_THROW(means(entries, one, 1, enough), ShapeMismatch);
  EXPECT_THROW(means(entries, cache, 0, enough), ShapeMismatch);
  EXPECT_THROW(means(entries, cache, 1, less), ShapeMismatch);
  EXPECT_THROW(means(entries, cache, 2, enough), ShapeMismatch);
  EXPECT_THROW(cuda::weighted_sums<T>(wide.view(), merged.clusters, {1}, nullptr, enough.view(), nullptr),
               ShapeMismatch);
  EXPECT_THROW(cuda::weighted_sums<T>(entries.view(), merged.clusters, {2}, nullptr, enough.view(), nullptr),
               ShapeMismatch);
  EXPECT_THROW(cuda::weighted_sums<T>(entries.view(), merged.clusters, {1}, nullptr, less.view(), nullptr),
               ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
