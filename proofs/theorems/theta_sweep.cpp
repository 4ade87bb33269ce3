// The guarantee of theta-sweep.
#include <algorithm>

#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/eviction/theta_sweep.hpp>

#include "catalogue.hpp"
#include "evaluation.hpp"

namespace kvbound::proofs {
namespace {

using exact::Indices;
using exact::Real;
using exact::Reals;
using Positions = std::vector<int64_t>;

// One KV head's sweep over the entries outside stage one; stage one's entries count as always kept. Attention
// and norms are the reference's doubles, taken as exact inputs: the guarantee is about these numbers.
struct Sweep {
  explicit Sweep(const Instance& instance_) : instance(instance_), computed(instance_) {
    for (int64_t j = 0; j < instance.tokens(); ++j) {
      if (!std::ranges::binary_search(instance.stage_one, j)) candidates.push_back(j);
    }
    scores = Matrix(instance.query_heads, std::ssize(candidates));
    Matrix norms(scores.rows(), scores.cols());
    for (int64_t h = 0; h < scores.rows(); ++h) {
      for (int64_t j = 0; j < scores.cols(); ++j) {
        scores(h, j) = computed.attention(h, candidates[j]);
        norms(h, j) = computed.norms(h, candidates[j]);
      }
    }
    const int64_t k = instance.stage_two_count();
    std::vector<double> total(candidates.size(), 0.0);
    for (int64_t h = 0; h < scores.rows(); ++h) {
      for (size_t j = 0; j < total.size(); ++j) total[j] += scores(h, j);
    }
    const auto stage_two =
        reference::stage_two_scores(scores, norms, instance.epsilon, GqaProduct::mean_of_products);
    rivals = {reference::select_top(total, k),
              reference::select_critical(total, stage_two, k, k / 2).selected};
    const reference::ThetaSweepInput input{computed.attention, computed.norms,     scores,
                                           candidates,         instance.stage_one, rivals};
    choice = reference::select_theta_sweep(input, k);
  }

  // Positions kept when these candidates are selected.
  Positions kept(const Positions& selected) const {
    Positions result = instance.stage_one;
    for (const int64_t i : selected) result.push_back(candidates[i]);
    std::ranges::sort(result);
    return result;
  }
  // sum_h theta_h, and the error bound of evaluating it.
  oracle::Bounded bound(const Positions& kept) const {
    oracle::Row thetas;
    for (int64_t h = 0; h < instance.query_heads; ++h) {
      const oracle::Row attention = oracle::exactly(VectorView(computed.attention.row(h)));
      thetas.push_back(
          oracle::perturbation_bound(attention, oracle::exactly(VectorView(computed.norms.row(h))), kept));
    }
    return oracle::sum(thetas);
  }
  // Whether for every head the always-kept entries hold attention mass in double precision.
  bool defined() const {
    for (int64_t h = 0; h < instance.query_heads; ++h) {
      if (!resolved(oracle::exactly(VectorView(computed.attention.row(h))), instance.stage_one)) return false;
    }
    return true;
  }

  const Instance& instance;
  Computed computed;
  Positions candidates;
  Matrix scores;  // [query_heads, candidates]
  std::vector<Positions> rivals;
  Positions choice;
};

// Claims: if one selection has at least the mass and the norm mass of another, and at least half of the mass,
// its theta is not larger. The sweep over the hull of (mass, norm mass) relies on this.
void claim_monotony(const Sweep& sweep, const std::vector<Positions>& selections, Outcome& outcome) {
  const Exact exact(sweep.instance);
  const Reals& attention = exact.attention.front();
  const Reals norms = exact.norms_of_row(0), norm_mass = exact::product(attention, norms);
  for (const Positions& less : selections) {
    for (const Positions& more : selections) {
      const Real mass = oracle::sum(oracle::at(attention, more));
      if (2 * mass < 1 || mass < oracle::sum(oracle::at(attention, less))) continue;
      if (oracle::sum(oracle::at(norm_mass, more)) < oracle::sum(oracle::at(norm_mass, less))) continue;
      outcome.at_most("more mass and more norm mass, at least half of it: no larger theta",
                      oracle::perturbation_bound(attention, norms, more),
                      oracle::perturbation_bound(attention, norms, less),
                      4 * oracle::sum(norm_mass) / oracle::sum(oracle::at(attention, less)));
    }
  }
}

Outcome no_worse_than_rivals(const Instance& instance) {
  Outcome outcome;
  const Sweep sweep(instance);
  claim_monotony(sweep,
                 {sweep.kept(sweep.choice), sweep.kept(sweep.rivals[0]), sweep.kept(sweep.rivals[1]),
                  instance.kept, instance.stage_one},
                 outcome);
  if (!sweep.defined()) return outcome;
  const oracle::Bounded reached = sweep.bound(sweep.kept(sweep.choice));
  outcome.reference_holds("it selects k entries", std::ssize(sweep.choice) == instance.stage_two_count());
  const char* names[] = {"top-k", "CriticalKV"};
  for (size_t i = 0; i < sweep.rivals.size(); ++i) {
    const oracle::Bounded rival = sweep.bound(sweep.kept(sweep.rivals[i]));
    // The reference compares rounded thetas, so the comparison may be wrong by the sum of both error bounds.
    outcome.reference_holds(std::string("theta of its selection <= that of ") + names[i],
                            reached.value <= rival.value + rival.bound + reached.bound);
    outcome.ratio(reached.value, rival.value);
  }
  return outcome;
}

Outcome exhaustive_optimum(const Instance& instance) {
  Outcome outcome;
  const Sweep sweep(instance);
  if (!sweep.defined()) return outcome;
  const auto best = exact::over_all_choices(
      instance.tokens(), instance.stage_one, instance.stage_two_count(),
      [&](Indices kept) { return sweep.bound(Positions(kept.begin(), kept.end())).value; });
  const oracle::Bounded reached = sweep.bound(sweep.kept(sweep.choice));
  outcome.at_most("theta <= that of every selection", reached.value, best.smallest + 2 * reached.bound,
                  best.smallest);
  return outcome;
}

}  // namespace

std::vector<Theorem> theta_sweep_theorems() {
  return {
      {.id = "ckv-theta-sweep",
       .title = "the promise of theta-sweep",
       .statement = "sum_h theta_h of the sweep's selection <= that of top-k and of CriticalKV",
       .hypotheses = "the same budget and the same entries always kept, which hold attention mass in doubles",
       .source = "ours, from CriticalKV (arXiv:2502.03805), Theorem 3.3",
       .ratio = "theta of the sweep / theta of a rival",
       .sizes = {.tokens = 8, .head_dim = 3, .model_dim = 3, .query_heads = 3, .wide_group = kWideGroup},
       .property = {"ckv-theta-sweep", "theta <= that of top-k and of CriticalKV", no_worse_than_rivals},
       .weakened = {{"ckv-theta-sweep:exhaustive-optimum", "theta <= that of every selection",
                     exhaustive_optimum}}},
  };
}

}  // namespace kvbound::proofs
