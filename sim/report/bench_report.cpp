#include "bench_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/numerics/instruction_set.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/sim/options/magnitude.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

std::string row(std::string_view name, std::string_view median, std::string_view least, std::string_view most,
                std::string_view rate) {
  return fmt::format("{:<38} {:>9} {:>9} {:>9}   {}\n", name, median, least, most, rate);
}

std::string rates_text(const BenchTimes& times, double seconds) {
  const std::string rate = rate_text(times.work / seconds, times.unit);
  const std::string rates = times.bytes ? rate_text(*times.bytes / seconds, "bytes") + ", " + rate : rate;
  return times.unit == kLayerSteps ? duration_text(seconds / times.work) + " a layer; " + rates : rates;
}

std::string line(std::string_view indent, const BenchTimes& times) {
  const Spread seconds = spread(times.seconds);
  return row(fmt::format("{}{}", indent, times.name), duration_text(seconds.median),
             duration_text(seconds.least), duration_text(seconds.most), rates_text(times, seconds.median));
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
  return lines + "\n";
}

std::string rows_heading() { return row("", "median", "least", "most", "rate"); }

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

}  // namespace kvbound::sim
