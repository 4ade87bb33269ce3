// The text form of policies, HOST[:key=value]...[+COMPONENT[:key=value]...]..., in files
// and on the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <kvbound/reference/core/policy.hpp>

namespace kvbound::sim {

/// Reads a policy such as "snapkv:window=16+critical:alpha=adaptive"; options that are not given have their
/// defaults. Throws InvalidPolicy for an unknown name or option (the message lists the known ones), an
/// invalid value, an option or a kind of component given twice, and components that cannot be combined.
Policy parse_policy(std::string_view text);

/// The canonical text: every component that is not the default of its kind, with all its options, in a fixed
/// order. parse_policy(canonical(p)) == p.
std::string canonical(const Policy& policy);

/// The policy with another seed of its random draws; none if it draws nothing.
std::optional<Policy> with_seed(Policy policy, int64_t seed);

/// A table of all components and their options, for --help.
std::string policy_help();

}  // namespace kvbound::sim
