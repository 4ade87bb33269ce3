// The floor against the judge itself: faults at the floor are found in whatever way a faulty implementation
// rounds, and smaller ones can be hidden.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/diff/floor/certain_findings.hpp>
#include <kvbound/sim/diff/floor/detection_floor.hpp>
#include <kvbound/sim/diff/floor/random_shape.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/legal_attention.hpp"

namespace kvbound::sim::detection_floor_test {
namespace {

using test::Random;

constexpr Dtype kF64 = Dtype::f64, kF32 = Dtype::f32, kF16 = Dtype::f16, kBf16 = Dtype::bf16;
const DeclaredArithmetic kRoundedWeights{kF32, kF32, kBf16};

// What is wrong with an implementation.
struct Fault {
  double factor = 1;       // of its outputs
  double logit_scale = 1;  // of its logits
  int64_t missing = 0;     // last entries of the cache
  int64_t padding = 0;     // entries of zeros behind it
  bool swapped = false;    // query heads
};

// The outputs of one layer's last prompt query by a faulty implementation, as legal
// rounding leaves them, judged.
class Seeded {
 public:
  Seeded(const traces::Layer& layer, const DeclaredArithmetic& declared)
      : layer_(layer), declared_(declared), heads_(layer.shape.query_heads), dim_(layer.shape.head_dim) {}

  // An implementation that computes as many do.
  bool is_found(const Fault& fault, Random& random) {
    return judge(fault, [&](int64_t h) { return legal(h, fault, random); });
  }
  // One whose rounded weights all hide the fault along this direction: 0: the output; 1: its
  // change with the logits' scale.
  bool is_found_though_hidden(const Fault& fault, int64_t direction) {
    return judge(fault, [&](int64_t h) { return hidden(h, fault, direction); });
  }

 private:
  struct Cache {
    Matrix keys, values;
  };

  Cache cache(int64_t h, const Fault& fault) const {
    const int64_t g = layer_.shape.kv_head_of(h);
    Cache cache;
    for (int64_t j = 0; j < layer_.prompt_tokens - fault.missing; ++j) {
      cache.keys.append_row(layer_.keys.slice(g).row(j));
      cache.values.append_row(layer_.values.slice(g).row(j));
    }
    const std::vector<double> zeros(dim_);
    for (int64_t j = 0; j < fault.padding; ++j) {
      cache.keys.append_row(zeros);
      cache.values.append_row(zeros);
    }
    return cache;
  }
  VectorView query(int64_t h) const { return layer_.queries.slice(h).row(layer_.window_queries - 1); }

  bool judge(const Fault& fault, const std::function<std::vector<double>(int64_t)>& output) const {
    RealClaim claim{{1, heads_, dim_}, {}, declared_.storage};
    for (int64_t h = 0; h < heads_; ++h) {
      for (const double number : output(fault.swapped ? heads_ - 1 - h : h))
        claim.numbers.push_back(rounded_to(fault.factor * number, declared_.storage));
    }
    LayerClaims claims;
    claims.prompt_output = claim;
    const TestedImplementation implementation{parse_policy("snapkv:window=1"), layer_.prompt_tokens, 0,
                                              declared_.arithmetic(), declared_.input_storage()};
    return !agreement(layer_, implementation, claims).front().agrees();
  }

  std::vector<double> legal(int64_t h, const Fault& fault, Random& random) const {
    const Cache attended = cache(h, fault);
    const auto compute = [&]<class Real>(Real) {
      test::LegalAttention<Real> attention(declared_, draw_way(declared_, attended.keys.rows(), random),
                                           random);
      const auto output = attention.output(
          attention.logits(query(h), attended.keys, fault.logit_scale * layer_.scale), attended.values);
      return std::vector<double>(output.begin(), output.end());
    };
    return declared_.accumulate == kF64 ? compute(double()) : compute(float());
  }

