#include "policy.hpp"

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <kvbound/reference/core/alternatives.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/session_check.hpp>
#include <kvbound/traces/messages.hpp>

#include "component.hpp"
#include "known_components.hpp"
#include "quoted_parts.hpp"
#include "suggestion.hpp"

namespace kvbound::sim {
namespace {

// Whether the name is the component's own or that of one of its presets; a preset is then applied.
bool answers_to(const Component& component, std::string_view name) {
  if (name.empty()) return false;
  if (component.name == name) return true;
  const auto preset = std::ranges::find(component.presets, name, &Preset::name);
  if (preset == component.presets.end()) return false;
  preset->apply();
  return true;
}

// Stores the named alternative in the slot; false if the variant has no alternative of that name.
template <class Variant>
bool choose(Variant& slot, std::string_view name) {
  bool found = false;
  for_each_alternative<Variant>([&](auto& alternative) {
    if (!answers_to(describe(alternative), name)) return;
    slot = alternative;
    found = true;
  });
  return found;
}

// What a name that stands in the wrong place is, and where it belongs: "critical is a selection:
// snapkv+critical"; else the suggestion of a known one.
std::string what_is_meant(std::string_view name, std::string_view before, const Names& known) {
  for (const auto& [kind, component] : named_components()) {
    if (component->name != name) continue;
    const std::string place = component->hosts.empty() ? "a policy begins with one"
                                                       : fmt::format("{}+{}", component->hosts.front(), name);
    return fmt::format("{} is a{} {}: {}; {}", name, kind->name == "allocation" ? "n" : "", kind->name, place,
                       suggestion("", before, known));
  }
  return suggestion(name, before, known);
}

// Assigns key=value pairs to the options of the component in the slot.
template <class Variant>
void assign_options(Variant& slot, std::span<const std::string_view> pairs, std::string_view policy) {
  const Component component = std::visit([](auto& alternative) { return describe(alternative); }, slot);
  std::set<std::string_view> given;
  for (const std::string_view pair : pairs) {
    const std::string where = "policy " + traces::quoted(policy) + ": ";
    const size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    const auto option = std::ranges::find(component.options, key, &Option::name);
    if (option == component.options.end()) {
      Names known;
      for (const Option& candidate : component.options) known.emplace_back(candidate.name);
      throw InvalidPolicy(where + std::string(component.name) + " has no option " + traces::quoted(key) +
                          "; " + what_is_meant(key, "it has ", known));
    }
    if (!given.insert(key).second)
      throw InvalidPolicy(where + "option " + traces::quoted(key) + " is given twice");
    if (equals == std::string_view::npos || !option->assign(pair.substr(equals + 1))) {
      throw InvalidPolicy(where + traces::quoted(pair) + ": expected " + std::string(key) + "=" +
                          option->expected);
    }
  }
  for (const Option& option : component.options) {
    if (!option.required || given.contains(option.name)) continue;
    throw InvalidPolicy("policy " + traces::quoted(policy) + ": " + std::string(component.name) + " needs " +
                        std::string(option.name) + "=" + option.expected);
  }
}

// Stores a component other than the host in the slot; false if the variant has no alternative of that name.
template <class Variant>
bool take(Variant& slot, std::string_view kind, std::span<const std::string_view> words,
          std::string_view policy) {
  const bool taken = slot.index() != 0;
  if (!choose(slot, words[0])) return false;
  if (taken) throw InvalidPolicy("policy " + traces::quoted(policy) + ": more than one " + std::string(kind));
  assign_options(slot, words.subspan(1), policy);
  return true;
}

template <class Variant>
void print(std::string& text, Variant slot) {
  const Component component = std::visit([](auto& alternative) { return describe(alternative); }, slot);
  if (component.name.empty()) return;
  (text += text.empty() ? "" : "+") += component.name;
  for (const Option& option : component.options) {
    text.append(":").append(option.name).append("=").append(option.text());
  }
}

}  // namespace

Policy parse_policy(std::string_view text) {
  Policy policy;
  const std::vector<std::string_view> components = quoted_parts(text, '+');
  const std::vector<std::string_view> host = quoted_parts(components[0], ':');
  if (!choose(policy.host, host[0])) {
    throw InvalidPolicy("policy " + traces::quoted(text) + ": no host " + traces::quoted(host[0]) + "; " +
                        what_is_meant(host[0], "known hosts: ", component_kinds().front().names()));
  }
  assign_options(policy.host, std::span(host).subspan(1), text);
  for (const std::string_view component : std::span(components).subspan(1)) {
    const std::vector<std::string_view> words = quoted_parts(component, ':');
    if (take(policy.score, "score", words, text) || take(policy.selection, "selection", words, text) ||
        take(policy.allocation, "allocation", words, text) || take(policy.merge, "merge", words, text)) {
      continue;
    }
    throw InvalidPolicy("policy " + traces::quoted(text) + ": no component " + traces::quoted(words[0]) +
                        "; " + what_is_meant(words[0], "known components: ", added_names()));
  }
  try {
    require_composable(policy);
  } catch (const InvalidPolicy& error) {
    throw InvalidPolicy("policy " + traces::quoted(text) + ": " + error.what());
  }
  return policy;
}

std::string canonical(const Policy& policy) {
  std::string text;
  print(text, policy.host);
  print(text, policy.score);
  print(text, policy.selection);
  print(text, policy.allocation);
  print(text, policy.merge);
  return text;
}

std::optional<Policy> with_seed(Policy policy, int64_t seed) {
  bool draws = false;
  const auto give_seed = [&](auto& method) {
    if constexpr (requires { method.seed; }) {
      method.seed = seed;
      draws = true;
    }
  };
  std::visit(give_seed, policy.host);
  std::visit(give_seed, policy.score);
  std::visit(give_seed, policy.selection);
  std::visit(give_seed, policy.allocation);
  std::visit(give_seed, policy.merge);
  return draws ? std::optional(std::move(policy)) : std::nullopt;
}

std::string policy_help() {
  std::string text =
      "Policies are HOST[:key=value]...[+COMPONENT[:key=value]...]..., with at most one component of each kind; "
      "kvbound policies says what they do, and kvbound policies NAME has a component's options:\n";
  for (const ComponentKind& kind : component_kinds()) {
    std::string names;
    for (const std::string& name : kind.names()) (names += names.empty() ? "" : ", ") += name;
    text += fmt::format("  {:<10}  {}\n", kind.name, names);
  }
  return text;
}

}  // namespace kvbound::sim
