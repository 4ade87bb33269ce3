#include <algorithm>
#include <cmath>
#include <limits>

#include <kvbound/cuda/eviction/snap_kv.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/eviction/window_logits.hpp>

#include "distributions.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

// A layer's window queries and keys, in double precision, before they are rounded to the storage type.
struct Case {
  int64_t kv_heads = 2;
  int64_t group_size = 4;
  int64_t head_dim = 10;
  int64_t window = 8;
  int64_t tokens = 33;
  Distribution distribution = Distribution::random;

  int64_t query_heads() const { return kv_heads * group_size; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.kv_heads << " x " << c.group_size << " heads of " << c.head_dim << ", "
             << name(c.distribution) << ", window " << c.window << " of " << c.tokens;
}

// The case's numbers rounded to T, and the device's results for them.
template <cuda::Storage T>
class Subject {
 public:
  explicit Subject(const Case& c)
      : case_(c),
        queries_(rounded<T>(random_tensor(1, c.query_heads(), c.window, c.head_dim))),
        keys_(rounded<T>(keys_of(c.distribution, 2, group_queries(), c.tokens, c.scale()))) {}

  /// {log-sum-exp, mean attention weights, summed attention weights}
  std::vector<std::vector<float>> run() const {
    const Case& c = case_;
    const Uploaded<T> queries(queries_), keys(keys_);
    const cuda::WindowView<T> window{queries.view(), keys.view(), c.scale()};
    Output log_sum_exp(c.query_heads() * c.window);
    Output mean(c.query_heads() * c.tokens), sum(c.query_heads() * c.tokens);
    WorkingMemory memory(cuda::window_log_sum_exp_workspace(c.query_heads(), c.window, c.tokens));
    cuda::window_log_sum_exp(window, log_sum_exp.data(), memory.view(), nullptr);
    cuda::window_attention(window, log_sum_exp.data(), WindowReduction::mean, mean.data(), nullptr);
    cuda::window_attention(window, log_sum_exp.data(), WindowReduction::sum, sum.data(), nullptr);
    return {log_sum_exp.numbers(), mean.numbers(), sum.numbers()};
  }

  LayerView layer() const {
    return {
        {case_.query_heads(), case_.kv_heads, case_.head_dim, 1}, case_.scale(), keys_, keys_, queries_, {}};
  }

 private:
  // The first query of each group of query heads.
  Matrix group_queries() const {
    Matrix first;
    for (int64_t g = 0; g < case_.kv_heads; ++g) {
      first.append_row(queries_.slice(g * case_.group_size).row(0));
    }
    return first;
  }

  Case case_;
  Tensor queries_, keys_;
};

// [query_heads, window]
std::vector<double> window_log_sum_exp(const LayerView& layer) {
  std::vector<double> result;
  for (int64_t h = 0; h < layer.shape.query_heads; ++h) {
    const Matrix logits = reference::attention_logits(
        layer.queries.slice(h), layer.keys.slice(layer.shape.kv_head_of(h)), layer.scale);
    for (int64_t i = 0; i < logits.rows(); ++i) {
      const int64_t visible = logits.cols() - logits.rows() + i + 1;
      result.push_back(reference::log_sum_exp(VectorView(logits.row(i)).first(visible)));
    }
  }
  return result;
}

template <class T>
class SnapKvParity : public DeviceTest {
 protected:
  void expect_parity(const Case& c, const Subject<T>& subject,
                     const std::vector<std::vector<float>>& results) {
    const LayerView layer = subject.layer();
    const reference::Arithmetic arithmetic =
        reference::arithmetic_of(cuda::window_arithmetic<T>(c.tokens, c.head_dim));
    EXPECT_TRUE(
        log_sum_exp_.hold(results[0], window_log_sum_exp(layer),
                          reference::window_log_sum_exp_errors(layer, c.window, arithmetic).numbers()))
        << c;
    EXPECT_TRUE(mean_.hold(results[1], reference::window_attention(layer, c.window).numbers(),
                           reference::window_attention_errors(layer, c.window, arithmetic).numbers()))
        << c;
    EXPECT_TRUE(sum_.hold(results[2], reference::window_attention_sums(layer, c.window).numbers(),
                          reference::accumulated_attention_errors(layer, c.window, arithmetic).numbers()))
        << c;
  }

