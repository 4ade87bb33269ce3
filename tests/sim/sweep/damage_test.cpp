// Damaged results are missing results: named, and computed again.
#include <sys/stat.h>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/sim/sweep/damage.hpp>
#include <kvbound/sim/sweep/gather.hpp>
#include <kvbound/sim/sweep/schedule.hpp>
#include <kvbound/sim/sweep/worker.hpp>
#include <kvbound/traces/sha256.hpp>

#include "support/sweep_case.hpp"

namespace kvbound::sim::damage_test {
namespace {

namespace fs = std::filesystem;

using test::contents;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::string> kNothing;
constexpr const char* kPolicies = R"("snapkv:window=4", "h2o:window=4+keepkv")";
constexpr const char* kMore = R"(, "backends": ["reference", "emulated"], "merge_bounds": true)";

// A sweep all of whose items have results.
class Damage : public testing::Test {
 public:
  Damage() : sweep_(scratch_.sweep(kPolicies, kMore)), folder_(path("s")) {
    folder_.make();
    work_all(folder_);
    file_ = schedule(folder_, sweep_, {}).front().file;
    sound_ = contents(folder_.result_path(file_));
  }

 protected:
  std::string path(const std::string& name) const { return scratch_.path(name); }
  void work_all(const SweepFolder& folder) const {
    work(folder, sweep_, schedule(folder, sweep_, {}), {}, [](const ItemReport&) {});
  }
  // Writes bytes in place of the first item's result.
  void write(const std::string& bytes) const {
    fs::remove_all(folder_.result_path(file_));
    scratch_.write("s/results/" + file_.substr(0, 2) + "/" + file_, bytes);
  }