  // Of exact weights, each then multiplied by 1 + u or 1 - u, whichever moves the output
  // back towards the right one.
  std::vector<double> hidden(int64_t h, const Fault& fault, int64_t direction) const {
    const Cache attended = cache(h, fault), right = cache(h, {});
    const std::vector<double> w = direction_of(h, right, direction);
    const std::vector<double> weights = weights_of(h, attended, fault.logit_scale),
                              faulty = mean(weights, attended.values),
                              exact = mean(weights_of(h, right, 1), right.values);
    const double along = dot(w, faulty), moved = fault.factor * along - dot(w, exact);
    const double unit = declared_.arithmetic().weights;
    std::vector<double> rounded;
    for (size_t j = 0; j < weights.size(); ++j) {
      const double apart = dot(w, attended.values.row(static_cast<int64_t>(j))) - along;
      rounded.push_back(weights[j] * (1 - std::copysign(unit, apart * moved * fault.factor)));
    }
    return mean(rounded, attended.values);
  }
  std::vector<double> direction_of(int64_t h, const Cache& right, int64_t direction) const {
    std::vector<double> w = mean(weights_of(h, right, 1), right.values);
    if (direction == 0) return w;
    const std::vector<double> moved = mean(weights_of(h, right, 1.0001), right.values);
    for (size_t c = 0; c < w.size(); ++c) w[c] = moved[c] - w[c];
    return w;
  }
  std::vector<double> weights_of(int64_t h, const Cache& attended, double logit_scale) const {
    const Matrix logits =
        reference::attention_logits({query(h).data(), 1, dim_}, attended.keys, logit_scale * layer_.scale);
    std::vector<double> weights(logits.cols());
    reference::softmax(logits.row(0), *std::ranges::max_element(logits.row(0)), weights);
    return weights;
  }
  static std::vector<double> mean(const std::vector<double>& weights, const Matrix& values) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<double> output(values.cols());
    for (int64_t j = 0; j < values.rows(); ++j) {
      for (int64_t c = 0; c < values.cols(); ++c) output[c] += weights[j] / sum * values(j, c);
    }
    return output;
  }
  static double dot(VectorView a, VectorView b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  }

