#include "obcache.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "attention.hpp"
#include "core/shape_check.hpp"
#include "inner_product.hpp"
#include "instruction_set.hpp"
#include "parallel.hpp"
#include "product.hpp"
#include "scratch.hpp"
#include "token_blocks.hpp"
#include "window_logits.hpp"

namespace kvbound::reference {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// A length's share of its terms below which they cancel: what is left of 53 bits is 40, less what head_dim additions cost.
constexpr double kCancelled = 0x1p-13;

// One query's attention. Where an entry holds more than half of it and that matters, it is set aside.
struct QueryAttention {
  double log_sum_exp = 0;
  int64_t aside = -1;        // the entry
  double lead = 0;           // its weight
  double rest = 1;           // what all others hold: weights are shares of it
  double others = kNothing;  // the others' log-sum-exp; minus infinity: there are none
};

double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }

// Attention by the softmax of the others: nothing cancels however little they hold.
QueryAttention set_aside(VectorView logits, int64_t aside, std::span<double> weights) {
  const auto at = static_cast<size_t>(aside);
  std::ranges::copy(logits, weights.begin());
  weights[at] = kNothing;
  if (logits.size() == 1) {
    weights[at] = 0;
    return {logits[at], aside, 1, 0, kNothing};
  }
  const double largest = *std::ranges::max_element(weights);
  const double others = largest + std::log(softmax(weights, largest, weights));
  const double lead = sigmoid(logits[at] - others);
  return {logits[at] - std::log(lead), aside, lead, sigmoid(others - logits[at]), others};
}

QueryAttention attend(VectorView logits, double largest, bool sets_aside, std::span<double> weights) {
  const double sum = softmax(logits, largest, weights);
  if (sets_aside && sum < 2) {  // the largest weight is 1 / sum
    return set_aside(logits, std::ranges::max_element(logits) - logits.begin(), weights);
  }
  return {largest + std::log(sum), -1, 0, 1, kNothing};
}

// What is taken of entry and output, a v_j - b o, and how much that counts.
template <class Reals>
struct Terms {
  Reals w, a, b;
};

// What is left of e^z_j / sum e^z once j's key is 0, as shares of two numbers of which neither is large:
// (1 - A) entries + slot, where slot / entries = e^-LSE is what an entry of logit 0 weighs.
struct SlotShares {
  SlotShares() = default;
  explicit SlotShares(double log_sum_exp)
      : entries(log_sum_exp < 0 ? std::exp(log_sum_exp) : 1),
        slot(log_sum_exp < 0 ? 1 : std::exp(-log_sum_exp)) {}

  double entries = 1;
  double slot = 0;
};

// A query's row of everything, over the entries of a block that the query sees.
struct BlockRow {
  VectorView logits, weights, squared_norms;  // weights are shares of `rest`
  std::span<double> changes;                  // in: v_j . o; out: w^2 || a v_j - b o ||^2
  double rest = 1;
  double output_norm = 0;  // || o ||^2
  SlotShares shares;
};

template <Change change, class Reals>
[[gnu::always_inline]] inline void terms_of(const Reals& weight, const Reals& logit, const SlotShares& shares,
                                            Terms<Reals>& terms) {
  const Reals one = Reals{} + 1.0;
  terms = {weight, one, one};
  if constexpr (change == Change::value) terms.b = Reals{};
  if constexpr (change == Change::key) terms.w = weight * logit;
  if constexpr (change == Change::joint) {
    terms.a = one + logit;
    terms.b = logit;
  }
  if constexpr (change == Change::exact) terms.w = weight / (one - weight);
  if constexpr (change == Change::slot) {  // (A / q)(v - o) + (r / q) o, q = 1 - A + r
    const Reals whole = (one - weight) * shares.entries + shares.slot;
    terms = {one, weight * shares.entries / whole, (weight * shares.entries - shares.slot) / whole};
  }
}

// The changes of kWidth entries from j on, by inner products. least: < 0 where one of them cancels.
template <Change change, class L>
[[gnu::always_inline]] inline void expand(const BlockRow& row, size_t j, typename L::Reals& least) {
  using Reals = typename L::Reals;
  Reals weight, logit, norm, product;
  L::load(&row.weights[j], weight);
  L::load(&row.logits[j], logit);
  L::load(&row.squared_norms[j], norm);
  L::load(&row.changes[j], product);
  weight *= row.rest;
  Terms<Reals> terms;
  terms_of<change>(weight, logit, row.shares, terms);
  const Reals own = terms.a * terms.a * norm + terms.b * terms.b * row.output_norm;
  const Reals distance = own - 2.0 * (terms.a * terms.b) * product;
  const Reals spare = distance - kCancelled * own;
  least = spare < least ? spare : least;
  L::store(terms.w * terms.w * distance, &row.changes[j]);
}

