// The configuration of a model in the metadata of a GGUF file.
#pragma once

#include "gguf_set.hpp"
#include "model_config.hpp"

namespace kvbound::traces {

/// Reads the configuration of a llama, qwen2 or qwen3 model, with the defaults of llama.cpp, which is the
/// format's reference. Files of `llama` rotate neighbours, the others halves.
///
/// throws  TraceError, naming byte and key, for what is missing, for other architectures, for what a trace
///         cannot represent or this program does not compute: as read_hugging_face_config, and numbers of
///         heads that differ between layers; and for keys of the architecture that are unknown here, unless
///         they are 0 or false. The divisors of Llama 3.1's frequencies are a tensor, rope_freqs.weight,
///         not part of the metadata
ModelConfig read_gguf_config(const GgufSet& files);

}  // namespace kvbound::traces
