#include <fmt/format.h>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/messages.hpp>

#include "commands.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

std::string generate_details() {
  std::string text = "Kinds of attention:\n";
  for (const auto& kind : traces::kAttentionKinds) {
    text += fmt::format("  {:<10} {}\n", kind.name, kind.description);
  }
  return text + "\nThe same options give the same file, bit by bit, on every platform.\n";
}

const std::vector<Example> kGenerateExamples{
    {"kvbound generate --kind power-law --tokens 512 small.safetensors"},
    {"kvbound replay small.safetensors --policy snapkv,h2o --budget 20%"},
    {"kvbound generate --kind sink --tokens 4096 --decode 4 --layers 1 --query-heads 32 --kv-heads 8 --head-dim 128 --model-dim 1024 --dtype BF16 layer.safetensors"},
};

}  // namespace

int generate_command(const Arguments& arguments) {
  traces::GenerateOptions options;
  CommandLine line("generate --kind KIND [options] OUT: write a synthetic trace", generate_details(),
                   kGenerateExamples);
  line.add("kind", "KIND", "shape of the heads' attention (see below)");
  std::vector<std::string> meanings;
  for (const auto& count : traces::kCountOptions) {
    const std::string& meaning =
        meanings.emplace_back(fmt::format("{} (default: {})", count.description, options.*count.value));
    line.add(std::string(count.name).c_str(), "N", meaning.c_str());
  }
  line.add("dtype", "TYPE", "F64, F32, F16 or BF16 (default: F32)");
  line.add("seed", "N", "seed of the random numbers (default: 1)");
  line.add("threads", "N", "number of threads; the file does not depend on it (default: all processors)");
  line.add_flag("quiet", "no progress");
  if (!line.parse(arguments)) return kPass;

  const std::string kind = line.required("kind");
  const auto known = traces::attention_kind_named(kind);
  if (!known) {
    std::string names;
    for (const auto& candidate : traces::kAttentionKinds)
      (names += names.empty() ? "" : ", ") += candidate.name;
    throw UsageError(fmt::format("--kind {}: expected one of {}", traces::quoted(kind), names));
  }
  options.kind = *known;
  for (const auto& count : traces::kCountOptions) {
    options.*count.value =
        line.integer(std::string(count.name).c_str(), count.least, count.most, options.*count.value);
  }
  if (const auto dtype = line.text("dtype")) {
    const auto named = dtype_named(*dtype);
    if (!named || !is_real(*named)) {
      throw UsageError(fmt::format("--dtype {}: expected F64, F32, F16 or BF16", traces::quoted(*dtype)));
    }
    options.dtype = *named;
  }
  options.seed = static_cast<uint64_t>(line.integer("seed", 0, INT64_MAX, 1));
  apply_threads(line);

  const std::string out = line.positionals("OUT", 1, 1).front();
  Progress progress("generating", !line.has("quiet"));
  traces::generate(options, out, [&](int64_t done, int64_t whole) { progress.update(done, whole); });
  return kPass;
}

}  // namespace kvbound::sim
