#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/diff/claims/dump_file.hpp>

#include "support/message_of.hpp"
#include "support/safetensors_bytes.hpp"

namespace kvbound::sim::dump_file_test {
namespace {

using test::bytes_of;
using test::SafetensorsParts;

std::string integers(const std::vector<int64_t>& numbers) {
  std::string bytes;
  for (const int64_t number : numbers) bytes += bytes_of(number);
  return bytes;
}
std::string reals(int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) bytes += bytes_of(static_cast<float>(i));
  return bytes;
}

// A trace of 2 layers: 4 query heads on 2 KV heads, 6 prompt tokens, 2 decode steps.
traces::TraceInfo trace_info() {
  traces::TraceInfo trace;
  trace.path = "small.safetensors";
  trace.shape = {4, 2, 2, 3};
  trace.layers = 2;
  trace.prompt_tokens = 6;
  trace.decode_tokens = 2;
  trace.window_queries = 4;
  return trace;
}

// A dump of half of each KV head's entries in both layers.
SafetensorsParts small_dump(const std::string& policy = "h2o:window=2:recent=1") {
  SafetensorsParts parts;
  parts.metadata = {
      {"format", "kvbound-dump"}, {"version", "1"},    {"policy", policy},    {"budget", "3"},
      {"backend", "mine"},        {"storage", "BF16"}, {"accumulate", "F32"}, {"trace_sha256", "abc"}};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    parts.tensors.push_back({layer + "kept", "I64", "[6]", integers({0, 2, 5, 1, 3, 5}), ""});
    parts.tensors.push_back({layer + "evicted", "I64", "[2,2]", integers({0, -1, 2, 3}), ""});
    parts.tensors.push_back({layer + "output", "F32", "[2,4,2]", reals(16), ""});
  }
  return parts;
}

class DumpFileTest : public testing::Test {
 protected:
  DumpFile open(const SafetensorsParts& parts) const {
    return {folder_.write("dump.safetensors", parts.bytes()), trace_info(), 1 << 20};
  }
  // The error message for a refused dump; empty if it is accepted.
  std::string refusal(const SafetensorsParts& parts) const {
    try {
      open(parts).read_layer(1);
      return "";
    } catch (const TraceError& error) {
      return error.what();
    }
  }
  void expect_refused(const SafetensorsParts& parts, const std::string& message) const {
    const std::string told = refusal(parts);
    EXPECT_NE(told.find(message), std::string::npos) << "\"" << told << "\" instead of " << message;
  }

  test::TemporaryFolder folder_;
};

TEST_F(DumpFileTest, ReadsWhatIsClaimedAndClaimsNothingElse) {
  const DumpFile file = open(small_dump());
  EXPECT_EQ(file.info().tensors, (std::vector<std::string>{"kept", "evicted", "output"}));
  EXPECT_EQ(file.info().layers, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(file.info().steps, 2);
  const LayerClaims claims = file.read_layer(1);
  EXPECT_EQ(*claims.kept, (std::vector<std::vector<int64_t>>{{0, 2, 5}, {1, 3, 5}}));
  EXPECT_EQ(*claims.evicted, (std::vector<int64_t>{0, -1, 2, 3}));
  EXPECT_EQ(claims.output->shape, (std::vector<int64_t>{2, 4, 2}));
  EXPECT_EQ(claims.output->numbers[15], 15);
  EXPECT_EQ(claims.output->storage, Dtype::f32);
  EXPECT_FALSE(claims.score || claims.votes || claims.merged_into || claims.bound || claims.kept_offsets);
}

TEST_F(DumpFileTest, RefusesATensorThatOneLayerLacks) {
  for (const std::string tensor : {"kept", "evicted", "output"}) {
    SafetensorsParts parts = small_dump();
    parts.erase_tensor("layers.1." + tensor);
    expect_refused(parts, "layers.1." + tensor + ": this tensor is missing, but other layers have it");
    parts.set("layers", "0");
    expect_refused(parts, "the metadata says layers=0");
  }
}

TEST_F(DumpFileTest, ReadsTheLayersThatTheMetadataLists) {
  SafetensorsParts parts = small_dump();
  for (const std::string tensor : {"kept", "evicted", "output"}) parts.erase_tensor("layers.0." + tensor);
  parts.set("layers", "1");
  EXPECT_EQ(open(parts).info().layers, std::vector<int64_t>{1});
  parts.set("layers", "1-2");
  expect_refused(parts, "expected ascending layers or ranges such as 0,3-5 within 0..1");
}

TEST_F(DumpFileTest, ReadsOutputsOfThePromptsQueries) {
  SafetensorsParts parts = small_dump();
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    parts.tensors.push_back({layer + "prompt_output", "F32", "[4,4,2]", reals(32), ""});
  }
  EXPECT_EQ(open(parts).info().tensors.front(), "prompt_output");
  EXPECT_EQ(open(parts).read_layer(1).prompt_output->numbers[31], 31);
  parts.tensor("layers.1.prompt_output") = {"layers.1.prompt_output", "F32", "[2,8,2]", reals(32), ""};
  expect_refused(parts, "expected [window_queries, query_heads, head_dim] = [4, 4, 2]");
}

