// The safetensors reader and writer: legal files are read exactly, all others are refused with a
// message that names the place.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmath>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/float16.hpp>
#include <kvbound/traces/safetensors.hpp>
#include <kvbound/traces/safetensors_writer.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::traces::safetensors_test {
namespace {

using test::bytes_of;
using test::message_of;
using test::safetensors_bytes;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// The reader's error message for a file with these bytes: one line that begins with the path.
std::string refusal(std::string_view bytes, int64_t header_limit = kDefaultHeaderLimit) {
  const TemporaryFolder folder;
  const std::string path = folder.write("bad.safetensors", bytes);
  const std::string message = message_of<TraceError>([&] { SafetensorsFile(path, header_limit); });
  EXPECT_THAT(message, AllOf(StartsWith(path + ": "), Not(HasSubstr("\n"))));
  return message.substr(std::min(message.size(), path.size() + 2));
}

std::string refusal_of_header(std::string_view header, std::string_view data = "") {
  return refusal(safetensors_bytes(header, data));
}

/// A header with one tensor "t".
std::string one_tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(SafetensorsReader, RefusesAnEmptyFile) {
  EXPECT_EQ(refusal(""), "at byte 0: header length: the file is empty; expected a safetensors file");
}

TEST(SafetensorsReader, RefusesAFileOfLessThanEightBytes) {
  EXPECT_EQ(refusal("abcdefg"), "at byte 7: header length: the file ends after 7 bytes; expected at least 8");
}

TEST(SafetensorsReader, RefusesAHeaderThatEndsBehindTheFile) {
  EXPECT_EQ(refusal(bytes_of(uint64_t{3}) + "{}"),
            "at byte 0: header length: is 3, but the file has only 10 bytes");
  EXPECT_EQ(refusal(bytes_of(~uint64_t{0}) + "{}"),
            "at byte 0: header length: is 18446744073709551615, but the file has only 10 bytes");
  EXPECT_THAT(refusal(bytes_of(uint64_t{1} << 63)), HasSubstr("is 9223372036854775808, but"));
}

TEST(SafetensorsReader, RefusesAHeaderLongerThanTheLimit) {
  const std::string bytes = safetensors_bytes("{}" + std::string(10, ' '));
  EXPECT_EQ(refusal(bytes, 11),
            "at byte 0: header length: is 12 bytes; the limit is 11 (raise it with --header-limit)");
  const TemporaryFolder folder;
  EXPECT_NO_THROW(SafetensorsFile(folder.write("good", bytes), 12));
}

TEST(SafetensorsReader, NamesTheFormatOfOtherFiles) {
  using namespace std::string_literals;
  EXPECT_THAT(refusal("PK\3\4"s + std::string(100, '\1')), HasSubstr("this looks like a ZIP archive"));
  EXPECT_THAT(refusal("\x80\4\x95"s + std::string(100, '\0')), HasSubstr("a Python pickle"));
  EXPECT_THAT(refusal("GGUF\3\0\0\0"s), HasSubstr("a GGUF file"));
  EXPECT_THAT(refusal("\x93NUMPY\1\0"s), HasSubstr("a NumPy array"));
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("a Git LFS pointer"));
  EXPECT_THAT(refusal("{\"weight_map\":{}}"), HasSubstr("must be named *.index.json"));
}

TEST(SafetensorsReader, RefusesInvalidUtf8) {
  for (const std::string bad : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    EXPECT_THAT(refusal_of_header("{\"" + bad + "\":1}"),
                AllOf(StartsWith("at byte 1"), HasSubstr("header: is not valid JSON: invalid string: "
                                                         "ill-formed UTF-8 byte")))
        << bad;
  }
}

