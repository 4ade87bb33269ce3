// A layer of random numbers, given by its shape alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// A layer of near-normal random numbers of variance 1, and W^O of 1/sqrt(rows): attention
/// is spread over all tokens.
struct RandomShape {
  int64_t tokens = 16384;
  int64_t head_dim = 64;
  int64_t query_heads = 2;
  int64_t kv_heads = 1;  ///< divides query_heads
  int64_t window = 8;    ///< recorded queries, the last ones; at most as many as tokens are used
  int64_t seed = 1;
};

/// Whether a text is meant as a shape, not as a path: it begins with the name of an option and "=".
bool is_shape(std::string_view text);
/// Reads a shape such as "tokens=16384:head_dim=128"; options that are not given have their
/// defaults. Throws UsageError.
RandomShape parse_shape(std::string_view text);
/// All options, such that parse_shape(canonical(shape)) is the shape.
std::string canonical(const RandomShape& shape);
/// "  tokens=16384  ...", one line for each option.
std::string shape_help();

/// The layer, its numbers rounded to a type; queries and keys have logits of variance 1.
traces::Layer random_layer(const RandomShape& shape, Dtype storage);

}  // namespace kvbound::sim