  const traces::Layer& layer_;
  const DeclaredArithmetic& declared_;
  int64_t heads_, dim_;
};

traces::Layer spread_layer(const DeclaredArithmetic& declared) {
  return random_layer(parse_shape("tokens=700:head_dim=32:window=1"), declared.input_storage());
}

// The faults that the floor says are always found.
std::vector<Fault> found_faults(const DetectionFloor& floor) {
  std::vector<Fault> faults;
  if (floor.factor) {
    faults.push_back({.factor = 1 - *floor.factor * 1.0001});
    faults.push_back({.factor = 1 + *floor.factor * 1.0001});
  }
  if (floor.halved) faults.push_back({.factor = 0.5});
  if (floor.zeros) faults.push_back({.factor = 0});
  if (floor.logit_scale) {
    faults.push_back({.logit_scale = 1 - *floor.logit_scale});
    faults.push_back({.logit_scale = 1 + *floor.logit_scale});
  }
  if (floor.base_2.value_or(false)) faults.push_back({.logit_scale = std::numbers::ln2});
  if (floor.missing) faults.push_back({.missing = floor.missing->entries});
  if (floor.padding) faults.push_back({.padding = floor.padding->entries});
  if (floor.swaps && floor.swaps->found > 0) faults.push_back({.swapped = true});
  return faults;
}

TEST(DetectionFloor, OfOutputsIsFoundWhateverTheRounding) {
  for (const DeclaredArithmetic& declared :
       {DeclaredArithmetic{kF64, kF64}, DeclaredArithmetic{kF32, kF32}, kRoundedWeights,
        DeclaredArithmetic{kBf16, kF32, kBf16}, DeclaredArithmetic{kF16, kF32, kF16, kF16, 4, 64}}) {
    const traces::Layer layer = spread_layer(declared);
    const DetectionFloor floor = detection_floors(layer, declared).front();
    const std::vector<Fault> faults = found_faults(floor);
    EXPECT_EQ(faults.size(), 10u) << "all kinds";
    Random random(4);
    Seeded seeded(layer, declared);
    for (size_t i = 0; i < faults.size(); ++i) {
      for (int evaluation = 0; evaluation < 10; ++evaluation)
        EXPECT_TRUE(seeded.is_found(faults[i], random)) << name(declared.storage) << ", fault " << i;
      for (const int64_t direction : {0, 1})
        EXPECT_TRUE(seeded.is_found_though_hidden(faults[i], direction))
            << name(declared.storage) << ", fault " << i;
    }
    EXPECT_FALSE(seeded.is_found({}, random));
  }
}

TEST(DetectionFloor, OfOutputsIsNotFarAboveFaultsThatRoundingHides) {
  const traces::Layer layer = spread_layer(kRoundedWeights);
  const DetectionFloor floor = detection_floors(layer, kRoundedWeights).front();
  const double factor = 0.65 * *floor.factor, logit_scale = 0.65 * *floor.logit_scale;
  Seeded seeded(layer, kRoundedWeights);
  for (const double sign : {-1, 1}) {
    EXPECT_FALSE(seeded.is_found_though_hidden({.factor = 1 + sign * factor}, 0));
    EXPECT_FALSE(seeded.is_found_though_hidden({.logit_scale = 1 + sign * logit_scale}, 1));
  }
}

bool same(const DetectionFloor& a, const DetectionFloor& b) {
  const auto entries = [](const std::optional<FaultyEntries>& faulty) {
    return faulty ? std::pair(faulty->entries, faulty->weight) : std::pair(int64_t{-1}, 0.0);
  };
  return a.factor == b.factor && a.logit_scale == b.logit_scale && a.base_2 == b.base_2 &&
         entries(a.missing) == entries(b.missing) && entries(a.padding) == entries(b.padding);
}

TEST(DetectionFloor, OfOutputsIsOfThePromptsLastQueryAndEntries) {
  traces::Layer layer = spread_layer(kRoundedWeights);
  const DetectionFloor alone = detection_floors(layer, kRoundedWeights).front();
  // Another query before the last one, and a decode step behind it.
  Tensor queries(layer.shape.query_heads, 3, layer.shape.head_dim);
  for (int64_t h = 0; h < layer.shape.query_heads; ++h)
    std::ranges::copy(layer.queries.slice(h).row(0), queries.slice(h).row(1).begin());
  const auto extended = [&](Tensor tensor) {
    Tensor longer(1, layer.prompt_tokens + 1, layer.shape.head_dim);
    std::ranges::copy(tensor.numbers(), longer.numbers().begin());
    std::ranges::fill(longer.slice(0).row(layer.prompt_tokens), 3.0);
    return longer;
  };
  layer.queries = queries;
  layer.window_queries = 2;
  layer.keys = extended(layer.keys);
  layer.values = extended(layer.values);
  EXPECT_TRUE(same(detection_floors(layer, kRoundedWeights).front(), alone));
}

TEST(DetectionFloor, CountsTheStorageOfOutputs) {
  const RandomShape shape = parse_shape("tokens=40:head_dim=8:window=1");
  const auto factor = [&](Dtype storage) {
    return *detection_floors(random_layer(shape, kBf16), {storage, kF32}).front().factor;
  };
  EXPECT_GT(factor(kBf16), 0x1p-9);
  EXPECT_LT(factor(kF32), 0x1p-12);
}

TEST(DetectionFloor, CountsTheStorageOfMergedEntries) {
  const traces::Layer layer = random_layer(parse_shape("tokens=40:head_dim=8:window=1"), kBf16);
  const auto factor = [&](Dtype accumulate) {
    const std::vector<DetectionFloor> floors = detection_floors(layer, {kBf16, accumulate});
    return *std::ranges::find(floors, "merged_value, d2o", &DetectionFloor::operation)->factor;
  };
  EXPECT_GT(factor(kF32), 0x1p-7) << "of the cache and of the dump";
  EXPECT_LT(factor(kF64), 0x1p-7) << "of the dump alone";
}

// Whether some head's faulty output is always found, as the floor's search asks.
bool always_finds(const traces::Layer& layer, const DeclaredArithmetic& declared, double logit_scale,
                  int64_t missing) {
  for (int64_t h = 0; h < layer.shape.query_heads; ++h) {
    const auto bounded = [&](double scale, int64_t entries) {
      return std::make_unique<BoundedOutput>(layer.queries.slice(h).row(0),
                                             MatrixView(layer.keys.slice(0)).middle_rows(0, entries),
                                             MatrixView(layer.values.slice(0)).middle_rows(0, entries),
                                             scale * layer.scale, declared.arithmetic());
    };
    const auto right = bounded(1, layer.prompt_tokens),
               faulty = bounded(logit_scale, layer.prompt_tokens - missing);
    if (CertainFindings(*right, declared.storage).always_find(*faulty)) return true;
  }
  return false;
}

TEST(DetectionFloor, OfLogitsIsFoundOnBothSides) {
  const traces::Layer layer = spread_layer(kRoundedWeights);
  const double x = *detection_floors(layer, kRoundedWeights).front().logit_scale;
  EXPECT_TRUE(always_finds(layer, kRoundedWeights, 1 + x, 0) &&
              always_finds(layer, kRoundedWeights, 1 - x, 0));
  EXPECT_FALSE(always_finds(layer, kRoundedWeights, 1 + x / 1.1, 0) &&
               always_finds(layer, kRoundedWeights, 1 - x / 1.1, 0))
      << "to within 9 %";
}

TEST(DetectionFloor, OfMissingEntriesIsTheNumberThatIsFound) {
  const DeclaredArithmetic declared{kBf16, kF32, kBf16};
  const traces::Layer layer = random_layer(parse_shape("tokens=2000:window=1"), kBf16);
  const int64_t entries = detection_floors(layer, declared).front().missing->entries;
  EXPECT_GT(entries, 20);
  EXPECT_TRUE(always_finds(layer, declared, 1, entries));
  EXPECT_FALSE(always_finds(layer, declared, 1, entries * 10 / 11)) << "to within 9 %";
}

// A head whose values are all alike shows a factor best, and no other fault.
TEST(DetectionFloor, IsThatOfTheHeadThatShowsItBest) {
  const DeclaredArithmetic declared{kF32, kF32, kBf16};
  traces::Layer layer =
      random_layer(parse_shape("tokens=200:head_dim=8:query_heads=2:kv_heads=2:window=1"), kF32);
  const double before = *detection_floors(layer, declared).front().factor;
  std::ranges::fill(std::span(layer.values.slice(0).data, 200 * 8), 1.0);
  const double first = *detection_floors(layer, declared).front().factor;
  EXPECT_LT(first, before / 2);
  traces::Layer other =
      random_layer(parse_shape("tokens=200:head_dim=8:query_heads=2:kv_heads=2:window=1"), kF32);
  std::ranges::fill(std::span(other.values.slice(1).data, 200 * 8), 1.0);
  EXPECT_LT(*detection_floors(other, declared).front().factor, before / 2);
}

TEST(DetectionFloor, CountsTheRoundingOfInputs) {
  const DeclaredArithmetic declared{kBf16, kF32, {}};
  const RandomShape shape = parse_shape("tokens=40:head_dim=8:window=1");
  const std::vector<DetectionFloor> held = detection_floors(random_layer(shape, kBf16), declared),
                                    rounded = detection_floors(random_layer(shape, kF64), declared);
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i].operation.starts_with("votes")) continue;  // counts, which are not computed from inputs
    EXPECT_GT(*rounded[i].factor, 1.5 * *held[i].factor) << held[i].operation;
  }
}