TEST(SafetensorsReader, RefusesWhatIsNotJson) {
  EXPECT_EQ(refusal_of_header(""),
            "at byte 8: header: is not valid JSON: unexpected end of input; expected "
            "'[', '{', or a literal");
  EXPECT_THAT(refusal_of_header("{} x"), HasSubstr("at byte 11: header: is not valid JSON"));
  EXPECT_THAT(refusal_of_header("{\"a\":1,}"), HasSubstr("at byte 15: header: is not valid JSON"));
  EXPECT_THAT(refusal_of_header("{/* no */}"), HasSubstr("is not valid JSON"));
  EXPECT_THAT(refusal_of_header("{\"a\nb\":1}"), HasSubstr("control character U+000A (LF) must be escaped"));
  EXPECT_THAT(refusal_of_header("{\"t\":NaN}"), HasSubstr("is not valid JSON"));
  EXPECT_EQ(refusal_of_header(std::string("{}\0\0", 4)),
            "at byte 10: header: is not valid JSON: a zero byte");
  EXPECT_EQ(refusal_of_header("\xef\xbb\xbf{}"),
            "at byte 8: header: begins with a byte order mark; expected {");
  EXPECT_EQ(refusal_of_header("[]"), "at byte 8: header: is an array; expected an object");
  EXPECT_EQ(refusal_of_header("7"), "at byte 8: header: is 7; expected an object");
}

TEST(SafetensorsReader, RefusesDeepJson) {
  EXPECT_EQ(refusal_of_header(R"({"t":{"shape":[[)"), "at byte 23: header: is nested deeper than 3 levels");
  EXPECT_THAT(refusal_of_header(std::string(1000000, '[')), HasSubstr("nested deeper than 3 levels"));
  EXPECT_THAT(refusal_of_header(R"({"t":{"shape":[)" + std::string(1000000, '0')), HasSubstr("header: "));
}

TEST(SafetensorsReader, RefusesDuplicateKeysAtEveryLevel) {
  EXPECT_EQ(refusal_of_header(R"({"a":{},"a":{}})"), R"(at byte 18: header: the key "a" occurs twice)");
  EXPECT_THAT(refusal_of_header(R"({"__metadata__":{"format":"a","format":"b"}})"),
              HasSubstr(R"(the key "format" occurs twice)"));
  EXPECT_THAT(refusal_of_header(R"({"t":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}})"),
              HasSubstr(R"(the key "dtype" occurs twice)"));
  EXPECT_THAT(refusal_of_header(R"({"a":{},"\u0061":{}})"), HasSubstr(R"(the key "a" occurs twice)"));
}

TEST(SafetensorsReader, RefusesDimensionsThatAreNoCounts) {
  const auto message = [](const std::string& shape) {
    return refusal_of_header(one_tensor("F32", shape, "[0,4]"), "1234");
  };
  const std::string expected = "; expected an integer from 0 to 9223372036854775807";
  EXPECT_EQ(message("[-1]"), "at byte 39: t.shape[0]: is -1" + expected);
  EXPECT_EQ(message("[-0]"), "at byte 39: t.shape[0]: is -0" + expected);
  EXPECT_EQ(message("[1.0]"), "at byte 40: t.shape[0]: is 1.0" + expected);
  EXPECT_EQ(message("[1e0]"), "at byte 40: t.shape[0]: is 1e0" + expected);
  EXPECT_EQ(message("[18446744073709551616]"), "at byte 57: t.shape[0]: is 18446744073709551616" + expected);
  EXPECT_EQ(message("[9223372036854775808]"), "at byte 56: t.shape[0]: is 9223372036854775808" + expected);
  EXPECT_EQ(message("[null]"), "at byte 40: t.shape[0]: is null" + expected);
  EXPECT_EQ(message("[\"1\"]"), "at byte 39: t.shape[0]: is \"1\"" + expected);
  EXPECT_EQ(message("1"), "at byte 37: t.shape: is 1; expected a list");
}

