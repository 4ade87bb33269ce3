// Recorded calls of attention kernels, written as a trace: a call is a layer, and the request's tokens are a
// prompt whose last tokens have the recorded queries.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attention_call.hpp"

namespace kvbound::traces {

/// A call and the index of one of its requests, from 0.
struct ImportedLayer {
  const AttentionCall* call = nullptr;
  int64_t request = 0;
};

/// Writes the trace of one request in some calls, a layer for each call. Its last T queries are decode steps,
/// the others are those of a prompt's last tokens: n = tokens - T, W = queries - T. Tensors keep their types.
/// The records have no W^O: every query head's is the identity, so that model_dim is head_dim and the hidden
/// state is the sum of the heads' outputs.
///
/// layers        >= 1
/// steps         T, at least 0 and below the number of queries
/// path          appears whole or not at all
/// with_outputs  whether attention_output is the kernels' output
/// progress      called with the layers done, and their number; may be empty
/// written       called with the file that the trace is in, on the disk, when it has not got its name; if it
///               throws there is no trace; may be empty
/// throws        InvalidOption for calls whose heads, head_dim, queries, tokens or scale differ, and for too
///               many steps; TraceError for NaN or infinity and for requests that cannot be read; IoError
void import_trace(const std::vector<ImportedLayer>& layers, int64_t steps, const std::string& path,
                  bool with_outputs, const std::function<void(int64_t, int64_t)>& progress = {},
                  const std::function<void(const std::string&)>& written = {});

}  // namespace kvbound::traces
