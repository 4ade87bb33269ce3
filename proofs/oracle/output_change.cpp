#include "output_change.hpp"

#include <algorithm>

namespace kvbound::oracle {

Measured& Measured::operator+=(const Measured& other) {
  value += other.value;
  terms += other.terms;
  return *this;
}

Measured operator*(const Measured& a, const Measured& b) { return {a.value * b.value, a.terms * b.terms}; }

}  // namespace kvbound::oracle

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

template <class Number>
std::vector<Number> combination(const Real& x, const std::vector<Number>& a, const Real& y,
                                const std::vector<Number>& b) {
  std::vector<Number> result;
  for (size_t c = 0; c < a.size(); ++c) result.emplace_back(x * a[c]) += y * b[c];
  return result;
}

Reals difference(const Reals& a, const Reals& b) {
  Reals result = a;
  for (size_t c = 0; c < result.size(); ++c) result[c] -= b[c];
  return result;
}

template <class Number>
Number squared(const std::vector<Number>& vector) {
  Number sum(0);
  for (const Number& entry : vector) sum += entry * entry;
  return sum;
}

template <class Number>
QueryOf<Number>::QueryOf(Reals logits_, std::vector<std::vector<Number>> values_)
    : logits(std::move(logits_)),
      values(std::move(values_)),
      attention(softmax(logits)),
      output(values.front().size()) {
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t c = 0; c < output.size(); ++c) {
      output[c] += attention[i] * values[i][c];
      size = std::max<Real>(size, abs(Measured(values[i][c]).value));
    }
  }
}

template <class Number>
Real QueryOf<Number>::rest(size_t entry) const {
  const auto index = static_cast<int64_t>(entry);
  return oracle::sum(oracle::outside(attention, {&index, 1}));
}

template <class Number>
QueryOf<Number> without(const QueryOf<Number>& query, IndexSet removed) {
  Reals logits;
  std::vector<std::vector<Number>> values;
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

template <class Number>
std::vector<Number> output_of_others(const QueryOf<Number>& query, size_t entry) {
  if (query.entries() == 1) return std::vector<Number>(query.output.size());
  const auto index = static_cast<int64_t>(entry);
  return without(query, {&index, 1}).output;
}

template <class Number>
Real slot_weight(const QueryOf<Number>& query, size_t entry) {
  return query.attention[entry] * exp(-query.logits[entry]);
}

template <class Number>
std::vector<Number> change_vector(Change change, const QueryOf<Number>& query, size_t entry) {
  const Real &weight = query.attention[entry], &logit = query.logits[entry];
  const std::vector<Number>& value = query.values[entry];
  switch (change) {
    case Change::value:
      return scaled(weight, value);
    case Change::key:
      return scaled(weight * logit, query.pull(entry));
    case Change::joint:
      return scaled(weight, combination(logit, query.pull(entry), 1, value));
    case Change::exact:
      return scaled(weight, difference(value, output_of_others(query, entry)));
    case Change::slot:
      break;
  }
  // o - o' = (A (1 - A) / q) (v - o_(-p)) + (r / q) o
  const Real rest = query.rest(entry), slot = slot_weight(query, entry), whole = rest + slot;
  return combination(weight * rest / whole, difference(value, output_of_others(query, entry)), slot / whole,
                     query.output);
}

template struct QueryOf<Real>;
template struct QueryOf<Measured>;
template Reals combination(const Real&, const Reals&, const Real&, const Reals&);
template Real squared(const Reals&);
template Measured squared(const std::vector<Measured>&);
template Query without(const Query&, IndexSet);
template Reals output_of_others(const Query&, size_t);
template Real slot_weight(const Query&, size_t);
template Reals change_vector(Change, const Query&, size_t);
template std::vector<Measured> change_vector(Change, const QueryOf<Measured>&, size_t);

}  // namespace kvbound::exact
