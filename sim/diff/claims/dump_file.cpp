#include "dump_file.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/reference/core/allocation_rules.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/sim/options/given_files.hpp>
#include <kvbound/sim/options/head_budgets.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/layer_list.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/metadata_fields.hpp>

#include "dump_tensors.hpp"

namespace kvbound::sim {
namespace {

using traces::in_quotes;
using traces::MetadataFields;
using traces::printable;
using traces::TensorEntry;

int64_t sum_of(std::span<const int64_t> budgets) {
  return std::accumulate(budgets.begin(), budgets.end(), int64_t{0});
}

// The result of parse() on a field's text; an InvalidPolicy is reported as a fault of the field.
template <class Parse>
auto parsed(const MetadataFields& fields, const std::string& field, const Parse& parse) {
  try {
    return parse(fields.text(field));
  } catch (const InvalidPolicy& error) {
    fields.fail(field, error.what());
  }
}

traces::CacheHeads cache_heads_in(const MetadataFields& fields) {
  if (!fields.has("heads")) return traces::CacheHeads::kv;
  const auto heads = traces::cache_heads(fields.text("heads"));
  if (!heads) fields.refuse("heads", "kv or query");
  return *heads;
}

// Refuses a dump that was computed with another file than that of the path.
void require_hash(const MetadataFields& fields, const std::string& field, const std::string& sha256,
                  const std::string& path) {
  if (fields.has(field) && fields.text(field) != sha256)
    fields.refuse(field, in_quotes(sha256) + ", the hash of " + traces::printable_path(path));
}

// Opens the dump's file of kept sets or scores, if its host has one, of the trace that the dump names.
GivenFiles read_given(const MetadataFields& fields, const DumpInfo& info, const traces::TraceInfo& trace) {
  const std::string* const file = given_file(info.policy.host);
  if (!file) return {};
  GivenFiles given(given_sources({{{*file, info.policy}, info.budget, info.backend}}),
                   given_subject(trace, info.trace_sha256, info.layers));
  require_hash(fields, "given_sha256", given.facts().at(*file).sha256, *file);
  return given;
}

// The dump's policy with the importances of heads, if it names a file of them.
Policy read_head_scores(const MetadataFields& fields, const Policy& policy) {
  Policy read = with_head_scores(policy);
  if (const HeadScores* const scores = head_scores(read))
    require_hash(fields, "head_scores_sha256", scores->sha256, scores->path);
  return read;
}

// given  receives the file of the policy's host
DumpInfo read_info(const traces::Metadata& metadata, const traces::TraceInfo& trace, GivenFiles& given) {
  const MetadataFields fields(metadata);
  fields.require("format", "kvbound-dump");
  fields.require("version", "1");
  if (const traces::CacheHeads heads = cache_heads_in(fields); heads != trace.heads) {
    fields.fail("heads",
                fmt::format("the dump is of caches of {} heads, the trace was opened with those of {} heads",
                            name(heads), name(trace.heads)));
  }
  DumpInfo info;
  info.policy = parsed(fields, "policy", parse_policy);
  info.budget = parsed(fields, "budget", parse_budget);
  info.backend = fields.text("backend");
  info.declared = declared_arithmetic(fields);
  info.trace_sha256 = fields.text("trace_sha256");
  const auto layers = traces::parse_layer_list(
      fields.has("layers") ? fields.text("layers") : fmt::format("0-{}", trace.layers - 1), trace.layers);
  if (!layers) {
    fields.refuse("layers",
                  fmt::format("ascending layers or ranges such as 0,3-5 within 0..{}", trace.layers - 1));
  }
  info.layers = *layers;
  given = read_given(fields, info, trace);
  info.policy = with_facts(read_head_scores(fields, info.policy), given.facts());
  parsed(fields, "budget", [&](const std::string&) {
    RunBudgets budgets =
        run_budgets(info.policy, info.budget, given.facts(), budget_scope(trace, info.layers));
    info.entries = budgets.entries;
    info.budgets = std::move(budgets.heads);
    return 0;
  });
  return info;
}

// Whether KV heads may keep different numbers of entries, so that only offsets tell
// where one head's entries end.
bool has_ragged_heads(const Policy& policy) {
  const auto given = rules_of(policy.host, 0, 0).given;
  return (given && given->keeps()) || rules_of(policy.allocation).across_heads ||
         rules_of(policy.merge).order == MergeOrder::merge_first;
}

std::string known_tensors(const Policy& policy) {
  std::string list;
  for (const DumpTensor& tensor : dump_tensors()) {
    if (has(policy, tensor)) (list += list.empty() ? "" : ", ") += tensor.name;
  }
  return list;
}

// The name of the tensor `evicted` in dumps written before it was renamed.
constexpr std::string_view kFormerEvicted = "left";

// A parsed tensor name: layers.{layer}.{tensor}.
struct LayerTensor {
  int64_t layer = 0;
  std::string tensor;
};

std::optional<LayerTensor> taken_apart(std::string_view name) {
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view digits = name.substr(0, dot);
  const auto range = traces::parse_layer_range(digits, std::numeric_limits<int64_t>::max());
  if (!range || digits != std::to_string(range->first)) return std::nullopt;
  const std::string_view tensor = name.substr(dot + 1);
  return LayerTensor{range->first, std::string(tensor == kFormerEvicted ? "evicted" : tensor)};
}

const TensorEntry* find_tensor(const traces::TensorFile& file, int64_t layer, std::string_view tensor) {
  const TensorEntry* entry = file.find(fmt::format("layers.{}.{}", layer, tensor));
  return entry || tensor != "evicted" ? entry : file.find(fmt::format("layers.{}.{}", layer, kFormerEvicted));
}

// Checks the names, types and shapes of a dump's tensors.
class TensorCheck {
 public:
  TensorCheck(const traces::TensorFile& file, const traces::TraceInfo& trace, DumpInfo& info)
      : file_(file), trace_(trace), info_(info) {}

