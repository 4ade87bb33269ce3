#include <gtest/gtest.h>

#include <kvbound/sim/figures/document.hpp>

#include "support/small_cube.hpp"

namespace kvbound::sim::document_test {
namespace {

Json document_of(const std::vector<Part>& parts) {
  std::string text;
  DocumentWriter writer("test", [&](std::string_view more) { text += more; });
  for (const Part& part : parts) writer.add(part);
  writer.finish({{"version", "1.2.3"}, {"seed", nullptr}});
  EXPECT_TRUE(text.ends_with("\n}\n"));
  return Json::parse(text);
}

TEST(Documents, HaveFactsAxesAndCubesOfEveryPart) {
  const Json document = document_of({{{{"path", "a"}}, {test::small_cube()}}, {{{"path", "b\"\x01"}}, {}}});
  EXPECT_EQ(document["schema"], "kvbound-2");
  EXPECT_EQ(document["command"], "test");
  EXPECT_EQ(document["provenance"], Json::parse(R"({"version": "1.2.3", "seed": null})"));
  ASSERT_EQ(document["parts"].size(), 2u);
  EXPECT_EQ(document["parts"][0], Json::parse(R"({
    "facts": {"path": "a"},
    "axes": {"run": {"policy": ["a, \"b\"", "c"], "entries": [1000000, 20]}, "head": {"head": [0, 1, 2]}},
    "cubes": {"heads": {"axes": ["run", "head"], "columns": {"L": [0.5, 1, null, null, 0, 0.125], "count": [1, 2, 3, 4, 5, 6]}}}
  })"));
  EXPECT_EQ(document["parts"][1]["facts"]["path"], "b\"\x01");
}

TEST(Documents, HaveNullForWhatIsNoNumber) {
  const Json document = document_of({{{}, {test::small_cube()}}});
  EXPECT_TRUE(document["parts"][0]["cubes"]["heads"]["columns"]["L"][3].is_null()) << "infinity";
}

TEST(Documents, LeaveOutCubesOfDetailAndColumnsThatSayNothing) {
  Cube detail = test::small_cube(), empty = test::small_cube();
  detail.is_detail = true;
  empty.columns = {*empty.find("bound")};
  const Json document = document_of({{{}, {detail, empty}}});
  EXPECT_EQ(document["parts"][0]["cubes"], Json::object());
  EXPECT_EQ(document["parts"][0]["axes"], Json::object());
}

TEST(Documents, MayHaveNoPart) { EXPECT_EQ(document_of({})["parts"], Json::array()); }

}  // namespace
}  // namespace kvbound::sim::document_test
