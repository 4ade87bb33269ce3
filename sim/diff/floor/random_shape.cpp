#include "random_shape.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>

#include <fmt/format.h>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/sim/diff/claims/input_rounding.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/portable_random.hpp>

namespace kvbound::sim {
namespace {

struct Count {
  std::string_view name;
  int64_t RandomShape::*value;
  int64_t least, most;
  std::string_view meaning;
};

constexpr std::array kCounts{
    Count{"tokens", &RandomShape::tokens, 1, int64_t{1} << 24, "tokens of the cache"},
    Count{"head_dim", &RandomShape::head_dim, 1, 16384, "length of keys, values and queries"},
    Count{"query_heads", &RandomShape::query_heads, 1, 4096, "query heads, a multiple of kv_heads"},
    Count{"kv_heads", &RandomShape::kv_heads, 1, 4096, "KV heads"},
    Count{"window", &RandomShape::window, 1, 4096, "queries that score; the last one's output is judged"},
    Count{"seed", &RandomShape::seed, 0, INT64_MAX, "of the random numbers"},
};

const Count* find_count(std::string_view name) {
  const auto found = std::ranges::find(kCounts, name, &Count::name);
  return found == kCounts.end() ? nullptr : &*found;
}

void fill(std::span<double> numbers, uint64_t seed, uint64_t name, double size, Dtype storage) {
  const traces::Stream stream = traces::Stream(seed).child(name);
  constexpr int64_t kBlock = 1 << 16;
  const int64_t count = std::ssize(numbers);
  reference::parallel_for((count + kBlock - 1) / kBlock, [&](int64_t block) {
    for (int64_t i = block * kBlock; i < std::min(count, (block + 1) * kBlock); ++i)
      numbers[i] = rounded_to(size * stream.normal(static_cast<uint64_t>(i)), storage);
  });
}

}  // namespace

bool is_shape(std::string_view text) {
  const size_t equals = text.find('=');
  return equals != std::string_view::npos && find_count(text.substr(0, equals));
}

RandomShape parse_shape(std::string_view text) {
  RandomShape shape;
  std::set<std::string_view> given;
  for (std::string_view rest = text;;) {
    const std::string_view pair = rest.substr(0, rest.find(':')), name = pair.substr(0, pair.find('='));
    const Count* const count = find_count(name);
    if (!count) {
      std::string known;
      for (const Count& candidate : kCounts) known.append(known.empty() ? "" : ", ").append(candidate.name);
      throw UsageError(fmt::format("shape {}: no option {}; there are {}", traces::quoted(text),
                                   traces::quoted(name), known));
    }
    if (!given.insert(name).second) {
      throw UsageError(
          fmt::format("shape {}: option {} is given twice", traces::quoted(text), traces::quoted(name)));
    }
    const auto number = parse_integer(pair.substr(std::min(pair.size(), name.size() + 1)));
    if (!number || *number < count->least || *number > count->most) {
      throw UsageError(fmt::format("shape {}: {}: expected {}=N, an integer from {} to {}",
                                   traces::quoted(text), traces::quoted(pair), name, count->least,
                                   count->most));
    }
    shape.*count->value = *number;
    if (pair.size() == rest.size()) break;
    rest.remove_prefix(pair.size() + 1);
  }
  if (shape.query_heads % shape.kv_heads != 0) {
    throw UsageError(fmt::format("shape {}: kv_heads={} does not divide query_heads={}", traces::quoted(text),
                                 shape.kv_heads, shape.query_heads));
  }
  return shape;
}

std::string canonical(const RandomShape& shape) {
  std::string text;
  for (const Count& count : kCounts) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ":", count.name, shape.*count.value);
  }
  return text;
}

std::string shape_help() {
  std::string text;
  for (const Count& count : kCounts)
    text += fmt::format("  {:<14}  {}\n", fmt::format("{}={}", count.name, RandomShape().*count.value),
                        count.meaning);
  return text;
}

traces::Layer random_layer(const RandomShape& shape, Dtype storage) {
  traces::Layer layer;
  const int64_t rows = shape.query_heads * shape.head_dim;
  layer.shape = {shape.query_heads, shape.kv_heads, shape.head_dim, rows};
  layer.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  layer.prompt_tokens = shape.tokens;
  layer.window_queries = std::min(shape.window, shape.tokens);
  layer.keys = Tensor(shape.kv_heads, shape.tokens, shape.head_dim);
  layer.values = Tensor(shape.kv_heads, shape.tokens, shape.head_dim);
  layer.queries = Tensor(shape.query_heads, layer.window_queries, shape.head_dim);
  layer.output_projection = Matrix(rows, rows);
  const auto seed = static_cast<uint64_t>(shape.seed);
  fill(layer.keys.numbers(), seed, 0, 1, storage);
  fill(layer.values.numbers(), seed, 1, 1, storage);
  fill(layer.queries.numbers(), seed, 2, 1, storage);
  fill({layer.output_projection.data(), static_cast<size_t>(rows * rows)}, seed, 3,
       1 / std::sqrt(static_cast<double>(rows)), storage);
  return layer;
}

}  // namespace kvbound::sim
