#include "diff_floor.hpp"

#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <kvbound/sim/diff/floor/random_shape.hpp>
#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/text_options.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/sim/report/floor_report.hpp>
#include <kvbound/traces/messages.hpp>

#include "progress.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kFloorDetails =
    R"(
--floor prints how small a fault is always found, by proof: it moves a number by more than the faulty implementation's
rounding can take back, beyond what is allowed to a right one. All numbers have the fault, and one finding is enough.
  factor   x: numbers times 1 - x or 1 + x are found; logits: likewise of all logits
  missing  the last entries of the cache are left out (their share of the attention)
  padding  entries of zeros behind the cache are attended (their share)
  swaps    the outputs of two successive query heads are interchanged: how many are found, of all
  base 2   exponentials are powers of 2 instead of e; halved, zeros: all numbers are
Scores are those of snapkv with all recorded queries as its window and pool=1. Merged entries are those that others merged into
when it keeps 20 % with +d2o:threshold=none or +keepkv:threshold=none, of up to 16,384 tokens.
SHAPE is one or more options of random numbers, separated by colons; their defaults are:
)";

constexpr int64_t kMostTokens = int64_t{1} << 24;  // of random numbers

std::optional<Dtype> type_option(const CommandLine& line, const char* option, std::string_view expected) {
  const auto text = line.text(option);
  if (!text) return std::nullopt;
  const auto type = dtype_named(*text);
  if (!type || !is_real(*type) || expected.find(*text) == std::string_view::npos) {
    throw UsageError(fmt::format("--{} {}: expected {}", option, traces::quoted(*text), expected));
  }
  return type;
}

DeclaredArithmetic declared_arithmetic(const CommandLine& line) {
  constexpr std::string_view kReal = "F64, F32, F16 or BF16";
  DeclaredArithmetic declared;
  line.required("storage");
  declared.storage = *type_option(line, "storage", kReal);
  const Dtype natural = declared.storage == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  declared.accumulate = type_option(line, "accumulate", "F64 or F32").value_or(natural);
  declared.weights = type_option(line, "weights", kReal);
  declared.partials = type_option(line, "partials", kReal);
  declared.splits = line.integer("splits", 1, INT64_MAX, 0);
  declared.tile = line.text("tile") == "any" ? reference::kAnyTile : line.integer("tile", 1, INT64_MAX, 0);
  if (const auto products = line.text("products")) {
    if (*products != "TF32")
      throw UsageError(fmt::format("--products {}: expected TF32", traces::quoted(*products)));
    declared.tf32_products = true;
  }
  return declared;
}

std::vector<int64_t> token_list(const CommandLine& line, std::string_view shape) {
  const auto list = line.text("tokens");
  if (list && shape.find("tokens=") != std::string_view::npos) {
    throw UsageError("--tokens: the shape has tokens, too; expected one of them");
  }
  if (!list) return {parse_shape(shape).tokens};
  std::vector<int64_t> all;
  for (const std::string& text : split_list("tokens", *list)) {
    const auto tokens = parse_integer(text);
    if (!tokens || *tokens < 1 || *tokens > kMostTokens) {
      throw UsageError(fmt::format("--tokens {}: expected integers from 1 to {}, such as 512,16384",
                                   traces::quoted(*list), kMostTokens));
    }
    all.push_back(*tokens);
  }
  return all;
}

// Appends the floors of one layer.
void add_floors(const traces::Layer& layer, const std::string& what, bool quiet, FloorReport& report) {
  Progress progress("detection floor of " + what, !quiet);
  for (DetectionFloor& floor : detection_floors(
           layer, report.declared, [&](int64_t done, int64_t whole) { progress.update(done, whole); })) {
    report.floors.push_back(std::move(floor));
  }
}

FloorReport floors_of_shape(const CommandLine& line, const std::string& text) {
  refuse_options(line, {"layers"}, "needs a trace");
  FloorReport report{declared_arithmetic(line), {}, {}, {}, 0, {}};
  RandomShape shape = parse_shape(text);
  report.seed = shape.seed;
  const std::vector<int64_t> all_tokens = token_list(line, text);
  const std::string whole = canonical(shape);
  report.shape = whole.substr(whole.find(':') + 1);  // the tokens are in the table
  for (const int64_t tokens : all_tokens) {
    shape.tokens = tokens;
    add_floors(random_layer(shape, report.declared.input_storage()), fmt::format("{} tokens", tokens),
               line.has("quiet"), report);
  }
  return report;
}

FloorReport floors_of_trace(const CommandLine& line, const std::string& path) {
  refuse_options(line, {"tokens"}, "is for random numbers: a trace has its own tokens");
  FloorReport report{declared_arithmetic(line), {}, {}, {}, 0, {}};
  const traces::Trace trace(path, header_options(line));
  report.trace = trace.info();
  const std::vector<int64_t> layers = chosen_layers(line, trace.info());
  {
    Progress progress("hashing", !line.has("quiet"));
    report.trace_sha256 = trace.sha256([&](int64_t done, int64_t whole) { progress.update(done, whole); });
  }
  for (const int64_t l : layers)
    add_floors(trace.read_layer(l), fmt::format("layer {}", trace.info().layer_number(l)), line.has("quiet"),
               report);
  return report;
}

}  // namespace

std::string floor_details() { return kFloorDetails + shape_help(); }

void add_floor_options(CommandLine& line) {
  line.add(
      "floor", "TRACE|SHAPE",
      "instead of judging a dump: the smallest faults that are always found, of a trace's recorded numbers or "
      "of random ones");
  line.add("storage", "TYPE",
           "with --floor, as all that follow: F64, F32, F16 or BF16, of cache and results");
  line.add("accumulate", "TYPE", "F64 or F32 (default: F64 if stored in F64, else F32)");
  line.add("weights", "TYPE", "of attention weights, if they are rounded before they multiply values");
  line.add("partials", "TYPE", "of outputs of the cache's parts, if they are rounded before they are merged");
  line.add("splits", "N", "most parts of the cache with an output each");
  line.add("tile", "N|any", "tokens whose terms are added up before their sum is handed on");
  line.add("products", "TF32", "factors are rounded or truncated to TF32 before they are multiplied");
  line.add("tokens", "N[,N]", "numbers of tokens of random numbers");
  line.add("layers", "L[,L]", "layers of a trace, such as 0,3-5 (default: all)");
}

bool print_floors(const CommandLine& line) {
  const auto input = line.text("floor");
  if (!input) {
    refuse_options(
        line,
        {"storage", "accumulate", "weights", "partials", "splits", "tile", "products", "tokens", "layers"},
        "needs --floor");
    return false;
  }
  line.positionals("TRACE or DUMP", 0, 0);
  std::vector<std::string> inputs;
  if (!is_shape(*input)) inputs.push_back(*input);
  const std::vector<std::string> columns = chosen_columns(line, floor_columns());
  Outputs outputs(line, inputs, "floor");
  const FloorReport report = is_shape(*input) ? floors_of_shape(line, *input) : floors_of_trace(line, *input);
  const Part part = floor_part(report);
  std::cout << text_report(report, part, text_style(line), columns);
  outputs.write(part, provenance(environment(), report.trace ? Json() : Json(report.seed)));
  return true;
}

}  // namespace kvbound::sim
