// OBCache's scores and the exact change on the device, of a prompt's window and of a decode step, within the
// bounds that hold for every way to compute them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/eviction/obcache.hpp>
#include <kvbound/cuda/eviction/value_space.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/bounds/obcache_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/eviction/obcache.hpp>

#include "distributions.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

constexpr Change kChanges[] = {Change::value, Change::key, Change::joint, Change::exact};
constexpr Space kSpaces[] = {Space::head, Space::projected};

std::string_view name(Change change) {
  switch (change) {
    case Change::value:
      return "value";
    case Change::key:
      return "key";
    case Change::joint:
      return "joint";
    case Change::exact:
      return "exact";
    case Change::slot:
      return "slot";
  }
  return "";
}

struct Case {
  int64_t kv_heads = 1;
  int64_t group_size = 2;
  int64_t head_dim = 10;
  int64_t model_dim = 24;
  int64_t window = 5;
  int64_t tokens = 33;
  Distribution distribution = Distribution::random;

  LayerShape shape() const { return {kv_heads * group_size, kv_heads, head_dim, model_dim}; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};

std::string text_of(const Case& c, Change change, Space space) {
  return std::string(name(change)) + (space == Space::head ? "" : " projected") + ", " +
         std::to_string(c.kv_heads) + " x " + std::to_string(c.group_size) + " heads of " +
         std::to_string(c.head_dim) + ", " + std::string(name(c.distribution)) + ", window " +
         std::to_string(c.window) + " of " + std::to_string(c.tokens);
}

// A layer whose numbers are exact in T, in device memory, too.
template <cuda::Storage T>
class Subject {
  // Device memory for the measures of a layer's queries, which nothing has written yet.
  struct Measured {
    Measured(int64_t count, int64_t head_dim)
        : gram_outputs(count * head_dim),
          output_norms(count),
          dominant_scores(count),
          dominant(std::vector<int64_t>(count, -3)) {}
    cuda::MeasuredQueries view() {
      return {gram_outputs.data(), output_norms.data(), dominant.data(), dominant_scores.data()};
    }

    Output gram_outputs, output_norms, dominant_scores;
    cuda::Buffer<int64_t> dominant;
  };

  // Device memory for what the measures of queries follow from.
  struct Device {
    Device(const LayerShape& layer, int64_t queries, int64_t capacity)
        : shape(layer),
          window(queries),
          gram(shape.query_heads * shape.head_dim * shape.head_dim),
          factor(shape.query_heads * shape.head_dim * shape.head_dim),
          lengths(shape.query_heads * capacity),
          outputs(count() * shape.head_dim),
          log_sum_exp(count()),
          dominant_logits(count()),
          others(count() * shape.head_dim),
          others_log_sum_exp(count()),
          rows(std::vector<int64_t>(count(), -3)) {}

    int64_t count() const { return shape.query_heads * window; }
    void measure_values(cuda::DeviceTensor<const T> values, cuda::DeviceTensor<const T> projection,
                        Space space) {
      WorkingMemory memory(cuda::gram_matrices_workspace(shape.query_heads, shape.head_dim));
      const bool projected = space == Space::projected;
      if (projected) cuda::gram_matrices<T>(projection, gram.data(), factor.data(), memory.view(), nullptr);
      cuda::squared_norms<T>(values, projected ? factor.data() : nullptr, shape.query_heads, lengths.data(),
                             nullptr);
      cuda::synchronise(nullptr);
    }
    void attend(Change change, cuda::DeviceTensor<const T> queries, cuda::CacheView<T> cache, double scale,
                float* logits) {
      WorkingMemory memory(cuda::causal_attention_workspace(shape.query_heads, window, shape.kv_heads,
                                                            shape.head_dim, cache.keys.rows));
      cuda::causal_attention<T>(queries, cache, scale, {outputs.data(), log_sum_exp.data(), logits},
                                attended(change, logits).dominants, memory.view(), nullptr);
      cuda::synchronise(nullptr);
    }
    Measured measure_queries(Change change, Space space, cuda::CacheView<T> cache, const float* logits) {
      Measured measured(count(), shape.head_dim);
      cuda::measure_queries<T>(change, cache, attended(change, logits), of(space), shape.query_heads,
                               measured.view(), nullptr);
      cuda::synchronise(nullptr);
      return measured;
    }
    const float* of(Space space) { return space == Space::projected ? gram.data() : nullptr; }
    cuda::AttendedQueries attended(Change change, const float* logits) {
      cuda::AttendedQueries queries{window, outputs.data(), logits, log_sum_exp.data(), {}};
      if (leaves_out_dominant(change)) {
        queries.dominants = {rows.data(), dominant_logits.data(), others.data(), others_log_sum_exp.data()};
      }
      return queries;
    }

