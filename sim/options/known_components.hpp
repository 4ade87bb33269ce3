// What policies may consist of, as data: found by the variants of reference/core/policy.hpp and `describe`,
// so that a new method is in it by itself. Messages, suggestions and `kvbound policies` use this one list.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "suggestion.hpp"

namespace kvbound::sim {

struct KnownOption {
  std::string name;
  std::string meaning;
  std::string otherwise;  ///< its value if it is not given
  std::string expected;   ///< the values that it accepts
};

/// A component, or another name for one with other defaults (a preset).
struct KnownComponent {
  std::string name;  ///< empty: what holds where none of its kind is named
  std::string meaning;
  std::vector<KnownOption> options;
  std::string preset_of;  ///< the name of the component that a preset stands for; empty: it is none
  Names hosts;            ///< those that it can be added to; none of a host itself
};

struct ComponentKind {
  std::string name;     ///< host, score, selection, allocation or merge
  std::string meaning;  ///< what a component of the kind decides
  std::vector<KnownComponent> components;

  /// The names that policies may have.
  Names names() const;
};

/// The host first, the others in the order of canonical texts.
const std::vector<ComponentKind>& component_kinds();

/// A component with its kind.
struct NamedComponent {
  const ComponentKind* kind;
  const KnownComponent* component;
};

/// All components that have a name.
std::vector<NamedComponent> named_components();

/// The names of all components but hosts.
Names added_names();

}  // namespace kvbound::sim
