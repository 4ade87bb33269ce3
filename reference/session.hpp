// The reference implementation of a layer's compressed cache.
#pragma once

#include <memory>

#include "core/session.hpp"

namespace kvbound::reference {

/// Throws InvalidPolicy unless the policy can compress a prompt of n tokens to this budget per KV head:
/// 1 <= budget <= n, budget >= the entries that the host always keeps, window <= recorded queries.
void require_valid(const Policy& policy, int64_t budget, int64_t prompt_tokens, int64_t window_queries);

/// A session in double precision on the CPU. Bit-identical for any number of threads.
std::unique_ptr<Session> make_session();

}  // namespace kvbound::reference
