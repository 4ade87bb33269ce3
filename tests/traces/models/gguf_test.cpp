// The GGUF reader: legal files are read exactly, all others are refused with one line that names the place.
#include <cmath>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/float16.hpp>
#include <kvbound/traces/models/gguf.hpp>

#include "support/gguf_bytes.hpp"

namespace kvbound::traces::gguf_test {
namespace {

using test::bytes_of;
using test::gguf_text;
using test::GgufParts;
using test::message_of;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string floats(int count, float first = 1) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += bytes_of(first + static_cast<float>(i));
  return bytes;
}

// Two tensors: "a" [2, 3] of F32, and "b" [1, 32] of Q4_1.
GgufParts small_file() {
  GgufParts parts;
  parts.set("general.architecture", std::string("llama"));
  parts.set("llama.block_count", uint32_t{2});
  parts.set("llama.rope.freq_base", 10000.0F);
  parts.tensors.push_back({"a", {3, 2}, 0, floats(6)});
  parts.tensors.push_back(
      {"b", {32}, 3, bytes_of(to_float16(0.5)) + bytes_of(to_float16(-1)) + std::string(16, 0x21)});
  return parts;
}

// The reader's error message for a file with these bytes: one line that begins with the path.
std::string refusal(const std::string& bytes) {
  const TemporaryFolder folder;
  const std::string path = folder.write("bad.gguf", bytes);
  const std::string message = message_of<TraceError>([&] { GgufFile{path}; });
  EXPECT_THAT(message, AllOf(StartsWith(path + ": "), Not(HasSubstr("\n"))));
  return message.substr(std::min(message.size(), path.size() + 2));
}
template <class Change>
std::string refusal_of(const Change& change) {
  GgufParts parts = small_file();
  change(parts);
  return refusal(parts.bytes());
}

TEST(Gguf, ReadsMetadataAndTensors) {
  const TemporaryFolder folder;
  for (const uint32_t version : {2, 3}) {
    GgufParts parts = small_file();
    parts.version = version;
    const GgufFile file(folder.write("small.gguf", parts.bytes()));
    EXPECT_EQ(std::get<std::string>(file.metadata().at("general.architecture").value), "llama");
    EXPECT_EQ(std::get<int64_t>(file.metadata().at("llama.block_count").value), 2);
    EXPECT_EQ(std::get<double>(file.metadata().at("llama.rope.freq_base").value), 10000);
    ASSERT_EQ(file.tensors().size(), 2);
    EXPECT_EQ(file.find("c"), nullptr);
    const GgufTensor& a = *file.find("a");
    EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
    std::vector<float> numbers(3);
    file.weight(a).read(1, numbers);
    EXPECT_EQ(numbers, (std::vector<float>{4, 5, 6}));
    numbers.resize(32);
    file.weight(*file.find("b")).read(0, numbers);
    EXPECT_EQ(numbers[0], -0.5F);
    EXPECT_EQ(numbers[16], 0);
  }
}

TEST(Gguf, ReadsEveryTypeOfValue) {
  GgufParts parts = small_file();
  parts.metadata = {
      {"u8", 0, "\xff"},
      {"i8", 1, "\xff"},
      {"u16", 2, bytes_of(uint16_t{65535})},
      {"i16", 3, bytes_of(int16_t{-2})},
      {"i32", 5, bytes_of(int32_t{-3})},
      {"bool", 7, std::string(1, 1)},
      {"texts", 9, bytes_of(uint32_t{8}) + bytes_of(uint64_t{2}) + gguf_text("one") + gguf_text("")},
      {"many", 9, bytes_of(uint32_t{4}) + bytes_of(uint64_t{40000}) + std::string(160000, 7)},
      {"nested", 9,
       bytes_of(uint32_t{9}) + bytes_of(uint64_t{2}) +
           (bytes_of(uint32_t{1}) + bytes_of(uint64_t{3}) + "abc") +
           (bytes_of(uint32_t{8}) + bytes_of(uint64_t{1}) + gguf_text("d"))},
      {"u64", 10, bytes_of(uint64_t{1} << 62)},
      {"largest", 10, bytes_of(UINT64_MAX)},
      {"i64", 11, bytes_of(int64_t{-4})},
      {"f64", 12, bytes_of(0.1)}};
  const TemporaryFolder folder;
  const GgufFile file(folder.write("values.gguf", parts.bytes()));
  const auto integer = [&](const char* key) { return std::get<int64_t>(file.metadata().at(key).value); };
  EXPECT_EQ(integer("u8"), 255);
  EXPECT_EQ(integer("i8"), -1);
  EXPECT_EQ(integer("u16"), 65535);
  EXPECT_EQ(integer("i16"), -2);
  EXPECT_EQ(integer("i32"), -3);
  EXPECT_EQ(integer("u64"), int64_t{1} << 62);
  EXPECT_EQ(integer("i64"), -4);
  EXPECT_TRUE(std::get<bool>(file.metadata().at("bool").value));
  EXPECT_EQ(std::get<double>(file.metadata().at("f64").value), 0.1);
  EXPECT_EQ(std::get<GgufArray>(file.metadata().at("texts").value).items, 2);
  EXPECT_EQ(std::get<GgufArray>(file.metadata().at("many").value).items, 40000);
  EXPECT_EQ(std::get<GgufArray>(file.metadata().at("nested").value).items, 2);
  EXPECT_EQ(std::get<uint64_t>(file.metadata().at("largest").value), UINT64_MAX);
  std::vector<float> numbers(6);
  file.weight(*file.find("a")).read(0, numbers);
  EXPECT_EQ(numbers[5], 6) << "what lies behind an array that is passed over";
}

TEST(Gguf, ReadsTheItemsOfAnArrayWhenTheyAreNeeded) {
  GgufParts parts = small_file();
  parts.metadata.push_back({"heads", 9,
                            bytes_of(uint32_t{3}) + bytes_of(uint64_t{3}) + bytes_of(int16_t{8}) +
                                bytes_of(int16_t{-1}) + bytes_of(int16_t{2})});
  parts.metadata.push_back({"none", 9, bytes_of(uint32_t{4}) + bytes_of(uint64_t{0})});
  const TemporaryFolder folder;
  const GgufFile file(folder.write("arrays.gguf", parts.bytes()));
  const auto items = [&](const char* key) {
    std::vector<int64_t> numbers;
    for (const GgufValue& item : file.items(key, std::get<GgufArray>(file.metadata().at(key).value)))
      numbers.push_back(std::get<int64_t>(item.value));
    return numbers;
  };
  EXPECT_EQ(items("heads"), (std::vector<int64_t>{8, -1, 2}));
  EXPECT_EQ(items("none"), (std::vector<int64_t>{}));
}

TEST(Gguf, ReadsAnAlignmentOfItsOwn) {
  GgufParts parts = small_file();
  parts.set("general.alignment", uint32_t{256});
  parts.alignment = 256;
  const TemporaryFolder folder;
  const GgufFile file(folder.write("aligned.gguf", parts.bytes()));
  EXPECT_EQ(file.find("b")->begin % 256, 0);
}

TEST(Gguf, RefusesEveryTruncation) {
  const TemporaryFolder folder;
  const std::string whole = small_file().bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(GgufFile{folder.write("short.gguf", whole.substr(0, size))}, TraceError) << size;
  }
}