TEST(DetectionFloor, OfMissingEntriesAndPaddingSaysTheirWeight) {
  const traces::Layer layer = spread_layer(kRoundedWeights);
  const DetectionFloor floor = detection_floors(layer, kRoundedWeights).front();
  double missing = 0, padding = 0;
  for (int64_t h = 0; h < 2; ++h) {
    const Matrix logits =
        reference::attention_logits(layer.queries.slice(h), layer.keys.slice(0), layer.scale);
    double all = 0, last = 0;
    for (int64_t j = 0; j < 700; ++j) {
      all += std::exp(logits(0, j));
      last += j >= 700 - floor.missing->entries ? std::exp(logits(0, j)) : 0;
    }
    const auto zeros = static_cast<double>(floor.padding->entries);
    missing += last / all / 2;
    padding += zeros / (all + zeros) / 2;
  }
  EXPECT_NEAR(floor.missing->weight, missing, 1e-9);
  EXPECT_NEAR(floor.padding->weight, padding, 1e-9);
  EXPECT_EQ(floor.swaps->possible, 1);
}

TEST(DetectionFloor, OfScoresAndNormsIsWhereTheJudgeBeginsToFindFactors) {
  const DeclaredArithmetic declared{kF64, kF32};
  const traces::Layer layer =
      random_layer(parse_shape("tokens=60:head_dim=8:query_heads=4:kv_heads=2:window=3"), kF32);
  const std::vector<DetectionFloor> floors = detection_floors(layer, declared);
  const std::array kOthers{"+obcache-value", "+obcache-key", "+obcache-joint", "+exact"};
  std::vector<std::string> operations;
  for (const DetectionFloor& floor : floors) operations.push_back(floor.operation);
  EXPECT_EQ(operations,
            (std::vector<std::string>{"prompt_output", "score", "projected_value_norms", "stage_two_score",
                                      "score, obcache-value", "score, obcache-key", "score, obcache-joint",
                                      "score, exact", "merged_key, d2o", "merged_value, d2o", "votes, keepkv",
                                      "merged_key, keepkv", "merged_value, keepkv"}));
  for (size_t i = 1; i < 8; ++i) {
    const DetectionFloor& floor = floors[i];
    const Policy policy =
        parse_policy(std::string("snapkv:window=3:pool=1") + (i < 4 ? "+critical" : kOthers[i - 4]));
    const PromptRecord record =
        reference::make_session()->compress(layer.prompt(), policy, std::vector<int64_t>(2, 60));
    const auto is_found = [&](double factor) {
      LayerClaims claims;
      const Matrix& expected = i == 2   ? *record.projected_value_norms
                               : i == 3 ? *record.stage_two_score
                                        : record.score;
      RealClaim claim{{expected.rows(), expected.cols()}, {}, kF64};
      for (const double x : expected.numbers()) claim.numbers.push_back(factor * x);
      (i == 2 ? claims.projected_value_norms : i == 3 ? claims.stage_two_score : claims.score) = claim;
      return !agreement(layer, {policy, 60, 0, declared.arithmetic(), declared.input_storage()}, claims)
                  .front()
                  .agrees();
    };
    EXPECT_EQ(floor.tokens, 60);
    EXPECT_EQ(floor.judged, i == 2 ? 4 * 60 : 2 * 57) << floor.operation;
    EXPECT_TRUE(floor.halved && floor.zeros);
    ASSERT_TRUE(floor.factor);
    // An implementation that does not round can have half of the floor: the other half is for its rounding.
    for (const double sign : {-1, 1}) {
      EXPECT_TRUE(is_found(1 + sign * 0.51 * *floor.factor)) << floor.operation;
      EXPECT_FALSE(is_found(1 + sign * 0.49 * *floor.factor)) << floor.operation;
    }
  }
}

}  // namespace
}  // namespace kvbound::sim::detection_floor_test
