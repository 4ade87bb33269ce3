// The items of a sweep and their keys.
#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include <kvbound/sim/sweep/items.hpp>

#include "support/sweep_case.hpp"

namespace kvbound::sim::items_test {
namespace {

std::set<std::string> files_of(const Sweep& sweep) {
  std::set<std::string> files;
  ItemKeys keys(sweep);
  for (const SweepItem& item : items_of(sweep)) files.insert(keys.of(item).file());
  return files;
}

// (trace, layer, run), each as often as items have it.
std::multiset<std::vector<int64_t>> covered(const std::vector<SweepItem>& items) {
  std::multiset<std::vector<int64_t>> all;
  for (const SweepItem& item : items) {
    for (const int64_t layer : item.layers) {
      for (const size_t run : *item.runs)
        all.insert({static_cast<int64_t>(item.trace), layer, static_cast<int64_t>(run)});
    }
  }
  return all;
}

TEST(SweepItems, CoverEveryLayerOfEveryTraceInEveryRunOnce) {
  const test::SweepCase folder;
  std::multiset<std::vector<int64_t>> expected;
  for (int64_t trace = 0; trace < 2; ++trace) {
    for (int64_t layer = 0; layer < 3 - trace; ++layer) {
      for (int64_t run = 0; run < 6; ++run) expected.insert({trace, layer, run});
    }
  }
  const std::pair<const char*, size_t> cases[] = {{"", 5},
                                                  {R"(, "layers_per_item": 2)", 3},
                                                  {R"(, "layers_per_item": 99)", 2},
                                                  {R"(, "policies_per_item": 2)", 10},
                                                  {R"(, "policies_per_item": 1, "layers_per_item": 2)", 9}};
  for (const auto& [more, count] : cases) {
    const std::vector<SweepItem> items = items_of(folder.sweep(test::SweepCase::kPolicies, more));
    EXPECT_EQ(items.size(), count) << more;
    EXPECT_EQ(covered(items), expected) << more;
  }
}

TEST(SweepItems, OfOnePolicyHaveItsBudgetsAndBackendsTogether) {
  const test::SweepCase folder;
  const Sweep sweep = folder.sweep(test::SweepCase::kPolicies,
                                   R"(, "policies_per_item": 1, "backends": ["reference", "emulated"])");
  for (const SweepItem& item : items_of(sweep)) {
    ASSERT_EQ(item.runs->size(), 4);
    for (const size_t run : *item.runs)
      EXPECT_EQ(sweep.runs[run].policy.policy, sweep.runs[item.runs->front()].policy.policy);
  }
}

TEST(SweepItems, HaveKeysThatChangeWithEverythingThatResultsDependOn) {
  const test::SweepCase folder;
  const Sweep sweep = folder.sweep();
  const std::set<std::string> files = files_of(sweep);
  EXPECT_EQ(files.size(), 5) << "every item has another key";
  EXPECT_EQ(files_of(folder.sweep()), files);
  const auto changed = [&](const char* what, const Sweep& other) {
    for (const std::string& file : files_of(other)) EXPECT_FALSE(files.contains(file)) << what;
  };
  changed("steps", folder.sweep(test::SweepCase::kPolicies, R"(, "steps": 1)"));
  changed("recall", folder.sweep(test::SweepCase::kPolicies, R"(, "recall": 3)"));
  changed("merge_bounds", folder.sweep(test::SweepCase::kPolicies, R"(, "merge_bounds": true)"));
  changed("backends", folder.sweep(test::SweepCase::kPolicies, R"(, "backends": ["emulated"])"));
  changed("policies", folder.sweep(R"("snapkv:window=4")"));
  Sweep other = sweep;
  for (SweepTrace& trace : other.traces) trace.sha256.front() ^= 1;
  changed("trace", other);
  other = sweep;
  other.computation.build = "another";
  changed("build", other);
}

// A layer's results under other policies have the same content key, so that a sweep of
// more policies finds them.
TEST(SweepItems, KeepTheirContentKeyUnderOtherPolicies) {
  const test::SweepCase folder;
  const Sweep one = folder.sweep(), other = folder.sweep(R"("tova")");
  ItemKeys keys(one), other_keys(other);
  for (size_t i = 0; i < 5; ++i) {
    const ItemKey key = keys.of(items_of(one)[i]), same = other_keys.of(items_of(other)[i]);
    EXPECT_EQ(key.content, same.content);
    EXPECT_EQ(key.computation, same.computation);
    EXPECT_NE(key.runs, same.runs);
  }
}

}  // namespace
}  // namespace kvbound::sim::items_test
