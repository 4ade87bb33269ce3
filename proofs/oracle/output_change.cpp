#include "output_change.hpp"

#include <algorithm>

namespace kvbound::exact {

using reference::Change;

Vectors vectors(MatrixView rows) {
  Vectors result;
  for (int64_t i = 0; i < rows.rows; ++i) {
    const VectorView row = rows.row(i);
    result.emplace_back(row.begin(), row.end());
  }
  return result;
}

Reals combination(const Real& x, const Reals& a, const Real& y, const Reals& b) {
  Reals result;
  for (size_t c = 0; c < a.size(); ++c) result.push_back(x * a[c] + y * b[c]);
  return result;
}

Reals scaled(const Real& x, const Reals& a) { return combination(x, a, 0, a); }
Reals difference(const Reals& a, const Reals& b) { return combination(1, a, -1, b); }

Real squared(const Reals& vector) { return inner_product(vector, vector); }

Query::Query(Reals logits_, Vectors values_)
    : logits(std::move(logits_)),
      values(std::move(values_)),
      attention(softmax(logits)),
      output(values.front().size()) {
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t c = 0; c < output.size(); ++c) {
      output[c] += attention[i] * values[i][c];
      size = std::max<Real>(size, abs(values[i][c]));
    }
  }
}

Real Query::rest(size_t entry) const {
  const auto index = static_cast<int64_t>(entry);
  return total_outside(attention, {&index, 1});
}

Query without(const Query& query, Indices removed) {
  Reals logits;
  Vectors values;
  for (size_t i = 0; i < query.entries(); ++i) {
    if (std::ranges::binary_search(removed, i)) continue;
    logits.push_back(query.logits[i]);
    values.push_back(query.values[i]);
  }
  return {logits, values};
}

Query shrunk(const Query& query, size_t entry, const Real& key, const Real& value) {
  Reals logits = query.logits;
  Vectors values = query.values;
  logits[entry] *= 1 - key;
  for (Real& number : values[entry]) number *= 1 - value;
  return {logits, values};
}

Reals output_of_others(const Query& query, size_t entry) {
  if (query.entries() == 1) return Reals(query.output.size());
  const auto index = static_cast<int64_t>(entry);
  return without(query, {&index, 1}).output;
}

Real slot_weight(const Query& query, size_t entry) {
  return query.attention[entry] * exp(-query.logits[entry]);
}

Reals joint_pull(const Query& query, size_t entry) {
  return combination(query.logits[entry], query.pull(entry), 1, query.values[entry]);
}

Real score(Change change, const Query& query, size_t entry) {
  const Real &weight = query.attention[entry], &logit = query.logits[entry];
  const Reals& value = query.values[entry];
  switch (change) {
    case Change::value:
      return weight * weight * squared(value);
    case Change::key:
      return weight * weight * logit * logit * squared(query.pull(entry));
    case Change::joint:
      return weight * weight * squared(joint_pull(query, entry));
    case Change::exact:
      return weight * weight * squared(difference(value, output_of_others(query, entry)));
    case Change::slot:
      break;
  }
  // o - o' = (A (1 - A) / q) (v - o_(-p)) + (r / q) o
  const Real rest = query.rest(entry), slot = slot_weight(query, entry), whole = rest + slot;
  return squared(combination(weight * rest / whole, difference(value, output_of_others(query, entry)),
                             slot / whole, query.output));
}

}  // namespace kvbound::exact
