#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/given_file.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::traces::given_file_test {
namespace {

using test::bytes_of;
using test::SafetensorsParts;
using Positions = std::vector<int64_t>;

template <class Number>
std::string data_of(const std::vector<Number>& numbers) {
  std::string bytes;
  for (const Number number : numbers) bytes += bytes_of(number);
  return bytes;
}

// A trace of 2 layers, 4 query heads on 2 KV heads, 5 prompt tokens.
GivenSubject subject(std::vector<int64_t> wanted = {0, 1}) {
  return {"trace_sha256", "abc", "the hash of small.safetensors", {4, 2, 2, 3}, 2, 5, std::move(wanted)};
}

SafetensorsParts given() {
  SafetensorsParts parts;
  parts.metadata = {{"format", "kvbound-given"}, {"version", "1"}, {"trace_sha256", "abc"}, {"name", "mine"}};
  return parts;
}

SafetensorsParts scores() {
  SafetensorsParts parts = given();
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    parts.tensors.push_back(
        {layer + "score", "F64", "[2,5]", data_of<double>({0, 1, 2, 3, 4, 5, 6, 7, 8, -9}), ""});
    parts.tensors.push_back({layer + "head_score", "F32", "[4,5]", data_of(std::vector<float>(20, 0.5)), ""});
  }
  parts.tensors.push_back({"always_kept", "I64", "[2]", data_of<int64_t>({1, 4}), ""});
  return parts;
}

SafetensorsParts kept_sets() {
  SafetensorsParts parts = given();
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    parts.tensors.push_back({layer + "kept", "I64", "[5]", data_of<int64_t>({0, 2, 1, 3, 4}), ""});
    parts.tensors.push_back({layer + "kept_offsets", "I64", "[3]", data_of<int64_t>({0, 2, 5}), ""});
  }
  return parts;
}

class GivenFileTest : public testing::Test {
 protected:
  GivenFile open(const SafetensorsParts& parts, const GivenSubject& of = subject()) const {
    return GivenFile(folder_.write("g.safetensors", parts.bytes()), of);
  }
  // The message with which a file is refused when it is opened or its layer 1 is read,
  // behind its path and the byte.
  std::string refusal(const SafetensorsParts& parts, const GivenSubject& of = subject()) const {
    const std::string message = test::message_of<TraceError>([&] { open(parts, of).read_layer(1); });
    const size_t byte = message.find("at byte ");
    const size_t end = byte == std::string::npos ? message.find(": ") : message.find(": ", byte);
    return end == std::string::npos ? message : message.substr(end + 2);
  }
  std::string refusal(SafetensorsParts parts, const std::function<void(SafetensorsParts&)>& change) const {
    change(parts);
    return refusal(parts);
  }

  test::TemporaryFolder folder_;
};

TEST_F(GivenFileTest, ReadsScores) {
  const GivenFile file = open(scores());
  EXPECT_EQ(file.name(), "mine");
  EXPECT_FALSE(file.keeps());
  EXPECT_EQ(file.always_kept(), (Positions{1, 4}));
  EXPECT_TRUE(file.layer_entries().empty());
  const auto layer = file.read_layer(1);
  EXPECT_EQ(layer->score(1, 4), -9);
  EXPECT_EQ(layer->head_score(3, 0), 0.5);
  EXPECT_EQ(layer->always_kept, (Positions{1, 4}));
  EXPECT_FALSE(layer->keeps());
  EXPECT_EQ(file.sha256().size(), 64u);
}

TEST_F(GivenFileTest, ReadsScoresWithoutWhatIsOptional) {
  SafetensorsParts parts = scores();
  parts.erase("name");
  for (const char* tensor : {"layers.0.head_score", "layers.1.head_score", "always_kept"})
    parts.erase_tensor(tensor);
  const GivenFile file = open(parts);
  EXPECT_EQ(file.name(), "");
  EXPECT_TRUE(file.always_kept().empty());
  EXPECT_EQ(file.read_layer(0)->head_score.rows(), 0);
}

TEST_F(GivenFileTest, ReadsKeptSets) {
  const GivenFile file = open(kept_sets());
  EXPECT_TRUE(file.keeps());
  EXPECT_EQ(file.layer_entries(), (Positions{2, 2})) << "5 entries of two heads, rounded down";
  EXPECT_EQ(file.read_layer(0)->kept, (std::vector<Positions>{{0, 2}, {1, 3, 4}}));
}

TEST_F(GivenFileTest, NeedsTheLayersThatAreReplayedAlone) {
  SafetensorsParts parts = kept_sets();
  parts.erase_tensor("layers.0.kept");
  parts.erase_tensor("layers.0.kept_offsets");
  EXPECT_EQ(open(parts, subject({1})).layer_entries(), (Positions{2, 2}));
  EXPECT_EQ(
      refusal(parts, subject()),
      "layers.0.score: is missing; expected layers.{l}.kept and layers.{l}.kept_offsets, or layers.{l}.score, "
      "layers.{l}.head_score and always_kept");
}