// All of the row's changes; returns whether one of them cancels.
template <Change change>
bool expand(const BlockRow& row) {
  bool cancels = false;
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        typename L::Reals least = {};
        size_t j = 0;
        for (; j + L::kWidth <= row.changes.size(); j += L::kWidth) expand<change, L>(row, j, least);
        for (size_t l = 0; l < L::kWidth; ++l) cancels |= least[l] < 0;
        Lanes<1>::Reals last = {};
        for (; j < row.changes.size(); ++j) expand<change, Lanes<1>>(row, j, last);
        cancels |= last[0] < 0;
      });
  return cancels;
}

// || a x - b y ||^2, element by element.
double squared_length(const ValueSpace& space, double a, VectorView x, double b, VectorView y) {
  std::vector<double> difference(x.size());
  for (size_t c = 0; c < x.size(); ++c) difference[c] = a * x[c] - b * y[c];
  return space.squared_norm(difference);
}

// What a block's row is measured by.
struct Measure {
  MatrixView values;  // [entries of the block, head_dim]
  VectorView output;  // o [head_dim]
  VectorView dual;    // what o . x is the plain inner product of x with
  const ValueSpace& space;
};

// The changes that cancel, from the differences themselves.
template <Change change>
void mend(const BlockRow& row, const Measure& measure) {
  for (size_t j = 0; j < row.changes.size(); ++j) {
    const VectorView value = measure.values.row(static_cast<int64_t>(j));
    Terms<double> terms;
    terms_of<change>(row.weights[j] * row.rest, row.logits[j], row.shares, terms);
    const double own = terms.a * terms.a * row.squared_norms[j] + terms.b * terms.b * row.output_norm;
    const double distance = own - 2 * (terms.a * terms.b) * inner_product(value, measure.dual);
    if (distance >= kCancelled * own) continue;
    row.changes[j] =
        terms.w * terms.w * squared_length(measure.space, terms.a, value, terms.b, measure.output);
  }
}

template <Change change>
void measure_changes(const BlockRow& row, const Measure& measure) {
  if (expand<change>(row)) mend<change>(row, measure);
}

void measure_changes(Change change, const BlockRow& row, const Measure& measure) {
  switch (change) {
    case Change::value:
      return measure_changes<Change::value>(row, measure);
    case Change::key:
      return measure_changes<Change::key>(row, measure);
    case Change::joint:
      return measure_changes<Change::joint>(row, measure);
    case Change::exact:
      return measure_changes<Change::exact>(row, measure);
    case Change::slot:
      return measure_changes<Change::slot>(row, measure);
  }
}

// The change that the entry makes which was set aside, from the others' own output.
double aside_change(Change change, const QueryAttention& attention, VectorView value, VectorView others,
                    const ValueSpace& space) {
  if (change == Change::exact) {
    if (attention.others == kNothing) return std::numeric_limits<double>::infinity();
    return attention.lead * attention.lead * squared_length(space, 1, value, 1, others);
  }
  // With a logit of 0 against theirs it leaves the others what the logistic function says.
  const double gained = sigmoid(attention.others) - attention.rest;
  std::vector<double> pull(value.size());
  for (size_t c = 0; c < pull.size(); ++c) pull[c] = gained * others[c];
  return squared_length(space, attention.lead, value, 1, pull);
}

// Some queries over one KV head's entries: of each head's the same number, one head after the other.
struct Queries {
  MatrixView logits;                 // [rows, entries]
  std::span<const int64_t> visible;  // [rows]
  std::span<const double> largest;   // [rows]
  int64_t per_head = 1;

  size_t head_of(int64_t row) const { return static_cast<size_t>(row / per_head); }
};

// What the queries look at; heads are those of the queries.
struct Entries {
  MatrixView values;                   // [entries, head_dim]
  MatrixView squared_norms;            // [heads, entries]
  std::span<const ValueSpace> spaces;  // [heads]
};

class ScoredQueries {
 public:
  // weights  [rows, entries], overwritten
  ScoredQueries(Change change, const Queries& queries, const Entries& entries, MutableMatrixView weights)
      : change_(change), queries_(queries), entries_(entries), weights_(weights) {
    const bool sets_aside = change == Change::exact || change == Change::slot;
    for (int64_t row = 0; row < weights.rows; ++row) {
      const auto index = static_cast<size_t>(row), seen = static_cast<size_t>(queries.visible[index]);
      const std::span<double> own = weights.row(row);
      attention_.push_back(
          attend(queries.logits.row(row).first(seen), queries.largest[index], sets_aside, own.first(seen)));
      std::ranges::fill(own.subspan(seen), 0.0);
    }
  }

