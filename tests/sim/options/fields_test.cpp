// Structs are the same after their JSON, and other JSON is refused with the field's name.
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/sim/options/fields.hpp>

#include "support/message_of.hpp"

namespace kvbound::sim {
namespace fields_test {

struct Inner {
  int64_t count = 0;
  std::optional<double> figure;
};

struct Celsius {
  double degrees = 0;
};

struct Outer {
  std::string text;
  bool truth = false;
  double number = 0;
  Dtype dtype = Dtype::f32;
  Matrix matrix;
  std::vector<Inner> list;
  std::map<std::string, Celsius> temperatures;
  FieldsJson whole;
};

}  // namespace fields_test

template <>
struct WrittenAs<fields_test::Celsius> {
  static double of(const fields_test::Celsius& celsius) { return celsius.degrees + 273; }
  static fields_test::Celsius from(double kelvin) { return {kelvin - 273}; }
};

template <>
struct Fields<fields_test::Inner> {
  static void visit(auto& inner, const auto& visit) {
    visit("count", inner.count);
    visit("figure", inner.figure);
  }
};

template <>
struct Fields<fields_test::Outer> {
  static void visit(auto& outer, const auto& visit) {
    visit.fixed("format", "outer");
    visit("text", outer.text);
    visit("truth", outer.truth);
    visit("number", outer.number);
    visit("dtype", outer.dtype);
    visit("matrix", outer.matrix);
    visit("list", outer.list);
    visit("temperatures", outer.temperatures);
    visit("whole", outer.whole);
  }
};

namespace fields_test {
namespace {

using ::testing::HasSubstr;

Outer outer() {
  Outer made{"a",
             true,
             -0.5,
             Dtype::bf16,
             Matrix(2, 3),
             {{-7, std::nullopt}, {8, 1.0 / 3}},
             {{"b", {1}}, {"a", {2}}},
             {{"any", {1, "x"}}}};
  made.matrix(1, 2) = 5e-324;
  return made;
}

TEST(Fields, AreTheSameAfterTheirJson) {
  const auto read = parse_fields<Outer>("outer", fields_of(outer()).dump());
  EXPECT_EQ(read.text, "a");
  EXPECT_TRUE(read.truth);
  EXPECT_EQ(read.number, -0.5);
  EXPECT_EQ(read.dtype, Dtype::bf16);
  EXPECT_EQ(read.matrix.rows(), 2);
  EXPECT_EQ(read.matrix(1, 2), 5e-324);
  ASSERT_EQ(read.list.size(), 2);
  EXPECT_EQ(read.list[0].count, -7);
  EXPECT_FALSE(read.list[0].figure);
  EXPECT_EQ(read.list[1].figure, 1.0 / 3);
  EXPECT_EQ(fields_of(outer())["temperatures"], FieldsJson({{"a", 275.0}, {"b", 274.0}}));
  EXPECT_EQ(read.temperatures.at("a").degrees, 2);
  EXPECT_EQ(read.whole, outer().whole);
}

TEST(Fields, OfOtherKindsAreRefusedByName) {
  const auto refusal = [](const char* field, const FieldsJson& value) {
    FieldsJson json = fields_of(outer());
    json[nlohmann::ordered_json::json_pointer(field)] = value;
    Outer read;
    return test::message_of<Error>([&] { read_fields("outer", json, read); });
  };
  EXPECT_EQ(refusal("/text", 1), "text is 1; expected a text");
  EXPECT_EQ(refusal("/truth", "yes"), "truth is \"yes\"; expected true or false");
  EXPECT_EQ(refusal("/number", nullptr), "number is null; expected a number");
  EXPECT_EQ(refusal("/dtype", "F17"), "dtype is \"F17\"; expected a data type");
  EXPECT_EQ(refusal("/format", "other"), "format is \"other\"; expected \"outer\"");
  EXPECT_EQ(refusal("/temperatures", {1}), "temperatures is [1]; expected an object");
  EXPECT_EQ(refusal("/temperatures/a", "hot"), "a is \"hot\"; expected a number");
  EXPECT_EQ(refusal("/list", 3), "list is 3; expected a list");
  EXPECT_EQ(refusal("/list/0", 3), "list is 3; expected an object");
  EXPECT_EQ(refusal("/list/0/count", 1.5), "count is 1.5; expected an integer");
  EXPECT_EQ(refusal("/list/0/count", UINT64_MAX), "count is 18446744073709551615; expected an integer");
  EXPECT_THAT(refusal("/matrix/rows", 3), HasSubstr("expected a matrix of rows times cols numbers"));
  EXPECT_THAT(refusal("/matrix/rows", -2), HasSubstr("expected a matrix"));
  EXPECT_THAT(refusal("/matrix/cols", INT64_MAX), HasSubstr("expected a matrix"));
  EXPECT_EQ(refusal("/list/0/count", INT64_MAX), "no error");
  FieldsJson json = fields_of(outer());
  json.erase("truth");
  Outer read;
  EXPECT_EQ(test::message_of<Error>([&] { read_fields("outer", json, read); }), "truth is missing");
  EXPECT_EQ(test::message_of<Error>([] { parse_fields<Outer>("outer", "{"); }), "outer is not valid JSON");
}

}  // namespace
}  // namespace fields_test
}  // namespace kvbound::sim
