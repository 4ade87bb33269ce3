// A layer's compressed cache on a device.
#pragma once

#include <memory>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/reference/core/arithmetic.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::cuda {

// All builds' functions are declared, whichever build the translation unit selects (build.hpp), because a
// program chooses between them at run time. Those of native are defined only in builds with a CUDA
// compiler (KVBOUND_HAS_NATIVE).
namespace native {
std::unique_ptr<Session> make_session(Dtype storage, OperationTimes* times = nullptr, Stream stream = nullptr,
                                      int64_t page_size = 0);
SessionArithmetic session_arithmetic(Dtype storage, const LayerShape& shape, int64_t prompt_tokens,
                                     int64_t entries);
}  // namespace native

namespace counted {
std::unique_ptr<Session> make_session(Dtype storage, OperationTimes* times = nullptr, Stream stream = nullptr,
                                      int64_t page_size = 0);
SessionArithmetic session_arithmetic(Dtype storage, const LayerShape& shape, int64_t prompt_tokens,
                                     int64_t entries);
}  // namespace counted

namespace emulated {
/// A session that stores keys, values, queries and W^O as F32, F16 or BF16, rounded
/// once, and computes in fp32.
///
/// storage    throws InvalidPolicy for any other type
/// times      receives the time of every operation: upload, window_attention, window_scores,
///            projected_value_norms, stage_two_scores, removal_order, selection, score_ema, merge_targets,
///            merging, compaction, join (take_together), attention (with the scores that follow from it),
///            eviction; the session then waits for each operation. Null: not measured
/// stream     on which all operations are queued
/// page_size  rows of a page of the compressed cache (page_rules.hpp); 0: a KV head's rows lie one behind the
///            other. Results are the same bits. `compress` throws InvalidPolicy where pages are not possible
/// compress and step throw what the reference throws, NonFinite also for results that overflow single
/// precision or, of merges, the storage type, and ShapeMismatch also for a head_dim above 256; DeviceError.
/// Results are the same bits at every call
std::unique_ptr<Session> make_session(Dtype storage, OperationTimes* times = nullptr, Stream stream = nullptr,
                                      int64_t page_size = 0);

/// The arithmetic that the kernels of such a session declare (attention.hpp, eviction/).
///
/// storage  as in make_session
/// entries  the most entries of a KV head, decode steps included
/// throws   InvalidPolicy for another storage; DeviceError where there is no device
SessionArithmetic session_arithmetic(Dtype storage, const LayerShape& shape, int64_t prompt_tokens,
                                     int64_t entries);
}  // namespace emulated

}  // namespace kvbound::cuda