  // The queries' outputs.
  const Matrix& attend_values() {
    means_ = Matrix(weights_.rows, entries_.values.cols);
    multiply(weights_, entries_.values, means_.view());
    outputs_ = means_;
    for (int64_t row = 0; row < outputs_.rows(); ++row) {
      const QueryAttention& attention = attention_[static_cast<size_t>(row)];
      if (attention.aside < 0) continue;
      const VectorView value = entries_.values.row(attention.aside);
      const std::span<double> output = outputs_.row(row);
      for (size_t c = 0; c < output.size(); ++c) {
        output[c] = attention.lead * value[c] + attention.rest * output[c];
      }
    }
    return outputs_;
  }

  // The true weights, from shares.
  void restore_weights() {
    for (int64_t row = 0; row < weights_.rows; ++row) {
      const QueryAttention& attention = attention_[static_cast<size_t>(row)];
      if (attention.aside < 0) continue;
      for (double& weight : weights_.row(row)) weight *= attention.rest;
      weights_(row, attention.aside) = attention.lead;
    }
  }

  // scores[head, j] += the change of each of the head's queries. After attend_values, unless `value` is scored.
  void add_scores(MutableMatrixView scores) {
    project_outputs();
    const int64_t size = query_product_block(entries_.values.rows);
    Matrix changes(weights_.rows, size);
    for (int64_t b = 0; b < token_blocks(entries_.values.rows, size); ++b) {
      const TokenBlock block(entries_.values, b, size);
      if (change_ != Change::value) multiply_transposed(duals_, block.rows, changes.view());
      for (int64_t row = 0; row < weights_.rows; ++row) add_row(row, block, changes.row(row), scores);
    }
  }

 private:
  // The outputs so that their inner products with values are those of the head's space, and their lengths.
  void project_outputs() {
    output_norms_.assign(static_cast<size_t>(weights_.rows), 0.0);
    if (change_ == Change::value) return;
    duals_ = Matrix(outputs_.rows(), outputs_.cols());
    for (int64_t first = 0; first < outputs_.rows(); first += queries_.per_head) {
      const ValueSpace& space = entries_.spaces[queries_.head_of(first)];
      const MatrixView outputs = outputs_.view().middle_rows(first, queries_.per_head);
      const Matrix duals = space.dual(outputs);
      const std::vector<double> norms = space.squared_norms(outputs);
      std::ranges::copy(duals.numbers(), duals_.row(first).begin());
      std::ranges::copy(norms, output_norms_.begin() + first);
    }
  }

  // One query's changes of one block of entries, added to its head's scores.
  void add_row(int64_t row, const TokenBlock& block, std::span<double> changes, MutableMatrixView scores) {
    const auto index = static_cast<size_t>(row);
    const QueryAttention& attention = attention_[index];
    const auto first = static_cast<size_t>(block.first);
    const int64_t seen = std::min(block.count, queries_.visible[index] - block.first);
    if (seen <= 0) return;
    const auto part = [&](auto numbers) { return numbers.subspan(first, static_cast<size_t>(seen)); };
    if (change_ == Change::value) std::ranges::fill(changes, 0.0);
    const size_t head = queries_.head_of(row);
    const BlockRow mine{part(queries_.logits.row(row)),
                        part(VectorView(weights_.row(row))),
                        part(entries_.squared_norms.row(static_cast<int64_t>(head))),
                        changes.first(static_cast<size_t>(seen)),
                        attention.rest,
                        output_norms_[index],
                        SlotShares(attention.log_sum_exp)};
    const VectorView output = change_ == Change::value ? VectorView() : outputs_.row(row);
    const VectorView dual = change_ == Change::value ? VectorView() : duals_.row(row);
    measure_changes(change_, mine, {block.rows, output, dual, entries_.spaces[head]});
    if (0 <= attention.aside - block.first && attention.aside - block.first < seen) {
      changes[static_cast<size_t>(attention.aside - block.first)] = aside_change(
          change_, attention, entries_.values.row(attention.aside), means_.row(row), entries_.spaces[head]);
    }
    add(mine.changes, part(scores.row(static_cast<int64_t>(head))));
  }

  static void add(VectorView changes, std::span<double> scores) {
    run_at(
        instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
          using L = decltype(lanes);
          size_t j = 0;
          for (; j + L::kWidth <= changes.size(); j += L::kWidth) {
            typename L::Reals change, score;
            L::load(&changes[j], change);
            L::load(&scores[j], score);
            L::store(score + change, &scores[j]);
          }
          for (; j < changes.size(); ++j) scores[j] += changes[j];
        });
  }

  Change change_;
  const Queries& queries_;
  const Entries& entries_;
  MutableMatrixView weights_;  // of the rows with an entry set aside: shares of `rest`, and 0 for it
  std::vector<QueryAttention> attention_;  // [rows]
  Matrix means_;                           // sum_j weights_ij v_j [rows, head_dim]
  Matrix outputs_, duals_;                 // [rows, head_dim]
  std::vector<double> output_norms_;       // [rows]
};

