// The configuration of a model in the metadata of a GGUF file.
#pragma once

#include "gguf.hpp"
#include "model_config.hpp"

namespace kvbound::traces {

/// Reads the configuration of a llama, qwen2 or qwen3 model. Files of `llama` rotate neighbours, the others halves.
///
/// throws  TraceError, naming byte and key, for what is missing, for other architectures, and for what a trace cannot represent
///         or this program does not compute: as read_hugging_face_config, and numbers of heads that differ between layers.
///         The divisors of Llama 3.1's frequencies are a tensor, rope_freqs.weight, not part of the metadata
ModelConfig read_gguf_config(const GgufFile& file);

}  // namespace kvbound::traces
