// The change of a query's output by eviction: CriticalKV's
// Theorems 3.2 and 3.3, their stable form, and the layer's bound.
#include <algorithm>
#include <optional>

#include <kvbound/proofs/oracle/output_change.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/perturbation.hpp>

#include "as_printed.hpp"
#include "catalogue.hpp"
#include "evaluation.hpp"
#include "papers.hpp"

namespace kvbound::proofs {
namespace {

using exact::Indices;
using exact::Norm;
using exact::Real;
using exact::Reals;

constexpr size_t kOnlyRow = 0;  // the only row, the only head

reference::EvictionWeights computed_eviction(const Instance& instance, const Computed& computed) {
  return reference::eviction_weights(instance.logits.row(0), computed.attention.row(0), instance.kept);
}

// sum_i (A_i + A'_i) N_i: the absolute terms of L and theta as printed.
Real printed_terms(const Reals& attention, const Reals& norms, Indices kept) {
  const Reals terms = exact::product(attention, norms);
  return 3 * oracle::sum(terms) +
         oracle::sum(oracle::at(terms, kept)) / oracle::sum(oracle::at(attention, kept));
}

// ---- CKV-3.2

Outcome kept_attention(const Instance& instance) {
  Outcome outcome;
  const Reals attention = exact::softmax(instance.logits.row(0));
  const Real mass = oracle::sum(oracle::at(attention, instance.kept));
  Reals kept_logits;
  for (const int64_t i : instance.kept) kept_logits.emplace_back(instance.logits(0, i));
  const Reals compressed = exact::softmax(kept_logits);
  for (size_t i = 0; i < compressed.size(); ++i) {
    const Real& weight = attention[instance.kept[i]];
    outcome.equal("A'_i = A_i / Sigma", compressed[i], weight / mass, compressed[i]);
  }
  const Bounds bounds(instance);
  if (!resolved(bounds.attention[kOnlyRow], instance.kept)) return outcome;
  const Computed computed(instance);
  const auto expected = oracle::kept_attention_weights(bounds.attention[kOnlyRow], instance.kept);
  const auto weights = reference::kept_attention_weights(computed.attention.row(0), instance.kept);
  for (size_t i = 0; i < weights.size(); ++i)
    outcome.reference_within("kept attention weight", weights[i], expected[i]);
  return outcome;
}

// Zeroing the evicted keys makes their logits 0, but leaves these entries in the softmax with the weight e^0.
Outcome zeroed_logits(const Instance& instance) {
  Outcome outcome;
  const Reals attention = exact::softmax(instance.logits.row(0));
  const Real mass = oracle::sum(oracle::at(attention, instance.kept));
  Reals masked(instance.tokens());
  for (const int64_t i : instance.kept) masked[i] = instance.logits(0, i);
  const Reals compressed = exact::softmax(masked);
  for (const int64_t i : instance.kept) {
    const int64_t index = i;
    outcome.equal("softmax(N z)_i = A_i / Sigma", compressed[index], attention[index] / mass, Real(1));
  }
  return outcome;
}

// ---- CKV-3.3

void hold_reference(const Instance& instance, Outcome& outcome) {
  const Computed computed(instance);
  const Bounds bounds(instance);
  const auto eviction = computed_eviction(instance, computed);
  const auto exact_eviction =
      oracle::eviction_weights(oracle::exactly(instance.logits.row(0)), instance.kept);
  for (size_t i = 0; i < exact_eviction.size(); ++i)
    outcome.reference_within("eviction weight", eviction.weights[i], exact_eviction[i]);
  const oracle::Row& attention = bounds.attention[kOnlyRow];
  outcome.reference_within("kept mass", eviction.kept_mass,
                           oracle::sum(oracle::at(attention, instance.kept)));
  outcome.reference_within("evicted mass", eviction.evicted_mass,
                           oracle::sum(oracle::outside(attention, instance.kept)));
  const double perturbation =
      reference::output_perturbation(eviction, instance.values, instance.output_projection);
  outcome.reference_within(
      "L", perturbation,
      oracle::output_perturbation(exact_eviction, instance.values, instance.output_projection));
  for (const auto norm : {kvbound::Norm::l1, kvbound::Norm::l2}) {
    const auto norms = reference::projected_value_norms(instance.values, instance.output_projection, norm);
    const auto exact_norms = oracle::projected_value_norms(instance.values, instance.output_projection, norm);
    outcome.reference_within(norm == kvbound::Norm::l1 ? "theta in L1" : "theta in L2",
                             reference::perturbation_bound(eviction, norms),
                             oracle::perturbation_bound(exact_eviction, exact_norms));
  }
  const double bound = reference::perturbation_bound(eviction, computed.norms.row(0));
  const auto scale = reference::rounding_scale(instance.values, instance.output_projection);
  outcome.reference_holds("L <= theta + perturbation_rounding",
                          perturbation <= bound + reference::perturbation_rounding(eviction, scale));
}

// theta - L without cancellation, from the contributions w_i V_i to o - o^. In L1: twice the smaller part, by
// sign, of each component. In L-infinity: what is left of every norm by one component and sign, at the best.
Real lost_in_l1(const std::vector<Reals>& contributions) {
  Real lost = 0;
  for (size_t j = 0; j < contributions.front().size(); ++j) {
    Real positive = 0, negative = 0;
    for (const Reals& contribution : contributions)
      (contribution[j] > 0 ? positive : negative) += abs(contribution[j]);
    lost += 2 * std::min<Real>(positive, negative);
  }
  return lost;
}
Real lost_in_l_infinity(const std::vector<Reals>& contributions) {
  std::optional<Real> least;
  for (size_t j = 0; j < contributions.front().size(); ++j) {
    for (const int sign : {-1, 1}) {
      Real lost = 0;
      for (const Reals& contribution : contributions)
        lost += exact::norm(contribution, Norm::l_infinity) - sign * contribution[j];
      least = std::min<Real>(lost, least.value_or(lost));
    }
  }
  return *least;
}

// w_i V_i, whose sum is o - o^
std::vector<Reals> contributions(const Reals& attention, const std::vector<Reals>& projected, Indices kept) {
  const Reals weights = oracle::eviction_weights_of_mean(attention, kept);
  std::vector<Reals> result;
  for (size_t i = 0; i < weights.size(); ++i) result.push_back(exact::scaled(weights[i], projected[i]));
  return result;
}

// Claims that theta - L in this norm is `lost`, and so 0 exactly where that is.
void hold_lost(const Reals& attention, const std::vector<Reals>& projected, Indices kept, Norm norm,
               const Real& lost, Outcome& outcome) {
  const Real bound = oracle::perturbation_bound(attention, exact::norms(projected, norm), kept);
  const Reals change = exact::stable_output_change(attention, projected, kept);
  outcome.equal(std::string("theta - L in ") + exact::name(norm), bound - exact::norm(change, norm), lost,
                bound);
}

Outcome bound_dominates(const Instance& instance) {
  Outcome outcome;
  const Exact exact(instance);
  const Reals& attention = exact.attention[kOnlyRow];
  const auto& projected = exact.projected[kOnlyRow];
  const Reals change = exact::output_change(attention, projected, instance.kept);
  const Reals stable = exact::stable_output_change(attention, projected, instance.kept);
  for (const Norm norm : exact::kNorms) {
    const Reals norms = exact::norms(projected, norm);
    const std::string claim = std::string("L <= theta in ") + exact::name(norm);
    outcome.at_most(claim, exact::norm(change, norm),
                    oracle::perturbation_bound_as_printed(attention, norms, instance.kept),
                    printed_terms(attention, norms, instance.kept));
    const Real bound = oracle::perturbation_bound(attention, norms, instance.kept);
    outcome.at_most(claim + ", stable", exact::norm(stable, norm), bound, bound);
    outcome.ratio(exact::norm(stable, norm), bound);
  }
  const std::vector<Reals> moves = contributions(attention, projected, instance.kept);
  hold_lost(attention, projected, instance.kept, Norm::l1, lost_in_l1(moves), outcome);
  hold_lost(attention, projected, instance.kept, Norm::l_infinity, lost_in_l_infinity(moves), outcome);
  hold_reference(instance, outcome);
  return outcome;
}

Outcome mixed_norms(const Instance& instance) {
  Outcome outcome;
  const Exact exact(instance);
  const Reals change =
      exact::stable_output_change(exact.attention[kOnlyRow], exact.projected[kOnlyRow], instance.kept);
  const Real bound = oracle::perturbation_bound(
      exact.attention[kOnlyRow], exact::norms(exact.projected[kOnlyRow], Norm::l_infinity), instance.kept);
  outcome.at_most("L in L1 <= theta in L-infinity", exact::norm(change, Norm::l1), bound, bound);
  return outcome;
}

// The condition for equality in L1.
Outcome equality_by_signs(const Instance& instance) {
  Outcome outcome;
  const Exact exact(instance);
  const Reals& attention = exact.attention[kOnlyRow];
  const auto& projected = exact.projected[kOnlyRow];
  if (lost_in_l1(contributions(attention, projected, instance.kept)) == 0)
    hold_lost(attention, projected, instance.kept, Norm::l_infinity, 0, outcome);
  return outcome;
}

// ---- the stable form

// Holds reference functions of an instance's weights and norms to the exact values, where
// doubles can represent them.
class Held {
 public:
  Held(const Instance& instance, Outcome& outcome)
      : instance_(instance), outcome_(outcome), computed_(instance), bounds_(instance) {}