  void run() {
    info_.steps = trace_.decode_tokens;
    std::set<const DumpTensor*> found;
    for (const TensorEntry& entry : file_.tensors()) found.insert(&tensor_of(entry));
    for (const DumpTensor& tensor : dump_tensors()) {
      if (found.contains(&tensor)) info_.tensors.push_back(tensor.name);
    }
    // The number of rebuilds follows from that of the steps, which other tensors tell.
    for (const bool of_rebuilds : {false, true}) {
      for (const DumpTensor& tensor : dump_tensors()) {
        if (!found.contains(&tensor) || (tensor.shape.front() == Extent::rebuilds) != of_rebuilds) continue;
        for (const int64_t layer : info_.layers) check(layer, tensor);
      }
    }
  }

 private:
  [[noreturn]] void refuse(const TensorEntry& entry, const std::string& field,
                           const std::string& problem) const {
    throw TraceError(file_.path(), entry.header_offset, printable(entry.name) + field, problem);
  }

  // The dump tensor with this entry's name, after checking that the policy has it and that
  // the layer is in the dump.
  const DumpTensor& tensor_of(const TensorEntry& entry) const {
    const auto parts = taken_apart(entry.name);
    if (!parts) refuse(entry, "", "no tensor of a dump; expected layers.{l}. and one of " + known());
    const DumpTensor* tensor = find_dump_tensor(parts->tensor);
    const bool is_of = tensor && has(info_.policy, *tensor);
    if (tensor && !is_of && !tensor->only_of.empty()) {
      refuse(entry, "",
             fmt::format("only policies that {} have this; this is {}", tensor->only_of, policy()));
    }
    if (!is_of) refuse(entry, "", "no tensor of a dump of " + policy() + "; known: " + known());
    if (parts->layer >= trace_.layers) {
      refuse(entry, "", fmt::format("the trace has {} layers", trace_.layers));
    }
    if (!std::ranges::binary_search(info_.layers, parts->layer)) {
      refuse(entry, "", "the metadata says layers=" + traces::layer_list(info_.layers));
    }
    const TensorEntry* read = find_tensor(file_, parts->layer, tensor->name);
    if (read != &entry) refuse(entry, "", "is " + read->name + " by its former name; expected one of them");
    return *tensor;
  }
  std::string known() const { return known_tensors(info_.policy); }
  std::string policy() const { return canonical(info_.policy); }

