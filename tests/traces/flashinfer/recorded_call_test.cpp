// One recorded call: its arguments, and records that are refused.
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/flashinfer/recorded_call.hpp>

#include "support/message_of.hpp"
#include "support/recorded_calls.hpp"

namespace kvbound::traces::recorded_call_test {
namespace {

class RecordedCallTest : public testing::Test {
 protected:
  RecordedCall read(const test::RecordedParts& parts) const {
    return RecordedCall(test::write_call(dumps_, parts));
  }
  void expect_refused(const test::RecordedParts& parts, const std::string& problem) const {
    const std::string folder = test::write_call(dumps_, parts);
    const std::string told = test::message_of<TraceError>([&] { RecordedCall{folder}; });
    EXPECT_NE(told.find(problem), std::string::npos) << told;
  }

  test::TemporaryFolder dumps_;
};

TEST_F(RecordedCallTest, FindsArgumentsByPositionNameAndDefault) {
  test::RecordedParts parts;
  parts.signature = "(q, k, scale=0.5, layout='NHD', causal=False, *args, out=None, size=7)";
  parts.given = R"("arg_2": 0.25, "kwarg_causal": true, "arg_5": 3, "arg_6": 4)";
  parts.inputs = {test::integers("arg_0", {1}), test::integers("kwarg_k", {2})};
  const RecordedCall call = read(parts);
  EXPECT_EQ(call.argument("q").tensors, std::vector<std::string>{"arg_0"});
  EXPECT_EQ(call.argument("k").tensors, std::vector<std::string>{"kwarg_k"});
  EXPECT_EQ(call.argument("scale").number(), 0.25);
  EXPECT_EQ(*call.argument("layout").value.text(), "NHD");
  EXPECT_EQ(call.argument("causal").truth(), true);
  EXPECT_TRUE(call.argument("out").is_none()) << "arg_5 is of *args";
  EXPECT_EQ(call.argument("size").number(), 7);
  EXPECT_TRUE(call.argument("other").is_none());
  EXPECT_EQ(call.argument("arg_6").number(), 4);
  EXPECT_EQ(call.given(), (std::vector<std::string>{"q", "k", "scale", "arg_5", "arg_6", "causal"}));
}

TEST_F(RecordedCallTest, FindsTheTensorsOfATuple) {
  test::RecordedParts parts;
  parts.signature = "(q, cache, old)";
  parts.given =
      R"("arg_1": {"type": "tuple", "items": [{"tensor_key": "arg_1__0"}, {"tensor_key": "arg_1__1"}]}, )"
      R"("arg_2": {"type": "tuple", "value": "tensors"})";
  parts.inputs = {test::integers("arg_0", {1}), test::integers("arg_1__0", {1}),
                  test::integers("arg_1__1", {2})};
  const RecordedCall call = read(parts);
  EXPECT_EQ(call.argument("cache").tensors, (std::vector<std::string>{"arg_1__0", "arg_1__1"}));
  EXPECT_TRUE(call.argument("old").tensors.empty());
  EXPECT_FALSE(call.argument("old").is_none());
  EXPECT_EQ(call.given(), (std::vector<std::string>{"q", "cache", "old"}));
}

TEST_F(RecordedCallTest, ThatDidNotFinishHasNoOutputs) {
  test::RecordedParts parts;
  parts.inputs = {test::integers("arg_0", {1})};
  parts.outputs = {test::integers("result", {1})};
  EXPECT_EQ(read(parts).status(), "completed") << "the last record counts";
  EXPECT_EQ(read(parts).outputs()->tensors().front().name, "result");
  parts.status = "inputs_saved";
  const RecordedCall call = read(parts);
  EXPECT_NE(test::message_of<TraceError>([&] { call.outputs(); }).find("did not finish"), std::string::npos);
  EXPECT_EQ(call.inputs()->tensors().front().name, "arg_0");
}

TEST_F(RecordedCallTest, IsOfItsOwnFolder) {
  test::RecordedParts parts;
  parts.dump_dir = "/elsewhere/20260108_pid1_other_call0001";
  expect_refused(parts, "dump_dir: is \"/elsewhere/20260108_pid1_other_call0001\"; expected this folder");
}

TEST_F(RecordedCallTest, ThatCannotBeReadIsRefusedWhenItIsUsed) {
  test::RecordedParts parts;
  parts.format = "torch";
  parts.signature = "kernel";
  const RecordedCall call = read(parts);
  EXPECT_NE(test::message_of<TraceError>([&] {
              call.inputs();
            }).find("is \"torch\"; run FlashInfer with FLASHINFER_DUMP_SAFETENSORS=1"),
            std::string::npos);
  for (const std::string& told : {test::message_of<TraceError>([&] { call.argument("q"); }),
                                  test::message_of<TraceError>([&] { call.given(); })}) {
    EXPECT_NE(told.find("function_signature: is \"kernel\"; expected a Python signature"), std::string::npos)
        << told;
  }
}

TEST_F(RecordedCallTest, AnArgumentWithoutDefaultMustBeGiven) {
  const RecordedCall call = read({});
  EXPECT_NE(test::message_of<TraceError>([&] { call.argument("q"); }).find("has no argument \"q\""),
            std::string::npos);
}

TEST_F(RecordedCallTest, ObjectsAreToldApartByProcessClassAndIdentity) {
  test::RecordedParts parts;
  parts.function = "A.run";
  const RecordedCall run = read(parts);
  parts.function = "A.plan";
  EXPECT_TRUE(run.same_object(read(parts)));
  parts.more = R"("self_id": 8)";
  EXPECT_FALSE(run.same_object(read(parts)));
  parts = {};
  parts.function = "B.plan";
  EXPECT_FALSE(run.same_object(read(parts)));
  parts.more = R"("graph_capture": false)";
  const RecordedCall none = read(parts);
  EXPECT_FALSE(none.same_object(none)) << "functions are of no object";
}

TEST_F(RecordedCallTest, NamesThePositionsThatAPlansSignatureDoesNot) {
  test::RecordedParts parts;
  parts.function = "BatchDecodeWithPagedKVCacheWrapper.plan";
  parts.signature = "(self, page_size: int, *deprecated_positional_args: Any, **kwargs: Any) -> None";
  parts.given =
      R"("arg_0": {"type": "Wrapper"}, "arg_1": 4, "arg_2": "NONE", "arg_3": 127, "arg_18": 7, "kwarg_sm_scale": 0.5)";
  const RecordedCall call = read(parts);
  EXPECT_EQ(call.argument("window_left").number(), 127);
  EXPECT_EQ(call.argument("sm_scale").number(), 0.5);
  EXPECT_TRUE(call.argument("seq_lens").is_none());
  EXPECT_EQ(call.given(), (std::vector<std::string>{"self", "page_size", "arg_18", "pos_encoding_mode",
                                                    "window_left", "sm_scale"}));
}

}  // namespace
}  // namespace kvbound::traces::recorded_call_test