  void expect_parity_in_every_schedule(const Case& c) {
    const Subject<T> subject(c);
    expect_parity(c, subject, in_every_schedule([&] { return subject.run(); }));
  }

  void expect_tight() const {
    EXPECT_TRUE(log_sum_exp_.is_tight());
    EXPECT_TRUE(mean_.is_tight());
    EXPECT_TRUE(sum_.is_tight());
  }

  Comparator log_sum_exp_{"window_log_sum_exp " + StorageName::GetName<T>(0)};
  Comparator mean_{"window_attention " + StorageName::GetName<T>(0)};
  Comparator sum_{"window_attention, summed " + StorageName::GetName<T>(0)};
};
TYPED_TEST_SUITE(SnapKvParity, StorageTypes, StorageName);

TYPED_TEST(SnapKvParity, MatchesReferenceAcrossSizes) {
  for (const int64_t tokens : {1, 31, 32, 33, 64, 65, 200}) {
    for (const int64_t window : {1, 8, 31, 32, 33, 70}) {
      if (window <= tokens) {
        this->expect_parity_in_every_schedule(
            {.kv_heads = 1, .group_size = 2, .window = window, .tokens = tokens});
      }
    }
  }
  this->expect_tight();
}

TYPED_TEST(SnapKvParity, MatchesReferenceAcrossHeadDims) {
  for (const int64_t head_dim : {1, 8, 10, 64, 80, 128, 256}) {
    this->expect_parity_in_every_schedule({.head_dim = head_dim, .tokens = 70});
  }
  this->expect_tight();
}

TYPED_TEST(SnapKvParity, MatchesReferenceAcrossGroups) {
  for (const int64_t group_size : {1, 2, 3, 4, 5, 8, 16, 20}) {
    this->expect_parity_in_every_schedule({.group_size = group_size, .window = 5, .tokens = 70});
  }
  this->expect_tight();
}

TYPED_TEST(SnapKvParity, MatchesReferenceAcrossDistributions) {
  for (const Distribution distribution : kDistributions) {
    this->expect_parity_in_every_schedule(
        {.head_dim = 64, .window = 16, .tokens = 130, .distribution = distribution});
  }
  this->expect_tight();
}

TYPED_TEST(SnapKvParity, MatchesReferenceForALargePrompt) {
  for (const Case& c :
       {Case{.head_dim = 64, .window = 32, .tokens = 3000},
        // A prompt so long that a split has 320 tokens, an odd number of tiles, and that a block of the
        // emulation's 16 multiprocessors has several of them, more tiles than room for them.
        Case{.kv_heads = 1, .group_size = 1, .head_dim = 64, .window = 3, .tokens = 15000},
        // One so long that a split has 512: eight tiles.
        Case{.kv_heads = 1, .group_size = 1, .head_dim = 8, .window = 3, .tokens = 33000}}) {
    const Subject<TypeParam> subject(c);
    const auto results = subject.run();
    EXPECT_TRUE(same_bits(results, subject.run()));
    this->expect_parity(c, subject, results);
  }
  this->expect_tight();
}

// A prompt so long that a split has two tiles, which are processed in turn where shared
// memory has room for one.
TYPED_TEST(SnapKvParity, GivesTheSameBitsWithOneTileAtATime) {
  const Case c{.kv_heads = 1, .group_size = 1, .head_dim = 256, .window = 3, .tokens = 4200};
  const Subject<TypeParam> subject(c);
  const auto results = subject.run();
  for_each_device([&](const std::string& device) {
    EXPECT_TRUE(same_bits(in_every_schedule([&] { return subject.run(); }), results)) << device;
  });
}

// With little shared memory a block has fewer tiles at a time; the results must not depend on it.
TYPED_TEST(SnapKvParity, GivesTheSameBitsOnDevicesWithLessSharedMemory) {
  for (const int64_t head_dim : {80, 256}) {
    for (const Case& c :
         {Case{.kv_heads = 1, .group_size = 1, .head_dim = head_dim, .window = 3, .tokens = 150},
          Case{.kv_heads = 1, .group_size = 3, .head_dim = head_dim, .window = 65, .tokens = 150}}) {
      const Subject<TypeParam> subject(c);
      const auto results = subject.run();
      for_each_device([&](const std::string& device) {
        SCOPED_TRACE(device);
        EXPECT_TRUE(same_bits(in_every_schedule([&] { return subject.run(); }), results)) << c;
      });
      this->expect_parity(c, subject, results);
    }
  }
}

// By wgmma, and on other devices and for windows of more than 128 queries by mma.sync.
TYPED_TEST(SnapKvParity, MatchesReferenceByEveryKernelOfAHeadDim) {
  for (const int64_t head_dim : {64, 128}) {
    for (const int64_t window : {5, 40, 65, 130}) {
      const Case c{.kv_heads = 2, .group_size = 3, .head_dim = head_dim, .window = window, .tokens = 150};
      const Subject<TypeParam> subject(c);
      this->expect_parity(c, subject, in_every_schedule([&] { return subject.run(); }));
      without_clusters(
          [&] { this->expect_parity(c, subject, in_every_schedule([&] { return subject.run(); })); });
    }
  }
}

// 16 multiprocessors of the emulation have 36 pairs of a split and four query heads to work on, so that a
// block takes several one after the other.
TYPED_TEST(SnapKvParity, MatchesReferenceForMoreItemsThanMultiprocessors) {
  const int64_t kv_heads = std::min(cuda::device().multiprocessors, 16) * 3 / 16;
  this->expect_parity_in_every_schedule(
      {.kv_heads = kv_heads, .group_size = 5, .head_dim = 64, .window = 32, .tokens = 330});
}

TYPED_TEST(SnapKvParity, GivesEqualKeysEqualWeights) {
  const Case c{.kv_heads = 1,
               .group_size = 3,
               .head_dim = 80,
               .window = 8,
               .tokens = 300,
               .distribution = Distribution::tied};
  const std::vector<float> mean = Subject<TypeParam>(c).run()[1];
  for (int64_t h = 0; h < c.query_heads(); ++h) {
    const auto row = std::span(mean).subspan(h * c.tokens, static_cast<size_t>(c.tokens));
    EXPECT_NE(row[0], row[1]);
    for (size_t j = 3; j <= static_cast<size_t>(c.tokens - c.window); ++j) {
      ASSERT_EQ(row[j], row[j % 3]) << "head " << h << ", token " << j << ", which all queries see";
    }
    EXPECT_LT(row[299], row[299 % 3]) << "which one query sees";
  }
}

TYPED_TEST(SnapKvParity, NamesShapesThatDoNotFit) {
  const Uploaded<TypeParam> queries(Tensor(2, 3, 8)), keys(Tensor(2, 5, 8)), three(Tensor(3, 5, 8)),
      wide(Tensor(2, 5, 9)), few(Tensor(2, 2, 8)), none(Tensor(2, 0, 8));
  Output log_sum_exp(6), mean(10);
  WorkingMemory memory(cuda::window_log_sum_exp_workspace(2, 3, 5));
  const auto messages = [&](const auto& q, const auto& k, cuda::Workspace workspace) {
    const cuda::WindowView<TypeParam> window{q.view(), k.view(), 1};
    std::vector<std::string> result;
    const auto call = [&](const auto& operation) {
      try {
        operation();
        result.push_back("no error");
      } catch (const ShapeMismatch& error) {
        result.push_back(error.what());
      }
    };
    call([&] { cuda::window_log_sum_exp(window, log_sum_exp.data(), workspace, nullptr); });
    call([&] {
      cuda::window_attention(window, log_sum_exp.data(), WindowReduction::mean, mean.data(), nullptr);
    });
    return result;
  };
  const auto both = [](const std::string& text) { return std::vector{text, text}; };
  EXPECT_EQ(messages(queries, keys, memory.view()), both("no error"));
  EXPECT_EQ(messages(queries, three, memory.view()), both("2 query heads cannot share 3 KV heads"));
  EXPECT_EQ(messages(queries, wide, memory.view()), both("columns of queries is 8 but columns of keys is 9"));
  EXPECT_EQ(messages(queries, few, memory.view()), both("window is 3, outside 1..2"));
  EXPECT_EQ(messages(none, keys, memory.view()), both("window is 0, outside 1..5"));
  EXPECT_EQ(messages(queries, keys, {memory.view().data, 8})[0],
            "the workspace has 8 bytes but " + std::to_string(memory.view().bytes) + " are needed");
}

template <class T>
void expect_depths_of_sums() {
  EXPECT_EQ(cuda::window_arithmetic<T>(0, 128).accumulation_depth, 0);
  for (const int64_t tokens : {1, 33, 512, 513, 32768, 1000000}) {
    const KernelArithmetic arithmetic = cuda::window_arithmetic<T>(tokens, 128);
    EXPECT_GE(arithmetic.accumulation_depth, static_cast<int64_t>(std::log2(static_cast<double>(tokens))));
    EXPECT_LE(arithmetic.accumulation_depth, tokens + 14);
    EXPECT_LE(arithmetic.rescalings, (tokens + 15) / 16) << "what is assumed if nothing is known";
  }
}

TEST(WindowArithmetic, CountsAdditionsThatATermMayPassThrough) {
  expect_depths_of_sums<float>();
  expect_depths_of_sums<cuda::Bfloat16>();
  EXPECT_EQ(cuda::window_arithmetic<float>(9, 128).product_depth, 8 + 16);
  EXPECT_EQ(cuda::window_arithmetic<cuda::Bfloat16>(9, 128).product_depth, 1);
  EXPECT_EQ(cuda::window_arithmetic<cuda::Bfloat16>(9, 128).tensor_chain, 8);
  EXPECT_EQ(cuda::window_arithmetic<cuda::Bfloat16>(9, 192).tensor_chain, 4);
  EXPECT_EQ(cuda::window_arithmetic<cuda::Bfloat16>(9, 16).tensor_chain, 1);
}

// A rows x cols matrix of numbers, some of them equal.
Matrix scores_of(int64_t rows, int64_t cols) {
  Matrix scores(rows, cols);
  const Tensor random = random_tensor(5, 1, rows, cols);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const double score = random.slice(0)(i, j);
      scores(i, j) = j % 3 == 0 ? std::round(score) : number(stored<float>(score));
    }
  }
  return scores;
}

