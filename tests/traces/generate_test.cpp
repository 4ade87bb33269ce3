#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/sha256.hpp>
#include <kvbound/traces/trace.hpp>

#include "support/threads.hpp"

namespace kvbound::traces::generate_test {
namespace {

using enum AttentionKind;
constexpr AttentionKind kKinds[] = {power_law, flat, sink, needle, tied, mixed};

GenerateOptions small(AttentionKind kind) {
  return {.kind = kind,
          .tokens = 70,
          .decode = 3,
          .layers = 2,
          .query_heads = 6,
          .kv_heads = 3,
          .head_dim = 5,
          .model_dim = 7,
          .window_queries = 4};
}

GenerateOptions long_prompt(AttentionKind kind, int64_t head_dim = 64) {
  return {.kind = kind, .tokens = 2048, .head_dim = head_dim, .seed = 7};
}

std::string path_for_this_test() {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  return testing::TempDir() + test.test_suite_name() + "." + test.name() + ".safetensors";
}

/// A generated trace; its file exists as long as this object.
class Generated {
 public:
  explicit Generated(const GenerateOptions& options, const std::string& suffix = "")
      : path_(path_for_this_test() + suffix) {
    generate(options, path_);
  }
  ~Generated() { std::filesystem::remove(path_); }
  Generated(const Generated&) = delete;
  Generated& operator=(const Generated&) = delete;

  Trace trace() const { return Trace(path_); }

  std::string bytes() const {
    std::ostringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }

 private:
  std::string path_;
};

std::string digest(std::string_view bytes) {
  Sha256 sha;
  sha.update(bytes);
  return sha.hexadecimal();
}

double dot(VectorView a, VectorView b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }
double norm(VectorView row) { return std::sqrt(dot(row, row)); }

std::vector<double> slice_numbers(const Tensor& tensor, int64_t index) {
  const MatrixView slice = tensor.slice(index);
  return {slice.data, slice.data + slice.rows * slice.cols};
}

/// The attention weights of query row `row` of a head over the tokens that it sees.
std::vector<double> attention_weights(const Layer& layer, int64_t query_head, int64_t row) {
  const MatrixView keys = layer.keys.slice(layer.shape.kv_head_of(query_head));
  const VectorView query = layer.queries.slice(query_head).row(row);
  std::vector<double> weights(layer.prompt_tokens - layer.window_queries + row + 1);
  for (size_t j = 0; j < weights.size(); ++j) {
    weights[j] = layer.scale * dot(query, keys.row(j));
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight = std::exp(weight - largest);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

/// Calls claim(layer, query_head, row) for every recorded query of the trace.
template <class Claim>
void for_each_query(const Trace& trace, const Claim& claim) {
  for (int64_t l = 0; l < trace.info().layers; ++l) {
    const Layer layer = trace.read_layer(l);
    for (int64_t head = 0; head < layer.shape.query_heads; ++head) {
      for (int64_t row = 0; row < layer.queries.view().rows; ++row) claim(layer, head, row);
    }
  }
}

double mass(const std::vector<double>& weights, const std::vector<int64_t>& positions) {
  double sum = 0;
  for (const int64_t position : positions) sum += weights[position];
  return sum;
}

std::vector<int64_t> largest_positions(const std::vector<double>& weights, int64_t count) {
  std::vector<int64_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::partial_sort(order, order.begin() + count, std::greater{},
                            [&](int64_t j) { return weights[j]; });
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

/// weight of rank r ~ factor * r^-exponent, fitted at ranks 4, 8, 16, ... up to a quarter of the tokens.
struct PowerLaw {
  double exponent = 0;
  double worst_ratio = 1;  ///< the largest factor between a weight at those ranks and the fit
};

PowerLaw fitted_power_law(std::vector<double> weights) {
  std::ranges::sort(weights, std::greater{});
  std::vector<double> x, y;
  for (size_t rank = 4; rank <= weights.size() / 4; rank *= 2) {
    x.push_back(std::log(static_cast<double>(rank)));
    y.push_back(std::log(weights[rank - 1]));
  }
  const auto count = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / count;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / count;
  for (double& value : x) value -= mean_x;
  for (double& value : y) value -= mean_y;
  const double slope = dot(x, y) / dot(x, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(y[i] - slope * x[i]));
  return {-slope, std::exp(worst)};
}

TEST(Generate, WritesWhatTheReaderReads) {
  for (const AttentionKind kind : kKinds) {
    SCOPED_TRACE(name(kind));
    const GenerateOptions options = small(kind);
    const Generated generated(options);
    const Trace trace = generated.trace();
    const TraceInfo& info = trace.info();
    EXPECT_EQ(info.model, "synthetic " + std::string(name(kind)));
    EXPECT_EQ(info.source, canonical_command(options));
    EXPECT_EQ(info.shape, (LayerShape{6, 3, 5, 7}));
    EXPECT_EQ(info.layers, 2);
    EXPECT_EQ(info.prompt_tokens, 70);
    EXPECT_EQ(info.decode_tokens, 3);
    EXPECT_EQ(info.window_queries, 4);
    EXPECT_EQ(info.scale, 1 / std::sqrt(5.0));
    EXPECT_EQ(info.storage, Dtype::f32);
    EXPECT_FALSE(info.has_attention_output);
    EXPECT_FALSE(info.has_tokens);
    EXPECT_EQ(trace.read_layer(1).output_projection.rows(), 30);
  }
}

TEST(Generate, WritesExactlyThePinnedBytes) {
  struct Pin {
    AttentionKind kind;
    Dtype dtype;
    std::string sha256;
  };
  const Pin pins[] = {
      {power_law, Dtype::f64, "a5d17c14ceb8b475158a9d3b31acc69798a596a61e9cbbd926e52b6739a4ea79"},
      {flat, Dtype::f64, "93d7a6567eae22750b7607a6f8843f45bd8c95da810abeef06c6dca8d7aa8733"},
      {sink, Dtype::f64, "9b60cb2b187c83fce3b46e31d6c927b7b85b6baf118126a249b46968cfc25c27"},
      {needle, Dtype::f64, "35a7e9ad484d44f722f838e8bef16d7d40331297fe2cf74b2f7b0c5f8558cdda"},
      {tied, Dtype::f64, "063c5b1295bbbdf323eb0f2582bca85ad61453462f8aa14082af31a8360adbd7"},
      {mixed, Dtype::f64, "84f128c5a6f40f067e5161ddd2155e934589217f8ce028a12d565d6550a3d1a9"},
      {mixed, Dtype::f32, "4b5297792e7732357de28d743e2d0c6cb27a324524f5f35d9f8ac111d5e678d7"},
      {mixed, Dtype::f16, "3ccfc7cbf830d5d009a25cc0ebe36f10502fe4f642556ac4352962db23edb508"},
      {mixed, Dtype::bf16, "acef0b7d387101b3d5f857008567c88c6424ab4f79d02befb1953074a6430352"},
  };
  for (const Pin& pin : pins) {
    GenerateOptions options = small(pin.kind);
    options.dtype = pin.dtype;
    EXPECT_EQ(digest(Generated(options).bytes()), pin.sha256) << name(pin.kind) << " " << name(pin.dtype);
  }
}

TEST(Generate, WritesTheSameBytesForAnyNumberOfThreads) {
  GenerateOptions options = small(mixed);
  options.tokens = 3000;
  options.head_dim = 33;
  options.model_dim = 300;
  const auto digested = [&] { return digest(Generated(options).bytes()); };
  const std::string one = test::with_threads(1, digested);
  EXPECT_EQ(test::with_threads(2, digested), one);
  EXPECT_EQ(test::with_threads(4, digested), one);
}

TEST(Generate, AnotherSeedGivesOtherNumbers) {
  GenerateOptions options = small(flat);
  const Layer first = Generated(options).trace().read_layer(0);
  options.seed = 2;
  const Layer second = Generated(options).trace().read_layer(0);
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_NE(first.keys.slice(0)(0, i), second.keys.slice(0)(0, i));
    EXPECT_NE(first.values.slice(0)(0, i), second.values.slice(0)(0, i));
    EXPECT_NE(first.queries.slice(0)(0, i), second.queries.slice(0)(0, i));
    EXPECT_NE(first.output_projection(0, i), second.output_projection(0, i));
  }
}

TEST(Generate, PowerLawHeadsFollowAPowerLaw) {
  const Generated generated(long_prompt(power_law));
  for_each_query(generated.trace(), [](const Layer& layer, int64_t head, int64_t row) {
    const PowerLaw law = fitted_power_law(attention_weights(layer, head, row));
    EXPECT_GE(law.exponent, 0.8);  // the product a p is in [0.88, 1.58); noise shifts the fit a little
    EXPECT_LE(law.exponent, 1.7);
    EXPECT_LE(law.worst_ratio, 2);
  });
}

TEST(Generate, FlatHeadsHaveNearlyEqualWeights) {
  const Generated generated(long_prompt(flat));
  for_each_query(generated.trace(), [](const Layer& layer, int64_t head, int64_t row) {
    const std::vector<double> weights = attention_weights(layer, head, row);
    const auto [smallest, largest] = std::ranges::minmax(weights);
    // Logits within six standard deviations of their mean on either side.
    EXPECT_LE(largest / smallest, std::exp(2 * 6 * 0.08));
    EXPECT_GT(largest / smallest, 1.1);
    EXPECT_LE(fitted_power_law(weights).exponent, 0.1);
  });
}

/// Row lengths that have no, little and much room beside the direction of their head.
constexpr int64_t kHeadDims[] = {1, 2, 7, 8, 64};

TEST(Generate, SinksTakeMostOfTheWeight) {
  for (const int64_t head_dim : kHeadDims) {
    SCOPED_TRACE(head_dim);
    const Generated generated(long_prompt(sink, head_dim));
    for_each_query(generated.trace(), [](const Layer& layer, int64_t head, int64_t row) {
      EXPECT_GT(mass(attention_weights(layer, head, row), {0, 1, 2, 3}), 0.5);
    });
  }
}

TEST(Generate, SinksHaveTinyValues) {
  const Generated generated(long_prompt(sink));
  const Layer layer = generated.trace().read_layer(1);
  for (int64_t head = 0; head < 2; ++head) {
    const MatrixView values = layer.values.slice(head);
    std::vector<double> norms;
    for (int64_t j = 0; j < values.rows; ++j) norms.push_back(norm(values.row(j)));
    const double largest_sink = *std::max_element(norms.begin(), norms.begin() + 4);
    std::ranges::nth_element(norms, norms.begin() + std::ssize(norms) / 2);
    const double median = norms[norms.size() / 2];
    EXPECT_LT(largest_sink, median / 10);
    EXPECT_GT(*std::ranges::max_element(norms), 3 * median);
  }
}

TEST(Generate, NeedlesHoldNearlyAllTheWeightOfEveryQuery) {
  for (const int64_t head_dim : kHeadDims) {
    SCOPED_TRACE(head_dim);
    const Generated generated(long_prompt(needle, head_dim));
    std::vector<int64_t> needles;
    for_each_query(generated.trace(), [&](const Layer& layer, int64_t head, int64_t row) {
      const std::vector<double> weights = attention_weights(layer, head, row);
      if (row == 0 && head % layer.shape.group_size() == 0) needles = largest_positions(weights, 4);
      EXPECT_GT(mass(weights, needles), 0.9);
    });
  }
}

TEST(Generate, TiedTokensHaveEqualKeysAndHalfOfThemEqualValues) {
  const Generated generated(small(tied));
  const Layer layer = generated.trace().read_layer(1);
  for (int64_t head = 0; head < 3; ++head) {
    const MatrixView keys = layer.keys.slice(head);
    const MatrixView values = layer.values.slice(head);
    const auto equal = [](MatrixView rows, int64_t i, int64_t j) {
      return std::ranges::equal(rows.row(i), rows.row(j));
    };
    for (int64_t i = 0; i < keys.rows; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        const bool tied = i / 64 == j / 64 && i % 16 == j % 16;
        EXPECT_EQ(equal(keys, i, j), tied) << i << " and " << j;
        EXPECT_EQ(equal(values, i, j), tied && i % 2 == 0) << i << " and " << j;
      }
    }
  }
}

TEST(Generate, MixedHeadsAreThoseOfTheOtherKindsInTurn) {
  const Generated generated(small(mixed));
  for (int64_t l = 0; l < 2; ++l) {
    const Layer mixed = generated.trace().read_layer(l);
    for (int64_t head = 0; head < 3; ++head) {
      const Generated pure_file(small(kKinds[(l * 3 + head) % 5]), ".pure");
      const Layer pure = pure_file.trace().read_layer(l);
      EXPECT_EQ(slice_numbers(mixed.keys, head), slice_numbers(pure.keys, head));
      EXPECT_EQ(slice_numbers(mixed.values, head), slice_numbers(pure.values, head));
      EXPECT_EQ(slice_numbers(mixed.queries, 2 * head + 1), slice_numbers(pure.queries, 2 * head + 1));
    }
  }
}

TEST(Generate, KeysOfAHeadAreSimilarEnoughToBeMerged) {
  const Generated generated(long_prompt(flat));
  const Layer layer = generated.trace().read_layer(0);
  const MatrixView keys = layer.keys.slice(0);
  double sum = 0;
  for (int64_t j = 1; j <= 1000; ++j) {
    sum += dot(keys.row(j), keys.row(j - 1)) / (norm(keys.row(j)) * norm(keys.row(j - 1)));
  }
  EXPECT_NEAR(sum / 1000, 0.8, 0.05);
}

TEST(Generate, OneTokenIsEnough) {
  for (const AttentionKind kind : kKinds) {
    SCOPED_TRACE(name(kind));
    const GenerateOptions options{
        .kind = kind, .tokens = 1, .decode = 0, .kv_heads = 4, .head_dim = 1, .window_queries = 1};
    EXPECT_EQ(Generated(options).trace().read_layer(0).keys.numbers().size(), 4);
  }
}

TEST(Generate, ReportsProgressUpToTheLastByte) {
  GenerateOptions options = small(flat);
  options.model_dim = 100000;  // more than one block
  options.dtype = Dtype::f16;
  constexpr int64_t kBytes = 2 * (2 * 3 * 73 * 5 + 6 * 7 * 5 + 6 * 5 * 100000) * 2;
  const std::string path = path_for_this_test();
  std::vector<int64_t> done;
  generate(options, path, [&](int64_t bytes, int64_t all) {
    done.push_back(bytes);
    EXPECT_EQ(all, kBytes);
  });
  std::filesystem::remove(path);
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_GT(done.size(), 8);
  EXPECT_EQ(done.back(), kBytes);
}

TEST(Generate, RefusesOptionsOutOfRangeAndSaysWhichAndWhy) {
  const auto refusal = [](auto change) -> std::string {
    GenerateOptions options = small(flat);
    change(options);
    const std::string path = path_for_this_test();
    try {
      generate(options, path);
    } catch (const InvalidOption& error) {
      EXPECT_FALSE(std::filesystem::exists(path));
      return error.what();
    }
    return "accepted";
  };
  using Options = GenerateOptions;
  EXPECT_EQ(refusal([](Options& o) { o.tokens = 0; }), "tokens is 0, not in 1..131072");
  EXPECT_EQ(refusal([](Options& o) { o.tokens = 131073; }), "tokens is 131073, not in 1..131072");
  EXPECT_EQ(refusal([](Options& o) { o.decode = -1; }), "decode is -1, not in 0..131072");
  EXPECT_EQ(refusal([](Options& o) { o.decode = 131073; }), "decode is 131073, not in 0..131072");
  EXPECT_EQ(refusal([](Options& o) { o.layers = 0; }), "layers is 0, not in 1..4096");
  EXPECT_EQ(refusal([](Options& o) { o.query_heads = 0; }), "query-heads is 0, not in 1..4096");
  EXPECT_EQ(refusal([](Options& o) { o.kv_heads = 0; }), "kv-heads is 0, not in 1..4096");
  EXPECT_EQ(refusal([](Options& o) { o.head_dim = 0; }), "head-dim is 0, not in 1..16384");
  EXPECT_EQ(refusal([](Options& o) { o.model_dim = INT64_MAX; }),
            "model-dim is 9223372036854775807, not in 1..1048576");
  EXPECT_EQ(refusal([](Options& o) { o.window_queries = 0; }), "window-queries is 0, not in 1..131072");
  EXPECT_EQ(refusal([](Options& o) { o.window_queries = 71; }),
            "window-queries is 71, more than tokens, which is 70");
  EXPECT_EQ(refusal([](Options& o) { o.kv_heads = 4; }),
            "query-heads is 6, not a multiple of kv-heads, which is 4");
  EXPECT_EQ(refusal([](Options& o) { o.dtype = Dtype::i32; }), "dtype is I32, not F64, F32, F16 or BF16");
}

TEST(Generate, SaysTheCommandInFull) {
  EXPECT_EQ(canonical_command(small(needle)),
            "kvbound generate --kind needle --tokens 70 --decode 3 --layers 2 --query-heads 6 --kv-heads 3 "
            "--head-dim 5 --model-dim 7 --window-queries 4 --dtype F32 --seed 1");
}

TEST(Generate, KnowsItsKindsByName) {
  for (const AttentionKind kind : kKinds) EXPECT_EQ(attention_kind_named(name(kind)), kind);
  EXPECT_EQ(attention_kind_named("power_law"), std::nullopt);
}

}  // namespace
}  // namespace kvbound::traces::generate_test