    LayerShape shape;
    int64_t window;
    Output gram, factor, lengths, outputs, log_sum_exp, dominant_logits, others, others_log_sum_exp;
    cuda::Buffer<int64_t> rows;
  };

 public:
  explicit Subject(const Case& c)
      : case_(c),
        queries_(rounded<T>(random_tensor(1, c.kv_heads * c.group_size, c.window, c.head_dim))),
        keys_(rounded<T>(keys_of(c.distribution, 2, first_queries(), c.tokens, c.scale()))),
        values_(rounded<T>(random_tensor(3, c.kv_heads, c.tokens, c.head_dim))),
        projection_(rounded<T>(random_tensor(4, c.kv_heads * c.group_size, c.head_dim, c.model_dim))) {}

  LayerView layer() const {
    return {
        case_.shape(),
        case_.scale(),
        keys_,
        values_,
        queries_,
        {projection_.data(), case_.shape().query_heads * case_.head_dim, case_.model_dim, case_.model_dim}};
  }

  // The window on the device, whose attention is computed once, as it has tests of its own: what follows from
  // it is asked for in every schedule.
  class Window {
   public:
    Window(const Subject& subject, Change change, Space space)
        : case_(subject.case_),
          change_(change),
          space_(space),
          queries_(subject.queries_),
          keys_(subject.keys_),
          values_(subject.values_),
          entries_(std::span<const int64_t>(std::vector(case_.kv_heads, case_.tokens))),
          device_(case_.shape(), case_.window, case_.tokens) {
      const Uploaded<T> projection(subject.projection_);
      device_.measure_values(values_.view(), projection.view(), space);
      device_.attend(change, queries_.view(), cache(), case_.scale(), nullptr);
    }

    std::vector<float> scores() {
      const int64_t heads = case_.shape().query_heads;
      const cuda::WindowView<T> window{queries_.view(), keys_.view(), case_.scale()};
      Measured measured = device_.measure_queries(change_, space_, cache(), nullptr);
      Output log_sum_exp(heads * case_.window), scores(heads * case_.tokens);
      WorkingMemory memory(cuda::window_log_sum_exp_workspace(heads, case_.window, case_.tokens));
      cuda::window_log_sum_exp(window, log_sum_exp.data(), memory.view(), nullptr);
      cuda::window_change_scores<T>(change_, window, values_.view(), log_sum_exp.data(), measured.view(),
                                    device_.lengths.data(), scores.data(), nullptr);
      return scores.numbers();
    }

   private:
    cuda::CacheView<T> cache() const { return {keys_.view(), values_.view(), entries_.data()}; }

    Case case_;
    Change change_;
    Space space_;
    Uploaded<T> queries_, keys_, values_;
    cuda::Buffer<int64_t> entries_;
    Device device_;
  };

