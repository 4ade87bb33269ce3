#include "prediction_report.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <kvbound/sim/options/magnitude.hpp>

#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/figures/table.hpp>
#include "bench_report.hpp"
#include "environment.hpp"

namespace kvbound::sim {
namespace {

using cuda::counting::ByWidth;
using cuda::counting::Instruction;
using cuda::counting::KernelCounts;
using cuda::counting::LaunchCounts;

constexpr double kSectorBytes = 32;

// Names in the JSON document, in the order of Instruction.
constexpr const char* kInstructionNames[] = {
    "load",         "store",         "matrix_load", "async_copy",       "bulk_copy",
    "mma",          "warpgroup_mma", "fma",         "special_function", "shuffle",
    "warp_barrier", "block_barrier", "mbarrier",    "cluster_barrier",  "atomic"};
static_assert(std::size(kInstructionNames) == cuda::emulation::kInstructions);

// Numbers of equal launches are shown once: kernels in the order of their first launch, each with
// how often it is launched.
struct KernelRow {
  const LaunchCounts* launch;
  const LaunchTime* time;
  int64_t times;
};

std::vector<KernelRow> rows_of(const Prediction& prediction) {
  std::vector<KernelRow> rows;
  for (size_t i = 0; i < prediction.work.launches.size(); ++i) {
    const LaunchCounts& launch = prediction.work.launches[i];
    const auto same = std::ranges::find_if(rows, [&](const KernelRow& row) {
      return row.launch->kernel == launch.kernel && row.launch->blocks() == launch.blocks() &&
             row.launch->counts == launch.counts;
    });
    if (same == rows.end()) {
      rows.push_back({&launch, &prediction.time.launches[i], 1});
    } else {
      ++same->times;
    }
  }
  return rows;
}

std::optional<double> sector_efficiency(const KernelCounts& counts) {
  if (counts.sectors == 0) return std::nullopt;
  return counts.useful_bytes / (counts.sectors * kSectorBytes);
}

std::optional<double> bank_conflicts(const KernelCounts& counts) {
  if (counts.wavefronts == 0) return std::nullopt;
  return 1 - counts.least_wavefronts / counts.wavefronts;
}

std::string percent(std::optional<double> share) {
  return share ? fmt::format("{:.0f} %", 100 * *share) : "-";
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e6) return fmt::format("{:.3g} MB", bytes * 1e-6);
  return fmt::format("{:.3g} kB", bytes * 1e-3);
}

std::string count_text(double count) {
  if (count >= 1e6) return fmt::format("{:.3g} M", count * 1e-6);
  if (count >= 1e4) return fmt::format("{:.3g} k", count * 1e-3);
  return fmt::format("{:.0f}", count);
}

TableRow row_of(const KernelRow& row) {
  const LaunchCounts& launch = *row.launch;
  const KernelCounts& counts = launch.counts;
  return {"  model  " + launch.kernel + (row.times > 1 ? fmt::format(" ({} times)", row.times) : ""),
          fmt::format("{} x {}{}", launch.blocks(), count(launch.block), launch.sampled() ? "*" : ""),
          row.time->registers > 0 ? std::to_string(row.time->registers) : "-",
          fmt::format("{:.2f}", row.time->occupancy),
          bytes_text(launch.touched.read + launch.touched.written),
          bytes_text(counts.sectors * kSectorBytes),
          percent(sector_efficiency(counts)),
          percent(bank_conflicts(counts)),
          count_text(row.time->instructions),
          duration_text(row.time->seconds),
          std::string(name(row.time->limiter))};
}

double device_floor_share(const Prediction& prediction) {
  return *prediction.floor_seconds / prediction.time.device_seconds;
}

Json to_json(const ByWidth& widths) {
  Json counts;
  for (int i = 0; i < cuda::counting::kWidths; ++i)
    counts[std::to_string(1 << i)] = widths[static_cast<size_t>(i)];
  return counts;
}

Json to_json(const KernelCounts& counts) {
  Json instructions;
  for (size_t i = 0; i < counts.instructions.size(); ++i)
    instructions[kInstructionNames[i]] = counts.instructions[i];
  return {{"instructions", instructions},
          {"mma_flop", counts.mma_flop},
          {"warpgroup_mma_flop", counts.warpgroup_mma_flop},
          {"device_loads", to_json(counts.device_loads)},
          {"device_stores", to_json(counts.device_stores)},
          {"shared_loads", to_json(counts.shared_loads)},
          {"shared_stores", to_json(counts.shared_stores)},
          {"device_requests", counts.device_requests},
          {"useful_bytes", counts.useful_bytes},
          {"sectors", counts.sectors},
          {"bulk_bytes", counts.bulk_bytes},
          {"wavefronts", counts.wavefronts},
          {"least_wavefronts", counts.least_wavefronts}};
}

Json to_json(const cuda::emulation::dim3& extent) { return {extent.x, extent.y, extent.z}; }

Json to_json(const LaunchTime& time) {
  Json seconds;
  for (size_t i = 0; i < kResourceCount; ++i)
    seconds[std::string(name(static_cast<Resource>(i)))] = time.of[i];
  return {{"predicted_seconds", time.seconds},
          {"limiter", name(time.limiter)},
          {"seconds_by_resource", seconds},
          {"registers", time.registers > 0 ? Json(time.registers) : Json()},
          {"resident_blocks", time.resident_blocks},
          {"occupancy", time.occupancy},
          {"waves", time.waves},
          {"instructions", time.instructions}};
}

Json to_json(const LaunchCounts& launch, const LaunchTime& time) {
  return {{"kernel", launch.kernel},
          {"grid", to_json(launch.grid)},
          {"block", to_json(launch.block)},
          {"cluster", to_json(launch.cluster)},
          {"shared_bytes", launch.shared_bytes},
          {"sampled", launch.sampled()},
          {"counts", to_json(launch.counts)},
          {"waits",
           {{"device_rounds", launch.chain.device_rounds},
            {"shared_rounds", launch.chain.shared_rounds},
            {"exchanges", launch.chain.exchanges},
            {"barriers", launch.chain.barriers},
            {"cluster_barriers", launch.chain.cluster_barriers},
            {"atomic_rounds", launch.chain.atomic_rounds}}},
          {"bytes_read", launch.touched.read},
          {"bytes_written", launch.touched.written},
          {"model", to_json(time)}};
}

Json to_json(const BenchResult& result) {
  const Prediction& prediction = *result.prediction;
  Json launches = Json::array();
  for (size_t i = 0; i < prediction.work.launches.size(); ++i)
    launches.push_back(to_json(prediction.work.launches[i], prediction.time.launches[i]));
  return {{"operation", result.operation},
          {"policy", result.policy.empty() ? Json() : Json(result.policy)},
          {"predicted_seconds", prediction.time.device_seconds},
          {"kernel_seconds", prediction.time.kernel_seconds},
          {"host_seconds", prediction.time.host_seconds},
          {"limiter", name(prediction.time.limiter)},
          {"floor_seconds", json_number(prediction.floor_seconds)},
          {"attention_seconds", json_number(prediction.attention_seconds)},
          {"requests", requests_json(prediction.work.requests)},
          {"launches", launches}};
}

Json to_json(const Gpu& gpu) {
  Json constants, measured = Json::array();
  for (const GpuConstant& constant : gpu.constants())
    constants[constant.name] = {
        {"value", constant.value}, {"unit", constant.unit}, {"source", constant.source}};
  for (const GpuMeasurement& each : gpu.measured())
    measured.push_back({{"operation", each.operation},
                        {"seconds", each.seconds},
                        {"predicted", each.predicted},
                        {"from", each.from}});
  return {{"name", gpu.name()}, {"constants", constants}, {"measured", measured}};
}

}  // namespace