  void check(int64_t layer, const DumpTensor& tensor) {
    const TensorEntry* entry = find_tensor(file_, layer, tensor.name);
    const std::string name = fmt::format("layers.{}.{}", layer, tensor.name);
    if (!entry) throw TraceError(file_.path(), -1, name, "this tensor is missing, but other layers have it");
    const bool suits =
        tensor.integral ? entry->dtype == Dtype::i64 || entry->dtype == Dtype::i32 : is_real(entry->dtype);
    if (!suits) {
      refuse(*entry, ".dtype",
             fmt::format("is {}; expected {}", kvbound::name(entry->dtype),
                         tensor.integral ? "I64 or I32" : "F64, F32, F16 or BF16"));
    }
    if (tensor.name == "kept") {
      check_kept(*entry, layer);
    } else {
      check_shape(*entry, tensor, layer);
    }
  }

  void check_kept(const TensorEntry& entry, int64_t layer) {
    const bool has_offsets = file_.find(fmt::format("layers.{}.kept_offsets", layer));
    if (has_offsets && entry.shape.size() == 1) return;  // read_kept checks one against the other
    if (has_ragged_heads(info_.policy)) {
      refuse(entry, "",
             fmt::format("needs layers.{}.kept_offsets: KV heads of this policy may keep different numbers",
                         layer));
    }
    require(entry, {sum_of(info_.budgets[layer])}, "[kv_heads * budget]");
  }

  void check_shape(const TensorEntry& entry, const DumpTensor& tensor, int64_t layer) {
    std::vector<int64_t> shape;
    std::vector<std::string> meaning;
    for (const Extent extent : tensor.shape) {
      const auto [length, text] = measured(extent, entry, layer);
      shape.push_back(length);
      meaning.push_back(text);
    }
    const bool other_steps = tensor.shape.front() == Extent::steps && first_with_steps_ != entry.name &&
                             info_.steps != trace_.decode_tokens;
    require(entry, shape,
            fmt::format("[{}]{}", fmt::join(meaning, ", "),
                        other_steps ? " as " + first_with_steps_ + " has it," : ""));
  }

  // A dimension's expected length and its name in messages.
  std::pair<int64_t, std::string> measured(Extent extent, const TensorEntry& entry, int64_t layer) {
    const LayerShape& shape = trace_.shape;
    switch (extent) {
      case Extent::steps:
        return {steps_of(entry), "steps"};
      case Extent::query_heads:
        return {shape.query_heads, "query_heads"};
      case Extent::kv_heads:
        return {shape.kv_heads, "kv_heads"};
      case Extent::kv_head_offsets:
        return {shape.kv_heads + 1, "kv_heads + 1"};
      case Extent::head_dim:
        return {shape.head_dim, "head_dim"};
      case Extent::prompt_tokens:
        return {trace_.prompt_tokens, "prompt_tokens"};
      case Extent::window_queries:
        return {trace_.window_queries, "window_queries"};
      case Extent::scored: {
        const int64_t scored = rules_of(info_.policy.host, trace_.prompt_tokens, info_.entries).scored;
        return {scored, scored == trace_.prompt_tokens ? "prompt_tokens" : "prompt_tokens - always kept"};
      }
      case Extent::kept_of_all_heads:
        return {kept_entries(entry, layer), "all that is kept"};
      case Extent::tokens:
        return {trace_.prompt_tokens + info_.steps, "prompt_tokens + steps"};
      case Extent::rebuilds:
        return {rules_of(info_.policy.merge).rebuilds_in(info_.steps), "rebuilds"};
      case Extent::kept_of_rebuilds:
        return {kept_of_rebuilds(entry, layer), "all that rebuilds keep"};
    }
    return {};  // not reached
  }

  // Number of entries that all KV heads of a layer keep together.
  int64_t kept_entries(const TensorEntry& entry, int64_t layer) const {
    if (const TensorEntry* kept = file_.find(fmt::format("layers.{}.kept", layer))) return kept->elements;
    if (has_ragged_heads(info_.policy)) {
      refuse(entry, "",
             fmt::format("needs layers.{}.kept: KV heads of this policy may keep different numbers", layer));
    }
    return sum_of(info_.budgets[layer]);
  }

  // Number of rows of the rebuilt caches: as the first tensor of them has it, for a wrong number of kept
  // entries is a difference and no fault of the file.
  int64_t kept_of_rebuilds(const TensorEntry& entry, int64_t layer) const {
    for (const DumpTensor& tensor : dump_tensors()) {
      if (tensor.shape.front() != Extent::kept_of_rebuilds) continue;
      const TensorEntry* first = find_tensor(file_, layer, tensor.name);
      if (first && !first->shape.empty()) return first->shape.front();
    }
    return entry.elements;
  }

