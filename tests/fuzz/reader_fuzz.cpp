// What the readers of untrusted files do with any bytes: they refuse them with a TraceError, or read all of them.
//
// An input is a letter that names a reader, and what it reads:
//   F  FlashInfer's dumps: for each call, each with its length, its folder's name, metadata.jsonl, inputs and outputs
//   G  a GGUF file
//   H  a Hugging Face folder: four bytes with the length of config.json, config.json, model.safetensors
//   I  the same in shards: config.json and the index, each with its length, and the one shard `a.safetensors`
//   K  token ids
//   P  a plan of a sweep
//   R  results of an item of a sweep, without the hash that they begin with
//   S  a sweep, as its folder has it
//   T  a trace
#include <unistd.h>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/sim/sweep/item_result.hpp>
#include <kvbound/sim/sweep/items.hpp>
#include <kvbound/sim/sweep/plan.hpp>
#include <kvbound/traces/flashinfer/attention_call.hpp>
#include <kvbound/traces/flashinfer/attention_function.hpp>
#include <kvbound/traces/flashinfer/recorded_session.hpp>
#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/models/checkpoint.hpp>
#include <kvbound/traces/models/token_file.hpp>
#include <kvbound/traces/sha256.hpp>
#include <kvbound/traces/trace.hpp>

namespace {

using kvbound::traces::Checkpoint;
using kvbound::traces::Weight;

// A folder in memory that is emptied for every input and goes when the program ends.
class Folder {
 public:
  Folder() : path_("/dev/shm/kvbound-fuzz-" + std::to_string(getpid())) {}
  ~Folder() { std::filesystem::remove_all(path_); }

  void empty() const {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
  }
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
    return path_ + "/" + name;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Takes a part with its length from the front.
std::string_view take_part(std::string_view& bytes) {
  uint32_t length = 0;
  std::memcpy(&length, bytes.data(), std::min(bytes.size(), sizeof length));
  bytes.remove_prefix(std::min(bytes.size(), sizeof length));
  const std::string_view part = bytes.substr(0, length);
  bytes.remove_prefix(part.size());
  return part;
}

// A refusal is one line.
void require_one_line(std::string_view message) {
  if (message.empty() || message.find('\n') != message.npos) std::abort();
}

void read_all(const Weight& weight) {
  std::vector<float> row(weight.cols);
  for (int64_t r = 0; r < weight.rows; ++r) weight.read(r, row);
}

void read_checkpoint(const std::string& path) {
  const Checkpoint checkpoint(path);
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
}

// Every request of every call that can be imported, each judged by itself: one that is refused says nothing of others.
void read_calls(const std::string& path) {
  const kvbound::traces::RecordedSession session(path);
  for (int64_t number = 1; number <= session.size(); ++number) try {
      if (!kvbound::traces::attention_function_named(session.call(number).function())) continue;
      const kvbound::traces::AttentionCall call(session, number, {});
      for (int64_t r = 0; r < call.requests(); ++r) {
        const auto request = call.request(r);
        call.keys(request);
        call.values(request);
        call.queries(request);
        call.outputs(request);
      }
    } catch (const kvbound::TraceError& error) {
      require_one_line(error.what());
    } catch (const kvbound::traces::InvalidOption& error) {  // what an option would have to say
      require_one_line(error.what());
    }
}

// Writes the files of a call, if its name is one that a folder of dumps may hold. Control characters in names are not for the
// readers: the program escapes what it prints.
void write_call(const Folder& folder, std::string_view& bytes) {
  const std::string name(take_part(bytes));
  const std::string_view metadata = take_part(bytes), inputs = take_part(bytes), outputs = take_part(bytes);
  const bool usable = !name.empty() && name.size() < 200 && name != "." && name != ".." &&
                      std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~' && c != '/'; });
  if (!usable || !std::filesystem::create_directory(folder.path() + "/" + name)) return;
  folder.write(name + "/metadata.jsonl", metadata);
  if (!inputs.empty()) folder.write(name + "/inputs.safetensors", inputs);
  if (!outputs.empty()) folder.write(name + "/outputs.safetensors", outputs);
}

void read_trace(const std::string& path) {
  const kvbound::traces::Trace trace(path);
  for (int64_t layer = 0; layer < trace.info().layers; ++layer) trace.read_layer(layer, true);
}

void read(const Folder& folder, char reader, std::string_view bytes) {
  switch (reader) {
    case 'F':
      while (!bytes.empty()) write_call(folder, bytes);
      return read_calls(folder.path());
    case 'G':
      return read_checkpoint(folder.write("model.gguf", bytes));
    case 'H':
      folder.write("config.json", take_part(bytes));
      folder.write("model.safetensors", bytes);
      return read_checkpoint(folder.path());
    case 'I':
      folder.write("config.json", take_part(bytes));
      folder.write("model.safetensors.index.json", take_part(bytes));
      folder.write("a.safetensors", bytes);
      return read_checkpoint(folder.path());
    case 'K':
      kvbound::traces::read_token_ids(folder.write("ids", bytes), 50000);
      return;
    case 'P':
      kvbound::sim::read_plan(folder.write("plan.json", bytes));
      return;
    case 'R':
      kvbound::sim::item_result_of("results", kvbound::traces::sha256_of(bytes) + std::string(bytes));
      return;
    case 'S':
      kvbound::sim::items_of(kvbound::sim::parse_sweep("sweep.json", std::string(bytes)));
      return;
    case 'T':
      return read_trace(folder.write("trace.safetensors", bytes));
    default:
      return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  if (size == 0) return -1;
  folder.empty();
  try {
    read(folder, static_cast<char>(data[0]), {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const kvbound::TraceError& error) {
    require_one_line(error.what());
  } catch (const kvbound::IoError&) {  // a file that the input names is not there
  }
  return 0;
}
