// A layer's compressed cache on a device: the whole of SnapKV + CriticalKV without leaving it.
#pragma once

#include <memory>
#include <variant>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::cuda {

/// Throws InvalidPolicy for what the device cannot do yet: other hosts than snapkv, other scores than attention,
/// theta-sweep and greedy, allocations and merging.
inline void require_supported(const Policy& policy) {
  if (!std::holds_alternative<SnapKv>(policy.host)) {
    throw InvalidPolicy("h2o, tova and streaming-llm run on the reference only");
  }
  if (!std::holds_alternative<AttentionScore>(policy.score)) {
    throw InvalidPolicy("scores other than attention run on the reference only");
  }
  if (std::holds_alternative<ThetaSweep>(policy.selection)) {
    throw InvalidPolicy("theta-sweep runs on the reference only");
  }
  if (std::holds_alternative<Greedy>(policy.selection)) {
    throw InvalidPolicy("greedy runs on the reference only");
  }
  if (!std::holds_alternative<Uniform>(policy.allocation)) {
    throw InvalidPolicy("allocations other than uniform run on the reference only");
  }
  if (!std::holds_alternative<NoMerge>(policy.merge)) {
    throw InvalidPolicy("merging runs on the reference only");
  }
}

// Both builds' are declared whichever of them the translation unit speaks to (build.hpp), for a program chooses between them
// while it runs. native's is there only where a CUDA compiler was (KVBOUND_HAS_NATIVE).
namespace native {
std::unique_ptr<Session> make_session(Dtype storage, OperationTimes* times = nullptr,
                                      Stream stream = nullptr);
}

namespace emulated {
/// A session that stores keys, values, queries and W^O as F32, F16 or BF16, rounded once, and computes in fp32.
///
/// storage  throws InvalidPolicy for any other type
/// times    where the time of every operation is added up: upload, window_attention, projected_value_norms,
///          stage_two_scores, selection, compaction, attention; each is then waited for. Null: not measured
/// stream   on which everything is queued
/// compress and step throw what the reference throws, NonFinite also for what overflows single precision; InvalidPolicy for
/// what the device cannot do yet; DeviceError. Results are the same bits at every call
std::unique_ptr<Session> make_session(Dtype storage, OperationTimes* times = nullptr,
                                      Stream stream = nullptr);
}  // namespace emulated

}  // namespace kvbound::cuda
