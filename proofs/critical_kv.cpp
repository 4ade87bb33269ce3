// CriticalKV's two stages: Theorem 3.5, appendix E, what epsilon costs, windows of queries and groups of heads,
// and the stage one that meets Assumption 3.4.
#include <kvbound/reference/critical_kv.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include <kvbound/reference/selection.hpp>

#include "evaluation.hpp"
#include "theorem.hpp"

namespace kvbound::proofs {
namespace {

using exact::Extremes;
using exact::Indices;
using exact::Real;
using exact::Reals;
using Positions = std::vector<int64_t>;

constexpr size_t kOnly = 0;  // the only row, the only head

// What the theorems on stage two speak of, for one query.
struct Stages {
  explicit Stages(const Instance& instance_)
      : instance(instance_),
        exact(instance_),
        attention(exact.attention[kOnly]),
        norms(exact.norms_of_row(kOnly)),
        sigma(exact::total(attention, instance_.stage_one)) {}

  Real theta(Indices kept) const { return exact::stable_perturbation_bound(attention, norms, kept); }
  Real stage_two_bound(Indices kept) const {
    return exact::stable_stage_two_bound(attention, norms, instance.stage_one, kept);
  }
  Real attention_only_bound(Indices kept) const {
    return exact::stable_attention_only_bound(attention, norms, instance.stage_one, kept);
  }
  // Stage one and the best others by some score.
  Positions chosen_by(const Reals& scores) const {
    return exact::with_best(scores, instance.stage_one, instance.stage_two_count());
  }
  Extremes extremes(const std::function<Real(Indices)>& value) const {
    return exact::over_all_choices(instance.tokens(), instance.stage_one, instance.stage_two_count(), value);
  }
  // (A + epsilon) ||V||
  Reals scores(const Real& epsilon) const {
    Reals result;
    for (size_t i = 0; i < norms.size(); ++i) result.push_back((attention[i] + epsilon) * norms[i]);
    return result;
  }