  const oracle::Row& exact_attention() const { return bounds_.attention[kOnlyRow]; }
  // Whether 1/mass, which the printed forms contain, does not overflow.
  bool printable(Indices entries) const {
    return oracle::sum(oracle::at(exact_attention(), entries)).value >= Real("1e-300");
  }

  void theta_as_printed() {
    outcome_.reference_within(
        "L as printed",
        proofs::output_perturbation_as_printed(attention(), instance_.values, instance_.output_projection,
                                               instance_.kept),
        oracle::output_perturbation_as_printed(exact_attention(), instance_.values,
                                               instance_.output_projection, instance_.kept));
    outcome_.reference_within(
        "theta as printed", proofs::perturbation_bound_as_printed(attention(), norms(), instance_.kept),
        oracle::perturbation_bound_as_printed(exact_attention(), bounds_.norms[kOnlyRow], instance_.kept));
  }
  // The computed weights, whose sum need not be 1, are the exact input of both sides.
  void eviction_of_given_weights() {
    const auto eviction = reference::eviction_weights(attention(), instance_.kept);
    const auto exact = oracle::eviction_weights_of_mean(oracle::exactly(attention()), instance_.kept);
    for (size_t i = 0; i < exact.size(); ++i)
      outcome_.reference_within("eviction weight of given weights", eviction.weights[i], exact[i]);
  }
  template <class Computed, class Exact>
  void stages(const char* name, Computed computed, Exact exact) {
    const oracle::Bounded expected =
        exact(exact_attention(), bounds_.norms[kOnlyRow], instance_.stage_one, instance_.kept);
    if (expected.value > Real("1e300")) return;
    outcome_.reference_within(name, computed(attention(), norms(), instance_.stage_one, instance_.kept),
                              expected);
  }

