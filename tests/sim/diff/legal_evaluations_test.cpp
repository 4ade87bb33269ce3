// No legal evaluation is called wrong: attention, with votes and without, its log-sum-exp, scores and norms
// computed as implementations may compute them in the arithmetic that they declare, of ordinary and of
// adversarial inputs, judged as a dump's are.
//
// The long part prints a table of how many evaluations it judged, how many of them it called wrong,
// and how close they came:
//
//     tests/run.sh -R sim_long -V
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/diff/judge/output_rows.hpp>
#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "support/legal_attention.hpp"
#include "support/random_layer.hpp"

namespace kvbound::sim::legal_evaluations_test {
namespace {

using test::LegalAttention;
using test::Random;
using test::Way;

struct Type {
  const char* name;
  DeclaredArithmetic declared;
};

constexpr Dtype kF64 = Dtype::f64, kF32 = Dtype::f32, kF16 = Dtype::f16, kBf16 = Dtype::bf16;

const std::array kTypes{
    Type{"F64", {kF64, kF64}},
    Type{"F32", {kF32, kF32}},
    Type{"F32, tile 64, 4 splits", {kF32, kF32, {}, {}, 4, 64}},
    Type{"F32, partials F16", {kF32, kF32, {}, kF16}},
    Type{"F32, weights BF16", {kF32, kF32, kBf16}},
    Type{"F32, products TF32", {kF32, kF32, {}, {}, 0, 0, true}},
    Type{"BF16, products TF32", {kBf16, kF32, {}, {}, 0, 0, true}},
    Type{"BF16", {kBf16, kF32}},
    Type{"BF16, weights BF16", {kBf16, kF32, kBf16}},
    Type{"BF16, weights BF16, partials BF16, 32 splits", {kBf16, kF32, kBf16, kBf16, 32}},
    Type{"BF16, weights BF16, tile 16, 1 split", {kBf16, kF32, kBf16, {}, 1, 16}},
    Type{"F16", {kF16, kF32}},
    Type{"F16, weights F16", {kF16, kF32, kF16}},
    Type{"F16, weights F16, partials F16, tile 128, 8 splits", {kF16, kF32, kF16, kF16, 8, 128}},
    Type{"F16, weights BF16, any tile", {kF16, kF32, kBf16, {}, 0, reference::kAnyTile}},
};

constexpr int64_t kQueryHeads = 2, kMostWindow = 4;

// How the evaluations of one operation compared.
struct Tally {
  int64_t evaluations = 0;   // of attention, or of a head's norms, each in a way of its own
  int64_t false_alarms = 0;  // tensors called wrong
  // The largest share of its bound that a number's error has, where claims are not
  // rounded when they are stored.
  double share = 0;
  double whole_share = 0;  // likewise of outputs as wholes

  void add(const TensorAgreement& found, int64_t window) {
    evaluations += kQueryHeads * (found.tensor == "projected_value_norms" ? 1 : window);
    false_alarms += !found.agrees();
    if (!found.worst || found.worst->storage != kF64 || !std::isfinite(found.worst->error)) return;
    share = std::max(share, found.worst->share());
    for (const FunctionalAgreement& functional : found.functionals)
      whole_share = std::max(whole_share, functional.worst_share);
  }
};
using Tallies = std::map<std::string, Tally>;

// Numbers of the layer that are hard for rounding.
class Inputs {
 public:
  Inputs(Dtype storage, Random& random) : random_(random), storage_(storage) {}

