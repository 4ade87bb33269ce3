// What a recorded call computed, on caches whose numbers say where they are from.
#include <limits>

#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/flashinfer/attention_call.hpp>

#include "support/message_of.hpp"
#include "support/recorded_calls.hpp"

namespace kvbound::traces::attention_call_test {
namespace {

std::vector<double> numbers(const Tensor& tensor) {
  return {tensor.numbers().begin(), tensor.numbers().end()};
}

class AttentionCallTest : public testing::Test {
 protected:
  void expect_refused(const test::RecordedDecode& decode, const std::string& problem,
                      int64_t request = 0) const {
    const test::TemporaryFolder dumps;
    decode.write(dumps);
    const RecordedSession session(dumps.path());
    const std::string told =
        test::message_of<TraceError>([&] { AttentionCall(session, 2, {}).request(request); });
    EXPECT_NE(told.find(problem), std::string::npos) << told;
  }
};

TEST_F(AttentionCallTest, ReadsTheTokensOfARequestsPagesAndNoOthers) {
  const test::TemporaryFolder dumps;
  test::RecordedDecode().write(dumps);
  const RecordedSession session(dumps.path());
  const AttentionCall call(session, 2, {});
  EXPECT_EQ(call.requests(), 2);
  EXPECT_EQ(call.query_heads(), 2);
  EXPECT_EQ(call.kv_heads(), 1);
  EXPECT_FALSE(call.scale());
  const AttentionRequest first = call.request(0), second = call.request(1);
  EXPECT_EQ(first.tokens, 3);
  EXPECT_EQ(second.tokens, 2);
  EXPECT_EQ(numbers(call.keys(first)), (std::vector<double>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(numbers(call.values(first)), (std::vector<double>{100, 100, 101, 101, 102, 102}));
  EXPECT_EQ(numbers(call.keys(second)), (std::vector<double>{10, 10, 11, 11}));
  EXPECT_EQ(numbers(call.queries(second)), (std::vector<double>{1, 1, 1, 1}));
  EXPECT_EQ(call.outputs(second)(0, 3), 1);
}

TEST_F(AttentionCallTest, OfThePrefillWrapperGivesEachHeadItsRows) {
  test::RecordedParts parts;
  parts.function = "single_prefill_with_kv_cache";
  parts.signature = "(q, k, v, causal=False, kv_layout='NHD')";
  parts.inputs = {test::reals("arg_0", "[2,2,1]", {1, 2, 3, 4}),
                  test::reals("arg_1", "[3,2,1]", {1, 2, 3, 4, 5, 6}),
                  test::reals("arg_2", "[3,2,1]", {7, 8, 9, 10, 11, 12})};
  parts.outputs = {test::reals("result", "[2,2,1]", {1, 2, 3, 4})};
  parts.given = R"("kwarg_causal": true)";
  const test::TemporaryFolder dumps;
  test::write_call(dumps, parts);
  const RecordedSession session(dumps.path());
  const AttentionCall call(session, 1, {});
  const AttentionRequest request = call.request(0);
  EXPECT_EQ(numbers(call.queries(request)), (std::vector<double>{1, 3, 2, 4}));
  EXPECT_EQ(numbers(call.keys(request)), (std::vector<double>{1, 3, 5, 2, 4, 6}));
  EXPECT_EQ(numbers(call.values(request)), (std::vector<double>{7, 9, 11, 8, 10, 12}));
}

TEST_F(AttentionCallTest, ReadsTheKeysOfALaterRequest) {
  test::RecordedParts plan, run;
  plan.function = "BatchPrefillWithRaggedKVCacheWrapper.plan";
  plan.signature = "(self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, causal=False)";
  plan.given = R"("arg_3": 2, "arg_4": 2, "arg_5": 1)";
  plan.inputs = {test::integers("arg_1", {0, 1, 2}), test::integers("arg_2", {0, 1, 3})};
  run.function = "BatchPrefillWithRaggedKVCacheWrapper.run";
  run.signature = "(self, q, k, v)";
  run.timestamp = "20260108_000000_002";
  run.inputs = {test::reals("arg_1", "[2,2,1]", {1, 2, 3, 4}),
                test::reals("arg_2", "[3,2,1]", {1, 2, 3, 4, 5, 6}),
                test::reals("arg_3", "[3,2,1]", {7, 8, 9, 10, 11, 12})};
  run.outputs = {test::reals("result", "[2,2,1]", {1, 2, 3, 4})};
  const test::TemporaryFolder dumps;
  test::write_call(dumps, plan);
  test::write_call(dumps, run);
  const RecordedSession session(dumps.path());
  const AttentionCall call(session, 2, {});
  const AttentionRequest request = call.request(1);
  EXPECT_EQ(request.tokens, 2);
  EXPECT_EQ(numbers(call.keys(request)), (std::vector<double>{3, 5, 4, 6}));
  EXPECT_EQ(numbers(call.values(request)), (std::vector<double>{9, 11, 10, 12}));
  EXPECT_EQ(numbers(call.queries(request)), (std::vector<double>{3, 4}));
}

TEST_F(AttentionCallTest, ReadsLongCachesInPieces) {
  constexpr int64_t kTokens = 1000;
  test::RecordedParts parts;
  parts.function = "single_decode_with_kv_cache";
  parts.signature = "(q, k, v, kv_layout='HND')";
  std::vector<float> keys;
  for (int64_t i = 0; i < 2 * kTokens; ++i) keys.push_back(static_cast<float>(i));
  const std::string shape = fmt::format("[2,{},1]", kTokens);
  parts.inputs = {test::reals("arg_0", "[2,1]", {1, 2}), test::reals("arg_1", shape, keys),
                  test::reals("arg_2", shape, keys)};
  parts.outputs = {test::reals("result_0", "[2,1]", {1, 2}), test::reals("result_1", "[2]", {0, 0})};
  const test::TemporaryFolder dumps;
  test::write_call(dumps, parts);
  const RecordedSession session(dumps.path());
  const AttentionCall call(session, 1, {});
  EXPECT_EQ(numbers(call.keys(call.request(0))), (std::vector<double>(keys.begin(), keys.end())));
}

TEST_F(AttentionCallTest, RefusesPageTablesOutOfRange) {
  test::RecordedDecode decode;
  decode.plan.inputs[0] = test::integers("arg_1", {0, 2, 1});
  expect_refused(decode, "element 2 is 1 after 2");
  decode.plan.inputs[0] = test::integers("arg_1", {0, 2, 4});
  expect_refused(decode, "has 3 pages; expected 4");
  decode = {};
  decode.plan.inputs[1] = test::integers("arg_2", {3, 4, 2});
  expect_refused(decode, "has the page 4; the cache has pages 0 to 3");
  decode = {};
  decode.plan.inputs[2] = test::integers("arg_3", {1, 3});
  expect_refused(decode, "request 1: has 3 tokens in its last page; expected 1 to 2", 1);
  decode = {};
  decode.plan.inputs[0] = test::integers("arg_1", {0, 3, 3});
  expect_refused(decode, "request 1: has no pages", 1);
}

TEST_F(AttentionCallTest, RefusesQueriesThatOutnumberTheTokensOrSeeTheFuture) {
  test::RecordedParts parts;
  parts.function = "single_prefill_with_kv_cache";
  parts.signature = "(q, k, v, causal=False, kv_layout='NHD')";
  parts.inputs = {test::reals("arg_0", "[2,1,1]", {1, 2}), test::reals("arg_1", "[1,1,1]", {1}),
                  test::reals("arg_2", "[1,1,1]", {1})};
  parts.outputs = {test::reals("result", "[2,1,1]", {1, 2})};
  const auto told = [&] {
    const test::TemporaryFolder dumps;
    test::write_call(dumps, parts);
    const RecordedSession session(dumps.path());
    return test::message_of<TraceError>([&] { AttentionCall(session, 1, {}).request(0); });
  };
  EXPECT_NE(told().find("has 2 queries and 1 tokens"), std::string::npos) << told();
  parts.inputs[1] = test::reals("arg_1", "[2,1,1]", {1, 2});
  parts.inputs[2] = test::reals("arg_2", "[2,1,1]", {1, 2});
  EXPECT_NE(told().find("2 queries without a causal mask"), std::string::npos) << told();
}

TEST_F(AttentionCallTest, RefusesNumbersThatAreNotFiniteUnlessAKernelWroteThem) {
  test::RecordedDecode decode;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  decode.run.inputs[0] = test::reals("arg_1", "[2,2,2]", {0, 0, nan, 0, 1, 1, 1, 1});
  decode.run.outputs[0] = test::reals("result", "[2,2,2]", {0, 0, 0, 0, 1, nan, 1, 1});
  const test::TemporaryFolder dumps;
  decode.write(dumps);
  const RecordedSession session(dumps.path());
  const AttentionCall call(session, 2, {});
  EXPECT_NE(test::message_of<TraceError>([&] { call.queries(call.request(0)); }).find("element 2 is NaN"),
            std::string::npos);
  EXPECT_NE(test::message_of<TraceError>([&] { call.outputs(call.request(1)); }).find("element 5 is NaN"),
            std::string::npos);
  EXPECT_TRUE(std::isnan(call.outputs(call.request(1), NonFiniteNumbers::allowed)(0, 1)));
}

TEST_F(AttentionCallTest, ReadsPagesOfOneTokenWithoutADimensionForIt) {
  for (const bool both : {true, false}) {
    test::RecordedDecode decode;
    decode.plan.given = R"("arg_0": {"type": "Wrapper"}, "arg_4": 2, "arg_5": 2, "arg_6": 1, "arg_7": 1)";
    decode.plan.inputs = {test::integers("arg_1", {0, 2, 3}), test::integers("arg_2", {2, 0, 1}),
                          test::integers("arg_3", {1, 1})};
    decode.run.inputs = {test::reals("arg_1", "[2,2,1]", {1, 2, 3, 4})};
    decode.run.outputs = {test::reals("result", "[2,2,1]", {1, 2, 3, 4})};
    if (both) {  // of each page two keys, then two values
      decode.run.inputs.push_back(
          test::reals("arg_2", "[3,2,2,1]", {10, 11, 110, 111, 20, 21, 120, 121, 30, 31, 130, 131}));
    } else {
      decode.run.given +=
          R"(, "arg_2": {"type": "tuple", "items": [{"tensor_key": "arg_2__0"}, {"tensor_key": "arg_2__1"}]})";
      decode.run.inputs.push_back(test::reals("arg_2__0", "[3,2,1]", {10, 11, 20, 21, 30, 31}));
      decode.run.inputs.push_back(test::reals("arg_2__1", "[3,2,1]", {110, 111, 120, 121, 130, 131}));
    }
    const test::TemporaryFolder dumps;
    decode.write(dumps);
    const RecordedSession session(dumps.path());
    const AttentionCall call(session, 2, {});
    EXPECT_EQ(numbers(call.keys(call.request(0))), (std::vector<double>{30, 10, 31, 11}));
    EXPECT_EQ(numbers(call.values(call.request(1))), (std::vector<double>{120, 121}));
  }
}

TEST_F(AttentionCallTest, TakesADecodeForCausalUnlessItSaysOtherwise) {
  for (const auto& [is_causal, each, refused] : std::vector<std::tuple<std::string, int, bool>>{
           {"true", 2, false}, {"null", 2, false}, {"false", 1, false}, {"false", 2, true}}) {
    test::RecordedDecode decode;
    decode.plan.signature =
        "(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, **kwargs)";
    decode.plan.given +=
        fmt::format(R"(, "kwarg_is_causal": {}, "kwarg_q_len_per_req": {})", is_causal, each);
    const std::string shape = fmt::format("[{},2,2]", 2 * each);
    const std::vector<float> zeros(static_cast<size_t>(8 * each));
    decode.run.inputs[0] = test::reals("arg_1", shape, zeros);
    decode.run.outputs[0] = test::reals("result", shape, zeros);
    if (refused) {
      expect_refused(decode, "has 2 queries without a causal mask");
    } else {
      const test::TemporaryFolder dumps;
      decode.write(dumps);
      const RecordedSession session(dumps.path());
      EXPECT_EQ(AttentionCall(session, 2, {}).request(0).queries, each);
    }
  }
}

TEST_F(AttentionCallTest, RefusesAWindowThatHidesTokens) {
  for (const auto& [given, hides] : std::vector<std::pair<std::string, bool>>{{"0", true},
                                                                              {"1", true},
                                                                              {"2", false},
                                                                              {"4095", false},
                                                                              {"-1", false},
                                                                              {"-5", false},
                                                                              {"null", false}}) {
    test::RecordedDecode of_plan, of_run;  // of 3 tokens
    of_plan.plan.given += ", \"kwarg_window_left\": " + given;
    of_run.run.given += ", \"kwarg_window_left\": " + given;
    for (const test::RecordedDecode& decode : {of_plan, of_run}) {
      const test::TemporaryFolder dumps;
      decode.write(dumps);
      const RecordedSession session(dumps.path());
      const std::string told =
          test::message_of<TraceError>([&] { AttentionCall(session, 2, {}).request(0); });
      EXPECT_EQ(told.find("request 0: has 3 tokens, of which a sliding window of") != std::string::npos,
                hides)
          << told;
    }
  }
}

}  // namespace
}  // namespace kvbound::traces::attention_call_test
