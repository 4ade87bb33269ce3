// Bounds for windows of queries and groups of query heads, which justify CriticalKV's Algorithm 2, and the
// adaptive stage one, which meets its Assumption 3.4.
#include <algorithm>
#include <cmath>
#include <optional>

#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>

#include "catalogue.hpp"
#include "evaluation.hpp"
#include "papers.hpp"
#include "selection.hpp"

namespace kvbound::proofs {
namespace {

using exact::Extremes;
using exact::Indices;
using exact::Real;
using exact::Reals;
using Positions = std::vector<int64_t>;

// T_j = sum over queries and heads of A_j ||V_j W_h||, and for each row stage one's mass sigma
// and (1 - sigma) / sigma.
struct Window {
  Window(const Instance& instance, const Exact& exact, Indices stage_one)
      : terms(static_cast<size_t>(instance.tokens())) {
    for (size_t r = 0; r < exact.attention.size(); ++r) {
      const Reals row = exact::product(exact.attention[r], exact.norms_of_row(r));
      for (size_t j = 0; j < terms.size(); ++j) terms[j] += row[j];
      sigmas.push_back(oracle::sum(oracle::at(exact.attention[r], stage_one)));
      factors.push_back(oracle::sum(oracle::outside(exact.attention[r], stage_one)) / sigmas.back());
    }
  }

  // sum_j T_j - (2 - 1/sigma) sum_{kept} T_j, as sum_{evicted} T + f sum_{kept} T
  // with f = (1 - sigma) / sigma
  Real bound(Indices kept, const Real& factor) const {
    return oracle::sum(oracle::outside(terms, kept)) + factor * oracle::sum(oracle::at(terms, kept));
  }
  // The factors (1 - sigma) / sigma of the smallest and of the largest sigma.
  Real largest_factor() const { return *std::ranges::max_element(factors); }
  Real smallest_factor() const { return *std::ranges::min_element(factors); }
  Real smallest_sigma() const { return *std::ranges::min_element(sigmas); }

  // The bound's extremes over all stage twos of `count` entries.
  Extremes extremes(Indices stage_one, int64_t count) const {
    return exact::over_all_choices(std::ssize(terms), stage_one, count,
                                   [&](Indices kept) { return bound(kept, largest_factor()); });
  }

