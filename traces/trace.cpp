#include "trace.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include <kvbound/reference/core/error.hpp>

#include "layer_list.hpp"
#include "messages.hpp"
#include "metadata_fields.hpp"
#include "number_in.hpp"
#include "shards.hpp"

namespace kvbound::traces {

namespace {

constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();  // so that products of two fit int64_t

TraceInfo read_info(const std::string& path, const ShardSet& files) {
  const MetadataFields fields(files.metadata());
  const auto weight = files.tensors().lower_bound("model.");  // in Hugging Face's checkpoints
  const bool is_model = weight != files.tensors().end() && weight->first.starts_with("model.");
  const auto format = files.metadata().strings.find("format");
  if (is_model && (format == files.metadata().strings.end() || format->second != "kvbound-trace")) {
    throw TraceError(path, -1, "",
                     "is a model's checkpoint; expected a trace, which kvbound record makes of its folder");
  }
  fields.require("format", "kvbound-trace");
  fields.require("version", "1");
  TraceInfo info;
  info.path = path;
  info.model = fields.text("model");
  info.source = fields.text("source");
  info.layers = fields.count("layers", 1, kMaxCount);
  info.shape.query_heads = fields.count("query_heads", 1, kMaxCount);
  info.shape.kv_heads = fields.count("kv_heads", 1, kMaxCount);
  if (info.shape.query_heads % info.shape.kv_heads != 0) {
    fields.refuse("query_heads", "a multiple of kv_heads, " + std::to_string(info.shape.kv_heads));
  }
  info.recorded_kv_heads = info.shape.kv_heads;
  info.shape.head_dim = fields.count("head_dim", 1, kMaxCount);
  info.shape.model_dim = fields.count("model_dim", 1, kMaxCount);
  info.prompt_tokens = fields.count("prompt_tokens", 1, kMaxCount);
  info.decode_tokens = fields.count("decode_tokens", 0, kMaxCount);
  info.window_queries = fields.count("window_queries", 1, info.prompt_tokens);
  info.scale = fields.has("scale") ? fields.positive("scale")
                                   : 1 / std::sqrt(static_cast<double>(info.shape.head_dim));
  fields.require("rope", "applied");
  return info;
}

std::string layer_tensor(int64_t layer, const char* name) {
  return "layers." + std::to_string(layer) + "." + name;
}

StoredTensor required(const ShardSet& files, const std::string& name) {
  const StoredTensor tensor = files.find(name);
  if (!tensor) throw TraceError(files.path(), -1, name, "this tensor is missing");
  return tensor;
}

void require_shape(const StoredTensor& tensor, const std::vector<int64_t>& shape, const char* meaning) {
  if (tensor.entry->shape == shape) return;
  throw TraceError(
      tensor.file->path(), tensor.entry->header_offset, tensor.entry->name + ".shape",
      "is " + shape_text(tensor.entry->shape) + "; expected " + meaning + " = " + shape_text(shape));
}

void require_real(const StoredTensor& tensor, const std::vector<int64_t>& shape, const char* meaning) {
  if (!is_real(tensor.entry->dtype)) {
    throw TraceError(tensor.file->path(), tensor.entry->header_offset, tensor.entry->name + ".dtype",
                     "is " + std::string(name(tensor.entry->dtype)) + "; expected F64, F32, F16 or BF16");
  }
  require_shape(tensor, shape, meaning);
}

/// Checks one layer's tensors. Returns true if the model's own attention output was recorded.
bool check_layer(const ShardSet& files, const TraceInfo& info, int64_t layer) {
  const LayerShape& shape = info.shape;
  const std::vector<int64_t> entries{shape.kv_heads, info.prompt_tokens + info.decode_tokens, shape.head_dim};
  const std::vector<int64_t> queries{shape.query_heads, info.window_queries + info.decode_tokens,
                                     shape.head_dim};
  const char* entries_meaning = "[kv_heads, prompt_tokens + decode_tokens, head_dim]";
  const char* queries_meaning = "[query_heads, window_queries + decode_tokens, head_dim]";
  require_real(required(files, layer_tensor(layer, "key")), entries, entries_meaning);
  require_real(required(files, layer_tensor(layer, "value")), entries, entries_meaning);
  require_real(required(files, layer_tensor(layer, "query")), queries, queries_meaning);
  require_real(required(files, layer_tensor(layer, "output_projection")),
               {shape.query_heads * shape.head_dim, shape.model_dim}, "[query_heads * head_dim, model_dim]");
  const StoredTensor output = files.find(layer_tensor(layer, "attention_output"));
  if (output) require_real(output, queries, queries_meaning);
  return static_cast<bool>(output);
}

/// Throws TraceError if there are tensors layers.{l}.* with an l beyond the metadata's number of layers.
void refuse_surplus_layers(const ShardSet& files, int64_t layers) {
  constexpr std::string_view kPrefix = "layers.";
  for (const auto& [name, tensor] : files.tensors()) {
    if (!name.starts_with(kPrefix)) continue;
    const std::string_view rest = name.substr(kPrefix.size());
    const std::string_view digits = rest.substr(0, rest.find('.'));
    const bool is_number = !digits.empty() && digits.size() < rest.size() &&
                           digits.find_first_not_of("0123456789") == std::string_view::npos;
    if (is_number && number_in<int64_t>(digits).value_or(layers) >= layers) {
      throw TraceError(tensor.file->path(), tensor.entry->header_offset, printable(name),
                       "the metadata says that there are " + std::to_string(layers) + " layers");
    }
  }
}

std::vector<int64_t> model_layers_of(const ShardSet& files, int64_t layers) {
  const MetadataFields fields(files.metadata());
  if (!fields.has("model_layers")) return {};
  auto numbers = parse_layer_list(fields.text("model_layers"), kMaxCount, layers);
  if (!numbers || std::ssize(*numbers) != layers)
    fields.refuse("model_layers", std::to_string(layers) + " layers, ascending, such as 0,3-5");
  return std::move(*numbers);
}

// bits  receives the numbers' bits; null: they are not wanted
void read_numbers(const StoredTensor& stored, std::span<double> numbers, Layer::Bits::Numbers* bits) {
  if (!bits) return stored.file->read(*stored.entry, 0, numbers);
  bits->resize(numbers.size());
  stored.file->read(*stored.entry, numbers, *bits);
}

Tensor read_tensor(const StoredTensor& stored, Layer::Bits::Numbers* bits = nullptr) {
  const std::vector<int64_t>& shape = stored.entry->shape;
  Tensor tensor = Tensor::for_overwrite(shape[0], shape[1], shape[2]);
  read_numbers(stored, tensor.numbers(), bits);
  return tensor;
}

Matrix read_matrix(const StoredTensor& stored, Layer::Bits::Numbers* bits) {
  const std::vector<int64_t>& shape = stored.entry->shape;
  Matrix matrix = Matrix::for_overwrite(shape[0], shape[1]);
  read_numbers(stored, std::span(matrix.data(), matrix.numbers().size()), bits);
  return matrix;
}

// The bits of a layer's numbers from an entry and a query on.
RecordedBits bits_from(const Layer& layer, int64_t entry, int64_t query) {
  const auto from = [&](const Layer::Bits::Numbers& bits, int64_t row) {
    return bits.empty() ? nullptr : bits.data() + row * layer.shape.head_dim;
  };
  return {layer.bits.dtype, from(layer.bits.keys, entry), from(layer.bits.values, entry),
          from(layer.bits.queries, query), from(layer.bits.output_projection, 0)};
}

}  // namespace

std::vector<int64_t> layer_numbers(const TraceInfo& info) {
  std::vector<int64_t> numbers = info.model_layers;
  if (numbers.empty()) {
    for (int64_t l = 0; l < info.layers; ++l) numbers.push_back(l);
  }
  return numbers;
}

LayerView Layer::prompt() const {
  LayerView view;
  view.shape = shape;
  view.scale = scale;
  view.keys = keys.view().middle_rows(0, prompt_tokens);
  view.values = values.view().middle_rows(0, prompt_tokens);
  view.queries = queries.view().middle_rows(0, window_queries);
  view.output_projection = output_projection;
  view.index = index;
  view.bits = bits_from(*this, 0, 0);
  return view;
}

StepView Layer::step(int64_t t) const {
  const int64_t entry = prompt_tokens + t, query = window_queries + t;
  return {keys.view().row_of_slices(entry), values.view().row_of_slices(entry),
          queries.view().row_of_slices(query), bits_from(*this, entry, query)};
}

Layer with_query_head_caches(Layer layer) {
  for (Tensor* const tensor : {&layer.keys, &layer.values}) *tensor = per_query_head(layer.shape, *tensor);
  for (Layer::Bits::Numbers* const bits : {&layer.bits.keys, &layer.bits.values}) {
    Layer::Bits::Numbers all(bits->size() * static_cast<size_t>(layer.shape.group_size()));
    copy_per_query_head<uint16_t>(layer.shape, *bits, all);
    *bits = std::move(all);
  }
  layer.shape = with_caches_of(layer.shape, CacheHeads::query);
  return layer;
}

Trace::Trace(const std::string& path, const Options& options)
    : files_(std::make_unique<ShardSet>(path, options.header_limit)), info_(read_info(path, *files_)) {
  refuse_surplus_layers(*files_, info_.layers);
  info_.has_attention_output = true;
  for (int64_t layer = 0; layer < info_.layers; ++layer) {
    info_.has_attention_output &= check_layer(*files_, info_, layer);
  }
  info_.model_layers = model_layers_of(*files_, info_.layers);
  info_.storage = files_->find(layer_tensor(0, "key")).entry->dtype;
  if (const StoredTensor tokens = files_->find("tokens")) {
    if (tokens.entry->dtype != Dtype::i64 && tokens.entry->dtype != Dtype::i32) {
      throw TraceError(tokens.file->path(), tokens.entry->header_offset, "tokens.dtype",
                       "is " + std::string(name(tokens.entry->dtype)) + "; expected I64 or I32");
    }
    require_shape(tokens, {info_.prompt_tokens + info_.decode_tokens}, "[prompt_tokens + decode_tokens]");
    info_.has_tokens = true;
  }
  info_.heads = options.heads;
  info_.shape = with_caches_of(info_.shape, options.heads);
}

Trace::~Trace() = default;
Trace::Trace(Trace&&) noexcept = default;
Trace& Trace::operator=(Trace&&) noexcept = default;

std::vector<std::string> Trace::paths() const { return files_->paths(); }

Layer Trace::read_layer(int64_t layer, const Also& also) const {
  if (layer < 0 || layer >= info_.layers) {
    throw ShapeMismatch("layer " + std::to_string(layer) + " of a trace that has " +
                        std::to_string(info_.layers) + " layers");
  }
  const auto stored = [&](const char* name) { return files_->find(layer_tensor(layer, name)); };
  Layer result;
  result.index = layer;
  result.shape = info_.shape;
  result.shape.kv_heads = info_.recorded_kv_heads;
  result.scale = info_.scale;
  result.prompt_tokens = info_.prompt_tokens;
  result.window_queries = info_.window_queries;
  result.bits.dtype = info_.storage;
  // Where a tensor's bits go, if they are wanted.
  const auto bits_of = [&](const StoredTensor& tensor, Layer::Bits::Numbers& bits) {
    return also.bits && tensor.entry->dtype == info_.storage && size_of(info_.storage) == 2 ? &bits : nullptr;
  };
  const StoredTensor keys = stored("key"), values = stored("value"), queries = stored("query"),
                     projection = stored("output_projection");
  result.keys = read_tensor(keys, bits_of(keys, result.bits.keys));
  result.values = read_tensor(values, bits_of(values, result.bits.values));
  result.queries = read_tensor(queries, bits_of(queries, result.bits.queries));
  result.output_projection = read_matrix(projection, bits_of(projection, result.bits.output_projection));
  if (const StoredTensor output = stored("attention_output"); output && also.attention_output) {
    result.attention_output = read_tensor(output);
    result.attention_output_storage = output.entry->dtype;
  }
  return info_.heads == CacheHeads::query ? with_query_head_caches(std::move(result)) : result;
}

std::vector<int64_t> Trace::tokens() const {
  const StoredTensor stored = files_->find("tokens");
  if (!stored) return {};
  std::vector<int64_t> tokens(stored.entry->elements);
  stored.file->read(*stored.entry, 0, std::span(tokens));
  return tokens;
}

std::string Trace::sha256(const Progress& progress) const { return files_->sha256(progress); }

}  // namespace kvbound::traces