  traces::Layer draw() {
    const int64_t most = random_.index(16) == 0 ? 600 : 40, tokens = 1 + random_.index(most);
    const int64_t head_dim = 1 + random_.index(random_.index(4) == 0 ? 64 : 12);
    const double scale =
        random_.index(2) == 0 ? 1 / std::sqrt(static_cast<double>(head_dim)) : random_.uniform(0.01, 2);
    traces::Layer layer;
    layer.shape = {kQueryHeads, 1, head_dim, 5};
    layer.scale = scale;
    layer.prompt_tokens = tokens;
    layer.window_queries = 1 + random_.index(std::min(tokens, kMostWindow));
    layer.keys = layer.values = Tensor(1, tokens, head_dim);
    layer.queries = Tensor(kQueryHeads, layer.window_queries, head_dim);
    layer.output_projection = Matrix(kQueryHeads * head_dim, layer.shape.model_dim);
    each(layer, [&](double& number) { number = random_.uniform(-2, 2); });
    for (int64_t times = random_.index(3); times > 0; --times) make_hard(layer);
    const double kLargest = 30'000;  // that F16 holds, with room for sums
    each(layer, [=](double& number) { number = std::clamp(number, -kLargest, kLargest); });
    if (random_.index(4) > 0) store(layer);
    return layer;
  }

  // The layer as the implementation's cache holds it.
  static void store(traces::Layer& layer, Dtype storage) {
    each(layer, [&](double& number) { number = rounded_to(number, storage); });
  }

 private:
  void store(traces::Layer& layer) const { store(layer, storage_); }

  static void each(traces::Layer& layer, const std::function<void(double&)>& visit) {
    for (Tensor* tensor : {&layer.keys, &layer.values, &layer.queries})
      std::ranges::for_each(tensor->numbers(), visit);
    for (int64_t i = 0; i < layer.output_projection.rows(); ++i)
      std::ranges::for_each(layer.output_projection.row(i), visit);
  }
  static void multiply(Tensor& tensor, double factor) {
    for (double& number : tensor.numbers()) number *= factor;
  }

  void make_hard(traces::Layer& layer) {
    const int64_t tokens = layer.keys.view().rows, head_dim = layer.shape.head_dim;
    const auto keys = layer.keys.slice(0), values = layer.values.slice(0);
    const auto copy = [](VectorView from, std::span<double> to) { std::ranges::copy(from, to.begin()); };
    switch (random_.index(12)) {
      case 0:  // huge logits
        return multiply(layer.queries, std::ldexp(1, static_cast<int>(random_.index(11))));
      case 1:  // ties
        for (int64_t j = 1; j < tokens; ++j) copy(keys.row(j % 3 % tokens), keys.row(j));
        return;
      case 2:  // values that cancel
        for (int64_t j = 1; j < tokens; j += 2) {
          copy(keys.row(j - 1), keys.row(j));
          for (int64_t c = 0; c < head_dim; ++c) values(j, c) = -values(j - 1, c);
        }
        return;
      case 3:
        return multiply(random_.index(2) == 0 ? layer.values : layer.queries, 0);
      case 4:  // numbers below the normal range, or near it
        return multiply(layer.values, tiny());
      case 5:
        return multiply(random_.index(2) == 0 ? layer.queries : layer.keys, tiny());
      case 6: {  // one key dominates
        const int64_t j = random_.index(tokens);
        for (int64_t c = 0; c < head_dim; ++c) keys(j, c) = 30 * layer.queries.slice(0)(0, c);
        return;
      }
      case 7:  // values of many sizes
        for (double& number : layer.values.numbers())
          number = std::ldexp(number, static_cast<int>(random_.index(24)) - 12);
        return;
      case 8:  // values nearly equal
        for (double& number : layer.values.numbers()) number = 3 + std::ldexp(number, -10);
        return;
      case 9:  // logits that rise, so that every tile has a new maximum
        for (int64_t j = 0; j < tokens; ++j) {
          for (int64_t c = 0; c < head_dim; ++c)
            keys(j, c) = layer.queries.slice(0)(0, c) * static_cast<double>(j + 1) / 16;
        }
        return;
      case 10:
        return put_weights_between_numbers(layer);
      default:  // one value dominates
        for (double& number : values.row(random_.index(tokens))) number *= 1000;
    }
  }
  // Weights next to the midpoint between two numbers of BF16: just above it those of positive
  // values, the others just below.
  void put_weights_between_numbers(traces::Layer& layer) {
    const auto keys = layer.keys.slice(0), values = layer.values.slice(0);
    const VectorView query = layer.queries.slice(0).row(0);
    const double square = std::inner_product(query.begin(), query.end(), query.begin(), 0.0);
    for (int64_t j = 0; j < layer.keys.view().rows; ++j) {
      const double above = values(j, 0) > 0 ? 1.01 : 0.99,
                   weight =
                       j == 0 ? 1 : std::ldexp(1 + 0x1p-8 * above, -1 - static_cast<int>(random_.index(4)));
      for (int64_t c = 0; c < layer.shape.head_dim; ++c)
        keys(j, c) = square > 0 ? query[c] * std::log(weight) / (layer.scale * square) : 0;
    }
  }
  // Where the subnormal numbers of F16, or of BF16 and F32, are.
  double tiny() { return std::ldexp(1, storage_ == kF16 || random_.index(2) == 0 ? -16 : -130); }

