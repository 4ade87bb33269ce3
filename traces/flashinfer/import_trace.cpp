#include "import_trace.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/safetensors_writer.hpp>

#include "../messages.hpp"

namespace kvbound::traces {
namespace {

std::string shortest(double number) {
  std::array<char, 64> buffer{};
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr};
}

std::string tensor_of(size_t layer, const char* name) {
  return "layers." + std::to_string(layer) + "." + name;
}

// What all layers of a trace share.
struct Sizes {
  int64_t query_heads, kv_heads, head_dim, queries, tokens;
  double scale;
  friend bool operator==(const Sizes&, const Sizes&) = default;
};

Sizes sizes_of(const AttentionCall& call, const AttentionRequest& request) {
  const double scale = call.scale().value_or(1 / std::sqrt(static_cast<double>(call.head_dim())));
  return {call.query_heads(), call.kv_heads(), call.head_dim(), request.queries, request.tokens, scale};
}

std::string text_of(const Sizes& sizes) {
  return std::to_string(sizes.query_heads) + " query heads, " + std::to_string(sizes.kv_heads) +
         " KV heads, head_dim " + std::to_string(sizes.head_dim) + ", " + std::to_string(sizes.queries) +
         " queries, " + std::to_string(sizes.tokens) + " tokens, scale " + shortest(sizes.scale);
}

std::string source_of(const std::vector<ImportedLayer>& layers) {
  std::string source;
  for (const ImportedLayer& layer : layers) {
    source += (source.empty() ? "" : "; ") + layer.call->call().name() + " request " +
              std::to_string(layer.request);
  }
  return source;
}

SafetensorsWriter::Strings metadata_of(const std::vector<ImportedLayer>& layers, const Sizes& sizes,
                                       int64_t steps) {
  const AttentionCall& first = *layers.front().call;
  SafetensorsWriter::Strings fields{
      {"format", "kvbound-trace"},
      {"version", "1"},
      {"model", "FlashInfer " + first.call().version() + ", " + first.call().function()},
      {"source", source_of(layers)},
      {"layers", std::to_string(layers.size())},
      {"query_heads", std::to_string(sizes.query_heads)},
      {"kv_heads", std::to_string(sizes.kv_heads)},
      {"head_dim", std::to_string(sizes.head_dim)},
      {"model_dim", std::to_string(sizes.head_dim)},
      {"prompt_tokens", std::to_string(sizes.tokens - steps)},
      {"decode_tokens", std::to_string(steps)},
      {"window_queries", std::to_string(sizes.queries - steps)},
      {"rope", "applied"}};
  if (first.scale()) fields.emplace_back("scale", shortest(sizes.scale));
  return fields;
}

std::vector<TensorDeclaration> declarations_of(const std::vector<ImportedLayer>& layers, const Sizes& sizes,
                                               bool with_outputs) {
  std::vector<TensorDeclaration> tensors;
  const std::vector<int64_t> cache{sizes.kv_heads, sizes.tokens, sizes.head_dim},
      queries{sizes.query_heads, sizes.queries, sizes.head_dim};
  for (size_t l = 0; l < layers.size(); ++l) {
    const AttentionCall& call = *layers[l].call;
    tensors.push_back({tensor_of(l, "key"), call.key_dtype(), cache});
    tensors.push_back({tensor_of(l, "value"), call.value_dtype(), cache});
    tensors.push_back({tensor_of(l, "query"), call.query_dtype(), queries});
    tensors.push_back({tensor_of(l, "output_projection"),
                       call.query_dtype(),
                       {sizes.query_heads * sizes.head_dim, sizes.head_dim}});
    if (with_outputs) tensors.push_back({tensor_of(l, "attention_output"), call.output_dtype(), queries});
  }
  return tensors;
}

// Appends W^O: a head's outputs are its part of the hidden state.
void append_identities(SafetensorsWriter& file, const std::string& tensor, const Sizes& sizes) {
  std::vector<double> row(sizes.head_dim);
  for (int64_t i = 0; i < sizes.query_heads * sizes.head_dim; ++i) {
    const auto one = static_cast<size_t>(i % sizes.head_dim);
    row[one] = 1;
    file.append(tensor, row);
    row[one] = 0;
  }
}

// Appends [queries, query_heads * head_dim] as [query_heads, queries, head_dim].
void append_outputs(SafetensorsWriter& file, const std::string& tensor, const Matrix& outputs,
                    const Sizes& sizes) {
  for (int64_t h = 0; h < sizes.query_heads; ++h) {
    for (int64_t i = 0; i < outputs.rows(); ++i) {
      file.append(tensor, outputs.row(i).subspan(static_cast<size_t>(h * sizes.head_dim),
                                                 static_cast<size_t>(sizes.head_dim)));
    }
  }
}

}  // namespace

void import_trace(const std::vector<ImportedLayer>& layers, int64_t steps, const std::string& path,
                  bool with_outputs, const std::function<void(int64_t, int64_t)>& progress,
                  const std::function<void(const std::string&)>& written) {
  std::vector<AttentionRequest> requests;
  for (const ImportedLayer& layer : layers) requests.push_back(layer.call->request(layer.request));
  const Sizes sizes = sizes_of(*layers.front().call, requests.front());
  for (size_t l = 1; l < layers.size(); ++l) {
    const Sizes others = sizes_of(*layers[l].call, requests[l]);
    if (others == sizes) continue;
    throw InvalidOption("call " + layers[l].call->call().name() + " has " + text_of(others) +
                        "; the layers before it have " + text_of(sizes));
  }
  if (steps < 0 || steps >= sizes.queries) {
    throw InvalidOption(std::to_string(steps) + " decode steps: the request has " +
                        std::to_string(sizes.queries) + " queries, of which one at least is the prompt's");
  }
  SafetensorsWriter file(path, metadata_of(layers, sizes, steps),
                         declarations_of(layers, sizes, with_outputs));
  for (size_t l = 0; l < layers.size(); ++l) {
    const AttentionCall& call = *layers[l].call;
    file.append(tensor_of(l, "key"), call.keys(requests[l]).numbers());
    file.append(tensor_of(l, "value"), call.values(requests[l]).numbers());
    file.append(tensor_of(l, "query"), call.queries(requests[l]).numbers());
    append_identities(file, tensor_of(l, "output_projection"), sizes);
    if (with_outputs)
      append_outputs(file, tensor_of(l, "attention_output"), call.outputs(requests[l]), sizes);
    if (progress) progress(static_cast<int64_t>(l) + 1, std::ssize(layers));
  }
  file.prepare();
  if (written) written(file.place());
  file.finish();
}

}  // namespace kvbound::traces
