#include "draw_instance.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <kvbound/proofs/oracle/exact.hpp>

#include "draw.hpp"
#include "draw_merging.hpp"
#include "simpler.hpp"

namespace kvbound::proofs {
namespace {

using Positions = std::vector<int64_t>;

enum class Attention { level, flat, peaked, power_law, tied, sink, huge, plain };
constexpr Attention kAttentions[] = {Attention::level,     Attention::flat, Attention::peaked,
                                     Attention::power_law, Attention::tied, Attention::sink,
                                     Attention::huge,      Attention::plain};
enum class Values { plain, tied, sink, opposed };
constexpr Values kValues[] = {Values::plain, Values::tied, Values::sink, Values::opposed};
enum class StageOne { best, worst, part };
constexpr StageOne kStageOnes[] = {StageOne::best, StageOne::worst, StageOne::part};

void draw_logits(Draw& draw, Attention attention, std::span<double> logits) {
  const Positions ranks = draw.permutation(std::ssize(logits));
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
      case Attention::plain:
        logits[j] = draw.on_grid(4, 0x1p-4);
    }
  }
}

// Draws the logits of all queries, of one kind; in half of the cases all rows are near the first one.
void draw_attention(Draw& draw, Matrix& logits) {
  const auto attention = draw.one_of(kAttentions);
  const bool alike = draw.index(2) == 0;
  for (int64_t r = 0; r < logits.rows(); ++r) {
    draw_logits(draw, attention, logits.row(r));
    if (!alike || r == 0) continue;
    for (int64_t j = 0; j < logits.cols(); ++j) logits(r, j) = logits(0, j) + draw.on_grid(2, 0.5);
  }
}