TEST(SafetensorsReader, RefusesShapesThatOverflow) {
  EXPECT_EQ(refusal_of_header(one_tensor("F32", "[4294967296,4294967296]", "[0,0]")),
            "at byte 36: t.shape: [4294967296, 4294967296] has more bytes than 2^63 - 1");
  EXPECT_THAT(refusal_of_header(one_tensor("F64", "[9223372036854775807]", "[0,0]")),
              HasSubstr("has more bytes than 2^63 - 1"));
  EXPECT_THAT(refusal_of_header(one_tensor("U8", "[0]", "[9223372036854775807,9223372036854775807]")),
              HasSubstr("t.data_offsets: overflows"));
  std::string many = "[1";
  for (int i = 0; i < 64; ++i) many += ",1";
  EXPECT_THAT(refusal_of_header(one_tensor("U8", many + "]", "[0,1]"), "x"),
              HasSubstr("an array has more than 64 items"));
}

TEST(SafetensorsReader, RefusesASizeThatIsNotTheShapes) {
  EXPECT_EQ(refusal_of_header(one_tensor("F32", "[2]", "[0,4]"), "1234"),
            "at byte 55: t.data_offsets: is [0, 4]; shape [2] of F32 needs 8 bytes");
  EXPECT_THAT(refusal_of_header(one_tensor("F32", "[1]", "[4,0]"), "1234"),
              HasSubstr("t.data_offsets: is [4, 0]; shape [1] of F32 needs 4 bytes"));
  EXPECT_THAT(refusal_of_header(one_tensor("F32", "[1]", "[0,4,8]"), "1234"),
              HasSubstr("t.data_offsets: has 3 items; expected 2"));
  EXPECT_THAT(refusal_of_header(one_tensor("F32", "[1]", "[0,-4]"), "1234"),
              HasSubstr("t.data_offsets[1]: is -4; expected an integer from 0"));
}

TEST(SafetensorsReader, RefusesUnknownTypes) {
  EXPECT_THAT(
      refusal_of_header(one_tensor("f32", "[1]", "[0,4]"), "1234"),
      StartsWith("at byte 26: t.dtype: is \"f32\"; expected a safetensors type: F64 F32 F16 BF16 I64"));
}

TEST(SafetensorsReader, KnowsTypesOfLessThanAByte) {
  const TemporaryFolder folder;
  const std::vector<std::tuple<std::string, std::string, int64_t>> tensors{{"F4", "[2,8]", 8},
                                                                           {"F6_E2M3", "[4]", 3},
                                                                           {"F6_E3M2", "[0]", 0},
                                                                           {"F8_E8M0", "[5]", 5},
                                                                           {"C64", "[2]", 16}};
  for (const auto& [dtype, shape, bytes] : tensors) {
    const std::string path = folder.write(
        "t.safetensors", safetensors_bytes(one_tensor(dtype, shape, "[0," + std::to_string(bytes) + "]"),
                                           std::string(bytes, 1)));
    const SafetensorsFile file(path);
    EXPECT_EQ(file.find("t")->bytes, bytes) << dtype;
    std::vector<double> numbers(1);
    EXPECT_THROW(file.read(*file.find("t"), 0, numbers), TraceError) << dtype;
  }
  EXPECT_THAT(refusal_of_header(one_tensor("F4", "[3]", "[0,1]"), "1"),
              HasSubstr("t.shape: [3] of F4 has no whole number of bytes"));
  EXPECT_THAT(refusal_of_header(one_tensor("F4", "[4]", "[0,1]"), "1"),
              HasSubstr("shape [4] of F4 needs 2 bytes"));
}

TEST(SafetensorsReader, RefusesMissingAndForeignFields) {
  EXPECT_EQ(refusal_of_header(R"({"t":{"dtype":"F32","shape":[]}})"),
            "at byte 13: t.data_offsets: is missing");
  EXPECT_EQ(refusal_of_header(R"({"t":{"shape":[],"data_offsets":[0,4]}})"),
            "at byte 13: t.dtype: is missing");
  EXPECT_EQ(refusal_of_header(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})"),
            "at byte 13: t.shape: is missing");
  EXPECT_EQ(
      refusal_of_header(R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0,4],"strides":[]}})"),
      "at byte 70: t: member \"strides\" is unknown; the members of a tensor are dtype, shape, data_offsets");
  EXPECT_THAT(refusal_of_header(R"({"t":[]})"), HasSubstr("t: is an array; expected an object"));
}

