#include "inspect_cubes.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <kvbound/sim/figures/list_cube.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>

#include "mean.hpp"

namespace kvbound::sim {
namespace {

Figure verdict_figure() {
  return text_figure("verdict", "agrees, or DIFFERS: an error exceeds its bound",
                     [](std::string_view cell) { return cell == "DIFFERS"; });
}

Cube verified_cube(const Inspection& inspection) {
  using V = const VerifiedLayer&;
  return list_cube<VerifiedLayer>(
      "verified", "verified",
      {{count_figure("layer", "the model's number of the layer"),
        [](V one) { return static_cast<double>(one.layer); }}},
      {{verdict_figure(), [](V one) { return std::string(one.agreement.agrees() ? "agrees" : "DIFFERS"); }},
       {number_figure("error", "error", "of the recorded attention output's worst element"),
        [](V one) { return one.agreement.worst_error; }},
       {number_figure("bound", "bound", "of that error, for a model that computes in single precision"),
        [](V one) { return one.agreement.worst_bound; }},
       {number_figure("error_share", "error/bound", "their ratio, the largest of the layer"),
        [](V one) { return one.agreement.worst_share; }},
       {count_figure("query_head", "query head", "where that is"),
        [](V one) { return static_cast<double>(one.agreement.query_head); }},
       {count_figure("row", "of the recorded queries, from 0"),
        [](V one) { return static_cast<double>(one.agreement.row); }},
       {count_figure("column", "of the head's output, from 0"),
        [](V one) { return static_cast<double>(one.agreement.column); }}},
      inspection.verified);
}

const std::vector<FigureOf<AttentionProfile>>& query_head_figures() {
  using P = const AttentionProfile&;
  static const std::vector<FigureOf<AttentionProfile>> kFigures{
      {number_figure("sink_mass", "sink mass", "attention on the first positions, mean over queries"),
       [](P head) { return head.sink_mass; }},
      {count_figure("top_position", "top position",
                    "that attracts most attention on average; ties: the smaller one"),
       [](P head) { return static_cast<double>(head.top_position); }},
      {number_figure("top_mass", "top mass",
                     "how much it attracts on average; 0 of queries that do not see it"),
       [](P head) { return head.top_mass; }},
      {number_figure("entropy", "entropy", "mean of -sum A ln A over queries, in nats"),
       [](P head) { return head.entropy; }},
      {number_figure("effective_entries", "eff. entries", "exp(entropy)"),
       [](P head) { return head.effective_entries; }},
      {number_figure("relative_entropy", "rel. entropy",
                     "mean of a query's entropy / ln(entries that it sees); 0 if it sees one", Format::number,
                     Shown::if_asked),
       [](P head) { return head.relative_entropy; }}};
  return kFigures;
}

const std::vector<FigureOf<KvHeadProfile>>& kv_head_figures() {
  using P = const KvHeadProfile&;
  static const std::vector<FigureOf<KvHeadProfile>> kFigures{
      {number_figure("effective_rank", "eff. rank of V",
                     "of all entries' values: exp(-sum p ln p), p = sigma / sum sigma; 0 for values of zero"),
       [](P head) { return head.values.effective; }},
      {number_figure("stable_rank", "stable rank",
                     "of all entries' values: sum sigma^2 / max sigma^2; 0 for values of zero"),
       [](P head) { return head.values.stable; }}};
  return kFigures;
}

const std::vector<FigureOf<StoredTies>>& tie_figures() {
  using T = const StoredTies&;
  static const std::vector<FigureOf<StoredTies>> kFigures{
      {number_figure("share", "ties", "of the candidates, those whose score another one has as well",
                     Format::share),
       [](T one) { return one.ties.share; }},
      {count_figure("cut_tied", "tied at the cut", "candidates whose score is that of the last selected one"),
       [](T one) { return one.ties.cut ? static_cast<double>(one.ties.cut->tied) : kUndefined; }},
      {count_figure("cut_selected", "selected of these", "how many of them are selected"),
       [](T one) { return one.ties.cut ? static_cast<double>(one.ties.cut->selected) : kUndefined; }},
      {number_figure("tie_break", "tie-break",
                     "of the selected ones, those that an evicted one equals in score", Format::share),
       [](T one) { return one.ties.tie_break; }}};
  return kFigures;
}

// Some heads, those of one layer or of all.
struct Heads {
  std::vector<AttentionProfile> query;
  std::vector<KvHeadProfile> kv;

