// A layer's compressed cache on a device: the whole of SnapKV + CriticalKV without leaving it.
#pragma once

#include <memory>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>

#include "build.hpp"

namespace kvbound::cuda {

namespace native {
std::unique_ptr<Session> make_session(Dtype storage, OperationTimes* times = nullptr);
}

namespace emulated {
/// A session that stores keys, values, queries and W^O as F32, F16 or BF16, rounded once, and computes in fp32.
/// Results are the same bits at every call.
///
/// storage  throws InvalidPolicy for any other type
/// times    where the time of every operation is added up; each is then waited for. Null: not measured
/// compress and step throw what the reference throws; InvalidPolicy for what the device cannot do yet; DeviceError
std::unique_ptr<Session> make_session(Dtype storage, OperationTimes* times = nullptr);
}  // namespace emulated

}  // namespace kvbound::cuda