TEST(SafetensorsReader, RefusesMetadataOtherThanStrings) {
  EXPECT_EQ(refusal_of_header(R"({"__metadata__":{"layers":4}})"),
            "at byte 35: __metadata__.layers: is 4; expected a string");
  EXPECT_EQ(refusal_of_header(R"({"__metadata__":[]})"),
            "at byte 24: __metadata__: is an array; expected an object");
}

std::string two_tensors(const std::string& offsets_a, const std::string& offsets_b) {
  return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + offsets_a +
         R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + offsets_b + "}}";
}

TEST(SafetensorsReader, RefusesOverlapsAndHoles) {
  EXPECT_EQ(refusal_of_header(two_tensors("[0,4]", "[2,6]"), "123456"),
            "at byte 66: b.data_offsets: begins at 2, which leaves an overlap; expected 4");
  EXPECT_THAT(refusal_of_header(two_tensors("[0,4]", "[0,4]"), "1234"), HasSubstr("leaves an overlap"));
  EXPECT_EQ(refusal_of_header(two_tensors("[0,4]", "[6,10]"), "1234567890"),
            "at byte 66: b.data_offsets: begins at 6, which leaves a hole; expected 4");
  EXPECT_EQ(refusal_of_header(two_tensors("[8,12]", "[4,8]"), "123456789012"),
            "at byte 67: b.data_offsets: begins at 4, which leaves a hole; expected 0");
}

TEST(SafetensorsReader, RefusesDataThatEndsElsewhereThanTheFile) {
  const std::string header = one_tensor("F32", "[2]", "[0,8]");
  const std::string end = std::to_string(8 + header.size());
  EXPECT_EQ(refusal_of_header(header, "12345678x"), "at byte " + std::to_string(16 + header.size()) +
                                                        ": 1 surplus bytes follow the last tensor's data");
  EXPECT_EQ(refusal_of_header(header, "1234567"), "at byte " + std::to_string(15 + header.size()) +
                                                      ": t: the file ends here, but the tensor's data fills "
                                                      "bytes " +
                                                      end + " to " + std::to_string(16 + header.size()));
  EXPECT_THAT(refusal_of_header("{}", "x"), HasSubstr("at byte 10: 1 surplus bytes"));
}

TEST(SafetensorsReader, QuotesHostileNamesOnOneShortLine) {
  const std::string name = R"(\n\u001b[31m\u0000é)" + std::string(10000, 'x');
  const std::string message = refusal_of_header("{\"" + name + "\":{}}");
  EXPECT_THAT(message, HasSubstr(R"(\x0a\x1b[31m\x00\xc3\xa9xxx)"));
  EXPECT_LT(message.size(), 200u);
}

TEST(SafetensorsReader, RefusesWhatIsNotARegularFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<TraceError>([&] { SafetensorsFile{folder.path()}; }), HasSubstr("is a directory"));
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(message_of<TraceError>([&] { SafetensorsFile{fifo}; }),
              AllOf(StartsWith(fifo), HasSubstr("is a FIFO")));
  EXPECT_THAT(message_of<TraceError>([&] { SafetensorsFile{"/dev/zero"}; }),
              HasSubstr("is not a regular file"));
}

TEST(SafetensorsReader, LeavesAMissingFileToTheWorld) {
  EXPECT_EQ(message_of<IoError>([&] { SafetensorsFile{"/nowhere/t.safetensors"}; }),
            "cannot open /nowhere/t.safetensors: No such file or directory");
}