  Reals terms;    // T [tokens]
  Reals sigmas;   // [query_heads * queries]
  Reals factors;  // [query_heads * queries]
};

// sum over queries and heads of L
Real total_perturbation(const Instance& instance, const Exact& exact) {
  Real sum = 0;
  for (size_t r = 0; r < exact.attention.size(); ++r) {
    sum +=
        exact::norm(exact::stable_output_change(exact.attention[r], exact.projected_of_row(r), instance.kept),
                    exact::Norm::l1);
  }
  return sum;
}

// The mean attention over each head's queries: the input of the reference's stage two.
Matrix window_means(const Instance& instance, const Matrix& attention) {
  Matrix means(instance.query_heads, instance.tokens());
  for (int64_t r = 0; r < attention.rows(); ++r) {
    for (int64_t j = 0; j < attention.cols(); ++j) means(r / instance.queries(), j) += attention(r, j);
  }
  for (int64_t h = 0; h < means.rows(); ++h) {
    for (double& mean : means.row(h)) mean /= static_cast<double>(instance.queries());
  }
  return means;
}

// Checks that the reference's stage-two score is T divided by the number of queries and
// heads, and its selection.
void hold_window(const Instance& instance, const Window& window, const Positions& exact_choice,
                 Outcome& outcome) {
  const Computed computed(instance);
  const Bounds bounds(instance);
  const auto scores = reference::stage_two_scores(window_means(instance, computed.attention), computed.norms,
                                                  0, GqaProduct::mean_of_products);
  const auto exact_scores = oracle::stage_two_scores(oracle::group_mean(bounds.attention, instance.queries()),
                                                     bounds.norms, 0, GqaProduct::mean_of_products);
  const Real rows = instance.logits.rows();
  for (size_t j = 0; j < scores.size(); ++j) {
    outcome.equal("stage-two score times queries times heads is T", rows * exact_scores[j].value,
                  window.terms[j], window.terms[j]);
    outcome.reference_within("stage-two score", scores[j], exact_scores[j]);
  }
  hold_selection(instance, exact_scores, exact_choice, computed_choice(instance, scores), outcome);
}

Outcome window_bound(const Instance& instance) {
  Outcome outcome;
  const Exact exact(instance);
  const Window window(instance, exact, instance.stage_one);
  const auto bound = [&](Indices kept) { return window.bound(kept, window.largest_factor()); };
  const Real perturbation = total_perturbation(instance, exact);
  outcome.at_most("sum L <= sum T - (2 - 1/sigma_min) sum_{kept} T", perturbation, bound(instance.kept),
                  bound(instance.kept));
  outcome.ratio(perturbation, bound(instance.kept));
  const Positions choice = exact::with_best(window.terms, instance.stage_one, instance.stage_two_count());
  const Extremes extremes = window.extremes(instance.stage_one, instance.stage_two_count());
  if (2 * window.smallest_sigma() >= 1) {
    outcome.equal("sigma_min >= 1/2: top-k by T minimises the bound", bound(choice), extremes.smallest,
                  extremes.largest);
  }
  if (2 * window.smallest_sigma() <= 1) {
    outcome.equal("sigma_min <= 1/2: top-k by T maximises the bound", bound(choice), extremes.largest,
                  extremes.largest);
  }
  hold_window(instance, window, choice, outcome);
  return outcome;
}

Outcome largest_stage_one(const Instance& instance) {
  Outcome outcome;
  const Exact exact(instance);
  const Window window(instance, exact, instance.stage_one);
  const Real bound = window.bound(instance.kept, window.smallest_factor());
  outcome.at_most("sum L <= sum T - (2 - 1/sigma_max) sum_{kept} T", total_perturbation(instance, exact),
                  bound, bound);
  return outcome;
}

Outcome product_of_means(const Instance& instance) {
  Outcome outcome;
  const Exact exact(instance);
  const Window window(instance, exact, instance.stage_one);
  if (2 * window.smallest_sigma() <= 1) return outcome;
  Reals attention(instance.tokens()), norms(attention.size());
  for (size_t r = 0; r < exact.attention.size(); ++r) {
    const Reals row_norms = exact.norms_of_row(r);
    for (size_t j = 0; j < attention.size(); ++j) {
      attention[j] += exact.attention[r][j];
      norms[j] += row_norms[j];
    }
  }
  const Positions choice =
      exact::with_best(exact::product(attention, norms), instance.stage_one, instance.stage_two_count());
  const Extremes extremes = window.extremes(instance.stage_one, instance.stage_two_count());
  outcome.at_most("top-k by mean A times mean ||V|| minimises the bound",
                  window.bound(choice, window.largest_factor()), extremes.smallest, extremes.largest);
  return outcome;
}

// SnapKV's max-pool with a width of 3.
Reals pooled(const Reals& attention) {
  Reals result;
  for (size_t j = 0; j < attention.size(); ++j) {
    Real largest = attention[j];
    if (j > 0) largest = std::max(largest, attention[j - 1]);
    if (j + 1 < attention.size()) largest = std::max(largest, attention[j + 1]);
    result.push_back(largest);
  }
  return result;
}

Outcome pooled_stage_one(const Instance& instance) {
  Outcome outcome;
  const Exact exact(instance);
  const Window window(instance, exact, instance.stage_one);
  if (std::ssize(instance.kept) == instance.tokens()) return outcome;  // nothing is evicted
  Real sigma = oracle::sum(oracle::at(pooled(exact.attention.front()), instance.stage_one));
  for (const Reals& row : exact.attention)
    sigma = std::min(sigma, oracle::sum(oracle::at(pooled(row), instance.stage_one)));
  const Real bound = window.bound(instance.kept, 1 / sigma - 1);
  outcome.at_most("sum L <= sum T - (2 - 1/sigma_min) sum_{kept} T, sigma of max-pooled scores",
                  total_perturbation(instance, exact), bound, oracle::sum(window.terms));
  return outcome;
}

// ---- adaptive alpha

// The candidates outside stage one, best first; stage one's entries count as always kept.
struct AdaptiveStageOne {
  explicit AdaptiveStageOne(const Instance& instance_) : instance(instance_), computed(instance_) {
    Matrix total(1, instance.tokens());
    for (int64_t r = 0; r < computed.attention.rows(); ++r) {
      for (int64_t j = 0; j < total.cols(); ++j) total(0, j) += computed.attention(r, j);
    }
    for (const int64_t i : instance.stage_one) total(0, i) = -1;
    ranked = reference::rank_top(total.row(0), instance.stage_two_count());
  }

  // Stage one's entries and the first `count` candidates.
  Positions entries(int64_t count) const {
    Positions result = instance.stage_one;
    result.insert(result.end(), ranked.begin(), ranked.begin() + count);
    std::ranges::sort(result);
    return result;
  }
  // Whether these entries hold more than half of every row's attention.
  bool suffice(const std::vector<Reals>& attention, int64_t count) const {
    const Positions chosen = entries(count);
    return std::ranges::all_of(
        attention, [&](const Reals& row) { return 2 * oracle::sum(oracle::at(row, chosen)) > 1; });
  }
  int64_t smallest(const std::vector<Reals>& attention) const {
    const int64_t k = instance.stage_two_count();
    for (int64_t count = 0; count < k; ++count) {
      if (suffice(attention, count)) return count;
    }
    return k;
  }
  // The reference's input weights, if doubles add them without rounding
  // in any order: if all are multiples of 2^-50, with a total of about 1.
  std::optional<std::vector<Reals>> weights_of_exact_sums() const {
    std::vector<Reals> rows;
    for (int64_t r = 0; r < computed.attention.rows(); ++r) {
      const VectorView row = computed.attention.row(r);
      for (const double weight : row) {
        if (std::ldexp(weight, 50) != std::trunc(std::ldexp(weight, 50))) return std::nullopt;
      }
      rows.emplace_back(row.begin(), row.end());
    }
    return rows;
  }
  // Whether `count` candidates are sufficient, or insufficient, for every rounding within the bounds.
  // Otherwise rounding may decide, and the reference is not checked.
  bool surely(const oracle::Rows& attention, int64_t count, bool sufficient) const {
    const Positions chosen = entries(count);
    const auto surely_over = [&](const oracle::Row& row) {
      const oracle::Bounded mass = oracle::sum(oracle::at(row, chosen));
      return 2 * (mass.value - mass.bound) > 1;
    };
    const auto surely_under = [&](const oracle::Row& row) {
      const oracle::Bounded mass = oracle::sum(oracle::at(row, chosen));
      return 2 * (mass.value + mass.bound) <= 1;
    };
    return sufficient ? std::ranges::all_of(attention, surely_over)
                      : std::ranges::any_of(attention, surely_under);
  }

