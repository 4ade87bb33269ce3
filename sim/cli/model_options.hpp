// What commands that run a model have in common.
#pragma once

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/models/model_config.hpp>

namespace kvbound::sim {

/// --dtype: F32, F16 or BF16. Throws UsageError.
Dtype stored_type(const CommandLine& line, Dtype otherwise);

/// Warns on standard error of more tokens than the model was made for.
void warn_of_long_context(const traces::ModelConfig& model, int64_t tokens, bool quiet);

}  // namespace kvbound::sim