TEST(Gguf, RefusesOtherFiles) {
  EXPECT_EQ(refusal_of([](GgufParts& parts) { parts.magic = "GGML"; }),
            "at byte 0: magic: is \"GGML\"; expected \"GGUF\"");
  EXPECT_EQ(refusal_of([](GgufParts& parts) { parts.version = 1; }),
            "at byte 4: version: is 1; expected 2 or 3");
  EXPECT_EQ(refusal_of([](GgufParts& parts) { parts.version = 3U << 24; }),
            "at byte 4: version: the file is big-endian; expected little-endian");
}

TEST(Gguf, RefusesAbsurdCounts) {
  EXPECT_THAT(refusal_of([](GgufParts& parts) { parts.counted_tensors = INT64_MAX; }),
              StartsWith("at byte 8: number of tensors: is 9223372036854775807; the file has only "));
  EXPECT_THAT(refusal_of([](GgufParts& parts) { parts.counted_entries = 1 << 30; }),
              StartsWith("at byte 16: number of metadata entries: is 1073741824; "));
  EXPECT_THAT(
      refusal_of([](GgufParts& parts) { parts.metadata[0].value = bytes_of(uint64_t{1} << 40) + "llama"; }),
      HasSubstr("general.architecture: is a text of 1099511627776 bytes; expected at most"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) {
                parts.metadata[0] = {"list", 9, bytes_of(uint32_t{4}) + bytes_of(uint64_t{1} << 61)};
              }),
              HasSubstr("list: is 2305843009213693952; the file has only"));
}

