#include "component.hpp"

#include <algorithm>
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

// A text of any characters but controls and double quotes, which stand around it if it has a separator.
Option path(std::string_view name, std::string_view meaning, std::string& field) {
  return {name,
          meaning,
          "a path, in double quotes if it has a colon, plus sign or comma",
          [&field] {
            if (field.empty()) return std::string("PATH");
            return field.find_first_of(":+,") == std::string::npos ? field : '"' + field + '"';
          },
          [&field](std::string_view text) {
            const auto is_plain = [](char c) {
              const auto byte = static_cast<unsigned char>(c);
              return byte >= 0x20 && byte != 0x7f && c != '"';
            };
            if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
              text = text.substr(1, text.size() - 2);
            if (text.empty() || !std::ranges::all_of(text, is_plain)) return false;
            field = text;
            return true;
          },
          true};
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

bool assign_share(Decimal& field, std::string_view text) {
  const auto number = parse_decimal(text);
  if (!number || exceeds(*number, 1)) return false;
  field = *number;
  return true;
}

constexpr const char* kShare = "a decimal from 0 to 1 of at most 18 digits";

Option share(std::string_view name, std::string_view meaning, Decimal& field) {
  return {name, meaning, kShare, [&field] { return to_string(field); },
          [&field](std::string_view text) { return assign_share(field, text); }};
}

// `otherwise` is the text that stands for nullopt.
Option share(std::string_view name, std::string_view meaning, std::optional<Decimal>& field,
             std::string_view otherwise) {
  return {name, meaning, std::string(kShare) + ", or " + std::string(otherwise),
          [&field, otherwise] { return field ? to_string(*field) : std::string(otherwise); },
          [&field, otherwise](std::string_view text) {
            Decimal number;
            if (text != otherwise && !assign_share(number, text)) return false;
            field = text == otherwise ? std::nullopt : std::optional(number);
            return true;
          }};
}

// Accepts a finite number that `valid` accepts; -0 becomes 0.
template <class Valid>
Option real(std::string_view name, std::string_view meaning, double& field, std::string expected,
            Valid valid) {
  return {name, meaning, std::move(expected), [&field] { return shortest(field); },
          [&field, valid](std::string_view text) {
            const auto number = parse_real(text);
            if (!number || !valid(*number)) return false;
            field = *number == 0 ? 0 : *number;
            return true;
          }};
}

// Until `recent` is set, its value follows that of `window`.
Option recent(H2o& host) {
  return {"recent", "newest entries, always kept; by default as many as the window", "an integer >= 0",
          [&host] { return std::to_string(host.recent_entries()); },
          [&host](std::string_view text) {
            const auto number = parse_integer(text);
            if (!number || *number < 0) return false;
            host.recent = number;
            return true;
          }};
}

std::vector<Option> space_option(ChangeScore& score) {
  return {choice("space", "where the output's change is measured: before W^O or after it", score.space,
                 std::array{std::pair{std::string_view("head"), Space::head},
                            std::pair{std::string_view("projected"), Space::projected}})};
}

std::vector<Option> two_stage_options(TwoStage& selection) {
  return {share("alpha", "share of the candidates' budget for stage one", selection.alpha, "adaptive"),
          real("epsilon", "added to the attention score in stage two", selection.epsilon,
               "a finite number >= 0", [](double number) { return number >= 0; }),
          choice("gqa", "how query heads of one KV head are joined in stage two", selection.gqa,
                 std::array{std::pair{std::string_view("mean-of-products"), GqaProduct::mean_of_products},
                            std::pair{std::string_view("product-of-means"), GqaProduct::product_of_means}}),
          choice("norm", "norm of the projected values", selection.norm,
                 std::array{std::pair{std::string_view("l1"), Norm::l1},
                            std::pair{std::string_view("l2"), Norm::l2}})};
}

Option threshold(SimilarTarget& merge) {
  return share("threshold", "merge only if the largest cosine of keys exceeds this", merge.threshold, "none");
}

std::vector<Option> prediction_options(PredictedScores& prediction) {
  return {choice("predict", "scores predicted: a moving average over all queries, or the last query's own",
                 prediction.predict,
                 std::array{std::pair{std::string_view("ema"), Prediction::ema},
                            std::pair{std::string_view("current"), Prediction::current}}),
          real("ema", "weight of the past in the average", prediction.ema,
               "0, or a number from 1e-270 to below 1",
               [](double number) { return number == 0 || (number >= 1e-270 && number < 1); }),
          choice("scores", "scores that are averaged: attention weights, or exp(logit)", prediction.scores,
                 std::array{std::pair{std::string_view("attention"), ScoreKind::attention},
                            std::pair{std::string_view("raw"), ScoreKind::raw}}),
          choice("normalisation", "divisor of the average: the sum of its weights, or 1 - ema^tokens",
                 prediction.normalisation,
                 std::array{std::pair{std::string_view("exact"), Normalisation::exact},
                            std::pair{std::string_view("paper"), Normalisation::paper}})};
}

Option merge_gqa(MergeGqa& field) {
  return choice("gqa", "a KV head's query heads: each by its own scores, or all by mean scores", field,
                std::array{std::pair{std::string_view("joint"), MergeGqa::joint},
                           std::pair{std::string_view("mean"), MergeGqa::mean}});
}

Option merged_key(MergedKey& field) {
  return choice("key", "cluster's mean key, shifted or scaled to conserve its weight, or unchanged", field,
                std::array{std::pair{std::string_view("min-norm"), MergedKey::min_norm},
                           std::pair{std::string_view("zip"), MergedKey::zip},
                           std::pair{std::string_view("convex"), MergedKey::convex}});
}

Option merge_order(MergeOrder& field) {
  return choice("order", "merge what the selection evicts, or merge before the selection", field,
                std::array{std::pair{std::string_view("evict-first"), MergeOrder::evict_first},
                           std::pair{std::string_view("merge-first"), MergeOrder::merge_first}});
}

Option period(std::optional<int64_t>& field) {
  return {"period", "decode steps after which the cache is rebuilt from the full one",
          "an integer >= 1, or none", [&field] { return field ? std::to_string(*field) : "none"; },
          [&field](std::string_view text) {
            const auto number = parse_integer(text);
            if (text != "none" && (!number || *number < 1)) return false;
            field = number;
            return true;
          }};
}

}  // namespace