TEST_F(DumpFileTest, RefusesOtherShapesAndTypes) {
  SafetensorsParts parts = small_dump();
  parts.tensor("layers.1.output") = {"layers.1.output", "F32", "[2,2,4]", reals(16), ""};
  expect_refused(parts, "is [2, 2, 4]; expected [steps, query_heads, head_dim] = [2, 4, 2]");
  parts = small_dump();
  parts.tensor("layers.0.kept") = {"layers.0.kept", "I64", "[5]", integers({0, 2, 5, 1, 3}), ""};
  expect_refused(parts, "[kv_heads * budget] = [6]");
  parts = small_dump();
  parts.tensor("layers.0.evicted").dtype = "F64";
  expect_refused(parts, "is F64; expected I64 or I32");
  parts = small_dump();
  parts.tensor("layers.0.output").dtype = "I32";
  expect_refused(parts, "is I32; expected F64, F32, F16 or BF16");
}

TEST_F(DumpFileTest, TakesFewerStepsIfAllTensorsHaveAsMany) {
  SafetensorsParts parts = small_dump();
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    parts.tensor(layer + "evicted") = {layer + "evicted", "I64", "[1,2]", integers({0, 1}), ""};
    parts.tensor(layer + "output") = {layer + "output", "F32", "[1,4,2]", reals(8), ""};
  }
  EXPECT_EQ(open(parts).info().steps, 1);
  parts.tensor("layers.1.output") = {"layers.1.output", "F32", "[2,4,2]", reals(16), ""};
  expect_refused(parts, "layers.0.evicted has it");
  parts = small_dump();
  parts.tensor("layers.0.evicted") = {"layers.0.evicted", "I64", "[3,2]", integers({0, 1, 0, 1, 0, 1}), ""};
  expect_refused(parts, "is [3, 2]; expected [steps, kv_heads] = [2, 2]");
}

TEST_F(DumpFileTest, RefusesTensorsThatThePolicyHasNot) {
  const auto with = [](const std::string& policy, const std::string& tensor, const std::string& shape,
                       int64_t count) {
    SafetensorsParts parts = small_dump(policy);
    for (const std::string layer : {"layers.0.", "layers.1."}) {
      parts.tensors.push_back({layer + tensor, "F32", shape, reals(count), ""});
    }
    return parts;
  };
  const std::string h2o = "h2o:window=2:recent=1";
  EXPECT_EQ(refusal(with(h2o, "bound", "[2,4]", 8)), "");
  expect_refused(with(h2o + "+keepkv", "bound", "[2,4]", 8), "only policies that do not merge have this");
  EXPECT_EQ(refusal(with(h2o + "+keepkv", "votes", "[6]", 6)), "");
  expect_refused(with(h2o + "+keepkv", "votes", "[5]", 5), "[all that is kept] = [6]");
  expect_refused(with(h2o, "votes", "[6]", 6), "only policies that merge have this");
  EXPECT_EQ(refusal(with(h2o + "+critical", "projected_value_norms", "[4,6]", 24)), "");
  expect_refused(with(h2o, "projected_value_norms", "[4,6]", 24), "no tensor of a dump of");
  EXPECT_EQ(refusal(with(h2o + "+critical", "stage_two_score", "[2,6]", 12)), "");
  expect_refused(with(h2o + "+theta-sweep", "stage_two_score", "[2,6]", 12), "no tensor of a dump of");
  expect_refused(with("snapkv:window=2", "score", "[2,4]", 8),
                 "only policies that evict while decoding have this");
  EXPECT_EQ(refusal(with(h2o, "score", "[2,6]", 12)), "");
  expect_refused(with(h2o, "score", "[2,4]", 8), "[kv_heads, prompt_tokens] = [2, 6]");
  expect_refused(with(h2o, "scores", "[2,6]", 12),
                 "known: prompt_output, score_positions, score, kept_offsets, kept, evicted");
}

