#include "model_config.hpp"

#include <cmath>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::traces {

void require_consistent(const ModelConfig& config, const std::string& path) {
  const auto require = [&](bool holds, const char* field, const std::string& problem) {
    if (!holds) throw TraceError(path, -1, field, problem);
  };
  require(config.query_heads % config.kv_heads == 0, "KV heads",
          "are " + std::to_string(config.kv_heads) + "; expected a divisor of the " +
              std::to_string(config.query_heads) + " query heads");
  require(
      config.head_dim % 2 == 0, "head_dim",
      "is " + std::to_string(config.head_dim) + "; RoPE rotates pairs of numbers: expected an even number");
  require(std::isfinite(config.norm_epsilon) && config.norm_epsilon > 0, "epsilon of the norms",
          "is " + std::to_string(config.norm_epsilon) + "; expected a positive number");
  const RopeConfig& rope = config.rope;
  require(std::isfinite(rope.base) && rope.base > 1, "RoPE's base",
          "is " + std::to_string(rope.base) + "; expected a number above 1");
  require(std::isfinite(rope.linear_factor) && rope.linear_factor > 0, "RoPE's factor",
          "is " + std::to_string(rope.linear_factor) + "; expected a positive number");
  if (!rope.llama3) return;
  const Llama3Scaling& scaling = *rope.llama3;
  require(std::isfinite(scaling.factor) && scaling.factor >= 1, "RoPE's factor",
          "is " + std::to_string(scaling.factor) + "; expected a number of at least 1");
  require(scaling.low > 0 && scaling.high > scaling.low && std::isfinite(scaling.high),
          "RoPE's frequency factors",
          "are " + std::to_string(scaling.low) + " and " + std::to_string(scaling.high) +
              "; expected positive, ascending numbers");
  require(scaling.original_context > 0, "RoPE's original context", "is missing or 0");
}

}  // namespace kvbound::traces
