#include "streaming_llm.hpp"

#include <string>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::reference {

std::vector<int64_t> sinks_and_newest(int64_t prompt_tokens, int64_t sinks, int64_t budget) {
  if (sinks < 0 || budget < sinks || budget > prompt_tokens) {
    throw ShapeMismatch("budget is " + std::to_string(budget) + " but it must be within " +
                        std::to_string(sinks) + " sinks and " + std::to_string(prompt_tokens) +
                        " prompt tokens");
  }
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < sinks; ++i) kept.push_back(i);
  for (int64_t i = prompt_tokens - (budget - sinks); i < prompt_tokens; ++i) kept.push_back(i);
  return kept;
}

}  // namespace kvbound::reference