Component describe(SnapKv& host) {
  return {"snapkv",
          "the last `window` positions are kept; their queries score the other entries",
          {integer("window", "observation window, in tokens", host.window, 1), pool(host.pool)}};
}

Component describe(H2o& host) {
  return {
      "h2o",
      "the first and newest entries are kept; the others are ranked by their accumulated scores, in decoding too",
      {integer("window", "number of last prompt queries that score", host.window, 1),
       integer("sinks", "first positions, always kept", host.sinks, 0), recent(host)}};
}

Component describe(Tova& host) {
  return {"tova",
          "the first entries are kept; the others are ranked by the last query's score, in decoding too",
          {integer("sinks", "first positions, always kept", host.sinks, 0)}};
}

Component describe(StreamingLlm& host) {
  return {"streaming-llm",
          "the first and the newest entries are kept, in decoding too; takes no score, no selection",
          {integer("sinks", "first positions, always kept", host.sinks, 0)}};
}

Component describe(RandomHost& host) {
  return {
      "random",
      "a null baseline: the first, the last and randomly drawn entries are kept; takes no score, no selection",
      {integer("seed", "seed of the random draws", host.seed, 0),
       integer("sinks", "first positions, always kept", host.sinks, 0),
       integer("window", "last positions of the prompt, always kept", host.window, 0)}};
}

