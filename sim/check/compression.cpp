#include "compression.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/score_rules.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/reference/core/session_check.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/sim/diff/agreement.hpp>
#include <kvbound/sim/diff/judge/whole_rows.hpp>
#include <kvbound/sim/options/budget.hpp>
#include <kvbound/sim/options/policy.hpp>

#include "check_arithmetic.hpp"
#include "input_digest.hpp"
#include "kv_tensors.hpp"

namespace kvbound::sim {
namespace {

using traces::MetadataFields;
using traces::TensorEntry;

// The result of parse() on an option's text; what it refuses is a fault of the option.
template <class Parse>
auto parsed(const MetadataFields& options, const char* name, const char* otherwise, const Parse& parse) {
  try {
    return parse(options.has(name) ? options.text(name) : otherwise);
  } catch (const InvalidPolicy& error) {
    const std::string problem = error.what(), subject = std::string(name) + " ";
    options.fail(name, problem.starts_with(subject) ? problem.substr(subject.size()) : problem);
  }
}

// Throws TraceError unless the query heads are whole groups of the KV heads.
void require_groups(const CheckFile& file, const TensorEntry& entry, const LayerShape& shape) {
  if (shape.query_heads > 0 && shape.query_heads % shape.kv_heads == 0) return;
  file.refuse(entry, ".shape",
              fmt::format("has {} query heads; expected a multiple of the {} KV heads", shape.query_heads,
                          shape.kv_heads));
}

// The keys or values of a cache that must have one sequence.
Tensor only_sequence(const CheckFile& file, const KvTensors& cache,
                     Tensor (KvTensors::*part)(int64_t) const) {
  if (cache.sequences() == 1) return (cache.*part)(0);
  throw TraceError(file.path(), -1, "kv_indptr",
                   fmt::format("has {} sequences; expected one", cache.sequences()));
}

// W^O.   returns [query_heads * head_dim, model_dim]
Matrix projection_of(CheckFile& file, const LayerShape& shape) {
  const int64_t rows = shape.query_heads * shape.head_dim;
  const TensorEntry& entry = file.real("w_o", {{"query_heads * head_dim", rows}, "model_dim"});
  Matrix projection(rows, file.length("model_dim"));
  file.tensors().read(entry, 0, std::span(projection.data(), projection.numbers().size()));
  return projection;
}

// A layer at the end of its prompt, of what a file has of it.
class CompressedLayer {
 public:
  CompressedLayer(CheckFile& file, Rounds rounds)
      : file_(file), policy_(parsed(file.options(), "policy", "snapkv", parse_policy)) {
    file.refuse_unsupported();
    const bool merges = rules_of(policy_.merge).merges;
    projects_ = rules_of(policy_.selection).two_stage || rules_of(policy_.score).space == Space::projected;
    needs_values_ = projects_ || merges || rules_of(policy_.score).change;
    const bool has_values = needs_values_ || file.has("v");
    const KvTensors cache(file, has_values ? KvTensors::Part::both : KvTensors::Part::keys);
    read_cache(cache, has_values);
    read_queries(cache);
    layer_.output_projection = projects_ || file.has("w_o")
                                   ? projection_of(file, layer_.shape)
                                   : Matrix(layer_.shape.query_heads * layer_.shape.head_dim, 1);
    layer_.shape.model_dim = layer_.output_projection.cols();
    const MetadataFields options = file.options();
    const auto head_dim = static_cast<double>(layer_.shape.head_dim);
    layer_.scale = options.has("sm_scale") ? options.positive("sm_scale") : 1 / std::sqrt(head_dim);
    arithmetic_ = check_arithmetic(file, {"q", "k", "v", "w_o"}, rounds);
    entries_ = parsed(options, "budget", "100%", parse_budget).entries(layer_.prompt_tokens);
    try {
      require_valid(policy_, entries_, layer_.prompt_tokens, layer_.window_queries);
    } catch (const InvalidPolicy& error) {
      throw TraceError(file.path(), -1, fmt::format("policy {}, budget {}", canonical(policy_), entries_),
                       error.what());
    }
  }