  // The last query's scores over a cache of the first entries[g] tokens of each KV head.
  std::vector<float> step_scores(Change change, Space space, const std::vector<int64_t>& entries,
                                 const std::vector<float>& log_votes = {}) const {
    const Case& c = case_;
    const int64_t heads = c.shape().query_heads;
    const Uploaded<T> queries(queries_), keys(keys_, c.tokens, entries), values(values_, c.tokens, entries),
        all_values(values_), projection(projection_);
    const cuda::Buffer<int64_t> counts{std::span<const int64_t>(entries)};
    const cuda::Buffer<float> votes{std::span<const float>(log_votes)};
    Device device(c.shape(), 1, c.tokens);
    device.measure_values(all_values.view(), projection.view(), space);
    const cuda::DeviceTensor<const T> all = queries.view();
    const cuda::CacheView<T> cache{keys.view(), values.view(), counts.data(),
                                   log_votes.empty() ? nullptr : votes.data()};
    Output logits(heads * c.tokens), scores(heads * c.tokens);
    device.attend(
        change,
        {all.data + (c.window - 1) * all.row_stride, heads, 1, c.head_dim, all.row_stride, all.slice_stride},
        cache, c.scale(), logits.data());
    Measured measured = device.measure_queries(change, space, cache, logits.data());
    cuda::step_change_scores<T>(change, cache, device.attended(change, logits.data()), measured.view(),
                                device.lengths.data(), heads, scores.data(), nullptr);
    return scores.numbers();
  }

 private:
  Matrix first_queries() const {
    Matrix first;
    for (int64_t g = 0; g < case_.kv_heads; ++g)
      first.append_row(queries_.slice(g * case_.group_size).row(0));
    return first;
  }

  Case case_;
  Tensor queries_, keys_, values_, projection_;
};

// Numbers of outputs times G, from 2^-8 to 2^8, of which all 24 bits count; on the device their negatives.
class Outputs {
 public:
  explicit Outputs(const Case& c)
      : heads_(c.shape().query_heads),
        columns_(c.head_dim),
        numbers_(random_tensor(11, c.window, heads_, columns_)),
        exponents_(random_tensor(12, c.window, heads_, columns_)) {
    for (size_t n = 0; n < numbers_.numbers().size(); ++n) {
      const double size =
          std::ldexp(1.0, static_cast<int>(std::clamp(4 * exponents_.numbers()[n], -8.0, 8.0)));
      negatives_.push_back(-static_cast<float>(size * (1 + std::abs(numbers_.numbers()[n]))));
    }
  }

  double of(int64_t query, int64_t head, int64_t column) const {
    return -double{negatives_[(query * heads_ + head) * columns_ + column]};
  }
  std::span<const float> on_device() const { return negatives_; }

 private:
  int64_t heads_, columns_;
  Tensor numbers_, exponents_;
  std::vector<float> negatives_;
};

// The only number of a token's value that is not 0 but 1.
int64_t impulse(const Case& c, int64_t head, int64_t token) {
  return (token + 7 * (head / c.group_size)) % c.head_dim;
}

template <cuda::Storage T>
std::vector<float> scores_of_impulses(const Case& c, const Outputs& outputs) {
  const int64_t heads = c.shape().query_heads;
  Tensor impulses(c.kv_heads, c.tokens, c.head_dim);
  for (int64_t g = 0; g < c.kv_heads; ++g) {
    for (int64_t j = 0; j < c.tokens; ++j) impulses.slice(g).row(j)[impulse(c, g * c.group_size, j)] = 1;
  }
  const Uploaded<T> queries(Tensor(heads, c.window, c.head_dim)),
      keys(Tensor(c.kv_heads, c.tokens, c.head_dim)), values(impulses);
  const auto all = [](int64_t count, auto number) { return std::vector(count, number); };
  const std::vector<float> log_of_2 = all(heads * c.window, std::log(2.0F)),
                           zeros = all(heads * c.tokens, 0.0F);
  const std::vector<int64_t> none = all(heads * c.window, int64_t{-1});
  const cuda::Buffer<float> log_sum_exp{std::span(log_of_2)}, norms{std::span(zeros)};
  cuda::Buffer<float> gram_outputs{outputs.on_device()}, output_norms{std::span(zeros)},
      dominant_scores{std::span(zeros)};
  cuda::Buffer<int64_t> dominant{std::span(none)};
  Output scores(heads * c.tokens);
  cuda::window_change_scores<T>(
      Change::exact, {queries.view(), keys.view(), 1}, values.view(), log_sum_exp.data(),
      {gram_outputs.data(), output_norms.data(), dominant.data(), dominant_scores.data()}, norms.data(),
      scores.data(), nullptr);
  return scores.numbers();
}

template <class T>
class ObcacheParity : public DeviceTest {
 protected:
  void expect_window_parity(const Case& c, Change change, Space space) {
    SCOPED_TRACE(text_of(c, change, space));
    const Subject<T> subject(c);
    typename Subject<T>::Window window(subject, change, space);
    const std::vector<float> scores = in_every_schedule([&] { return window.scores(); });
    const Matrix expected = reference::window_scores(subject.layer(), c.window, change, space);
    const Matrix errors = reference::window_score_errors(
        subject.layer(), c.window, change, space,
        reference::arithmetic_of(cuda::change_score_arithmetic<T>(c.tokens, c.head_dim)));
    hold(window_, scores, expected, errors);
  }

