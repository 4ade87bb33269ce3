// Checks of the reference's scores of an instance against the exact scores.
#pragma once

#include <kvbound/proofs/engine/theorem.hpp>
#include <kvbound/proofs/oracle/output_change.hpp>

namespace kvbound::proofs {

inline constexpr Space kSpaces[] = {Space::head, Space::projected};
const char* name(Space space);

/// The query of one row of logits, with values in the space.
exact::Query query_of(const Instance& instance, int64_t row, Space space);
/// The queries of all rows, head by head.
std::vector<exact::Query> queries_of(const Instance& instance, Space space);

/// The entries that are looked at one by one: all, or of a long sequence eight, from its first to its last,
/// since looking at an entry takes time in proportion to the sequence.
std::vector<size_t> some_entries(size_t entries);

/// Calls look(query, entry) for every query and some_entries, in both spaces.
template <class Look>
void for_each_entry(const Instance& instance, const Look& look) {
  for (const Space space : kSpaces) {
    for (const exact::Query& query : queries_of(instance, space)) {
      for (const size_t p : some_entries(query.entries())) look(query, p);
    }
  }
}
/// The same, unless the entry is the only one.
template <class Look>
void for_each_removable(const Instance& instance, const Look& look) {
  if (instance.tokens() > 1) for_each_entry(instance, look);
}

/// Outcome::equal of every number of two vectors.
void equal_vectors(Outcome& outcome, const std::string& claim, const exact::Reals& left,
                   const exact::Reals& right, const oracle::Real& terms);

/// Claims that reference::scored_attention's weights, outputs and
/// scores are within their bounds, in both spaces, for every query.
void hold_scores(reference::Change change, const Instance& instance, Outcome& outcome);

/// The scores of query i of every head, [query_heads, tokens], by reference::scored_attention.
reference::ScoredAttention computed_scores(reference::Change change, const Instance& instance, int64_t query,
                                           Space space);
/// The exact scores of one row of logits, with bounds on the reference's errors.
oracle::Row bounded_scores(reference::Change change, const Instance& instance, int64_t row, Space space);

/// The instance as a layer whose prompt ends with its queries: query i of q sees tokens - q + i + 1 tokens.
/// Queries that would see no token are left out.
class PromptLayer {
 public:
  explicit PromptLayer(const Instance& instance);

  LayerView view() const;
  int64_t window() const { return queries_.view().rows; }
  /// The logits that query i of head h sees, as the reference computes them.
  VectorView seen(int64_t head, int64_t query) const;

 private:
  const Instance& instance_;
  Tensor keys_, values_, queries_;
  Matrix output_projection_;
};

}  // namespace kvbound::proofs