// The positions of the `count` largest logits of the first row, among `of`; ascending.
Positions best(const Instance& instance, const Positions& of, int64_t count) {
  Positions order = of;
  std::ranges::stable_sort(
      order, [&](int64_t a, int64_t b) { return instance.logits(0, a) > instance.logits(0, b); });
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

void draw_kept(Draw& draw, Instance& instance) {
  const int64_t tokens = instance.tokens();
  const int64_t kind = draw.index(16);  // one entry, all entries, or a number in between
  const int64_t budget = kind < 2 || tokens < 3 ? 1 : kind == 2 ? tokens : draw.integer(2, tokens - 1);
  instance.kept = draw.subset(tokens, budget);
  if (draw.index(2) == 0) instance.kept = best(instance, draw.subset(tokens, tokens), budget);
  // In a third of the cases the evicted entries have almost no attention.
  if (draw.index(3) == 0) {
    const auto drop = static_cast<double>(draw.integer(34, 70));
    for (int64_t j = 0; j < tokens; ++j) {
      if (std::ranges::binary_search(instance.kept, j)) continue;
      for (int64_t r = 0; r < instance.logits.rows(); ++r) instance.logits(r, j) -= drop;
    }
  }
}

void draw_stage_one(Draw& draw, Instance& instance) {
  const auto kept = std::ssize(instance.kept);
  instance.stage_one = instance.kept;
  if (kept == 1 || draw.index(8) == 0) return;
  const int64_t count = draw.integer(1, kept - 1);
  switch (draw.one_of(kStageOnes)) {
    case StageOne::best:
      instance.stage_one = best(instance, instance.kept, count);
      break;
    case StageOne::worst:
      for (const int64_t j : best(instance, instance.kept, kept - count)) std::erase(instance.stage_one, j);
      break;
    case StageOne::part:
      instance.stage_one.clear();
      for (const int64_t i : draw.subset(kept, count)) instance.stage_one.push_back(instance.kept[i]);
  }
}

void draw_values(Draw& draw, Instance& instance) {
  const auto values = draw.one_of(kValues);
  const bool coarse = values == Values::tied;
  draw.fill(instance.values.view(), coarse ? 1 : 4, coarse ? 1 : 0.25);
  draw.fill(instance.output_projection.view(), 2, coarse ? 1 : 0.25);
  // In half of the cases, random rows of W^O are zero, so that heads read different parts of a value.
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

// In a quarter of the cases two tokens outside stage one are made equal, so that the tie rule
// (smaller index) decides.
void draw_twins(Draw& draw, Instance& instance) {
  const Positions others = all_but(instance, instance.stage_one);
  if (others.size() < 2 || draw.index(4) != 0) return;
  const Positions pair = draw.subset(std::ssize(others), 2);
  const int64_t one = others[pair[0]], other = others[pair[1]];
  for (int64_t r = 0; r < instance.logits.rows(); ++r) instance.logits(r, other) = instance.logits(r, one);
  std::ranges::copy(instance.values.view().row(one), instance.values.row(other).begin());
}

// The numbers of tokens, dimensions, heads and queries. Small instances come first: these numbers grow up to
// rapidcheck's nominal size.
Sizes draw_sizes(Draw& draw, const Sizes& largest, int size) {
  const auto up_to = [&](int64_t most) {
    const int64_t upper = 1 + (most - 1) * std::min(size + 40, rc::kNominalSize) / rc::kNominalSize;
    return draw.integer((1 + upper) / 2, upper);
  };
  Sizes sizes;
  sizes.tokens = up_to(largest.tokens);
  sizes.head_dim = up_to(largest.head_dim);
  sizes.query_heads = up_to(largest.query_heads);
  sizes.queries = up_to(largest.queries);
  sizes.model_dim = up_to(largest.model_dim);
  return sizes;
}

bool is_large(Draw& draw, const Sizes& largest, int size) {
  return (largest.long_tokens > 0 || largest.wide_group > 0) && size > rc::kNominalSize / 2 &&
         draw.index(5) == 0;
}

// Many tokens or many query heads, in a quarter of these cases up to the limit, in the others in the lower
// quarter of the range. The other numbers are small, so that the case takes not much longer than others.
Sizes draw_large_sizes(Draw& draw, const Sizes& largest) {
  const auto few = [&](int64_t most) { return draw.integer(1, std::min<int64_t>(most, 2)); };
  const auto beyond = [&](int64_t usual, int64_t most) {
    return draw.integer(usual + 1, draw.index(4) == 0 ? most : usual + (most - usual + 3) / 4);
  };
  Sizes sizes{.head_dim = few(largest.head_dim),
              .model_dim = few(largest.model_dim),
              .queries = few(largest.queries)};
  if (largest.wide_group == 0 || (largest.long_tokens > 0 && draw.index(2) == 0)) {
    sizes.tokens = beyond(largest.tokens, largest.long_tokens);
  } else {
    sizes.tokens = draw.integer(1, std::min<int64_t>(largest.tokens, 4));
    sizes.query_heads = beyond(largest.query_heads, largest.wide_group);
  }
  return sizes;
}

Instance drawn(const Sizes& largest, const rc::Random& random, int size) {
  Draw draw(random);
  const Sizes sizes =
      is_large(draw, largest, size) ? draw_large_sizes(draw, largest) : draw_sizes(draw, largest, size);
  Instance instance;
  instance.query_heads = sizes.query_heads;
  instance.logits = Matrix(sizes.query_heads * sizes.queries, sizes.tokens);
  instance.values = Matrix(sizes.tokens, sizes.head_dim);
  instance.output_projection = Matrix(sizes.query_heads * sizes.head_dim, sizes.model_dim);
  draw_attention(draw, instance.logits);
  draw_kept(draw, instance);
  draw_stage_one(draw, instance);
  draw_values(draw, instance);
  draw_twins(draw, instance);
  instance.epsilon = draw.index(3) == 0 ? 0 : std::ldexp(1.0, -static_cast<int>(draw.integer(1, 13)));
  if (largest.merging) draw_merging(draw, instance);
  return instance;
}

}  // namespace

rc::Gen<Instance> instances(Sizes largest) {
  return [=](const rc::Random& random, int size) {
    return rc::shrinkable::shrinkRecur(drawn(largest, random, size), [](const Instance& instance) {
      return rc::seq::fromContainer(simpler(instance));
    });
  };
}

}  // namespace kvbound::proofs
