#include "score_bounds.hpp"

#include <algorithm>
#include <optional>

#include <kvbound/proofs/oracle/definitions.hpp>

namespace kvbound::oracle {
namespace {

using reference::Change;

// The share of a squared length's terms below which the reference forms the difference element by element.
const Bounded kCancelled = 0x1p-13;

// The one with the larger bound of two evaluations of the same value.
Bounded wider(const Bounded& a, const Bounded& b) { return a.bound < b.bound ? b : a; }

void widen(Row& row, const Row& other) {
  for (size_t i = 0; i < row.size(); ++i) row[i] = wider(row[i], other[i]);
}

// The result of an evaluation that takes the first form where `number` is
// negative, and else the second; if rounding decides, the wider of both.
Bounded by_sign(const Bounded& number, const Bounded& if_negative, const Bounded& otherwise) {
  if (number.value < -number.bound) return if_negative;
  if (number.value > number.bound) return otherwise;
  return wider(if_negative, otherwise);
}

Bounded sigmoid(const Bounded& x) {
  const Bounded small = exp(x.value < 0 ? x : -x), whole = Bounded(1) + small;
  if (x.value < -x.bound) return small / whole;
  if (x.value > x.bound) return Bounded(1) / whole;
  return {x.value < 0 ? (small / whole).value : (Bounded(1) / whole).value,
          wider(small / whole, Bounded(1) / whole).bound};
}

// One query's attention, optionally with one entry (the dominant one) set aside.
struct Attended {
  Row shares;  // of the attention without the entry set aside, whose share is 0
  Bounded rest = 1, lead;
  std::optional<size_t> aside;
  Bounded log_sum_exp;
  std::optional<Bounded> log_others;  // the others' log-sum-exp, if there are any
  Row mean, output;

