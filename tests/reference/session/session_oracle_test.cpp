// The scores, kept entries and outputs of a session, against the definitions in 50 digits.
#include <algorithm>
#include <map>
#include <tuple>

#include <gtest/gtest.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/perturbation.hpp>
#include <kvbound/reference/session/session.hpp>

#include "support/oracle.hpp"
#include "support/session_cases.hpp"
#include "support/sweep_oracle.hpp"

namespace kvbound::reference::session_oracle_test {
namespace {

using namespace test;
using oracle::Bounded;
using oracle::Real;
using oracle::Row;
using oracle::Rows;

[[maybe_unused]] const testing::Environment* const kOneThread =
    testing::AddGlobalTestEnvironment(new test::OneThread);

// A prompt's scores by their definitions.
struct Expected {
  explicit Expected(const LayerView& layer)
      : window(window_weights(layer)),
        mean(oracle::window_attention(layer, kHost.window)),
        pooled(oracle::max_pool(candidates_of(mean), kHost.pool)),
        score(oracle::group_mean(pooled, layer.shape.group_size())) {
    for (const Norm norm : {Norm::l1, Norm::l2}) {
      for (int64_t h = 0; h < layer.shape.query_heads; ++h) {
        norms[norm == Norm::l2].push_back(oracle::projected_value_norms(
            layer.values.slice(layer.shape.kv_head_of(h)), layer.head_projection(h), norm));
      }
    }
  }

  static std::vector<Rows> window_weights(const LayerView& layer) {
    std::vector<Rows> result;
    for (int64_t h = 0; h < layer.shape.query_heads; ++h) {
      const MatrixView queries = layer.queries.slice(h).middle_rows(kRecorded - kHost.window, kHost.window);
      const MatrixView keys = layer.keys.slice(layer.shape.kv_head_of(h));
      result.push_back(
          oracle::causal_softmax(oracle::logits(queries, keys, layer.scale), kTokens - kHost.window));
    }
    return result;
  }
  static Rows candidates_of(Rows rows) {
    for (Row& row : rows) row.resize(kTokens - kHost.window);
    return rows;
  }
  static Rows group(const Rows& rows, int64_t g, int64_t group_size) {
    const auto first = rows.begin() + g * group_size;
    return {first, first + group_size};
  }
  const Rows& norms_in(Norm norm) const { return norms[norm == Norm::l2]; }

  // sum_h theta_h of KV head g's kept set, from the window's mean attention.
  Bounded total_bound(const Positions& kept, int64_t g, int64_t group_size, Norm norm) const {
    Row bounds;
    for (int64_t h = g * group_size; h < (g + 1) * group_size; ++h) {
      const auto head = static_cast<size_t>(h);
      bounds.push_back(oracle::perturbation_bound(mean[head], norms_in(norm)[head], kept));
    }
    return sum(bounds);
  }

