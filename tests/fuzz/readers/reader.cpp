#include "reader.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/generate.hpp>

namespace kvbound::fuzz {
namespace {

const std::array kReaders{
    Reader{'A', "attempts of a sweep's item", {Format::text}, read_attempts},
    Reader{'B', "times of another program, for bench", {Format::text}, read_peer},
    Reader{'C',
           "a kernel's file, for check: operation, file",
           {Format::text, Format::tensors},
           read_kernel_file},
    Reader{'D', "a dump, for diff: trace, dump", {Format::tensors, Format::tensors}, read_dump},
    Reader{'E', "tasks of evaluate", {Format::text}, read_tasks},
    Reader{'F',
           "FlashInfer's dumps: for each call its folder's name, metadata.jsonl, inputs, outputs",
           {Format::text, Format::text, Format::tensors, Format::tensors},
           read_flashinfer,
           true},
    Reader{'G', "a GGUF file", {Format::gguf}, read_gguf},
    Reader{'H',
           "a Hugging Face folder: config.json, tensors",
           {Format::text, Format::tensors},
           read_hugging_face},
    Reader{'I',
           "a Hugging Face folder of shards: config.json, index, the shard a.safetensors",
           {Format::text, Format::text, Format::tensors},
           read_hugging_face_shards},
    Reader{'J', "a document, for report", {Format::text}, read_report_document},
    Reader{'K', "token ids", {Format::text}, read_token_file},
    Reader{'L', "a line of a sweep's worker", {Format::text}, read_worker_line},
    Reader{'M', "instances of theorems", {Format::text}, read_instances},
    Reader{'N', "results with which evaluate goes on", {Format::text}, read_results},
    Reader{'O',
           "an option's text: a policy, budget, list of layers, shape or GPU",
           {Format::text},
           read_option_text},
    Reader{'P', "a plan of a sweep", {Format::text}, read_plan},
    Reader{'Q', "a GGUF model of two parts", {Format::gguf, Format::gguf}, read_gguf_set},
    Reader{'R', "results of a sweep's item, without their hash", {Format::cbor}, read_item_result},
    Reader{'S', "a sweep, as its folder has it", {Format::text}, read_sweep},
    Reader{'T', "a trace", {Format::tensors}, read_trace},
    Reader{'U', "a command line, an argument a line", {Format::text}, read_command_line},
    Reader{'V', "kept sets or scores of the host given", {Format::tensors}, read_given},
    Reader{'W', "what items of a sweep cost", {Format::text}, read_rates},
    Reader{'X',
           "a trace of shards: index, the shard shard-0.safetensors",
           {Format::text, Format::tensors},
           read_trace_shards},
    Reader{'Y', "a Python function's signature", {Format::text}, read_python_signature}};

// Takes a part with its length from the front.
std::string_view take_part(std::string_view& bytes) {
  uint32_t length = 0;
  std::memcpy(&length, bytes.data(), std::min(bytes.size(), sizeof length));
  bytes.remove_prefix(std::min(bytes.size(), sizeof length));
  const std::string_view part = bytes.substr(0, length);
  bytes.remove_prefix(part.size());
  return part;
}

Verdict refused(std::string_view message) {
  if (!message.empty() && message.find('\n') == message.npos) return Verdict::refused;
  std::fprintf(stderr, "not one line: %.*s\n", static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace

std::span<const Reader> readers() { return kReaders; }

const Reader* reader_of(std::string_view input) {
  if (input.empty()) return nullptr;
  const auto found = std::ranges::find(kReaders, input.front(), &Reader::letter);
  return found == kReaders.end() ? nullptr : &*found;
}

std::vector<std::string_view> parts_of(const Reader& reader, std::string_view input) {
  std::string_view rest = input.substr(1);
  std::vector<std::string_view> parts;
  do {
    for (size_t i = 0; i < reader.parts.size(); ++i) {
      const bool is_rest = !reader.repeats && i + 1 == reader.parts.size();
      parts.push_back(is_rest ? rest : take_part(rest));
    }
  } while (reader.repeats && !rest.empty());
  return parts;
}

std::string input_of(const Reader& reader, std::span<const std::string> parts) {
  std::string input(1, reader.letter);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto length = static_cast<uint32_t>(parts[i].size());
    const bool is_rest = !reader.repeats && i + 1 == parts.size();
    if (!is_rest) input.append(reinterpret_cast<const char*>(&length), sizeof length);
    input += parts[i];
  }
  return input;
}

Verdict read_input(std::string_view input) {
  static Folder folder;
  const Reader* const reader = reader_of(input);
  if (!reader) return Verdict::refused;
  folder.empty();
  try {
    reader->read(folder, parts_of(*reader, input));
    return Verdict::read;
  } catch (const sim::UsageError& error) {
    return refused(error.what());
  } catch (const InvalidPolicy& error) {
    return refused(error.what());
  } catch (const traces::InvalidOption& error) {
    return refused(error.what());
  } catch (const TraceError& error) {
    return refused(error.what());
  } catch (const NonFinite& error) {
    return refused(error.what());
  } catch (const IoError& error) {
    return refused(error.what());
  }
}

}  // namespace kvbound::fuzz