TEST(SafetensorsReader, ReadsWhiteSpaceAroundTheHeader) {
  const TemporaryFolder folder;
  const std::string header = " \t\r\n" + one_tensor("F32", "[]", "[0,4]") + "  \n";
  const SafetensorsFile file(folder.write("t", safetensors_bytes(header, bytes_of(2.5f))));
  double number = 0;
  file.read(*file.find("t"), 0, {&number, 1});
  EXPECT_EQ(number, 2.5);
}

TEST(SafetensorsReader, ReadsEmptyTensorsAndRankZero) {
  const TemporaryFolder folder;
  const std::string header = R"({"empty":{"dtype":"F32","shape":[3,0],"data_offsets":[8,8]},)"
                             R"("number":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                             R"("first":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  const SafetensorsFile file(folder.write("t", safetensors_bytes(header, bytes_of(-3.0))));
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "first");
  EXPECT_EQ(file.find("empty")->elements, 0);
  EXPECT_EQ(file.find("number")->elements, 1);
  EXPECT_EQ(file.find("absent"), nullptr);
  double number = 0;
  file.read(*file.find("number"), 0, {&number, 1});
  EXPECT_EQ(number, -3.0);
  EXPECT_NO_THROW(file.read(*file.find("empty"), 0, std::span<double>{}));
}

TEST(SafetensorsReader, ReadsNumbersAtOddAddressesAndAcrossChunks) {
  const TemporaryFolder folder;
  constexpr int64_t kCount = 300000;  // more than two chunks of F64
  std::string data = "x";
  for (int64_t i = 0; i < kCount; ++i) data += bytes_of(static_cast<double>(i));
  const std::string header = R"({"odd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"F64",)"
                             R"("shape":[300000],"data_offsets":[1,2400001]}})";
  const SafetensorsFile file(folder.write("t", safetensors_bytes(header, data)));
  std::vector<double> expected(kCount);
  std::iota(expected.begin(), expected.end(), 0.0);
  std::vector<double> numbers(kCount);
  file.read(*file.find("t"), 0, numbers);
  EXPECT_EQ(numbers, expected);
  std::vector<double> part(3);
  file.read(*file.find("t"), 131071, part);
  EXPECT_THAT(part, testing::ElementsAre(131071, 131072, 131073));
  EXPECT_THROW(file.read(*file.find("t"), kCount - 2, part), ShapeMismatch);
}

TEST(SafetensorsReader, RefusesNaNAndInfinityUnlessTheyAreAllowed) {
  const TemporaryFolder folder;
  const std::string header = one_tensor("F32", "[4]", "[0,16]");
  const float infinity = std::numeric_limits<float>::infinity();
  const auto file_with = [&](float bad) {
    return folder.write(
        "t", safetensors_bytes(header, bytes_of(1.f) + bytes_of(2.f) + bytes_of(bad) + bytes_of(bad)));
  };
  const auto message = [&](float bad) {
    const SafetensorsFile file(file_with(bad));
    std::vector<double> numbers(4);
    file.read(*file.find("t"), 0, numbers, NonFiniteNumbers::allowed);
    EXPECT_FALSE(std::isfinite(numbers[2]));
    return message_of<TraceError>([&] { file.read(*file.find("t"), 0, numbers); })
        .substr(file.path().size() + 2);
  };
  const std::string where = "at byte " + std::to_string(8 + header.size() + 8) + ": t: element 2 is ";
  EXPECT_EQ(message(std::nanf("")), where + "NaN; expected a finite number");
  EXPECT_EQ(message(-infinity), where + "infinite; expected a finite number");
}

TEST(SafetensorsReader, ReadsIntegersAsIntegersOnly) {
  const TemporaryFolder folder;
  const std::string header = R"({"i":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},)"
                             R"("l":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}})";
  const SafetensorsFile file(
      folder.write("t", safetensors_bytes(header, bytes_of(-7) + bytes_of(8) + bytes_of(INT64_MIN))));
  std::vector<int64_t> integers(2);
  file.read(*file.find("i"), 0, integers);
  EXPECT_THAT(integers, testing::ElementsAre(-7, 8));
  file.read(*file.find("l"), 0, std::span(integers).first(1));
  EXPECT_EQ(integers[0], INT64_MIN);
  std::vector<double> reals(2);
  EXPECT_THAT(message_of<TraceError>([&] { file.read(*file.find("i"), 0, reals); }),
              HasSubstr("i.dtype: is I32; expected F64, F32, F16 or BF16"));
}