  std::vector<Rows> window;  // [query_heads][window][n]
  Rows mean, pooled, score;
  Rows norms[2];
};

// The k best candidates by descending score, ties by ascending position: by a full stable sort.
Positions best(VectorView scores, Positions candidates, int64_t k) {
  std::ranges::stable_sort(candidates, std::ranges::greater(), [&](int64_t i) { return scores[i]; });
  candidates.resize(k);
  return candidates;
}

Positions with_window(Positions selected) {
  std::ranges::sort(selected);
  for (const int64_t i : range(kTokens - kHost.window, kTokens)) selected.push_back(i);
  return selected;
}

// The size of the smallest stage one whose mass, with the window's, exceeds 1/2 for every window
// query and head of the group.
int64_t adaptive_count(const Expected& expected, int64_t g, int64_t group_size, const Positions& ranked) {
  int64_t count = 0;
  for (int64_t h = g * group_size; h < (g + 1) * group_size; ++h) {
    for (const Row& row : expected.window[h]) {
      Row held = oracle::at(row, range(kTokens - kHost.window, kTokens));
      size_t needed = 0;
      while (needed < ranked.size() && sum(held).value <= Real("0.5")) {
        held.push_back(row[ranked[needed++]]);
      }
      const Bounded mass = sum(held);
      EXPECT_GT(abs(mass.value - Real("0.5")), mass.bound) << "too near to 1/2 to tell: take another seed";
      count = std::max(count, static_cast<int64_t>(needed));
    }
  }
  return count;
}

// Compares scores with the oracle, and requires that the choices follow exactly from the recorded scores.
void expect_prompt(const PromptRecord& record, const LayerView& layer, const Policy& policy,
                   const Positions& budgets, const Expected& expected) {
  const int64_t candidates = kTokens - kHost.window, group_size = layer.shape.group_size();
  EXPECT_EQ(record.score_positions, range(0, candidates));
  EXPECT_TRUE(oracle::all_within(record.score, expected.score));
  const auto* const critical = std::get_if<Critical>(&policy.selection);
  const auto* const sweep = std::get_if<ThetaSweep>(&policy.selection);
  EXPECT_EQ(record.stage_two_score.has_value(), critical != nullptr);
  EXPECT_EQ(record.projected_value_norms.has_value(), critical || sweep);
  if (critical || sweep) {
    const Norm norm = critical ? critical->norm : sweep->norm;
    EXPECT_TRUE(oracle::all_within(*record.projected_value_norms, expected.norms_in(norm)));
  }
  ASSERT_EQ(record.kept.size(), budgets.size());
  EXPECT_EQ(record.stage_one.size(), critical ? budgets.size() : 0);
  for (int64_t g = 0; g < layer.shape.kv_heads; ++g) {
    const auto head = static_cast<size_t>(g);
    const int64_t k = budgets[head] - kHost.window;
    const Positions ranked = best(record.score.row(g), range(0, candidates), k);
    const Positions& kept = record.kept[head];
    EXPECT_EQ(std::ssize(kept), budgets[head]);
    EXPECT_EQ(Positions(kept.end() - kHost.window, kept.end()), range(candidates, kTokens));
    EXPECT_TRUE(std::ranges::is_sorted(kept));
    if (std::holds_alternative<TopK>(policy.selection)) {
      EXPECT_EQ(kept, with_window(ranked));
    }
    if (!critical) continue;
    const Rows norms =
        Expected::candidates_of(Expected::group(expected.norms_in(critical->norm), g, group_size));
    EXPECT_TRUE(oracle::all_within(record.stage_two_score->row(g),
                                   oracle::stage_two_scores(Expected::group(expected.pooled, g, group_size),
                                                            norms, critical->epsilon, critical->gqa)));
    // alpha in tenths, so that floor(alpha k) is computed in integers.
    const int64_t count = critical->alpha
                              ? (critical->alpha->places == 0 ? 10 : 1) * critical->alpha->digits * k / 10
                              : adaptive_count(expected, g, group_size, ranked);
    Positions stage_one(ranked.begin(), ranked.begin() + count), selected = stage_one, others;
    std::ranges::sort(stage_one);
    EXPECT_EQ(record.stage_one[head], with_window(stage_one));
    std::ranges::set_difference(range(0, candidates), stage_one, std::back_inserter(others));
    for (const int64_t i : best(record.stage_two_score->row(g), others, k - count)) selected.push_back(i);
    EXPECT_EQ(kept, with_window(selected));
  }
}

// The outputs of a layer's steps: attention over the kept entries and every new one.
class ExpectedSteps {
 public:
  explicit ExpectedSteps(const RandomLayer& layer) : layer_(layer) {}

  void expect(Session& session, const std::vector<Positions>& kept) {
    const std::vector<Rows>& expected = of(kept);
    for (int64_t t = 0; t < kSteps; ++t) {
      const StepRecord record = session.step(layer_.step(t));
      EXPECT_TRUE(record.evicted.empty());
      EXPECT_TRUE(oracle::all_within(record.output, expected[t])) << "step " << t;
    }
  }

 private:
  const std::vector<Rows>& of(const std::vector<Positions>& kept) {
    std::vector<Rows>& steps = by_kept_[kept];
    for (auto t = std::ssize(steps); t < kSteps; ++t) {
      Rows outputs;
      for (int64_t h = 0; h < kQueryHeads; ++h) {
        const int64_t g = layer_.shape.kv_head_of(h);
        Positions cached = kept[g];
        for (int64_t i = 0; i <= t; ++i) cached.push_back(kTokens + i);
        const oracle::Attention attention =
            oracle::attention(layer_.step(t).queries.middle_rows(h, 1), rows_at(layer_.keys(g, t), cached),
                              rows_at(layer_.values(g, t), cached), layer_.view().scale);
        outputs.push_back(attention.output[0]);
      }
      steps.push_back(outputs);
    }
    return steps;
  }