TEST(Gguf, RefusesValuesThatGgufDoesNotHave) {
  EXPECT_THAT(refusal_of([](GgufParts& parts) { parts.metadata[1].type = 13; }),
              HasSubstr("llama.block_count: has type 13, which GGUF does not have"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) {
                parts.metadata[1] = {"flag", 7, std::string(1, 2)};
              }),
              HasSubstr("flag: is 2; expected a truth value, 0 or 1"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) {
                parts.metadata[1] = {"odd", 9, bytes_of(uint32_t{13}) + bytes_of(uint64_t{1})};
              }),
              HasSubstr("odd: has items of type 13, which GGUF does not have"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) {
                std::string nested;
                for (int level = 0; level < 20; ++level)
                  nested += bytes_of(uint32_t{9}) + bytes_of(uint64_t{1});
                parts.metadata[1] = {"deep", 9, nested};
              }),
              HasSubstr("deep: has arrays nested deeper than 8 levels"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) { parts.metadata[1].key = "llama.rope.freq_base"; }),
              HasSubstr("llama.rope.freq_base: is there twice"));
}

TEST(Gguf, RefusesAlignmentsThatAreNone) {
  for (const uint32_t alignment : {0U, 4U, 33U, 1U << 21}) {
    EXPECT_THAT(refusal_of([&](GgufParts& parts) { parts.set("general.alignment", alignment); }),
                HasSubstr("general.alignment: is not a power of two from 8 to 2^20"));
  }
}

TEST(Gguf, RefusesTensorsOfOtherTypesByNameWhenTheyAreNeeded) {
  for (const auto& [type, problem] :
       {std::pair<uint32_t, std::string>{23, "a: is IQ4_XS; "}, {1000, "a: has type 1000; "}}) {
    GgufParts parts = small_file();
    parts.tensors[0].type = type;
    parts.tensors[0].data = std::string(70, 1);
    parts.tensors.push_back({"c", {5}, type, std::string(10, 1)});
    const TemporaryFolder folder;
    const GgufFile file(folder.write("other.gguf", parts.bytes()));
    const std::string told = message_of<TraceError>([&] { file.weight(*file.find("a")); });
    EXPECT_THAT(told, HasSubstr(problem +
                                "expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K"));
    EXPECT_EQ(file.find("a")->bytes, 96) << "up to the next tensor";
    std::vector<float> numbers(32);
    file.weight(*file.find("b")).read(0, numbers);
    EXPECT_EQ(numbers[0], -0.5F);
  }
}

TEST(Gguf, RefusesShapesThatNoTensorHas) {
  EXPECT_THAT(refusal_of([](GgufParts& parts) {
                parts.tensors[0].dimensions = {3, 0};
              }),
              HasSubstr("a: has dimensions [3, 0], which no tensor can have"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) {
                parts.tensors[0].dimensions = {1ULL << 40, 1ULL << 40};
              }),
              HasSubstr("which no tensor can have"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) { parts.tensors[0].dimensions = {UINT64_MAX}; }),
              HasSubstr("which no tensor can have"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) { parts.tensors[0].dimensions = {}; }),
              HasSubstr("a: has 0 dimensions; expected 1 to 4"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) {
                parts.tensors[0].dimensions = {1, 1, 1, 1, 1};
              }),
              HasSubstr("a: has 5 dimensions; expected 1 to 4"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) {
                parts.tensors[1].dimensions = {16, 2};
              }),
              HasSubstr("b: has rows of 16 numbers; Q4_1 has blocks of 32"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) { parts.tensors[0].dimensions = {1ULL << 62}; }),
              HasSubstr("which no tensor can have"));
}

TEST(Gguf, RefusesDataThatOverlapsOrLeavesHoles) {
  EXPECT_THAT(refusal_of([](GgufParts& parts) { parts.tensors[1].offset = 0; }),
              HasSubstr("b: has offset 0; expected 32, behind the tensor before"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) { parts.tensors[1].offset = 64; }),
              HasSubstr("b: has offset 64; expected 32"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) { parts.tensors[0].offset = 8; }),
              HasSubstr("a: has offset 8; expected 0"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) {
                parts.tensors[1].dimensions = {32, 2};
              }),
              HasSubstr("b: ends behind the file's"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) {
                parts.tensors[0].type = 23;
                parts.tensors[1].offset = 1 << 20;
              }),
              HasSubstr("a: ends behind the file's"));
  EXPECT_THAT(refusal_of([](GgufParts& parts) { parts.tensors[1].name = "a"; }),
              HasSubstr("a: is there twice"));
}

