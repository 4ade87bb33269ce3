#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/options/help_text.hpp>
#include <kvbound/sim/options/known_components.hpp>
#include <kvbound/sim/options/terminal_width.hpp>
#include <kvbound/traces/messages.hpp>

#include "commands.hpp"

namespace kvbound::sim {
namespace {

using Items = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kPoliciesDetails =
    "Without NAME: a line for each component. With NAME: what the component does, its options with their defaults and the "
    "values that they take, and what it goes with.\n";

constexpr const char* kGrammar =
    "A policy is HOST[:key=value]...[+COMPONENT[:key=value]...]..., with at most one component of each kind.\n";

std::string list_of(const ComponentKind& kind, int64_t width) {
  Items items;
  for (const KnownComponent& component : kind.components)
    items.emplace_back(component.name.empty() ? "(none named)" : component.name, component.meaning);
  return fmt::format("\n{}{}", filled(fmt::format("{}: {}", kind.name, kind.meaning), width),
                     items_text(items, width));
}

// The names of a kind that can be added to a host.
Names added_to(const std::string& host, const ComponentKind& kind) {
  Names names;
  for (const KnownComponent& component : kind.components) {
    if (!component.name.empty() && std::ranges::find(component.hosts, host) != component.hosts.end())
      names.push_back(component.name);
  }
  return names;
}

// What a component goes with: a host, what can be added to it; another one, the hosts.
std::string company_of(const NamedComponent& named, int64_t width) {
  if (named.kind != &component_kinds().front())
    return "\n" +
           filled(fmt::format("Hosts that it goes with: {}", fmt::join(named.component->hosts, ", ")), width);
  Items items;
  for (const ComponentKind& kind : component_kinds()) {
    const Names names = added_to(named.component->name, kind);
    if (!names.empty()) items.emplace_back(kind.name, fmt::format("{}", fmt::join(names, ", ")));
  }
  return "\nWhat can be added to it:\n" + items_text(items, width);
}

std::string details_of(const NamedComponent& named, int64_t width) {
  const KnownComponent& component = *named.component;
  std::string text = filled(
      fmt::format(
          "{}, {} {}{}: {}", component.name, named.kind->name == "allocation" ? "an" : "a", named.kind->name,
          component.preset_of.empty() ? "" : ", another name of " + component.preset_of, component.meaning),
      width);
  Items items;
  for (const KnownOption& option : component.options) {
    items.emplace_back(fmt::format(":{}={}", option.name, option.otherwise),
                       fmt::format("{} ({})", option.meaning, option.expected));
  }
  if (!items.empty())
    text += "\nOptions, with their defaults (and what they take):\n" + items_text(items, width);
  return text + company_of(named, width);
}

NamedComponent component_named(const std::string& name) {
  Names known;
  for (const NamedComponent& named : named_components()) {
    if (named.component->name == name) return named;
    known.push_back(named.component->name);
  }
  throw UsageError(
      fmt::format("no component {}; {}", traces::quoted(name), suggestion(name, "known: ", known)));
}

}  // namespace

int policies_command(const Arguments& arguments) {
  CommandLine line("policies [NAME]: what policies consist of, with all options", kPoliciesDetails,
                   {{"kvbound policies"}, {"kvbound policies snapkv"}, {"kvbound policies critical"}});
  if (!line.parse(arguments)) return kPass;
  const std::vector<std::string> names = line.positionals("NAME", 0, 1);
  const int64_t width = terminal_width().value_or(kUsualWidth);
  if (!names.empty()) {
    std::cout << details_of(component_named(names.front()), width);
    return kPass;
  }
  std::cout << filled(kGrammar, width);
  for (const ComponentKind& kind : component_kinds()) std::cout << list_of(kind, width);
  return kPass;
}

}  // namespace kvbound::sim