  const RandomLayer& layer_;
  std::map<std::vector<Positions>, std::vector<Rows>> by_kept_;
};

TEST(SessionOracle, FollowsTheDefinitionsForEveryPolicyAndGroupSize) {
  bool adapted = false;  // whether adaptive alpha ever took some candidates, but not all
  for (const int64_t group_size : kGroupSizes) {
    for (const double sharpness : {1, 4}) {
      RandomLayer layer = random_layer(group_size, static_cast<uint64_t>(group_size));
      for (double& entry : layer.all_queries.numbers()) entry *= sharpness;
      const Expected expected(layer.view());
      ExpectedSteps steps(layer);
      const Positions budgets = different_budgets(layer.shape.kv_heads);
      for (size_t p = 0; const Policy& policy : all_policies()) {
        SCOPED_TRACE("group size " + std::to_string(group_size) + ", sharpness " + std::to_string(sharpness) +
                     ", policy " + std::to_string(p++));
        const auto session = make_session();
        const PromptRecord record = session->compress(layer.view(), policy, budgets);
        expect_prompt(record, layer.view(), policy, budgets, expected);
        steps.expect(*session, record.kept);
        const auto* const critical = std::get_if<Critical>(&policy.selection);
        for (size_t g = 0; critical && !critical->alpha && g < budgets.size(); ++g) {
          const auto stage_one = std::ssize(record.stage_one[g]);
          adapted = adapted || (kHost.window < stage_one && stage_one < budgets[g]);
        }
      }
    }
  }
  EXPECT_TRUE(adapted);
}

// Selections are compared by computed bounds, so the guarantee holds up to the error
// bounds of two evaluations.
TEST(SessionOracle, SweepsToTheLeastBoundOfTheSweepAndTopKAndCritical) {
  int64_t better_than_top_k = 0, better_than_critical = 0;
  for (const int64_t group_size : kGroupSizes) {
    const RandomLayer layer = random_layer(group_size, 100 + static_cast<uint64_t>(group_size));
    const Expected expected(layer.view());
    std::map<std::tuple<size_t, Norm, Positions>, Bounded> bounds;
    const Positions budgets = different_budgets(layer.shape.kv_heads);
    const auto kept = [&](const Policy& policy) {
      return make_session()->compress(layer.view(), policy, budgets).kept;
    };
    const auto top_k = kept(kTopK);
    const auto critical_policies = two_stage_policies<Critical>();
    const auto sweep_policies = two_stage_policies<ThetaSweep>();
    for (size_t p = 0; p < critical_policies.size(); ++p) {
      const auto critical = kept(critical_policies[p]), sweep = kept(sweep_policies[p]);
      const Norm norm = std::get<ThetaSweep>(sweep_policies[p].selection).norm;
      for (size_t g = 0; g < sweep.size(); ++g) {
        const auto head = static_cast<int64_t>(g);
        const auto bound = [&](const Positions& set) {
          const auto [entry, is_new] = bounds.try_emplace({g, norm, set});
          if (is_new) entry->second = expected.total_bound(set, head, group_size, norm);
          return entry->second;
        };
        const auto below = [](const Bounded& a, const Bounded& b) {
          return a.value + a.bound < b.value - b.bound;
        };
        auto choices = oracle::swept_selections(Expected::group(expected.mean, head, group_size),
                                                Expected::group(expected.norms_in(norm), head, group_size),
                                                kTokens - kHost.window, budgets[g] - kHost.window);
        for (Positions& choice : choices) choice = with_window(choice);
        choices.insert(choices.end(), {top_k[g], critical[g]});
        EXPECT_TRUE(std::ranges::count(choices, sweep[g])) << p;
        for (const Positions& choice : choices) EXPECT_FALSE(below(bound(choice), bound(sweep[g]))) << p;
        better_than_top_k += below(bound(sweep[g]), bound(top_k[g]));
        better_than_critical += below(bound(sweep[g]), bound(critical[g]));
      }
    }
  }
  EXPECT_GT(better_than_top_k, 0);
  EXPECT_GT(better_than_critical, 0);
}

// L as the difference of two of the session's own outputs, against the form without cancellation.
TEST(SessionOracle, PerturbsItsOutputsByWhatThePerturbationSays) {
  const RandomLayer layer = random_layer(2, 7);
  const LayerView view = layer.view();
  const auto session = make_session();
  const auto kept = session->compress(view, kTopK, different_budgets(2)).kept;
  const Matrix output = session->step(layer.step(0)).output;
  for (int64_t h = 0; h < kQueryHeads; ++h) {
    const int64_t g = view.shape.kv_head_of(h);
    const MatrixView keys = layer.keys(g, 0), values = layer.values(g, 0),
                     projection = view.head_projection(h);
    const MatrixView query = layer.step(0).queries.middle_rows(h, 1);
    Positions cached = kept[g];
    cached.push_back(kTokens);

    const oracle::Attention full = oracle::attention(query, keys, values, view.scale);
    const oracle::Attention compressed =
        oracle::attention(query, rows_at(keys, cached), rows_at(values, cached), view.scale);
    Real distance = 0, bound = 0;
    for (int64_t j = 0; j < projection.cols; ++j) {
      Real change = 0;
      for (int64_t c = 0; c < values.cols; ++c) {
        const int64_t index = c;
        change += (full.output[0][index].value - Real(output(h, c))) * projection(c, j);
        bound += compressed.output[0][index].bound * abs(Real(projection(c, j)));
      }
      distance += abs(change);
    }
    const Matrix logits = attention_logits(query, keys, view.scale);
    const Matrix weights = attention_weights(query, keys, view.scale, kTokens);
    const EvictionWeights eviction = eviction_weights(logits.row(0), weights.row(0), cached);
    const double perturbation = output_perturbation(eviction, values, projection);
    const Row exact = oracle::eviction_weights(oracle::logits(query, keys, view.scale)[0], cached);
    const Bounded own = oracle::output_perturbation(exact, values, projection);
    EXPECT_TRUE(oracle::within(perturbation, own));
    EXPECT_TRUE(oracle::within(perturbation, {distance, own.bound + bound}));
    EXPECT_LE(perturbation,
              perturbation_bound(eviction, projected_value_norms(values, projection, Norm::l1)) +
                  perturbation_rounding(eviction, rounding_scale(values, projection)));
  }
}

}  // namespace
}  // namespace kvbound::reference::session_oracle_test
