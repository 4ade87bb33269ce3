#include "operations.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/messages.hpp>

#include "attention.hpp"
#include "compact.hpp"
#include "compression.hpp"
#include "topk.hpp"

namespace kvbound::sim {
namespace {

constexpr const char *kArithmetic = "attention norms scores merge", *kOfWeights = "attention scores merge",
                     *kOfSums = "attention merge";
constexpr std::array kOptions{
    CheckOption{"sm-scale", "X", "logits are X q . k; 1/sqrt(head_dim) by default", "attention scores merge"},
    CheckOption{"causal", "BOOL", "queries are the last of their sequence, and do not see later tokens",
                "attention"},
    CheckOption{"window-left", "N", "queries see N tokens before their own; -1: all", "attention"},
    CheckOption{"kv-layout", "NHD|HND", "whether tokens or KV heads come first; NHD by default",
                "attention compact norms scores merge"},
    CheckOption{"lse-base", "e|2", "logarithm of lse; e by default", "attention"},
    CheckOption{"storage", "TYPE", "type that the kernel rounds inputs to, if theirs is wider", kArithmetic},
    CheckOption{"accumulate", "F64|F32", "type of products and sums; F32 by default, F64 if all inputs are",
                kArithmetic},
    CheckOption{
        "weights", "TYPE",
        "type that attention weights are rounded to before they multiply values, or are added to scores",
        kOfWeights},
    CheckOption{"partials", "TYPE",
                "type that outputs of parts of the cache are rounded to before they are merged", kOfWeights},
    CheckOption{"splits", "N", "most parts of the cache with an output each", kOfSums},
    CheckOption{"tile", "N|any", "terms of a sum over tokens that are added before their sum is handed on",
                kOfSums},
    CheckOption{"products", "TF32", "factors are rounded or truncated to TF32 before they are multiplied",
                kArithmetic},
    CheckOption{"score-error", "X", "how far the scores that the kernel saw may be from those in the file",
                "topk"},
    CheckOption{"order", "ORDER", "topk: any or descending; compact: any, kept or ascending", "topk compact"},
    CheckOption{"poison", "X", "what unused rows hold: a number, or its bits as 0x7fc0", "compact"},
    CheckOption{"norm", "l1|l2", "l1 by default", "norms"},
    CheckOption{"policy", "POLICY", "what computed it; snapkv by default (see kvbound policies)",
                "scores merge"},
    CheckOption{"budget", "B", "entries per KV head, or a share such as 20%; 100% by default",
                "scores merge"}};

// What a file may say of itself without any meaning for a check.
constexpr std::array kNotes{"format", "version", "operation", "name",  "source", "backend",
                            "device", "kernel",  "model",     "layer", "note"};

constexpr std::array kOperations{
    CheckOperation{"attention", check_attention},
    CheckOperation{"topk", check_topk},
    CheckOperation{"compact", [](CheckFile& file,
                                 const CheckOperation::ReportProgress&) { return check_compact(file); }},
    CheckOperation{"norms",
                   [](CheckFile& file, const CheckOperation::ReportProgress&) { return check_norms(file); }},
    CheckOperation{"scores",
                   [](CheckFile& file, const CheckOperation::ReportProgress&) { return check_scores(file); }},
    CheckOperation{"merge",
                   [](CheckFile& file, const CheckOperation::ReportProgress&) { return check_merge(file); }}};

}  // namespace

std::string CheckOption::name_in_file() const {
  std::string text = name;
  std::ranges::replace(text, '-', '_');
  return text;
}

std::span<const CheckOption> check_options() { return kOptions; }

CheckResult CheckOperation::result(CheckFile& file, const ReportProgress& progress) const try {
  return run_(file, progress);
} catch (const NonFinite& error) {
  throw TraceError(file.path(), -1, "",
                   fmt::format("its numbers are too large for double precision: {}", error.what()));
}

std::set<std::string> CheckOperation::known_in_file() const {
  std::set<std::string> known(kNotes.begin(), kNotes.end());
  for (const CheckOption& option : kOptions) {
    if (option.is_of(name)) known.insert(option.name_in_file());
  }
  return known;
}

std::span<const CheckOperation> check_operations() { return kOperations; }

const CheckOperation& check_operation(const std::string& name) {
  const auto found = std::ranges::find(kOperations, name, &CheckOperation::name);
  if (found != kOperations.end()) return *found;
  std::vector<std::string_view> known;
  for (const CheckOperation& operation : kOperations) known.push_back(operation.name);
  throw UsageError(
      fmt::format("unknown operation {}; known: {}", traces::quoted(name), fmt::join(known, ", ")));
}

}  // namespace kvbound::sim
