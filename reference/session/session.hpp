// The reference implementation of a layer's compressed cache.
#pragma once

#include <memory>

#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::reference {

/// A session in double precision on the CPU. Bit-identical for any number of threads.
///
/// times    adds up the wall time of every operation, by the names of cuda/session/session.hpp and
///          window_scores, removal_order, eviction (choosing and removing the evicted entry; updating the
///          scores is part of attention); null: not measured
std::unique_ptr<Session> make_session(OperationTimes* times = nullptr);

}  // namespace kvbound::reference
