#include "component.hpp"

#include <array>
#include <utility>

#include "number.hpp"

namespace kvbound::sim {
namespace {

Option integer(std::string_view name, std::string_view meaning, int64_t& field, int64_t least) {
  return {name, meaning, "an integer >= " + std::to_string(least), [&field] { return std::to_string(field); },
          [&field, least](std::string_view text) {
            const auto number = parse_integer(text);
            if (!number || *number < least) return false;
            field = *number;
            return true;
          }};
}

template <class Enum, size_t size>
Option choice(std::string_view name, std::string_view meaning, Enum& field,
              std::array<std::pair<std::string_view, Enum>, size> choices) {
  std::string expected;
  for (const auto& [text, value] : choices) expected += (expected.empty() ? "" : " or ") + std::string(text);
  return {name, meaning, expected,
          [&field, choices] {
            for (const auto& [text, value] : choices) {
              if (value == field) return std::string(text);
            }
            return std::string();
          },
          [&field, choices](std::string_view wanted) {
            for (const auto& [text, value] : choices) {
              if (text != wanted) continue;
              field = value;
              return true;
            }
            return false;
          }};
}

Option pool(int64_t& field) {
  Option option = integer("pool", "width of the max-pool over neighbours; 1 is none", field, 1);
  option.expected = "an odd integer >= 1";
  option.assign = [assign = option.assign, &field](std::string_view text) {
    const int64_t before = field;
    if (assign(text) && field % 2 == 1) return true;
    field = before;
    return false;
  };
  return option;
}

Option alpha(std::optional<Decimal>& field) {
  return {"alpha", "share of the candidates' budget for stage one",
          "a decimal from 0 to 1 of at most 18 digits, or adaptive",
          [&field] { return field ? to_string(*field) : "adaptive"; },
          [&field](std::string_view text) {
            if (text == "adaptive") {
              field.reset();
              return true;
            }
            const auto number = parse_decimal(text);
            if (!number || exceeds(*number, 1)) return false;
            field = number;
            return true;
          }};
}

Option epsilon(double& field) {
  return {"epsilon", "added to the attention score in stage two", "a finite number >= 0",
          [&field] { return shortest(field); },
          [&field](std::string_view text) {
            const auto number = parse_real(text);
            if (!number || *number < 0) return false;
            field = *number == 0 ? 0 : *number;  // no negative zero
            return true;
          }};
}

// Unlike other fields, it follows another one until it is set.
Option recent(H2o& host) {
  return {"recent", "newest entries that always stay; by default as many as the window", "an integer >= 0",
          [&host] { return std::to_string(host.recent_entries()); },
          [&host](std::string_view text) {
            const auto number = parse_integer(text);
            if (!number || *number < 0) return false;
            host.recent = number;
            return true;
          }};
}

std::vector<Option> space_option(ChangeScore& score) {
  return {choice("space", "where the change is measured: as it is, or after W^O", score.space,
                 std::array{std::pair{std::string_view("head"), Space::head},
                            std::pair{std::string_view("projected"), Space::projected}})};
}

std::vector<Option> two_stage_options(TwoStage& selection) {
  return {alpha(selection.alpha), epsilon(selection.epsilon),
          choice("gqa", "how query heads of one KV head are joined in stage two", selection.gqa,
                 std::array{std::pair{std::string_view("mean-of-products"), GqaProduct::mean_of_products},
                            std::pair{std::string_view("product-of-means"), GqaProduct::product_of_means}}),
          choice("norm", "norm of the projected values", selection.norm,
                 std::array{std::pair{std::string_view("l1"), Norm::l1},
                            std::pair{std::string_view("l2"), Norm::l2}})};
}

}  // namespace

Component describe(SnapKv& host) {
  return {"snapkv",
          "the last `window` positions stay; the others are ranked by the score that those give them",
          {integer("window", "observation window, in tokens", host.window, 1), pool(host.pool)}};
}

Component describe(H2o& host) {
  return {"h2o",
          "the first and newest entries stay; the others are ranked by all that the score ever gave them, in "
          "decoding too",
          {integer("window", "prompt queries that count", host.window, 1),
           integer("sinks", "first positions that always stay", host.sinks, 0), recent(host)}};
}

Component describe(Tova& host) {
  return {"tova",
          "the first entries stay; the others are ranked by the last query's score, in decoding too",
          {integer("sinks", "first positions that always stay", host.sinks, 0)}};
}

Component describe(StreamingLlm& host) {
  return {"streaming-llm",
          "the first and the newest entries stay, in decoding too; takes no score, no selection",
          {integer("sinks", "first positions that always stay", host.sinks, 0)}};
}

Component describe(AttentionScore&) { return {"", "attention weights", {}}; }

Component describe(ObcacheValue& score) {
  return {"obcache-value", "OBCache: the output's change if the value were zeroed", space_option(score)};
}

Component describe(ObcacheKey& score) {
  return {"obcache-key", "OBCache: the output's change if the key shrinks, to second order",
          space_option(score)};
}

Component describe(ObcacheJoint& score) {
  return {"obcache-joint", "OBCache: likewise, if key and value shrink together", space_option(score)};
}

Component describe(ExactRemoval& score) {
  return {"exact", "the output's change if the entry is removed, without approximation", space_option(score)};
}

Component describe(TopK&) { return {"", "the entries of largest score", {}}; }

Component describe(Critical& selection) {
  return {"critical", "CriticalKV: by attention, then by attention times projected value norm",
          two_stage_options(selection)};
}

Component describe(ThetaSweep& selection) {
  return {"theta-sweep", "the smallest bound among 27 mixtures of attention and norm, top-k and critical",
          two_stage_options(selection)};
}

Component describe(Greedy&) {
  return {
      "greedy", "one after the other leaves, each time the entry that the window's outputs miss least", {}};
}

Component describe(Uniform&) { return {"", "every KV head gets the same budget", {}}; }

Component describe(NoMerge&) { return {"", "who leaves is gone", {}}; }

}  // namespace kvbound::sim
