// CriticalKV's two stages: Theorem 3.5, appendix E, and the cost of epsilon.
#include <algorithm>
#include <cmath>
#include <functional>
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

constexpr size_t kOnly = 0;  // the only row, the only head

// The quantities of the theorems on stage two, for one query.
struct Stages {
  explicit Stages(const Instance& instance_)
      : instance(instance_),
        exact(instance_),
        attention(exact.attention[kOnly]),
        norms(exact.norms_of_row(kOnly)),
        sigma(oracle::sum(oracle::at(attention, instance_.stage_one))) {}

  Real theta(Indices kept) const { return oracle::perturbation_bound(attention, norms, kept); }
  Real stage_two_bound(Indices kept) const {
    return oracle::stage_two_bound(attention, norms, instance.stage_one, kept);
  }
  Real attention_only_bound(Indices kept) const {
    return oracle::attention_only_bound(attention, norms, instance.stage_one, kept);
  }
  // The absolute terms of theta and of the bounds on it, as printed.
  Real printed_terms() const {
    const Reals terms = exact::product(attention, norms);
    return 3 * oracle::sum(terms) + oracle::sum(oracle::at(terms, instance.kept)) / sigma;
  }
  // Stage one and the other entries of largest score.
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
  outcome.at_most(
      "theta <= theta^, as printed",
      oracle::perturbation_bound_as_printed(stages.attention, stages.norms, instance.kept),
      oracle::stage_two_bound_as_printed(stages.attention, stages.norms, instance.stage_one, instance.kept),
      stages.printed_terms());
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
  if (bound == 0) return outcome;  // all terms A ||V|| are 0, and so is theta
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
  const Real stage_two_norms =
      oracle::sum(oracle::at(stages.norms, exact::difference(choice, instance.stage_one)));
  const Real factor = abs(2 - 1 / stages.sigma) * instance.epsilon, allowed = factor * stage_two_norms;
  const Real loss = 2 * stages.sigma >= 1 ? reached - extremes.smallest : extremes.largest - reached;
  // Top-k by A ||V|| reaches the extreme (ckv-3.5), so entries in both choices cancel. The rounding of
  // A + epsilon to 50 digits may decide the choice, hence the term `scores`.
  const Real exchanged = oracle::sum(oracle::at(stages.norms, choice)) -
                         oracle::sum(oracle::at(stages.norms, stages.chosen_by(stages.scores(0))));
  const Real scores = oracle::sum(stages.scores(instance.epsilon));
  outcome.at_most("loss of theta^ <= |2 - 1/sigma| epsilon (sum_{chosen} - sum_{best} ||V||)", loss,
                  factor * exchanged, extremes.largest + abs(2 - 1 / stages.sigma) * scores);
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
    outcome.at_most(
        "sigma >= 1/2: theta^ <= theta^_relax, as printed",
        oracle::stage_two_bound_as_printed(stages.attention, stages.norms, instance.stage_one, instance.kept),
        oracle::attention_only_bound_as_printed(stages.attention, stages.norms, instance.stage_one,
                                                instance.kept),
        stages.printed_terms());
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
  const auto k = instance.stage_two_count() + std::ssize(instance.stage_one);
  for (int64_t i = 0; i < instance.tokens(); ++i) {
    const int64_t index = i;
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

Outcome minimal_by_attention_whatever_sigma(const Instance& instance) {
  Outcome outcome;
  const Stages stages(instance);
  const Extremes extremes = stages.extremes([&](Indices kept) { return stages.attention_only_bound(kept); });
  outcome.at_most("top-k by A minimises theta^_relax",
                  stages.attention_only_bound(stages.chosen_by(stages.attention)), extremes.smallest,
                  extremes.largest);
  return outcome;
}

}  // namespace

std::vector<Theorem> critical_kv_theorems() {
  const Sizes one_query{.tokens = 12};
  return {
      {.id = "ckv-3.5",
       .title = "stage two's bound and the selection that minimises it",
       .statement =
           "theta <= theta^ = C' - (2 - 1/sigma) S''; among all choices of as many entries, top-k by "
           "A ||V|| minimises theta^ if sigma >= 1/2 and maximises it if sigma <= 1/2",
       .hypotheses = "sigma > 0; for the minimum sigma >= 1/2 (Assumption 3.4)",
       .source = kCriticalKv + ", Theorem 3.5",
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
       .source = "ours, on " + kCriticalKv + ", Algorithm 1",
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
       .source = kCriticalKv + ", appendix E",
       .ratio = "theta^ / theta^_relax",
       .sizes = one_query,
       .property = {"ckv-e.1", "theta^ <= theta^_relax iff sigma >= 1/2, and its extremes", attention_only},
       .weakened = {{"ckv-e.1:small-stage-one", "theta^ <= theta^_relax whatever sigma is",
                     relaxed_whatever_sigma},
                    {"ckv-e.1:minimum", "top-k by A minimises theta^_relax whatever sigma is",
                     minimal_by_attention_whatever_sigma}}},
  };
}

}  // namespace kvbound::proofs