  const Policy& policy() const { return policy_; }
  int64_t tokens() const { return layer_.prompt_tokens; }
  int64_t entries() const { return entries_; }

  CheckResult judge(LayerClaims claims) const {
    const DeclaredArithmetic& declared = arithmetic_.declared;
    const Dtype merged = declared.accumulate == Dtype::f64 ? Dtype::f64 : declared.storage;
    const TestedImplementation implementation{policy_, entries_, 0, operations(), arithmetic_.inputs, merged};
    CheckResult result{{}, declared};
    CheckedLayer& layer = result.cases.emplace(CheckCases{"layer", {inputs()}}).layer.emplace();
    layer = {layer_.shape, {std::move(claims), {}, 0, declared.accumulate}};
    layer.claims.judged = judge_layer(layer_, implementation, layer.claims.claims);
    result.tensors = layer.claims.judged.tensors;
    return result;
  }

 private:
  // Of what the policy reads.
  std::string inputs() const {
    const LayerShape& shape = layer_.shape;
    InputDigest digest;
    digest.add(fmt::format("{} {} {}", canonical(policy_), entries_, static_cast<float>(layer_.scale)))
        .add({shape.query_heads, layer_.window_queries, shape.head_dim}, layer_.queries.numbers())
        .add({shape.kv_heads, layer_.prompt_tokens, shape.head_dim}, layer_.keys.numbers());
    if (needs_values_)
      digest.add({shape.kv_heads, layer_.prompt_tokens, shape.head_dim}, layer_.values.numbers());
    if (projects_) digest.add({shape.model_dim}, layer_.output_projection.numbers());
    return digest.text();
  }

  // The declared type of weights is also that of the weights that scores are sums of.
  OperationArithmetic operations() const {
    OperationArithmetic operations(arithmetic_.declared.arithmetic());
    if (!arithmetic_.declared.weights) return operations;
    const RealFormat format = *real_format(*arithmetic_.declared.weights);
    for (reference::Arithmetic* scores : {&operations.window_attention, &operations.change_scores}) {
      scores->score_weights = format.unit_roundoff();
      scores->score_weights_floor = format.smallest_subnormal() / 2;
    }
    return operations;
  }

  void read_cache(const KvTensors& cache, bool has_values) {
    layer_.keys = only_sequence(file_, cache, &KvTensors::keys);
    layer_.prompt_tokens = cache.tokens(0);
    layer_.shape.kv_heads = cache.kv_heads();
    layer_.shape.head_dim = cache.head_dim();
    layer_.values =
        has_values ? cache.values(0) : Tensor(cache.kv_heads(), cache.tokens(0), cache.head_dim());
    if (!has_values || cache.value_dim() == cache.head_dim()) return;
    throw TraceError(file_.path(), -1, "v",
                     fmt::format("has head_dim {}; k has {}", cache.value_dim(), cache.head_dim()));
  }

  void read_queries(const KvTensors& cache) {
    const TensorEntry& entry = file_.real("q", {"window", "query_heads", "head_dim"});
    const int64_t window = file_.length("window"), heads = file_.length("query_heads");
    layer_.shape.query_heads = heads;
    layer_.window_queries = window;
    require_groups(file_, entry, layer_.shape);
    if (window < 1 || window > cache.tokens(0)) {
      file_.refuse(entry, ".shape",
                   fmt::format("has {} queries; expected 1 to {}, the tokens of k", window, cache.tokens(0)));
    }
    // As a cache of `window` tokens, whose heads are the query heads.
    layer_.queries = traces::read_kv_cache(
        file_.tensors(), entry, {traces::KvLayout::nhd, window, heads, cache.head_dim()}, {window, 0, {}});
  }

