#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/json_field.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::traces {
namespace {

using testing::ElementsAre;

class JsonFields : public testing::Test {
 protected:
  JsonField at(const char* name) const { return JsonField(path_, "", json_).member(name); }
  // Expects an error of this text.
  void refuses(const std::function<void()>& read, const std::string& text) const {
    try {
      read();
      ADD_FAILURE() << "no error; expected " << text;
    } catch (const TraceError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("file.json: at byte "));
      EXPECT_THAT(error.what(), testing::EndsWith(": " + text));
    }
  }

  std::string path_ = "file.json";
  Json json_ = parse_strict_json(
      path_, 0, "",
      R"({"text": "a", "empty": "", "three": 3, "half": 0.5, "yes": true, "none": null, "list": [1, null, 2.5], "nothing": [], "figures": [7, 0, 2]})");
};

TEST_F(JsonFields, AreReadByTheirType) {
  EXPECT_EQ(at("text").text(), "a");
  EXPECT_EQ(at("empty").any_text(), "");
  EXPECT_EQ(at("text").one_of({"b", "a"}), "a");
  EXPECT_EQ(at("three").integer(1, 3), 3);
  EXPECT_EQ(at("three").number(), 3);
  EXPECT_EQ(at("half").positive(), 0.5);
  EXPECT_TRUE(at("yes").boolean());
  EXPECT_TRUE(at("none").is_null());
  EXPECT_TRUE(std::isnan(at("none").number_or_nan()));
  EXPECT_THAT(at("list").numbers_or_nan(3), ElementsAre(1, testing::IsNan(), 2.5));
  EXPECT_THAT(at("figures").numbers(), ElementsAre(7, 0, 2));
  EXPECT_THAT(at("figures").integers(0, 7), ElementsAre(7, 0, 2));
  EXPECT_EQ(at("half").number(0, 1), 0.5);
  EXPECT_EQ(at("list").items().size(), 3u);
  EXPECT_TRUE(at("nothing").items(true).empty());
}

TEST_F(JsonFields, OfOptionalMembersAreNoneIfMissingOrNull) {
  const JsonField root(path_, "", json_);
  EXPECT_FALSE(root.optional_member("none"));
  EXPECT_FALSE(root.optional_member("other"));
  EXPECT_EQ(root.optional_member("text")->text(), "a");
}

