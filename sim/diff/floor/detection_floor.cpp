#include "detection_floor.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/diff/claims/input_rounding.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "merged_floor.hpp"
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

// Policies by which every prompt merges: cosines of random keys are below any usual threshold. KeepKV's
// keys are those of its defaults, of minimal norm: of convex ones nothing new is said, as they are
// weighted means, as values are.
struct Merged {
  const char* method;
  const char* component;
};
constexpr std::array kMerged{Merged{"d2o", "+d2o:threshold=none"},
                             Merged{"keepkv", "+keepkv:threshold=none"}};
constexpr int64_t kMergedShare = 5;  // of the prompt's tokens one in so many is kept
// Each evicted key is compared with each kept one, so that the time grows with the square of the tokens.
constexpr int64_t kMostMergedTokens = 16384;

}  // namespace

std::vector<DetectionFloor> detection_floors(const traces::Layer& layer, const DeclaredArithmetic& declared,
                                             const std::function<void(int64_t, int64_t)>& progress) {
  int64_t done = 0;
  const auto advance = [&] {
    ++done;
    if (progress) progress(done, std::ssize(kScored) + std::ssize(kMerged) + 1);
  };
  TestedImplementation implementation{
      {}, layer.prompt_tokens, 0, declared.arithmetic(), declared.input_storage(), declared.merged_storage()};
  implementation = with_input_rounding(std::move(implementation), layer);
  const auto policy = [&](const char* components) {
    return parse_policy(fmt::format("snapkv:window={}:pool=1{}", layer.window_queries, components));
  };
  std::vector<DetectionFloor> floors{
      output_floor(layer, implementation.arithmetic.attention, declared.storage)};
  advance();
  for (const Scored& scored : kScored) {
    implementation.policy = policy(scored.components);
    for (DetectionFloor& floor : number_floors(layer, implementation, scored.score, declared.storage))
      floors.push_back(std::move(floor));
    advance();
  }
  implementation.entries = std::max(layer.window_queries, layer.prompt_tokens / kMergedShare);
  for (const Merged& merged : kMerged) {
    implementation.policy = policy(merged.component);
    if (layer.prompt_tokens <= kMostMergedTokens) {
      for (DetectionFloor& floor : merged_floors(layer, implementation, merged.method, declared.storage))
        floors.push_back(std::move(floor));
    }
    advance();
  }
  return floors;
}

}  // namespace kvbound::sim
