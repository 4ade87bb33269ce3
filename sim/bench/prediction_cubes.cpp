#include "prediction_cubes.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/list_cube.hpp>

#include "bench_cubes.hpp"

namespace kvbound::sim {
namespace {

using cuda::counting::KernelCounts;
using cuda::counting::LaunchCounts;
using cuda::counting::WaitChain;

constexpr double kSectorBytes = cuda::counting::kSectorBytes;

// In the order of cuda::emulation::Instruction.
constexpr const char* kInstructionNames[] = {
    "load",         "store",         "matrix_load", "async_copy",       "bulk_copy",
    "mma",          "warpgroup_mma", "fma",         "special_function", "shuffle",
    "warp_barrier", "block_barrier", "mbarrier",    "cluster_barrier",  "atomic"};
static_assert(std::size(kInstructionNames) == cuda::emulation::kInstructions);

// A launch of an operation; times: how many launches of it have the same numbers.
struct LaunchRow {
  const BenchResult* result;
  const LaunchCounts* launch;
  const LaunchTime* time;
  int64_t times = 1;
};
using LaunchFigures = std::vector<FigureOf<LaunchRow>>;

std::vector<LaunchRow> launches_of(const std::vector<BenchResult>& results) {
  std::vector<LaunchRow> rows;
  for (const BenchResult& result : results) {
    const Prediction& prediction = *result.prediction;
    for (size_t i = 0; i < prediction.work.launches.size(); ++i)
      rows.push_back({&result, &prediction.work.launches[i], &prediction.time.launches[i]});
  }
  return rows;
}

bool is_same(const LaunchRow& a, const LaunchRow& b) {
  return a.result == b.result && a.launch->kernel == b.launch->kernel &&
         a.launch->blocks() == b.launch->blocks() && a.launch->counts == b.launch->counts;
}

double share(double part, double whole) { return whole > 0 ? part / whole : kUndefined; }

Figure hidden(Figure figure) {
  figure.shown = Shown::if_asked;
  return figure;
}

Figure seconds_figure(const char* name, const char* heading, const char* meaning) {
  return number_figure(name, heading, meaning, Format::duration, Better::lower);
}

LaunchFigures launch_keys() {
  LaunchFigures keys = operation_keys<LaunchRow>();
  keys.emplace_back(text_figure("kernel", "as in cuda/resources.txt"),
                    [](const LaunchRow& row) { return row.launch->kernel; });
  return keys;
}

std::string text_of(const cuda::emulation::dim3& extent) {
  return fmt::format("{} x {} x {}", extent.x, extent.y, extent.z);
}

// How it was launched.
void add_extents(LaunchFigures& figures) {
  figures.insert(figures.end(),
                 {{count_figure("blocks", "of the grid"),
                   [](const LaunchRow& row) { return static_cast<double>(row.launch->blocks()); }},
                  {text_figure("grid", "blocks of the launch along x, y and z", Shown::if_asked),
                   [](const LaunchRow& row) { return text_of(row.launch->grid); }},
                  {text_figure("block", "threads of a block along x, y and z", Shown::if_asked),
                   [](const LaunchRow& row) { return text_of(row.launch->block); }},
                  {text_figure("cluster", "blocks of a cluster along x, y and z", Shown::if_asked),
                   [](const LaunchRow& row) { return text_of(row.launch->cluster); }},
                  {hidden(number_figure("shared_bytes", "dynamic shared memory of a block", Format::memory)),
                   [](const LaunchRow& row) { return static_cast<double>(row.launch->shared_bytes); }},
                  {count_figure("sampled", "1: its numbers are extrapolated from some of its blocks"),
                   [](const LaunchRow& row) { return row.launch->sampled() ? 1.0 : 0.0; }}});
}

// What its warps did: rates of use, then the counts that they are of.
void add_counts(LaunchFigures& figures) {
  figures.insert(figures.end(),
                 {{number_figure("bytes_read", "read", "of device memory, each sector once", Format::memory),
                   [](const LaunchRow& row) { return row.launch->touched.read; }},
                  {number_figure("bytes_written", "written", "likewise", Format::memory),
                   [](const LaunchRow& row) { return row.launch->touched.written; }},
                  {number_figure("requested", "of all sectors that requests touch", Format::memory),
                   [](const LaunchRow& row) { return row.launch->counts.sectors * kSectorBytes; }},
                  {number_figure("used", "share of the requested bytes that lanes use", Format::share),
                   [](const LaunchRow& row) {
                     const KernelCounts& counts = row.launch->counts;
                     return share(counts.useful_bytes, counts.sectors * kSectorBytes);
                   }},
                  {number_figure("conflicts", "share of wavefronts that bank conflicts cause", Format::share),
                   [](const LaunchRow& row) {
                     const KernelCounts& counts = row.launch->counts;
                     return share(counts.wavefronts - counts.least_wavefronts, counts.wavefronts);
                   }}});
  struct Count {
    const char *name, *meaning;
    double KernelCounts::*of;
  };
  for (const Count& count :
       {Count{"mma_flop", "of mma.sync", &KernelCounts::mma_flop},
        Count{"warpgroup_mma_flop", "of wgmma", &KernelCounts::warpgroup_mma_flop},
        Count{"device_requests", "of warps to device memory", &KernelCounts::device_requests},
        Count{"useful_bytes", "different bytes of each request, added up", &KernelCounts::useful_bytes},
        Count{"sectors", "of 32 bytes that requests touch, added up", &KernelCounts::sectors},
        Count{"bulk_bytes", "of device memory, by bulk copies", &KernelCounts::bulk_bytes},
        Count{"wavefronts", "passes through shared memory", &KernelCounts::wavefronts},
        Count{"least_wavefronts", "those that would do without bank conflicts",
              &KernelCounts::least_wavefronts}}) {
    figures.emplace_back(hidden(number_figure(count.name, count.meaning)),
                         [of = count.of](const LaunchRow& row) { return row.launch->counts.*of; });
  }
}

// What warps wait for, one after the other (sim/roofline/README.md).
void add_waits(LaunchFigures& figures) {
  struct Wait {
    const char *name, *meaning;
    int64_t WaitChain::*of;
  };
  for (const Wait& wait : {Wait{"device_rounds", "waits of a warp for device memory, the most of any",
                                &WaitChain::device_rounds},
                           Wait{"shared_rounds", "likewise for shared memory", &WaitChain::shared_rounds},
                           Wait{"exchanges", "likewise for other lanes", &WaitChain::exchanges},
                           Wait{"barriers", "likewise for the block", &WaitChain::barriers},
                           Wait{"cluster_barriers", "likewise for the cluster", &WaitChain::cluster_barriers},
                           Wait{"atomic_rounds", "likewise for atomics", &WaitChain::atomic_rounds}}) {
    figures.emplace_back(
        count_figure(wait.name, wait.meaning, Shown::if_asked),
        [of = wait.of](const LaunchRow& row) { return static_cast<double>(row.launch->chain.*of); });
  }
}

double flop_of(const LaunchRow& row) {
  return row.launch->counts.mma_flop + row.launch->counts.warpgroup_mma_flop;
}

double bytes_of(const LaunchRow& row) { return row.launch->touched.read + row.launch->touched.written; }

// What the model makes of it.
void add_model(LaunchFigures& figures) {
  figures.insert(
      figures.end(),
      {{count_figure("registers", "of a thread"),
        [](const LaunchRow& row) { return row.time->registers > 0 ? row.time->registers : kUndefined; }},
       {number_figure("occupancy", "share of a multiprocessor's 64 warps", Format::share),
        [](const LaunchRow& row) { return row.time->occupancy; }},
       {count_figure("resident_blocks", "of a multiprocessor", Shown::if_asked),
        [](const LaunchRow& row) { return static_cast<double>(row.time->resident_blocks); }},
       {hidden(number_figure("waves", "of resident blocks")),
        [](const LaunchRow& row) { return row.time->waves; }},
       {number_figure("instructions", "of warps, estimated by what nvcc made of the main loops"),
        [](const LaunchRow& row) { return row.time->instructions; }},
       {seconds_figure("predicted_seconds", "predicted", "by the roofline model, seconds"),
        [](const LaunchRow& row) { return row.time->seconds; }},
       {text_figure("limiter", "the resource that takes longest"),
        [](const LaunchRow& row) { return std::string(name(row.time->limiter)); }},
       {hidden(number_figure("rate", "FLOP on tensor cores / predicted time")),
        [](const LaunchRow& row) { return share(flop_of(row), flop_of(row) > 0 ? row.time->seconds : 0); }},
       {hidden(number_figure("intensity", "FLOP/byte", "FLOP on tensor cores / bytes read and written")),
        [](const LaunchRow& row) { return share(flop_of(row), flop_of(row) > 0 ? bytes_of(row) : 0); }}});
}

LaunchFigures launch_figures() {
  LaunchFigures figures;
  add_extents(figures);
  add_counts(figures);
  add_waits(figures);
  add_model(figures);
  return figures;
}

SharedAxis named_axis(const char* name, const char* meaning, std::vector<std::string> places) {
  return axis(name, {text_column(text_figure(name, meaning, Shown::always), std::move(places))});
}

// A cube over the launches and further axes, of what a function appends for each launch.
template <class Append>
Cube cube_of(const char* name, std::vector<SharedAxis> axes, const Figure& figure,
             const std::vector<LaunchRow>& rows, const Append& append) {
  Column column = number_column(figure);
  for (const LaunchRow& row : rows) append(row, column.numbers());
  return {name, std::move(axes), {std::move(column)}};
}

void add_launches(std::vector<Cube>& cubes, const std::vector<LaunchRow>& rows) {
  cubes.push_back(list_cube("launches", "launch", launch_keys(), launch_figures(), rows));
  const SharedAxis launch = cubes.back().axes.front();
  cubes.push_back(cube_of("instructions",
                          {launch, named_axis("instruction", "its kind; not FP32 and integer arithmetic",
                                              {std::begin(kInstructionNames), std::end(kInstructionNames)})},
                          number_figure("instructions", "counted, of warps"), rows,
                          [](const LaunchRow& row, std::vector<double>& numbers) {
                            numbers.insert(numbers.end(), row.launch->counts.instructions.begin(),
                                           row.launch->counts.instructions.end());
                          }));
  const SharedAxis width = axis(
      "width", {number_column(count_figure("width", "bytes of a lane", Shown::always), {1, 2, 4, 8, 16})});
  cubes.push_back(cube_of("accesses",
                          {launch,
                           named_axis("access", "to which memory; loads from shared memory without ldmatrix",
                                      {"device_loads", "device_stores", "shared_loads", "shared_stores"}),
                           width},
                          number_figure("accesses", "counted, instructions of warps"), rows,
                          [](const LaunchRow& row, std::vector<double>& numbers) {
                            const KernelCounts& counts = row.launch->counts;
                            for (const auto* widths : {&counts.device_loads, &counts.device_stores,
                                                       &counts.shared_loads, &counts.shared_stores})
                              numbers.insert(numbers.end(), widths->begin(), widths->end());
                          }));
  std::vector<std::string> resources;
  for (size_t i = 0; i < kResourceCount; ++i) resources.emplace_back(name(static_cast<Resource>(i)));
  cubes.push_back(cube_of("resources", {launch, named_axis("resource", "of the GPU", std::move(resources))},
                          seconds_figure("seconds", "time", "if nothing else took time, seconds"), rows,
                          [](const LaunchRow& row, std::vector<double>& numbers) {
                            numbers.insert(numbers.end(), row.time->of.begin(), row.time->of.end());
                          }));
}

Cube predictions_cube(const std::vector<BenchResult>& results) {
  using Row = const BenchRow&;
  const auto time_of = [](Row row) -> const OperationTime& { return row.result->prediction->time; };
  const auto floor_of = [](Row row) { return row.result->prediction->floor_seconds.value_or(kUndefined); };
  const auto attention_of = [](Row row) {
    return row.result->prediction->attention_seconds.value_or(kUndefined);
  };
  std::vector<FigureOf<BenchRow>> figures{
      {seconds_figure("predicted_seconds", "predicted", "of the device, by the roofline model, seconds"),
       [=](Row row) { return time_of(row).device_seconds; }},
      {text_figure("limiter", "the resource that takes most of it"),
       [=](Row row) { return std::string(name(time_of(row).limiter)); }},
      {number_figure("floor_seconds", "floor",
                     "what arguments and results need at the copy's bandwidth and the library's matrix rate",
                     Format::duration),
       floor_of},
      {number_figure("floor_share", "of the floor's rate",
                     "floor / predicted time; 1 is the best that can be", Format::share),
       [=](Row row) { return floor_of(row) / time_of(row).device_seconds; }},
      {number_figure("attention_seconds", "attention", "of a step: attention alone over the same cache",
                     Format::duration),
       attention_of},
      {number_figure("attention_ratio", "times attention", "predicted time / that of attention"),
       [=](Row row) { return time_of(row).device_seconds / attention_of(row); }},
      {seconds_figure("host_seconds", "host and copies", "copies to and from the host, waits, allocations"),
       [=](Row row) { return time_of(row).host_seconds; }},
      {hidden(seconds_figure("kernel_seconds", "kernels", "without what their launches take")),
       [=](Row row) { return time_of(row).kernel_seconds; }}};
  add_requests(figures);
  std::vector<BenchRow> rows;
  for (const BenchResult& result : results) rows.push_back({&result});
  return list_cube("operations", "operation", operation_keys<BenchRow>(), figures, rows);
}

void add_gpu(std::vector<Cube>& cubes, const std::optional<Gpu>& gpu) {
  using Constant = const GpuConstant&;
  cubes.push_back(list_cube<GpuConstant>(
      "constants", "constant",
      {{text_figure("constant", "a rate, size or latency of the GPU"),
        [](Constant one) { return one.name; }}},
      {{number_figure("value", "of the constant"), [](Constant one) { return one.value; }},
       {text_figure("unit", "of the value"), [](Constant one) { return one.unit; }},
       {text_figure("source", "where it comes from"), [](Constant one) { return one.source; }}},
      gpu ? gpu->constants() : std::vector<GpuConstant>()));
  using Measurement = const GpuMeasurement&;
  cubes.push_back(list_cube<GpuMeasurement>(
      "measured", "measurement",
      {{text_figure("measurement", "an operation with its shape"),
        [](Measurement one) { return one.operation; }}},
      {{seconds_figure("seconds", "measured", "what the GPU took, seconds"),
        [](Measurement one) { return one.seconds; }},
       {number_figure("predicted", "what was predicted then, seconds", Format::duration),
        [](Measurement one) { return one.predicted; }},
       {text_figure("from", "when, and on what"), [](Measurement one) { return one.from; }}},
      gpu ? gpu->measured() : std::vector<GpuMeasurement>()));
}

}  // namespace

Part prediction_part(const BenchOptions& options, const std::vector<BenchResult>& results) {
  Part part{{{"gpu", options.gpu ? options.gpu->name() : ""},
             {"storage", "BF16"},
             {"shape", shape_facts(options.shape)}},
            {predictions_cube(results)},
            {"operations", "launches"}};
  add_launches(part.cubes, launches_of(results));
  add_gpu(part.cubes, options.gpu);
  return part;
}

Cube kernels_cube(const std::vector<BenchResult>& results) {
  std::vector<LaunchRow> rows;
  for (const LaunchRow& launch : launches_of(results)) {
    const auto same = std::ranges::find_if(rows, [&](const LaunchRow& row) { return is_same(row, launch); });
    if (same == rows.end()) {
      rows.push_back(launch);
    } else {
      ++same->times;
    }
  }
  LaunchFigures figures{{count_figure("times", "how often it is launched"),
                         [](const LaunchRow& row) { return static_cast<double>(row.times); }}};
  std::ranges::move(launch_figures(), std::back_inserter(figures));
  return list_cube("kernels", "kernel", launch_keys(), figures, rows);
}

std::vector<Figure> prediction_columns() { return choosable_figures(predictions_cube({})); }

}  // namespace kvbound::sim