 private:
  VectorView attention() const { return computed_.attention.row(0); }
  VectorView norms() const { return computed_.norms.row(0); }

  const Instance& instance_;
  Outcome& outcome_;
  const Computed computed_;
  const Bounds bounds_;
};

void hold_both_forms(const Instance& instance, Outcome& outcome) {
  Held held(instance, outcome);
  if (resolved(held.exact_attention(), instance.kept)) {
    held.eviction_of_given_weights();
    if (held.printable(instance.kept)) held.theta_as_printed();
  }
  if (resolved(held.exact_attention(), instance.stage_one)) {
    held.stages("stage two's bound", reference::stage_two_bound, oracle::stage_two_bound<oracle::Bounded>);
    held.stages("attention-only bound", reference::attention_only_bound,
                oracle::attention_only_bound<oracle::Bounded>);
    if (held.printable(instance.stage_one)) {
      held.stages("stage two's bound as printed", proofs::stage_two_bound_as_printed,
                  oracle::stage_two_bound_as_printed<oracle::Bounded>);
      held.stages("attention-only bound as printed", proofs::attention_only_bound_as_printed,
                  oracle::attention_only_bound_as_printed<oracle::Bounded>);
    }
  }
}

Outcome stable_form(const Instance& instance) {
  Outcome outcome;
  const Exact exact(instance);
  const Reals& attention = exact.attention[kOnlyRow];
  const Reals norms = exact.norms_of_row(kOnlyRow);
  const auto& projected = exact.projected[kOnlyRow];
  const Real terms = printed_terms(attention, norms, instance.kept);
  const Reals change = exact::output_change(attention, projected, instance.kept);
  const Reals stable = exact::stable_output_change(attention, projected, instance.kept);
  for (size_t j = 0; j < change.size(); ++j)
    outcome.equal("o - o^ as printed and stable", change[j], stable[j], terms);
  outcome.equal("theta as printed and stable",
                oracle::perturbation_bound_as_printed(attention, norms, instance.kept),
                oracle::perturbation_bound(attention, norms, instance.kept), terms);
  const Reals norm_mass = exact::product(attention, norms);
  const Real stage_terms =
      3 * oracle::sum(norm_mass) + oracle::sum(oracle::at(norm_mass, instance.kept)) /
                                       oracle::sum(oracle::at(attention, instance.stage_one));
  outcome.equal("theta^ as printed and stable",
                oracle::stage_two_bound_as_printed(attention, norms, instance.stage_one, instance.kept),
                oracle::stage_two_bound(attention, norms, instance.stage_one, instance.kept), stage_terms);
  outcome.equal("theta^_relax as printed and stable",
                oracle::attention_only_bound_as_printed(attention, norms, instance.stage_one, instance.kept),
                oracle::attention_only_bound(attention, norms, instance.stage_one, instance.kept),
                stage_terms);
  hold_both_forms(instance, outcome);
  return outcome;
}

// The printed form is allowed the error bound of the stable form; a larger error is cancellation.
Outcome theta_as_printed_in_double(const Instance& instance) {
  Outcome outcome;
  const Bounds bounds(instance);
  if (!resolved(bounds.attention[kOnlyRow], instance.kept)) return outcome;
  const Exact exact(instance);
  const Computed computed(instance);
  const Real perturbation = exact::norm(
      exact::stable_output_change(exact.attention[kOnlyRow], exact.projected[kOnlyRow], instance.kept),
      Norm::l1);
  const auto stable = oracle::perturbation_bound(
      oracle::eviction_weights(oracle::exactly(instance.logits.row(0)), instance.kept),
      bounds.norms[kOnlyRow]);
  const double printed =
      proofs::perturbation_bound_as_printed(computed.attention.row(0), computed.norms.row(0), instance.kept);
  outcome.at_most("L <= theta as printed, in double precision", perturbation, Real(printed) + stable.bound,
                  perturbation);
  return outcome;
}

// ---- the layer

// The heads of a layer may keep different entries: here every second head keeps stage one only.
const std::vector<int64_t>& kept_by(const Instance& instance, size_t head) {
  return head % 2 == 0 ? instance.kept : instance.stage_one;
}

struct LayerChange {
  Real perturbation = 0;   // || sum_h (o_h - o^_h) ||_1
  Real sum_of_bounds = 0;  // sum_h theta_h
  Real largest_bound = 0;
};

LayerChange layer_change(const Instance& instance) {
  const Exact exact(instance);
  LayerChange layer;
  Reals change(exact.projected[kOnlyRow].front().size());
  for (size_t h = 0; h < exact.attention.size(); ++h) {
    const Reals& attention = exact.attention[h];
    const std::vector<int64_t>& kept = kept_by(instance, h);
    const Reals head_change = exact::stable_output_change(attention, exact.projected[h], kept);
    for (size_t j = 0; j < change.size(); ++j) change[j] += head_change[j];
    const Real bound = oracle::perturbation_bound(attention, exact.norms_of_row(h), kept);
    layer.sum_of_bounds += bound;
    layer.largest_bound = std::max(layer.largest_bound, bound);
  }
  layer.perturbation = exact::norm(change, Norm::l1);
  return layer;
}

Outcome layer_bound(const Instance& instance) {
  Outcome outcome;
  const LayerChange layer = layer_change(instance);
  outcome.at_most("|| sum_h (o_h - o^_h) || <= sum_h theta_h", layer.perturbation, layer.sum_of_bounds,
                  layer.sum_of_bounds);
  outcome.ratio(layer.perturbation, layer.sum_of_bounds);
  const Computed computed(instance);
  const Bounds bounds(instance);
  double computed_sum = 0;
  oracle::Row exact_bounds;
  for (size_t h = 0; h < bounds.attention.size(); ++h) {
    const auto head = static_cast<int64_t>(h);
    const std::vector<int64_t>& kept = kept_by(instance, h);
    const auto logits = instance.logits.row(head);
    computed_sum += reference::perturbation_bound(
        reference::eviction_weights(logits, computed.attention.row(head), kept), computed.norms.row(head));
    exact_bounds.push_back(
        oracle::perturbation_bound(oracle::eviction_weights(oracle::exactly(logits), kept), bounds.norms[h]));
  }
  outcome.reference_within("sum of the heads' theta", computed_sum, oracle::sum(exact_bounds));
  return outcome;
}

Outcome largest_head(const Instance& instance) {
  Outcome outcome;
  const LayerChange layer = layer_change(instance);
  outcome.at_most("|| sum_h (o_h - o^_h) || <= max_h theta_h", layer.perturbation, layer.largest_bound,
                  layer.sum_of_bounds);
  return outcome;
}

}  // namespace

std::vector<Theorem> perturbation_theorems() {
  const std::string source = kCriticalKv;
  return {
      {.id = "ckv-3.2",
       .title = "attention on what is kept",
       .statement =
           "the attention over the kept entries alone is A'_i = N_i A_i / Sigma, Sigma = sum_i N_i A_i",
       .hypotheses = "an entry is kept; logits are finite",
       .source = source + ", Theorem 3.2",
       .ratio = "",
       .sizes = {.long_tokens = kLongTokens},
       .property = {"ckv-3.2", "softmax over the kept logits is N A / Sigma", kept_attention},
       .weakened = {{"ckv-3.2:zeroed-logits",
                     "the same if evicted logits are set to 0 instead of being taken out", zeroed_logits}}},
      {.id = "ckv-3.3",
       .title = "the bound on the output perturbation",
       .statement =
           "L = || o - o^ || <= theta = C - (2 - 1/Sigma) S, C = sum A ||V||, S the kept part of C; theta - "
           "L = 2 sum_j min(P_j, N_j) in L1, P_j and N_j the sums of the positive and negative parts of w_i "
           "V_ij, and min_{j,s} sum_i (|| w_i V_i || - s w_i V_ij) in L-infinity, s = +-1",
       .hypotheses =
           "an entry is kept; any selection; any norm, the same on both sides (L1, L2, L-infinity run)",
       .source = source + ", Theorem 3.3",
       .ratio = "L / theta",
       .sizes = {.long_tokens = kLongTokens},
       .property = {"ckv-3.3", "L <= theta in L1, L2 and L-infinity, and by how much", bound_dominates},
       .weakened = {{"ckv-3.3:mixed-norms", "L in L1 <= theta in L-infinity", mixed_norms},
                    {"ckv-3.3:equality-by-signs",
                     "L = theta in L-infinity if no component of the w_i V_i has two signs, as in L1",
                     equality_by_signs}}},
      {.id = "ckv-stable",
       .title = "the bounds without cancellation",
       .statement =
           "theta = sum_{evicted} A ||V|| + (e/Sigma) S and its like for o - o^, theta^ and theta^_relax "
           "equal the printed forms",
       .hypotheses = "exact arithmetic; an entry is in stage one",
       .source = "ours",
       .ratio = "",
       .sizes = {.long_tokens = kLongTokens},
       .property = {"ckv-stable", "stable and printed forms are equal", stable_form},
       .weakened = {{"ckv-stable:printed-in-double", "L <= theta as printed, evaluated in double precision",
                     theta_as_printed_in_double}}},
      {.id = "ckv-layer",
       .title = "the bound on a layer's perturbation",
       .statement = "|| sum_h (o_h - o^_h) || <= sum_h theta_h",
       .hypotheses = "every head keeps an entry; heads may keep different ones; the same norm throughout",
       .source = "ours, from " + source + ", Theorem 3.3",
       .ratio = "layer's L / sum of theta",
       .sizes = {.tokens = 16, .query_heads = 4, .long_tokens = kLongTokens, .wide_group = kWideGroup},
       .property = {"ckv-layer", "the layer's perturbation <= the sum of its heads' bounds", layer_bound},
       .weakened = {{"ckv-layer:largest-head", "the layer's perturbation <= its largest head's bound",
                     largest_head}}},
  };
}

}  // namespace kvbound::proofs
