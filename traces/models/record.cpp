#include "record.hpp"

#include <algorithm>

#include <kvbound/reference/core/float16.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/traces/safetensors_writer.hpp>

#include "../layer_list.hpp"
#include "decoder.hpp"

namespace kvbound::traces {
namespace {

void check(const RecordOptions& options, const ModelConfig& config) {
  require_within("prompt tokens", options.prompt, 1, std::ssize(options.tokens));
  require_within("window", options.window, 1, options.prompt);
  require_within("steps", options.steps, 0, INT32_MAX);
  for (const int64_t layer : options.layers) require_within("layer", layer, 0, config.layers - 1);
}

// What attention worked on at the recorded positions of one layer: [window + steps, query_heads * head_dim].
struct RecordedQueries {
  std::vector<float> queries, outputs;
};

// Collects the recorded rows of the chosen layers.
class Recording {
 public:
  Recording(const RecordOptions& options, const ModelConfig& config)
      : first_(options.prompt - options.window), chosen_(options.layers), recorded_(chosen_.size()) {
    const int64_t numbers = (options.window + options.steps) * config.query_heads * config.head_dim;
    for (RecordedQueries& layer : recorded_) {
      layer.queries.reserve(numbers);
      layer.outputs.reserve(numbers);
    }
  }

  void add(const Attended& attended) {
    const auto found = std::ranges::lower_bound(chosen_, attended.layer);
    if (found == chosen_.end() || *found != attended.layer) return;
    RecordedQueries& layer = recorded_[found - chosen_.begin()];
    for (int64_t i = std::max<int64_t>(0, first_ - attended.first); i < attended.queries.rows; ++i) {
      layer.queries.insert(layer.queries.end(), attended.queries.row(i).begin(),
                           attended.queries.row(i).end());
      layer.outputs.insert(layer.outputs.end(), attended.outputs.row(i).begin(),
                           attended.outputs.row(i).end());
    }
  }

  const RecordedQueries& layer(size_t index) const { return recorded_[index]; }

 private:
  int64_t first_;  // position of the first recorded query
  const std::vector<int64_t>& chosen_;
  std::vector<RecordedQueries> recorded_;
};

std::string prefix_of(size_t layer) { return "layers." + std::to_string(layer) + "."; }

SafetensorsWriter::Strings metadata(const RecordOptions& options, const ModelConfig& config) {
  return {{"format", "kvbound-trace"},
          {"version", "1"},
          {"model", config.name},
          {"source", options.source},
          {"layers", std::to_string(options.layers.size())},
          {"query_heads", std::to_string(config.query_heads)},
          {"kv_heads", std::to_string(config.kv_heads)},
          {"head_dim", std::to_string(config.head_dim)},
          {"model_dim", std::to_string(config.model_dim)},
          {"prompt_tokens", std::to_string(options.prompt)},
          {"decode_tokens", std::to_string(options.steps)},
          {"window_queries", std::to_string(options.window)},
          {"rope", "applied"},
          {"model_layers", layer_list(options.layers)}};
}

std::vector<TensorDeclaration> declarations(const RecordOptions& options, const ModelConfig& config) {
  const int64_t tokens = options.prompt + options.steps, queries = options.window + options.steps;
  std::vector<TensorDeclaration> tensors{{"tokens", Dtype::i64, {tokens}}};
  for (size_t l = 0; l < options.layers.size(); ++l) {
    const std::string prefix = prefix_of(l);
    tensors.push_back({prefix + "key", options.dtype, {config.kv_heads, tokens, config.head_dim}});
    tensors.push_back({prefix + "value", options.dtype, {config.kv_heads, tokens, config.head_dim}});
    tensors.push_back({prefix + "query", options.dtype, {config.query_heads, queries, config.head_dim}});
    tensors.push_back({prefix + "output_projection",
                       options.dtype,
                       {config.query_heads * config.head_dim, config.model_dim}});
    tensors.push_back(
        {prefix + "attention_output", Dtype::f32, {config.query_heads, queries, config.head_dim}});
  }
  return tensors;
}

// Appends a matrix row by row.
void append(SafetensorsWriter& file, const std::string& tensor, SingleMatrixView rows) {
  std::vector<double> row(rows.cols);
  for (int64_t i = 0; i < rows.rows; ++i) {
    std::ranges::copy(rows.row(i), row.begin());
    file.append(tensor, row);
  }
}

// Appends [rows, heads * head_dim] as [heads, rows, head_dim].
void append_heads(SafetensorsWriter& file, const std::string& tensor, const std::vector<float>& numbers,
                  const ModelConfig& config) {
  const int64_t cols = config.query_heads * config.head_dim;
  const SingleMatrixView rows(numbers.data(), std::ssize(numbers) / cols, cols);
  for (int64_t h = 0; h < config.query_heads; ++h) {
    append(file, tensor, rows.middle_cols(h * config.head_dim, config.head_dim));
  }
}

// Appends W^O [model_dim, inputs] as [inputs, model_dim].
void append_transposed(SafetensorsWriter& file, const std::string& tensor, const Weight& weight) {
  std::vector<float> numbers(weight.rows * weight.cols);
  weight.read(0, numbers);
  std::vector<double> column(weight.rows);
  for (int64_t c = 0; c < weight.cols; ++c) {
    for (int64_t r = 0; r < weight.rows; ++r) column[r] = numbers[r * weight.cols + c];
    file.append(tensor, column);
  }
}

void write_layer(SafetensorsWriter& file, size_t index, const Decoder& decoder, const Checkpoint& checkpoint,
                 const RecordOptions& options, const Recording& recording) {
  const std::string prefix = prefix_of(index);
  const int64_t layer = options.layers[index];
  const std::vector<CachedHead> heads = decoder.cache(layer);
  for (const CachedHead& head : heads) append(file, prefix + "key", head.keys);
  for (const CachedHead& head : heads) append(file, prefix + "value", head.values);
  append_heads(file, prefix + "query", recording.layer(index).queries, checkpoint.config());
  append_transposed(file, prefix + "output_projection", checkpoint.layers()[layer].output);
  append_heads(file, prefix + "attention_output", recording.layer(index).outputs, checkpoint.config());
}

}  // namespace

void record(const Checkpoint& checkpoint, const RecordOptions& options, const std::string& path,
            const RecordProgress& progress,
            const std::function<void(const std::vector<int64_t>&)>& recorded) {
  const ModelConfig& config = checkpoint.config();
  check(options, config);
  SafetensorsWriter file(path, metadata(options, config), declarations(options, config));
  Decoder decoder(checkpoint, options.prompt + options.steps, options.dtype);
  Recording recording(options, config);
  int64_t done = 0;
  const auto observe = [&](const Attended& attended) {
    recording.add(attended);
    done += attended.queries.rows;
    if (progress) progress(done, (options.prompt + options.steps) * config.layers);
  };
  std::vector<int64_t> tokens(options.tokens.begin(), options.tokens.begin() + options.prompt);
  std::vector<float> logits = decoder.run(tokens, observe);
  for (int64_t t = options.prompt; t < options.prompt + options.steps; ++t) {
    tokens.push_back(t < std::ssize(options.tokens) ? options.tokens[t]
                                                    : std::ranges::max_element(logits) - logits.begin());
    logits = decoder.run({&tokens.back(), 1}, observe);
  }
  file.append("tokens", tokens);
  for (size_t l = 0; l < options.layers.size(); ++l)
    write_layer(file, l, decoder, checkpoint, options, recording);
  file.prepare();
  recorded(tokens);
  file.finish();
}

}  // namespace kvbound::traces