TEST_F(GivenFileTest, RefusesMetadataOfSomethingElse) {
  const std::string field = "__metadata__.";
  EXPECT_EQ(refusal(scores(), [](auto& parts) { parts.erase("format"); }), field + "format: is missing");
  EXPECT_EQ(refusal(scores(), [](auto& parts) { parts.set("format", "kvbound-dump"); }),
            field + "format: is \"kvbound-dump\"; expected \"kvbound-given\"");
  EXPECT_EQ(refusal(scores(), [](auto& parts) { parts.set("version", "2"); }),
            field + "version: is \"2\"; expected \"1\"");
  EXPECT_EQ(refusal(scores(), [](auto& parts) { parts.erase("trace_sha256"); }),
            field + "trace_sha256: is missing");
  EXPECT_EQ(refusal(scores(), [](auto& parts) { parts.set("trace_sha256", "abd"); }),
            field + "trace_sha256: is \"abd\"; expected \"abc\", the hash of small.safetensors");
}

TEST_F(GivenFileTest, RefusesTensorsThatAreMissingOrUnknown) {
  const std::string expected =
      "expected layers.{l}.kept and layers.{l}.kept_offsets, or layers.{l}.score, layers.{l}.head_score and "
      "always_kept";
  EXPECT_EQ(refusal(scores(), [](auto& parts) { parts.erase_tensor("layers.1.score"); }),
            "layers.1.score: is missing; " + expected);
  EXPECT_EQ(refusal(kept_sets(), [](auto& parts) { parts.erase_tensor("layers.1.kept"); }),
            "layers.1.kept: is missing; " + expected);
  EXPECT_EQ(refusal(kept_sets(), [](auto& parts) { parts.erase_tensor("layers.1.kept_offsets"); }),
            "layers.1.kept_offsets: is missing; " + expected);
  for (const char* name : {"layers.0.scores", "layers.00.score", "layers.-1.score", "layers.x.score", "score",
                           "layers.1.always_kept", "layers."}) {
    EXPECT_EQ(refusal(scores(),
                      [&](auto& parts) {
                        parts.tensors.push_back({name, "F32", "[0]", "", ""});
                      }),
              name + (": no tensor of such a file; " + expected));
  }
  EXPECT_EQ(refusal(scores(),
                    [](auto& parts) {
                      parts.tensors.push_back({"layers.2.score", "F32", "[0]", "", ""});
                    }),
            "layers.2.score: expected layers 0 to 1, which the trace or model has");
}

TEST_F(GivenFileTest, RefusesKeptSetsAndScoresInOneFile) {
  const auto add = [](SafetensorsParts& parts, const SafetensorsParts& other, const char* name) {
    SafetensorsParts source = other;
    parts.tensors.push_back(source.tensor(name));
  };
  EXPECT_EQ(refusal(kept_sets(), [&](auto& parts) { add(parts, scores(), "layers.1.score"); }),
            "layers.1.score: a file has kept sets or scores; this one has kept sets");
  EXPECT_EQ(refusal(kept_sets(), [&](auto& parts) { add(parts, scores(), "always_kept"); }),
            "always_kept: goes with scores; this file has kept sets");
  EXPECT_EQ(refusal(scores(), [&](auto& parts) { add(parts, kept_sets(), "layers.1.kept"); }),
            "layers.1.kept: a file has kept sets or scores; this one has scores");
}

TEST_F(GivenFileTest, RefusesOtherTypesAndShapes) {
  const auto other = [&](SafetensorsParts parts, const char* name, const char* dtype, const char* shape,
                         const std::string& data) {
    parts.tensor(name) = {name, dtype, shape, data, ""};
    return refusal(parts);
  };
  const std::string ten(80, '\0');
  EXPECT_EQ(other(scores(), "layers.1.score", "I64", "[2,5]", ten),
            "layers.1.score: the type is I64; expected F64 or F32");
  EXPECT_EQ(other(scores(), "layers.1.score", "F16", "[2,5]", ten.substr(60)),
            "layers.1.score: the type is F16; expected F64 or F32");
  EXPECT_EQ(other(scores(), "layers.1.score", "F64", "[5,2]", ten),
            "layers.1.score: the shape is [5, 2]; expected [kv_heads, prompt_tokens] = [2, 5]");
  EXPECT_EQ(other(scores(), "layers.1.head_score", "F64", "[2,5]", ten),
            "layers.1.head_score: the shape is [2, 5]; expected [query_heads, prompt_tokens] = [4, 5]");
  EXPECT_EQ(other(scores(), "always_kept", "F64", "[2]", ten.substr(64)),
            "always_kept: the type is F64; expected I64");
  EXPECT_EQ(other(scores(), "always_kept", "I64", "[1,2]", ten.substr(64)),
            "always_kept: the shape is [1, 2]; expected one dimension");
  EXPECT_EQ(other(kept_sets(), "layers.1.kept", "I32", "[5]", ten.substr(60)),
            "layers.1.kept: the type is I32; expected I64");
  EXPECT_EQ(other(kept_sets(), "layers.1.kept_offsets", "I64", "[2]", ten.substr(64)),
            "layers.1.kept_offsets: the shape is [2]; expected [kv_heads + 1] = [3]");
}