// The squared norms of one KV head's values for each of some query heads' spaces, [heads, entries].
Matrix squared_norms(MatrixView values, std::span<const ValueSpace> spaces) {
  Matrix norms(static_cast<int64_t>(spaces.size()), values.rows);
  for (size_t h = 0; h < spaces.size(); ++h) {
    const std::span<double> row = norms.row(static_cast<int64_t>(h));
    if (h > 0 && spaces[h].is_head()) {
      std::ranges::copy(norms.row(0), row.begin());
    } else {
      std::ranges::copy(spaces[h].squared_norms(values), row.begin());
    }
  }
  return norms;
}

// Infinity is a score, what is no number is none.
void require_scores(MatrixView scores) {
  for (int64_t h = 0; h < scores.rows; ++h) {
    for (const double score : scores.row(h)) {
      if (std::isnan(score)) throw NonFinite("a score is no number: values or logits are too large");
    }
  }
}

}  // namespace

std::optional<Change> change_of(const Score& score) {
  constexpr std::optional<Change> kChanges[] = {std::nullopt, Change::value, Change::key, Change::joint,
                                                Change::exact};
  static_assert(std::size(kChanges) == std::variant_size_v<Score>);
  return kChanges[score.index()];
}

Space space_of(const Score& score) {
  return std::visit(
      []<class One>(const One& one) {
        if constexpr (std::is_base_of_v<ChangeScore, One>) {
          return one.space;
        } else {
          return Space::head;
        }
      },
      score);
}

ScoredAttention scored_attention(Change change, MatrixView queries, const ScoredCache& cache, double scale) {
  const int64_t entries = cache.keys.rows;
  Matrix logits(queries.rows, entries);
  const std::vector<int64_t> visible(static_cast<size_t>(queries.rows), entries);
  const std::vector<double> largest = attention_logits(queries, cache.keys, scale, visible, logits.view());
  ScoredAttention result{{}, Matrix(queries.rows, entries), Matrix(queries.rows, entries)};
  if (entries == 0) return {Matrix(queries.rows, cache.values.cols), result.weights, result.scores};
  const Queries rows{logits, visible, largest, 1};
  const Entries seen{cache.values, cache.squared_norms, cache.spaces};
  ScoredQueries scored(change, rows, seen, result.weights.view());
  result.output = scored.attend_values();
  scored.add_scores(result.scores.view());
  scored.restore_weights();
  require_scores(result.scores);
  return result;
}

Matrix window_scores(const LayerView& layer, int64_t window, Change change, Space space) {
  Matrix scores(layer.shape.query_heads, layer.prompt_tokens());
  const std::vector<ValueSpace> spaces =
      value_spaces(space, layer.output_projection, layer.shape.query_heads);
  const std::vector<HeadBlock> blocks = head_blocks(layer.shape);
  struct Memory {
    Memory(const LayerView& layer, int64_t window)
        : logits(layer, window), weights(static_cast<size_t>(logits.most_rows() * layer.prompt_tokens())) {}
    WindowLogits logits;
    Scratch weights;
  };
  parallel_for(
      static_cast<int64_t>(blocks.size()), [&] { return Memory(layer, window); },
      [&](Memory& memory, int64_t index) {
        const HeadBlock& heads = blocks[static_cast<size_t>(index)];
        const auto own =
            std::span(spaces).subspan(static_cast<size_t>(heads.first), static_cast<size_t>(heads.count));
        const MatrixView values = layer.values.slice(layer.shape.kv_head_of(heads.first));
        const Matrix norms = squared_norms(values, own);
        memory.logits.visit(heads, [&](const WindowLogitsBlock& block) {
          const Queries queries{block.logits, block.visible, block.largest, block.queries};
          const Entries entries{values, norms, own};
          ScoredQueries scored(change, queries, entries,
                               {memory.weights.data(), block.logits.rows, values.rows});
          if (change != Change::value) scored.attend_values();
          scored.add_scores(scores.view().middle_rows(heads.first, heads.count));
        });
      });
  require_scores(scores);
  return scores;
}

Matrix group_sum(MatrixView scores, int64_t group_size) {
  if (group_size < 1 || scores.rows % group_size != 0) {
    throw ShapeMismatch(std::to_string(scores.rows) + " query heads cannot be shared out in groups of " +
                        std::to_string(group_size));
  }
  Matrix sum(scores.rows / group_size, scores.cols);
  for (int64_t h = 0; h < scores.rows; ++h) {
    const std::span<double> row = sum.row(h / group_size);
    for (int64_t j = 0; j < scores.cols; ++j) row[static_cast<size_t>(j)] += scores(h, j);
  }
  return sum;
}

}  // namespace kvbound::reference
