#include "detection_floor.hpp"

#include <array>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/diff/claims/input_rounding.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "number_floor.hpp"
#include "output_floor.hpp"

namespace kvbound::sim {
namespace {

// Policies that compute all operations which are judged number by number, and the names of their scores.
struct Scored {
  const char* score;
  const char* components;
};
constexpr std::array kScored{Scored{"score", "+critical"}, Scored{"score, obcache-value", "+obcache-value"},
                             Scored{"score, obcache-key", "+obcache-key"},
                             Scored{"score, obcache-joint", "+obcache-joint"},
                             Scored{"score, exact", "+exact"}};

}  // namespace

std::vector<DetectionFloor> detection_floors(const traces::Layer& layer, const DeclaredArithmetic& declared,
                                             const std::function<void(int64_t, int64_t)>& progress) {
  int64_t done = 0;
  const auto advance = [&] {
    ++done;
    if (progress) progress(done, std::ssize(kScored) + 1);
  };
  TestedImplementation implementation = with_input_rounding(
      {{}, layer.prompt_tokens, 0, declared.arithmetic(), declared.input_storage()}, layer);
  std::vector<DetectionFloor> floors{
      output_floor(layer, implementation.arithmetic.attention, declared.storage)};
  advance();
  for (const Scored& scored : kScored) {
    implementation.policy =
        parse_policy(fmt::format("snapkv:window={}:pool=1{}", layer.window_queries, scored.components));
    for (DetectionFloor& floor : number_floors(layer, implementation, scored.score, declared.storage))
      floors.push_back(std::move(floor));
    advance();
  }
  return floors;
}

}  // namespace kvbound::sim