TEST_F(GivenFileTest, RefusesPositionsThatDoNotAscendWithinThePrompt) {
  const auto kept = [&](const Positions& positions) {
    SafetensorsParts parts = kept_sets();
    parts.tensor("layers.1.kept").data = data_of(positions);
    return refusal(parts);
  };
  EXPECT_EQ(kept({0, 5, 1, 3, 4}), "layers.1.kept: element 1 is 5; expected a position from 0 to 4");
  EXPECT_EQ(kept({-1, 2, 1, 3, 4}), "layers.1.kept: element 0 is -1; expected a position from 0 to 4");
  EXPECT_EQ(kept({2, 0, 1, 3, 4}),
            "layers.1.kept: element 1 is 0 and follows 2; expected ascending positions");
  EXPECT_EQ(kept({0, 2, 1, 3, 3}),
            "layers.1.kept: element 4 is 3 and follows 3; expected ascending positions");
  const auto offsets = [&](const Positions& numbers) {
    SafetensorsParts parts = kept_sets();
    parts.tensor("layers.1.kept_offsets").data = data_of(numbers);
    return refusal(parts);
  };
  const std::string ascend =
      "; expected to ascend from 0 to 5, the length of layers.1.kept: each KV head keeps an entry";
  for (const Positions& wrong : {Positions{0, 2, 4}, {1, 2, 5}, {0, 0, 5}, {0, 6, 5}, {0, -1, 5}})
    EXPECT_EQ(offsets(wrong), "layers.1.kept_offsets: is " + shape_text(wrong) + ascend);
  SafetensorsParts parts = scores();
  parts.tensor("always_kept").data = data_of<int64_t>({4, 4});
  EXPECT_EQ(refusal(parts), "always_kept: element 1 is 4 and follows 4; expected ascending positions");
}

TEST_F(GivenFileTest, RefusesScoresThatAreNoNumbersOfSinglePrecision) {
  constexpr double kMost = std::numeric_limits<float>::max();
  const auto score = [&](double number) {
    SafetensorsParts parts = scores();
    parts.tensor("layers.1.score").data.replace(24, 8, bytes_of(number));
    return refusal(parts);
  };
  EXPECT_EQ(score(kMost), "no error");
  EXPECT_EQ(score(-kMost), "no error");
  EXPECT_NE(score(2 * kMost).find("element 3 is 6805"), std::string::npos) << score(2 * kMost);
  EXPECT_NE(score(2 * kMost).find("expected a number within single precision"), std::string::npos);
  for (const double number :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()})
    EXPECT_NE(score(number).find("layers.1.score"), std::string::npos) << score(number);
}

TEST_F(GivenFileTest, OfAFolderIsFoundByWhatItIsOf) {
  SafetensorsParts other = scores();
  other.set("trace_sha256", "def");
  const std::string a = folder_.write("a.safetensors", scores().bytes());
  folder_.write("b.safetensors", other.bytes());
  folder_.write("trace.safetensors", test::small_trace().bytes());
  folder_.write("notes.txt", "no tensors");
  EXPECT_EQ(GivenSource(folder_.path()).open(subject()).path(), a);
  EXPECT_EQ(GivenSource(a).open(subject()).path(), a);
  GivenSubject task = subject();
  task.field = "task_id";
  const std::string none = test::message_of<TraceError>([&] { GivenSource(folder_.path()).open(task); });
  EXPECT_NE(none.find("the folder has no *.safetensors of the format kvbound-given whose task_id is \"abc\""),
            std::string::npos)
      << none;
  folder_.write("c.safetensors", scores().bytes());
  const std::string two = test::message_of<TraceError>([&] { GivenSource(folder_.path()).open(subject()); });
  EXPECT_NE(two.find("the folder has several files whose trace_sha256 is \"abc\": "), std::string::npos)
      << two;
  EXPECT_NE(two.find("a.safetensors, "), std::string::npos) << two;
}

}  // namespace
}  // namespace kvbound::traces::given_file_test