TEST_F(DumpFileTest, ReadsEvictedByItsFormerNameButNotByBoth) {
  SafetensorsParts parts = small_dump();
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    parts.tensor(layer + "evicted").name = layer + "left";
  }
  EXPECT_EQ(open(parts).info().tensors, (std::vector<std::string>{"kept", "evicted", "output"}));
  EXPECT_EQ(*open(parts).read_layer(1).evicted, (std::vector<int64_t>{0, -1, 2, 3}));
  parts.tensors.push_back({"layers.1.evicted", "I64", "[2,2]", integers({0, -1, 2, 3}), ""});
  expect_refused(parts, "by its former name; expected one of them");
}

TEST_F(DumpFileTest, TakesKvHeadsOfDifferentNumbersByTheirOffsets) {
  const auto with = [](const std::vector<int64_t>& offsets, const std::string& policy) {
    SafetensorsParts parts = small_dump(policy);
    for (const std::string layer : {"layers.0.", "layers.1."}) {
      parts.tensors.push_back({layer + "kept_offsets", "I64", "[3]", integers(offsets), ""});
    }
    return parts;
  };
  const std::string ragged = "h2o:window=2:recent=1+adakv";
  EXPECT_EQ(*open(with({0, 2, 6}, ragged)).read_layer(0).kept,
            (std::vector<std::vector<int64_t>>{{0, 2}, {5, 1, 3, 5}}));
  EXPECT_EQ(*open(with({0, 2, 6}, ragged)).read_layer(0).kept_offsets, (std::vector<int64_t>{0, 2, 6}));
  for (const std::vector<int64_t>& wrong :
       {std::vector<int64_t>{1, 2, 6}, {0, 2, 5}, {0, 7, 6}, {0, -1, 6}}) {
    expect_refused(with(wrong, ragged), "expected to ascend from 0 to 6, the length of layers.1.kept");
  }
  expect_refused(small_dump(ragged), "needs layers.0.kept_offsets");
  expect_refused(small_dump("h2o:window=2:recent=1+keepkv:order=merge-first"), "needs layers.0.kept_offsets");
}

TEST_F(DumpFileTest, RefusesAnotherTraceVersionPolicyOrBudget) {
  EXPECT_NO_THROW(open(small_dump()).require_trace("abc"));
  EXPECT_THROW(open(small_dump()).require_trace("abd"), TraceError);
  const auto with = [](const std::string& field, const std::string& value) {
    SafetensorsParts parts = small_dump();
    parts.set(field, value);
    return parts;
  };
  expect_refused(with("version", "2"), "expected \"1\"");
  expect_refused(with("format", "kvbound-trace"), "expected \"kvbound-dump\"");
  expect_refused(with("policy", "h3o"), "__metadata__.policy");
  expect_refused(with("budget", "7"), "__metadata__.budget");
  expect_refused(with("accumulate", "F16"), "expected one of F64, F32");
  expect_refused(with("storage", "I8"), "__metadata__.storage");
  SafetensorsParts parts = small_dump();
  parts.erase("storage");
  expect_refused(parts, "__metadata__.storage: is missing");
}