std::string refusal(const std::string& text, const JsonLimits& limits) {
  try {
    parse_strict_json("p", 0, "", text, limits);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "no error";
}

TEST(StrictJson, IsRefusedIfItsValuesTakeMuchMemory) {
  const JsonLimits limits{.levels = 4, .items = 1'000'000, .bytes = size_t{1} << 20};
  const auto list = [](const std::string& item, int count) {
    std::string text = R"({"a": [)" + item;
    for (int i = 1; i < count; ++i) text += "," + item;
    return text + "]}";
  };
  EXPECT_EQ(refusal(list("0", 8'000), limits), "no error");
  for (const char* item : {"0", "null", "-0.12345678901234567", "[]", "\"\"", "{}", "[0]", "{\"\": 0}"})
    EXPECT_THAT(refusal(list(item, 20'000), limits),
                testing::HasSubstr("its values take more than 1 MiB of memory up to here"))
        << item;
  EXPECT_THAT(refusal(R"({"a": ")" + std::string(1 << 20, 'x') + "\"}", limits), testing::HasSubstr("1 MiB"));
  EXPECT_THAT(refusal(R"({")" + std::string(1 << 20, 'x') + "\": 0}", limits), testing::HasSubstr("1 MiB"));
  size_t taken = 0;
  const JsonLimits shared{.levels = 4, .items = 1'000'000, .bytes = size_t{1} << 20, .taken = &taken};
  EXPECT_EQ(refusal(list("0", 8'000), shared), "no error");
  EXPECT_GE(taken, 8'000 * sizeof(Json));
  EXPECT_THAT(refusal(list("0", 8'000), shared), testing::HasSubstr("1 MiB"));
}

TEST(Messages, QuoteNoMoreThanTheBeginning) {
  EXPECT_EQ(printable("two\nlines"), "two\\x0alines");
  EXPECT_EQ(printable(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(printable(std::string(81, 'x')), std::string(80, 'x') + "...");
  EXPECT_EQ(printable(std::string(1000, 'x'), 1000), std::string(120, 'x') + "...");
  EXPECT_EQ(printable(std::string(1000, '\n')).size(), 83u);
  EXPECT_EQ(traces::quoted("a"), "'a'");
  EXPECT_EQ(traces::quoted(std::string(1000, 'x')).size(), 125u);
}

TEST(Messages, NamePathsAndFieldsByTheirBeginningAndEnd) {
  const std::string path = "folder/" + std::string(5000, 'x') + "/file.json";
  const std::string message = TraceError(path, 3, std::string(1000, 'y') + ".last", "is wrong").what();
  EXPECT_THAT(message, testing::StartsWith("folder/xxx"));
  EXPECT_THAT(message, testing::HasSubstr("xxx/file.json: at byte 3: yyy"));
  EXPECT_THAT(message, testing::EndsWith("yyy.last: is wrong"));
  EXPECT_LT(message.size(), 280u);
  EXPECT_EQ(without_middle(std::string(120, 'x')), std::string(120, 'x'));
  EXPECT_EQ(without_middle(std::string(121, 'x')).size(), 120u);
  EXPECT_LT(std::string(io_error("open", path, 2).what()).size(), 200u);
}

TEST_F(JsonFields, OfAnObjectAreKnownByName) {
  std::string path = "file.json";
  const Json json = parse_strict_json(path, 0, "", R"({"a\n": {"b": 1}, "c": [2, {}, [3]]})");
  const JsonField root(path, "line 1", json, ": ");
  EXPECT_EQ(root.members().front().first, "a\n");
  EXPECT_EQ(root.structured_parts().size(), 2u);
  EXPECT_EQ(root.member("c").structured_parts().size(), 2u);
  refuses([&] { root.members().front().second.member("b").text(); },
          "line 1: a\\x0a.b: is 1; expected a string that is not empty");
  constexpr std::string_view kKnown[] = {"c", "d"};
  refuses([&] { root.require_known(kKnown, "an example"); },
          "line 1: member \"a\\x0a\" is unknown; the members of an example are c, d");
  refuses([&] { root.member("c").find("d"); }, "line 1: c: is an array; expected an object");
}

TEST_F(JsonFields, ThatAreSomethingElseAreNamed) {
  refuses([&] { at("other"); }, "other: is missing");
  refuses([&] { at("text").integer(); }, "text: is \"a\"; expected an integer from 0 to 9223372036854775807");
  refuses([&] { at("three").integer(4, 9); }, "three: is 3; expected an integer from 4 to 9");
  refuses([&] { at("half").integer(); }, "half: is 0.5; expected an integer from 0 to 9223372036854775807");
  refuses([&] { at("empty").text(); }, "empty: is \"\"; expected a string that is not empty");
  refuses([&] { at("text").one_of({"b", "c"}); }, "text: is \"a\"; expected b or c");
  refuses([&] { at("text").member("inner"); }, "text: is \"a\"; expected an object");
  refuses([&] { at("three").boolean(); }, "three: is 3; expected true or false");
  refuses([&] { at("none").number(); }, "none: is null; expected a number");
  refuses([&] { at("none").positive(); }, "none: is null; expected a number > 0");
  refuses([&] { at("three").number(0, 1); }, "three: is 3; expected a number from 0 to 1");
  refuses([&] { at("three").integer(4, 9, "a digit"); }, "three: is 3; expected a digit from 4 to 9");
}

TEST_F(JsonFields, OfListsAreNamedByTheirIndex) {
  refuses([&] { at("nothing").items(); }, "nothing: is an array; expected a list that is not empty");
  refuses([&] { at("text").items(true); }, "text: is \"a\"; expected a list");
  refuses([&] { at("text").numbers(); }, "text: is \"a\"; expected a list");
  refuses([&] { at("list").numbers(); }, "list[1]: is null; expected a number");
  refuses([&] { at("figures").integers(1); },
          "figures[1]: is 0; expected an integer from 1 to 9223372036854775807");
  refuses([&] { at("list").numbers_or_nan(2); }, "list: has 3 numbers; expected 2");
  refuses([&] { at("list").items()[1].text(); }, "list[1]: is null; expected a string that is not empty");
}

TEST(StrictJson, HasPythonsNumbersOnlyWhereTheyAreLegal) {
  const std::string
      path = "file.json",
      text =
          R"({"a": [1.5, NaN, -Infinity, -0.000000, Infinity], "b\"": "NaN, Infinity \\\" -Infinity", "c": 0.0})";
  const Json json = parse_strict_json(path, 0, "", text, {.python = true});
  std::vector<std::string> numbers;
  for (const Json& number : *json.member("a")->array()) numbers.push_back(description(number));
  EXPECT_THAT(numbers, ElementsAre("1.5", "NaN", "-Infinity", "-0.000000", "Infinity"));
  EXPECT_EQ(*json.member("b\"")->text(), "NaN, Infinity \\\" -Infinity");
  EXPECT_EQ(description(*json.member("c")), "0.0");
  EXPECT_THROW(JsonField(path, "", json).member("a").items()[4].number(), TraceError);
  EXPECT_THROW(parse_strict_json(path, 0, "", text), TraceError);
  EXPECT_THROW(parse_strict_json(path, 0, "", R"({"a": NaNs})", {.python = true}), TraceError);
}

}  // namespace
}  // namespace kvbound::traces