  const Instance& instance;
  Exact exact;
  const Reals& attention;
  Reals norms;
  Real sigma;
};

// Whether two tokens are the same to every query, so that even the reference's last bit agrees.
bool twins(const Instance& instance, int64_t a, int64_t b) {
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    if (instance.logits(r, a) != instance.logits(r, b)) return false;
  }
  return std::ranges::equal(instance.values.row(a), instance.values.row(b));
}

Positions difference(const Positions& all, const Positions& some) {
  Positions rest;
  std::ranges::set_difference(all, some, std::back_inserter(rest));
  return rest;
}

// The reference may choose otherwise only between scores that its error bounds cannot tell apart, and never
// between tokens that are the same: there the smaller index wins.
void hold_selection(const Instance& instance, const oracle::Row& scores, const Positions& exact_choice,
                    const Positions& choice, Outcome& outcome) {
  outcome.reference_holds("selects as many entries", exact_choice.size() == choice.size());
  outcome.reference_holds("selects each of them once, ascending",
                          std::ranges::adjacent_find(choice, std::greater_equal<>()) == choice.end());
  for (const int64_t missed : difference(exact_choice, choice)) {
    for (const int64_t taken : difference(choice, exact_choice)) {
      const oracle::Bounded &better = scores[static_cast<size_t>(missed)],
                            &worse = scores[static_cast<size_t>(taken)];
      const std::string pair = std::to_string(taken) + " rather than " + std::to_string(missed);
      outcome.reference_holds("cannot tell their scores apart where it selects " + pair,
                              better.value - worse.value <= better.bound + worse.bound);
      outcome.reference_holds("the smaller index wins between equal tokens where it selects " + pair,
                              !twins(instance, taken, missed) || taken < missed);
    }
  }
}

// Stage two of the reference for these mean scores per query head: stage one is given to it as certain.
Positions computed_choice(const Instance& instance, const std::vector<double>& stage_two_scores) {
  std::vector<double> certain(static_cast<size_t>(instance.tokens()), 0.0);
  for (const int64_t i : instance.stage_one) certain[static_cast<size_t>(i)] = 1;
  return reference::select_critical(certain, stage_two_scores, static_cast<int64_t>(instance.kept.size()),
                                    static_cast<int64_t>(instance.stage_one.size()))
      .selected;
}

void hold_stage_two(const Instance& instance, double epsilon, const Positions& exact_choice,
                    Outcome& outcome) {
  const Computed computed(instance);
  const Bounds bounds(instance);
  const auto scores =
      reference::stage_two_scores(computed.attention, computed.norms, epsilon, GqaProduct::mean_of_products);
  const auto exact_scores =
      oracle::stage_two_scores(bounds.attention, bounds.norms, epsilon, GqaProduct::mean_of_products);
  for (size_t i = 0; i < scores.size(); ++i)
    outcome.reference_within("stage-two score", scores[i], exact_scores[i]);
  hold_selection(instance, exact_scores, exact_choice, computed_choice(instance, scores), outcome);
}

// ---- CKV-3.5

Outcome stage_two(const Instance& instance) {
  Outcome outcome;
  const Stages stages(instance);
  const Real bound = stages.stage_two_bound(instance.kept);
  outcome.at_most("theta <= theta^", stages.theta(instance.kept), bound, bound);
  outcome.ratio(stages.theta(instance.kept), bound);
  const Positions choice = stages.chosen_by(stages.scores(0));
  const Extremes extremes = stages.extremes([&](Indices kept) { return stages.stage_two_bound(kept); });
  if (2 * stages.sigma >= 1) {
    outcome.equal("sigma >= 1/2: top-k by A ||V|| minimises theta^", stages.stage_two_bound(choice),
                  extremes.smallest, extremes.largest);
  }
  if (2 * stages.sigma <= 1) {
    outcome.equal("sigma <= 1/2: top-k by A ||V|| maximises theta^", stages.stage_two_bound(choice),
                  extremes.largest, extremes.largest);
  }
  hold_stage_two(instance, 0, choice, outcome);
  return outcome;
}

Outcome minimal_whatever_sigma(const Instance& instance) {
  Outcome outcome;
  const Stages stages(instance);
  const Extremes extremes = stages.extremes([&](Indices kept) { return stages.stage_two_bound(kept); });
  outcome.at_most("top-k by A ||V|| minimises theta^",
                  stages.stage_two_bound(stages.chosen_by(stages.scores(0))), extremes.smallest,
                  extremes.largest);
  return outcome;
}

Outcome strictly_below(const Instance& instance) {
  Outcome outcome;
  const Stages stages(instance);
  const Real bound = stages.stage_two_bound(instance.kept);
  outcome.below("theta < theta^", stages.theta(instance.kept), bound, bound);
  return outcome;
}

// ---- epsilon

Outcome epsilon_loss(const Instance& instance) {
  Outcome outcome;
  const Stages stages(instance);
  const Positions choice = stages.chosen_by(stages.scores(instance.epsilon));
  const Extremes extremes = stages.extremes([&](Indices kept) { return stages.stage_two_bound(kept); });
  const Real reached = stages.stage_two_bound(choice);
  const Real stage_two_norms = exact::total(stages.norms, difference(choice, instance.stage_one));
  const Real allowed = abs(2 - 1 / stages.sigma) * instance.epsilon * stage_two_norms;
  const Real loss = 2 * stages.sigma >= 1 ? reached - extremes.smallest : extremes.largest - reached;
  outcome.at_most("loss of theta^ <= |2 - 1/sigma| epsilon sum_{stage two} ||V||", loss, allowed,
                  extremes.largest);
  outcome.ratio(loss, allowed, extremes.largest);
  hold_stage_two(instance, instance.epsilon, choice, outcome);
  return outcome;
}

Outcome exact_minimum(const Instance& instance) {
  Outcome outcome;
  const Stages stages(instance);
  if (2 * stages.sigma <= 1) return outcome;
  const Positions choice = stages.chosen_by(stages.scores(instance.epsilon));
  const Extremes extremes = stages.extremes([&](Indices kept) { return stages.stage_two_bound(kept); });
  outcome.at_most("top-k by (A + epsilon) ||V|| minimises theta^", stages.stage_two_bound(choice),
                  extremes.smallest, extremes.largest);
  return outcome;
}

// ---- CKV-E.1

Outcome attention_only(const Instance& instance) {
  Outcome outcome;
  const Stages stages(instance);
  const Real bound = stages.stage_two_bound(instance.kept);
  const Real relaxed = stages.attention_only_bound(instance.kept);
  const Positions choice = stages.chosen_by(stages.attention);
  const Extremes extremes = stages.extremes([&](Indices kept) { return stages.attention_only_bound(kept); });
  if (2 * stages.sigma >= 1) {
    outcome.at_most("sigma >= 1/2: theta^ <= theta^_relax", bound, relaxed, relaxed);
    outcome.ratio(bound, relaxed);
    outcome.equal("sigma >= 1/2: top-k by A minimises theta^_relax", stages.attention_only_bound(choice),
                  extremes.smallest, extremes.largest);
  }
  if (2 * stages.sigma <= 1) {
    outcome.at_most("sigma <= 1/2: theta^ >= theta^_relax", relaxed, bound, bound);
    outcome.equal("sigma <= 1/2: top-k by A maximises theta^_relax", stages.attention_only_bound(choice),
                  extremes.largest, extremes.largest);
  }
  const Computed computed(instance);
  const Bounds bounds(instance);
  const auto k = instance.stage_two_count() + static_cast<int64_t>(instance.stage_one.size());
  for (int64_t i = 0; i < instance.tokens(); ++i) {
    const auto index = static_cast<size_t>(i);
    outcome.reference_within("attention weight", computed.attention(0, i), bounds.attention[kOnly][index]);
  }
  hold_selection(instance, bounds.attention[kOnly], exact::with_best(stages.attention, {}, k),
                 reference::select_top(computed.attention.row(0), k), outcome);
  return outcome;
}

Outcome relaxed_whatever_sigma(const Instance& instance) {
  Outcome outcome;
  const Stages stages(instance);
  const Real relaxed = stages.attention_only_bound(instance.kept);
  outcome.at_most("theta^ <= theta^_relax", stages.stage_two_bound(instance.kept), relaxed, relaxed);
  return outcome;
}

// ---- windows of queries and groups of query heads

// T_j = sum over queries and heads of A_j ||V_j W_h||, and what some stage one holds of each row's attention.
struct Window {
  Window(const Instance& instance, const Exact& exact, Indices stage_one)
      : terms(static_cast<size_t>(instance.tokens())) {
    for (size_t r = 0; r < exact.attention.size(); ++r) {
      const Reals row = exact::product(exact.attention[r], exact.norms_of_row(r));
      for (size_t j = 0; j < terms.size(); ++j) terms[j] += row[j];
      sigmas.push_back(exact::total(exact.attention[r], stage_one));
      factors.push_back(exact::total_outside(exact.attention[r], stage_one) / sigmas.back());
    }
  }

