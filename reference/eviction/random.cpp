#include "random.hpp"

#include <string>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::reference {

std::vector<int64_t> sinks_drawn_and_newest(int64_t prompt_tokens, int64_t sinks, int64_t newest,
                                            int64_t budget, const DrawSeed& seed) {
  // The comparison is written so that sinks + newest, which may overflow, is never formed.
  if (sinks < 0 || newest < 0 || budget < sinks || budget - sinks < newest || budget > prompt_tokens) {
    throw ShapeMismatch("budget is " + std::to_string(budget) + " but it must be within " +
                        std::to_string(sinks) + " sinks with the newest " + std::to_string(newest) +
                        " entries, and " + std::to_string(prompt_tokens) + " prompt tokens");
  }
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < sinks; ++i) kept.push_back(i);
  for (const int64_t i : drawn_positions(seed, sinks, prompt_tokens - newest, budget - sinks - newest)) {
    kept.push_back(i);
  }
  for (int64_t i = prompt_tokens - newest; i < prompt_tokens; ++i) kept.push_back(i);
  return kept;
}

}  // namespace kvbound::reference