TEST(SafetensorsReader, SaysThatTheFileWasCutWhileItWasRead) {
  const TemporaryFolder folder;
  const std::string header = one_tensor("F32", "[4]", "[0,16]");
  const SafetensorsFile file(folder.write("t", safetensors_bytes(header, std::string(16, '\0'))));
  const auto cut = static_cast<off_t>(8 + header.size() + 6);
  ASSERT_EQ(truncate(file.path().c_str(), cut), 0);
  std::vector<double> numbers(4);
  EXPECT_EQ(message_of<TraceError>([&] { file.read(*file.find("t"), 0, numbers); }),
            file.path() + ": at byte " + std::to_string(cut) +
                ": t: the file ended here while it was read; expected bytes up to " +
                std::to_string(8 + header.size() + 16));
}

TEST(SafetensorsWriter, WritesWhatTheReaderReadsForEveryType) {
  const TemporaryFolder folder;
  const std::vector<double> numbers{0, -0.0, 1, -1.5, 0.1, 1e-6, 60000, -1.0 / 3};
  const std::vector<int64_t> integers{0, -1, INT64_MAX};
  SafetensorsWriter writer(folder.path("t"), {{"format", "test"}, {"model", "\"q\"\n"}},
                           {{"d", Dtype::f64, {2, 4}},
                            {"h", Dtype::f16, {8}},
                            {"none", Dtype::f32, {0}},
                            {"b", Dtype::bf16, {8}},
                            {"i", Dtype::i64, {3}},
                            {"scalar", Dtype::f16, {}},
                            {"f", Dtype::f32, {4, 2}}});
  writer.append("d", std::span(numbers).first(3));
  writer.append("d", std::span(numbers).subspan(3));
  writer.append("h", numbers);
  writer.append("b", numbers);
  writer.append("i", integers);
  writer.append("scalar", std::span(numbers).first(1));
  writer.append("f", numbers);
  writer.finish();

  const SafetensorsFile file(folder.path("t"));
  EXPECT_EQ(file.metadata().strings.at("model"), "\"q\"\n");
  const auto expect = [&](const char* name, auto round) {
    std::vector<double> read(numbers.size());
    file.read(*file.find(name), 0, read);
    for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(read[i], round(numbers[i])) << name << " " << i;
  };
  expect("d", [](double x) { return x; });
  expect("f", [](double x) { return static_cast<double>(static_cast<float>(x)); });
  expect("h", [](double x) { return from_float16(to_float16(x)); });
  expect("b", [](double x) { return from_bfloat16(to_bfloat16(x)); });
  std::vector<int64_t> read(3);
  file.read(*file.find("i"), 0, read);
  EXPECT_EQ(read, integers);
  EXPECT_EQ(file.find("none")->elements, 0);
  EXPECT_NE(file.find("f")->begin % 4, 0) << "the test means to read a misaligned tensor";
}

TEST(SafetensorsWriter, WritesTheHeaderWithoutWhiteSpaceMetadataFirst) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.path("t"), {{"b", "1"}, {"a", "2"}}, {{"x", Dtype::f16, {1, 2}}});
  writer.append("x", std::vector{1.0, 2.0});
  writer.finish();
  EXPECT_EQ(test::contents(folder.path("t")),
            safetensors_bytes(R"({"__metadata__":{"b":"1","a":"2"},"x":{"dtype":"F16","shape":[1,2],)"
                              R"("data_offsets":[0,4]}})",
                              std::string("\x00\x3c\x00\x40", 4)));
}

