#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/figures/document.hpp>
#include <kvbound/sim/figures/read_part.hpp>

#include "support/message_of.hpp"
#include "support/small_cube.hpp"

namespace kvbound::sim::read_part_test {
namespace {

const std::string kPath = "a.json";

std::string text_of(const Part& part) {
  std::string text;
  DocumentWriter writer("test", [&](std::string_view more) { text += more; });
  writer.add(part);
  writer.finish({});
  return text;
}

// What reading the document's only part gives, passed to `use`.
template <class Use>
void with_part(const std::string& text, const Use& use) {
  const traces::Json json = traces::parse_strict_json(kPath, 0, "", text, {.levels = 16});
  const traces::JsonField root(kPath, "", json);
  use(read_part(root.member("parts").items().front()));
}

// The document with `original` replaced.
std::string problem(const std::string& original, const std::string& changed) {
  std::string text = text_of({{{"path", "p"}}, {test::small_cube()}});
  const size_t at = text.find(original);
  EXPECT_NE(at, std::string::npos) << text;
  text.replace(at, original.size(), changed);
  return test::message_of<TraceError>([&] { with_part(text, [](const ReadPart&) {}); });
}

TEST(ReadPart, HasWhatWasWritten) {
  with_part(text_of({{{"path", "p"}}, {test::small_cube()}}), [](const ReadPart& part) {
    EXPECT_EQ(part.facts.member("path").text(), "p");
    const Cube& cube = part.cube("heads");
    ASSERT_EQ(cube.rows(), 6);
    EXPECT_EQ(texts_of(part, *cube.axes[0], "policy"), (std::vector<std::string>{"a, \"b\"", "c"}));
    EXPECT_EQ(numbers_of(part, *cube.axes[1], "head"), (std::vector<double>{0, 1, 2}));
    EXPECT_EQ(cube.find("L")->numbers()[5], 0.125);
    EXPECT_TRUE(std::isnan(cube.find("L")->numbers()[3]));
    EXPECT_EQ(cube.find("bound"), nullptr);
    EXPECT_EQ(part.find("runs"), nullptr);
  });
}

TEST(ReadPart, HasCubesOfTheWholeWithOneRow) {
  with_part(
      text_of({nlohmann::ordered_json::object(), {{"all", {}, {number_column(test::named("L"), {3})}}}}),
      [](const ReadPart& part) {
        EXPECT_EQ(part.cube("all", {}).rows(), 1);
        EXPECT_EQ(part.cube("all").find("L")->numbers(), std::vector<double>{3});
      });
}

TEST(ReadPart, RefusesColumnsOfAnotherSize) {
  EXPECT_THAT(problem("\"count\": [1,2,3,4,5,6]", "\"count\": [1,2,3,4,5]"),
              testing::HasSubstr("parts[0].cubes.heads.columns.count: has 5 values; expected 6"));
}

TEST(ReadPart, RefusesAxesThatAreNoneOrHaveKeysOfDifferentSizes) {
  EXPECT_THAT(problem("[\"run\",\"head\"]", "[\"run\",\"token\"]"),
              testing::HasSubstr("names no axis of its part"));
  EXPECT_THAT(problem("\"entries\": [1000000,20]", "\"entries\": [1000000]"),
              testing::HasSubstr(" places; expected "));
}

TEST(ReadPart, RefusesMoreRowsThanTheLimit) {
  std::string axes = "[\"run\"";
  for (int i = 0; i < 30; ++i) axes += ",\"head\"";
  EXPECT_THAT(problem("[\"run\",\"head\"]", axes + "]"), testing::HasSubstr("makes more than 20000000 rows"));
}

TEST(ReadPart, SaysWhichCubeOrKeyIsMissing) {
  with_part(text_of({{{"path", "p"}}, {test::small_cube()}}), [](const ReadPart& part) {
    EXPECT_THAT(test::message_of<TraceError>([&] { part.cube("runs"); }), testing::HasSubstr("have no runs"));
    EXPECT_THAT(test::message_of<TraceError>([&] { texts_of(part, *part.cube("heads").axes[1], "head"); }),
                testing::HasSubstr("whose key head has no texts"));
    EXPECT_EQ(part.cube("heads", {"run", "head"}).rows(), 6);
    for (const auto& axes : {std::initializer_list<std::string_view>{"run"}, {"head", "run"}}) {
      EXPECT_THAT(test::message_of<TraceError>([&] { part.cube("heads", axes); }),
                  testing::HasSubstr("parts[0].cubes.heads: expected the axes "));
    }
    EXPECT_TRUE(std::isnan(numbers_or_none(part.cube("heads"), "bound").at(5)));
  });
}

}  // namespace
}  // namespace kvbound::sim::read_part_test