  const Instance& instance;
  Computed computed;
  Positions ranked;
};

Outcome adaptive_alpha(const Instance& instance) {
  Outcome outcome;
  const AdaptiveStageOne stage_one(instance);
  const Exact exact(instance);
  const int64_t k = instance.stage_two_count(), count = stage_one.smallest(exact.attention);
  for (int64_t s = 0; s <= k && stage_one.suffice(exact.attention, k); ++s) {
    outcome.require("prefixes suffice from the smallest that does on, all of them",
                    stage_one.suffice(exact.attention, s) == (s >= count));
  }
  if (stage_one.suffice(exact.attention, count)) {
    const Positions one = stage_one.entries(count);
    const Window window(instance, exact, one);
    const Extremes extremes = window.extremes(one, k - count);
    outcome.equal("then top-k by T minimises the window's bound",
                  window.bound(exact::with_best(window.terms, one, k - count), window.largest_factor()),
                  extremes.smallest, extremes.largest);
  }
  const int64_t computed =
      reference::adaptive_stage_one(stage_one.computed.attention, instance.stage_one, stage_one.ranked);
  if (const auto weights = stage_one.weights_of_exact_sums())
    outcome.reference_holds("it is the smallest where sums are exact",
                            computed == stage_one.smallest(*weights));
  const Bounds bounds(instance);
  outcome.reference_holds("its stage one suffices, or is all k",
                          computed == k || !stage_one.surely(bounds.attention, computed, false));
  outcome.reference_holds("one entry less would not suffice",
                          computed == 0 || !stage_one.surely(bounds.attention, computed - 1, true));
  return outcome;
}

Outcome half_of_the_budget(const Instance& instance) {
  Outcome outcome;
  const AdaptiveStageOne stage_one(instance);
  const Exact exact(instance);
  const int64_t k = instance.stage_two_count();
  outcome.require("alpha = 1/2 leaves a query with sigma <= 1/2 where an adaptive stage one does not",
                  stage_one.suffice(exact.attention, k / 2) || !stage_one.suffice(exact.attention, k));
  return outcome;
}

}  // namespace

std::vector<Theorem> window_theorems() {
  const Sizes window{
      .tokens = 10, .head_dim = 3, .model_dim = 3, .query_heads = 3, .queries = 2, .wide_group = kWideGroup};
  return {
      {.id = "ckv-window",
       .title = "a window of queries, a group of query heads",
       .statement = "sum_{i,h} L <= sum_j T_j - (2 - 1/sigma_min) sum_{kept} T_j, T_j = sum_{i,h} A_j ||V_j "
                    "W_h||, which top-k by T minimises if sigma_min >= 1/2",
       .hypotheses =
           "sigma_min > 0, the smallest over queries and heads; A are attention weights, not pooled",
       .source = "ours; it licenses " + kCriticalKv + ", Algorithm 2",
       .ratio = "sum of L / bound",
       .sizes = window,
       .property = {"ckv-window", "the window's bound dominates, and sigma_min decides", window_bound},
       .weakened = {{"ckv-window:largest-stage-one", "the same with the largest sigma", largest_stage_one},
                    {"ckv-window:product-of-means",
                     "stage two by mean A times mean ||V|| minimises the bound where sigma_min > 1/2",
                     product_of_means},
                    {"ckv-window:pooled", "the same with sigma from max-pooled scores", pooled_stage_one}}},
      {.id = "ckv-adaptive-alpha",
       .title = "the smallest stage one that meets Assumption 3.4",
       .statement =
           "the adaptive stage one is the shortest prefix of the ranking with sigma > 1/2 for every "
           "query and head, k if there is none; with it top-k by T minimises the window's bound whenever "
           "a prefix can",
       .hypotheses = "candidates are ranked beforehand; what is always kept counts",
       .source = "ours; " + kCriticalKv + " leaves the choice of alpha open",
       .ratio = "",
       .sizes = window,
       .property = {"ckv-adaptive-alpha", "shortest, sufficient whenever any is", adaptive_alpha},
       .weakened = {{"ckv-adaptive-alpha:half",
                     "alpha = 1/2 meets Assumption 3.4 whenever the adaptive stage one does",
                     half_of_the_budget}}},
  };
}

}  // namespace kvbound::proofs
