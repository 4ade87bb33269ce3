// OBCache's scores: the change of outputs when an entry's value, its key, or both shrink.
#include <cmath>

#include "catalogue.hpp"
#include "papers.hpp"
#include "scoring.hpp"

namespace kvbound::proofs {
namespace {

using exact::Query;
using exact::Real;
using exact::Reals;
using reference::Change;

// h = t |z|, the change of a logit: the largest h for which the remainder bounds are
// claimed, and smaller ones.
const Real kSteps[] = {Real(0.5), ldexp(Real(1), -6), ldexp(Real(1), -20)};

// ---- OBC-value

Outcome value_is_exact(const Instance& instance) {
  Outcome outcome;
  for_each_entry(instance, [&](const Query& query, size_t p) {
    Query zeroed = query;
    for (Real& number : zeroed.values[p]) number = 0;
    const Reals output = Query(zeroed.logits, zeroed.values).output;
    equal_vectors(outcome, "o' - o = -A v", exact::difference(output, query.output),
                  exact::combination(-query.attention[p], query.values[p], 0, query.output), 2 * query.size);
    const Real moved = exact::squared(exact::difference(output, query.output));
    const Real score = exact::score(Change::value, query, p);
    outcome.equal("|| o' - o ||^2 = A^2 || v ||^2", moved, score, query.squared_terms());
  });
  hold_scores(Change::value, instance, outcome);
  return outcome;
}

Outcome value_is_removal(const Instance& instance) {
  Outcome outcome;
  if (instance.tokens() == 1) return outcome;
  for_each_entry(instance, [&](const Query& query, size_t p) {
    const Real removal = exact::score(Change::exact, query, p);
    outcome.equal("the value score is the change that removal makes", exact::score(Change::value, query, p),
                  removal, query.squared_terms());
  });
  return outcome;
}

// ---- OBC-key, OBC-joint

// An entry whose key (and optionally value) is shrunk by the share
// t for which its logit changes by h; t = h if the logit is 0.
struct Shrunk {
  Shrunk(const Query& query_, size_t entry_, const Real& h_)
      : query(query_),
        entry(entry_),
        h(h_),
        t(query.logits[entry] == 0 ? h : Real(h / abs(query.logits[entry]))) {
    const Real x = t * query.logits[entry], s = exp(-x);
    const Real whole = query.rest(entry) + query.attention[entry] * s;
    gain = (1 - s) / whole;
    share = s / whole;
  }

  const Real& weight() const { return query.attention[entry]; }
  Real logit_size() const { return abs(query.logits[entry]); }
  Real pull_size() const { return sqrt(exact::squared(query.pull(entry))); }
  Real value_size() const { return sqrt(exact::squared(query.values[entry])); }

  // (o' - o) / t, where only 1 - s cancels, by a factor of 1 / h. value: whether the value shrinks, too
  Reals change(bool value) const {
    return exact::combination(-weight() * gain / t, query.pull(entry),
                              value ? Real(-weight() * share) : Real(0), query.values[entry]);
  }
  void hold_definition(Outcome& outcome, bool value) const {
    const Query after = exact::shrunk(query, entry, t, value ? t : Real(0));
    const Reals moved = exact::difference(after.output, query.output);
    equal_vectors(outcome, value ? "o' - o = -A (g (v - o) + t m v)" : "o' - o = -A g (v - o)", moved,
                  exact::combination(t, change(value), 0, moved), 8 * query.size);
  }