  void add(const LayerProfile& layer) {
    query.insert(query.end(), layer.query_heads.begin(), layer.query_heads.end());
    kv.insert(kv.end(), layer.kv_heads.begin(), layer.kv_heads.end());
  }
};

// The position that is the top one of most heads (ties: the smaller one), and of how many; none of no heads.
std::pair<double, double> most_frequent_top(const Heads& heads) {
  std::map<int64_t, int64_t> counts;
  for (const AttentionProfile& head : heads.query) ++counts[head.top_position];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
  if (most == counts.end()) return {kUndefined, kUndefined};
  return {static_cast<double>(most->first), static_cast<double>(most->second)};
}

// Adds the mean over heads of one of their figures, and its least and largest number.
template <class Head>
void add_spread(std::vector<FigureOf<Heads>>& figures, const FigureOf<Head>& one,
                std::vector<Head> Heads::*of) {
  const auto numbers = [one, of](const Heads& heads) {
    std::vector<double> result;
    for (const Head& head : heads.*of) result.push_back(one.number(head));
    return result;
  };
  Figure least = one.figure, most = one.figure;
  least.name += "_least", least.heading += " least", least.meaning = "its least one of a head";
  most.name += "_most", most.heading += " most", most.meaning = "its largest one of a head";
  least.shown = most.shown = Shown::if_asked;
  figures.emplace_back(one.figure, [numbers](const Heads& heads) { return mean(numbers(heads)); });
  figures.emplace_back(least, [numbers](const Heads& heads) {
    const std::vector<double> all = numbers(heads);
    return all.empty() ? kUndefined : std::ranges::min(all);
  });
  figures.emplace_back(most, [numbers](const Heads& heads) {
    const std::vector<double> all = numbers(heads);
    return all.empty() ? kUndefined : std::ranges::max(all);
  });
}

// Adds the means over KV heads of what ties in bfloat16, without a pool or with one.
void add_ties(std::vector<FigureOf<Heads>>& figures, bool pooled) {
  const auto of_heads = [pooled](const Heads& heads, auto figure) {
    std::vector<double> numbers;
    for (const KvHeadProfile& head : heads.kv) {
      for (const StoredTies& stored : head.ties) {
        if (stored.storage == Dtype::bf16 && (stored.pool > 1) == pooled)
          numbers.push_back(figure(stored.ties));
      }
    }
    return mean(numbers);
  };
  const std::string before = pooled ? "pooled_" : "", heading = pooled ? "pooled " : "";
  figures.emplace_back(
      number_figure(before + "ties", heading + "ties", "share of tied scores in bfloat16", Format::share),
      [of_heads](const Heads& heads) {
        return of_heads(heads, [](const ScoreTies& ties) { return ties.share; });
      });
  figures.emplace_back(
      number_figure(before + "tie_break", heading + "tie-break", "share of the selection that a tie decides",
                    Format::share),
      [of_heads](const Heads& heads) {
        return of_heads(heads, [](const ScoreTies& ties) { return ties.cut ? ties.tie_break : kUndefined; });
      });
}

const std::vector<FigureOf<Heads>>& summary_figures() {
  static const std::vector<FigureOf<Heads>> kFigures = [] {
    std::vector<FigureOf<Heads>> figures;
    for (const FigureOf<AttentionProfile>& one : query_head_figures()) {
      if (one.figure.name != "top_position") {
        add_spread(figures, one, &Heads::query);
        continue;
      }
      figures.emplace_back(count_figure("top_position", "top position", "the top one of most heads"),
                           [](const Heads& heads) { return most_frequent_top(heads).first; });
      figures.emplace_back(count_figure("top_heads", "of heads", "of how many it is"),
                           [](const Heads& heads) { return most_frequent_top(heads).second; });
    }
    for (const FigureOf<KvHeadProfile>& one : kv_head_figures()) add_spread(figures, one, &Heads::kv);
    add_ties(figures, false);
    add_ties(figures, true);
    return figures;
  }();
  return kFigures;
}

void add_summaries(const HeadProfiles& profiles, const SharedAxis& layers, Part& part) {
  std::vector<Heads> by_layer;
  Heads all;
  for (const LayerProfile& layer : profiles.layers) {
    by_layer.emplace_back().add(layer);
    all.add(layer);
  }
  part.cubes.push_back({"layers", {layers}, columns_of(summary_figures(), by_layer)});
  part.cubes.push_back({"all", {}, columns_of(summary_figures(), std::vector{all})});
}

SharedAxis stored_axis(const HeadProfiles& profiles) {
  Column pool = number_column(count_figure("pool", "width of the max-pool; 1: none", Shown::always));
  Column storage = text_column(text_figure("storage", "type that scores are rounded to", Shown::always));
  if (!profiles.layers.empty()) {
    for (const StoredTies& one : profiles.kinds_of_ties()) {
      pool.numbers().push_back(static_cast<double>(one.pool));
      storage.texts().emplace_back(name(one.storage));
    }
  }
  return axis("stored", {std::move(pool), std::move(storage)});
}

void add_heads(const HeadProfiles& profiles, const SharedAxis& layers, Part& part) {
  std::vector<AttentionProfile> query_heads;
  std::vector<KvHeadProfile> kv_heads;
  std::vector<StoredTies> ties;
  for (const LayerProfile& layer : profiles.layers) {
    query_heads.insert(query_heads.end(), layer.query_heads.begin(), layer.query_heads.end());
    for (const KvHeadProfile& head : layer.kv_heads) {
      kv_heads.push_back(head);
      ties.insert(ties.end(), head.ties.begin(), head.ties.end());
    }
  }
  const LayerShape& shape = profiles.trace.shape;
  const SharedAxis heads =
      counted_axis("head", count_figure("head", "query head, from 0"), shape.query_heads);
  const SharedAxis of_kv =
      counted_axis("kv_head", count_figure("kv_head", "KV head, from 0"), shape.kv_heads);
  part.cubes.push_back({"heads", {layers, heads}, columns_of(query_head_figures(), query_heads)});
  part.cubes.push_back({"kv_heads", {layers, of_kv}, columns_of(kv_head_figures(), kv_heads)});
  part.cubes.push_back({"ties", {layers, of_kv, stored_axis(profiles)}, columns_of(tie_figures(), ties)});
}

void add_options(const HeadProfiles& profiles, nlohmann::ordered_json& facts) {
  const HeadProfileOptions& options = profiles.options;
  const int64_t tokens = profiles.trace.prompt_tokens;
  facts["sinks"] = options.sinks;
  facts["window"] = options.window;
  facts["pool"] = options.pool;
  facts["budget"] = to_string(options.budget);
  facts["candidates"] = options.candidates(tokens);
  facts["selected"] = options.selected(tokens);
}

}  // namespace

Part inspect_part(const Inspection& inspection) {
  const traces::TraceInfo& info = inspection.trace;
  Part part{trace_facts(info, inspection.sha256), {verified_cube(inspection)}, {"heads", "kv_heads", "ties"}};
  part.facts["model_layers"] = traces::layer_numbers(info);
  part.facts["attention_output"] = info.has_attention_output;
  part.facts["tokens"] = info.has_tokens;
  part.subject = {text_column(text_figure("trace", "the trace's path"), {info.path})};
  const HeadProfiles heads = inspection.heads.value_or(HeadProfiles());
  std::vector<int64_t> measured;
  for (const LayerProfile& layer : heads.layers) measured.push_back(layer.layer);
  const SharedAxis layers = layer_axis(heads.trace, measured);
  add_summaries(heads, layers, part);
  add_heads(heads, layers, part);
  if (inspection.heads) add_options(heads, part.facts);
  return part;
}

std::vector<Figure> inspect_columns() { return figures_of(summary_figures()); }

}  // namespace kvbound::sim
