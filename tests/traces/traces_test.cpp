// The trace format: the required metadata, tensors and shards, and the numbers read from them.
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/float16.hpp>
#include <kvbound/traces/sha256.hpp>
#include <kvbound/traces/trace.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::traces::traces_test {
namespace {

using test::bytes_of;
using test::f32_data;
using test::message_of;
using test::SafetensorsParts;
using test::small_trace;
using test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

const std::filesystem::path kSamples =
    std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "traces" / "samples";

std::string sha256_of(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hexadecimal();
}

/// The error message for a trace of these parts: "field: problem", without path and offset.
std::string refusal(const SafetensorsParts& parts) {
  const TemporaryFolder folder;
  const std::string path = folder.write("bad.safetensors", parts.bytes());
  std::string message = message_of<TraceError>([&] { Trace{path}; });
  EXPECT_THAT(message, AllOf(StartsWith(path + ": "), Not(HasSubstr("\n"))));
  message.erase(0, path.size() + 2);
  if (message.starts_with("at byte ")) message.erase(0, message.find(": ") + 2);
  return message;
}

std::string refusal_of_field(const std::string& field, const std::string& value) {
  SafetensorsParts parts = small_trace();
  parts.set(field, value);
  return refusal(parts);
}

TEST(Trace, ReadsWhatWasRecorded) {
  const TemporaryFolder folder;
  SafetensorsParts parts = small_trace();
  parts.set("scale", "0.25");
  parts.tensors.push_back({"extra", "U8", "[1]", "x", ""});
  std::string tokens;
  for (int token = 0; token < 8; ++token) tokens += bytes_of(token * 10);
  parts.tensors.push_back({"tokens", "I32", "[8]", tokens, ""});
  const Trace trace(folder.write("t.safetensors", parts.bytes()));
  const TraceInfo& info = trace.info();
  EXPECT_EQ(info.model, "small");
  EXPECT_EQ(info.source, "a test");
  EXPECT_EQ(info.shape, (LayerShape{4, 2, 2, 3}));
  EXPECT_EQ(info.layers, 2);
  EXPECT_EQ(info.prompt_tokens, 6);
  EXPECT_EQ(info.decode_tokens, 2);
  EXPECT_EQ(info.window_queries, 4);
  EXPECT_EQ(info.scale, 0.25);
  EXPECT_EQ(info.storage, Dtype::f32);
  EXPECT_FALSE(info.has_attention_output);
  EXPECT_TRUE(info.has_tokens);
  EXPECT_THAT(trace.tokens(), ElementsAre(0, 10, 20, 30, 40, 50, 60, 70));
  EXPECT_THROW(trace.read_layer(2), ShapeMismatch);
}

TEST(Trace, SplitsALayerIntoPromptAndSteps) {
  const TemporaryFolder folder;
  const Trace trace(folder.write("t.safetensors", small_trace().bytes()));
  const Layer layer = trace.read_layer(1);
  // Element i of every tensor is (i mod 8 - 4) / 4.
  const auto element = [](int64_t i) { return static_cast<double>(i % 8 - 4) / 4; };
  const LayerView prompt = layer.prompt();
  EXPECT_EQ(prompt.index, 1);
  EXPECT_EQ(trace.read_layer(0).prompt().index, 0);
  EXPECT_EQ(prompt.prompt_tokens(), 6);
  EXPECT_EQ(prompt.window_queries(), 4);
  EXPECT_EQ(prompt.scale, 1 / std::sqrt(2.0));
  EXPECT_EQ(prompt.keys.slice(1)(5, 1), element((1 * 8 + 5) * 2 + 1));
  EXPECT_EQ(prompt.queries.slice(3)(2, 0), element((3 * 6 + 2) * 2));
  EXPECT_EQ(prompt.output_projection(7, 2), element(7 * 3 + 2));
  const StepView step = layer.step(1);
  EXPECT_EQ(step.keys.rows, 2);
  EXPECT_EQ(step.keys(1, 0), element((1 * 8 + 7) * 2));
  EXPECT_EQ(step.values(0, 1), element(7 * 2 + 1));
  EXPECT_EQ(step.queries(2, 1), element((2 * 6 + 5) * 2 + 1));
}

TEST(Trace, AcceptsEqualAndExtremeLogits) {
  const TemporaryFolder folder;
  for (const double magnitude : {0.0, 1e2}) {  // logits up to 2e4 / sqrt(2)
    const Trace trace(folder.write("t.safetensors", small_trace(magnitude).bytes()));
    EXPECT_NO_THROW(trace.read_layer(0));
  }
}

TEST(Trace, AcceptsNoDecodeTokens) {
  const TemporaryFolder folder;
  SafetensorsParts parts = small_trace();
  parts.set("prompt_tokens", "8");
  parts.set("decode_tokens", "0");
  parts.set("window_queries", "6");
  EXPECT_EQ(Trace(folder.write("t.safetensors", parts.bytes())).read_layer(0).prompt().window_queries(), 6);
}

TEST(Trace, LetsLayersDifferInType) {
  const TemporaryFolder folder;
  SafetensorsParts parts = small_trace();
  auto& key = parts.tensor("layers.1.key");
  key.dtype = "BF16";
  key.data.assign(64, '\0');
  const Trace trace(folder.write("t.safetensors", parts.bytes()));
  EXPECT_EQ(trace.info().storage, Dtype::f32);
  EXPECT_EQ(trace.read_layer(1).keys.slice(0)(0, 0), 0);
}

// Stores a tensor as BF16: -7, -6, ...
template <class Tensor>
void make_bfloat16(Tensor& tensor) {
  tensor.dtype = "BF16";
  tensor.data.resize(tensor.data.size() / 2);
  for (size_t i = 0; i < tensor.data.size() / 2; ++i) {
    const uint16_t bits = to_bfloat16(static_cast<double>(i) - 7);
    std::memcpy(tensor.data.data() + 2 * i, &bits, 2);
  }
}

// Every tensor of 16 bits whose type is that of the first layer's keys, at the places of its doubles.
TEST(Trace, KeepsBitsOnRequest) {
  const TemporaryFolder folder;
  SafetensorsParts parts = small_trace();
  for (const char* const name :
       {"layers.0.key", "layers.1.key", "layers.1.query", "layers.1.output_projection"})
    make_bfloat16(parts.tensor(name));
  parts.tensor("layers.1.value").dtype = "F16";
  parts.tensor("layers.1.value").data.assign(64, '\0');
  const Trace trace(folder.write("t.safetensors", parts.bytes()));
  EXPECT_EQ(trace.read_layer(1).prompt().bits.keys, nullptr);
  const Layer layer = trace.read_layer(1, {.bits = true});
  const auto expect_bits = [](const uint16_t* bits, MatrixView numbers) {
    ASSERT_NE(bits, nullptr);
    for (int64_t r = 0; r < numbers.rows; ++r) {
      for (int64_t c = 0; c < numbers.cols; ++c) {
        ASSERT_EQ(from_bfloat16(bits[r * numbers.row_stride + c]), numbers(r, c)) << r << ", " << c;
      }
    }
  };
  const LayerView prompt = layer.prompt();
  EXPECT_EQ(prompt.bits.dtype, Dtype::bf16);
  expect_bits(prompt.bits.keys + prompt.keys.slice_stride, prompt.keys.slice(1));
  expect_bits(prompt.bits.queries + 3 * prompt.queries.slice_stride, prompt.queries.slice(3));
  expect_bits(prompt.bits.output_projection, prompt.output_projection);
  EXPECT_EQ(prompt.bits.values, nullptr) << "of another type";
  const StepView step = layer.step(1);
  expect_bits(step.bits.keys, step.keys);
  expect_bits(step.bits.queries, step.queries);
  EXPECT_EQ(step.bits.values, nullptr);
  EXPECT_EQ(trace.read_layer(0, {.bits = true}).prompt().bits.queries, nullptr) << "of 32 bits";
}

TEST(Trace, GivesEveryQueryHeadACache) {
  const TemporaryFolder folder;
  SafetensorsParts parts = small_trace();
  for (const char* const name : {"layers.0.key", "layers.1.key"}) make_bfloat16(parts.tensor(name));
  const std::string path = folder.write("t.safetensors", parts.bytes());
  const Trace trace(path), apart(path, {.heads = CacheHeads::query});
  EXPECT_EQ(trace.info().heads, CacheHeads::kv);
  EXPECT_EQ(apart.info().heads, CacheHeads::query);
  const LayerShape& shape = trace.info().shape;
  ASSERT_GT(shape.group_size(), 1);
  EXPECT_EQ(apart.info().recorded_kv_heads, shape.kv_heads);
  EXPECT_EQ(apart.info().shape, with_caches_of(shape, CacheHeads::query));
  const Layer shared = trace.read_layer(1, {.bits = true}), own = apart.read_layer(1, {.bits = true});
  EXPECT_EQ(own.shape, apart.info().shape);
  EXPECT_THAT(own.queries.numbers(), testing::ElementsAreArray(shared.queries.numbers()));
  const LayerView prompt = own.prompt(), of_groups = shared.prompt();
  for (int64_t h = 0; h < shape.query_heads; ++h) {
    const int64_t g = shape.kv_head_of(h);
    EXPECT_THAT(own.keys.slice(h).row(2), testing::ElementsAreArray(shared.keys.slice(g).row(2)));
    EXPECT_THAT(own.values.slice(h).row(2), testing::ElementsAreArray(shared.values.slice(g).row(2)));
    EXPECT_EQ(prompt.bits.keys[h * prompt.keys.slice_stride + 3],
              of_groups.bits.keys[g * of_groups.keys.slice_stride + 3]);
  }
  EXPECT_EQ(prompt.bits.values, nullptr) << "of another type";
}

TEST(Trace, RefusesNonFiniteNumbersAlsoWithTheirBits) {
  const TemporaryFolder folder;
  SafetensorsParts parts = small_trace();
  auto& key = parts.tensor("layers.0.key");
  key.dtype = "BF16";
  key.data.assign(64, '\0');
  key.data[2 * 13] = '\x80';
  key.data[2 * 13 + 1] = '\x7f';
  const Trace trace(folder.write("t.safetensors", parts.bytes()));
  const std::string without = message_of<TraceError>([&] { trace.read_layer(0); });
  EXPECT_THAT(without, HasSubstr("element 13 is infinite"));
  EXPECT_EQ(message_of<TraceError>([&] { trace.read_layer(0, {.bits = true}); }), without);
}

TEST(Trace, ReadsAttentionOutputOnRequest) {
  const TemporaryFolder folder;
  SafetensorsParts parts = small_trace();
  parts.tensors.push_back({"layers.0.attention_output", "F32", "[4,6,2]", f32_data(48), ""});
  const std::string path = folder.write("t.safetensors", parts.bytes());
  EXPECT_FALSE(Trace(path).info().has_attention_output) << "one layer lacks it";
  EXPECT_TRUE(Trace(path).read_layer(0, {.attention_output = true}).attention_output.has_value());
  EXPECT_FALSE(Trace(path).read_layer(0).attention_output.has_value());
  EXPECT_FALSE(Trace(path).read_layer(1, {.attention_output = true}).attention_output.has_value());
  parts.tensors.push_back({"layers.1.attention_output", "F32", "[4,6,2]", f32_data(48), ""});
  folder.write("t.safetensors", parts.bytes());
  EXPECT_TRUE(Trace(path).info().has_attention_output);
}

TEST(Trace, TellsTheModelsOwnNumbersOfItsLayers) {
  const TemporaryFolder folder;
  SafetensorsParts parts = small_trace();
  const Trace unnumbered(folder.write("unnumbered.safetensors", parts.bytes()));
  EXPECT_THAT(layer_numbers(unnumbered.info()), ElementsAre(0, 1));
  EXPECT_EQ(unnumbered.info().layer_number(1), 1);
  parts.set("model_layers", "3,14");
  const Trace numbered(folder.write("numbered.safetensors", parts.bytes()));
  EXPECT_THAT(layer_numbers(numbered.info()), ElementsAre(3, 14));
  EXPECT_EQ(numbered.info().layer_number(1), 14);
  EXPECT_EQ(numbered.read_layer(1).index, 1) << "draws depend on the layer's number in the trace";
}

TEST(Trace, RefusesNumbersOfMoreOrFewerLayersThanItHas) {
  for (const char* bad : {"", "3", "3-5", "0-2147483646", "14,3", "3,3", "3, 14", "all", "0-2147483647"}) {
    EXPECT_EQ(refusal_of_field("model_layers", bad), "__metadata__.model_layers: is \"" + std::string(bad) +
                                                         "\"; expected 2 layers, ascending, such as 0,3-5");
  }
}

TEST(Trace, NeedsEveryField) {
  for (const auto& [field, value] : small_trace().metadata) {
    SafetensorsParts parts = small_trace();
    parts.erase(field);
    EXPECT_EQ(refusal(parts), "__metadata__." + field + ": is missing");
  }
}

TEST(Trace, RefusesOtherFormatsAndVersions) {
  EXPECT_EQ(refusal_of_field("format", "pt"), "__metadata__.format: is \"pt\"; expected \"kvbound-trace\"");
  EXPECT_EQ(refusal_of_field("format", "kvbound-dump"),
            "__metadata__.format: is \"kvbound-dump\"; expected \"kvbound-trace\"");
  EXPECT_EQ(refusal_of_field("version", "2"), "__metadata__.version: is \"2\"; expected \"1\"");
  EXPECT_EQ(refusal_of_field("rope", "no"), "__metadata__.rope: is \"no\"; expected \"applied\"");
}

TEST(Trace, RefusesCountsThatAreNotPlainIntegersInRange) {
  for (const char* field : {"layers", "query_heads", "kv_heads", "head_dim", "model_dim", "prompt_tokens",
                            "decode_tokens", "window_queries"}) {
    for (const char* bad : {"", "-1", "+2", " 2", "2 ", "02", "2.0", "2e0", "0x2", "two", "2147483648",
                            "99999999999999999999"}) {
      EXPECT_THAT(refusal_of_field(field, bad),
                  AllOf(StartsWith("__metadata__." + std::string(field) + ": is \"" + bad +
                                   "\"; expected an "
                                   "integer from "),
                        MatchesRegex(".* from [01] to (2147483647|6)")));
    }
    if (std::string(field) != "decode_tokens") {
      EXPECT_THAT(refusal_of_field(field, "0"), HasSubstr("expected an integer from 1 to "));
    }
  }
}

TEST(Trace, RefusesAWindowLongerThanThePrompt) {
  EXPECT_EQ(refusal_of_field("window_queries", "7"),
            "__metadata__.window_queries: is \"7\"; expected an integer from 1 to 6");
}

TEST(Trace, RefusesQueryHeadsThatAreNoMultipleOfKvHeads) {
  EXPECT_EQ(refusal_of_field("query_heads", "3"),
            "__metadata__.query_heads: is \"3\"; expected a multiple of kv_heads, 2");
  EXPECT_EQ(refusal_of_field("kv_heads", "8"),
            "__metadata__.query_heads: is \"4\"; expected a multiple of kv_heads, 8");
}

TEST(Trace, RefusesAScaleThatIsNotAPositiveNumber) {
  for (const char* bad : {"", "0", "-1", "nan", "inf", "1e999", "1e-999", "1,5", "0.5x", " 1", "+1"}) {
    EXPECT_EQ(refusal_of_field("scale", bad),
              "__metadata__.scale: is \"" + std::string(bad) + "\"; expected a positive decimal number");
  }
}

TEST(Trace, NamesAMissingTensor) {
  for (const char* name :
       {"layers.0.key", "layers.1.value", "layers.1.query", "layers.0.output_projection"}) {
    SafetensorsParts parts = small_trace();
    parts.erase_tensor(name);
    EXPECT_EQ(refusal(parts), std::string(name) + ": this tensor is missing");
  }
  EXPECT_EQ(refusal_of_field("layers", "2147483647"), "layers.2.key: this tensor is missing");
}

TEST(Trace, RefusesMoreLayersThanTheMetadataKnows) {
  EXPECT_EQ(refusal_of_field("layers", "1"), "layers.1.key: the metadata says that there are 1 layers");
  SafetensorsParts parts = small_trace();
  parts.tensors.push_back({"layers.99999999999999999999.key", "U8", "[0]", "", ""});
  EXPECT_THAT(refusal(parts), HasSubstr("the metadata says that there are 2 layers"));
}

TEST(Trace, RefusesShapesThatDisagree) {
  EXPECT_EQ(
      refusal_of_field("decode_tokens", "3"),
      "layers.0.key.shape: is [2, 8, 2]; expected [kv_heads, prompt_tokens + decode_tokens, head_dim] = "
      "[2, 9, 2]");
  EXPECT_EQ(refusal_of_field("window_queries", "5"),
            "layers.0.query.shape: is [4, 6, 2]; expected [query_heads, window_queries + decode_tokens, "
            "head_dim] = [4, 7, 2]");
  EXPECT_EQ(refusal_of_field("model_dim", "4"),
            "layers.0.output_projection.shape: is [8, 3]; expected [query_heads * head_dim, model_dim] = "
            "[8, 4]");
  EXPECT_THAT(refusal_of_field("head_dim", "2147483647"), HasSubstr("layers.0.key.shape: is [2, 8, 2]"));
  SafetensorsParts parts = small_trace();
  parts.tensor("layers.1.value").shape = "[2,16]";
  EXPECT_THAT(refusal(parts), HasSubstr("layers.1.value.shape: is [2, 16]"));
  parts = small_trace();
  parts.tensors.push_back({"layers.1.attention_output", "F32", "[4,2,2]", f32_data(16), ""});
  EXPECT_THAT(refusal(parts), HasSubstr("layers.1.attention_output.shape: is [4, 2, 2]"));
  parts = small_trace();
  parts.tensors.push_back({"tokens", "I32", "[1]", "1234", ""});
  EXPECT_EQ(refusal(parts), "tokens.shape: is [1]; expected [prompt_tokens + decode_tokens] = [8]");
}

TEST(Trace, RefusesTensorsOfTheWrongKind) {
  SafetensorsParts parts = small_trace();
  parts.tensor("layers.0.value").dtype = "I32";
  EXPECT_EQ(refusal(parts), "layers.0.value.dtype: is I32; expected F64, F32, F16 or BF16");
  parts = small_trace();
  parts.tensors.push_back({"tokens", "F32", "[8]", f32_data(8), ""});
  EXPECT_EQ(refusal(parts), "tokens.dtype: is F32; expected I64 or I32");
}

TEST(Trace, RefusesNaNWhenItIsRead) {
  const TemporaryFolder folder;
  SafetensorsParts parts = small_trace();
  parts.tensor("layers.1.value").data.replace(4 * 5, 4, bytes_of(std::numeric_limits<float>::quiet_NaN()));
  const Trace trace(folder.write("t.safetensors", parts.bytes()));
  EXPECT_NO_THROW(trace.read_layer(0));
  EXPECT_THAT(message_of<TraceError>([&] { trace.read_layer(1); }),
              MatchesRegex(".*at byte [0-9]+: layers.1.value: element 5 is NaN; expected a finite number"));
}

TEST(Trace, SaysThatTheFileWasCutAfterItWasOpened) {
  const TemporaryFolder folder;
  const std::string bytes = small_trace().bytes();
  const std::string path = folder.write("t.safetensors", bytes);
  const Trace trace(path);
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(bytes.size() - 1)), 0);
  EXPECT_NO_THROW(trace.read_layer(0));
  EXPECT_THAT(message_of<TraceError>([&] { trace.read_layer(1); }),
              HasSubstr(": layers.1.output_projection: the file ended here while it was read"));
  EXPECT_THROW(trace.sha256(), TraceError);
}