  const Query& query;
  size_t entry;
  Real h, t;
  Real gain;   // g = (1 - s) / (1 - A + A s)
  Real share;  // m = s / (1 - A + A s)
};

// For every t, E(t)/t^2 is between the squares of these factors times the score.
Real least(const Real& h) { return (1 - exp(-h)) / h; }
Real most(const Real& h) { return (exp(h) - 1) / h; }

Outcome key_limit(const Instance& instance) {
  Outcome outcome;
  for_each_entry(instance, [&](const Query& query, size_t p) {
    const Real score = exact::score(Change::key, query, p);
    for (const Real& h : kSteps) {
      const Shrunk shrunk(query, p, h);
      shrunk.hold_definition(outcome, false);
      const Real moved = exact::squared(shrunk.change(false)), rounding = score / h;
      if (shrunk.logit_size() == 0) {
        outcome.equal("z = 0: nothing moves", moved, score, score);
        continue;
      }
      outcome.at_most("((1 - e^-h) / h)^2 score <= E(t)/t^2", least(h) * least(h) * score, moved, rounding);
      outcome.at_most("E(t)/t^2 <= ((e^h - 1) / h)^2 score", moved, most(h) * most(h) * score, rounding);
      const Real allowed = 11 * h * score / 8;
      outcome.at_most("|E(t)/t^2 - score| <= (11/8) t |z| score", abs(moved - score), allowed, rounding);
      outcome.ratio(abs(moved - score), allowed, rounding);
    }
  });
  hold_scores(Change::key, instance, outcome);
  return outcome;
}

// The claim that the score is the change for t = 1, evaluated by definition.
void at_one(Change change, const Instance& instance, Outcome& outcome) {
  for_each_entry(instance, [&](const Query& query, size_t p) {
    const Query after = exact::shrunk(query, p, 1, change == Change::joint ? 1 : 0);
    const Real moved = exact::squared(exact::difference(after.output, query.output));
    const Real score = exact::score(change, query, p);
    outcome.equal("E(1) is the score", moved, score, score + query.squared_terms());
  });
}

Outcome key_at_one(const Instance& instance) {
  Outcome outcome;
  at_one(Change::key, instance, outcome);
  return outcome;
}

// The claim with the softmax's slope A (1 - A) in place of the weight A: the score A^2
// (1 - A)^2 z^2 || v - o ||^2.
Outcome key_of_softmax_slope(const Instance& instance) {
  Outcome outcome;
  for_each_entry(instance, [&](const Query& query, size_t p) {
    const Shrunk shrunk(query, p, kSteps[2]);
    const Real rest = query.rest(p), score = rest * rest * exact::score(Change::key, query, p);
    if (shrunk.logit_size() == 0) return;
    outcome.at_most("|E(t)/t^2 - (1 - A)^2 score| <= (11/8) t |z| (1 - A)^2 score",
                    abs(exact::squared(shrunk.change(false)) - score), 11 * shrunk.h * score / 8,
                    exact::score(Change::key, query, p) / shrunk.h);
  });
  return outcome;
}

// Q = A ((3/5) |z| || v - o || + (13/10) || v ||): || u(t) - u(0) || <= t |z| Q for u(t) = (o' - o)/t.
Real joint_slope(const Shrunk& shrunk) {
  return shrunk.weight() * (6 * shrunk.logit_size() * shrunk.pull_size() + 13 * shrunk.value_size()) / 10;
}

// A^2 (|z| || v - o || + || v ||)^2, the absolute terms of the joint score, which may cancel.
Real joint_terms(const Shrunk& shrunk) {
  const Real sum = shrunk.weight() * (shrunk.logit_size() * shrunk.pull_size() + shrunk.value_size());
  return sum * sum;
}

Outcome joint_limit(const Instance& instance) {
  Outcome outcome;
  for_each_entry(instance, [&](const Query& query, size_t p) {
    const Real score = exact::score(Change::joint, query, p), &weight = query.attention[p];
    const Real cross = 2 * weight * weight * query.logits[p] * oracle::dot(query.values[p], query.pull(p));
    for (const Real& h : kSteps) {
      const Shrunk shrunk(query, p, h);
      shrunk.hold_definition(outcome, true);
      const Real moved = exact::squared(shrunk.change(true)), terms = joint_terms(shrunk) / h;
      outcome.equal("sum of squares = value + key + cross term", score,
                    exact::score(Change::value, query, p) + exact::score(Change::key, query, p) + cross,
                    terms);
      if (shrunk.logit_size() == 0) {
        outcome.equal("z = 0: E(t)/t^2 is the value score", moved, score, score);
        continue;
      }
      const Real slope = joint_slope(shrunk), allowed = h * slope * (2 * sqrt(score) + slope / 2);
      outcome.at_most("|E(t)/t^2 - score| <= t |z| Q (2 sqrt(score) + Q/2)", abs(moved - score), allowed,
                      terms);
      outcome.ratio(abs(moved - score), allowed, terms);
    }
  });
  hold_scores(Change::joint, instance, outcome);
  return outcome;
}

Outcome joint_at_one(const Instance& instance) {
  Outcome outcome;
  at_one(Change::joint, instance, outcome);
  return outcome;
}

// The claim without the cross term. t is small, so that the remainder does not hide the missing cross term.
Outcome joint_without_cross_term(const Instance& instance) {
  Outcome outcome;
  for_each_entry(instance, [&](const Query& query, size_t p) {
    const Shrunk shrunk(query, p, kSteps[2]);
    if (shrunk.logit_size() == 0) return;
    const Real score = exact::score(Change::value, query, p) + exact::score(Change::key, query, p);
    const Real slope = joint_slope(shrunk);
    outcome.at_most("|E(t)/t^2 - (value + key)| <= t |z| Q (2 sqrt(value + key) + Q/2)",
                    abs(exact::squared(shrunk.change(true)) - score),
                    shrunk.h * slope * (2 * sqrt(score) + slope / 2), joint_terms(shrunk) / shrunk.h);
  });
  return outcome;
}

Outcome joint_at_least_value(const Instance& instance) {
  Outcome outcome;
  for_each_entry(instance, [&](const Query& query, size_t p) {
    outcome.at_most("joint >= value", exact::score(Change::value, query, p),
                    exact::score(Change::joint, query, p), joint_terms(Shrunk(query, p, kSteps[0])));
  });
  return outcome;
}

}  // namespace

std::vector<Theorem> obcache_theorems() {
  const Sizes window{.tokens = 8, .head_dim = 3, .model_dim = 3, .queries = 2, .long_tokens = kLongTokens};
  return {
      {.id = "obc-value",
       .title = "the value score is exact",
       .statement = "with v_p zeroed and A as it was, || o' - o ||^2 = A_p^2 || v_p ||^2, for every query",
       .hypotheses = "none; any space of values",
       .source = kObcache + ", Table 2",
       .ratio = "",
       .sizes = window,
       .property = {"obc-value", "the value score is the squared change of the output", value_is_exact},
       .weakened = {{"obc-value:removed", "the same if the entry is removed", value_is_removal}}},
      {.id = "obc-key",
       .title = "the key score is a limit, with a remainder",
       .statement =
           "E(t) = || O((1 - t) k_p) - O ||^2 has |E(t)/t^2 - score| <= (11/8) t |z_p| score, score = "
           "A_p^2 z_p^2 || v_p - o ||^2; for every t it is within ((1 - e^-h)/h)^2 and ((e^h - 1)/h)^2 "
           "of it, h = t |z_p|",
       .hypotheses = "t |z_p| <= 1/2 for the linear bound",
       .source = kObcache + ", Table 2; the remainder: ours",
       .ratio = "|E(t)/t^2 - score| / allowed",
       .sizes = window,
       .property = {"obc-key", "E(t)/t^2 tends to the key score within the remainder", key_limit},
       .weakened = {{"obc-key:at-one", "the key score is the change for t = 1", key_at_one},
                    {"obc-key:softmax-slope", "the same of A_p^2 (1 - A_p)^2 z_p^2 || v_p - o ||^2",
                     key_of_softmax_slope}}},
      {.id = "obc-joint",
       .title = "the joint score is a limit, a sum of squares",
       .statement = "E(t) = || O((1 - t) k_p, (1 - t) v_p) - O ||^2 has |E(t)/t^2 - score| <= t |z_p| Q "
                    "(2 sqrt(score) + Q/2), Q = A_p ((3/5) |z_p| || v_p - o || + (13/10) || v_p ||), "
                    "score = A_p^2 || v_p + z_p (v_p - o) ||^2 = value + key + 2 A_p^2 z_p v_p . (v_p - "
                    "o)",
       .hypotheses = "t |z_p| <= 1/2",
       .source = kObcache + ", Table 2; the remainder and the sum of squares: ours",
       .ratio = "|E(t)/t^2 - score| / allowed",
       .sizes = window,
       .property = {"obc-joint", "E(t)/t^2 tends to the joint score within the remainder", joint_limit},
       .weakened = {{"obc-joint:at-one", "the joint score is the change for t = 1", joint_at_one},
                    {"obc-joint:without-cross-term", "the same of the value score plus the key score",
                     joint_without_cross_term},
                    {"obc-joint:at-least-value", "the joint score is at least the value score",
                     joint_at_least_value}}},
  };
}

}  // namespace kvbound::proofs
