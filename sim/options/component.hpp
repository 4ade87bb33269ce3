// One component of a policy as text: its name and its options, each with its meaning, parser and text form.
// Parsing, printing and --help all use this one list; a new component needs one more `describe`.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/reference/core/policy.hpp>

namespace kvbound::sim {

/// An option of a component, bound to the field that holds its value.
struct Option {
  std::string_view name;
  std::string_view meaning;
  std::string expected;               ///< the values that it accepts, for error messages
  std::function<std::string()> text;  ///< the field's value as canonical text
  /// Sets the field; false, with the field unchanged, if the text is not a valid value.
  std::function<bool(std::string_view)> assign;
  bool required = false;  ///< has no default
};

/// Another name for a component, with other defaults. Its canonical text is that of the component.
struct Preset {
  std::string_view name;
  std::string_view meaning;
  std::function<void()> apply;  ///< sets the component's fields
};

/// A component's name and options. The component with an empty name is the default of its kind.
struct Component {
  std::string_view name;
  std::string_view meaning;
  std::vector<Option> options;
  std::vector<Preset> presets = {};
};

// Options and presets hold references to the component's fields.
Component describe(SnapKv& host);
Component describe(H2o& host);
Component describe(Tova& host);
Component describe(StreamingLlm& host);
Component describe(RandomHost& host);
Component describe(Given& host);
Component describe(AttentionScore& score);
Component describe(ObcacheValue& score);
Component describe(ObcacheKey& score);
Component describe(ObcacheJoint& score);
Component describe(ExactRemoval& score);
Component describe(TopK& selection);
Component describe(Critical& selection);
Component describe(ThetaSweep& selection);
Component describe(Greedy& selection);
Component describe(Uniform& allocation);
Component describe(AdaKv& allocation);
Component describe(Pyramid& allocation);
Component describe(HeadKv& allocation);
Component describe(NoMerge& merge);
Component describe(KeepKv& merge);
Component describe(ConvexMerge& merge);
Component describe(D2o& merge);
Component describe(Cam& merge);
Component describe(KvMerger& merge);

}  // namespace kvbound::sim
