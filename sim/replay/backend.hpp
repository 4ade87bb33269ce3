// The implementations of a compressed cache that a replay can run on.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <kvbound/reference/core/arithmetic.hpp>
#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::sim {

inline constexpr std::string_view kReference = "reference";

/// "reference, emulated, cuda".
std::string backend_names();

/// Throws InvalidPolicy, listing the backends there are, unless `name` is one; NoDevice if it cannot run on this machine.
void require_backend(std::string_view name);

/// Throws InvalidPolicy for a policy that the backend cannot run.
void require_supported(std::string_view backend, const Policy& policy);

/// The type in which the backend stores the cache of a trace that is stored as `trace`, and the one it adds up in.
Dtype storage_of(std::string_view backend, Dtype trace);
Dtype accumulation_of(std::string_view backend);

/// What the kernels of such a session declare of their arithmetic, with so many entries per KV head at most.
///
/// storage  of the trace
SessionArithmetic arithmetic_of(std::string_view backend, Dtype storage, const LayerShape& shape,
                                int64_t prompt_tokens, int64_t entries);

/// A session for one layer on the named backend. Throws as require_backend.
///
/// storage  of the trace
/// times    where the time of every operation is added up; null: not measured
std::unique_ptr<Session> open_session(std::string_view backend, Dtype storage,
                                      OperationTimes* times = nullptr);

}  // namespace kvbound::sim
