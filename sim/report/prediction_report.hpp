// What `bench --model GPU` prints, and its JSON.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/bench/bench.hpp>

namespace kvbound::sim {

/// The text before the first operation: the shape, the GPU, and that nothing here was measured.
std::string prediction_heading(const BenchOptions& options);

/// An operation's predicted time and what limits it, then its kernels. Every line says that it is of a model.
std::string prediction_text(const BenchResult& result);

/// The document as sim/schemas/bench_model.schema.json describes it.
nlohmann::ordered_json prediction_json(const BenchOptions& options, const std::vector<BenchResult>& results);

}  // namespace kvbound::sim
