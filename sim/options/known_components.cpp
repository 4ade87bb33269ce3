#include "known_components.hpp"

#include <type_traits>
#include <utility>

#include <kvbound/reference/core/alternatives.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/session_check.hpp>

#include "component.hpp"

namespace kvbound::sim {
namespace {

std::vector<KnownOption> known_options(const std::vector<Option>& options) {
  std::vector<KnownOption> known;
  for (const Option& option : options)
    known.push_back({std::string(option.name), std::string(option.meaning), option.text(), option.expected});
  return known;
}

// The hosts that the component in a policy's slot can be added to.
Names hosts_of(Policy policy) {
  Names names;
  for_each_alternative<Host>([&](auto& host) {
    policy.host = host;
    try {
      require_composable(policy);
      names.emplace_back(describe(host).name);
    } catch (const InvalidPolicy&) {  // it cannot
    }
  });
  return names;
}

template <class Variant>
ComponentKind kind_of(std::string name, std::string meaning, Variant Policy::*slot) {
  ComponentKind kind{std::move(name), std::move(meaning), {}};
  for_each_alternative<Variant>([&](auto& alternative) {
    const Component component = describe(alternative);
    const auto add = [&](std::string_view own, std::string_view does, std::string_view preset_of) {
      Policy policy;
      policy.*slot = alternative;
      kind.components.push_back({std::string(own), std::string(does), known_options(component.options),
                                 std::string(preset_of),
                                 std::is_same_v<Variant, Host> ? Names() : hosts_of(policy)});
    };
    add(component.name, component.meaning, "");
    for (const Preset& preset : component.presets) {
      preset.apply();
      add(preset.name, preset.meaning, component.name);
    }
  });
  return kind;
}

}  // namespace

Names ComponentKind::names() const {
  Names names;
  for (const KnownComponent& component : components) {
    if (!component.name.empty()) names.push_back(component.name);
  }
  return names;
}

const std::vector<ComponentKind>& component_kinds() {
  static const std::vector<ComponentKind> kKinds{
      kind_of("host", "which entries are always kept, and which queries rank the others", &Policy::host),
      kind_of("score", "by what the others are ranked", &Policy::score),
      kind_of("selection", "which of the ranked ones are kept", &Policy::selection),
      kind_of("allocation", "how budgets are divided among heads or layers", &Policy::allocation),
      kind_of("merge", "what becomes of evicted entries", &Policy::merge)};
  return kKinds;
}

std::vector<NamedComponent> named_components() {
  std::vector<NamedComponent> all;
  for (const ComponentKind& kind : component_kinds()) {
    for (const KnownComponent& component : kind.components) {
      if (!component.name.empty()) all.push_back({&kind, &component});
    }
  }
  return all;
}

Names added_names() {
  Names names;
  for (const auto& [kind, component] : named_components()) {
    if (kind != &component_kinds().front()) names.push_back(component->name);
  }
  return names;
}

}  // namespace kvbound::sim