TEST(Sha256, HasTheValuesOfTheStandard) {
  EXPECT_EQ(sha256_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Trace, HashesTheWholeFileAndReportsProgress) {
  const TemporaryFolder folder;
  const std::string bytes = small_trace().bytes();
  const Trace trace(folder.write("t.safetensors", bytes));
  std::vector<std::pair<int64_t, int64_t>> calls;
  const std::string hash = trace.sha256([&](int64_t done, int64_t all) { calls.emplace_back(done, all); });
  EXPECT_EQ(hash, sha256_of(bytes));
  const auto size = std::ssize(bytes);
  ASSERT_FALSE(calls.empty());
  EXPECT_EQ(calls.back(), std::pair(size, size));
}

/// small_trace in two shards, one layer each; the caller chooses where the metadata goes.
class Shards : public testing::Test {
 protected:
  Shards() {
    const SafetensorsParts whole = small_trace();
    for (const auto& tensor : whole.tensors) {
      (tensor.name.starts_with("layers.0.") ? first_ : second_).tensors.push_back(tensor);
    }
    first_.metadata = {{"format", "pt"}};
    second_.metadata = whole.metadata;
    metadata_ = R"("total_size": 576)";
  }

  static std::string mapping(const SafetensorsParts& parts, const std::string& file) {
    std::string text;
    for (const auto& tensor : parts.tensors) {
      text += (text.empty() ? "\"" : ",\"") + tensor.name + "\":\"" + file + "\"";
    }
    return text;
  }

  std::string write_index(const std::string& weight_map) const {
    return folder_.write("t.index.json",
                         "{\"metadata\":{" + metadata_ + "},\"weight_map\":{" + weight_map + "}}\n");
  }
  std::string write() const {
    folder_.write("a.safetensors", first_.bytes());
    folder_.write("b.safetensors", second_.bytes());
    return write_index(mapping(first_, "a.safetensors") + "," + mapping(second_, "b.safetensors"));
  }
  std::string refusal(const std::string& index) const {
    return message_of<TraceError>([&] { Trace{index}; });
  }
  std::string refusal() const { return refusal(write()); }

  TemporaryFolder folder_;
  SafetensorsParts first_;
  SafetensorsParts second_;
  std::string metadata_;
};

TEST_F(Shards, ReadLikeASingleFile) {
  const Trace whole(folder_.write("whole.safetensors", small_trace().bytes()));
  const Trace sharded(write());
  EXPECT_EQ(sharded.info().layers, 2);
  for (int64_t layer = 0; layer < 2; ++layer) {
    const Layer expected = whole.read_layer(layer);
    const Layer actual = sharded.read_layer(layer);
    EXPECT_TRUE(std::ranges::equal(actual.keys.view().slice(1).row(3), expected.keys.view().slice(1).row(3)));
    EXPECT_TRUE(std::ranges::equal(actual.output_projection.numbers(), expected.output_projection.numbers()));
  }
}

TEST_F(Shards, HashTheIndexAndThenTheShardsInOrder) {
  const Trace trace(write());
  EXPECT_EQ(trace.sha256(),
            sha256_of(test::contents(folder_.path("t.index.json")) + first_.bytes() + second_.bytes()));
}

TEST_F(Shards, MayKeepTheMetadataInTheIndex) {
  for (const auto& [key, value] : second_.metadata) metadata_ += ",\"" + key + "\":\"" + value + "\"";
  second_.metadata.clear();
  EXPECT_EQ(Trace(write()).info().model, "small");
}

TEST_F(Shards, MustAgreeWhereTheyRepeatTheMetadata) {
  first_.metadata = second_.metadata;
  EXPECT_EQ(Trace(write()).info().model, "small");
  second_.set("model", "other");
  EXPECT_THAT(refusal(), AllOf(StartsWith(folder_.path("b.safetensors: at byte ")),
                               HasSubstr("__metadata__.model: is \"other\", but " +
                                         folder_.path("a.safetensors") + " says \"small\"")));
}

TEST_F(Shards, NeedTheMetadataSomewhere) {
  second_.metadata.clear();
  EXPECT_THAT(refusal(), AllOf(StartsWith(folder_.path("t.index.json: at byte 12: ")),
                               HasSubstr("__metadata__.format: is missing")));
}

TEST_F(Shards, MustExist) {
  const std::string index = write();
  std::filesystem::remove(folder_.path("b.safetensors"));
  EXPECT_EQ(message_of<IoError>([&] { Trace{index}; }),
            "cannot open " + folder_.path("b.safetensors") + ": No such file or directory");
}

TEST_F(Shards, AreNamedWithoutAFolder) {
  for (const char* name : {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", "", "a\\nb"}) {
    EXPECT_THAT(refusal(write_index("\"t\":\"" + std::string(name) + "\"")),
                AllOf(HasSubstr("t.index.json: at byte "), HasSubstr("weight_map.t: is \""),
                      HasSubstr("expected the name of a file beside the index")));
  }
}

TEST_F(Shards, HoldExactlyTheTensorsThatTheIndexSays) {
  write();
  const std::string first = mapping(first_, "a.safetensors");
  const std::string second = mapping(second_, "b.safetensors");
  EXPECT_THAT(refusal(write_index(first + "," + second + R"(,"tokens":"a.safetensors")")),
              HasSubstr("weight_map.tokens: is a.safetensors, which lacks this tensor"));
  EXPECT_THAT(refusal(write_index(second + R"(,"layers.0.key":"a.safetensors")")),
              AllOf(HasSubstr("a.safetensors: at byte "), HasSubstr("the index does not list this tensor")));
  second_.tensors.push_back(first_.tensors[0]);
  folder_.write("b.safetensors", second_.bytes());
  EXPECT_THAT(refusal(write_index(first + "," + second)),
              AllOf(HasSubstr("b.safetensors: at byte "),
                    HasSubstr("layers.0.key: the index puts this tensor into a.safetensors")));
}

TEST_F(Shards, HaveAStrictIndex) {
  const auto index = [&](const std::string& text) { return refusal(folder_.write("t.index.json", text)); };
  EXPECT_THAT(index(""), HasSubstr("t.index.json: at byte 0: index: is not valid JSON"));
  EXPECT_THAT(index("{}"), HasSubstr("at byte 0: weight_map: is missing"));
  EXPECT_THAT(index(R"({"weight_map":{}})"), HasSubstr("weight_map: is an object without entries"));
  EXPECT_THAT(index(R"({"weight_map":[]})"), HasSubstr("weight_map: is an array; expected an object"));
  EXPECT_THAT(index(R"({"weight_map":{"t":1}})"),
              HasSubstr("weight_map.t: is 1; expected the name of a file"));
  EXPECT_THAT(index(R"({"weight_map":{"t":"a","t":"a"}})"), HasSubstr(R"(the key "t" occurs twice)"));
  write();
  EXPECT_THAT(index(R"({"metadata":1,"weight_map":{"t":"a"}})"),
              HasSubstr("metadata: is 1; expected an object"));
  std::filesystem::remove(folder_.path("t.index.json"));
  std::filesystem::create_directory(folder_.path("t.index.json"));
  EXPECT_THAT(refusal(folder_.path("t.index.json")), HasSubstr("is a directory"));
}

TEST_F(Shards, HaveAnIndexNoLongerThanTheLimit) {
  const std::string index = write();
  EXPECT_THAT(message_of<TraceError>([&] { Trace(index, {.header_limit = 100}); }),
              HasSubstr("the limit is 100 (raise it with --header-limit)"));
}

/// Attention of one query as the format defines it, to verify recorded outputs.
std::vector<double> attention_output(const Layer& layer, int64_t head, int64_t row) {
  const MatrixView keys = layer.keys.slice(layer.shape.kv_head_of(head));
  const MatrixView values = layer.values.slice(layer.shape.kv_head_of(head));
  const std::span<const double> query = layer.queries.slice(head).row(row);
  const int64_t visible = layer.prompt_tokens - layer.window_queries + row + 1;
  std::vector<double> logits;
  for (int64_t i = 0; i < visible; ++i) {
    double logit = 0;
    for (int64_t d = 0; d < keys.cols; ++d) logit += layer.scale * query[d] * keys(i, d);
    logits.push_back(logit);
  }
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> output(values.cols);
  double sum = 0;
  for (int64_t i = 0; i < visible; ++i) {
    const double weight = std::exp(logits[i] - largest);
    sum += weight;
    for (int64_t d = 0; d < values.cols; ++d) output[d] += weight * values(i, d);
  }
  for (double& number : output) number /= sum;
  return output;
}

TEST(Samples, RecordTheAttentionOutputThatTheirTensorsGive) {
  for (const char* name : {"pocket-gqa.safetensors", "pocket-mha.safetensors"}) {
    const Trace trace((kSamples / name).string());
    ASSERT_TRUE(trace.info().has_attention_output);
    for (int64_t index = 0; index < trace.info().layers; ++index) {
      const Layer layer = trace.read_layer(index, {.attention_output = true});
      for (int64_t head = 0; head < layer.shape.query_heads; ++head) {
        const MatrixView recorded = layer.attention_output->slice(head);
        for (const int64_t row :
             {int64_t{0}, layer.window_queries - 1, layer.window_queries, recorded.rows - 1}) {
          const std::vector<double> expected = attention_output(layer, head, row);
          double scale = 0;
          for (const double number : expected) scale = std::max(scale, std::abs(number));
          for (int64_t d = 0; d < recorded.cols; ++d) {
            // F32 arithmetic over at most 2048 entries.
            ASSERT_NEAR(recorded(row, d), expected[d], 1e-4 * scale)
                << name << " layer " << index << " head " << head << " row " << row;
          }
        }
      }
    }
  }
}

TEST(Samples, AreTheFilesThatTheirReadmeDescribes) {
  const std::string readme = test::contents((kSamples / "README.md").string());
  for (const char* name : {"pocket-gqa.safetensors", "pocket-mha.safetensors"}) {
    EXPECT_THAT(readme, HasSubstr(Trace((kSamples / name).string()).sha256())) << name;
  }
}

}  // namespace
}  // namespace kvbound::traces::traces_test