  Random& random_;
  Dtype storage_;
};

const std::array kPolicies{"+critical:norm=l1", "+critical:norm=l2:gqa=product-of-means",
                           "+obcache-value",    "+obcache-key",
                           "+obcache-joint",    "+exact"};

// What one implementation computes of one layer.
template <class Real>
class Evaluation {
 public:
  using Row = std::vector<Real>;

  Evaluation(const traces::Layer& layer, const DeclaredArithmetic& declared, Random& random)
      : layer_(layer), declared_(declared), random_(random), window_(layer.window_queries) {}

  // What attention over a merged cache claims, whose entries have votes, and the log-sum-exp to either base;
  // the output like prompt_output.
  RealClaim voted_output(VectorView votes, Dtype storage) {
    Row all;
    for_each_row([&](int64_t i, int64_t h) {
      Way way = draw_way(declared_, visible(i), random_);
      if (way.exponent == test::Exponent::folded) way.exponent = test::Exponent::base_2;
      LegalAttention<Real> attention(declared_, way, random_);
      Row logits = attention.logits(query(h, i), keys(i), layer_.scale);
      attention.add_votes(votes, logits);
      const Row row = attention.output(logits, values(i));
      all.insert(all.end(), row.begin(), row.end());
    });
    return claim({window_, kQueryHeads, layer_.shape.head_dim}, all, storage);
  }
  RealClaim log_sum_exp(bool to_base_2, Dtype storage) {
    Row all;
    for_each_row([&](int64_t i, int64_t h) {
      Way way = draw_way(declared_, visible(i), random_);
      way.normalises_first = false;
      LegalAttention<Real> attention(declared_, way, random_);
      all.push_back(attention.log_sum_exp(attention.logits(query(h, i), keys(i), layer_.scale), to_base_2));
    });
    return claim({window_, kQueryHeads}, all, storage);
  }

  LayerClaims claims(const Policy& policy, Dtype storage) {
    LayerClaims claims;
    claims.prompt_output = prompt_output(storage);
    const int64_t scored = layer_.prompt_tokens - window_;
    if (scored == 0) return claims;
    const ScoreRules score = rules_of(policy.score);
    const std::vector<Row> of_heads = head_scores(score.change, scored);
    claims.score = claim({1, scored}, grouped(of_heads, !score.change), storage);
    const auto two_stage = rules_of(policy.selection).two_stage;
    if (!two_stage) return claims;
    const std::vector<Row> lengths = norms(two_stage->norm);
    Row all;
    for (const Row& row : lengths) all.insert(all.end(), row.begin(), row.end());
    claims.projected_value_norms = claim({kQueryHeads, layer_.prompt_tokens}, all, storage);
    claims.stage_two_score = claim({1, scored}, stage_two(of_heads, lengths, *two_stage), storage);
    return claims;
  }

