#include "instance.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include <kvbound/proofs/oracle/exact.hpp>
#include <kvbound/reference/core/shape_check.hpp>

#include "draw.hpp"
#include "merging_instance.hpp"
#include "simpler.hpp"

namespace kvbound::proofs {
namespace {

using Positions = std::vector<int64_t>;

void require_ascending(const std::string& what, const Positions& positions, int64_t tokens) {
  if (positions.empty()) throw ShapeMismatch(what + " is empty");
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= tokens) {
      throw ShapeMismatch(what + " has the position " + std::to_string(positions[i]) + " outside 0.." +
                          std::to_string(tokens - 1));
    }
    if (i > 0 && positions[i] <= positions[i - 1]) throw ShapeMismatch(what + " is not ascending");
  }
}

Positions all_but(const Instance& instance, const Positions& entries) {
  Positions all(static_cast<size_t>(instance.tokens()));
  std::iota(all.begin(), all.end(), int64_t{0});
  return exact::difference(all, entries);
}

// ---- drawing

enum class Attention { level, flat, peaked, power_law, tied, sink, huge, plain, count };
enum class Values { plain, tied, sink, opposed, count };
enum class StageOne { best, worst, part, count };

void draw_logits(Draw& draw, Attention attention, std::span<double> logits) {
  const Positions ranks = draw.permutation(static_cast<int64_t>(logits.size()));
  for (size_t j = 0; j < logits.size(); ++j) {
    switch (attention) {
      case Attention::level:
        logits[j] = 1;
        break;
      case Attention::flat:
        logits[j] = draw.on_grid(0x1p-9, 0x1p-10);
        break;
      case Attention::peaked:
        logits[j] = draw.on_grid(1, 0x1p-4) + (ranks[j] == 0 ? static_cast<double>(draw.integer(6, 18)) : 0);
        break;
      case Attention::power_law:
        logits[j] = std::round(-1.5 * std::log(static_cast<double>(ranks[j] + 1)) * 64) / 64;
        break;
      case Attention::tied:
        logits[j] = static_cast<double>(draw.index(3));
        break;
      case Attention::sink:
        logits[j] = j == 0 ? 6 : draw.on_grid(2, 0x1p-4);
        break;
      case Attention::huge:
        logits[j] = draw.on_grid(1e4, 1);
        break;
      default:
        logits[j] = draw.on_grid(4, 0x1p-4);
    }
  }
}

// Queries of one kind; those of a window often attend alike.
void draw_attention(Draw& draw, Matrix& logits) {
  const auto attention = draw.kind<Attention>();
  const bool alike = draw.index(2) == 0;
  for (int64_t r = 0; r < logits.rows(); ++r) {
    draw_logits(draw, attention, logits.row(r));
    if (!alike || r == 0) continue;
    for (int64_t j = 0; j < logits.cols(); ++j) logits(r, j) = logits(0, j) + draw.on_grid(2, 0.5);
  }
}

// The `count` largest logits of the first row.
Positions best(const Instance& instance, const Positions& of, int64_t count) {
  Positions order = of;
  std::ranges::stable_sort(
      order, [&](int64_t a, int64_t b) { return instance.logits(0, a) > instance.logits(0, b); });
  order.resize(static_cast<size_t>(count));
  std::ranges::sort(order);
  return order;
}

void draw_kept(Draw& draw, Instance& instance) {
  const int64_t tokens = instance.tokens();
  const int64_t kind = draw.index(16);  // one entry, all entries, or anything between
  const int64_t budget = kind < 2 || tokens < 3 ? 1 : kind == 2 ? tokens : draw.integer(2, tokens - 1);
  instance.kept = draw.subset(tokens, budget);
  if (draw.index(2) == 0) instance.kept = best(instance, draw.subset(tokens, tokens), budget);
  // What is evicted often weighs next to nothing.
  if (draw.index(3) == 0) {
    const auto drop = static_cast<double>(draw.integer(34, 70));
    for (int64_t j = 0; j < tokens; ++j) {
      if (std::ranges::binary_search(instance.kept, j)) continue;
      for (int64_t r = 0; r < instance.logits.rows(); ++r) instance.logits(r, j) -= drop;
    }
  }
}

