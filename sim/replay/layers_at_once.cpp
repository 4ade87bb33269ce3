#include "layers_at_once.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include <kvbound/reference/core/merge_rules.hpp>

#include "device.hpp"

namespace kvbound::sim {
namespace {

// The number behind a word in a file of the system, which may be empty; nullopt without one.
std::optional<int64_t> number_of(const char* path, const std::string& word) {
  std::ifstream file(path);
  std::string read;
  while (!word.empty() && file >> read && read != word) {
  }
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// Bytes that this process may still take, by the system and by its control group.
int64_t free_memory() {
  const int64_t free_kib = number_of("/proc/meminfo", "MemAvailable:").value_or(int64_t{1} << 20);
  const int64_t group_limit =
      number_of("/sys/fs/cgroup/memory.max", "").value_or(std::numeric_limits<int64_t>::max());
  return std::min(1024 * free_kib, group_limit);
}

}  // namespace

int64_t layers_that_fit(const traces::TraceInfo& trace, int64_t runs, int64_t steps,
                        const ReplayMemory& memory, int64_t page_size) {
  constexpr auto kDouble = static_cast<int64_t>(sizeof(double));
  const LayerShape& shape = trace.shape;
  const int64_t tokens = trace.prompt_tokens + trace.decode_tokens;
  const int64_t pages = page_size > 0 ? (tokens + page_size - 1) / page_size : 0;
  const int64_t capacity = page_size > 0 ? pages * page_size : tokens;  // of a cache
  const int64_t of_token = 2 * shape.kv_heads * shape.head_dim, entries = of_token * tokens;
  const int64_t others =
      shape.query_heads * shape.head_dim * (trace.window_queries + trace.decode_tokens + shape.model_dim);
  const int64_t record = shape.query_heads * (tokens + steps * shape.head_dim);  // scores, outputs
  const int64_t stored_bytes = trace.storage == Dtype::f16 || trace.storage == Dtype::bf16 ? 2 : 4;
  const int64_t on_device = stored_bytes * (entries + 2 * of_token * capacity + 2 * others);
  const int64_t read = kDouble * (entries + others);
  const int64_t on_host = read + kDouble * runs * record + (memory.device ? 0 : on_device);
  const int64_t on_both =
      std::min((memory.host - read) / on_host, memory.device.value_or(INT64_MAX) / on_device);
  return std::max<int64_t>(1, on_both);
}

int64_t layers_at_once(const traces::TraceInfo& trace, const std::vector<Run>& runs, int64_t steps,
                       int64_t page_size) {
  const bool gains = steps > 0 && std::ranges::any_of(runs, [](const Run& run) {
                       return run.backend != kReference && !rules_of(run.policy.policy.merge).period;
                     });
  if (!gains) return 1;
  ReplayMemory memory{.host = free_memory() / 4};
  if (std::ranges::count(runs, "cuda", &Run::backend) > 0) memory.device = find_device().memory / 4;
  return layers_that_fit(trace, std::ssize(runs), steps, memory, page_size);
}

}  // namespace kvbound::sim