std::string prediction_heading(const BenchOptions& options) {
  return fmt::format(
      "{}:{}, BF16, seed {}; a model of {}\n"
      "Nothing here was measured: the emulation counted what the kernels do, and a roofline model (sim/roofline)\n"
      "predicts from that how long a GPU takes. *: sampled, extrapolated from 16 or more clusters of blocks.\n\n",
      options.shape.name, options.shape.tokens, options.seed, options.gpu->name());
}

std::string prediction_text(const BenchResult& result) {
  const Prediction& prediction = *result.prediction;
  const OperationTime& time = prediction.time;
  std::string line =
      fmt::format("{}{}: model: {}", result.operation, result.policy.empty() ? "" : ", " + result.policy,
                  duration_text(time.device_seconds));
  if (prediction.floor_seconds && !prediction.attention_seconds) {
    line += fmt::format(", {} of the floor's rate ({})", percent(device_floor_share(prediction)),
                        duration_text(*prediction.floor_seconds));
  }
  if (prediction.attention_seconds) {
    line += fmt::format(", {:.2f} times attention over the same cache ({})",
                        time.device_seconds / *prediction.attention_seconds,
                        duration_text(*prediction.attention_seconds));
  }
  line += fmt::format(", limited by {}", name(time.limiter));
  if (time.host_seconds > 0) line += fmt::format("; host and copies {}", duration_text(time.host_seconds));
  std::vector<TableRow> rows{{"  model of each launch", "blocks", "registers", "occupancy", "touched",
                              "requested", "of it used", "conflicts", "instructions", "time", "limiter"}};
  for (const KernelRow& row : rows_of(prediction)) rows.push_back(row_of(row));
  return line + "\n" + table(rows);
}

Json prediction_json(const BenchOptions& options, const std::vector<BenchResult>& results) {
  Json document{{"schema", "kvbound-bench-model-1"}};
  document["version"] = version();
  document["revision"] = revision();
  document["measured"] = false;
  document["gpu"] = to_json(*options.gpu);
  document["storage"] = "BF16";
  document["seed"] = options.seed;
  document["shape"] = {{"name", options.shape.name},
                       {"tokens", options.shape.tokens},
                       {"query_heads", options.shape.layer.query_heads},
                       {"kv_heads", options.shape.layer.kv_heads},
                       {"head_dim", options.shape.layer.head_dim},
                       {"model_dim", options.shape.layer.model_dim}};
  document["operations"] = Json::array();
  for (const BenchResult& result : results) document["operations"].push_back(to_json(result));
  return document;
}

}  // namespace kvbound::sim
