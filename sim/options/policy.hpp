// The text form of policies: HOST[:key=value]...[+COMPONENT[:key=value]...]..., one grammar everywhere.
#pragma once

#include <string>
#include <string_view>

#include <kvbound/reference/core/policy.hpp>

namespace kvbound::sim {

/// Reads a policy such as "snapkv:window=16+critical:alpha=adaptive"; what is not said takes its default.
/// Throws InvalidPolicy for an unknown name or option, a bad value, anything said twice, and a composition
/// without meaning; the message lists what is known.
Policy parse_policy(std::string_view text);

/// The canonical text: every component that is not the implied one, every option, in a fixed order.
/// parse_policy(canonical(p)) == p.
std::string canonical(const Policy& policy);

/// A table of all components and their options, for --help.
std::string policy_help();

}  // namespace kvbound::sim
