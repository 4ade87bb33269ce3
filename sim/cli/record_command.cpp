#include <algorithm>
#include <iostream>
#include <span>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/measure/stopwatch.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/models/checkpoint.hpp>
#include <kvbound/traces/models/record.hpp>
#include <kvbound/traces/models/token_file.hpp>

#include "commands.hpp"
#include "model_options.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

constexpr int64_t kUsualSteps = 64, kUsualWindow = 128;

constexpr const char* kExplanation =
    R"(MODEL is a GGUF file (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K), the first part of a split one,
or a Hugging Face folder with config.json and safetensors (F32, F16, BF16), of the families llama, mistral without a
sliding window, qwen2 and qwen3. It runs in single precision; queries, keys and values are rounded to the stored type
before attention, so that inspect --verify can recompute the recorded attention output.

The model reads the first --prompt tokens of FILE, which may be a pipe or -, standard input. Tokens behind them are what it
is made to decode; where there are none it decodes greedily. The decoded tokens are printed, and their text if the model
has a tokenizer, or bytes for tokens. traces/scripts/tokenize.py makes token ids of a text.
)";

const std::vector<Example> kRecordExamples{
    {"kvbound record traces/samples/pocket --bytes README.md --prompt 1024 --steps 32 trace.safetensors"},
    {"kvbound inspect trace.safetensors --verify"},
    {"echo 79 110 99 101 32 117 112 111 110 | kvbound record traces/samples/pocket --tokens - --steps 8 --layers 1,3 --dtype BF16 short.safetensors"},
};

CommandLine record_command_line() {
  CommandLine line(
      "record MODEL --tokens FILE|--bytes FILE [options] OUT: a trace of a model that reads tokens",
      kExplanation, kRecordExamples);
  line.add("tokens", "FILE", "token ids in decimal digits, separated by spaces, commas or lines");
  line.add("bytes", "FILE", "a text whose bytes are the tokens, for models whose vocabulary is bytes");
  line.add("prompt", "N", "the first N tokens are the prompt (default: all)");
  line.add("steps", "T", "decode steps behind the prompt (default: 64)");
  line.add("window", "W",
           "record the queries of the last W prompt tokens (default: 128, at most the prompt's)");
  line.add("layers", "L[,L]", "record these layers, such as 0,3-5 (default: all); the model runs whole");
  line.add("dtype", "TYPE", "F32, F16 or BF16: the type in which the trace stores numbers (default: F16)");
  add_work_options(line);
  return line;
}

std::vector<int64_t> read_tokens(const CommandLine& line, int64_t vocabulary) {
  constexpr int64_t kBytes = 256;
  const auto ids = line.text("tokens"), bytes = line.text("bytes");
  if (ids.has_value() == bytes.has_value()) throw UsageError("expected either --tokens FILE or --bytes FILE");
  if (bytes && vocabulary > kBytes) {
    throw UsageError(fmt::format(
        "--bytes: the model's vocabulary of {} tokens is not bytes; traces/scripts/tokenize.py TEXT MODEL makes "
        "its token ids, for --tokens",
        vocabulary));
  }
  return ids ? traces::read_token_ids(*ids, vocabulary) : traces::read_bytes_as_tokens(*bytes, vocabulary);
}

traces::RecordOptions options_of(const CommandLine& line, const traces::ModelConfig& config) {
  traces::RecordOptions options;
  options.tokens = read_tokens(line, config.vocabulary);
  const auto given = std::ssize(options.tokens);
  options.prompt = line.integer("prompt", 1, given, given);
  options.steps = line.integer("steps", 0, INT32_MAX, kUsualSteps);
  options.window = line.integer("window", 1, options.prompt, std::min(kUsualWindow, options.prompt));
  options.layers = chosen_layers(line, config.layers);
  options.dtype = stored_type(line, Dtype::f16);
  const std::string file = line.text("tokens").value_or(line.text("bytes").value_or(""));
  options.source =
      fmt::format("{}, {} tokens", std::filesystem::path(file).filename().string(), options.prompt);
  return options;
}

// The decoded tokens as text on one line; none if the model has no tokenizer that is known.
std::string decoded_text(const traces::Checkpoint& checkpoint, std::span<const int64_t> tokens, bool quiet) {
  try {
    const auto texts = checkpoint.token_texts();
    return texts && !tokens.empty() ? fmt::format("as text:\n{}\n", one_line(texts->text(tokens))) : "";
  } catch (const Error& error) {
    if (!quiet)
      std::cerr << fmt::format("kvbound: warning: no text of the tokens: {}\n", one_line(error.what()));
    return "";
  }
}

}  // namespace

int record_command(const Arguments& arguments) {
  CommandLine line = record_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  const std::vector<std::string> places = line.positionals("MODEL and OUT", 2, 2);
  const traces::Checkpoint checkpoint(places[0]);
  const traces::RecordOptions options = options_of(line, checkpoint.config());
  OutputPaths outputs;
  for (const std::string& input : checkpoint.paths()) outputs.add_input(input);
  outputs.add_input(line.text("tokens").value_or(line.text("bytes").value_or("")));
  outputs.add("OUT", places[1]);
  const traces::ModelConfig& config = checkpoint.config();
  warn_of_long_context(config, options.prompt + options.steps, line.has("quiet"));
  Progress progress("recording", !line.has("quiet"), Progress::Elsewhere::lines);
  const Clock::time_point start = Clock::now();
  const auto update = [&](int64_t done, int64_t whole) {
    const double rate = static_cast<double>(done) / static_cast<double>(config.layers) / seconds_since(start);
    progress.update(done, whole, fmt::format("{:.0f} tokens/s", rate));
  };
  const auto print = [&](const std::vector<int64_t>& tokens) {
    std::cout << fmt::format("{} of {} layers of {}, {} prompt tokens, {} steps, {}; decoded:\n{}\n",
                             options.layers.size(), config.layers, traces::printable(config.name),
                             options.prompt, options.steps, name(options.dtype),
                             fmt::join(tokens.begin() + options.prompt, tokens.end(), " "));
    std::cout << decoded_text(checkpoint, std::span(tokens).subspan(static_cast<size_t>(options.prompt)),
                              line.has("quiet"));
    flush_standard_output();
  };
  try {
    traces::record(checkpoint, options, places[1], update, print);
  } catch (const NonFinite& error) {
    throw TraceError(places[0], -1, "", error.what());
  }
  return kPass;
}

}  // namespace kvbound::sim
