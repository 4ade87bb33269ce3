// Sums of scores over a window's queries and a group's heads,
// and the cases in which attention alone ranks like the sums.
#include <algorithm>
#include <cmath>

#include <kvbound/proofs/oracle/definitions.hpp>
#include <kvbound/reference/eviction/h2o.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>
#include <kvbound/reference/eviction/tova.hpp>

#include "catalogue.hpp"
#include "papers.hpp"
#include "score_bounds.hpp"
#include "scoring.hpp"
#include "selection.hpp"

namespace kvbound::proofs {
namespace {

using exact::Query;
using exact::Real;
using exact::Reals;
using reference::Change;
using Positions = std::vector<int64_t>;

constexpr Change kChanges[] = {Change::value, Change::key, Change::joint, Change::exact, Change::slot};

// ---- OBC-GQA

// o' - o by definition, for the changes that a score measures exactly.
Reals moved(Change change, const Query& query, size_t entry) {
  Query after = query;
  if (change == Change::value) {
    std::ranges::fill(after.values[entry], Real(0));
    return exact::difference(Query(after.logits, after.values).output, query.output);
  }
  const Reals output = change == Change::exact ? exact::output_of_others(query, entry)
                                               : exact::shrunk(query, entry, 1, 1).output;
  return exact::difference(output, query.output);
}

// The squared change of the outputs of all heads and queries, stacked into one vector.
Real stacked_change(Change change, const std::vector<Query>& queries, size_t entry) {
  Reals stacked;
  for (const Query& query : queries) {
    const Reals one = moved(change, query, entry);
    stacked.insert(stacked.end(), one.begin(), one.end());
  }
  return exact::squared(stacked);
}

Real sum_of_scores(Change change, const std::vector<Query>& queries, size_t entry) {
  Real sum = 0;
  for (const Query& query : queries) sum += exact::score(change, query, entry);
  return sum;
}

Real squared_terms(const std::vector<Query>& queries) {
  Real sum = 0;
  for (const Query& query : queries) sum += query.squared_terms();
  return sum;
}

// Checks the limit of the key scores with one t for all heads and queries, for which no logit
// changes by more than 1/2.
void hold_key_limit(const std::vector<Query>& queries, size_t entry, Outcome& outcome) {
  Real largest = 0;
  for (const Query& query : queries) largest = std::max<Real>(largest, abs(query.logits[entry]));
  if (largest == 0) return;
  const Real t = 1 / (2 * largest);
  Real change = 0, allowed = 0;
  for (const Query& query : queries) {
    const Query after = exact::shrunk(query, entry, t, 0);
    change += exact::squared(exact::difference(after.output, query.output)) / (t * t);
    allowed += 11 * t * abs(query.logits[entry]) * exact::score(Change::key, query, entry) / 8;
  }
  outcome.at_most("|sum E(t)/t^2 - sum of key scores| <= (11/8) t sum |z| key",
                  abs(change - sum_of_scores(Change::key, queries, entry)), allowed,
                  allowed + 16 * squared_terms(queries) / (t * t));
}

// The squared change of the layer's hidden state, which adds the heads'
// outputs: || sum_h (o'_h - o_h) W_h ||^2, summed over the queries.
Real layer_change(Change change, const Instance& instance, const std::vector<Query>& queries, size_t entry) {
  Real result = 0;
  const auto count = static_cast<size_t>(instance.queries());
  for (size_t i = 0; i < count; ++i) {
    Reals sum(queries.front().output.size());
    for (size_t row = i; row < queries.size(); row += count)
      sum = exact::combination(1, sum, 1, moved(change, queries[row], entry));
    result += exact::squared(sum);
  }
  return result;
}

oracle::Rows transposed(const oracle::Rows& rows) {
  oracle::Rows result(rows.front().size());
  for (const oracle::Row& row : rows) {
    for (size_t j = 0; j < row.size(); ++j) result[j].push_back(row[j]);
  }
  return result;
}

// The scores of the entries that one query of a head sees, by the definitions, with bounds
// on the reference's errors.
oracle::Row seen_scores(Change change, const Instance& instance, VectorView logits, int64_t head,
                        Space space) {
  const auto seen = std::ssize(logits);
  Instance prefix = instance;
  prefix.query_heads = 1;
  prefix.logits = Matrix(1, seen);
  std::ranges::copy(logits, prefix.logits.row(0).begin());
  prefix.values = Matrix(seen, instance.values.cols());
  for (int64_t j = 0; j < seen; ++j) std::ranges::copy(instance.values.row(j), prefix.values.row(j).begin());
  prefix.output_projection = Matrix(instance.values.cols(), instance.output_projection.cols());
  for (int64_t c = 0; c < instance.values.cols(); ++c)
    std::ranges::copy(instance.projection_of(head).row(c), prefix.output_projection.row(c).begin());
  return bounded_scores(change, prefix, 0, space);
}

void hold_window(Change change, const Instance& instance, Space space, Outcome& outcome) {
  const PromptLayer layer(instance);
  const Matrix computed = reference::window_scores(layer.view(), layer.window(), change, space);
  const Matrix groups = reference::group_sum(computed, instance.query_heads);
  const bool seen_alone = layer.window() == instance.tokens();  // the first query sees one entry
  oracle::Rows heads;
  for (int64_t h = 0; h < instance.query_heads; ++h) {
    oracle::Rows entries(static_cast<size_t>(instance.tokens()));  // [tokens][queries that see the token]
    for (int64_t i = 0; i < layer.window(); ++i) {
      const VectorView logits = layer.seen(h, i);
      if (change == Change::exact && logits.size() == 1) continue;
      const oracle::Row scores = seen_scores(change, instance, logits, h, space);
      for (size_t j = 0; j < scores.size(); ++j) entries[j].push_back(scores[j]);
    }
    oracle::Row& sums = heads.emplace_back();
    for (const oracle::Row& scores : entries) sums.push_back(oracle::sum(scores));
  }
  const oracle::Rows entries = transposed(heads);
  for (int64_t j = 0; j < instance.tokens(); ++j) {
    const int64_t index = j;
    if (change == Change::exact && seen_alone && j == 0) {
      outcome.reference_holds("what a query sees alone is of infinite score", groups(0, j) == HUGE_VAL);
      continue;
    }
    for (size_t h = 0; h < heads.size(); ++h)
      outcome.reference_within("score of a window", computed.row(h)[index], heads[h][index]);
    outcome.reference_within("score of a group", groups(0, j), oracle::sum(entries[index]));
  }
}

Outcome group_sums(const Instance& instance) {
  Outcome outcome;
  const Real heads = instance.query_heads;
  for (const Space space : kSpaces) {
    const std::vector<Query> queries = queries_of(instance, space);
    const Real terms = squared_terms(queries);
    for (const size_t p : some_entries(queries.front().entries())) {
      if (instance.tokens() == 1) break;
      for (const Change change : {Change::value, Change::exact, Change::slot}) {
        const Real sum = sum_of_scores(change, queries, p);
        outcome.equal("the squared change of all outputs is the sum of scores",
                      stacked_change(change, queries, p), sum, terms);
        if (space == Space::head) continue;
        const Real layer = layer_change(change, instance, queries, p);
        outcome.at_most("|| sum_h (o'_h - o_h) W_h ||^2 <= heads times the sum of scores", layer, heads * sum,
                        heads * terms);
        outcome.ratio(layer, heads * sum, heads * terms);
      }
      hold_key_limit(queries, p, outcome);
    }
    for (const Change change : kChanges) hold_window(change, instance, space, outcome);
  }
  return outcome;
}

Outcome squared_mean_attention(const Instance& instance) {
  Outcome outcome;
  const std::vector<Query> queries = queries_of(instance, Space::head);
  for (size_t p = 0; p < queries.front().entries(); ++p) {
    Real mean = 0;
    for (const Query& query : queries) mean += query.attention[p] / queries.size();
    outcome.equal("the outputs' squared change is the squared mean weight's",
                  sum_of_scores(Change::value, queries, p),
                  Real(queries.size() * mean * mean * exact::squared(queries.front().values[p])),
                  squared_terms(queries));
  }
  return outcome;
}

Outcome sum_for_the_layer(const Instance& instance) {
  Outcome outcome;
  const std::vector<Query> queries = queries_of(instance, Space::projected);
  for (size_t p = 0; p < queries.front().entries(); ++p) {
    outcome.at_most("|| sum_h (o'_h - o_h) W_h ||^2 <= the sum of scores",
                    layer_change(Change::value, instance, queries, p),
                    sum_of_scores(Change::value, queries, p), squared_terms(queries));
  }
  return outcome;
}

// ---- OBC-special

// Sums of A and of A^2 over the queries, and A of the last query.
struct Sums {
  explicit Sums(const Instance& instance)
      : last(exact::softmax(instance.logits.row(instance.logits.rows() - 1))),
        attention(last.size()),
        squares(last.size()) {
    for (int64_t row = 0; row < instance.logits.rows(); ++row) {
      rows.push_back(exact::softmax(instance.logits.row(row)));
      for (size_t j = 0; j < last.size(); ++j) {
        attention[j] += rows.back()[j];
        squares[j] += rows.back()[j] * rows.back()[j];
      }
    }
  }

