#include "generate.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include <kvbound/reference/core/parallel.hpp>

#include "safetensors_writer.hpp"
#include "synthetic_heads.hpp"

namespace kvbound::traces {

namespace {

using Progress = std::function<void(int64_t, int64_t)>;

constexpr int64_t kBlockNumbers = int64_t{1} << 18;  // per block: 2 MiB, or one row if a row is larger

/// Bytes of tensor data in the whole file.
constexpr int64_t data_bytes(const GenerateOptions& o) {
  const int64_t cached = o.kv_heads * (o.tokens + o.decode) * o.head_dim;
  const int64_t queries = o.query_heads * (o.window_queries + o.decode) * o.head_dim;
  const int64_t projection = o.query_heads * o.head_dim * o.model_dim;
  return o.layers * (2 * cached + queries + projection) * size_of(o.dtype);
}

constexpr GenerateOptions largest_options() {
  GenerateOptions options;
  for (const CountOption& option : kCountOptions) options.*option.value = option.most;
  options.dtype = Dtype::f64;
  return options;
}
static_assert(data_bytes(largest_options()) > 0, "the options' ranges must keep sizes below 2^63 bytes");

void check(const GenerateOptions& options) {
  for (const CountOption& option : kCountOptions) {
    const int64_t value = options.*option.value;
    if (value < option.least || value > option.most) {
      throw InvalidOption(std::string(option.name) + " is " + std::to_string(value) + ", not in " +
                          std::to_string(option.least) + ".." + std::to_string(option.most));
    }
  }
  if (options.query_heads % options.kv_heads != 0) {
    throw InvalidOption("query-heads is " + std::to_string(options.query_heads) +
                        ", not a multiple of kv-heads, which is " + std::to_string(options.kv_heads));
  }
  if (options.window_queries > options.tokens) {
    throw InvalidOption("window-queries is " + std::to_string(options.window_queries) +
                        ", more than tokens, which is " + std::to_string(options.tokens));
  }
  if (!is_real(options.dtype)) {
    throw InvalidOption("dtype is " + std::string(name(options.dtype)) + ", not F64, F32, F16 or BF16");
  }
}

SafetensorsWriter::Strings metadata(const GenerateOptions& options) {
  return {{"format", "kvbound-trace"},
          {"version", "1"},
          {"model", "synthetic " + std::string(name(options.kind))},
          {"source", canonical_command(options)},
          {"layers", std::to_string(options.layers)},
          {"query_heads", std::to_string(options.query_heads)},
          {"kv_heads", std::to_string(options.kv_heads)},
          {"head_dim", std::to_string(options.head_dim)},
          {"model_dim", std::to_string(options.model_dim)},
          {"prompt_tokens", std::to_string(options.tokens)},
          {"decode_tokens", std::to_string(options.decode)},
          {"window_queries", std::to_string(options.window_queries)},
          {"rope", "applied"}};
}

std::string layer_prefix(int64_t layer) { return "layers." + std::to_string(layer) + "."; }

std::vector<TensorDeclaration> declarations(const GenerateOptions& o) {
  std::vector<TensorDeclaration> tensors;
  for (int64_t layer = 0; layer < o.layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    tensors.push_back({prefix + "key", o.dtype, {o.kv_heads, o.tokens + o.decode, o.head_dim}});
    tensors.push_back({prefix + "value", o.dtype, {o.kv_heads, o.tokens + o.decode, o.head_dim}});
    tensors.push_back({prefix + "query", o.dtype, {o.query_heads, o.window_queries + o.decode, o.head_dim}});
    tensors.push_back({prefix + "output_projection", o.dtype, {o.query_heads * o.head_dim, o.model_dim}});
  }
  return tensors;
}

/// Computes tensors block by block, the rows of a block in parallel, and appends them to the file.
class RowWriter {
 public:
  RowWriter(SafetensorsWriter& file, Dtype dtype, int64_t total, const Progress& progress)
      : file_(file), dtype_(dtype), total_(total), progress_(progress) {}

  /// fill(row, numbers) computes one row, independently of the others.
  template <class Fill>
  void write(const std::string& tensor, int64_t rows, int64_t cols, const Fill& fill) {
    const int64_t block = std::max<int64_t>(1, kBlockNumbers / cols);
    for (int64_t first = 0; first < rows; first += block) {
      const int64_t count = std::min(block, rows - first);
      numbers_.resize(count * cols);
      reference::parallel_for(count, [&](int64_t i) {
        fill(first + i, std::span(numbers_).subspan(i * cols, static_cast<size_t>(cols)));
      });
      file_.append(tensor, numbers_);
      done_ += count * cols * size_of(dtype_);
      if (progress_) progress_(done_, total_);
    }
  }

 private:
  SafetensorsWriter& file_;
  Dtype dtype_;
  int64_t total_;
  const Progress& progress_;
  int64_t done_ = 0;
  std::vector<double> numbers_;
};

void write_layer(const GenerateOptions& options, int64_t layer, RowWriter& writer) {
  const std::string prefix = layer_prefix(layer);
  const int64_t tokens = options.tokens + options.decode;
  std::vector<SyntheticKvHead> kv_heads;
  for (int64_t head = 0; head < options.kv_heads; ++head) kv_heads.emplace_back(options, layer, head);
  const auto kv_head = [&](int64_t row) -> const auto& { return kv_heads[row / tokens]; };
  writer.write(prefix + "key", options.kv_heads * tokens, options.head_dim,
               [&](int64_t row, std::span<double> key) { kv_head(row).fill_key(row % tokens, key); });
  writer.write(prefix + "value", options.kv_heads * tokens, options.head_dim,
               [&](int64_t row, std::span<double> value) { kv_head(row).fill_value(row % tokens, value); });

  const int64_t group = options.query_heads / options.kv_heads;
  const int64_t queries = options.window_queries + options.decode;
  const int64_t first_position = options.tokens - options.window_queries;
  std::vector<SyntheticQueryHead> query_heads;
  for (int64_t head = 0; head < options.query_heads; ++head) {
    query_heads.emplace_back(options, layer, head, kv_heads[head / group]);
  }
  writer.write(prefix + "query", options.query_heads * queries, options.head_dim,
               [&](int64_t row, std::span<double> query) {
                 query_heads[row / queries].fill_query(first_position + row % queries, query);
               });

  const SyntheticProjection projection(options, layer);
  writer.write(prefix + "output_projection", options.query_heads * options.head_dim, options.model_dim,
               [&](int64_t row, std::span<double> numbers) { projection.fill_row(row, numbers); });
}

}  // namespace

std::string canonical_command(const GenerateOptions& options) {
  std::string command = "kvbound generate --kind " + std::string(name(options.kind));
  for (const CountOption& option : kCountOptions) {
    command += " --" + std::string(option.name) + " " + std::to_string(options.*option.value);
  }
  return command + " --dtype " + std::string(name(options.dtype)) + " --seed " + std::to_string(options.seed);
}

void generate(const GenerateOptions& options, const std::string& path, const Progress& progress) {
  check(options);
  SafetensorsWriter file(path, metadata(options), declarations(options));
  RowWriter writer(file, options.dtype, data_bytes(options), progress);
  for (int64_t layer = 0; layer < options.layers; ++layer) write_layer(options, layer, writer);
  file.finish();
}

}  // namespace kvbound::traces
