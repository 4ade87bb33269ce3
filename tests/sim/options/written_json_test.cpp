// Reading back what this program wrote: nesting, members and memory are limited before
// anything is built of them.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/written_json.hpp>

#include "support/message_of.hpp"

namespace kvbound::sim {
namespace {

using Value = nlohmann::ordered_json;

std::string nested(size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); }

std::string refusal(const std::string& text, const WrittenLimits& limits = {}) {
  return test::message_of<Error>([&] { written_json("it", text, limits); });
}

std::string cbor_refusal(const std::string& bytes, const WrittenLimits& limits = {}) {
  return test::message_of<Error>([&] { written_cbor("it", bytes, limits); });
}

TEST(WrittenJson, IsWhatWasWritten) {
  const Value value = {{"b", {1, -2, 0.1, "text", nullptr, true}}, {"a", {{"c", Value::array()}}}};
  EXPECT_EQ(written_json("it", value.dump()), value);
  std::string bytes;
  Value::to_cbor(value, bytes);
  EXPECT_EQ(written_cbor("it", bytes), value);
  EXPECT_EQ(written_json("it", nested(32)).dump(), nested(32));
}

TEST(WrittenJson, IsDiscardedIfIllFormed) {
  EXPECT_TRUE(written_json("it", "{\"a\": 1").is_discarded());
  EXPECT_TRUE(written_json("it", "{} {}").is_discarded());
  EXPECT_TRUE(written_cbor("it", "\x82\x01").is_discarded());
  EXPECT_TRUE(written_cbor("it", std::string("\x01\x02")).is_discarded());
}

TEST(WrittenJson, IsRefusedIfNestedDeeply) {
  const std::string expected = "it is nested deeper than 32 levels";
  EXPECT_EQ(refusal(nested(33)), expected);
  EXPECT_EQ(refusal(nested(1'000'000)), expected);
  EXPECT_EQ(refusal(std::string(1'000'000, '[')), expected);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(refusal(objects), expected);
  EXPECT_EQ(cbor_refusal(std::string(1'000'000, '\x81')), expected) << "lists of one item";
  EXPECT_EQ(cbor_refusal(std::string(1'000'000, '\x9f')), expected) << "lists without a length";
  std::string maps;
  for (int i = 0; i < 100'000; ++i)
    maps +=
        "\xa1\x61"
        "a";
  EXPECT_EQ(cbor_refusal(maps), expected);
}

TEST(WrittenJson, IsRefusedIfItTakesMuchMemory) {
  const WrittenLimits limits{.bytes = size_t{1} << 20};
  const std::string expected = "it takes more than 1 MiB of memory";
  const auto list = [](const std::string& item, int count) {
    std::string text = "[" + item;
    for (int i = 1; i < count; ++i) text += "," + item;
    return text + "]";
  };
  EXPECT_EQ(refusal(list("0", 30'000), limits), "no error");
  for (const char* item : {"0", "-1", "0.5", "null", "[]", "{}", "\"\"", "{\"\":0}"})
    EXPECT_EQ(refusal(list(item, 40'000), limits), expected) << item;
  EXPECT_EQ(refusal("\"" + std::string(1 << 20, 'x') + "\"", limits), expected);
  EXPECT_EQ(cbor_refusal("\x9f" + std::string(40'000, '\x01') + "\xff", limits), expected);
  size_t taken = 0;
  written_json("it", list("0", 30'000), limits, &taken);
  EXPECT_GT(taken, 30'000 * sizeof(Value));
  EXPECT_LT(taken, size_t{1} << 20);
}

TEST(WrittenJson, IsRefusedIfAnObjectHasManyMembers) {
  std::string text = "{\"0\":0";
  for (int i = 1; i < 65'537; ++i) text += ",\"" + std::to_string(i) + "\":0";
  EXPECT_EQ(refusal(text + "}"), "it has more than 65536 members");
}

}  // namespace
}  // namespace kvbound::sim