  Bounded weight(size_t entry) const { return entry == aside ? lead : shares[entry] * rest; }
};

void attend_values(Attended& attended, const Rows& values) {
  for (size_t c = 0; c < values.front().size(); ++c) {
    attended.mean.push_back(dot(attended.shares, column(values, c)));
    attended.output.push_back(attended.aside ? attended.lead * values[*attended.aside][c] +
                                                   attended.rest * attended.mean.back()
                                             : attended.mean.back());
  }
}

Attended all_together(const Row& logits, const Rows& values) {
  Attended result;
  result.shares = softmax(logits);
  result.log_sum_exp = log_sum_exp(logits);
  attend_values(result, values);
  return result;
}

Attended set_aside(const Row& logits, size_t aside, const Rows& values) {
  Attended result;
  result.aside = aside;
  const auto index = static_cast<int64_t>(aside);
  const Row others = outside(logits, {&index, 1});
  result.shares = softmax(others);
  result.shares.insert(result.shares.begin() + index, Bounded(0));
  result.lead = 1;
  result.rest = 0;
  result.log_sum_exp = logits[aside];
  if (!others.empty()) {
    const Bounded log_others = log_sum_exp(others);
    result.log_others = log_others;
    result.lead = sigmoid(logits[aside] - log_others);
    result.rest = sigmoid(log_others - logits[aside]);
    result.log_sum_exp = logits[aside] - log(result.lead);
  }
  attend_values(result, values);
  return result;
}

// All evaluations that the reference may choose: one, unless rounding decides whether the
// largest weight exceeds 1/2.
std::vector<Attended> ways(Change change, const Row& logits, const Rows& values) {
  const auto largest =
      static_cast<size_t>(std::ranges::max_element(logits, {}, &Bounded::value) - logits.begin());
  std::vector<Attended> result{all_together(logits, values)};
  if (change == Change::value || change == Change::key) return result;
  const Bounded lead = result.front().shares[largest];
  if (lead.value + lead.bound < Real(0.5)) return result;
  if (lead.value - lead.bound > Real(0.5)) result.clear();
  result.push_back(set_aside(logits, largest, values));
  return result;
}

// The factors of (1 - A) entries + slot, in the form for a negative and for a nonnegative log-sum-exp.
struct SlotShares {
  Bounded entries, slot;
};

std::vector<SlotShares> slot_shares(const Bounded& log_sum_exp) {
  std::vector<SlotShares> result;
  if (log_sum_exp.value - log_sum_exp.bound < 0) result.push_back({exp(log_sum_exp), 1});
  if (log_sum_exp.value + log_sum_exp.bound >= 0) result.push_back({1, exp(-log_sum_exp)});
  return result;
}

// w^2 || a v - b o ||^2
struct Terms {
  Bounded w, a, b;
};

Terms terms_of(Change change, const Bounded& weight, const Bounded& logit, const SlotShares& shares) {
  switch (change) {
    case Change::value:
      return {weight, 1, 0};
    case Change::key:
      return {weight * logit, 1, 1};
    case Change::joint:
      return {weight, Bounded(1) + logit, logit};
    case Change::exact:
      return {weight / (Bounded(1) - weight), 1, 1};
    case Change::slot: {
      const Bounded whole = (Bounded(1) - weight) * shares.entries + shares.slot;
      return {1, weight * shares.entries / whole, (weight * shares.entries - shares.slot) / whole};
    }
  }
  return {};  // not reached
}

Bounded squared_distance(const BoundedSpace& space, const Bounded& a, const Row& x, const Bounded& b,
                         const Row& y) {
  Row difference;
  for (size_t c = 0; c < x.size(); ++c) difference.push_back(a * x[c] - b * y[c]);
  return space.squared_norm(difference);
}

// The score w^2 || a v - b o ||^2 by inner products or, where these cancel, from the difference.
Bounded change_of_entry(const Terms& terms, const Row& value, const Row& output, const BoundedSpace& space) {
  const Bounded own =
      terms.a * terms.a * space.squared_norm(value) + terms.b * terms.b * space.squared_norm(output);
  const Bounded expanded = own - Bounded(2) * (terms.a * terms.b) * dot(space.gram_product(output), value);
  const Bounded apart = squared_distance(space, terms.a, value, terms.b, output);
  return terms.w * terms.w * by_sign(expanded - kCancelled * own, apart, expanded);
}

Terms terms_of_aside(Change change, const Attended& attended, const Bounded& logit) {
  switch (change) {
    case Change::value:
      return {attended.lead, 1, 0};
    case Change::key:
    case Change::exact:
      return {attended.lead, 1, 1};
    case Change::joint: {
      const Bounded turned = logit * attended.rest;
      return {attended.lead, Bounded(1) + turned, turned};
    }
    case Change::slot: {
      const Bounded others = attended.log_others ? sigmoid(*attended.log_others) : Bounded(0);
      return {1, attended.lead, others - attended.rest};
    }
  }
  return {};  // not reached
}

// The score w^2 || a v - b o' ||^2 of the entry set aside, o' the output of the other entries.
Bounded change_of_aside(Change change, const Attended& attended, const Bounded& logit, const Row& value,
                        const BoundedSpace& space) {
  const Terms terms = terms_of_aside(change, attended, logit);
  return terms.w * terms.w * squared_distance(space, terms.a, value, terms.b, attended.mean);
}

Bounded score(Change change, const Attended& attended, const Row& logits, size_t entry, const Row& value,
              const BoundedSpace& space) {
  const Bounded weight = attended.weight(entry);
  if (change == Change::value) return weight * weight * space.squared_norm(value);
  if (entry == attended.aside) return change_of_aside(change, attended, logits[entry], value, space);
  std::optional<Bounded> result;
  for (const SlotShares& shares : slot_shares(attended.log_sum_exp)) {
    const Terms terms = terms_of(change, weight, logits[entry], shares);
    const Bounded one = change_of_entry(terms, value, attended.output, space);
    result = result ? wider(*result, one) : one;
  }
  return *result;
}

ScoredQuery scored_in(Change change, const Attended& attended, const Row& logits, const Rows& values,
                      const BoundedSpace& space) {
  ScoredQuery result;
  result.output = attended.output;
  for (size_t j = 0; j < logits.size(); ++j) {
    result.weights.push_back(attended.weight(j));
    result.scores.push_back(score(change, attended, logits, j, values[j], space));
  }
  return result;
}

}  // namespace

BoundedSpace::BoundedSpace(Space space, MatrixView output_projection) {
  if (space == Space::head) return;
  const Rows rows = exactly(output_projection);
  for (const Row& a : rows) {
    Row& row = gram_.emplace_back();
    for (const Row& b : rows) row.push_back(dot(a, b));
  }
}

Row BoundedSpace::gram_product(const Row& x) const { return gram_.empty() ? x : weighted_sum(x, gram_); }

ScoredQuery scored_query(Change change, VectorView logits, MatrixView values, const BoundedSpace& space) {
  const Row given = exactly(logits);
  const Rows rows = exactly(values);
  std::optional<ScoredQuery> result;
  for (const Attended& way : ways(change, given, rows)) {
    const ScoredQuery one = scored_in(change, way, given, rows, space);
    if (!result) {
      result = one;
      continue;
    }
    widen(result->weights, one.weights);
    widen(result->output, one.output);
    widen(result->scores, one.scores);
  }
  return *result;
}

}  // namespace kvbound::oracle
