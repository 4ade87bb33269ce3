#include "model_options.hpp"

#include <iostream>

#include <fmt/format.h>

#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {

Dtype stored_type(const CommandLine& line, Dtype otherwise) {
  const auto said = line.text("dtype");
  if (!said) return otherwise;
  const auto named = dtype_named(*said);
  if (named == Dtype::f32 || named == Dtype::f16 || named == Dtype::bf16) return *named;
  throw UsageError(fmt::format("--dtype {}: expected F32, F16 or BF16", traces::quoted(*said)));
}

void warn_of_long_context(const traces::ModelConfig& model, int64_t tokens, bool quiet) {
  if (model.context == 0 || tokens <= model.context || quiet) return;
  std::cerr << fmt::format("kvbound: warning: {} tokens are more than the {} that the model was made for\n",
                           tokens, model.context);
}

}  // namespace kvbound::sim
