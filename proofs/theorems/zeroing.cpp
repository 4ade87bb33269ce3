// Effects of a constant added to all logits: zeroing an entry that stays in the cache,
// and scores of shrunk keys.

#include "catalogue.hpp"
#include "scoring.hpp"

namespace kvbound::proofs {
namespace {

using exact::Query;
using exact::Real;
using exact::Reals;
using reference::Change;

// ---- OBC-shift

// Constants added to all logits, on the grid of the drawn logits, so that sums are exact.
constexpr double kShifts[] = {1, -37.5, 1024};

Instance shifted(const Instance& instance, double shift) {
  Instance result = instance;
  for (int64_t row = 0; row < result.logits.rows(); ++row) {
    for (double& logit : result.logits.row(row)) logit += shift;
  }
  return result;
}

// Claims that the scores do not change when a constant is added to all logits.
void unchanged_by_shifts(Change change, const Instance& instance, Outcome& outcome) {
  for_each_removable(instance, [&](const Query& query, size_t p) {
    const Real score = exact::score(change, query, p);
    for (const double shift : kShifts) {
      Reals logits = query.logits;
      for (Real& logit : logits) logit += shift;
      const Query moved(logits, query.values);
      const Real other = exact::score(change, moved, p);
      const Real factor = change == Change::key || change == Change::joint
                              ? Real(1 + query.logits[p] * query.logits[p] + logits[p] * logits[p])
                              : Real(1);
      outcome.equal("the score of shifted logits is the same", other, score, factor * query.squared_terms());
    }
  });
}

Outcome shift_invariant(const Instance& instance) {
  Outcome outcome;
  unchanged_by_shifts(Change::exact, instance, outcome);
  unchanged_by_shifts(Change::value, instance, outcome);
  const Instance moved = shifted(instance, kShifts[2]);
  hold_scores(Change::exact, moved, outcome);
  hold_scores(Change::value, moved, outcome);
  return outcome;
}

template <Change change>
Outcome shift_invariant_too(const Instance& instance) {
  Outcome outcome;
  unchanged_by_shifts(change, instance, outcome);
  return outcome;
}

// ---- OBC-zeroing

Outcome zeroing(const Instance& instance) {
  Outcome outcome;
  for_each_entry(instance, [&](const Query& query, size_t p) {
    const Reals after = exact::shrunk(query, p, 1, 1).output;
    const Reals moved = exact::difference(after, query.output);
    const Real &weight = query.attention[p], rest = query.rest(p), slot = exact::slot_weight(query, p);
    const Real whole = rest + slot;
    equal_vectors(outcome, "q (o' - o) = (A - r) o - A v", exact::scaled(whole, moved),
                  exact::combination(weight - slot, query.output, -weight, query.values[p]),
                  (4 * whole + 4 * weight + 2 * slot) * query.size);
    const Reals others = exact::output_of_others(query, p);
    equal_vectors(outcome, "o' = ((1 - A) / q) o_(-p)", after, exact::scaled(rest / whole, others),
                  2 * query.size);
    equal_vectors(outcome, "o - o' = (A (1 - A) / q) (v - o_(-p)) + (r / q) o", exact::scaled(-1, moved),
                  exact::combination(weight * rest / whole, exact::difference(query.values[p], others),
                                     slot / whole, query.output),
                  6 * query.size);
  });
  hold_scores(Change::slot, instance, outcome);
  return outcome;
}

Outcome zeroing_is_removal(const Instance& instance) {
  Outcome outcome;
  for_each_removable(instance, [&](const Query& query, size_t p) {
    outcome.equal("zeroing an entry moves the output as removing it does",
                  exact::score(Change::slot, query, p), exact::score(Change::exact, query, p),
                  query.squared_terms());
  });
  return outcome;
}

}  // namespace

std::vector<Theorem> zeroing_theorems() {
  const Sizes window{.tokens = 8, .head_dim = 3, .model_dim = 3, .queries = 2, .long_tokens = kLongTokens};
  return {
      {.id = "obc-shift",
       .title = "a constant added to all logits",
       .statement =
           "the exact score and the value score do not change when a constant is added to all logits",
       .hypotheses = "none",
       .source = "ours",
       .ratio = "",
       .sizes = window,
       .property = {"obc-shift", "exact and value scores are invariant to shifts", shift_invariant},
       .weakened = {{"obc-shift:key", "the same of the key score", shift_invariant_too<Change::key>},
                    {"obc-shift:joint", "the same of the joint score", shift_invariant_too<Change::joint>},
                    {"obc-shift:zeroing", "the same of zeroing key and value",
                     shift_invariant_too<Change::slot>}}},
      {.id = "obc-zeroing",
       .title = "zeroing key and value, the slot kept",
       .statement = "with k_p = v_p = 0 and the entry still there, o' - o = ((A_p - r) o - A_p v_p) / q, "
                    "r = exp(-LSE), q = 1 - A_p + r; o' = ((1 - A_p) / q) o_(-p)",
       .hypotheses = "none",
       .source = "OBCache (arXiv:2510.07651), eq. 1; the closed form: ours",
       .ratio = "",
       .sizes = window,
       .property = {"obc-zeroing", "the closed form is what zeroing does", zeroing},
       .weakened = {{"obc-zeroing:removal", "zeroing does what removal does", zeroing_is_removal}}},
  };
}

}  // namespace kvbound::proofs