  // sum_j T_j - (2 - 1/sigma) sum_{kept} T_j, as sum_{evicted} T + f sum_{kept} T with f = (1 - sigma) / sigma
  Real bound(Indices kept, const Real& factor) const {
    return exact::total_outside(terms, kept) + factor * exact::total(terms, kept);
  }
  // Those of the smallest and of the largest sigma.
  Real largest_factor() const { return *std::ranges::max_element(factors); }
  Real smallest_factor() const { return *std::ranges::min_element(factors); }
  Real smallest_sigma() const { return *std::ranges::min_element(sigmas); }

  // The bound's extremes over all stage twos of `count` entries.
  Extremes extremes(Indices stage_one, int64_t count) const {
    return exact::over_all_choices(static_cast<int64_t>(terms.size()), stage_one, count,
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

// mean over a head's queries, per head: what the reference's stage two is given
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

oracle::Rows window_means(const Instance& instance, const oracle::Rows& attention) {
  oracle::Rows means;
  const auto queries = static_cast<size_t>(instance.queries());
  for (size_t first = 0; first < attention.size(); first += queries) {
    oracle::Row& mean = means.emplace_back();
    for (size_t j = 0; j < attention[first].size(); ++j) {
      oracle::Row paid;
      for (size_t i = 0; i < queries; ++i) paid.push_back(attention[first + i][j]);
      mean.push_back(oracle::sum(paid) / oracle::Bounded(static_cast<double>(queries)));
    }
  }
  return means;
}

// The reference's stage-two score is T over the number of queries and heads.
void hold_window(const Instance& instance, const Window& window, const Positions& exact_choice,
                 Outcome& outcome) {
  const Computed computed(instance);
  const Bounds bounds(instance);
  const auto scores = reference::stage_two_scores(window_means(instance, computed.attention), computed.norms,
                                                  0, GqaProduct::mean_of_products);
  const auto exact_scores = oracle::stage_two_scores(window_means(instance, bounds.attention), bounds.norms,
                                                     0, GqaProduct::mean_of_products);
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
  Reals attention(static_cast<size_t>(instance.tokens())), norms(attention.size());
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

// Each entry's largest neighbour, as SnapKV pools with a width of 3.
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
  Real sigma = exact::total(pooled(exact.attention.front()), instance.stage_one);
  for (const Reals& row : exact.attention)
    sigma = std::min(sigma, exact::total(pooled(row), instance.stage_one));
  const Real bound = window.bound(instance.kept, 1 / sigma - 1);
  outcome.at_most("sum L <= sum T - (2 - 1/sigma_min) sum_{kept} T, sigma of max-pooled scores",
                  total_perturbation(instance, exact), bound, exact::total(window.terms));
  return outcome;
}

// ---- adaptive alpha

// Candidates best first, after stage one's entries, which count as always kept.
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
  // Whether they hold more than half of every row's attention.
  bool suffice(const std::vector<Reals>& attention, int64_t count) const {
    const Positions chosen = entries(count);
    return std::ranges::all_of(attention,
                               [&](const Reals& row) { return 2 * exact::total(row, chosen) > 1; });
  }
  int64_t smallest(const std::vector<Reals>& attention) const {
    const int64_t k = instance.stage_two_count();
    for (int64_t count = 0; count < k; ++count) {
      if (suffice(attention, count)) return count;
    }
    return k;
  }
  // The weights as the reference is given them, if doubles add them up without rounding, in any order: multiples
  // of 2^-50 of total about 1.
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
  // Elsewhere rounding may decide: nothing surer than this can be asked of the reference.
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
  outcome.require("it suffices whenever all k do",
                  stage_one.suffice(exact.attention, count) || !stage_one.suffice(exact.attention, k));
  outcome.require("one entry less does not suffice",
                  count == 0 || !stage_one.suffice(exact.attention, count - 1));
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

const std::string kSource = "CriticalKV (arXiv:2502.03805)";

}  // namespace

std::vector<Theorem> critical_kv_theorems() {
  const Sizes one_query{.tokens = 12};
  const Sizes window{.tokens = 10, .head_dim = 3, .model_dim = 3, .query_heads = 3, .queries = 2};
  return {
      {.id = "ckv-3.5",
       .title = "stage two's bound and who minimises it",
       .statement =
           "theta <= theta^ = C' - (2 - 1/sigma) S''; among all choices of as many entries, top-k by "
           "A ||V|| minimises theta^ if sigma >= 1/2 and maximises it if sigma <= 1/2",
       .hypotheses = "sigma > 0; for the minimum sigma >= 1/2 (Assumption 3.4)",
       .source = kSource + ", Theorem 3.5",
       .ratio = "theta / theta^",
       .sizes = one_query,
       .property = {"ckv-3.5", "theta <= theta^, and sigma decides what stage two does to it", stage_two},
       .weakened = {{"ckv-3.5:small-stage-one", "stage two minimises theta^ whatever sigma is",
                     minimal_whatever_sigma},
                    {"ckv-3.5:strict", "theta < theta^, strictly", strictly_below}}},
      {.id = "ckv-epsilon",
       .title = "what epsilon in stage two's score costs",
       .statement =
           "top-k by (A + epsilon) ||V|| is at most |2 - 1/sigma| epsilon sum_{stage two} ||V|| away "
           "from the extreme of theta^ that sigma asks for",
       .hypotheses = "sigma > 0, epsilon >= 0; for the minimum sigma >= 1/2",
       .source = "ours, on " + kSource + ", Algorithm 1",
       .ratio = "loss / what is allowed",
       .sizes = one_query,
       .property = {"ckv-epsilon", "the loss is within its bound", epsilon_loss},
       .weakened = {{"ckv-epsilon:exact-minimum", "stage two with epsilon > 0 minimises theta^ exactly",
                     exact_minimum}}},
      {.id = "ckv-e.1",
       .title = "the bound that attention alone minimises",
       .statement =
           "theta^ <= theta^_relax = C' - M (2 - 1/sigma) sum_{stage two} A, M = min ||V||, which top-k "
           "by A minimises; for sigma <= 1/2 both are reversed",
       .hypotheses = "sigma >= 1/2",
       .source = kSource + ", appendix E",
       .ratio = "theta^ / theta^_relax",
       .sizes = one_query,
       .property = {"ckv-e.1", "theta^ <= theta^_relax iff sigma >= 1/2, and its extremes", attention_only},
       .weakened = {{"ckv-e.1:small-stage-one", "theta^ <= theta^_relax whatever sigma is",
                     relaxed_whatever_sigma}}},
      {.id = "ckv-window",
       .title = "a window of queries, a group of query heads",
       .statement =
           "sum_{i,h} L <= sum_j T_j - (2 - 1/sigma_min) sum_{kept} T_j, T_j = sum_{i,h} A_j ||V_j W_h||, "
           "which top-k by T minimises if sigma_min >= 1/2",
       .hypotheses =
           "sigma_min > 0, the smallest over queries and heads; A are attention weights, not pooled",
       .source = "ours; it licenses " + kSource + ", Algorithm 2",
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
           "the adaptive stage one is the shortest prefix of the ranking with sigma > 1/2 for every query "
           "and head, k if there is none; with it top-k by T minimises the window's bound whenever a prefix "
           "can",
       .hypotheses = "candidates are ranked beforehand; what is always kept counts",
       .source = "ours; " + kSource + " leaves the choice of alpha open",
       .ratio = "",
       .sizes = window,
       .property = {"ckv-adaptive-alpha", "shortest, sufficient whenever any is", adaptive_alpha},
       .weakened = {{"ckv-adaptive-alpha:half",
                     "alpha = 1/2 meets Assumption 3.4 whenever the adaptive stage one does",
                     half_of_the_budget}}},
  };
}

}  // namespace kvbound::proofs
