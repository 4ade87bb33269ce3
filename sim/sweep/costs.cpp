#include "costs.hpp"

#include <algorithm>
#include <optional>

#include <kvbound/sim/options/fields.hpp>

#include "result_index.hpp"

namespace kvbound::sim {

template <>
struct Fields<CostRates> {
  static void visit(auto& rates, const auto& visit) {
    visit("runs", rates.runs);
    visit("other", rates.other);
    visit("measured", rates.measured);
  }
};

namespace {

constexpr const char* kRatesNote = "rates.json";

// Tokens times query heads of one layer.
double size_of_layer(const traces::TraceInfo& info) {
  return static_cast<double>(info.prompt_tokens + info.decode_tokens) *
         static_cast<double>(info.shape.query_heads);
}

// A sum of seconds over sizes.
struct Rate {
  double seconds = 0, size = 0;
  void add(double more_seconds, double more_size) {
    seconds += more_seconds;
    size += more_size;
  }
  double value() const { return size > 0 ? seconds / size : 0; }
};

// None for a damaged one, which find_damaged names.
std::optional<ItemResult> sound_result(const SweepFolder& folder, const std::string& file) {
  try {
    return folder.result(file);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

ItemCosts::ItemCosts(const CostRates& rates, const Sweep& sweep) : sweep_(sweep) {
  double mean = rates.runs.empty() ? 1 : 0;  // of runs that were not measured
  for (const auto& [key, rate] : rates.runs) mean += rate / static_cast<double>(rates.runs.size());
  for (const Run& run : sweep.runs) {
    const auto found = rates.runs.find(key_of(run));
    runs_.push_back((found == rates.runs.end() ? mean : found->second) + rates.other);
  }
}

double ItemCosts::of(const SweepItem& item) const {
  double sum = 0;
  for (const size_t r : *item.runs) sum += runs_[r];
  return sum * size_of_layer(sweep_.traces[item.trace].info) * static_cast<double>(item.layers.size());
}

CostRates measured_rates(const SweepFolder& folder, const Sweep& sweep, int64_t most) {
  const std::vector<FinishedFile> files = finished_files(folder, sweep);
  std::map<std::string, Rate> rates;
  Rate other;
  CostRates found;
  const auto stride = std::max<int64_t>(1, (std::ssize(files) + most - 1) / most);
  for (int64_t i = 0; i < std::ssize(files); i += stride) {
    const auto result = sound_result(folder, files[i].file);
    if (!result) continue;
    const double size =
        size_of_layer(sweep.traces[files[i].trace].info) * static_cast<double>(result->layers.size());
    double in_runs = 0;
    for (const RunPart& run : result->runs) {
      rates[run.key].add(run.compress_seconds + run.step_seconds, size);
      in_runs += run.compress_seconds + run.step_seconds;
    }
    other.add(std::max(0.0, result->seconds - in_runs), size * static_cast<double>(result->runs.size()));
    ++found.measured;
  }
  for (const auto& [key, rate] : rates) found.runs[key] = rate.value();
  found.other = other.value();
  return found;
}

void keep_rates(const SweepFolder& folder, const CostRates& rates) {
  folder.keep_note(kRatesNote, fields_of(rates).dump(1) + "\n");
}

CostRates kept_rates(const SweepFolder& folder) {
  try {
    const auto text = folder.note(kRatesNote);
    if (!text) return {};
    return parse_fields<CostRates>("rates", *text);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace kvbound::sim