  void expect_step_parity(const Case& c, Change change, Space space, const std::vector<int64_t>& entries) {
    SCOPED_TRACE(text_of(c, change, space));
    const Subject<T> subject(c);
    const LayerView layer = subject.layer();
    const std::vector<float> scores =
        in_every_schedule([&] { return subject.step_scores(change, space, entries); });
    const reference::Arithmetic arithmetic =
        reference::arithmetic_of(cuda::change_score_arithmetic<T>(c.tokens, c.head_dim));
    const auto spaces = reference::change_spaces(space, layer.output_projection, layer.shape.query_heads);
    for (int64_t h = 0; h < layer.shape.query_heads; ++h) {
      const int64_t g = layer.shape.kv_head_of(h), count = entries[g];
      const std::span<const float> row = std::span(scores).subspan(h * c.tokens, c.tokens);
      for (int64_t j = count; j < c.tokens; ++j) EXPECT_TRUE(Output::is_unwritten(row[j]));
      if (count == 0) continue;
      const MatrixView keys = layer.keys.slice(g).middle_rows(0, count),
                       values = layer.values.slice(g).middle_rows(0, count),
                       query = layer.queries.slice(h).middle_rows(c.window - 1, 1);
      const std::span<const reference::ChangeSpace> own(&spaces[h], 1);
      const reference::MeasuredValues measured(values, own);
      const reference::ValueSpace lengths = own[0].lengths();
      const reference::ScoredCache cache{keys, values, measured.squared_norms, {&lengths, 1}};
      hold(step_, row.first(count), reference::scored_attention(change, query, cache, layer.scale).scores,
           reference::change_score_errors(change, query, keys, values, measured, own, layer.scale,
                                          arithmetic));
    }
  }

  Comparator window_{"window_change_scores " + StorageName::GetName<T>(0)};
  Comparator step_{"step_change_scores " + StorageName::GetName<T>(0)};

