// Records a trace of a checkpoint that reads tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>

#include "checkpoint.hpp"

namespace kvbound::traces {

struct RecordOptions {
  std::vector<int64_t>
      tokens;          ///< the prompt, then tokens that the model is made to decode; others it chooses
  int64_t prompt = 1;  ///< the number of tokens of the prompt: 1..tokens.size()
  int64_t steps = 0;
  int64_t window = 1;           ///< recorded prompt queries: 1..prompt
  std::vector<int64_t> layers;  ///< recorded, ascending; the model runs whole
  Dtype dtype = Dtype::f16;     ///< of keys, values, queries and W^O: F32, F16 or BF16
  std::string source;           ///< the trace's `source`
};

/// Called with the work done and the whole: tokens times layers.
using RecordProgress = std::function<void(int64_t, int64_t)>;

/// Writes a trace of the chosen layers, numbered from 0 in it; the field `model_layers` of its metadata has
/// the model's own numbers. Queries, keys and values are rounded to `dtype` before attention, so that
/// attention_output, in F32, can be recomputed from them. The model decodes greedily (ties: the smaller
/// token) where tokens are not given.
///
/// path      appears whole or not at all
/// progress  called after every layer; may be empty
/// recorded  called with the tokens [prompt + steps] when the trace is on the disk but has not got its name;
///           if it throws there is no trace
/// throws    ShapeMismatch for options out of range; NonFinite, naming layer and tensor, if a number does not
///           fit `dtype`; TraceError and IoError
void record(const Checkpoint& checkpoint, const RecordOptions& options, const std::string& path,
            const RecordProgress& progress, const std::function<void(const std::vector<int64_t>&)>& recorded);

}  // namespace kvbound::traces
