#include "dump.hpp"

#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <functional>
#include <span>
#include <type_traits>

#include <fmt/format.h>

#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/sim/diff/claims/claims.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/traces/layer_list.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/sha256.hpp>

#include "backend.hpp"
#include "spool.hpp"

namespace kvbound::sim {

namespace {

std::string digest(const std::string& text) { return traces::sha256_of(text).substr(0, 16); }

}  // namespace

std::string dump_name(const Run& run) {
  const auto plain = [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') ||
           std::string_view("=.+@%-").find(c) != std::string_view::npos;
  };
  std::string policy = canonical(run.policy.policy);
  const std::string hash = "~" + digest(policy);
  std::string rest = "@" + to_string(run.budget) + "@" + run.backend + ".safetensors";
  for (std::string* part : {&policy, &rest}) {
    std::ranges::replace_if(*part, std::not_fn(plain), '_');
  }
  if (policy.size() + rest.size() > NAME_MAX) {
    policy.resize(NAME_MAX - rest.size() - hash.size());  // the rest is short: a budget and a backend
    policy += hash;
  }
  return policy + rest;
}

namespace {

template <class Number>
std::vector<Number> concatenated(const std::vector<std::vector<Number>>& parts) {
  std::vector<Number> all;
  for (const std::vector<Number>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<int64_t> offsets(const std::vector<std::vector<int64_t>>& parts) {
  std::vector<int64_t> result{0};
  for (const std::vector<int64_t>& part : parts) {
    result.push_back(result.back() + std::ssize(part));
  }
  return result;
}

int64_t elements(const traces::TensorDeclaration& tensor) {
  int64_t product = 1;
  for (const int64_t size : tensor.shape) product *= size;
  return product;
}

}  // namespace

Dump::Dump(const Run& run, const traces::TraceInfo& trace, const std::string& trace_sha256,
           const std::string& spool_folder, const GivenFacts& facts)
    : metadata_{{"format", "kvbound-dump"},
                {"version", "1"},
                {"policy", canonical(run.policy.policy)},
                {"budget", to_string(run.budget)},
                {"backend", run.backend},
                {"storage", std::string(name(storage_of(run.backend, trace.storage)))},
                {"accumulate", std::string(name(accumulation_of(run.backend)))},
                {"trace_sha256", trace_sha256}},
      shape_(trace.shape),
      trace_layers_(trace.layers),
      prompt_tokens_(trace.prompt_tokens),
      evicts_(evicts(run.policy.policy.host)),
      merges_(rules_of(run.policy.policy.merge).merges),
      records_targets_(run.backend != kReference),
      spool_(std::make_unique<Spool>(spool_folder)) {
  if (trace.heads != traces::CacheHeads::kv) metadata_.emplace_back("heads", name(trace.heads));
  if (const std::string* const file = given_file(run.policy.policy.host))
    metadata_.emplace_back("given_sha256", facts.at(*file).sha256);
  if (const HeadScores* const scores = head_scores(run.policy.policy))
    metadata_.emplace_back("head_scores_sha256", scores->sha256);
}

Dump::~Dump() = default;
Dump::Dump(Dump&&) noexcept = default;

template <class Number>
void Dump::append(int64_t layer, const char* tensor, std::vector<int64_t> shape,
                  std::span<const Number> numbers) {
  const Dtype dtype = std::is_same_v<Number, double> ? Dtype::f64 : Dtype::i64;
  tensors_.push_back({fmt::format("layers.{}.{}", layer, tensor), dtype, std::move(shape)});
  spool_->write(numbers);
}

void Dump::add(int64_t layer, const LayerRecord& record) {
  layers_.push_back(layer);
  const auto add_integers = [&](const char* tensor, std::span<const int64_t> numbers) {
    append(layer, tensor, {std::ssize(numbers)}, numbers);
  };
  const auto add_matrix = [&](const char* tensor, const Matrix& matrix) {
    append(layer, tensor, {matrix.rows(), matrix.cols()}, matrix.numbers());
  };
  const PromptRecord& prompt = record.prompt;
  add_integers("kept", concatenated(prompt.kept));
  add_integers("kept_offsets", offsets(prompt.kept));
  if (prompt.score.rows() > 0) {
    add_integers("score_positions", prompt.score_positions);
    add_matrix("score", prompt.score);
  }
  if (prompt.stage_two_score) add_matrix("stage_two_score", *prompt.stage_two_score);
  if (prompt.projected_value_norms) add_matrix("projected_value_norms", *prompt.projected_value_norms);

  if (const auto rows = prompt_rows(prompt)) add_rows(layer, "", {std::ssize(rows->votes)}, *rows);
  if (const auto targets = prompt_targets(prompt); targets && records_targets_) {
    append(layer, "target_of", {shape_.kv_heads, prompt_tokens_}, std::span<const int64_t>(*targets));
  }
  std::vector<double> output;
  for (const StepRecord& step : record.steps) {
    output.insert(output.end(), step.output.numbers().begin(), step.output.numbers().end());
  }
  append(layer, "output", {std::ssize(record.steps), shape_.query_heads, shape_.head_dim},
         VectorView(output));
  const int64_t tokens = prompt_tokens_ + std::ssize(record.steps);
  if (const auto rebuilt = rebuilt_targets(record.steps, tokens); rebuilt && records_targets_) {
    const int64_t rebuilds = std::ssize(*rebuilt) / (shape_.kv_heads * tokens);
    append(layer, "rebuilt_target_of", {rebuilds, shape_.kv_heads, tokens},
           std::span<const int64_t>(*rebuilt));
  }
  if (const auto rows = rebuilt_rows(record.steps); rows && records_targets_) {
    add_rows(layer, "rebuilt_", {std::ssize(rows->votes)}, *rows);
  }
  if (const auto rows = step_rows(record)) {
    add_rows(layer, "step_", {std::ssize(record.steps), shape_.kv_heads}, *rows);
  }
  if (!evicts_) return;
  add_choices(layer, "evicted", record.steps, &StepRecord::evicted);
  if (merges_) add_choices(layer, "merged_into", record.steps, &StepRecord::merged_into);
}

// Appends one tensor with a position per step and KV head.
void Dump::add_choices(int64_t layer, const char* tensor, const std::vector<StepRecord>& steps,
                       std::vector<int64_t> StepRecord::*choices) {
  std::vector<int64_t> all;
  for (const StepRecord& step : steps) all.insert(all.end(), (step.*choices).begin(), (step.*choices).end());
  append(layer, tensor, {std::ssize(steps), shape_.kv_heads}, std::span<const int64_t>(all));
}

// Appends the votes, keys and values of merged entries, whose number is the product of `extents`.
void Dump::add_rows(int64_t layer, const std::string& prefix, const std::vector<int64_t>& extents,
                    const MergedRows& rows) {
  std::vector<int64_t> shape = extents;
  shape.push_back(shape_.head_dim);
  append(layer, (prefix + "votes").c_str(), extents, VectorView(rows.votes));
  append(layer, (prefix + "merged_key").c_str(), shape, rows.keys.numbers());
  append(layer, (prefix + "merged_value").c_str(), shape, rows.values.numbers());
}

void Dump::add(int64_t layer, const LayerMetrics& metrics) {
  const auto add_matrix = [&](const char* tensor, const Matrix& matrix) {
    append(layer, tensor, {matrix.rows(), matrix.cols()}, matrix.numbers());
  };
  add_matrix("perturbation", metrics.perturbation);
  add_matrix("kept_mass", metrics.kept_mass);
  if (!merges_) add_matrix("bound", *metrics.bound);
  append(layer, "layer_perturbation", {metrics.perturbation.rows()}, VectorView(metrics.layer_perturbation));
}

void Dump::prepare(const std::string& path) {
  constexpr int64_t kPiece = int64_t{1} << 17;  // numbers copied at a time
  if (std::ssize(layers_) < trace_layers_) metadata_.emplace_back("layers", traces::layer_list(layers_));
  writer_ = std::make_unique<traces::SafetensorsWriter>(path, metadata_, tensors_);
  const auto copy = [&]<class Number>(const traces::TensorDeclaration& tensor, std::vector<Number> piece) {
    for (int64_t left = elements(tensor); left > 0; left -= std::ssize(piece)) {
      piece.resize(std::min(left, kPiece));
      spool_->read(std::span<Number>(piece));
      if constexpr (std::is_same_v<Number, double>) {
        // Scores may be infinite: a stage-two score because epsilon can be any finite number, and the exact
        // removal error of the only entry that a query sees.
        writer_->append(tensor.name, VectorView(piece), traces::NonFiniteNumbers::allowed);
      } else {
        writer_->append(tensor.name, std::span<const Number>(piece));
      }
    }
  };
  for (const traces::TensorDeclaration& tensor : tensors_) {
    if (tensor.dtype == Dtype::i64) {
      copy(tensor, std::vector<int64_t>());
    } else {
      copy(tensor, std::vector<double>());
    }
  }
  writer_->prepare();
  spool_.reset();
}

void Dump::commit() { writer_->finish(); }

}  // namespace kvbound::sim
