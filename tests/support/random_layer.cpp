#include "support/random_layer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <ostream>

namespace kvbound::test {
namespace {

std::vector<double> logits_of(Regime regime, int64_t tokens, Random& random) {
  std::vector<double> logits(static_cast<size_t>(tokens));
  std::vector<int64_t> ranks(logits.size());
  std::iota(ranks.begin(), ranks.end(), int64_t{1});
  for (size_t i = ranks.size(); i > 1; --i) {
    std::swap(ranks[i - 1], ranks[static_cast<size_t>(random.index(static_cast<int64_t>(i)))]);
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    switch (regime) {
      case Regime::flat:
        logits[i] = random.uniform(-1e-3, 1e-3);
        break;
      case Regime::peaked:
        logits[i] = ranks[i] == 1 ? random.uniform(6, 18) : random.normal();
        break;
      case Regime::power_law:
        logits[i] = -random.uniform(1.4, 1.6) * std::log(static_cast<double>(ranks[i]));
        break;
      case Regime::tied:
        logits[i] = static_cast<double>(random.index(3));
        break;
      case Regime::sink:
        logits[i] = i == 0 ? 6 : random.normal();
        break;
      case Regime::huge_logits:
        logits[i] = random.uniform(-1e4, 1e4);
        break;
      default:
        logits[i] = 2 * random.normal();
    }
  }
  return logits;
}

}  // namespace

Matrix matrix(std::initializer_list<std::vector<double>> rows) {
  Matrix result;
  for (const std::vector<double>& row : rows) result.append_row(row);
  return result;
}

double Random::uniform(double low, double high) {
  return low + (high - low) * std::ldexp(static_cast<double>(engine_() >> 32), -32);
}

double Random::normal() {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += uniform(0, 1);
  return sum;
}

int64_t Random::index(int64_t count) {
  return static_cast<int64_t>(engine_() % static_cast<uint64_t>(count));
}

std::vector<int64_t> Random::subset(int64_t of, int64_t count) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < of; ++i) {
    // Each of the `of - i` left is as likely as the other to be among the `count - size` wanted.
    if (index(of - i) < count - static_cast<int64_t>(result.size())) result.push_back(i);
  }
  return result;
}

Matrix Random::matrix(int64_t rows, int64_t cols, double size) {
  Matrix result(rows, cols);
  for (int64_t i = 0; i < rows; ++i) {
    for (double& entry : result.row(i)) entry = size * normal();
  }
  return result;
}

Tensor Random::tensor(int64_t slices, int64_t rows, int64_t cols, double size) {
  Tensor result(slices, rows, cols);
  for (double& entry : result.numbers()) entry = size * normal();
  return result;
}

RandomLayer::RandomLayer(LayerShape shape_, int64_t tokens_, int64_t window_queries_, int64_t steps,
                         uint64_t seed)
    : shape(shape_), tokens(tokens_), window_queries(window_queries_) {
  Random random(seed);
  // Keys of varied length make the attention uneven, values of varied length tell norms from weights.
  all_keys = random.tensor(shape.kv_heads, tokens + steps, shape.head_dim, 1.5);
  all_values = random.tensor(shape.kv_heads, tokens + steps, shape.head_dim);
  for (int64_t g = 0; g < shape.kv_heads; ++g) {
    for (int64_t i = 0; i < tokens + steps; ++i) {
      const double length = random.uniform(0.1, 2);
      for (double& entry : all_values.slice(g).row(i)) entry *= length;
    }
  }
  all_queries = random.tensor(shape.query_heads, window_queries + steps, shape.head_dim);
  output_projection = random.matrix(shape.query_heads * shape.head_dim, shape.model_dim, 0.3);
}

LayerView RandomLayer::view() const {
  return {shape,
          1 / std::sqrt(static_cast<double>(shape.head_dim)),
          all_keys.view().middle_rows(0, tokens),
          all_values.view().middle_rows(0, tokens),
          all_queries.view().middle_rows(0, window_queries),
          output_projection};
}