void draw_stage_one(Draw& draw, Instance& instance) {
  const auto kept = static_cast<int64_t>(instance.kept.size());
  instance.stage_one = instance.kept;
  if (kept == 1 || draw.index(8) == 0) return;
  const int64_t count = draw.integer(1, kept - 1);
  switch (draw.kind<StageOne>()) {
    case StageOne::best:
      instance.stage_one = best(instance, instance.kept, count);
      break;
    case StageOne::worst:
      for (const int64_t j : best(instance, instance.kept, kept - count)) std::erase(instance.stage_one, j);
      break;
    default:
      instance.stage_one.clear();
      for (const int64_t i : draw.subset(kept, count))
        instance.stage_one.push_back(instance.kept[static_cast<size_t>(i)]);
  }
}

void draw_values(Draw& draw, Instance& instance) {
  const auto values = draw.kind<Values>();
  const bool coarse = values == Values::tied;
  draw.fill(instance.values.view(), coarse ? 1 : 4, coarse ? 1 : 0.25);
  draw.fill(instance.output_projection.view(), 2, coarse ? 1 : 0.25);
  // Heads often read different parts of a value.
  if (draw.index(2) == 0) {
    for (int64_t i = 0; i < instance.output_projection.rows(); ++i) {
      if (draw.index(2) == 0) std::ranges::fill(instance.output_projection.row(i), 0.0);
    }
  }
  if (values == Values::sink) {
    for (double& entry : instance.values.row(0)) entry *= 0x1p-10;
  }
  if (values != Values::opposed) return;
  for (int64_t i = 0; i < instance.tokens(); ++i) {
    const double sign = std::ranges::binary_search(instance.kept, i) ? -1 : 1;
    for (double& entry : instance.values.row(i)) entry = sign * std::abs(entry);
  }
  for (int64_t i = 0; i < instance.output_projection.rows(); ++i) {
    for (double& entry : instance.output_projection.row(i)) entry = std::abs(entry);
  }
}

// Often two tokens outside stage one are the same, so that the smaller index has to win.
void draw_twins(Draw& draw, Instance& instance) {
  const Positions others = all_but(instance, instance.stage_one);
  if (others.size() < 2 || draw.index(4) != 0) return;
  const Positions pair = draw.subset(static_cast<int64_t>(others.size()), 2);
  const int64_t one = others[static_cast<size_t>(pair[0])], other = others[static_cast<size_t>(pair[1])];
  for (int64_t r = 0; r < instance.logits.rows(); ++r) instance.logits(r, other) = instance.logits(r, one);
  std::ranges::copy(instance.values.view().row(one), instance.values.row(other).begin());
}

Instance drawn(const Sizes& largest, const rc::Random& random, int size) {
  Draw draw(random);
  // Small instances first: sizes grow to rapidcheck's nominal one.
  const auto up_to = [&](int64_t most) {
    const int64_t upper = 1 + (most - 1) * std::min(size + 40, rc::kNominalSize) / rc::kNominalSize;
    return draw.integer((1 + upper) / 2, upper);
  };
  Instance instance;
  const int64_t tokens = up_to(largest.tokens), head_dim = up_to(largest.head_dim);
  instance.query_heads = up_to(largest.query_heads);
  instance.logits = Matrix(instance.query_heads * up_to(largest.queries), tokens);
  instance.values = Matrix(tokens, head_dim);
  instance.output_projection = Matrix(instance.query_heads * head_dim, up_to(largest.model_dim));
  draw_attention(draw, instance.logits);
  draw_kept(draw, instance);
  draw_stage_one(draw, instance);
  draw_values(draw, instance);
  draw_twins(draw, instance);
  instance.epsilon = draw.index(3) == 0 ? 0 : std::ldexp(1.0, -static_cast<int>(draw.integer(1, 13)));
  if (largest.merging) draw_merging(draw, instance);
  return instance;
}

// ---- regimes

// Whether for some query these entries hold such a mass; exactly, for the reference is what is tried.
template <class Predicate>
bool any_mass(const Instance& instance, const Positions& entries, const Predicate& predicate) {
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    if (predicate(exact::total(exact::softmax(instance.logits.row(r)), entries))) return true;
  }
  return false;
}

