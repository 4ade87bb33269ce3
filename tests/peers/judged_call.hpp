// Whether a library's results are right: a call's inputs and results as a file, judged by `kvbound check`.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <kvbound/reference/core/view.hpp>

#include "kernel_library.hpp"

namespace kvbound::sim {

/// Where a call is written, and the program kvbound, which judges it: as a process of its own, so that this
/// program is small enough to be copied.
struct CallFile {
  std::string path, judge;
};

/// The report goes to standard output. The file stays, for whoever wants to judge it again.
///
/// query    [1, query_heads, head_dim]
/// keys     [kv_heads, at least `tokens`, head_dim], and values: of which the first `tokens` are attended
/// output   [query_heads, head_dim], downloaded
/// returns  whether every output is within the bound of BF16 and of the library's arithmetic
/// throws   IoError, also if it could not be judged
bool attention_is_right(const CallFile& file, const KernelLibrary& library, TensorView query, TensorView keys,
                        TensorView values, int64_t tokens, std::span<const cuda::Bfloat16> output);

/// scores   [rows, cols]
/// indices  downloaded; row r's k begin at r * stride
/// order    what of it is part of the contract: any, descending
bool top_is_right(const CallFile& file, std::span<const float> scores, int64_t rows,
                  std::span<const int32_t> indices, int64_t stride, int64_t k, const std::string& order);

}  // namespace kvbound::sim
