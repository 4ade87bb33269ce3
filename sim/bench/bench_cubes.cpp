#include "bench_cubes.hpp"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <omp.h>

#include <kvbound/reference/numerics/instruction_set.hpp>
#include <kvbound/sim/figures/cube_table.hpp>

namespace kvbound::sim {
namespace {

using Facts = nlohmann::ordered_json;
using BenchFigures = std::vector<FigureOf<BenchRow>>;

std::optional<Spread> spread_of(const std::vector<double>& numbers) {
  return numbers.empty() ? std::nullopt : std::optional(spread(numbers));
}

// Appends a median, and the least and the most behind it.
template <class Subject>
void add_spread(std::vector<FigureOf<Subject>>& figures, const Figure& median,
                const std::function<std::optional<Spread>(const Subject&)>& of) {
  const auto add = [&](Figure figure, double Spread::*end) {
    figures.emplace_back(std::move(figure), [of, end](const Subject& subject) {
      const auto found = of(subject);
      return found ? (*found).*end : kUndefined;
    });
  };
  add(median, &Spread::median);
  for (const auto& [end, word] : {std::pair(&Spread::least, "least"), std::pair(&Spread::most, "most")}) {
    Figure figure = median;
    figure.name += fmt::format("_{}", word);
    figure.heading = fmt::format("{} {}", word, median.heading);
    figure.meaning = fmt::format("likewise, the {}", word);
    figure.shown = Shown::if_asked;
    add(std::move(figure), end);
  }
}

BenchFigures time_keys() {
  BenchFigures keys = operation_keys<BenchRow>();
  keys.emplace_back(
      text_figure("timed", "what was timed: the operation, or what it is measured against", Shown::if_asked),
      [](const BenchRow& row) { return row.times->name; });
  return keys;
}

BenchFigures time_figures() {
  BenchFigures figures{
      {number_figure("work", "how much of the unit it does", Shown::if_asked),
       [](const BenchRow& row) { return row.times->work; }},
      {number_figure("bytes", "that it reads and writes at least, where they are counted and not its work",
                     Format::memory, Shown::if_asked),
       [](const BenchRow& row) { return row.times->bytes.value_or(kUndefined); }}};
  add_spread<BenchRow>(
      figures,
      number_figure("seconds", "time", "median over the rounds, seconds", Format::duration, Better::lower),
      [](const BenchRow& row) { return spread_of(row.times->seconds); });
  figures.insert(
      figures.end(),
      {{number_figure("rate", "work / median time", Better::higher),
        [](const BenchRow& row) { return row.times->work / spread(row.times->seconds).median; }},
       {text_figure("unit",
                    "of work: FLOP, bytes, exponentials, norms, scores, layers, steps or layer steps"),
        [](const BenchRow& row) { return row.times->unit; }},
       {number_figure("intensity", "FLOP/byte", "FLOP / bytes, where both are counted", Shown::if_asked),
        [](const BenchRow& row) {
          const BenchTimes& times = *row.times;
          return times.unit == "FLOP" && times.bytes ? times.work / *times.bytes : kUndefined;
        }}});
  return figures;
}

// How far the median ratio reaches the goal.
double share_of_goal(const BenchResult& result) {
  if (!result.met()) return kUndefined;
  const double ratio = spread(result.ratios).median, goal = result.goal->value;
  return result.goal->is_least ? ratio / goal : goal / ratio;
}

double goal_of(const BenchRow& row, bool is_least) {
  const auto& goal = row.result->goal;
  return goal && goal->is_least == is_least ? goal->value : kUndefined;
}

void add_ratios(BenchFigures& figures) {
  add_spread<BenchRow>(figures, number_figure("ratio", "taken per round; median over the rounds"),
                       [](const BenchRow& row) { return spread_of(row.result->ratios); });
  const Figure verdict = text_figure(
      "verdict", "whether the median ratio meets the goal; by the median: other rounds say otherwise",
      [](std::string_view cell) { return cell.starts_with("missed"); });
  figures.insert(figures.end(),
                 {{number_figure("at_least", "at least", "the goal, a lower bound on the median ratio"),
                   [](const BenchRow& row) { return goal_of(row, true); }},
                  {number_figure("at_most", "at most", "the goal, an upper bound on the median ratio"),
                   [](const BenchRow& row) { return goal_of(row, false); }},
                  {verdict, [](const BenchRow& row) { return row.result->verdict(); }},
                  {number_figure("of_goal", "of the goal",
                                 "how far the median ratio reaches the goal; from 1 on it is met",
                                 Better::higher, Shown::if_asked),
                   [](const BenchRow& row) { return share_of_goal(*row.result); }}});
}

void add_shares(BenchFigures& figures) {
  for (const auto& [shares, name, heading, meaning] :
       {std::tuple(&BenchShares::copy_bandwidth, "copy_bandwidth", "copy bandwidth",
                   "its bytes per second over those of the copy of the same round"),
        std::tuple(&BenchShares::matrix_rate, "matrix_rate", "matrix rate",
                   "its FLOP per second over those of the matrix product of the same round")}) {
    add_spread<BenchRow>(figures, number_figure(name, heading, meaning, Better::higher),
                         [shares](const BenchRow& row) {
                           const auto& all = row.result->shares;
                           return all ? spread_of((*all).*shares) : std::nullopt;
                         });
  }
}

void add_peer(BenchFigures& figures, const std::optional<Peer>& peer) {
  const auto times = [peer](const BenchRow& row) {
    return peer ? peer_times(*peer, *row.result) : std::nullopt;
  };
  add_spread<BenchRow>(figures,
                       number_figure("peer_seconds", "peer's time",
                                     "what the other program took for the same work, median over its rounds",
                                     Format::duration),
                       [times](const BenchRow& row) {
                         const auto found = times(row);
                         return found ? spread_of(found->times.seconds) : std::nullopt;
                       });
  add_spread<BenchRow>(
      figures,
      number_figure(
          "peer_ratio", "peer / here",
          "how many times as long it took; the least: its least time over this run's most; the most: the reverse"),
      [times](const BenchRow& row) {
        const auto found = times(row);
        return found ? std::optional(found->ratio) : std::nullopt;
      });
}

Cube operations_cube(const BenchReport& report) {
  std::vector<BenchRow> rows;
  for (const BenchResult& result : report.results) rows.push_back({&result, &result.times.front()});
  BenchFigures figures = time_figures();
  add_ratios(figures);
  add_shares(figures);
  add_peer(figures, report.peer);
  figures.insert(
      figures.end(),
      {{text_figure("ratio_of", "of what", "what the ratio is of"),
        [](const BenchRow& row) { return row.result->ratio_meaning; }},
       {text_figure("no_ratio", "no ratio", "why there is none"),
        [](const BenchRow& row) { return row.result->no_ratio; }},
       {count_figure("rounds", "rounds that count", Shown::if_asked),
        [](const BenchRow& row) { return static_cast<double>(row.times->seconds.size()); }},
       {count_figure("warm_up", "warm-up", "rounds before them, which do not count", Shown::if_asked),
        [](const BenchRow& row) { return row.result->warm_up ? 1.0 : 0.0; }}});
  add_requests(figures);
  return list_cube("operations", "operation", time_keys(), figures, rows);
}

Cube against_cube(const BenchReport& report) {
  std::vector<BenchRow> rows;
  for (const BenchResult& result : report.results) {
    for (size_t i = 1; i < result.times.size(); ++i) rows.push_back({&result, &result.times[i]});
  }
  return list_cube("against", "against", time_keys(), time_figures(), rows);
}

struct Ceiling {
  std::string name, unit;
  std::vector<double> rates;
};

Cube ceilings_cube(const BenchReport& report) {
  std::vector<Ceiling> all;
  for (const BenchResult& result : report.results) {
    for (size_t i = 1; result.shares && i < result.times.size(); ++i) {
      const BenchTimes& times = result.times[i];
      auto known = std::ranges::find(all, times.name, &Ceiling::name);
      if (known == all.end()) known = all.insert(all.end(), {times.name, times.unit, {}});
      for (const double seconds : times.seconds) known->rates.push_back(times.work / seconds);
    }
  }
  std::vector<FigureOf<Ceiling>> figures{{text_figure("unit", "bytes, read and written ones, or FLOP"),
                                          [](const Ceiling& one) { return one.unit; }}};
  add_spread<Ceiling>(
      figures,
      number_figure("per_second", "per second",
                    "of the unit, over all rounds of all operations that are compared with it",
                    Better::higher),
      [](const Ceiling& one) { return spread_of(one.rates); });
  return list_cube<Ceiling>("ceilings", "ceiling",
                            {{text_figure("ceiling", "a copy, or a product of BF16 matrices"),
                              [](const Ceiling& one) { return one.name; }}},
                            figures, all);
}

Facts accelerator_facts(const Accelerator& device) {
  return {{"name", device.name},
          {"compute_capability",
           fmt::format("{}.{}", device.compute_capability / 10, device.compute_capability % 10)},
          {"multiprocessors", device.multiprocessors},
          {"memory_bytes", device.memory},
          {"l2_bytes", device.l2_bytes},
          {"driver", device.driver ? Facts(*device.driver) : Facts()},
          {"matrix_library", device.matrix_library ? Facts(*device.matrix_library) : Facts()},
          {"norms_kernel", device.norms_kernel}};
}

Facts peer_facts(const Peer& peer, const std::vector<BenchResult>& results) {
  return {{"name", peer.name},
          {"version", peer.version},
          {"device", peer.device},
          {"device_name", peer.device_name},
          {"storage", peer.storage},
          {"threads", peer.threads},
          {"seed", peer.seed},
          {"sha256", peer.sha256},
          {"not_measured", only_of_peer(peer, results)}};
}

Facts facts(const BenchReport& report) {
  const std::string& core = report.options.fastest_core;
  return {{"backend", report.backend},
          {"accelerator", report.accelerator ? accelerator_facts(*report.accelerator) : Facts()},
          {"storage", report.accelerator ? "BF16" : "F64"},
          {"shape", shape_facts(report.options.shape)},
          {"layers", report.options.layers},
          {"requests", report.options.requests},
          {"instruction_set", name(reference::instruction_set())},
          {"processors", omp_get_num_procs()},
          {"blas_threads", blas_threads(report.options.threads)},
          {"fastest_core", core.empty() ? Facts() : Facts(core)},
          {"peer", report.peer ? peer_facts(*report.peer, report.results) : Facts()}};
}

}  // namespace

void add_requests(std::vector<FigureOf<BenchRow>>& figures) {
  using Counters = cuda::DeviceCounters;
  struct Request {
    const char *name, *meaning;
    int64_t Counters::*count;
  };
  for (
      const Request& request :
      {Request{
           "launches",
           "of kernels that one run asks of the device, or sixteen steps together; a graph counts as its kernels",
           &Counters::launches},
       Request{"fills", "of memory with 0 that it asks for", &Counters::fills},
       Request{"moves", "copies within the device", &Counters::moves},
       Request{"synchronisations", "waits of the host for the device", &Counters::synchronisations},
       Request{"uploads", "copies to the device", &Counters::uploads},
       Request{"upload_bytes", "bytes of uploads", &Counters::upload_bytes},
       Request{"downloads", "copies to the host", &Counters::downloads},
       Request{"download_bytes", "bytes of downloads", &Counters::download_bytes},
       Request{"allocations", "of device memory and of page-locked memory", &Counters::allocations}}) {
    figures.emplace_back(count_figure(request.name, request.meaning, Shown::if_asked),
                         [count = request.count](const BenchRow& row) {
                           const BenchResult& result = *row.result;
                           if (result.prediction)
                             return static_cast<double>(result.prediction->work.requests.*count);
                           return result.requests ? static_cast<double>(*result.requests.*count) : kUndefined;
                         });
  }
}

Facts shape_facts(const BenchShape& shape) {
  return {{"name", shape.name},
          {"tokens", shape.tokens},
          {"query_heads", shape.layer.query_heads},
          {"kv_heads", shape.layer.kv_heads},
          {"head_dim", shape.layer.head_dim},
          {"model_dim", shape.layer.model_dim}};
}

Part bench_part(const BenchReport& report) {
  return {facts(report),
          {operations_cube(report), against_cube(report), ceilings_cube(report)},
          {"operations", "against"}};
}

std::vector<Figure> bench_columns() { return choosable_figures(operations_cube({})); }

}  // namespace kvbound::sim