  test::SweepCase scratch_;
  Sweep sweep_;
  SweepFolder folder_;
  std::string file_, sound_;
};

std::string with_hash(const std::string& body) { return traces::sha256_of(body) + body; }

TEST_F(Damage, IsNotFoundInSoundResults) {
  EXPECT_EQ(find_damaged(folder_, sweep_, {.mixed = true, .remove = true}), kNothing);
  EXPECT_EQ(contents(folder_.result_path(file_)), sound_);
}

TEST_F(Damage, OfAnyKindMakesAResultMissing) {
  const std::string place = folder_.result_path(file_);
  std::string flipped = sound_, version = sound_.substr(64);
  flipped[flipped.size() / 2] ^= 1;
  version.replace(version.find("version") + 7, 1, 1, '\x02');
  const std::vector<std::pair<const char*, std::function<void()>>> kinds{
      {"a bit", [&] { write(flipped); }},
      {"cut", [&] { write(sound_.substr(0, sound_.size() - 1)); }},
      {"empty", [&] { write(""); }},
      {"longer", [&] { write(sound_ + "x"); }},
      {"a hash alone", [&] { write(with_hash("")); }},
      {"another format", [&] { write(with_hash("{\"format\": \"kvbound-sweep-item\"}")); }},
      {"another version", [&] { write(with_hash(version)); }},
      {"a folder", [&] { fs::remove(place), fs::create_directories(place + "/deep"); }},
      {"a FIFO", [&] { fs::remove(place), mkfifo(place.c_str(), 0600); }},
      {"a link to itself", [&] { fs::remove(place), fs::create_symlink(place, place); }}};
  for (const auto& [kind, damage] : kinds) {
    SCOPED_TRACE(kind);
    damage();
    SweepFolder looking(path("s"));
    EXPECT_THAT(find_damaged(looking, sweep_, {}), ElementsAre(HasSubstr(place)));
    EXPECT_FALSE(looking.has(file_));
    EXPECT_EQ(Gathering(looking, sweep_, false).missing().size(), 1);
    EXPECT_TRUE(fs::is_symlink(place) || fs::exists(place)) << "who only looks removes nothing";
    EXPECT_THAT(find_damaged(folder_, sweep_, {.remove = true}), ElementsAre(HasSubstr(place)));
    EXPECT_FALSE(fs::is_symlink(place) || fs::exists(place));
    work_all(folder_);
    EXPECT_TRUE(Gathering(folder_, sweep_, false).missing().empty());
    EXPECT_EQ(find_damaged(folder_, sweep_, {}), kNothing);
  }
}

TEST_F(Damage, IsContentThatDoesNotFitTheItemThoughItsHashIsRight) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto first = [](ItemResult& result) -> LayerMetrics& { return result.runs[0].layers[0]; };
  const auto merging = [](ItemResult& result) -> LaterQueries& {
    for (RunPart& run : result.runs) {
      const auto& merges = run.layers[0].merges;
      if (merges && merges->later) return *run.layers[0].merges->later;
    }
    throw Error("no run merges");
  };
  const auto judged = [](ItemResult& result) -> TensorAgreement& {
    for (RunPart& run : result.runs)
      if (run.agreement) return run.agreement->front().agreement;
    throw Error("no run is judged");
  };
  const std::vector<std::pair<const char*, std::function<void(ItemResult&)>>> faults{
      {"layers: ", [](ItemResult& result) { result.layers[0] += 1; }},
      {": seconds is nan", [&](ItemResult& result) { result.seconds = kNan; }},
      {": seconds is -1", [](ItemResult& result) { result.seconds = -1; }},
      {"runs: lack ", [](ItemResult& result) { result.runs.pop_back(); }},
      {"runs[0].layers: are 0", [](ItemResult& result) { result.runs[0].layers.clear(); }},
      {": step_seconds is inf", [](ItemResult& result) { result.runs[0].step_seconds = 1 / 0.0; }},
      {"runs[0].layers[0].kept: ", [&](ItemResult& result) { first(result).kept.pop_back(); }},
      {"runs[0].layers[0].perturbation: has 2 steps of 3",
       [&](ItemResult& result) { first(result).perturbation = Matrix(2, 3); }},
      {"runs[0].layers[0].bound: ", [&](ItemResult& result) { first(result).bound = Matrix(1, 4); }},
      {"runs[0].layers[0].rounding: ", [&](ItemResult& result) { first(result).rounding.reset(); }},
      {"runs[0].layers[0].stage_one_mass: ",
       [&](ItemResult& result) { first(result).stage_one_mass = Matrix(); }},
      {"layers[0].layer_relative: ", [&](ItemResult& result) { first(result).layer_relative.clear(); }},
      {"layers[0].recall: ", [&](ItemResult& result) { first(result).recall.resize(3); }},
      {"layers[0].merges.later.sag: ", [&](ItemResult& result) { merging(result).sag = Matrix(2, 5); }},
      {"agreement[0].worst: ", [&](ItemResult& result) {
         judged(result).outside = 1;
         judged(result).worst.reset();
       }}};
  const std::string place = folder_.result_path(file_);
  for (const auto& [field, spoil] : faults) {
    SCOPED_TRACE(field);
    ItemResult result = item_result_of(place, sound_);
    spoil(result);
    write(bytes_of(result));
    SweepFolder looking(path("s"));
    EXPECT_THAT(find_damaged(looking, sweep_, {}), ElementsAre(AllOf(HasSubstr(place), HasSubstr(field))));
    SweepFolder refusing(path("s"));
    EXPECT_THROW(find_damaged(refusing, sweep_, {.refuse_undamaged = true}), TraceError);
  }
  for (const auto& [name, other] : {std::pair{"gversion", "gwersion"}, {"kenvironment", "kenvirnoment"}}) {
    std::string body = sound_.substr(64);
    const size_t begin = name == std::string("gversion") ? body.find("environment") : 0;
    body.replace(body.find(name, begin), std::string(name).size(), other);
    write(with_hash(body));
    SweepFolder looking(path("s"));
    EXPECT_THAT(find_damaged(looking, sweep_, {}),
                ElementsAre(AllOf(HasSubstr(place), HasSubstr(std::string(name + 1) + " is missing"))));
  }
}

TEST_F(Damage, StaysWhileAnotherProcessComputesTheItem) {
  write("torn");
  {
    const SweepFolder other(path("s"));
    const auto claim = other.claim(file_);
    EXPECT_EQ(find_damaged(folder_, sweep_, {.remove = true}).size(), 1);
    EXPECT_EQ(contents(folder_.result_path(file_)), "torn");
  }
  EXPECT_EQ(find_damaged(folder_, sweep_, {.remove = true}).size(), 1);
  EXPECT_FALSE(folder_.has(file_));
}

TEST_F(Damage, OfTheListOfRunsCostsOtherPlansTheirPartAndNothingElse) {
  for (const fs::directory_entry& entry : fs::directory_iterator(path("s/runs")))
    scratch_.write("s/runs/" + entry.path().filename().string(), "tova 5% reference\n");
  EXPECT_EQ(find_damaged(folder_, sweep_, {}), kNothing);
  EXPECT_TRUE(Gathering(folder_, sweep_, false).missing().empty()) << "the plan's own items need no list";
  const Sweep part = scratch_.sweep(R"("tova")", kMore);
  EXPECT_EQ(Gathering(folder_, part, false).missing().size(), 5) << "nor has any result a run of tova";
  folder_.keep_result(file_, folder_.result(file_));
  EXPECT_THAT(folder_.runs_of(file_), testing::SizeIs(8)) << "whoever computes the item again mends the list";
}

TEST_F(Damage, IsNoFileOfAnotherName) {
  scratch_.write("s/results/notes", "x");
  fs::create_directories(path("s/results/ab"));
  scratch_.write("s/results/ab/NOTES.txt", "x");
  scratch_.write("s/results/ab/ab-..-cd", "x");
  EXPECT_EQ(find_damaged(folder_, sweep_, {.mixed = true, .remove = true}), kNothing);
  EXPECT_FALSE(folder_.results().contains("ab-..-cd"));
  EXPECT_TRUE(fs::exists(path("s/results/ab/NOTES.txt")));
}

}  // namespace
}  // namespace kvbound::sim::damage_test
