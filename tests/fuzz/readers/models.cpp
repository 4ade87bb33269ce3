// Checkpoints of models, and token ids.
#include <vector>

#include <kvbound/traces/models/checkpoint.hpp>
#include <kvbound/traces/models/token_file.hpp>

#include "reader.hpp"

namespace kvbound::fuzz {
namespace {

using traces::Weight;

void read_all(const Weight& weight) {
  std::vector<float> row(weight.cols);
  for (int64_t r = 0; r < weight.rows; ++r) weight.read(r, row);
}

void read_checkpoint(const std::string& path) {
  const traces::Checkpoint checkpoint(path);
  for (const Weight& weight : {checkpoint.embedding(), checkpoint.output_norm(), checkpoint.output()})
    read_all(weight);
  for (const auto& layer : checkpoint.layers()) {
    for (const Weight& weight : {layer.attention_norm, layer.query, layer.key, layer.value, layer.output,
                                 layer.feed_forward_norm, layer.gate, layer.up, layer.down})
      read_all(weight);
    for (const auto& weight :
         {layer.query_bias, layer.key_bias, layer.value_bias, layer.query_norm, layer.key_norm})
      if (weight) read_all(*weight);
  }
  const std::vector<int64_t> tokens{0, 1, 255, checkpoint.config().vocabulary - 1,
                                    checkpoint.config().vocabulary};
  if (const auto texts = checkpoint.token_texts()) texts->text(tokens);
}

}  // namespace

void read_gguf(Folder& folder, Parts parts) { read_checkpoint(folder.write("model.gguf", parts[0])); }

void read_gguf_set(Folder& folder, Parts parts) {
  folder.write("model-00002-of-00002.gguf", parts[1]);
  read_checkpoint(folder.write("model-00001-of-00002.gguf", parts[0]));
}

void read_hugging_face(Folder& folder, Parts parts) {
  folder.write("config.json", parts[0]);
  folder.write("model.safetensors", parts[1]);
  read_checkpoint(folder.path());
}

void read_hugging_face_shards(Folder& folder, Parts parts) {
  folder.write("config.json", parts[0]);
  folder.write("model.safetensors.index.json", parts[1]);
  folder.write("a.safetensors", parts[2]);
  read_checkpoint(folder.path());
}

void read_token_file(Folder& folder, Parts parts) {
  traces::read_token_ids(folder.write("ids", parts[0]), 50000);
}

}  // namespace kvbound::fuzz