 private:
  static RealClaim claim(std::vector<int64_t> shape, const Row& numbers, Dtype storage) {
    RealClaim claim{std::move(shape), {}, storage};
    for (const Real number : numbers) claim.numbers.push_back(rounded_to(number, storage));
    return claim;
  }
  int64_t visible(int64_t i) const { return layer_.prompt_tokens - window_ + i + 1; }
  VectorView query(int64_t h, int64_t i) const { return layer_.queries.slice(h).row(i); }
  MatrixView keys(int64_t i) const { return layer_.keys.slice(0).middle_rows(0, visible(i)); }
  MatrixView values(int64_t i) const { return layer_.values.slice(0).middle_rows(0, visible(i)); }

  Row output(const Way& way, VectorView query, MatrixView keys, MatrixView values) {
    LegalAttention<Real> attention(declared_, way, random_);
    return attention.output(attention.logits(query, keys, layer_.scale), values);
  }
  Row output(const Way& way, int64_t h, int64_t i) { return output(way, query(h, i), keys(i), values(i)); }

  void for_each_row(const std::function<void(int64_t, int64_t)>& visit) const {
    for (int64_t i = 0; i < window_; ++i) {
      for (int64_t h = 0; h < kQueryHeads; ++h) visit(i, h);
    }
  }
  RealClaim prompt_output(Dtype storage) {
    Row all;
    for_each_row([&](int64_t i, int64_t h) {
      const Row row = output(draw_way(declared_, visible(i), random_), h, i);
      all.insert(all.end(), row.begin(), row.end());
    });
    return claim({window_, kQueryHeads, layer_.shape.head_dim}, all, storage);
  }

  // [query_heads] of [scored], over the window's queries: means of attention, or sums of changes.
  std::vector<Row> head_scores(const std::optional<Change>& change, int64_t scored) {
    std::vector<Row> scores;
    for (int64_t h = 0; h < kQueryHeads; ++h) {
      std::vector<Row> rows;
      for (int64_t i = 0; i < window_; ++i) rows.push_back(change ? changes(*change, h, i) : weights(h, i));
      Row& of_head = scores.emplace_back();
      for (int64_t j = 0; j < scored; ++j) {
        Real sum = 0;
        for (const Row& row : rows) sum += row[j];
        of_head.push_back(change ? sum : sum / static_cast<Real>(window_));
      }
    }
    return scores;
  }
  Row grouped(const std::vector<Row>& of_heads, bool mean) const {
    Row result;
    for (size_t j = 0; j < of_heads[0].size(); ++j) {
      const Real sum = of_heads[0][j] + of_heads[1][j];
      result.push_back(mean ? sum / Real(kQueryHeads) : sum);
    }
    return result;
  }

  // Weights as scores are not rounded for a product.
  Way score_way(int64_t tokens) {
    DeclaredArithmetic unrounded = declared_;
    unrounded.weights = unrounded.partials = std::nullopt;
    Way way = draw_way(unrounded, tokens, random_);
    way.ends = {tokens};
    way.normalises_first = way.sums_rounded = false;
    return way;
  }
  Row weights(int64_t h, int64_t i) {
    DeclaredArithmetic unrounded = declared_;
    unrounded.weights = std::nullopt;
    LegalAttention<Real> attention(unrounded, score_way(visible(i)), random_);
    return attention.weights(attention.logits(query(h, i), keys(i), layer_.scale));
  }

