#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/report/page/section.hpp>

namespace kvbound::sim {
namespace {

std::string brief_of(const std::string& policy) { return brief(canonical(parse_policy(policy))); }

TEST(BriefPolicies, HaveNoOptionsThatAreDefaults) {
  for (const char* policy : {"snapkv", "snapkv:window=16", "snapkv:window=16:pool=1+critical:alpha=0.25",
                             "h2o+keepkv", "snapkv:pool=1+adakv:safeguard=0.5+keepkv:period=3", "tova+cam"})
    EXPECT_EQ(brief_of(policy), policy);
}

TEST(BriefPolicies, AreTheSamePolicies) {
  const std::string canonical_text = canonical(parse_policy("snapkv:window=9+critical:epsilon=1e-3:norm=l2"));
  EXPECT_EQ(canonical(parse_policy(brief(canonical_text))), canonical_text);
}

TEST(BriefPolicies, OfTextsThatAreNoneAreTheseTexts) {
  EXPECT_EQ(brief("of:another=version"), "of:another=version");
  EXPECT_EQ(brief(""), "");
}

TEST(PolicyNames, AreThoseOfGivenFilesAndBriefPolicies) {
  EXPECT_EQ(policy_name("given:file=a.safetensors:window=32+critical", "KnormPress+critical"),
            "KnormPress+critical");
  EXPECT_EQ(policy_name(canonical(parse_policy("snapkv")), "another"), "snapkv");
}

TEST(Sections, NumberTheirCubesAndFigures) {
  Section section("part-3", "title");
  PageCube cube;
  cube.add_counted_axis("i", 1);
  cube.append("x", 1);
  EXPECT_EQ(section.add(cube), "part-3-data-1");
  EXPECT_EQ(section.add(cube), "part-3-data-2");
  section.add("part-3-data-2",
              {.kind = "bars", .title = "t", .how = "h", .x = {"x", "label", true}, .pick = {{"i", "0"}}});
  const Json figure = section.json()["figures"][0];
  EXPECT_EQ(figure["id"], "part-3-figure-1");
  EXPECT_EQ(figure["cube"], "part-3-data-2");
  EXPECT_EQ(figure["x"],
            Json::parse(R"({"value": "x", "label": "label", "scale": "log", "from_zero": false})"));
  EXPECT_EQ(figure["series"], Json::array());
  EXPECT_EQ(figure["pick"], Json::parse(R"([{"key": "i", "preferred": "0"}])"));
}

TEST(Cubes, HaveRoomForTwentyMillionNumbers) {
  const std::string path = "file.json";
  const traces::Json json = traces::parse_strict_json(path, 0, "", "{}");
  const JsonField field(path, "runs", json);
  EXPECT_NO_THROW(require_room(field, {20, 1000, 1000}));
  EXPECT_NO_THROW(require_room(field, {0, 1'000'000'000'000}));
  EXPECT_THROW(require_room(field, {20, 1000, 1001}), TraceError);
  EXPECT_THROW(require_room(field, {INT64_MAX, INT64_MAX}), TraceError);
}

TEST(Models, AreCalledByWhatStandsBeforeTheColon) {
  const auto name_of = [](const std::string& text) {
    const std::string path = "file.json";
    const traces::Json json = traces::parse_strict_json(path, 0, "", "{\"model\": \"" + text + "\"}");
    return model_name(JsonField(path, "", json).member("model"));
  };
  EXPECT_EQ(name_of("pocket: Llama-style, 4 layers"), "pocket");
  EXPECT_EQ(name_of("a:b"), "a:b");
  EXPECT_EQ(name_of(""), "a model without a name");
}

}  // namespace
}  // namespace kvbound::sim