// Whether all but the largest weight of some query hold next to nothing.
bool is_dominated(const Instance& instance) {
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    const exact::Reals weights = exact::softmax(instance.logits.row(r));
    const Positions largest{std::ranges::max_element(weights) - weights.begin()};
    const exact::Real others = exact::total_outside(weights, largest);
    if (0 < others && others < exact::Real("1e-12")) return true;
  }
  return false;
}

bool has_twins(const Instance& instance) {
  const Positions candidates = all_but(instance, instance.stage_one);
  for (size_t i = 0; i < candidates.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (twins(instance, candidates[i], candidates[j])) return true;
    }
  }
  return false;
}

}  // namespace

void require_within(const std::string& what, VectorView numbers, double limit) {
  for (const double number : numbers) {
    if (std::abs(number) <= limit) continue;
    std::ostringstream message;
    message << what << " has " << number << ", which is not within +-" << limit;
    throw NonFinite(message.str());
  }
}

bool twins(const Instance& instance, int64_t a, int64_t b) {
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    if (instance.logits(r, a) != instance.logits(r, b)) return false;
  }
  return std::ranges::equal(instance.values.row(a), instance.values.row(b));
}

void require_valid(const Instance& instance) {
  if (instance.query_heads < 1) throw ShapeMismatch("query_heads is below 1");
  if (instance.tokens() < 1 || instance.logits.rows() < 1) throw ShapeMismatch("logits are empty");
  if (instance.values.cols() < 1) throw ShapeMismatch("values are empty");
  if (instance.output_projection.cols() < 1) throw ShapeMismatch("output_projection is empty");
  require_equal("rows of logits", instance.logits.rows(), "query_heads times queries",
                instance.query_heads * instance.queries());
  require_equal("columns of logits", instance.tokens(), "rows of values", instance.values.rows());
  require_equal("rows of output_projection", instance.output_projection.rows(), "query_heads * head_dim",
                instance.query_heads * instance.values.cols());
  require_ascending("stage_one", instance.stage_one, instance.tokens());
  require_ascending("kept", instance.kept, instance.tokens());
  if (!std::ranges::includes(instance.kept, instance.stage_one))
    throw ShapeMismatch("stage_one is not part of kept");
  require_within("logits", instance.logits.numbers(), 2e4);
  require_within("values", instance.values.numbers(), 1e50);
  require_within("output_projection", instance.output_projection.numbers(), 1e50);
  require_within("epsilon", {&instance.epsilon, 1}, 1e50);
  if (instance.epsilon < 0) throw NonFinite("epsilon is negative");
  if (instance.merges()) require_valid_merging(instance);
}

const char* name(Regime regime) {
  constexpr const char* kNames[] = {"sigma < 1/2",   "evicted < 1e-12", "A > 1 - 1e-12", "ties",
                                    "stage 2 empty", "one kept",        "|m| < KL/1e6",  "0 < KL < 1e-12",
                                    "KL = 0",        "|z| > 5000",      "votes >= 1e5",  "parallel queries",
                                    "epsilon < 1"};
  return kNames[static_cast<size_t>(regime)];
}

bool shows(const Instance& instance, Regime regime) {
  switch (regime) {
    case Regime::small_stage_one:
      return any_mass(instance, instance.stage_one, [](const exact::Real& mass) { return 2 * mass < 1; });
    case Regime::almost_nothing_evicted:
      return any_mass(instance, all_but(instance, instance.kept),
                      [](const exact::Real& mass) { return 0 < mass && mass < exact::Real("1e-12"); });
    case Regime::dominated:
      return is_dominated(instance);
    case Regime::tied:
      return has_twins(instance);
    case Regime::empty_stage_two:
      return instance.stage_one == instance.kept;
    case Regime::single_kept:
      return instance.kept.size() == 1;
    default:
      return shows_merging(instance, regime);
  }
}

rc::Gen<Instance> instances(Sizes largest) {
  return [=](const rc::Random& random, int size) {
    return rc::shrinkable::shrinkRecur(drawn(largest, random, size), [](const Instance& instance) {
      return rc::seq::fromContainer(simpler(instance));
    });
  };
}

}  // namespace kvbound::proofs