  void require(const TensorEntry& entry, const std::vector<int64_t>& shape,
               const std::string& meaning) const {
    if (entry.shape == shape) return;
    refuse(entry, ".shape",
           "is " + traces::shape_text(entry.shape) + "; expected " + meaning + " = " +
               traces::shape_text(shape));
  }

  // The number of recorded steps, set by the first tensor with a step dimension.
  int64_t steps_of(const TensorEntry& entry) {
    if (first_with_steps_.empty() && !entry.shape.empty() && entry.shape.front() <= trace_.decode_tokens) {
      info_.steps = entry.shape.front();
      first_with_steps_ = entry.name;
    }
    return info_.steps;
  }

  const traces::TensorFile& file_;
  const traces::TraceInfo& trace_;
  DumpInfo& info_;
  std::string first_with_steps_;
};

}  // namespace

traces::CacheHeads cache_heads_of_dump(const std::string& path, int64_t header_limit) {
  const traces::SafetensorsFile file(path, header_limit);
  return cache_heads_in(MetadataFields(file.metadata()));
}

DumpFile::DumpFile(const std::string& path, const traces::TraceInfo& trace, int64_t header_limit)
    : DumpFile(std::make_unique<traces::SafetensorsFile>(path, header_limit), trace) {}

DumpFile::DumpFile(std::unique_ptr<traces::TensorFile> file, const traces::TraceInfo& trace)
    : file_(std::move(file)), trace_(trace), info_(read_info(file_->metadata(), trace, given_)) {
  TensorCheck(*file_, trace_, info_).run();
}

void DumpFile::require_trace(const std::string& sha256) const {
  if (info_.trace_sha256 == sha256) return;
  MetadataFields(file_->metadata())
      .refuse("trace_sha256", in_quotes(sha256) + ", the hash of " + traces::printable_path(trace_.path));
}

const TensorEntry* DumpFile::find(int64_t layer, const std::string& tensor) const {
  return find_tensor(*file_, layer, tensor);
}

std::vector<int64_t> DumpFile::read_integers(const TensorEntry& entry) const {
  std::vector<int64_t> numbers(entry.elements);
  file_->read(entry, 0, std::span(numbers));
  return numbers;
}

std::optional<RealClaim> DumpFile::read_claim(int64_t layer, const std::string& tensor) const {
  const TensorEntry* entry = find(layer, tensor);
  if (!entry) return std::nullopt;
  RealClaim claim{entry->shape, std::vector<double>(entry->elements), entry->dtype};
  file_->read(*entry, 0, std::span(claim.numbers), traces::NonFiniteNumbers::allowed);
  return claim;
}

std::vector<std::vector<int64_t>> DumpFile::read_kept(int64_t layer,
                                                      const std::vector<int64_t>& offsets) const {
  const std::vector<int64_t> all = read_integers(*find(layer, "kept"));
  const auto size = std::ssize(all);
  const bool tile = offsets.front() == 0 && offsets.back() == size && std::ranges::is_sorted(offsets);
  if (!tile) {
    const TensorEntry& entry = *find(layer, "kept_offsets");
    throw TraceError(path(), entry.begin, printable(entry.name),
                     fmt::format("is {}; expected to ascend from 0 to {}, the length of layers.{}.kept",
                                 traces::shape_text(offsets), size, layer));
  }
  std::vector<std::vector<int64_t>> kept;
  for (size_t g = 0; g + 1 < offsets.size(); ++g)
    kept.emplace_back(all.begin() + offsets[g], all.begin() + offsets[g + 1]);
  return kept;
}

LayerClaims DumpFile::read_layer(int64_t layer) const {
  LayerClaims claims;
  std::vector<int64_t> offsets;
  const std::vector<int64_t>& budgets = info_.budgets[layer];
  for (int64_t g = 0; g <= trace_.shape.kv_heads; ++g) offsets.push_back(sum_of(std::span(budgets).first(g)));
  for (const IntegerTensor& tensor : integer_tensors()) {
    if (const TensorEntry* entry = find(layer, tensor.name)) claims.*tensor.claim = read_integers(*entry);
  }
  for (const RealTensor& tensor : real_tensors()) claims.*tensor.claim = read_claim(layer, tensor.name);
  if (claims.kept_offsets) offsets = *claims.kept_offsets;
  if (find(layer, "kept")) claims.kept = read_kept(layer, offsets);
  return claims;
}

}  // namespace kvbound::sim
