#include <gtest/gtest.h>
#include <algorithm>
#include <stdexcept>
#include <string>

#include <kvbound/sim/options/known_components.hpp>
#include <kvbound/sim/options/policy.hpp>

namespace kvbound::sim::known_components_test {
namespace {

const ComponentKind& kind_named(const std::string& name) {
  return *std::ranges::find(component_kinds(), name, &ComponentKind::name);
}

KnownComponent component_named(const std::string& name) {
  for (const NamedComponent& named : named_components()) {
    if (named.component->name == name) return *named.component;
  }
  throw std::invalid_argument(name);
}

TEST(KnownComponents, AreThoseOfTheVariants) {
  ASSERT_EQ(component_kinds().size(), 5u);
  EXPECT_EQ(kind_named("host").components.size(), std::variant_size_v<Host>);
  EXPECT_EQ(kind_named("score").components.size(), std::variant_size_v<Score>);
  EXPECT_EQ(kind_named("selection").components.size(), std::variant_size_v<Selection>);
  EXPECT_EQ(kind_named("allocation").components.size(), std::variant_size_v<Allocation>);
  EXPECT_EQ(kind_named("merge").components.size(), std::variant_size_v<Merge> + 1)
      << "keepkv-paper is a preset";
  for (const ComponentKind& kind : component_kinds()) {
    EXPECT_FALSE(kind.meaning.empty());
    EXPECT_EQ(std::ranges::count(kind.components, "", &KnownComponent::name), kind.name == "host" ? 0 : 1);
    for (const KnownComponent& component : kind.components)
      EXPECT_FALSE(component.meaning.empty()) << component.name;
  }
}

// Every one with its options as the list says them, and every host that it says, makes the
// policy of the names alone.
TEST(KnownComponents, HaveTheDefaultsAndHostsThatTheListSays) {
  const auto written = [](const KnownComponent& component) {
    std::string text = component.name;
    for (const KnownOption& option : component.options) text += ":" + option.name + "=" + option.otherwise;
    return text;
  };
  // A component by its name alone, but for the file that it needs.
  const auto text_of = [](const std::string& name) {
    return name == "given" ? "given:file=PATH" : name == "headkv" ? "headkv:scores=PATH" : name;
  };
  int tried = 0;
  for (const auto& [kind, component] : named_components()) {
    if (kind->name == "host") {
      EXPECT_EQ(parse_policy(written(*component)), parse_policy(text_of(component->name)));
    }
    for (const std::string& host : component->hosts) {
      EXPECT_EQ(parse_policy(text_of(host) + "+" + written(*component)),
                parse_policy(text_of(host) + "+" + text_of(component->name)));
      ++tried;
    }
  }
  EXPECT_GT(tried, 30);
}

TEST(KnownComponents, SayTheHostsThatTheyGoWith) {
  EXPECT_EQ(component_named("greedy").hosts, Names({"snapkv"}));
  EXPECT_EQ(component_named("adakv").hosts, Names({"snapkv", "h2o", "tova", "given"}));
  EXPECT_EQ(component_named("d2o").hosts, kind_named("host").names());
  EXPECT_EQ(component_named("snapkv").hosts, Names());
}

TEST(KnownComponents, TellPresetsFromWhatTheyStandFor) {
  EXPECT_EQ(component_named("keepkv-paper").preset_of, "keepkv");
  const auto key_of = [](const char* name) {
    const KnownComponent component = component_named(name);
    return std::ranges::find(component.options, "key", &KnownOption::name)->otherwise;
  };
  EXPECT_EQ(key_of("keepkv"), "min-norm");
  EXPECT_EQ(key_of("keepkv-paper"), "zip");
}

}  // namespace
}  // namespace kvbound::sim::known_components_test
