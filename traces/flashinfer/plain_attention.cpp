#include "plain_attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string_view>
#include <vector>

namespace kvbound::traces {
namespace {

bool is_absent(const Argument& argument) { return argument.is_none(); }
bool is_off(const Argument& argument) { return argument.is_none() || argument.truth() == false; }
bool is_window(const Argument& argument) { return argument.is_none() || window_of(argument).has_value(); }
bool is_zero(const Argument& argument) { return argument.is_none() || argument.number() == 0.0; }
bool is_one(const Argument& argument) { return argument.is_none() || argument.number() == 1.0; }
// A scale may also be a tensor, which has to be read.
bool is_tensor_of_ones(const RecordedCall& call, const Argument& argument) {
  if (argument.tensors.size() != 1) return false;
  const std::unique_ptr<SafetensorsFile> inputs = call.inputs();
  const TensorEntry* entry = inputs->find(argument.tensors.front());
  constexpr int64_t kMostScales = int64_t{1} << 20;
  if (!entry || !is_real(entry->dtype) || entry->elements < 1 || entry->elements > kMostScales) return false;
  std::vector<double> numbers(static_cast<size_t>(entry->elements));
  inputs->read(*entry, 0, numbers, NonFiniteNumbers::allowed);
  return std::ranges::all_of(numbers, [](double number) { return number == 1; });
}
bool is_no_cap(const Argument& argument) {
  const auto cap = argument.number();
  return argument.is_none() || (cap && *cap <= 0);
}
bool is_no_encoding(const Argument& argument) {
  return argument.is_none() || (argument.value.text() && *argument.value.text() == "NONE");
}

// An argument that changes what is computed unless it has a certain value.
struct Setting {
  std::string_view parameter;
  bool (*is_plain)(const Argument&);
  std::string_view expected;
};
constexpr std::array kSettings{
    Setting{"pos_encoding_mode", is_no_encoding, "\"NONE\": keys and queries after RoPE, and no ALiBi"},
    Setting{"logits_soft_cap", is_no_cap, "none: a trace has no capped logits"},
    Setting{"window_left", is_window, "an integer: -1 or a number of tokens"},
    Setting{"window_right", is_zero, "0: a query sees no later token"},
    Setting{"custom_mask", is_absent, "none: a trace's mask is causal"},
    Setting{"packed_custom_mask", is_absent, "none: a trace's mask is causal"},
    Setting{"prefix_len_ptr", is_absent, "none: a trace has one item"},
    Setting{"token_pos_in_items_ptr", is_absent, "none: a trace has one item"},
    Setting{"token_pos_in_items_len", is_zero, "0: a trace has one item"},
    Setting{"max_item_len_ptr", is_absent, "none: a trace has one item"},
    Setting{"sinks", is_absent, "none: a trace has no learnt sink logits"},
    Setting{"kv_cache_sf", is_absent, "none: a trace's cache is F32, F16 or BF16"},
    Setting{"skip_softmax_threshold_scale_factor", is_absent, "none: a trace's attention skips nothing"},
    Setting{"use_fp16_qk_reduction", is_off, "false: bounds are derived for logits summed in F32"},
    Setting{"use_fp16_softmax", is_off, "false: bounds are derived for weights summed in F32"},
    Setting{"uses_spcompress", is_off, "false: a trace's attention skips nothing"},
    Setting{"precompile_skip_softmax_kernel", is_off, "false: a trace's attention skips nothing"},
    Setting{"q_scale", is_one, "1: a trace has no scales"},
    Setting{"k_scale", is_one, "1: a trace has no scales"},
    Setting{"v_scale", is_one, "1: a trace has no scales"},
    Setting{"o_scale", is_one, "1: a trace has no scales"},
    Setting{"scale_q", is_one, "1: a trace has no scales"},
    Setting{"scale_k", is_one, "1: a trace has no scales"},
    Setting{"scale_v", is_one, "1: a trace has no scales"},
    Setting{"jit_args", is_absent, "none: what a variant compiled by the user computes is not recorded"},
};

// Arguments that AttentionCall reads, and arguments that do not change what is computed.
constexpr auto kOthers = std::to_array<std::string_view>({"self",
                                                          "q",
                                                          "k",
                                                          "v",
                                                          "paged_kv_cache",
                                                          "indptr",
                                                          "indices",
                                                          "last_page_len",
                                                          "qo_indptr",
                                                          "kv_indptr",
                                                          "paged_kv_indptr",
                                                          "paged_kv_indices",
                                                          "paged_kv_last_page_len",
                                                          "num_qo_heads",
                                                          "num_kv_heads",
                                                          "head_dim",
                                                          "head_dim_qk",
                                                          "head_dim_vo",
                                                          "page_size",
                                                          "block_tables",
                                                          "causal",
                                                          "is_causal",
                                                          "sm_scale",
                                                          "kv_layout",
                                                          "q_len_per_req",
                                                          "seq_lens",
                                                          "seq_lens_q",
                                                          "uniform_q_len",
                                                          "q_data_type",
                                                          "kv_data_type",
                                                          "o_data_type",
                                                          "data_type",
                                                          "o_dtype",
                                                          "rope_scale",
                                                          "rope_theta",
                                                          "use_tensor_cores",
                                                          "backend",
                                                          "out",
                                                          "lse",
                                                          "return_lse",
                                                          "lse_base",
                                                          "lse_layout",
                                                          "enable_pdl",
                                                          "non_blocking",
                                                          "fixed_split_size",
                                                          "disable_split_kv",
                                                          "max_token_per_sequence",
                                                          "max_sequence_kv"});

bool is_known(const std::string& parameter) {
  return std::ranges::find(kSettings, parameter, &Setting::parameter) != kSettings.end() ||
         std::ranges::find(kOthers, parameter) != kOthers.end();
}

}  // namespace

std::optional<int64_t> window_of(const Argument& argument) {
  const auto window = argument.number();  // not compared as it is: no number is less than any
  if (!window || std::floor(*window) != *window || *window >= 0x1p62) return std::nullopt;
  return *window < 0 ? INT64_MAX : static_cast<int64_t>(*window);
}

void require_plain_attention(const RecordedCall& call) {
  for (const Setting& setting : kSettings) {
    const Argument argument = call.argument(std::string(setting.parameter));
    if (setting.is_plain(argument) || (setting.is_plain == is_one && is_tensor_of_ones(call, argument)))
      continue;
    call.refuse(argument, "is " + description(argument) + "; expected " + std::string(setting.expected));
  }
  for (const std::string& parameter : call.given()) {
    if (is_known(parameter)) continue;
    const Argument argument = call.argument(parameter);
    if (argument.is_none()) continue;
    call.refuse(argument, "is " + description(argument) + "; expected none: an unknown argument");
  }
}

}  // namespace kvbound::traces
