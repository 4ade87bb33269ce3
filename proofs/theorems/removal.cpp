// The change of an output when entries are removed from the cache.
#include <cmath>

#include <kvbound/proofs/oracle/definitions.hpp>
#include <kvbound/reference/eviction/removal.hpp>

#include "catalogue.hpp"
#include "scoring.hpp"

namespace kvbound::proofs {
namespace {

using exact::Indices;
using exact::Query;
using exact::Real;
using exact::Reals;
using reference::Change;
using Positions = std::vector<int64_t>;

// ---- OBC-exact

Outcome exact_removal(const Instance& instance) {
  Outcome outcome;
  for_each_removable(instance, [&](const Query& query, size_t p) {
    const Reals others = exact::output_of_others(query, p);  // by deletion
    const Reals moved = exact::difference(others, query.output);
    const Real &weight = query.attention[p], rest = query.rest(p), terms = 4 * query.size;
    equal_vectors(outcome, "o_(-p) - o = A (o_(-p) - v)", moved,
                  exact::scaled(weight, exact::difference(others, query.values[p])), terms);
    equal_vectors(outcome, "(1 - A) (o_(-p) - o) = A (o - v)", exact::scaled(rest, moved),
                  exact::scaled(-weight, query.pull(p)), terms);
    const Real score = exact::score(Change::exact, query, p);
    outcome.equal("|| o_(-p) - o ||^2 = A^2 || v - o_(-p) ||^2", exact::squared(moved), score,
                  query.squared_terms());
    if (rest < Real("1e-9")) return;  // the division loses too many of the 50 digits
    const Real ratio = weight / rest;
    outcome.equal("|| o_(-p) - o ||^2 = (A / (1 - A))^2 || v - o ||^2",
                  ratio * ratio * exact::squared(query.pull(p)), score,
                  (1 + ratio * ratio) * query.squared_terms());
  });
  hold_scores(Change::exact, instance, outcome);
  return outcome;
}

// The printed form is allowed the error bound of the form without cancellation.
Outcome removal_as_printed_in_double(const Instance& instance) {
  Outcome outcome;
  if (instance.tokens() == 1) return outcome;
  const auto computed = computed_scores(Change::value, instance, 0, Space::head);
  const oracle::Row bounds = bounded_scores(Change::exact, instance, 0, Space::head);
  for (int64_t j = 0; j < instance.tokens(); ++j) {
    const double weight = computed.weights(0, j), ratio = weight / (1 - weight);
    double squared = 0;
    for (int64_t c = 0; c < instance.values.cols(); ++c)
      squared += std::pow(instance.values(j, c) - computed.output(0, c), 2);
    const double printed = ratio * ratio * squared;
    const oracle::Bounded& score = bounds[j];
    outcome.require("(A / (1 - A))^2 || v - o ||^2 in double precision is as near as the stable form",
                    std::isfinite(printed) && abs(Real(printed) - score.value) <= score.bound);
  }
  return outcome;
}

Outcome rest_is_not_rescaled(const Instance& instance) {
  Outcome outcome;
  for_each_removable(instance, [&](const Query& query, size_t p) {
    outcome.equal("|| o_(-p) - o ||^2 = A^2 || v - o ||^2",
                  query.attention[p] * query.attention[p] * exact::squared(query.pull(p)),
                  exact::score(Change::exact, query, p), query.squared_terms());
  });
  return outcome;
}

// ---- OBC-set

Positions evicted(const Instance& instance) {
  Positions all(instance.tokens());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  return exact::difference(all, instance.kept);
}

// The output over the given entries alone.
Reals mean(const Query& query, Indices entries) {
  Reals logits;
  exact::Vectors values;
  for (const int64_t i : entries) {
    logits.push_back(query.logits[i]);
    values.push_back(query.values[i]);
  }
  return Query(logits, values).output;
}

// 1 / (1 + exp(L_rest - L_set)). If the exponential overflows a double, the result is 0,
// with an error below 2^-1022.
oracle::Bounded mass_of(const oracle::Row& leaving, const oracle::Row& staying) {
  const oracle::Bounded gap = oracle::log_sum_exp(staying) - oracle::log_sum_exp(leaving);
  oracle::Bounded mass = oracle::Bounded(1) / (oracle::Bounded(1) + oracle::exp(gap));
  if (gap.value + gap.bound > 709) mass.bound += ldexp(Real(1), -1022);
  return mass;
}

void hold_removal(const Instance& instance, int64_t row, const Positions& removed, const Reals& exact,
                  Outcome& outcome) {
  const VectorView logits = instance.logits.row(row);
  const std::vector<double> computed = reference::removal_change(logits, instance.values, removed);
  oracle::Row change(exact.size());
  if (!removed.empty()) {
    const oracle::Row all = oracle::exactly(logits);
    const oracle::Row leaving = oracle::at(all, removed), staying = oracle::at(all, instance.kept);
    const oracle::Bounded mass = mass_of(leaving, staying);
    const oracle::Rows values = oracle::exactly(instance.values.view());
    const oracle::Row before = weighted_sum(oracle::softmax(leaving), oracle::at(values, removed)),
                      after = weighted_sum(oracle::softmax(staying), oracle::at(values, instance.kept));
    for (size_t c = 0; c < change.size(); ++c) change[c] = mass * (after[c] - before[c]);
  }
  for (size_t c = 0; c < change.size(); ++c)
    outcome.reference_within("change by removal of a set", computed[c], {exact[c], change[c].bound});
}

Outcome set_removal(const Instance& instance) {
  Outcome outcome;
  const Positions removed = evicted(instance);
  for (int64_t row = 0; row < instance.logits.rows(); ++row) {
    const Query query = query_of(instance, row, Space::head);
    if (removed.empty()) {
      hold_removal(instance, row, removed, Reals(query.output.size()), outcome);
      continue;
    }
    const Reals after = exact::without(query, removed).output, before = mean(query, removed);
    const Reals moved = exact::difference(after, query.output);
    const Real mass = oracle::sum(oracle::at(query.attention, removed)),
               rest = oracle::sum(oracle::at(query.attention, instance.kept));
    const Reals stable = exact::scaled(mass, exact::difference(after, before));
    equal_vectors(outcome, "o' - o = A_E (o_rest - o_E)", moved, stable, 4 * query.size);
    Reals sum(moved.size());
    Real sizes = 0, singles = 0;
    for (const int64_t i : removed) {
      const int64_t j = i;
      sum = exact::combination(1, sum, -query.attention[j], query.pull(j));
      sizes += 2 * query.attention[j] * query.size;
      singles += query.rest(j) * sqrt(exact::score(Change::exact, query, j));
    }
    equal_vectors(outcome, "(1 - A_E) (o' - o) = sum_E A_j (o - v_j)", exact::scaled(rest, moved), sum,
                  sizes + 2 * rest * query.size);
    if (rest > Real("1e-9")) {
      const Real length = sqrt(exact::squared(stable));
      outcome.at_most("|| o' - o || <= sum_E (1 - A_j) / (1 - A_E) || o_(-j) - o ||", length, singles / rest,
                      singles / rest + sizes / rest + 2 * query.size);
      outcome.ratio(length, singles / rest, singles / rest + sizes / rest + 2 * query.size);
    }
    hold_removal(instance, row, removed, stable, outcome);
  }
  return outcome;
}

// Calls look(query, set, singles) with the squared lengths of
// the change by removing the set, and by removing each member.
template <class Look>
void for_each_set(const Instance& instance, const Look& look) {
  const Positions removed = evicted(instance);
  if (removed.empty()) return;
  for (const Query& query : queries_of(instance, Space::head)) {
    Reals singles;
    for (const int64_t i : removed)
      singles.push_back(exact::score(Change::exact, query, static_cast<size_t>(i)));
    look(query, exact::squared(exact::difference(exact::without(query, removed).output, query.output)),
         singles);
  }
}

Outcome sum_of_single_errors(const Instance& instance) {
  Outcome outcome;
  for_each_set(instance, [&](const Query& query, const Real& set, const Reals& singles) {
    outcome.equal("|| o' - o ||^2 is the sum of those of single removals", set, oracle::sum(singles),
                  oracle::sum(singles) + query.squared_terms());
  });
  return outcome;
}

Outcome at_most_the_singles(const Instance& instance) {
  Outcome outcome;
  for_each_set(instance, [&](const Query& query, const Real& set, const Reals& singles) {
    Real sum = 0;
    for (const Real& single : singles) sum += sqrt(single);
    outcome.at_most("|| o' - o || <= sum of the lengths of single removals' changes", sqrt(set), sum,
                    sum + 4 * query.size);
  });
  return outcome;
}

}  // namespace

std::vector<Theorem> removal_theorems() {
  const Sizes window{.tokens = 8, .head_dim = 3, .model_dim = 3, .queries = 2, .long_tokens = kLongTokens};
  return {
      {.id = "obc-exact",
       .title = "what removing an entry does, exactly",
       .statement =
           "removing entry p moves the output by o_(-p) - o = A_p (o_(-p) - v_p), so || o_(-p) - o ||^2 "
           "= (A_p / (1 - A_p))^2 || v_p - o ||^2 = A_p^2 || v_p - o_(-p) ||^2",
       .hypotheses = "another entry is there; any space of values",
       .source = "ours; KeepKV (arXiv:2504.09936), eq. 4, implies it",
       .ratio = "",
       .sizes = window,
       .property = {"obc-exact", "the closed forms are what deletion does", exact_removal},
       .weakened = {{"obc-exact:printed-in-double",
                     "(A / (1 - A))^2 || v - o ||^2 is as good in double precision",
                     removal_as_printed_in_double},
                    {"obc-exact:not-rescaled", "the same without the others' growing by 1 / (1 - A)",
                     rest_is_not_rescaled}}},
      {.id = "obc-set",
       .title = "what removing a set of entries does",
       .statement = "o' - o = (1 / (1 - A_E)) sum_E A_j (o - v_j) = A_E (o_rest - o_E); hence || o' - o "
                    "|| <= sum_E (1 - A_j) / (1 - A_E) || o_(-j) - o ||",
       .hypotheses = "an entry is left",
       .source = "ours",
       .ratio = "|| o' - o || / bound",
       .sizes = window,
       .property = {"obc-set", "the closed forms are what deletion does", set_removal},
       .weakened = {{"obc-set:sum-of-singles", "squared changes of single removals add up to the set's",
                     sum_of_single_errors},
                    {"obc-set:at-most-the-singles", "the set moves the output by at most its members' moves",
                     at_most_the_singles}}},
  };
}

}  // namespace kvbound::proofs
