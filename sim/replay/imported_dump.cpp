#include "imported_dump.hpp"

#include <array>

#include <fmt/format.h>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/flashinfer/attention_call.hpp>

namespace kvbound::sim {
namespace {

traces::SafetensorsWriter::Strings dump_metadata(const traces::AttentionCall& call,
                                                 const std::string& sha256) {
  traces::SafetensorsWriter::Strings metadata{
      {"format", "kvbound-dump"},
      {"version", "1"},
      {"policy", "snapkv:window=1:pool=1"},
      {"budget", "100%"},
      {"backend", fmt::format("FlashInfer {}, {}", call.call().version(), call.call().function())},
      {"storage", std::string(name(call.key_dtype()))},
      {"accumulate", "F32"},
      {"trace_sha256", sha256}};
  if (call.query_dtype() != Dtype::f32)
    metadata.emplace_back("weights", std::string(name(call.query_dtype())));
  if (call.output_dtype() != Dtype::f32)
    metadata.emplace_back("partials", std::string(name(call.output_dtype())));
  return metadata;
}

}  // namespace

void require_one_arithmetic(const std::vector<traces::ImportedLayer>& layers) {
  const auto types = [](const traces::ImportedLayer& layer) {
    return std::array{layer.call->key_dtype(), layer.call->query_dtype(), layer.call->output_dtype()};
  };
  for (const traces::ImportedLayer& layer : layers) {
    if (types(layer) == types(layers.front())) continue;
    throw UsageError(fmt::format("--dump: call {} has other types of keys, queries or outputs than {}",
                                 layer.call->call().name(), layers.front().call->call().name()));
  }
}

std::unique_ptr<traces::SafetensorsWriter> imported_dump(const std::vector<traces::ImportedLayer>& layers,
                                                         int64_t steps, const traces::Trace& trace,
                                                         const std::string& path,
                                                         const traces::Trace::Progress& progress) {
  const std::string sha256 = trace.sha256(progress);
  std::vector<traces::TensorDeclaration> tensors;
  std::vector<Matrix> outputs;
  for (const traces::ImportedLayer& layer : layers) {
    const traces::AttentionCall& call = *layer.call;
    const std::string prefix = fmt::format("layers.{}.", outputs.size());
    outputs.push_back(call.outputs(call.request(layer.request), traces::NonFiniteNumbers::allowed));
    const auto declare = [&](const char* tensor, int64_t rows) {
      tensors.push_back({prefix + tensor, call.output_dtype(), {rows, call.query_heads(), call.head_dim()}});
    };
    declare("prompt_output", outputs.back().rows() - steps);
    if (steps > 0) declare("output", steps);
  }
  auto file =
      std::make_unique<traces::SafetensorsWriter>(path, dump_metadata(*layers.front().call, sha256), tensors);
  auto tensor = tensors.begin();
  for (const Matrix& rows : outputs) {
    const auto of_prompt = static_cast<size_t>((rows.rows() - steps) * rows.cols());
    file->append(tensor++->name, rows.numbers().first(of_prompt), traces::NonFiniteNumbers::allowed);
    if (steps == 0) continue;
    file->append(tensor++->name, rows.numbers().subspan(of_prompt), traces::NonFiniteNumbers::allowed);
  }
  file->prepare();
  return file;
}

}  // namespace kvbound::sim
