// Compresses the first layer of a small synthetic trace and prints the positions that each KV head keeps.
#include <iostream>
#include <vector>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/quiet_threads.hpp>
#include <kvbound/reference/session/session.hpp>
#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/trace.hpp>

int main(int, char** arguments) {
  kvbound::reference::quiet_threads(arguments);
  if (kvbound::reference::use_fastest_products().core.empty()) return 1;
  kvbound::traces::generate({.tokens = 64, .decode = 1, .layers = 1, .head_dim = 8, .model_dim = 16},
                            "small.safetensors");
  const kvbound::traces::Layer layer = kvbound::traces::Trace("small.safetensors").read_layer(0);
  const kvbound::Policy policy{.host = kvbound::SnapKv{.window = 4}, .selection = kvbound::Critical{}};
  const std::vector<int64_t> budgets(2, 10);
  const auto session = kvbound::reference::make_session();
  for (const std::vector<int64_t>& kept : session->compress(layer.prompt(), policy, budgets).kept) {
    for (const int64_t position : kept) std::cout << position << ' ';
    std::cout << '\n';
  }
  const kvbound::cuda::Buffer<double> on_device{std::span<const double>(layer.step(0).queries.row(0))};
  if (on_device.size() != layer.shape.head_dim) return 1;
  return session->step(layer.step(0)).output.rows() == layer.shape.query_heads ? 0 : 1;
}
