#include "bench_report.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <kvbound/reference/numerics/instruction_set.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/sim/options/magnitude.hpp>
#include <kvbound/traces/messages.hpp>

#include <kvbound/sim/figures/json.hpp>
#include "environment.hpp"

namespace kvbound::sim {
namespace {

std::string row(std::string_view name, std::string_view median, std::string_view least, std::string_view most,
                std::string_view rate) {
  return fmt::format("{:<38} {:>9} {:>9} {:>9}   {}\n", name, median, least, most, rate);
}

std::string rates_text(const BenchTimes& times, double seconds) {
  const std::string rate = rate_text(times.work / seconds, times.unit);
  return times.bytes ? rate_text(*times.bytes / seconds, "bytes") + ", " + rate : rate;
}

std::string line(std::string_view indent, const BenchTimes& times) {
  const Spread seconds = spread(times.seconds);
  return row(fmt::format("{}{}", indent, times.name), duration_text(seconds.median),
             duration_text(seconds.least), duration_text(seconds.most), rates_text(times, seconds.median));
}

Json to_json(const Spread& numbers) {
  return {{"median", numbers.median}, {"least", numbers.least}, {"most", numbers.most}};
}

Json to_json(const BenchTimes& times) {
  return {{"name", times.name},
          {"work", times.work},
          {"unit", times.unit},
          {"bytes", times.bytes ? Json(*times.bytes) : Json()},
          {"seconds", to_json(spread(times.seconds))}};
}

Json to_json(const BenchShares& shares) {
  return {{"copy_bandwidth", to_json(spread(shares.copy_bandwidth))},
          {"matrix_rate", shares.matrix_rate.empty() ? Json() : to_json(spread(shares.matrix_rate))}};
}

Json to_json(const PeerTimes& peer) {
  return {{"seconds", to_json(spread(peer.times.seconds))}, {"ratio", to_json(peer.ratio)}};
}

Json to_json(const BenchResult& result, const std::optional<Peer>& peer) {
  const auto peer_result = peer ? peer_times(*peer, result) : std::nullopt;
  Json times = Json::array();
  for (const BenchTimes& row : result.times) times.push_back(to_json(row));
  Json ratio, goal;
  if (!result.ratios.empty()) ratio = to_json(spread(result.ratios));
  if (result.goal) goal = {{result.goal->is_least ? "at_least" : "at_most", result.goal->value}};
  const auto met = result.met();
  return {{"operation", result.operation},
          {"rounds", result.times.front().seconds.size()},
          {"warm_up", result.warm_up},
          {"times", times},
          {"ratio", ratio},
          {"ratio_meaning", result.ratio_meaning},
          {"no_ratio", result.ratios.empty() ? Json(result.no_ratio) : Json()},
          {"shares", result.shares ? to_json(*result.shares) : Json()},
          {"goal", goal},
          {"met", met ? Json(*met) : Json()},
          {"policy", result.policy.empty() ? Json() : Json(result.policy)},
          {"requests", result.requests ? requests_json(*result.requests) : Json()},
          {"peer", peer_result ? to_json(*peer_result) : Json()}};
}

Json to_json(const Peer& peer, const std::vector<BenchResult>& results) {
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

Json to_json(const BenchShape& shape) {
  return {{"name", shape.name},
          {"tokens", shape.tokens},
          {"query_heads", shape.layer.query_heads},
          {"kv_heads", shape.layer.kv_heads},
          {"head_dim", shape.layer.head_dim},
          {"model_dim", shape.layer.model_dim}};
}

Json to_json(const Accelerator& device) {
  return {{"name", device.name},
          {"compute_capability",
           fmt::format("{}.{}", device.compute_capability / 10, device.compute_capability % 10)},
          {"multiprocessors", device.multiprocessors},
          {"memory_bytes", device.memory},
          {"l2_bytes", device.l2_bytes},
          {"driver", device.driver ? Json(*device.driver) : Json()},
          {"matrix_library", device.matrix_library ? Json(*device.matrix_library) : Json()},
          {"norms_kernel", device.norms_kernel}};
}

// The rates of the rooflines, each over all rounds of all operations that were measured against it.
Json rooflines(const std::vector<BenchResult>& results) {
  std::vector<BenchTimes> all;  // seconds for the same work
  for (const BenchResult& result : results) {
    if (!result.shares) continue;
    for (size_t i = 1; i < result.times.size(); ++i) {
      const BenchTimes& times = result.times[i];
      const auto known = std::ranges::find(all, times.name, &BenchTimes::name);
      if (known == all.end()) {
        all.push_back(times);
      } else {
        known->seconds.insert(known->seconds.end(), times.seconds.begin(), times.seconds.end());
      }
    }
  }
  Json list = Json::array();
  for (const BenchTimes& times : all) {
    std::vector<double> rates;
    for (const double seconds : times.seconds) rates.push_back(times.work / seconds);
    list.push_back({{"name", times.name}, {"unit", times.unit}, {"per_second", to_json(spread(rates))}});
  }
  return list;
}

std::string text(const BenchShares& shares) {
  const auto share = [](const std::vector<double>& numbers) {
    return fmt::format("{:.3g}", spread(numbers).median);
  };
  std::string line = "     medians: " + share(shares.copy_bandwidth) + " of the copy bandwidth";
  if (!shares.matrix_rate.empty()) line += ", " + share(shares.matrix_rate) + " of the matrix rate";
  return line + "\n";
}

std::string text(const cuda::DeviceCounters& requests) {
  return fmt::format(
      "     asks for {} launches, {} fills, {} copies within the device, {} up ({} bytes), {} down ({} "
      "bytes), {} waits, {} allocations\n",
      requests.launches, requests.fills, requests.moves, requests.uploads, requests.upload_bytes,
      requests.downloads, requests.download_bytes, requests.synchronisations, requests.allocations);
}

std::string where(const BenchOptions& options) {
  const reference::BlasInfo blas = reference::blas_info();
  const std::string instead = blas.core == blas.core_at_load ? "" : " (loaded for " + blas.core_at_load + ")";
  return fmt::format("{} thread{}, seed {}; {} loops; {} for {}{}, {}", options.threads,
                     options.threads == 1 ? "" : "s", options.seed, name(reference::instruction_set()),
                     blas.library(), blas.core, instead, blas.flavour);
}

std::string where(const BenchOptions& options, const Accelerator& device) {
  return fmt::format(
      "BF16, seed {}; {}, compute capability {}.{}, {} multiprocessors, L2 cache of {:.3g} MB{}\n{}\nprojected value norms: {}",
      options.seed, device.name, device.compute_capability / 10, device.compute_capability % 10,
      device.multiprocessors, static_cast<double>(device.l2_bytes) * 1e-6,
      device.driver ? ", driver " + *device.driver : "",
      device.matrix_library ? "matrix rate: of cuBLAS (" + *device.matrix_library + ")"
                            : "matrix rate: of mma.sync (no cuBLAS: " + device.no_matrix_library + ")",
      device.norms_kernel);
}

}  // namespace

Json requests_json(const cuda::DeviceCounters& requests) {
  return {{"launches", requests.launches},
          {"fills", requests.fills},
          {"moves", requests.moves},
          {"synchronisations", requests.synchronisations},
          {"uploads", requests.uploads},
          {"upload_bytes", requests.upload_bytes},
          {"downloads", requests.downloads},
          {"download_bytes", requests.download_bytes},
          {"allocations", requests.allocations}};
}

std::string heading(const BenchReport& report) {
  const BenchOptions& options = report.options;
  std::string lines = fmt::format("{}:{}, {}\n", options.shape.name, options.shape.tokens,
                                  report.accelerator ? where(options, *report.accelerator) : where(options));
  if (report.backend == "emulated") {
    lines +=
        "An emulation: this processor runs the kernels, thread by thread. Its times say nothing about any GPU.\n";
  }
  if (report.peer) {
    lines += fmt::format("beside {} on {}\n", peer_text(*report.peer),
                         traces::printable(report.peer->device_name));
  }
  return lines + "\n" + row("", "median", "least", "most", "rate");
}

std::string text(const BenchResult& result) {
  std::string lines;
  for (size_t i = 0; i < result.times.size(); ++i) lines += line(i == 0 ? "" : "  ", result.times[i]);
  const std::string shares =
      (result.shares ? text(*result.shares) : "") + (result.requests ? text(*result.requests) : "");
  if (result.ratios.empty()) return lines + fmt::format("  -> no ratio: {}\n", result.no_ratio) + shares;
  const Spread ratio = spread(result.ratios);
  lines += fmt::format("  -> {:.2f} ({:.2f}-{:.2f}) {}", ratio.median, ratio.least, ratio.most,
                       result.ratio_meaning);
  if (result.goal) {
    lines += fmt::format("; goal {} {:g}: {}", result.goal->is_least ? "at least" : "at most",
                         result.goal->value, result.verdict());
  }
  lines += fmt::format("; {} round{}\n", result.ratios.size(), result.ratios.size() == 1 ? "" : "s");
  return lines + shares;
}

std::string text(const Peer& peer, const BenchResult& result) {
  const auto found = peer_times(peer, result);
  const std::string name = traces::printable(peer.name);
  if (!found) return fmt::format("  -> {} has no counterpart\n", name);
  return line("  ", found->times) + fmt::format("  -> {} takes {:.2f} ({:.2f}-{:.2f}) times as long\n", name,
                                                found->ratio.median, found->ratio.least, found->ratio.most);
}

std::string only_of_peer_text(const BenchReport& report) {
  if (!report.peer) return "";
  const std::vector<std::string> names = only_of_peer(*report.peer, report.results);
  if (names.empty()) return "";
  return fmt::format("\n{} also has: {}\n", traces::printable(report.peer->name), fmt::join(names, "; "));
}

Json to_json(const BenchReport& report) {
  Json document{{"schema", "kvbound-bench-1"}};
  document.update(fields_of(environment()));
  document["processors"] = omp_get_num_procs();
  document["blas_threads"] = blas_threads(report.options.threads);
  document["fastest_core"] = report.options.fastest_core.empty() ? Json() : Json(report.options.fastest_core);
  document["instruction_set"] = name(reference::instruction_set());
  document["backend"] = report.backend;
  document["accelerator"] = report.accelerator ? to_json(*report.accelerator) : Json();
  document["storage"] = report.accelerator ? "BF16" : "F64";
  document["seed"] = report.options.seed;
  document["shape"] = to_json(report.options.shape);
  document["peer"] = report.peer ? to_json(*report.peer, report.results) : Json();
  document["ceilings"] = rooflines(report.results);
  document["operations"] = Json::array();
  for (const BenchResult& result : report.results)
    document["operations"].push_back(to_json(result, report.peer));
  return document;
}

}  // namespace kvbound::sim
