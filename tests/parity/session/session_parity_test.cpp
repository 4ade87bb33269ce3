// Sessions in situations that whole replays do not reach, against the reference's session.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/session/session.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/session/session.hpp>

#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

// A layer that owns its arrays, all numbers 0 but W^O.
struct OwnedLayer {
  LayerShape shape;
  Tensor keys, values, queries, projection;

  OwnedLayer(const LayerShape& given, int64_t tokens, int64_t window)
      : shape(given),
        keys(shape.kv_heads, tokens, shape.head_dim),
        values(shape.kv_heads, tokens, shape.head_dim),
        queries(shape.query_heads, window, shape.head_dim),
        projection(rounded<cuda::Float16>(
            random_tensor(1, 1, shape.query_heads * shape.head_dim, shape.model_dim))) {}

  LayerView view() const { return {shape, 1, keys, values, queries, projection.slice(0)}; }
};

class SessionParity : public DeviceTest {
 protected:
  static std::unique_ptr<Session> on_device(Dtype storage = Dtype::f32) {
    return cuda::KVBOUND_CUDA_BUILD::make_session(storage);
  }
};

// Each query head sees one token only, and the budget holds one of the two: whichever is
// kept, a head keeps no mass.
TEST_F(SessionParity, ThetaSweepKeepsItsFirstSelectionWhereNoneKeepsMass) {
  constexpr int64_t kWindow = 4, kOne = 2, kOther = 5;
  OwnedLayer layer({2, 1, 8, 4}, 12, kWindow);
  layer.keys.slice(0)(kOne, 0) = layer.keys.slice(0)(kOther, 1) = 100;
  for (int64_t i = 0; i < kWindow; ++i) {
    layer.queries.slice(0)(i, 0) = layer.queries.slice(1)(i, 1) = 100;
  }
  for (double& value : layer.values.numbers()) value = 1;
  for (int64_t c = 0; c < 8; ++c)
    layer.values.slice(0)(kOther, c) = 4;  // the host prefers kOne, the sweep kOther
  const Policy policy{SnapKv{kWindow, 1}, AttentionScore{}, ThetaSweep{}, Uniform{}, NoMerge{}};
  const std::vector<int64_t> budgets{kWindow + 1};
  const std::vector<std::vector<int64_t>> kept{{kOther, 8, 9, 10, 11}};
  EXPECT_EQ(reference::make_session()->compress(layer.view(), policy, budgets).kept, kept);
  EXPECT_EQ(on_device()->compress(layer.view(), policy, budgets).kept, kept);
}

TEST_F(SessionParity, KeepsWhatIsDrawnForEveryLayerAndHead) {
  const OwnedLayer layer({2, 2, 8, 4}, 60, 4);
  LayerView view = layer.view();
  for (const int64_t index : {0, 1, 23}) {
    view.index = index;
    for (const RandomHost& host : {RandomHost{0, 4, 8}, RandomHost{5, 0, 0}}) {
      const Policy policy{host, AttentionScore{}, TopK{}, Uniform{}, NoMerge{}};
      for (const std::vector<int64_t>& budgets : {std::vector<int64_t>{12, 31}, {60, 13}}) {
        const auto expected = reference::make_session()->compress(view, policy, budgets).kept;
        EXPECT_EQ(on_device()->compress(view, policy, budgets).kept, expected);
      }
    }
  }
}