class PoolParity : public DeviceTest {};

// max_pool on the device; between rows there are `gap` numbers, which are NaN.
std::vector<float> pooled(MatrixView scores, int64_t gap, int64_t width) {
  const int64_t stride = scores.cols + gap;
  std::vector<float> memory(scores.rows * stride, std::numeric_limits<float>::quiet_NaN());
  for (int64_t i = 0; i < scores.rows; ++i) {
    std::ranges::transform(scores.row(i), memory.begin() + i * stride, stored<float>);
  }
  const cuda::Buffer<float> buffer(memory);
  Output result(scores.rows * scores.cols);
  cuda::max_pool(buffer.data(), scores.rows, scores.cols, stride, width, result.data(), nullptr);
  return result.numbers();
}

TEST_F(PoolParity, IsExact) {
  for (const int64_t cols : {0, 1, 31, 32, 33, 128, 129, 5000}) {
    for (const int64_t width : {1, 3, 7, 63}) {
      const Matrix scores = scores_of(3, cols), expected = reference::max_pool(scores, width);
      const std::vector<float> actual = in_every_schedule([&] { return pooled(scores, 5, width); });
      EXPECT_TRUE(std::ranges::equal(actual, expected.numbers())) << cols << " columns, width " << width;
    }
  }
}

TEST_F(PoolParity, ShowsNumbersThatAreNone) {
  Matrix scores = scores_of(1, 40);
  scores(0, 20) = std::numeric_limits<double>::quiet_NaN();
  const std::vector<float> actual = pooled(scores, 0, 5);
  for (int64_t j = 0; j < 40; ++j) {
    EXPECT_EQ(std::isnan(actual[j]), 18 <= j && j <= 22) << j;
  }
}

TEST_F(PoolParity, NamesAWidthWithoutAMiddle) {
  for (const int64_t width : {4, 0, -1}) {
    try {
      pooled(scores_of(1, 9), 0, width);
      FAIL() << "no error";
    } catch (const ShapeMismatch& error) {
      EXPECT_EQ(error.what(),
                "a pool of width " + std::to_string(width) + " has no middle; expected an odd width");
    }
  }
}

}  // namespace
}  // namespace kvbound::parity