Component describe(Given& host) {
  return {
      "given",
      "kept sets, or scores, that were computed elsewhere: of a file, or of a folder's file for the trace or task",
      {path("file", "of kept sets or scores; format: traces/README.md", host.file),
       integer("window", "last prompt queries, where theta-sweep or alpha=adaptive need attention",
               host.window, 1)}};
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
      "greedy",
      "entries are evicted one by one, each time the one whose removal changes the window's outputs least",
      {}};
}

Component describe(Uniform&) { return {"", "every KV head gets the same budget", {}}; }

Component describe(AdaKv& allocation) {
  return {"adakv",
          "a KV head's share of the layer's budget grows with its number of largest scores",
          {share("safeguard", "share of the budget that every head is guaranteed", allocation.safeguard)}};
}

Component describe(Pyramid& allocation) {
  return {"pyramid",
          "early layers keep more than late ones",
          {integer("beta", "the last layer's budget is 1/beta of the mean budget", allocation.beta, 1),
           choice("shape", "how budgets fall from layer to layer", allocation.shape,
                  std::array{std::pair{std::string_view("linear"), Decay::linear},
                             std::pair{std::string_view("cosine"), Decay::cosine}})}};
}

Component describe(HeadKv& allocation) {
  return {"headkv",
          "HeadKV: a KV head's share of the budget of all layers grows with an importance that a file has",
          {path("scores", "of every query head's importance; format: traces/README.md", allocation.scores),
           {"beta", "1/beta of the candidates' budget is shared by importance",
            "a decimal >= 1 of at most 18 digits", [&allocation] { return to_string(allocation.beta); },
            [&allocation](std::string_view text) {
              const auto number = parse_decimal(text);
              if (!number || floor_of_product(*number, 1) < 1) return false;
              allocation.beta = *number;
              return true;
            }},
           real("temperature", "importances are raised to this power before query heads are added up",
                allocation.temperature, "a finite number >= 0", [](double number) { return number >= 0; })}};
}

Component describe(NoMerge&) { return {"", "evicted entries are dropped", {}}; }

Component describe(KeepKv& merge) {
  std::vector<Option> options = prediction_options(merge.prediction);
  options.insert(options.begin(), threshold(merge));
  for (Option& option : std::vector<Option>{
           merged_key(merge.key), merge_gqa(merge.gqa),
           real("rank", "singular values of the queries below this share of the largest are dropped",
                merge.rank, "a number from 0 to 1", [](double number) { return number >= 0 && number <= 1; }),
           merge_order(merge.order), period(merge.period)}) {
    options.push_back(std::move(option));
  }
  return {"keepkv",
          "KeepKV: an evicted entry merges into a kept one, which counts for all entries that it replaces",
          std::move(options),
          {{"keepkv-paper", "keepkv with the options of the paper, as printed",
            [&merge] { merge = KeepKv::as_printed(); }}}};
}

Component describe(ConvexMerge& merge) {
  std::vector<Option> options = prediction_options(merge.prediction);
  options.insert(options.begin(), threshold(merge));
  options.push_back(merge_gqa(merge.gqa));
  return {"convex",
          "an evicted entry merges into a kept one: their mean weighted by predicted scores, without votes",
          std::move(options)};
}

Component describe(D2o& merge) {
  return {"d2o",
          "D2O: an evicted entry merges into a kept one: their mean weighted by the softmax of cosines",
          {threshold(merge)}};
}

Component describe(Cam& merge) {
  return {"cam",
          "CaM: an evicted value is, at random, added in equal shares to the kept values that follow",
          {integer("neighbours", "following kept values that share it", merge.neighbours, 1),
           integer("seed", "seed of the random draws", merge.seed, 0)}};
}

Component describe(KvMerger& merge) {
  return {"kvmerger",
          "KVMerger: an evicted entry merges into a kept one: their mean weighted by a Gaussian of distances",
          {threshold(merge)}};
}

}  // namespace kvbound::sim