TEST(Gguf, BytesBehindTheLastTensorAreIgnored) {
  const TemporaryFolder folder;
  for (const size_t bytes : {12, 4096}) {
    GgufParts parts = small_file();
    parts.behind = std::string(bytes, 1);
    EXPECT_EQ(GgufFile(folder.write("longer.gguf", parts.bytes())).tensors().size(), 2);
  }
}

// The reader's message for a file of these bytes and then holes up to `size`.
std::string refusal_with_holes(const std::string& bytes, uint64_t size) {
  const TemporaryFolder folder;
  const std::string path = folder.write("holes.gguf", bytes);
  std::filesystem::resize_file(path, size);
  return message_of<TraceError>([&] { GgufFile{path}; });
}

TEST(Gguf, OfTextsThatNeedNoBytesAreRefused) {
  const auto beginning = [](uint64_t tensors, uint64_t entries) {
    return "GGUF" + bytes_of(uint32_t{3}) + bytes_of(tensors) + bytes_of(entries);
  };
  const uint64_t many = uint64_t{1} << 36;
  for (const uint32_t type : {8, 9}) {  // empty texts, empty arrays
    const std::string list = gguf_text("tokens") + bytes_of(uint32_t{9}) + bytes_of(type) + bytes_of(many);
    EXPECT_THAT(
        refusal_with_holes(beginning(0, 1) + list, many * 12 + 4096),
        HasSubstr("tokens: has more texts and arrays in its metadata than any model: more than 4194304"));
  }
  EXPECT_THAT(refusal_with_holes(beginning(0, many), many * 16),
              HasSubstr("number of metadata entries: is 68719476736; expected at most 1048576"));
  EXPECT_THAT(refusal_with_holes(beginning(many, 0), many * 40),
              HasSubstr("number of tensors: is 68719476736; expected at most 1048576"));
  const std::string texts = gguf_text("a") + bytes_of(uint32_t{8}) + bytes_of(uint64_t{1} << 28);
  EXPECT_THAT(refusal_with_holes(beginning(0, 2) + texts, uint64_t{1} << 30),
              HasSubstr("a: has more bytes of text in its metadata than any model"));
}

TEST(Gguf, ItemsAreRefusedIfTheyAreTooMany) {
  const TemporaryFolder folder;
  GgufParts parts = small_file();
  const std::string path = folder.write("small.gguf", parts.bytes());
  const GgufFile file(path);
  const GgufArray array{0, int64_t{1} << 21, 0};
  EXPECT_THAT(message_of<TraceError>([&] { file.items("list", array); }),
              HasSubstr("list: has more items than any model: more than 1048576"));
}

TEST(Gguf, NamesTheBlockWhoseScaleIsNoNumber) {
  const TemporaryFolder folder;
  GgufParts parts = small_file();
  parts.tensors[1].dimensions = {32, 2};
  parts.tensors[1].data += bytes_of(uint16_t{0x7c00}) + bytes_of(to_float16(0)) + std::string(16, 0x21);
  const GgufFile file(folder.write("nan.gguf", parts.bytes()));
  std::vector<float> numbers(64);
  const std::string message = message_of<TraceError>([&] { file.weight(*file.find("b")).read(0, numbers); });
  EXPECT_THAT(message, HasSubstr("at byte " + std::to_string(file.find("b")->begin + 20) +
                                 ": b: has a number that is not finite in this block of Q4_1"));
}

TEST(Gguf, RefusesRowsThatATensorDoesNotHave) {
  const TemporaryFolder folder;
  const GgufFile file(folder.write("small.gguf", small_file().bytes()));
  std::vector<float> numbers(6);
  EXPECT_THROW(file.weight(*file.find("a")).read(1, numbers), ShapeMismatch);
  EXPECT_THROW(file.weight(*file.find("a")).read(-1, numbers), ShapeMismatch);
  numbers.resize(4);
  EXPECT_THROW(file.weight(*file.find("a")).read(0, numbers), ShapeMismatch);
}

TEST(Gguf, TellsOfAFileThatIsTruncatedLater) {
  const TemporaryFolder folder;
  const std::string path = folder.write("small.gguf", small_file().bytes());
  const GgufFile file(path);
  std::filesystem::resize_file(path, 150);
  std::vector<float> numbers(32);
  EXPECT_THROW(file.weight(*file.find("b")).read(0, numbers), TraceError);
}

}  // namespace
}  // namespace kvbound::traces::gguf_test