  // A^2 || x ||^2 of OBCache's forms, element by element in the head's space.
  Row changes(Change change, int64_t h, int64_t i) {
    const Row weight = weights(h, i), mean = output(draw_way(declared_, visible(i), random_), h, i);
    Way way = score_way(visible(i));
    way.exponent = test::Exponent::base_e;
    LegalAttention<Real> attention(declared_, way, random_);
    const Row logits = attention.logits(query(h, i), keys(i), layer_.scale);
    const auto length = [&](int64_t j, const Row& output, Real of_value, Real of_difference) {
      Row squares;
      for (int64_t c = 0; c < layer_.shape.head_dim; ++c) {
        const Real value = static_cast<Real>(values(i)(j, c)),
                   x = of_value * value + of_difference * (value - output[c]);
        squares.push_back(x * x);
      }
      return attention.sum(squares);
    };
    Row scores;
    for (int64_t j = 0; j < visible(i); ++j) {
      const Real a = weight[j], z = logits[j];
      switch (change) {
        case Change::value:
          scores.push_back(a * a * length(j, mean, 1, 0));
          break;
        case Change::key:
          scores.push_back(a * z * (a * z) * length(j, mean, 0, 1));
          break;
        case Change::joint:
          scores.push_back(a * a * length(j, mean, 1, z));
          break;
        case Change::exact:  // of an entry that dominates, by the softmax of the others
          if (a > Real(0.25)) {
            scores.push_back(visible(i) == 1 ? std::numeric_limits<Real>::infinity()
                                             : a * a * length(j, output_without(j, h, i), 0, 1));
          } else {
            scores.push_back(a / (1 - a) * (a / (1 - a)) * length(j, mean, 0, 1));
          }
          break;
        case Change::slot:
          throw std::logic_error("no policy scores by this change");
      }
    }
    return scores;
  }
  Row output_without(int64_t left, int64_t h, int64_t i) {
    Matrix other_keys, other_values;
    for (int64_t j = 0; j < visible(i); ++j) {
      if (j == left) continue;
      other_keys.append_row(keys(i).row(j));
      other_values.append_row(values(i).row(j));
    }
    return output(draw_way(declared_, visible(i) - 1, random_), query(h, i), other_keys, other_values);
  }

  std::vector<Row> norms(Norm norm) {
    std::vector<Row> all;
    for (int64_t h = 0; h < kQueryHeads; ++h) {
      LegalAttention<Real> products(declared_, score_way(layer_.prompt_tokens), random_);
      Row& lengths = all.emplace_back();
      Matrix columns(layer_.shape.model_dim, layer_.shape.head_dim);
      for (int64_t m = 0; m < columns.rows(); ++m) {
        for (int64_t c = 0; c < columns.cols(); ++c)
          columns(m, c) = layer_.output_projection(h * columns.cols() + c, m);
      }
      for (int64_t j = 0; j < layer_.prompt_tokens; ++j) {
        Row terms;
        for (int64_t m = 0; m < layer_.shape.model_dim; ++m) {
          const Real x = products.dot(layer_.values.slice(0).row(j), columns.row(m));
          terms.push_back(norm == Norm::l1 ? std::abs(x) : x * x);
        }
        const Real sum = products.sum(terms);
        lengths.push_back(norm == Norm::l1 ? sum : std::sqrt(sum));
      }
    }
    return all;
  }

  Row stage_two(const std::vector<Row>& scores, const std::vector<Row>& lengths,
                const TwoStage& rules) const {
    const Real epsilon = static_cast<Real>(rules.epsilon), heads = kQueryHeads;
    Row result;
    for (size_t j = 0; j < scores[0].size(); ++j) {
      result.push_back(
          rules.gqa == GqaProduct::mean_of_products
              ? ((scores[0][j] + epsilon) * lengths[0][j] + (scores[1][j] + epsilon) * lengths[1][j]) / heads
              : ((scores[0][j] + scores[1][j]) / heads + epsilon) *
                    ((lengths[0][j] + lengths[1][j]) / heads));
    }
    return result;
  }

  const traces::Layer& layer_;
  const DeclaredArithmetic& declared_;
  Random& random_;
  int64_t window_;
};

std::string text_of(const TensorAgreement& found) {
  std::string text = fmt::format("{}: {} of {} elements", found.tensor, found.outside, found.elements);
  if (found.worst) {
    text +=
        fmt::format(", {} for {} within {}", found.worst->claimed, found.worst->expected, found.worst->bound);
  }
  for (const FunctionalAgreement& functional : found.functionals)
    text += fmt::format(", {} {} bands", functional.name, functional.worst_share);
  return text;
}

// What an implementation computes of one layer.
struct Computed {
  LayerClaims claims;
  std::vector<double> votes;  // [prompt_tokens]
  RealClaim voted_output, log_sum_exp;
  bool is_base_2 = false;  // of the log-sum-exp