  Reals last, attention, squares;
  std::vector<Reals> rows;
};

Positions best(const Reals& scores, const Instance& instance) {
  return exact::with_best(scores, {}, std::ssize(instance.kept));
}

// The instance with values of equal norm: all are the first value, every other one with the opposite sign.
Instance with_level_values(Instance instance) {
  const VectorView first = instance.values.row(0);
  if (std::ranges::all_of(first, [](double x) { return x == 0; })) instance.values(0, 0) = 1;
  for (int64_t j = 1; j < instance.tokens(); ++j) {
    for (int64_t c = 0; c < instance.values.cols(); ++c)
      instance.values(j, c) = j % 2 == 0 ? instance.values(0, c) : -instance.values(0, c);
  }
  return instance;
}

void hold_attention_scores(const Instance& instance, Outcome& outcome) {
  const PromptLayer layer(instance);
  const Matrix h2o = reference::accumulated_attention(layer.view(), layer.window());
  const Matrix snap_kv = reference::window_attention(layer.view(), layer.window());
  const Matrix tova = reference::last_query_attention(layer.view());
  oracle::Rows entries(static_cast<size_t>(instance.tokens()));
  oracle::Row last;
  for (int64_t i = 0; i < layer.window(); ++i) {
    last = oracle::softmax(oracle::exactly(layer.seen(0, i)));
    for (size_t j = 0; j < last.size(); ++j) entries[j].push_back(last[j]);
  }
  for (int64_t j = 0; j < instance.tokens(); ++j) {
    const int64_t index = j;
    const oracle::Bounded sum = oracle::sum(entries[index]);
    outcome.reference_within("H2O's score", h2o(0, j), sum);
    outcome.reference_within("SnapKV's score", snap_kv(0, j),
                             sum / oracle::Bounded(static_cast<double>(layer.window())));
    outcome.reference_within("TOVA's score", tova(0, j), last[index]);
  }
}

void hold_value_selection(const Instance& instance, const Positions& exact_choice, Outcome& outcome) {
  const Instance level = with_level_values(instance);
  const auto computed = computed_scores(Change::value, level, level.queries() - 1, Space::head);
  const oracle::Row scores = bounded_scores(Change::value, level, level.logits.rows() - 1, Space::head);
  const auto k = std::ssize(instance.kept);
  hold_selection(level, scores, exact_choice, reference::select_top(computed.scores.row(0), k), outcome);
}

Outcome special_cases(const Instance& instance) {
  Outcome outcome;
  const Sums sums(instance);
  const Positions by_attention = best(sums.last, instance);
  outcome.require("one query, equal value norms: the value score keeps what attention keeps",
                  best(exact::product(sums.last, sums.last), instance) == by_attention);
  const Real queries = instance.logits.rows();
  for (size_t p = 0; p < sums.last.size(); ++p) {
    const Real squared = sums.attention[p] * sums.attention[p], allowed = queries * sums.squares[p];
    outcome.at_most("(sum A)^2 <= w sum A^2", squared, allowed, allowed);
    outcome.at_most("sum A^2 <= (sum A)^2", sums.squares[p], squared, squared);
    outcome.ratio(squared, allowed);
    for (size_t q = 0; q < sums.last.size(); ++q) {
      const auto below = [&](const Reals& row) { return row[q] <= row[p]; };
      if (std::ranges::all_of(sums.rows, below)) {
        outcome.at_most("heeded less by every query: less sum A^2", sums.squares[q], sums.squares[p],
                        sums.squares[p]);
      }
      if (squared >= queries * sums.attention[q] * sums.attention[q]) {
        outcome.at_most("sqrt(w) times the sum A of another: no less sum A^2", sums.squares[q],
                        sums.squares[p], sums.squares[p]);
      }
    }
  }
  hold_attention_scores(instance, outcome);
  hold_value_selection(instance, by_attention, outcome);
  return outcome;
}

Outcome several_queries(const Instance& instance) {
  Outcome outcome;
  const Sums sums(instance);
  outcome.require("equal value norms: the value score keeps what attention keeps",
                  best(sums.squares, instance) == best(sums.attention, instance));
  return outcome;
}

Outcome other_norms(const Instance& instance) {
  Outcome outcome;
  const Query query = query_of(instance, instance.logits.rows() - 1, Space::head);
  Reals scores;
  for (size_t j = 0; j < query.entries(); ++j) scores.push_back(exact::score(Change::value, query, j));
  outcome.require("one query: the value score keeps what attention keeps",
                  best(scores, instance) == best(query.attention, instance));
  return outcome;
}

}  // namespace

std::vector<Theorem> score_sum_theorems() {
  return {
      {.id = "obc-gqa",
       .title = "sums over a window's queries and a group's heads",
       .statement = "the squared change of all heads' outputs of all queries is the sum of their value, "
                    "exact or zeroing scores; E(t)/t^2 tends to the sum of key scores; the hidden "
                    "state's squared change is at most the number of heads times the sum in projected "
                    "space",
       .hypotheses = "the heads share the entry; their outputs are looked at side by side",
       .source = kObcache + ", eq. 33-35; the hidden state's bound: ours",
       .ratio = "|| sum_h (o'_h - o_h) W_h ||^2 / bound",
       .sizes = {.tokens = 6,
                 .head_dim = 2,
                 .model_dim = 2,
                 .query_heads = 3,
                 .queries = 2,
                 .long_tokens = kLongTokens,
                 .wide_group = kWideGroup},
       .property = {"obc-gqa", "scores add up over queries and heads", group_sums},
       .weakened = {{"obc-gqa:mean-attention", "the same of the squared mean weight", squared_mean_attention},
                    {"obc-gqa:layer", "the sum bounds the squared change of the hidden state",
                     sum_for_the_layer}}},
      {.id = "obc-special",
       .title = "attention-only scores as special cases",
       .statement =
           "with equal value norms and one query the value score ranks as attention; over w queries (sum "
           "A)^2 / w <= sum A^2 <= (sum A)^2, so it ranks as sum A what every query ranks alike or what "
           "differs by a factor of sqrt(w)",
       .hypotheses = "equal value norms; one query for the same ranking",
       .source = kObcache + ", eq. 8; what really holds of it: ours",
       .ratio = "(sum A)^2 / (w sum A^2)",
       .sizes = {.tokens = 10, .head_dim = 2, .model_dim = 2, .queries = 3, .long_tokens = kLongTokens},
       .property = {"obc-special", "when attention alone ranks as the value score", special_cases},
       .weakened = {{"obc-special:several-queries", "the same ranking over several queries", several_queries},
                    {"obc-special:norms", "the same ranking whatever the value norms are", other_norms}}},
  };
}

}  // namespace kvbound::proofs