TEST(SafetensorsWriter, ReplacesWhatIsNotUtf8InMetadata) {
  const TemporaryFolder folder;
  const std::string path = folder.path("t.safetensors");
  SafetensorsWriter writer(path, {{"model", "Mod\xe8le"}}, {});
  writer.finish();
  EXPECT_EQ(SafetensorsFile(path).metadata().strings.at("model"), "Mod\xef\xbf\xbdle");
  EXPECT_THROW(SafetensorsWriter(path, {}, {{"\xe8", Dtype::f32, {}}}), Error)
      << "a tensor is found by its name";
}

TEST(SafetensorsWriter, RefusesNumbersThatTheTypeCannotHold) {
  const TemporaryFolder folder;
  const double infinity = std::numeric_limits<double>::infinity();
  const auto append = [&](Dtype dtype, double number, NonFiniteNumbers non_finite) {
    SafetensorsWriter writer(folder.path("t"), {}, {{"x", dtype, {1}}});
    writer.append("x", {&number, 1}, non_finite);
  };
  const auto refused = NonFiniteNumbers::refused;
  const auto allowed = NonFiniteNumbers::allowed;
  EXPECT_NO_THROW(append(Dtype::f16, 65519.99, refused));
  EXPECT_THAT(message_of<NonFinite>([&] { append(Dtype::f16, 65520, allowed); }),
              HasSubstr("x: 65520.000000 is too large for F16"));
  EXPECT_THROW(append(Dtype::bf16, 3.4e38, refused), NonFinite);
  EXPECT_THROW(append(Dtype::f32, -1e39, allowed), NonFinite);
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16}) {
    EXPECT_THROW(append(dtype, infinity, refused), NonFinite);
    EXPECT_THROW(append(dtype, std::nan(""), refused), NonFinite);
    EXPECT_NO_THROW(append(dtype, -infinity, allowed));
    EXPECT_NO_THROW(append(dtype, std::nan(""), allowed));
  }
  EXPECT_EQ(folder.size(), 0) << "none of them was finished";
}

TEST(SafetensorsWriter, RefusesNumbersOutOfTurn) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.path("t"), {}, {{"x", Dtype::f64, {2}}, {"y", Dtype::i64, {1}}});
  const std::vector<double> numbers(3);
  EXPECT_THAT(message_of<ShapeMismatch>([&] { writer.append("y", std::vector<int64_t>{1}); }),
              HasSubstr("numbers of y where those of x are expected"));
  EXPECT_THAT(message_of<ShapeMismatch>([&] { writer.append("x", numbers); }),
              HasSubstr("3 numbers of x, which has 2 elements left"));
  writer.append("x", std::span(numbers).first(1));
  EXPECT_THAT(message_of<ShapeMismatch>([&] { writer.finish(); }),
              HasSubstr("1 numbers of x were not written"));
  writer.append("x", std::span(numbers).first(1));
  EXPECT_THROW(writer.append("y", std::span(numbers).first(1)), Error);
}

TEST(SafetensorsWriter, RefusesNamesThatOccurTwice) {
  const TemporaryFolder folder;
  const auto write = [&](const SafetensorsWriter::Strings& metadata, std::vector<TensorDeclaration> tensors) {
    SafetensorsWriter(folder.path("t"), metadata, std::move(tensors));
  };
  EXPECT_THROW(write({}, {{"x", Dtype::f64, {}}, {"x", Dtype::f64, {}}}), Error);
  EXPECT_THROW(write({{"a", ""}, {"a", ""}}, {}), Error);
  EXPECT_THROW(write({}, {{"__metadata__", Dtype::f64, {}}}), Error);
  EXPECT_THROW(write({}, {{"\xff", Dtype::f64, {}}}), Error);
  EXPECT_THROW(write({}, {{"x", Dtype::f64, {-1}}}), ShapeMismatch);
  EXPECT_THROW(write({}, {{"x", Dtype::f64, {INT64_MAX}}}), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::traces::safetensors_test
