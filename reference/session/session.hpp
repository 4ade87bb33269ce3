// The reference implementation of a layer's compressed cache.
#pragma once

#include <memory>

#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// A session in double precision on the CPU. Bit-identical for any number of threads.
///
/// times    where the time of every operation is added up, by the names of cuda/session/session.hpp and window_scores, removal_order,
///          eviction (who leaves; what decides that is part of attention); null: not measured
std::unique_ptr<Session> make_session(OperationTimes* times = nullptr);

}  // namespace kvbound::reference