TEST_F(SessionParity, RefusesTooLargeAHeadAtEveryCallAndStaysUsable) {
  const Policy policy{H2o{4, 1, {}}, AttentionScore{}, TopK{}, Uniform{}, NoMerge{}};
  const std::vector<int64_t> budgets{8};
  const OwnedLayer large({2, 1, 257, 4}, 12, 4);
  OwnedLayer small({2, 1, 8, 4}, 12, 4);
  small.keys = rounded<float>(random_tensor(2, 1, 12, 8));
  small.queries = rounded<float>(random_tensor(3, 2, 4, 8));
  const std::unique_ptr<Session> session = on_device();
  const auto refusal = [&] {
    try {
      session->compress(large.view(), policy, budgets);
    } catch (const ShapeMismatch& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refusal(), "head_dim is 257, outside 1..256");
  EXPECT_EQ(refusal(), "head_dim is 257, outside 1..256");
  EXPECT_EQ(session->compress(small.view(), policy, budgets).kept,
            on_device()->compress(small.view(), policy, budgets).kept);
  EXPECT_EQ(refusal(), "head_dim is 257, outside 1..256");
  const Matrix entry(1, 8), queries(2, 8);
  EXPECT_EQ(session->step({entry, entry, queries}).evicted.size(), 1);
}

// Numbers with their bits, which the doubles need not agree with.
struct RecordedLayer {
  OwnedLayer layer;
  std::vector<uint16_t> keys, values, queries, projection;

  explicit RecordedLayer(uint64_t seed) : layer({4, 2, 24, 12}, 40, 6) {
    const auto fill = [&](Tensor& tensor, std::vector<uint16_t>& bits, uint64_t number) {
      tensor = rounded<cuda::Bfloat16>(
          random_tensor(seed + number, tensor.view().slices, tensor.view().rows, tensor.view().cols));
      for (const double entry : tensor.numbers()) bits.push_back(to_bfloat16(entry));
    };
    fill(layer.keys, keys, 1);
    fill(layer.values, values, 2);
    fill(layer.queries, queries, 3);
    fill(layer.projection, projection, 4);
  }

  LayerView with_bits(const LayerView& view, Dtype dtype) const {
    LayerView with = view;
    with.bits = {dtype, keys.data(), values.data(), queries.data(), projection.data()};
    return with;
  }
  StepView step(int64_t t) const {
    return {layer.keys.view().row_of_slices(t), layer.values.view().row_of_slices(t),
            layer.queries.view().row_of_slices(t % 6)};
  }
  StepView with_bits(StepView step, int64_t t, Dtype dtype) const {
    step.bits = {dtype, keys.data() + t * 24, values.data() + t * 24, queries.data() + t % 6 * 24};
    return step;
  }
};

// Bits of the session's storage are uploaded as they are, without a look at the doubles; others are not used.
TEST_F(SessionParity, TakesTheBitsThatWereRecorded) {
  const RecordedLayer one(100), other(200);
  const Policy policy{H2o{4, 1, 1}, AttentionScore{}, Critical{}, Uniform{}, NoMerge{}};
  const auto outputs = [&](Dtype storage, const RecordedLayer& doubles, const RecordedLayer* bits,
                           Dtype of_bits) {
    const std::unique_ptr<Session> session = on_device(storage);
    const LayerView view = doubles.layer.view();
    const std::vector<int64_t> budgets{12, 12};
    session->compress(bits ? bits->with_bits(view, of_bits) : view, policy, budgets);
    std::vector<StepView> steps;
    for (int64_t t = 0; t < 19; ++t) {
      steps.push_back(bits ? bits->with_bits(doubles.step(t), t, of_bits) : doubles.step(t));
    }
    std::vector<double> all;
    for (const StepRecord& record : session->steps(steps)) {
      all.insert(all.end(), record.output.numbers().begin(), record.output.numbers().end());
    }
    return all;
  };
  for (const Dtype storage : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    const std::vector<double> of_one = outputs(storage, one, nullptr, Dtype::f64);
    EXPECT_NE(of_one, outputs(storage, other, nullptr, Dtype::f64));
    for (const Dtype of_bits : {Dtype::f16, Dtype::bf16}) {
      if (storage == Dtype::f16 && of_bits == Dtype::f16) continue;  // bits are those of BF16
      const bool taken = storage == of_bits;
      EXPECT_EQ(outputs(storage, taken ? other : one, &one, of_bits), of_one) << name(storage);
      if (!taken) {
        EXPECT_EQ(outputs(storage, one, &other, of_bits), of_one) << name(storage);
      }
    }
  }
}

// Keys of 16 values and values of 8, at random places: of the entries with the last score that is selected,
// positions decide, up to the last of a million.
TEST_F(SessionParity, CompressesAMillionTokens) {
  constexpr int64_t kTokens = int64_t{1} << 20;
  OwnedLayer layer({1, 1, 8, 8}, kTokens, 4);
  const Tensor random = random_tensor(5, 1, 2, kTokens);
  for (int64_t j = 0; j < kTokens; ++j) {
    const auto one_of = [&](int64_t row, double count) {
      return std::fmod(std::floor(64 * std::abs(random.slice(0)(row, j))), count);
    };
    layer.keys.slice(0)(j, 0) = one_of(0, 16) / 4;
    layer.values.slice(0)(j, 3) = 1 + one_of(1, 8) / 8;
  }
  for (int64_t i = 0; i < 4; ++i) layer.queries.slice(0)(i, 0) = 1;
  const Policy policy{SnapKv{4, 1}, AttentionScore{}, Critical{}, Uniform{}, NoMerge{}};
  for (const int64_t budget : {kTokens / 5, kTokens * 3 / 4}) {
    const std::vector<int64_t> budgets{budget};
    const PromptRecord expected = reference::make_session()->compress(layer.view(), policy, budgets),
                       record = on_device(Dtype::bf16)->compress(layer.view(), policy, budgets);
    EXPECT_TRUE(record.stage_one == expected.stage_one);
    EXPECT_TRUE(record.kept == expected.kept);
  }
}

// What NonFinite says of a call; empty if it is not thrown.
template <class Call>
std::string not_finite(const Call& call) {
  try {
    call();
  } catch (const NonFinite& error) {
    return error.what();
  }
  return {};
}

// Without keys every entry has the same attention, and CaM always spreads an evicted value: here over one
// entry, whose own value is as large.
class SessionErrors : public SessionParity {
 protected:
  static constexpr int64_t kTokens = 12;
  static constexpr double kLarge = 40000;  // of which two are too much for FP16

  SessionErrors() : layer_({2, 1, 8, 4}, kTokens, 4) {}

  static Policy policy(Score score, Merge merge) {
    return {H2o{4, 1, 1}, std::move(score), TopK{}, Uniform{}, std::move(merge)};
  }
  void set_values(double value) { std::ranges::fill(layer_.values.numbers(), value); }
  void compress(Session& session, const Policy& policy, int64_t budget) const {
    session.compress(layer_.view(), policy, std::vector<int64_t>{budget});
  }
  static void step(Session& session, double value) {
    const Matrix keys(1, 8), queries(2, 8);
    Matrix values(1, 8);
    std::ranges::fill(values.row(0), value);
    session.step({keys, values, queries});
  }

  OwnedLayer layer_;
  const Policy spreading_ = policy(AttentionScore{}, Cam{1, 0});
};

TEST_F(SessionErrors, NameAMergedEntryAfterThePromptAndInAStep) {
  const std::unique_ptr<Session> session = on_device(Dtype::f16);
  set_values(kLarge);
  const std::string expected = "a merged key or value is not finite in the type that stores it";
  EXPECT_EQ(not_finite([&] { compress(*session, spreading_, kTokens / 2); }), expected);
  EXPECT_EQ(not_finite([&] { compress(*session, spreading_, kTokens); }), "") << "nothing merges";
  EXPECT_EQ(not_finite([&] { step(*session, kLarge); }), expected);
}

TEST_F(SessionErrors, NameAMergedEntryOfACluster) {
  const std::unique_ptr<Session> session = on_device(Dtype::f16);
  set_values(1e6);  // infinite in FP16
  ConvexMerge convex;
  D2o d2o;
  convex.threshold.reset(), d2o.threshold.reset();
  for (const Merge& merge : {Merge(convex), Merge(d2o)}) {
    EXPECT_EQ(not_finite([&] { compress(*session, policy(AttentionScore{}, merge), kTokens / 2); }),
              "a merged key or value is not finite in the type that stores it");
  }
}

TEST_F(SessionErrors, NameAScoreThatIsNotANumberInAStep) {
  const std::unique_ptr<Session> session = on_device();
  const Policy policy = SessionErrors::policy(ObcacheKey{}, NoMerge{});
  compress(*session, policy, kTokens);
  EXPECT_EQ(not_finite([&] { step(*session, 1e30); }), "score is not a number in single precision");
  compress(*session, policy, kTokens);
  EXPECT_EQ(not_finite([&] { step(*session, 1); }), "");
}

}  // namespace
}  // namespace kvbound::parity