TEST_F(DumpFileTest, IsJudgedByTheArithmeticThatItDeclares) {
  const auto opened = [&](const std::string& storage, const std::string& accumulate) {
    SafetensorsParts parts = small_dump();
    parts.set("storage", storage);
    parts.set("accumulate", accumulate);
    return open(parts);
  };
  EXPECT_EQ(opened("BF16", "F32").info().declared.arithmetic().unit, reference::tensor_core_precision().unit);
  EXPECT_EQ(opened("BF16", "F64").info().declared.arithmetic().unit, reference::double_precision().unit);
  EXPECT_EQ(opened("BF16", "F32").info().declared.arithmetic().weights, 0);
  EXPECT_EQ(opened("BF16", "F32").info().declared.input_storage(), Dtype::bf16);
  EXPECT_EQ(opened("F64", "F32").info().declared.input_storage(), Dtype::f32);
  EXPECT_EQ(opened("F32", "F64").info().declared.input_storage(), Dtype::f32);
  EXPECT_EQ(opened("F64", "F64").info().declared.input_storage(), Dtype::f64);
  SafetensorsParts rounded = small_dump();
  rounded.set("weights", "F16");
  EXPECT_EQ(open(rounded).info().declared.arithmetic().weights, 0x1p-11);
  EXPECT_EQ(open(rounded).info().declared.arithmetic().weights_floor, 0x1p-25);
  rounded.set("partials", "BF16");
  EXPECT_EQ(open(rounded).info().declared.arithmetic().weights, 0x1p-11);
  EXPECT_EQ(open(rounded).info().declared.arithmetic().partials, 0x1p-8);
  EXPECT_EQ(open(rounded).info().declared.arithmetic().partials_floor, 0x1p-134);
}

TEST_F(DumpFileTest, DeclaresThatFactorsAreThoseOfTf32) {
  SafetensorsParts parts = small_dump();
  parts.set("accumulate", "F32");
  const auto arithmetic = [&](const char* storage) {
    parts.set("storage", storage);
    return open(parts).info().declared.arithmetic();
  };
  EXPECT_EQ(arithmetic("F32").weights, 0);
  EXPECT_EQ(arithmetic("F32").input, 0);
  parts.set("products", "TF32");
  EXPECT_EQ(arithmetic("F32").weights, 0x1p-10);
  EXPECT_EQ(arithmetic("F32").weights_floor, 0x1p-126);
  EXPECT_EQ(arithmetic("F32").input, 0x1p-10 + 0x1p-24);
  EXPECT_EQ(arithmetic("F64").input, 0x1p-10 + 0x1p-24);
  EXPECT_EQ(arithmetic("F32").input_floor, 0x1p-126);
  EXPECT_EQ(arithmetic("BF16").input, 0x1p-10 + 0x1p-24) << "of a query that was scaled first";
  EXPECT_EQ(arithmetic("BF16").weights, 0x1p-10);
  parts.set("weights", "BF16");
  EXPECT_EQ(arithmetic("BF16").weights, 0x1p-8);
  parts.set("products", "F32");
  EXPECT_THROW(open(parts), TraceError);
}

TEST_F(DumpFileTest, DeclaresTheOrderOfItsSums) {
  EXPECT_EQ(open(small_dump()).info().declared.arithmetic().splits, 0);
  EXPECT_EQ(open(small_dump()).info().declared.arithmetic().tile, 0);
  SafetensorsParts parts = small_dump();
  parts.set("splits", "8");
  parts.set("tile", "128");
  EXPECT_EQ(open(parts).info().declared.arithmetic().splits, 8);
  EXPECT_EQ(open(parts).info().declared.arithmetic().tile, 128);
  parts.set("tile", "any");
  EXPECT_EQ(open(parts).info().declared.arithmetic().tile, reference::kAnyTile);
  for (const char* wrong : {"0", "-1", "all"}) {
    parts.set("tile", wrong);
    EXPECT_THROW(open(parts), TraceError) << wrong;
  }
  parts.set("tile", "16");
  parts.set("splits", "any");
  EXPECT_THROW(open(parts), TraceError);
}

}  // namespace
}  // namespace kvbound::sim::dump_file_test
