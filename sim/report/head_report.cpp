#include "head_report.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <kvbound/sim/options/number.hpp>

#include <kvbound/sim/figures/csv.hpp>
#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>

namespace kvbound::sim {
namespace {

// Mean and extremes over some heads, at least one.
struct HeadSpread {
  double mean = 0, least = 0, most = 0;
};

template <class Heads, class Figure>
HeadSpread over(const Heads& heads, const Figure& figure) {
  std::vector<double> numbers;
  double sum = 0;
  for (const auto& head : heads) sum += numbers.emplace_back(figure(head));
  const auto [least, most] = std::ranges::minmax(numbers);
  return {sum / static_cast<double>(numbers.size()), least, most};
}

std::string spread_cell(const HeadSpread& spread, int places) {
  return fmt::format("{:.{}f} ({:.{}f}-{:.{}f})", spread.mean, places, spread.least, places, spread.most,
                     places);
}

// The position that is the top one of most heads (ties: the smaller one), and of how many.
std::string top_position_cell(const std::vector<AttentionProfile>& heads) {
  std::map<int64_t, int64_t> counts;
  for (const AttentionProfile& head : heads) ++counts[head.top_position];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
  return fmt::format("{} ({} of {})", most->first, most->second, heads.size());
}

bool is_shown(const StoredTies& ties) { return ties.storage == Dtype::bf16; }

TableRow row_of(const std::string& name, const std::vector<AttentionProfile>& query_heads,
                const std::vector<KvHeadProfile>& kv_heads) {
  const auto attention = [&](double AttentionProfile::*figure) {
    return over(query_heads, [&](const AttentionProfile& head) { return head.*figure; });
  };
  const auto values = [&](double EffectiveRank::*figure) {
    return over(kv_heads, [&](const KvHeadProfile& head) { return head.values.*figure; });
  };
  TableRow row{name,
               spread_cell(attention(&AttentionProfile::sink_mass), 3),
               top_position_cell(query_heads),
               spread_cell(attention(&AttentionProfile::top_mass), 3),
               spread_cell(attention(&AttentionProfile::entropy), 2),
               fmt::format("{:.1f}", attention(&AttentionProfile::effective_entries).mean),
               spread_cell(values(&EffectiveRank::effective), 1),
               fmt::format("{:.1f}", values(&EffectiveRank::stable).mean)};
  for (size_t kind = 0; kind < kv_heads.front().ties.size(); ++kind) {
    const StoredTies& first = kv_heads.front().ties[kind];
    if (!is_shown(first)) continue;
    const auto percentage = [&](double ScoreTies::*figure) {
      const HeadSpread spread =
          over(kv_heads, [&](const KvHeadProfile& head) { return head.ties[kind].ties.*figure; });
      return fmt::format("{:.1f} %", 100 * spread.mean);
    };
    row.push_back(percentage(&ScoreTies::share));
    row.push_back(first.ties.cut ? percentage(&ScoreTies::tie_break) : "-");
  }
  return row;
}

std::string explanation(const HeadProfiles& profiles) {
  const HeadProfileOptions& options = profiles.options;
  const traces::TraceInfo& info = profiles.trace;
  return fmt::format(
      "heads of {} of {} layers: means over a layer's heads (least-most)\n"
      "  attention of the last {} prompt queries and {} decode steps; sinks: the first {} positions\n"
      "  effective rank of the values of all {} entries, at most {}\n"
      "  bf16 ties of SnapKV's scores, window {}; tie-break: share of the {} entries that a budget of {} selects\n"
      "  of {} candidates which only the tie-break distinguishes from evicted ones\n\n",
      profiles.layers.size(), info.layers, info.window_queries, info.decode_tokens, options.sinks,
      info.prompt_tokens + info.decode_tokens,
      std::min(info.prompt_tokens + info.decode_tokens, info.shape.head_dim), options.window,
      options.selected(info.prompt_tokens), to_string(options.budget),
      options.candidates(info.prompt_tokens));
}

Json profile_json(const AttentionProfile& head) {
  return {{"sink_mass", head.sink_mass},
          {"top_position", head.top_position},
          {"top_mass", head.top_mass},
          {"entropy", head.entropy},
          {"effective_entries", head.effective_entries},
          {"relative_entropy", head.relative_entropy}};
}

Json profile_json(const KvHeadProfile& head) {
  Json all_ties = Json::array();
  for (const StoredTies& stored : head.ties) {
    const auto& [share, cut, tie_break] = stored.ties;
    all_ties.push_back({{"pool", stored.pool},
                        {"storage", name(stored.storage)},
                        {"share", share},
                        {"cut_tied", cut ? Json(cut->tied) : Json()},
                        {"cut_selected", cut ? Json(cut->selected) : Json()},
                        {"tie_break", tie_break}});
  }
  return {{"effective_rank", head.values.effective}, {"stable_rank", head.values.stable}, {"ties", all_ties}};
}

// The fields of a CSV row that belong to the KV head, each after a comma.
std::string kv_head_fields(const KvHeadProfile& head) {
  std::string fields = fmt::format(",{},{}", shortest(head.values.effective), shortest(head.values.stable));
  for (const StoredTies& stored : head.ties) {
    const auto& [share, cut, tie_break] = stored.ties;
    fields += fmt::format(",{},{},{},{}", shortest(share), cut ? std::to_string(cut->tied) : "",
                          cut ? std::to_string(cut->selected) : "", shortest(tie_break));
  }
  return fields;
}

std::string csv_heading(const HeadProfiles& profiles) {
  std::string heading =
      "trace,layer,head,kv_head,sinks,window,budget,selected,sink_mass,top_position,top_mass,entropy,"
      "effective_entries,relative_entropy,effective_rank,stable_rank";
  for (const StoredTies& stored : profiles.kinds_of_ties()) {
    for (const char* figure : {"ties", "cut_tied", "cut_selected", "tie_break"})
      heading += fmt::format(",{}_pool_{}_{}", figure, stored.pool, name(stored.storage));
  }
  return heading + "\n";
}

}  // namespace

std::string text_report(const HeadProfiles& profiles, const TextStyle& style) {
  TableRow headings{"layer",   "sink mass",    "top position",   "top mass",
                    "entropy", "eff. entries", "eff. rank of V", "stable rank"};
  for (const StoredTies& stored : profiles.kinds_of_ties()) {
    if (!is_shown(stored)) continue;
    const std::string pooled = stored.pool > 1 ? fmt::format("pool {} ", stored.pool) : "";
    headings.push_back(pooled + "ties");
    headings.push_back(pooled + "tie-break");
  }
  std::vector<TableRow> rows{headings};
  std::vector<AttentionProfile> query_heads;
  std::vector<KvHeadProfile> kv_heads;
  for (const LayerProfile& layer : profiles.layers) {
    rows.push_back(
        row_of(std::to_string(profiles.trace.layer_number(layer.layer)), layer.query_heads, layer.kv_heads));
    query_heads.insert(query_heads.end(), layer.query_heads.begin(), layer.query_heads.end());
    kv_heads.insert(kv_heads.end(), layer.kv_heads.begin(), layer.kv_heads.end());
  }
  rows.push_back(row_of("all", query_heads, kv_heads));
  return explanation(profiles) + table(rows, {.text = style, .alarming = {}});
}

Json heads_json(const HeadProfiles& profiles) {
  const HeadProfileOptions& options = profiles.options;
  const int64_t tokens = profiles.trace.prompt_tokens;
  Json heads{{"sinks", options.sinks},
             {"window", options.window},
             {"pool", options.pool},
             {"budget", to_string(options.budget)},
             {"candidates", options.candidates(tokens)},
             {"selected", options.selected(tokens)},
             {"layers", Json::array()}};
  for (const LayerProfile& layer : profiles.layers) {
    Json item{{"layer", profiles.trace.layer_number(layer.layer)},
              {"query_heads", Json::array()},
              {"kv_heads", Json::array()}};
    for (const AttentionProfile& head : layer.query_heads) item["query_heads"].push_back(profile_json(head));
    for (const KvHeadProfile& head : layer.kv_heads) item["kv_heads"].push_back(profile_json(head));
    heads["layers"].push_back(item);
  }
  return heads;
}

std::string csv_report(const HeadProfiles& profiles) {
  const HeadProfileOptions& options = profiles.options;
  const traces::TraceInfo& info = profiles.trace;
  const std::string options_fields =
      fmt::format("{},{},{},{}", options.sinks, options.window, to_string(options.budget),
                  options.selected(info.prompt_tokens));
  std::string csv = csv_heading(profiles);
  for (const LayerProfile& layer : profiles.layers) {
    for (int64_t h = 0; h < info.shape.query_heads; ++h) {
      const AttentionProfile& head = layer.query_heads[h];
      const int64_t g = info.shape.kv_head_of(h);
      csv += fmt::format("{},{},{},{},{},{},{},{},{},{},{}{}\n", csv_field(info.path),
                         info.layer_number(layer.layer), h, g, options_fields, shortest(head.sink_mass),
                         head.top_position, shortest(head.top_mass), shortest(head.entropy),
                         shortest(head.effective_entries), shortest(head.relative_entropy),
                         kv_head_fields(layer.kv_heads[g]));
    }
  }
  return csv;
}

}  // namespace kvbound::sim
