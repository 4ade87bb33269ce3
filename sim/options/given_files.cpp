#include "given_files.hpp"

#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/given_layer.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/session_check.hpp>
#include <kvbound/traces/messages.hpp>

#include "policy.hpp"
#include "quoted_parts.hpp"

namespace kvbound::sim {
namespace {

const GivenFact* fact_of(const Policy& policy, const GivenFacts& facts) {
  const std::string* const file = given_file(policy.host);
  const auto found = file ? facts.find(*file) : facts.end();
  return found == facts.end() ? nullptr : &found->second;
}

std::string fingerprint_of(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) throw traces::io_error("read", path, errno);
  return fmt::format("{}@{}.{:09}", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

bool is_policy(const std::string& name) try {
  parse_policy(name);
  return true;
} catch (const InvalidPolicy&) {
  return false;
}

// A policy's text with another name in the place of its host.
std::string renamed(const std::string& label, const std::string& name) {
  return name + label.substr(quoted_parts(label, '+').front().size());
}

}  // namespace

GivenSources given_sources(const std::vector<Run>& runs, GivenMethods methods) {
  GivenSources sources{.methods = std::move(methods)};
  for (const Run& run : runs) {
    const std::string* const file = given_file(run.policy.policy.host);
    if (file && !sources.methods.contains(*file) && !sources.files.contains(*file))
      sources.files.emplace(*file, traces::GivenSource(*file));
  }
  return sources;
}

traces::GivenSubject given_subject(const traces::TraceInfo& trace, const std::string& sha256,
                                   const std::vector<int64_t>& layers) {
  return {"trace_sha256", sha256,       "the hash of " + traces::printable_path(trace.path),
          trace.shape,    trace.layers, trace.prompt_tokens,
          layers};
}

GivenFiles::GivenFiles(const GivenSources& sources, const traces::GivenSubject& subject)
    : methods_(sources.methods) {
  for (const auto& [name, method] : methods_) {
    facts_.emplace(name, GivenFact{.name = method->name(),
                                   .always_kept = method->always_kept(subject.prompt_tokens),
                                   .selects = method->selects(),
                                   .evicts = method->evicts()});
  }
  for (const auto& [path, source] : sources.files) {
    const traces::GivenFile& file =
        files_.emplace(path, std::make_unique<OpenFile>(source.open(subject))).first->second->file;
    facts_.emplace(path, GivenFact{std::filesystem::absolute(file.path()).lexically_normal().string(),
                                   fingerprint_of(file.path()), file.sha256(), file.name(),
                                   file.layer_entries(), file.always_kept()});
  }
}

GivenFiles::GivenFiles(const GivenFacts& known, const traces::GivenSubject& subject) : facts_(known) {
  for (const auto& [path, fact] : known) {
    if (fingerprint_of(fact.path) != fact.fingerprint)
      throw TraceError(fact.path, -1, "", "has changed since the sweep was planned");
    files_.emplace(path, std::make_unique<OpenFile>(traces::GivenFile(fact.path, subject)));
  }
}

Policy GivenFiles::bound(Policy policy, int64_t layer) const {
  const std::string* const file = given_file(policy.host);
  if (!file) return policy;
  const auto found = files_.find(*file);
  if (found == files_.end()) return policy;
  const OpenFile& open = *found->second;
  if (open.layer != layer) {
    open.data = open.file.read_layer(layer);
    open.layer = layer;
  }
  policy.host = with_layer(policy.host, open.data);
  return policy;
}

Policy GivenFiles::bound(Policy policy, const std::shared_ptr<const traces::Layer>& layer,
                         int64_t entries) const {
  const std::string* const name = given_file(policy.host);
  const auto method = name ? methods_.find(*name) : methods_.end();
  if (method == methods_.end()) return bound(std::move(policy), layer->index);
  LastAnswer& last = answers_[*name];
  const int64_t wanted = method->second->selects() ? entries : -1;  // scores are of any budget
  if (last.layer != layer->index || last.entries != wanted)
    last = {layer->index, wanted, method->second->layer(layer, entries)};
  policy.host = with_layer(policy.host, last.data);
  return policy;
}

Policy with_facts(Policy policy, const GivenFacts& facts) {
  const GivenFact* const fact = fact_of(policy, facts);
  if (!fact) return policy;
  GivenLayer known;
  known.always_kept = fact->always_kept;
  known.kept.resize(fact->layer_entries.empty() && !fact->selects ? 0 : 1);
  if (fact->evicts) known.evict = [](const EvictionView&) { return kNotEvicted; };
  policy.host = with_layer(policy.host, std::make_shared<const GivenLayer>(std::move(known)));
  return policy;
}

void require_known_to_backend(const Run& run, const GivenFacts& facts) {
  const GivenFact* const fact = fact_of(run.policy.policy, facts);
  if (fact && fact->evicts && run.backend != kReference)
    throw InvalidPolicy(
        fmt::format("its method evicts while decoding, which the backend {} cannot ask it to; "
                    "the backend {} can",
                    run.backend, kReference));
}

std::vector<Run> with_names(std::vector<Run> runs, const GivenFacts& facts) {
  const auto name_of = [&](const NamedPolicy& policy) {
    const GivenFact* const fact = fact_of(policy.policy, facts);
    const std::string name = fact ? traces::printable(fact->name) : "";
    return name.empty() || is_policy(name) ? policy.label : renamed(policy.label, name);
  };
  std::map<std::string, std::set<std::string>> policies;  // that would have a name
  for (const Run& run : runs) policies[name_of(run.policy)].insert(canonical(run.policy.policy));
  for (Run& run : runs) {
    const std::string name = name_of(run.policy);
    if (policies[name].size() == 1) run.policy.label = name;
  }
  return runs;
}

RunBudgets run_budgets(const Policy& policy, const Budget& budget, const GivenFacts& facts,
                       const BudgetScope& scope) {
  const GivenFact* const fact = fact_of(policy, facts);
  const bool kept_sets = fact && !fact->layer_entries.empty();
  if (kept_sets && !budget.given)
    throw InvalidPolicy("given's file has kept sets: its budget is `given`, that of their sizes");
  RunBudgets budgets;
  if (kept_sets) {
    const std::vector<int64_t>& entries = fact->layer_entries;
    budgets.entries = std::accumulate(entries.begin(), entries.end(), int64_t{0}) / std::ssize(entries);
    for (const int64_t layer : entries) budgets.heads.emplace_back(scope.shape.kv_heads, layer);
  } else {
    budgets.entries = budget.entries(scope.prompt_tokens);
  }
  const Policy known = with_facts(policy, facts);
  require_valid(known, budgets.entries, scope.prompt_tokens, scope.window_queries);
  if (!kept_sets) budgets.heads = head_budgets(known, budgets.entries, scope);
  return budgets;
}

std::vector<int64_t> layer_budgets(const Policy& policy, std::vector<int64_t> budgets) {
  const auto given = rules_of(policy.host, 0, 0).given;
  if (given && given->keeps())
    std::ranges::transform(given->kept, budgets.begin(), [](const auto& kept) { return std::ssize(kept); });
  return budgets;
}

}  // namespace kvbound::sim
