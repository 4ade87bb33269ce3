#include "scoring.hpp"

#include <algorithm>
#include <cmath>

#include "score_bounds.hpp"

namespace kvbound::proofs {
namespace {

using reference::Change;

const char* name_of(Change change) {
  constexpr const char* kNames[] = {"value", "key", "joint", "exact", "slot"};
  return kNames[static_cast<size_t>(change)];
}

oracle::ScoredQuery scored(Change change, const Instance& instance, int64_t row, Space space) {
  const oracle::BoundedSpace bounded(space, instance.projection_of(row / instance.queries()));
  oracle::ScoredQuery result =
      oracle::scored_query(change, instance.logits.row(row), instance.values, bounded);
  const exact::Query query = query_of(instance, row, space), plain = query_of(instance, row, Space::head);
  for (size_t j = 0; j < query.entries(); ++j) {
    result.weights[j].value = query.attention[j];
    if (query.entries() > 1 || change != Change::exact)
      result.scores[j].value = exact::score(change, query, j);
  }
  for (size_t c = 0; c < result.output.size(); ++c) result.output[c].value = plain.output[c];
  return result;
}

}  // namespace

const char* name(Space space) { return space == Space::head ? "head" : "projected"; }

exact::Query query_of(const Instance& instance, int64_t row, Space space) {
  const VectorView logits = instance.logits.row(row);
  return {exact::Reals(logits.begin(), logits.end()),
          space == Space::head
              ? exact::vectors(instance.values)
              : exact::projected_values(instance.values, instance.projection_of(row / instance.queries()))};
}

std::vector<exact::Query> queries_of(const Instance& instance, Space space) {
  std::vector<exact::Query> result;
  for (int64_t row = 0; row < instance.logits.rows(); ++row) result.push_back(query_of(instance, row, space));
  return result;
}

std::vector<size_t> some_entries(size_t entries) {
  constexpr size_t kMost = 8;
  std::vector<size_t> result;
  for (size_t i = 0; i < std::min(entries, kMost); ++i)
    result.push_back(entries <= kMost ? i : i * (entries - 1) / (kMost - 1));
  return result;
}

// Key component h is the logit of head h, and head h's query
// is the h-th unit vector: every logit is reproduced exactly.
reference::ScoredAttention computed_scores(Change change, const Instance& instance, int64_t query,
                                           Space space) {
  const int64_t heads = instance.query_heads;
  Matrix keys(instance.tokens(), heads), queries(heads, heads), norms(heads, instance.tokens());
  const std::vector<reference::ValueSpace> spaces =
      reference::value_spaces(space, instance.output_projection, heads);
  for (int64_t h = 0; h < heads; ++h) {
    queries(h, h) = 1;
    for (int64_t j = 0; j < instance.tokens(); ++j)
      keys(j, h) = instance.logits(h * instance.queries() + query, j);
    const std::vector<double> own = spaces[h].squared_norms(instance.values);
    std::ranges::copy(own, norms.row(h).begin());
  }
  return reference::scored_attention(change, queries, {keys, instance.values, norms, spaces}, 1);
}

void equal_vectors(Outcome& outcome, const std::string& claim, const exact::Reals& left,
                   const exact::Reals& right, const oracle::Real& terms) {
  for (size_t c = 0; c < left.size(); ++c) outcome.equal(claim, left[c], right[c], terms);
}

oracle::Row bounded_scores(Change change, const Instance& instance, int64_t row, Space space) {
  return scored(change, instance, row, space).scores;
}

void hold_scores(Change change, const Instance& instance, Outcome& outcome) {
  for (const Space space : kSpaces) {
    const std::string what = std::string(name_of(change)) + " score, " + name(space) + " space";
    for (int64_t row = 0; row < instance.logits.rows(); ++row) {
      const int64_t head = row / instance.queries();
      const auto computed = computed_scores(change, instance, row % instance.queries(), space);
      const auto expected = scored(change, instance, row, space);
      for (int64_t j = 0; j < instance.tokens(); ++j) {
        const int64_t index = j;
        outcome.reference_within("weight", computed.weights(head, j), expected.weights[index]);
        if (change == Change::exact && instance.tokens() == 1) {
          outcome.reference_holds("the only entry's removal is infinite",
                                  computed.scores(head, j) == HUGE_VAL);
        } else {
          outcome.reference_within(what, computed.scores(head, j), expected.scores[index]);
        }
      }
      for (size_t c = 0; c < expected.output.size(); ++c)
        outcome.reference_within("output", computed.output.row(head)[c], expected.output[c]);
    }
  }
}

// Keys have one component per row of logits, values their own columns; both are padded
// with 0 to the larger number.
PromptLayer::PromptLayer(const Instance& instance) : instance_(instance) {
  const int64_t tokens = instance.tokens(), heads = instance.query_heads, columns = instance.values.cols();
  const int64_t head_dim = std::max(instance.logits.rows(), columns);
  const int64_t window = std::min(tokens, instance.queries()), first = instance.queries() - window;
  keys_ = Tensor(1, tokens, head_dim);
  values_ = Tensor(1, tokens, head_dim);
  queries_ = Tensor(heads, window, head_dim);
  output_projection_ = Matrix(heads * head_dim, instance.output_projection.cols());
  for (int64_t j = 0; j < tokens; ++j) {
    std::ranges::copy(instance.values.row(j), values_.slice(0).row(j).begin());
    for (int64_t r = 0; r < instance.logits.rows(); ++r) keys_.slice(0)(j, r) = instance.logits(r, j);
  }
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < window; ++i) queries_.slice(h)(i, h * instance.queries() + first + i) = 1;
    for (int64_t c = 0; c < columns; ++c)
      std::ranges::copy(instance.projection_of(h).row(c), output_projection_.row(h * head_dim + c).begin());
  }
}

LayerView PromptLayer::view() const {
  return {{instance_.query_heads, 1, keys_.view().cols, output_projection_.cols()},
          1,
          keys_,
          values_,
          queries_,
          output_projection_};
}

VectorView PromptLayer::seen(int64_t head, int64_t query) const {
  const int64_t row = (head + 1) * instance_.queries() - window() + query;
  return instance_.logits.row(row).first(instance_.tokens() - window() + query + 1);
}

}  // namespace kvbound::proofs