StepView RandomLayer::step(int64_t index) const {
  return {all_keys.view().row_of_slices(tokens + index), all_values.view().row_of_slices(tokens + index),
          all_queries.view().row_of_slices(window_queries + index)};
}

std::string name(Regime regime) {
  constexpr std::array kNames{"flat",
                              "peaked",
                              "power law",
                              "tied",
                              "sink",
                              "huge logits",
                              "almost nothing evicted",
                              "single kept",
                              "empty stage two",
                              "small stage one"};
  return kNames[static_cast<size_t>(regime)];
}

Eviction random_eviction(Regime regime, uint64_t seed) {
  Random random(seed * std::size(kRegimes) + static_cast<uint64_t>(regime));
  const int64_t tokens = 4 + random.index(29);
  const int64_t head_dim = 1 + random.index(6);
  Eviction result{logits_of(regime, tokens, random),
                  random.matrix(tokens, head_dim),
                  random.matrix(head_dim, 1 + random.index(7)),
                  {},
                  {}};
  if (regime == Regime::sink) {
    for (double& entry : result.values.row(0)) entry *= 1e-3;
  }
  const int64_t budget = regime == Regime::single_kept ? 1 : 2 + random.index(tokens - 2);
  result.kept = random.subset(tokens, budget);
  if (regime == Regime::sink) result.kept.front() = 0;
  if (regime == Regime::almost_nothing_evicted) {
    std::vector<bool> is_kept(result.logits.size());
    for (const int64_t i : result.kept) is_kept[static_cast<size_t>(i)] = true;
    for (size_t i = 0; i < is_kept.size(); ++i) {
      if (!is_kept[i]) result.logits[i] -= random.uniform(60, 80);
    }
  }
  const auto by_logit = [&](int64_t a, int64_t b) {
    return result.logits[static_cast<size_t>(a)] < result.logits[static_cast<size_t>(b)];
  };
  if (regime == Regime::small_stage_one) {
    result.stage_one = {*std::ranges::min_element(result.kept, by_logit)};
  } else if (regime == Regime::empty_stage_two || regime == Regime::single_kept) {
    result.stage_one = result.kept;
  } else {
    // The kept entry of largest weight, and some of the others.
    const int64_t best = *std::ranges::max_element(result.kept, by_logit);
    for (const int64_t i : result.kept) {
      if (i == best || random.index(2) == 0) result.stage_one.push_back(i);
    }
  }
  return result;
}

std::ostream& operator<<(std::ostream& out, const Dyadic& number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", number.value);
  return out << text.data();
}

std::vector<double> numbers(const std::vector<Dyadic>& dyadics) {
  std::vector<double> result;
  for (const Dyadic& number : dyadics) result.push_back(number.value);
  return result;
}

rc::Gen<int64_t> integer(int64_t low, int64_t high) {
  // Left to itself inRange hugs its lower end at small sizes.
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(low, high + 1));
}

rc::Gen<Dyadic> dyadic(int64_t limit) {
  // 0, 1, -1, 2, -2, ...: shrinking the integer shrinks the number.
  return rc::gen::map(integer(0, limit * 2048), [](int64_t k) {
    return Dyadic{std::ldexp(static_cast<double>(k % 2 == 0 ? -k / 2 : (k + 1) / 2), -10)};
  });
}

rc::Gen<std::vector<Dyadic>> dyadics(int64_t min_size, int64_t max_size, int64_t limit) {
  return rc::gen::mapcat(rc::gen::pair(integer(min_size, max_size), integer(0, 2)), [=](const auto& drawn) {
    const auto size = static_cast<size_t>(drawn.first);
    const auto coarse =
        rc::gen::map(integer(-1, 1), [](int64_t k) { return Dyadic{static_cast<double>(k)}; });
    return rc::gen::container<std::vector<Dyadic>>(size, drawn.second == 0 ? coarse : dyadic(limit));
  });
}

}  // namespace kvbound::test
