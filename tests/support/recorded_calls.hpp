// Calls of FlashInfer as its level-10 logging writes them, for tests.
#pragma once

#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "support/safetensors_bytes.hpp"

namespace kvbound::test {

struct RecordedTensor {
  std::string name, dtype, shape, bytes;
};

inline RecordedTensor integers(const std::string& name, const std::vector<int32_t>& numbers) {
  std::string bytes;
  for (const int32_t number : numbers) bytes += bytes_of(number);
  return {name, "I32", fmt::format("[{}]", numbers.size()), bytes};
}
inline RecordedTensor reals(const std::string& name, const std::string& shape,
                            const std::vector<float>& numbers) {
  std::string bytes;
  for (const float number : numbers) bytes += bytes_of(number);
  return {name, "F32", shape, bytes};
}

/// One call. given: the arguments that are no tensors, as JSON members; more: further members of the record,
/// which may replace none of those written here.
struct RecordedParts {
  std::string function = "kernel", signature = "(q, k=None)", given, more = R"("self_id": 9)";
  std::vector<RecordedTensor> inputs, outputs;
  std::string timestamp = "20260108_000000_001", status = "completed", format = "safetensors", dump_dir;
};

inline std::string bytes_of_tensors(const std::vector<RecordedTensor>& tensors) {
  SafetensorsParts parts;
  for (const RecordedTensor& tensor : tensors) {
    parts.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes, ""});
  }
  return parts.bytes();
}

/// Writes a call into a folder of its own in `dumps`, and returns the folder's path.
inline std::string write_call(const TemporaryFolder& dumps, const RecordedParts& call) {
  const std::string name = fmt::format("{}_pid1_{}_call0001", call.timestamp, call.function);
  std::filesystem::create_directory(dumps.path(name));
  std::string keys;
  for (const RecordedTensor& tensor : call.inputs) {
    keys += fmt::format("{}\"{}\"", keys.empty() ? "" : ", ", tensor.name);
  }
  const auto record = [&](const std::string& status) {
    return fmt::format(
        "{{\"function_name\": \"{}\", \"timestamp\": \"{}\", \"process_id\": 1, \"input_metadata\": {{{}}}, "
        "\"tensor_info\": {{\"input_tensor_keys\": [{}]}}, \"tensor_format\": \"{}\", \"function_signature\": \"{}\", "
        "\"versions\": {{\"flashinfer\": \"0.6.4\"}}, \"execution_status\": \"{}\", \"dump_dir\": \"{}\", {}}}\n",
        call.function, call.timestamp, call.given, keys, call.format, call.signature, status,
        call.dump_dir.empty() ? "./dumps/" + name : call.dump_dir, call.more);
  };
  dumps.write(name + "/metadata.jsonl",
              record("inputs_saved") + (call.status == "completed" ? record("completed") : ""));
  if (!call.inputs.empty()) dumps.write(name + "/inputs.safetensors", bytes_of_tensors(call.inputs));
  if (!call.outputs.empty()) dumps.write(name + "/outputs.safetensors", bytes_of_tensors(call.outputs));
  return dumps.path(name);
}

/// plan and run of a batch decode wrapper: two requests of 3 and 2 tokens, in pages of 2 tokens, 2 query
/// heads on 1 KV head, head_dim 2. Keys of request r's token t are 10 r + t, values 100 more, queries and
/// outputs r; what the pages hold besides is NaN.
struct RecordedDecode {
  RecordedParts plan, run;

  RecordedDecode() {
    plan.function = "BatchDecodeWithPagedKVCacheWrapper.plan";
    plan.signature =
        "(self, indptr, indices, last_page_len, num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int, "
        "window_left: int = -1, sm_scale: Optional[float] = None) -> None";
    plan.given = R"("arg_0": {"type": "Wrapper"}, "arg_4": 2, "arg_5": 1, "arg_6": 2, "arg_7": 2)";
    plan.inputs = {integers("arg_1", {0, 2, 3}), integers("arg_2", {3, 0, 2}), integers("arg_3", {1, 2})};
    run.function = "BatchDecodeWithPagedKVCacheWrapper.run";
    run.signature = "(self, q, paged_kv_cache, *args, k_scale: Optional[float] = None) -> torch.Tensor";
    run.given = R"("arg_0": {"type": "Wrapper"})";
    run.timestamp = "20260108_000000_002";
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> cache(32, kNan);
    const auto put = [&](int page, int slot, float number) {
      for (const int c : {0, 1}) {
        cache[page * 8 + slot * 2 + c] = number;
        cache[page * 8 + 4 + slot * 2 + c] = number + 100;
      }
    };
    put(3, 0, 0);
    put(3, 1, 1);
    put(0, 0, 2);
    put(2, 0, 10);
    put(2, 1, 11);
    run.inputs = {reals("arg_1", "[2,2,2]", {0, 0, 0, 0, 1, 1, 1, 1}), reals("arg_2", "[4,2,2,1,2]", cache)};
    run.outputs = {reals("result", "[2,2,2]", {0, 0, 0, 0, 1, 1, 1, 1})};
  }

  void write(const TemporaryFolder& dumps) const {
    write_call(dumps, plan);
    write_call(dumps, run);
  }
};

}  // namespace kvbound::test
