// The implementations of a compressed cache that a replay can run on.
#pragma once

#include <memory>
#include <string_view>

#include <kvbound/reference/core/arithmetic.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::sim {

bool is_backend(std::string_view name);
/// Throws InvalidPolicy, listing the backends, if there is no backend of this name; NoDevice if it
/// cannot run on this machine.
void require_backend(std::string_view name);

/// The type in which the backend stores the cache of a trace stored as `trace`, and the type
/// in which it accumulates.
Dtype storage_of(std::string_view backend, Dtype trace);
Dtype accumulation_of(std::string_view backend);

/// The arithmetic that the kernels of such a session declare, for caches of at most
/// `entries` entries per KV head.
///
/// storage  type of the trace
SessionArithmetic arithmetic_of(std::string_view backend, Dtype storage, const LayerShape& shape,
                                int64_t prompt_tokens, int64_t entries);

/// Opens a session for one layer on the named backend. Throws as require_backend.
///
/// storage    type of the trace
/// times      accumulates the time of every operation; null: times are not measured
/// page_size  rows of a page of a device's compressed cache; 0: a KV head's rows lie one behind the other
std::unique_ptr<Session> open_session(std::string_view backend, Dtype storage,
                                      OperationTimes* times = nullptr, int64_t page_size = 0);

}  // namespace kvbound::sim
