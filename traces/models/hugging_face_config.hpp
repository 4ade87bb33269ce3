// config.json of a Hugging Face checkpoint.
#pragma once

#include <string>

#include "model_config.hpp"

namespace kvbound::traces {

/// Reads the configuration of a llama, mistral, qwen2 or qwen3 model. Fields that are missing have the
/// defaults of the model's configuration class in transformers, 5.
///
/// path    of config.json
/// throws  TraceError, naming byte and field, for what is ill-formed or missing, for other models, for fields
///         that contradict each other, and for what a trace cannot represent or this program does not
///         compute: sliding windows, masks that are not causal, capped logits, experts, quantised weights,
///         RoPE of part of a head or with other scaling than `linear` and `llama3`; IoError
ModelConfig read_hugging_face_config(const std::string& path);

}  // namespace kvbound::traces