  template <class Real>
  static Computed by(Evaluation<Real> evaluation, const traces::Layer& layer, const Policy& policy,
                     Dtype storage, Random& random) {
    Computed computed{evaluation.claims(policy, storage), {}, {}, {}};
    for (int64_t j = 0; j < layer.prompt_tokens; ++j)
      computed.votes.push_back(1 + static_cast<double>(random.index(random.index(2) == 0 ? 1 : 1000)));
    computed.voted_output = evaluation.voted_output(computed.votes, storage);
    computed.is_base_2 = random.index(2) == 0;
    computed.log_sum_exp = evaluation.log_sum_exp(computed.is_base_2, storage);
    return computed;
  }
};

// Judges attention with votes, as at a decode step over a merged cache, and log-sum-exps,
// as `check attention` does.
std::vector<TensorAgreement> judge_attention(const traces::Layer& layer, const Computed& computed,
                                             const reference::Arithmetic& arithmetic) {
  std::vector<double> outputs, output_bounds, sums, sum_bounds;
  const double unit = computed.is_base_2 ? std::numbers::log2e : 1;
  OutputRows rows(computed.voted_output, layer.scale);
  const MatrixView all_keys = layer.keys.slice(0), all_values = layer.values.slice(0);
  for (int64_t i = 0; i < layer.window_queries; ++i) {
    const int64_t visible = layer.prompt_tokens - layer.window_queries + i + 1;
    const MatrixView queries = layer.queries.view().row_of_slices(i), keys = all_keys.middle_rows(0, visible),
                     values = all_values.middle_rows(0, visible);
    const VectorView votes = VectorView(computed.votes).first(visible);
    const auto voted = reference::attention(queries, keys, values, layer.scale, votes);
    const auto errors = reference::attention_errors(queries, keys, values, layer.scale, votes, arithmetic);
    outputs.insert(outputs.end(), voted.output.numbers().begin(), voted.output.numbers().end());
    output_bounds.insert(output_bounds.end(), errors.output.numbers().begin(), errors.output.numbers().end());
    rows.add(i * kQueryHeads, queries, keys, values, votes, errors, arithmetic);
    const auto plain = reference::attention(queries, keys, values, layer.scale);
    const auto plain_errors = reference::attention_errors(queries, keys, values, layer.scale, {}, arithmetic);
    for (int64_t h = 0; h < kQueryHeads; ++h) {
      const double sum = plain.log_sum_exp[h];
      sums.push_back(unit * sum);
      sum_bounds.push_back(
          unit * reference::stated_log_sum_exp_error(plain_errors.log_sum_exp[h], sum, visible, arithmetic));
    }
  }
  std::vector<TensorAgreement> found{
      compare("output with votes", computed.voted_output, outputs, output_bounds),
      compare("log-sum-exp", computed.log_sum_exp, sums, sum_bounds)};
  rows.complete(outputs, found.front());
  return found;
}

// Judges what an implementation computes of one layer by what it declares; returns what was called wrong.
std::string judge(const DeclaredArithmetic& computed, const DeclaredArithmetic& declared, uint64_t seed,
                  Tallies& tallies) {
  Random random(seed);
  const traces::Layer given = Inputs(declared.input_storage(), random).draw();
  traces::Layer stored = given;
  Inputs::store(stored, computed.input_storage());
  const char* const second = kPolicies[random.index(std::ssize(kPolicies))];
  const Policy policy = parse_policy(fmt::format("snapkv:window={}:pool=1{}", given.window_queries, second));
  constexpr std::array kStored{kF64, kF32, kF16, kBf16};
  const Dtype storage = declared.accumulate == kF64 ? kF64 : kStored[random.index(4)];
  const Computed result =
      computed.accumulate == kF64
          ? Computed::by(Evaluation<double>(stored, computed, random), stored, policy, storage, random)
          : Computed::by(Evaluation<float>(stored, computed, random), stored, policy, storage, random);
  const TestedImplementation implementation{policy, given.prompt_tokens, 0, declared.arithmetic(),
                                            declared.input_storage()};
  std::vector<TensorAgreement> all = agreement(given, implementation, result.claims);
  std::ranges::move(
      judge_attention(given, result, with_input_rounding(implementation, given).arithmetic.attention),
      std::back_inserter(all));
  std::string wrong;
  for (const TensorAgreement& found : all) {
    const bool is_change = found.tensor == "score" && rules_of(policy.score).change;
    tallies[is_change ? second + 1 : found.tensor].add(found, given.window_queries);
    if (!found.agrees())
      wrong += fmt::format(" {}, stored in {}, {};", text_of(found), name(storage), second);
  }
  return wrong;
}

// Judges until each operation of each type has so many evaluations.
std::vector<Tallies> judge_all(int64_t evaluations) {
  std::vector<Tallies> all(kTypes.size());
  std::vector<std::string> wrong(kTypes.size());
  reference::parallel_for(std::ssize(kTypes), [&](int64_t type) {
    const auto enough = [&] {
      return all[type].size() == kPolicies.size() + 4 &&
             std::ranges::all_of(all[type],
                                 [&](const auto& entry) { return entry.second.evaluations >= evaluations; });
    };
    for (uint64_t seed = 0; !enough(); ++seed) {
      const std::string found =
          judge(kTypes[type].declared, kTypes[type].declared, seed * kTypes.size() + type, all[type]);
      if (!found.empty()) wrong[type] += fmt::format("layer {}:{}\n", seed, found);
    }
  });
  for (size_t type = 0; type < kTypes.size(); ++type) EXPECT_EQ(wrong[type], "") << kTypes[type].name;
  return all;
}

std::string table_of(const std::vector<Tallies>& found) {
  std::vector<TableRow> rows{
      {"operation", "type", "evaluations", "false alarms", "error/bound", "as wholes"}};
  for (const auto& [operation, unused] : found.front()) {
    for (size_t type = 0; type < kTypes.size(); ++type) {
      const Tally& tally = found[type].at(operation);
      const bool is_whole = operation == "prompt_output" || operation == "output with votes";
      rows.push_back({operation, kTypes[type].name, std::to_string(tally.evaluations),
                      std::to_string(tally.false_alarms), cell(tally.share),
                      cell(is_whole ? std::optional(tally.whole_share) : std::nullopt)});
    }
  }
  return table(rows, {.left_columns = 2});
}

TEST(LegalEvaluations, AreNeverCalledWrong) { judge_all(100); }

TEST(LegalEvaluations, OfEveryTypeAreNeverCalledWrong) { std::cout << table_of(judge_all(10'000)); }

// What is not declared is called wrong where it moves numbers: in many layers, for many of their
// inputs are hard or trivial.
TEST(LegalEvaluations, OfAnotherTypeAreCalledWrong) {
  struct Undeclared {
    DeclaredArithmetic computed, declared;
  };
  for (const auto& [computed, declared] :
       {Undeclared{{kF32, kF32}, {kF64, kF64}}, Undeclared{{kF32, kF32, kBf16}, {kF32, kF32}},
        Undeclared{{kF32, kF32, kBf16}, {kF32, kF32, kF16}}, Undeclared{{kF32, kF32, {}, kF16}, {kF32, kF32}},
        Undeclared{{kF32, kF32, {}, kBf16}, {kF32, kF32, {}, kF16}},
        Undeclared{{kF32, kF32, {}, {}, 0, 0, true}, {kF32, kF32}},
        Undeclared{{kBf16, kF32}, {kF32, kF32}}}) {
    Tallies found;
    constexpr int64_t kLayers = 100;
    for (uint64_t seed = 0; seed < kLayers; ++seed) judge(computed, declared, seed, found);
    EXPECT_GT(found["prompt_output"].false_alarms, kLayers / 3);
    EXPECT_GT(found["output with votes"].false_alarms, kLayers / 3);
  }
}

}  // namespace
}  // namespace kvbound::sim::legal_evaluations_test