 private:
  // Infinite expectations must be met exactly; scores whose bound is not finite are only required to be
  // numbers. Scores of a single entry, which are all 0, prove nothing, but must lie within their bounds. At
  // least half of all are compared.
  static void hold(Comparator& comparator, std::span<const float> actual, const Matrix& expected,
                   const Matrix& errors) {
    std::vector<float> bounded;
    std::vector<double> of_reference, bounds;
    int64_t infinite = 0;
    for (size_t j = 0; j < actual.size(); ++j) {
      const double bound = errors.numbers()[j], score = expected.numbers()[j];
      if (std::isinf(score)) {
        EXPECT_EQ(actual[j], score);
        ++infinite;
      } else if (bound < 1e100) {
        bounded.push_back(actual[j]);
        of_reference.push_back(score);
        bounds.push_back(bound);
      } else {
        EXPECT_FALSE(std::isnan(actual[j]));
      }
    }
    EXPECT_GE(2 * (infinite + std::ssize(bounded)), std::ssize(actual)) << "most scores are not compared";
    const bool alone = expected.cols() == 1;
    for (size_t j = 0; alone && j < bounded.size(); ++j) EXPECT_NEAR(bounded[j], of_reference[j], bounds[j]);
    if (!alone && !bounded.empty()) {
      EXPECT_TRUE(comparator.hold(bounded, of_reference, bounds));
    }
  }
};
TYPED_TEST_SUITE(ObcacheParity, StorageTypes, StorageName);

TYPED_TEST(ObcacheParity, WindowMatchesReferenceAcrossSizes) {
  for (const int64_t tokens : {2, 31, 32, 33, 64, 65, 150}) {
    for (const int64_t window : {1, 8}) {
      if (window >= tokens) continue;
      for (const Change change : kChanges) {
        this->expect_window_parity({.window = window, .tokens = tokens}, change, Space::head);
      }
    }
  }
  EXPECT_TRUE(this->window_.is_tight());
}

TYPED_TEST(ObcacheParity, WindowMatchesReferenceWithMoreQueriesThanABlockHasRows) {
  this->expect_window_parity({.group_size = 1, .window = 70, .tokens = 75}, Change::joint, Space::head);
  this->expect_window_parity({.group_size = 2, .window = 140, .tokens = 210}, Change::joint, Space::head);
}

// 16 multiprocessors of the emulation have more than half as many KV heads, so that a block has all tokens of
// one; large windows take several passes over them.
TYPED_TEST(ObcacheParity, WindowMatchesReferenceWhereABlockHasSeveralTiles) {
  this->expect_window_parity({.kv_heads = 9, .group_size = 1, .tokens = 150}, Change::joint, Space::head);
  this->expect_window_parity({.kv_heads = 9, .group_size = 1, .head_dim = 4, .window = 130, .tokens = 135},
                             Change::key, Space::head);
}

TYPED_TEST(ObcacheParity, WindowMatchesReferenceAcrossDistributionsAndSpaces) {
  for (const Distribution distribution : kDistributions) {
    for (const Change change : kChanges) {
      for (const Space space : kSpaces) {
        this->expect_window_parity({.kv_heads = 2, .tokens = 70, .distribution = distribution}, change,
                                   space);
      }
    }
  }
}

TYPED_TEST(ObcacheParity, WindowMatchesReferenceAcrossHeadDims) {
  for (const int64_t head_dim : {1, 8, 64, 80, 128, 256}) {
    for (const Change change : kChanges) {
      this->expect_window_parity({.head_dim = head_dim, .tokens = 70}, change, Space::head);
    }
  }
  EXPECT_TRUE(this->window_.is_tight());
}

// Lengths after a random W^O are ill-conditioned: the absolute terms of x W (x W)^T add up to about head_dim
// times the sum, and the bounds are as much wider.
TYPED_TEST(ObcacheParity, WindowMatchesReferenceAcrossHeadDimsAfterW) {
  for (const int64_t head_dim : {1, 8, 64, 80, 128, 256}) {
    for (const Change change : {Change::value, Change::joint}) {
      this->expect_window_parity({.head_dim = head_dim, .tokens = 40}, change, Space::projected);
    }
  }
}

// With little shared memory a block has one tile at a time; the results must not depend on it.
TYPED_TEST(ObcacheParity, WindowGivesTheSameBitsWithOneTileAtATime) {
  using Window = typename Subject<TypeParam>::Window;
  const Subject<TypeParam> subject({.head_dim = 256, .window = 40, .tokens = 70});
  for (const Change change : {Change::value, Change::joint}) {
    const std::vector<float> results = Window(subject, change, Space::head).scores();
    for_each_device([&](const std::string& device) {
      SCOPED_TRACE(device);
      Window window(subject, change, Space::head);  // attended on this device, too
      EXPECT_TRUE(same_bits(in_every_schedule([&] { return window.scores(); }), results));
    });
  }
}

TYPED_TEST(ObcacheParity, WindowMatchesReferenceAcrossGroups) {
  for (const int64_t group_size : {1, 3, 7}) {
    this->expect_window_parity({.kv_heads = 2, .group_size = group_size}, Change::joint, Space::head);
    this->expect_window_parity({.kv_heads = 3, .group_size = group_size}, Change::exact, Space::projected);
  }
}

TYPED_TEST(ObcacheParity, AWindowOf32MatchesReferenceAcrossGroups) {
  for (const int64_t group_size : {1, 4, 5, 8}) {
    this->expect_window_parity({.kv_heads = 2, .group_size = group_size, .window = 32, .tokens = 70},
                               Change::joint, Space::head);
  }
  for (const Change change : {Change::value, Change::exact})
    this->expect_window_parity({.group_size = 4, .window = 32, .tokens = 70}, change, Space::head);
}

// Windows of one, two and four parts of 32 queries, heads of a group in one or two items of a block's work,
// and more tiles than a ring has stages; on a device without wgmma, too.
TYPED_TEST(ObcacheParity, WindowMatchesReferenceByEveryKernelOfAHeadDim) {
  const auto matches = [&](const Case& c, Change change) {
    this->expect_window_parity(c, change, Space::head);
    without_clusters([&] { this->expect_window_parity(c, change, Space::head); });
  };
  matches({.kv_heads = 2, .group_size = 5, .head_dim = 64, .window = 7, .tokens = 90}, Change::exact);
  matches({.group_size = 3, .head_dim = 64, .window = 40, .tokens = 140}, Change::joint);
  matches({.group_size = 2, .head_dim = 128, .window = 100, .tokens = 130}, Change::key);
  this->expect_window_parity({.kv_heads = 9, .group_size = 5, .head_dim = 64, .window = 3, .tokens = 460},
                             Change::joint, Space::head);
}

TYPED_TEST(ObcacheParity, WindowMatchesReferenceWhereQueriesHaveDominantEntries) {
  for (const Distribution distribution : kDistributions) {
    for (const Change change : kChanges) {
      this->expect_window_parity({.head_dim = 64, .tokens = 70, .distribution = distribution}, change,
                                 Space::head);
    }
  }
}

// Values are impulses and logits are 0, so that the score `exact` of an entry is a sum of single numbers of
// outputs: weights are 1/2, and the lengths of values and outputs are given as 0.
TYPED_TEST(ObcacheParity, EveryNumberOfAnOutputCountsWithAllItsBits) {
  for (const int64_t head_dim : {1, 64, 80, 128, 256}) {
    for (const int64_t window : {1, 32}) {
      SCOPED_TRACE(head_dim);
      const Case c{
          .kv_heads = 2, .group_size = 3, .head_dim = head_dim, .window = window, .tokens = head_dim + 40};
      const Outputs outputs(c);
      const std::vector<float> scores =
          in_every_schedule([&] { return scores_of_impulses<TypeParam>(c, outputs); });
      // Rounding: of the weight, of its share, of a part of 22 bits; of as many sums as there are queries.
      const double rounding = static_cast<double>(24 + window) * 0x1p-24;
      for (int64_t n = 0; n < std::ssize(scores); ++n) {
        const int64_t head = n / c.tokens, token = n % c.tokens;
        double expected = 0;
        for (int64_t i = std::max(token - (c.tokens - window), int64_t{0}); i < window; ++i)
          expected += 2 * outputs.of(i, head, impulse(c, head, token));
        ASSERT_NEAR(scores[n], expected, rounding * expected) << "head " << head << ", token " << token;
      }
    }
  }
}

TYPED_TEST(ObcacheParity, StepMatchesReferenceAcrossSizesAndRaggedHeads) {
  for (const int64_t entries : {0, 1, 2, 31, 32, 33, 90}) {
    for (const Change change : kChanges) {
      for (const Space space : kSpaces) {
        this->expect_step_parity({.kv_heads = 2, .tokens = 90}, change, space, {entries, 90 - entries});
      }
    }
  }
  EXPECT_TRUE(this->step_.is_tight());
}

TYPED_TEST(ObcacheParity, StepMatchesReferenceAcrossDistributionsAndHeadDims) {
  for (const Change change : kChanges) {
    for (const Distribution distribution : kDistributions) {
      this->expect_step_parity({.tokens = 60, .distribution = distribution}, change, Space::projected, {60});
    }
    for (const int64_t head_dim : {1, 8, 64, 80, 128, 256}) {
      this->expect_step_parity({.head_dim = head_dim, .tokens = 40}, change, Space::head, {37});
    }
  }
}

TYPED_TEST(ObcacheParity, StepMatchesReferenceAcrossGroupsAndBlocks) {
  for (const int64_t group_size : {1, 3, 4, 5, 9}) {
    for (const Change change : {Change::value, Change::joint}) {
      this->expect_step_parity({.kv_heads = 2, .group_size = group_size, .head_dim = 72, .tokens = 140},
                               change, Space::head, {140, 67});
    }
  }
}

TYPED_TEST(ObcacheParity, VotesWeighEntriesButDoNotMoveTheirLogits) {
  const Case c{.group_size = 1, .tokens = 20};
  const Subject<TypeParam> subject(c);
  const LayerView layer = subject.layer();
  const reference::ValueSpace head;
  const Matrix norms = reference::squared_norms(layer.values.slice(0), {&head, 1});
  for (const double most : {9.0, 1000.0}) {  // with 1000 votes the entry is dominant
    const std::vector<double> votes{1, 3, 1, 1, most, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1};
    std::vector<float> log_votes;
    for (const double p : votes) log_votes.push_back(static_cast<float>(std::log(p)));
    for (const Change change : kChanges) {
      const std::vector<float> scores = subject.step_scores(change, Space::head, {20}, log_votes);
      const MatrixView query = layer.queries.slice(0).middle_rows(c.window - 1, 1);
      const reference::ScoredCache cache{
          layer.keys.slice(0), layer.values.slice(0), norms, {&head, 1}, votes};
      const Matrix expected = reference::scored_attention(change, query, cache, layer.scale).scores;
      for (size_t j = 0; j < scores.size(); ++j) {
        const double score = expected.numbers()[j];
        if (change == Change::key && j == 4) continue;  // v - o cancels where A is near 1
        EXPECT_NEAR(scores[j], score, 1e-4 * score + 1e-9)
            << name(change) << " " << j << ", " << most << " votes";
      }
    }
  }
}

TYPED_TEST(ObcacheParity, RefusesTheChangeThatNoPolicyScoresBy) {
  using T = TypeParam;
  const Uploaded<T> queries(Tensor(2, 3, 8)), keys(Tensor(1, 9, 8));
  const cuda::CacheView<T> cache{keys.view(), keys.view(), nullptr};
  EXPECT_THROW(cuda::measure_queries<T>(Change::slot, cache, {}, nullptr, 2, {}, nullptr), InvalidPolicy);
  EXPECT_THROW(cuda::window_change_scores<T>(Change::slot, {queries.view(), keys.view(), 1}, keys.view(),
                                             nullptr, {}, nullptr, nullptr, nullptr),
               InvalidPolicy);
  EXPECT_THROW(cuda::step_change_scores<T>(Change::slot, cache, {}, {}, nullptr, 2, nullptr, nullptr),
               InvalidPolicy);
}

}  // namespace
}  // namespace kvbound::parity
