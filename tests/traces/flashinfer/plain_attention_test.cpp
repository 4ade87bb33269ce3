// Arguments that make a kernel compute something else.
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/flashinfer/plain_attention.hpp>

#include "support/message_of.hpp"
#include "support/recorded_calls.hpp"

namespace kvbound::traces::plain_attention_test {
namespace {

// What is said of a call with these arguments by name; "no error" if it is plain.
std::string told_of(const std::string& given, const std::string& signature = "(q=None, **kwargs)",
                    const std::vector<test::RecordedTensor>& tensors = {}) {
  const test::TemporaryFolder dumps;
  test::RecordedParts parts;
  parts.given = given;
  parts.inputs = tensors;
  parts.signature = signature;
  const RecordedCall call(test::write_call(dumps, parts));
  return test::message_of<TraceError>([&] { require_plain_attention(call); });
}

TEST(PlainAttention, IsWhatDefaultsSay) {
  EXPECT_EQ(told_of(""), "no error");
  EXPECT_EQ(
      told_of(
          "",
          "(pos_encoding_mode='NONE', window_left=-1, logits_soft_cap=None, use_fp16_qk_reduction=False)"),
      "no error");
  EXPECT_EQ(
      told_of(
          R"("kwarg_logits_soft_cap": 0.0, "kwarg_k_scale": 1, "kwarg_v_scale": 1.0, "kwarg_window_left": -2)"),
      "no error");
  EXPECT_EQ(
      told_of(
          R"("kwarg_backend": "fa2", "kwarg_q_data_type": {"type": "torch.dtype", "value": "torch.float16"})"),
      "no error");
}

TEST(PlainAttention, HasScalesOfOneAsTensorsToo) {
  const std::string signature = "(q=None, k_scale=None)";
  EXPECT_EQ(told_of("", signature, {test::reals("kwarg_k_scale", "[2]", {1, 1})}), "no error");
  EXPECT_EQ(told_of("", signature, {test::reals("kwarg_k_scale", "[]", {1})}), "no error");
  for (const float other : {0.5F, std::numeric_limits<float>::quiet_NaN()}) {
    const std::string told = told_of("", signature, {test::reals("kwarg_k_scale", "[2]", {1, other})});
    EXPECT_NE(told.find("tensor kwarg_k_scale: is a tensor; expected 1"), std::string::npos) << told;
  }
  EXPECT_NE(told_of("", signature, {test::integers("kwarg_k_scale", {1})}).find("expected 1"),
            std::string::npos);
}

TEST(PlainAttention, IsNotChangedByTheFormOfTheLogSumExp) {
  EXPECT_EQ(told_of(R"("kwarg_return_lse": true, "kwarg_lse_base": "log2", "kwarg_lse_layout": "HN")"),
            "no error");
  EXPECT_NE(told_of(R"("kwarg_use_fp16_softmax": true)").find("expected false"), std::string::npos);
}

TEST(PlainAttention, IsNoOtherValueOfASetting) {
  for (const auto& [given, problem] : std::vector<std::pair<std::string, std::string>>{
           {R"("kwarg_pos_encoding_mode": "ROPE_LLAMA")", "is \"ROPE_LLAMA\"; expected \"NONE\""},
           {R"("kwarg_window_left": 2.5)", "kwarg_window_left: is 2.5; expected an integer"},
           {R"("kwarg_window_left": NaN)", "kwarg_window_left: is NaN"},
           {R"("kwarg_window_left": Infinity)", "kwarg_window_left: is Infinity"},
           {R"("kwarg_window_left": "128")", "kwarg_window_left: is \"128\""},
           {R"("kwarg_window_left": true)", "kwarg_window_left: is true"},
           {R"("kwarg_window_left": {"type": "int64", "repr": "128"})", "kwarg_window_left: is "},
           {R"("kwarg_window_right": 1)", "kwarg_window_right: is 1"},
           {R"("kwarg_logits_soft_cap": 0.5)", "kwarg_logits_soft_cap: is 0.5"},
           {R"("kwarg_logits_soft_cap": "x")", "kwarg_logits_soft_cap: is \"x\""},
           {R"("kwarg_use_fp16_qk_reduction": true)", "kwarg_use_fp16_qk_reduction: is true"},
           {R"("kwarg_logits_soft_cap": Infinity)", "kwarg_logits_soft_cap: is Infinity"},
           {R"("kwarg_k_scale": NaN)", "kwarg_k_scale: is NaN; expected 1"},
           {R"("kwarg_k_scale": 0.5)", "kwarg_k_scale: is 0.5; expected 1"},
           {R"("kwarg_sinks": [1])", "kwarg_sinks: is an array"}}) {
    EXPECT_NE(told_of(given).find(problem), std::string::npos) << told_of(given);
  }
  EXPECT_NE(told_of("", "(logits_soft_cap=30.0)").find("function_signature.logits_soft_cap: is 30.0"),
            std::string::npos);
}

TEST(PlainAttention, KnowsEveryArgumentThatIsGiven) {
  EXPECT_NE(
      told_of(R"("kwarg_tree_mask": 3)").find("kwarg_tree_mask: is 3; expected none: an unknown argument"),
      std::string::npos);
  EXPECT_NE(told_of(R"("kwarg_fancy": false)").find("kwarg_fancy: is false"),
            std::string::npos);  // its default may be true
  EXPECT_EQ(told_of(R"("kwarg_tree_mask": null)"), "no error");
  EXPECT_NE(told_of(R"("arg_1": 3)").find("arg_1: is 3; expected none"), std::string::npos);
}

}  // namespace
}  // namespace kvbound::traces::plain_attention_test