  CheckFile& file_;
  Policy policy_;
  traces::Layer layer_;
  CheckArithmetic arithmetic_;
  int64_t entries_ = 0;
  bool projects_ = false, needs_values_ = false;
};

std::vector<std::vector<int64_t>> kept_of(CheckFile& file, LayerClaims& claims) {
  const std::vector<int64_t> all = file.integers(file.integral("kept", {"kept rows"}));
  const std::vector<int64_t> offsets =
      file.offsets("kept_offsets", {{"kv_heads + 1", file.length("kv_heads") + 1}}, std::ssize(all));
  std::vector<std::vector<int64_t>> kept;
  for (size_t g = 0; g + 1 < offsets.size(); ++g)
    kept.emplace_back(all.begin() + offsets[g], all.begin() + offsets[g + 1]);
  claims.kept_offsets = offsets;
  return kept;
}

}  // namespace

CheckResult check_scores(CheckFile& file) {
  const CompressedLayer layer(file, Rounds::scores);
  const int64_t scored = rules_of(layer.policy().host, layer.tokens(), layer.entries()).scored;
  const Dimensions shape{"kv_heads", {"scored", scored}};
  LayerClaims claims;
  claims.score = file.claim(file.real("score", shape));
  if (rules_of(layer.policy().selection).records_stage_two && file.has("stage_two_score")) {
    claims.stage_two_score = file.claim(file.real("stage_two_score", shape));
  }
  return layer.judge(std::move(claims));
}

CheckResult check_norms(CheckFile& file) {
  const MetadataFields options = file.options();
  const std::string norm_name = options.has("norm") ? options.text("norm") : "l1";
  if (norm_name != "l1" && norm_name != "l2") options.refuse("norm", "l1 or l2");
  const Norm norm = norm_name == "l1" ? Norm::l1 : Norm::l2;
  const TensorEntry& claimed = file.real("norms", {"query_heads", "n"});
  const KvTensors cache(file, KvTensors::Part::values);
  LayerShape shape{file.length("query_heads"), cache.kv_heads(), cache.value_dim(), 0};
  require_groups(file, claimed, shape);
  const Tensor values = only_sequence(file, cache, &KvTensors::values);
  file.real("norms", {"query_heads", {"tokens of v", cache.tokens(0)}});
  const Matrix projection = projection_of(file, shape);
  const CheckArithmetic arithmetic = check_arithmetic(file, {"v", "w_o"}, Rounds::products);
  const Matrix expected = reference::projected_value_norms(shape, values, projection, norm);
  const Matrix bounds = reference::projected_value_norm_errors(
      shape, values, projection, norm, expected,
      arithmetic.with_rounding_of({values.numbers(), projection.numbers()}));
  RealClaim claim = file.claim(claimed);
  CheckResult result{{compare("norms", claim, expected.numbers(), bounds.numbers())}, arithmetic.declared};
  judge_rows({claim, expected.numbers(), bounds.numbers()}, rows_of(claim), "norms", result.tensors[0]);
  InputDigest inputs;
  inputs.add(norm_name)
      .add({shape.kv_heads, cache.tokens(0), shape.head_dim}, values.numbers())
      .add({shape.query_heads, projection.cols()}, projection.numbers());
  result.cases = {"layer", {inputs.text()}};
  result.cases->rows.push_back(
      checked_rows(std::move(claim), result.tensors[0], {shape.query_heads}, {0, shape.query_heads}));
  return result;
}

CheckResult check_merge(CheckFile& file) {
  const CompressedLayer layer(file, Rounds::outputs);
  const bool merges = rules_of(layer.policy().merge).merges;
  LayerClaims claims;
  claims.kept = kept_of(file, claims);
  const auto rows = static_cast<int64_t>(claims.kept_offsets->back());
  if (rules_of(layer.policy().merge).target && file.has("target_of")) {
    claims.target_of =
        file.integers(file.integral("target_of", {"kv_heads", {"tokens of k", layer.tokens()}}));
  }
  const auto claim = [&](const char* name, const Dimensions& shape) -> std::optional<RealClaim> {
    if (!merges || !file.has(name)) return std::nullopt;
    return file.claim(file.real(name, shape));
  };
  claims.votes = claim("votes", {{"kept rows", rows}});
  claims.merged_key = claim("merged_key", {{"kept rows", rows}, "head_dim"});
  claims.merged_value = claim("merged_value", {{"kept rows", rows}, "head_dim"});
  return layer.judge(std::move(claims));
}

}  // namespace kvbound::sim
