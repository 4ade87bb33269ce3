#include "merged_floor.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/sim/diff/claims/claims.hpp>
#include <kvbound/sim/diff/judge/prompt_errors.hpp>
#include <kvbound/sim/diff/replay/layer_replay.hpp>

#include "certain_findings.hpp"

namespace kvbound::sim {
namespace {

// A merged entry's key or value x, along itself: its gain, where that sees more than the elements.
struct EntryRow {
  JudgedDirection gain;
  std::vector<double> bounds;

  // savings  ExpectedEntries::key_savings: by how much the gain's bound stays below those
  //          of the elements together
  EntryRow(VectorView row, VectorView errors, const std::vector<double>& savings)
      : gain{{row.begin(), row.end()}}, bounds(errors.begin(), errors.end()) {
    for (size_t c = 0; c < bounds.size(); ++c) {
      gain.bound += std::abs(row[c]) * bounds[c];
      gain.size += row[c] * row[c];
    }
    gain.bound = savings.empty() || !std::isfinite(gain.bound) ? kInfinity : gain.bound - savings.front();
  }

  bool always_finds_factor(double factor, Dtype storage) const {
    std::vector<double> faulty = gain.w, errors = bounds;
    for (double& number : faulty) number *= factor;
    for (double& number : errors) number *= std::abs(factor);
    return always_finds_along(gain, gain.w, faulty, errors, std::abs(factor) * gain.bound, storage);
  }
  // The smallest factor's, without what the factor itself adds.
  double share(Dtype storage) const {
    double stored = 0;
    for (const double number : gain.w) stored += std::abs(number) * half_spacing(storage, number);
    return gain.size > 0 ? (gain.bound + stored) / gain.size : kInfinity;
  }
};

// The judged numbers of one tensor of merged entries.
class MergedNumbers {
 public:
  void add(VectorView row, VectorView errors, const std::vector<double>& savings) {
    numbers_.insert(numbers_.end(), row.begin(), row.end());
    bounds_.insert(bounds_.end(), errors.begin(), errors.end());
    rows_.emplace_back(row, errors, savings);
  }

  DetectionFloor floor(std::string operation, const traces::Layer& layer, Dtype storage) const {
    DetectionFloor floor{std::move(operation), layer.index, layer.prompt_tokens, std::ssize(numbers_)};
    floor.factor = factor(storage);
    floor.halved = always_find(0.5, storage);
    floor.zeros = always_find(0, storage);
    return floor;
  }

 private:
  bool always_find(double factor, Dtype storage) const {
    return always_find_factor(numbers_, bounds_, factor, storage) ||
           std::ranges::any_of(rows_,
                               [&](const EntryRow& row) { return row.always_finds_factor(factor, storage); });
  }
  // The smallest factor that is found, by the element or the entry that shows it best.
  std::optional<double> factor(Dtype storage) const {
    const std::optional<double> by_element = factor_floor(numbers_, bounds_, storage);
    const auto best =
        std::ranges::min_element(rows_, {}, [&](const EntryRow& row) { return row.share(storage); });
    if (best == rows_.end()) return by_element;
    const std::optional<double> by_entry =
        smallest_factor([&](double factor) { return best->always_finds_factor(factor, storage); });
    if (!by_element || !by_entry) return by_element ? by_element : by_entry;
    return std::min(*by_element, *by_entry);
  }

  std::vector<double> numbers_, bounds_;
  std::vector<EntryRow> rows_;
};

// The tensors of the entries that others merged into.
struct MergedTensors {
  MergedNumbers votes, keys, values;
  int64_t entries = 0;

  void add(const ExpectedEntries& head) {
    for (size_t i = 0; i < head.members.size(); ++i) {
      if (head.members[i].most == 0) continue;
      const auto row = static_cast<int64_t>(i);
      ++entries;
      votes.add(VectorView(head.votes).subspan(i, 1), std::vector{0.0}, {});
      if (!head.possible_keys.contains(i))
        keys.add(head.keys.row(row), head.errors.keys.row(row), head.key_savings[i]);
      values.add(head.values.row(row), head.errors.values.row(row), head.value_savings[i]);
    }
  }
};

}  // namespace

std::vector<DetectionFloor> merged_floors(const traces::Layer& layer,
                                          const TestedImplementation& implementation,
                                          const std::string& method, Dtype storage) {
  const LayerView prompt = layer.prompt();
  const std::vector<int64_t> budgets(layer.shape.kv_heads, implementation.entries);
  LayerRecord record;
  record.prompt = reference::make_session()->compress(prompt, implementation.policy, budgets);
  const PromptErrors errors(prompt, implementation, record.prompt);
  // Judged beside its own record, along the reference's numbers.
  const LayerClaims claims = claims_of(record);
  const LayerReplay replay(layer, implementation, record.prompt, errors, record.prompt.kept, claims);
  MergedTensors merged;
  for (int64_t g = 0; g < layer.shape.kv_heads; ++g) merged.add(replay.prompt_entries(g));
  std::vector<DetectionFloor> floors;
  if (merged.entries == 0) return floors;
  const auto add = [&](const char* tensor, const MergedNumbers& numbers) {
    floors.push_back(numbers.floor(std::string(tensor) + ", " + method, layer, storage));
  };
  if (rules_of(implementation.policy.merge).votes) add("votes", merged.votes);
  add("merged_key", merged.keys);
  add("merged_value", merged.values);
  return floors;
}

}  // namespace kvbound::sim
