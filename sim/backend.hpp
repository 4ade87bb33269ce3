// The implementations of a compressed cache that a replay can run on.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <kvbound/reference/core/session.hpp>

namespace kvbound::sim {

/// Throws InvalidPolicy, listing the backends there are, unless `name` is one.
void require_backend(std::string_view name);

/// A session for one layer on the named backend.
std::unique_ptr<Session> open_session(std::string_view backend);

}  // namespace kvbound::sim
