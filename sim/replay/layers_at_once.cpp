#include "layers_at_once.hpp"

#include <unistd.h>
#include <algorithm>

#include "device.hpp"

namespace kvbound::sim {

int64_t layers_that_fit(const traces::TraceInfo& trace, const ReplayMemory& memory) {
  const LayerShape& shape = trace.shape;
  const int64_t tokens = trace.prompt_tokens + trace.decode_tokens;
  const int64_t entries = 2 * shape.kv_heads * tokens * shape.head_dim;
  const int64_t others =
      shape.query_heads * shape.head_dim * (trace.window_queries + trace.decode_tokens + shape.model_dim);
  const auto double_bytes = static_cast<int64_t>(sizeof(double));
  const int64_t stored_bytes = trace.storage == Dtype::f16 || trace.storage == Dtype::bf16 ? 2 : 4;
  const int64_t on_host = memory.host / (double_bytes * (entries + others)) - 1;
  const int64_t on_device = memory.device / (stored_bytes * (3 * entries + 2 * others));
  return std::max<int64_t>(1, std::min(on_host, on_device));
}

int64_t layers_at_once(const traces::TraceInfo& trace, const std::vector<Run>& runs) {
  const auto on = [&](std::string_view backend) { return std::ranges::count(runs, backend, &Run::backend); };
  if (on(kReference) == std::ssize(runs)) return 1;
  const int64_t host = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const int64_t device = on("cuda") > 0 ? find_device().memory : host;
  return layers_that_fit(trace, {host / 4, device / 2});
}

}  // namespace kvbound::sim
