#include "sweep.hpp"

#include <glob.h>
#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/sim/options/layer_choice.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/backend.hpp>
#include <kvbound/traces/head_scores.hpp>
#include <kvbound/traces/layer_list.hpp>
#include <kvbound/traces/messages.hpp>

#include "items.hpp"

namespace kvbound::sim {

template <>
struct Fields<LayerShape> {
  static void visit(auto& shape, const auto& visit) {
    visit("query_heads", shape.query_heads);
    visit("kv_heads", shape.kv_heads);
    visit("head_dim", shape.head_dim);
    visit("model_dim", shape.model_dim);
  }
};

template <>
struct WrittenAs<traces::CacheHeads> {
  static std::string of(traces::CacheHeads heads) { return std::string(traces::name(heads)); }
  static traces::CacheHeads from(const std::string& text) {
    const auto heads = traces::cache_heads(text);
    if (!heads)
      throw Error("heads is " + traces::in_quotes(text, traces::kMostQuoted) + "; expected kv or query");
    return *heads;
  }
};

template <>
struct Fields<traces::TraceInfo> {
  static void visit(auto& info, const auto& visit) {
    visit("path", info.path);
    visit("model", info.model);
    visit("source", info.source);
    visit("heads", info.heads);
    visit("shape", info.shape);
    visit("recorded_kv_heads", info.recorded_kv_heads);
    visit("layers", info.layers);
    visit("model_layers", info.model_layers);
    visit("prompt_tokens", info.prompt_tokens);
    visit("decode_tokens", info.decode_tokens);
    visit("window_queries", info.window_queries);
    visit("scale", info.scale);
    visit("storage", info.storage);
    visit("has_attention_output", info.has_attention_output);
    visit("has_tokens", info.has_tokens);
  }
};

template <>
struct Fields<Scope> {
  static void visit(auto& scope, const auto& visit) {
    visit("layers", scope.layers);
    visit("steps", scope.steps);
    visit("recall_of", scope.recall_of);
    visit("merge_bounds", scope.merge_bounds);
    visit("centred_bound", scope.centred_bound);
  }
};

template <>
struct Fields<GivenFact> {
  static void visit(auto& fact, const auto& visit) {
    visit("path", fact.path);
    visit("fingerprint", fact.fingerprint);
    visit("sha256", fact.sha256);
    visit("name", fact.name);
    visit("layer_entries", fact.layer_entries);
    visit("always_kept", fact.always_kept);
  }
};

template <>
struct Fields<SweepTrace> {
  static void visit(auto& trace, const auto& visit) {
    visit("file", trace.file);
    visit("sha256", trace.sha256);
    visit("fingerprint", trace.fingerprint);
    visit("info", trace.info);
    visit("scope", trace.scope);
    visit("given", trace.given);
  }
};

template <>
struct WrittenAs<NamedPolicy> {
  static std::string of(const NamedPolicy& policy) { return policy.label; }
  static NamedPolicy from(const std::string& text) { return {text, parse_policy(text)}; }
};

template <>
struct WrittenAs<Policy> {
  static std::string of(const Policy& policy) { return canonical(policy); }
  static Policy from(const std::string& text) { return parse_policy(text); }
};

template <>
struct WrittenAs<Budget> {
  static std::string of(const Budget& budget) { return to_string(budget); }
  static Budget from(const std::string& text) { return parse_budget(text); }
};

template <>
struct Fields<Run> {
  static void visit(auto& run, const auto& visit) {
    visit("policy", run.policy);
    visit("budget", run.budget);
    visit("backend", run.backend);
  }
};

struct WrittenHeadScores {
  std::string path, text;
};

template <>
struct Fields<WrittenHeadScores> {
  static void visit(auto& file, const auto& visit) {
    visit("path", file.path);
    visit("text", file.text);
  }
};

template <>
struct WrittenAs<std::shared_ptr<const HeadScores>> {
  static WrittenHeadScores of(const std::shared_ptr<const HeadScores>& scores) {
    return {scores->path, scores->text};
  }
  static std::shared_ptr<const HeadScores> from(const WrittenHeadScores& file) {
    return traces::parse_head_scores(file.path, file.text);
  }
};

template <>
struct Fields<Sweep> {
  static void visit(auto& sweep, const auto& visit) {
    visit.fixed("format", "kvbound-sweep");
    visit.fixed("version", 1);
    visit("computation", sweep.computation);
    visit("runs", sweep.runs);
    visit("base", sweep.base);
    visit("layers_per_item", sweep.layers_per_item);
    visit("policies_per_item", sweep.policies_per_item);
    visit("header_limit", sweep.options.header_limit);
    visit("heads", sweep.options.heads);
    visit("head_scores", sweep.head_scores);
    visit("traces", sweep.traces);
  }
};

namespace {

// "BYTES@SECONDS.NANOSECONDS" of every file.
std::string fingerprint_of(const traces::Trace& trace) {
  std::string text;
  for (const std::string& path : trace.paths()) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) throw traces::io_error("read", path, errno);
    text += fmt::format("{}{}@{}.{:09}", text.empty() ? "" : " ", status.st_size, status.st_mtim.tv_sec,
                        status.st_mtim.tv_nsec);
  }
  return text;
}

// Whether an open trace's files are still those of the sweep.
bool is_unchanged(const traces::Trace& open, const SweepTrace& planned) {
  try {
    return fingerprint_of(open) == planned.fingerprint;
  } catch (const IoError&) {
    return false;
  }
}

int64_t bytes_of(const traces::Trace& trace) {
  int64_t bytes = 0;
  for (const std::string& path : trace.paths())
    bytes += static_cast<int64_t>(std::filesystem::file_size(path));
  return bytes;
}

std::vector<std::string> matches_of(const SweepPlan& plan, const std::string& pattern) {
  glob_t found{};
  const int failed = glob(pattern.c_str(), GLOB_ERR | GLOB_BRACE | GLOB_TILDE, nullptr, &found);
  std::vector<std::string> paths;
  for (size_t i = 0; failed == 0 && i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  globfree(&found);
  if (failed == GLOB_NOSPACE) throw std::bad_alloc();
  if (failed == GLOB_ABORTED)
    throw IoError("cannot read a folder of the pattern " + traces::in_quotes(pattern, traces::kMostQuoted));
  if (paths.empty())
    throw TraceError(plan.path, -1, "traces",
                     traces::in_quotes(pattern, traces::kMostQuoted) + ": no file has such a name");
  return paths;
}

std::vector<std::string> paths_of(const SweepPlan& plan) {
  std::vector<std::string> paths;
  std::set<std::filesystem::path> taken;
  for (const std::string& pattern : plan.traces) {
    for (const std::string& path : matches_of(plan, pattern)) {
      if (!taken.insert(std::filesystem::weakly_canonical(path)).second)
        throw TraceError(plan.path, -1, "traces", traces::printable_path(path) + " is listed twice");
      paths.push_back(path);
    }
  }
  return paths;
}

Scope scope_of(const SweepPlan& plan, const traces::TraceInfo& info) {
  const std::string text = plan.layers.value_or(traces::layer_list(traces::layer_numbers(info)));
  const auto layers = layers_named(text, info);
  if (!layers) {
    throw TraceError(plan.path, -1, "layers",
                     fmt::format("is {}; expected {}, which {} has", traces::in_quotes(text),
                                 expected_layers(info), traces::printable_path(info.path)));
  }
  if (plan.steps && *plan.steps > info.decode_tokens) {
    throw TraceError(plan.path, -1, "steps",
                     fmt::format("is {}; {} has {} decode steps", *plan.steps,
                                 traces::printable_path(info.path), info.decode_tokens));
  }
  return {*layers, plan.steps.value_or(info.decode_tokens), std::min(plan.recall_of, info.prompt_tokens),
          plan.merge_bounds, plan.centred_bound};
}

// Hashes that an earlier sweep knows, of files that have not changed since.
class KnownHashes {
 public:
  explicit KnownHashes(const Sweep* earlier) {
    if (!earlier) return;
    for (const SweepTrace& trace : earlier->traces) hashes_[key(trace)] = trace.sha256;
  }
  std::string of(const SweepTrace& trace) const {
    const auto found = hashes_.find(key(trace));
    return found == hashes_.end() ? "" : found->second;
  }

 private:
  using Key = std::pair<std::string, std::string>;
  static Key key(const SweepTrace& trace) { return {trace.file, trace.fingerprint}; }

  std::map<Key, std::string> hashes_;
};

// JSON, in which a sweep is kept, has no other text.
bool is_utf8(const std::string& text) {
  try {
    FieldsJson(text).dump();
    return true;
  } catch (const FieldsJson::type_error&) {
    return false;
  }
}

constexpr int64_t kMostLayers = int64_t{1} << 20;   // of a trace
constexpr int64_t kMostBudgets = int64_t{1} << 26;  // one for each run and layer
constexpr int64_t kMostItems = int64_t{1} << 22;    // of a sweep
constexpr int64_t kMostCount = INT32_MAX;           // of anything else, as traces::Trace

// Throws Error for what no trace has, or no computer can hold, before anything of that size is made.
void require_sound(const SweepTrace& trace, int64_t runs) {
  const auto require = [](const char* what, int64_t number, int64_t least, int64_t most) {
    if (number >= least && number <= most) return;
    throw Error(fmt::format("{} is {}; expected {} to {}", what, number, least, most));
  };
  const traces::TraceInfo& info = trace.info;
  require("layers", info.layers, 1, std::min(kMostLayers, kMostBudgets / runs));
  require("query_heads", info.shape.query_heads, 1, kMostCount);
  require("kv_heads", info.shape.kv_heads, 1, info.shape.query_heads);
  require("recorded_kv_heads", info.recorded_kv_heads, 1, info.shape.kv_heads);
  require("head_dim", info.shape.head_dim, 1, kMostCount);
  require("model_dim", info.shape.model_dim, 1, kMostCount);
  require("prompt_tokens", info.prompt_tokens, 1, kMostCount);
  require("decode_tokens", info.decode_tokens, 0, kMostCount);
  require("window_queries", info.window_queries, 1, info.prompt_tokens);
}

// How many items_of gives, if not too many.
int64_t item_count(const Sweep& sweep) {
  const auto blocks = [](int64_t all, int64_t block) { return all / block + (all % block != 0); };
  std::set<std::string> policies;
  for (const Run& run : sweep.runs) policies.insert(canonical(run.policy.policy));
  int64_t layers = 0;
  for (const SweepTrace& trace : sweep.traces)
    layers += blocks(std::ssize(trace.scope.layers), sweep.layers_per_item);
  return layers * blocks(std::ssize(policies), sweep.policies_per_item);
}

// Throws Error for what no plan gives.
void require_sound(const Sweep& sweep) {
  const auto require = [](bool sound, const char* what) {
    if (!sound) throw Error(std::string("it has ") + what);
  };
  require(sweep.layers_per_item >= 1 && sweep.policies_per_item >= 1, "items of no layers or policies");
  require(!sweep.runs.empty() && !sweep.traces.empty(), "no runs or traces");
  require(std::ssize(sweep.runs) <= kMostRuns, "too many runs");
  require(std::ranges::all_of(sweep.runs, is_backend, &Run::backend), "a backend that is unknown");
  std::set<std::string> runs;
  for (const Run& run : sweep.runs) require(runs.insert(key_of(run)).second, "a run twice");
  for (const SweepTrace& trace : sweep.traces) {
    require_sound(trace, std::ssize(sweep.runs));
    const std::vector<int64_t>& layers = trace.scope.layers;
    const bool ascend = std::ranges::adjacent_find(layers, std::greater_equal()) == layers.end();
    require(!layers.empty() && ascend && layers.front() >= 0 && layers.back() < trace.info.layers,
            "layers that a trace has not");
    const std::vector<int64_t>& numbers = trace.info.model_layers;
    require(numbers.empty() || std::ssize(numbers) == trace.info.layers,
            "numbers of other layers than a trace has");
    require(trace.scope.steps >= 0 && trace.scope.steps <= trace.info.decode_tokens,
            "steps that a trace has not");
  }
  if (item_count(sweep) > kMostItems) throw Error(fmt::format("it has more than {} items", kMostItems));
}

// Throws Error if a file of a run whose host is `given` is missing, or of other layers.
void require_given(const Sweep& sweep) {
  for (const SweepTrace& trace : sweep.traces) {
    for (const Run& run : sweep.runs) {
      const std::string* const file = given_file(run.policy.policy.host);
      if (file && !trace.given.contains(*file)) throw Error("it knows nothing of a file of given's");
    }
    for (const auto& [path, fact] : trace.given) {
      const bool all = fact.layer_entries.empty() || std::ssize(fact.layer_entries) == trace.info.layers;
      if (!all || std::ranges::any_of(fact.layer_entries, [](int64_t entries) { return entries < 1; }))
        throw Error("it has kept sets of other layers");
    }
  }
}

HeadKv* head_kv_of(Run& run) { return std::get_if<HeadKv>(&run.policy.policy.allocation); }

// Gives the runs what the sweep has of their files of heads' importances. Throws Error if one is missing.
void bind_head_scores(Sweep& sweep) {
  for (Run& run : sweep.runs) {
    HeadKv* const allocation = head_kv_of(run);
    if (!allocation) continue;
    const auto found = sweep.head_scores.find(allocation->scores);
    if (found == sweep.head_scores.end()) throw Error("it has nothing of a file of headkv's");
    allocation->read = found->second;
  }
}

}  // namespace

Sweep resolve(const SweepPlan& plan, const Sweep* earlier, const traces::Trace::Options& options,
              const std::function<void(int64_t, int64_t)>& progress) {
  Sweep sweep{computation(plan.backends),
              {},
              every_run(plan.policies, plan.budgets, plan.backends),
              plan.base,
              plan.layers_per_item,
              plan.policies_per_item.value_or(std::ssize(plan.policies)),
              options};
  sweep.options.heads = plan.heads;
  for (Run& run : sweep.runs) {
    if (const HeadKv* const allocation = head_kv_of(run))
      sweep.head_scores[allocation->scores] = allocation->read;
  }
  const KnownHashes known(earlier);
  const GivenSources sources = given_sources(sweep.runs);
  int64_t whole = 0, done = 0;
  for (const std::string& path : paths_of(plan)) {
    const traces::Trace trace(
        path,
        sweep.options);  // closed again: there may be more traces than files that may be open
    SweepTrace& planned = sweep.traces.emplace_back();
    planned = {std::filesystem::absolute(path).lexically_normal().string(),
               "",
               fingerprint_of(trace),
               trace.info(),
               scope_of(plan, trace.info()),
               {}};
    if (sources.empty()) require_valid(sweep.runs, planned.info, planned.scope);
    if (!is_utf8(planned.file))
      throw TraceError(plan.path, -1, "traces",
                       traces::printable_path(planned.file) + " is not UTF-8, in which sweeps keep paths");
    planned.sha256 = known.of(planned);
    if (planned.sha256.empty()) whole += bytes_of(trace);
  }
  try {
    require_sound(sweep);
  } catch (const Error& error) {
    throw TraceError(plan.path, -1, "",
                     std::string("makes a sweep that cannot be computed: ") + error.what());
  }
  for (SweepTrace& planned : sweep.traces) {
    if (!planned.sha256.empty()) continue;
    const traces::Trace trace = open_trace(sweep, planned);
    planned.sha256 = trace.sha256([&](int64_t bytes, int64_t) {
      if (progress) progress(done + bytes, whole);
    });
    done += bytes_of(trace);
  }
  for (SweepTrace& planned : sweep.traces) {
    if (sources.empty()) break;
    planned.given =
        GivenFiles(sources, given_subject(planned.info, planned.sha256, planned.scope.layers)).facts();
    require_valid(sweep.runs, planned.info, planned.scope, planned.given);
  }
  return sweep;
}

traces::Trace open_trace(const Sweep& sweep, const SweepTrace& trace) {
  traces::Trace opened(trace.file, sweep.options);
  if (fingerprint_of(opened) != trace.fingerprint)
    throw TraceError(trace.file, -1, "", "has changed since the sweep was planned");
  return opened;
}

const traces::Trace& OpenTraces::of(size_t trace) {
  const SweepTrace& wanted = sweep_.traces[trace];
  if (open_ && index_ == trace && is_unchanged(*open_, wanted)) return *open_;
  open_.reset();
  given_ = GivenFiles(wanted.given, given_subject(wanted.info, wanted.sha256, wanted.scope.layers));
  open_.emplace(open_trace(sweep_, wanted));
  index_ = trace;
  return *open_;
}

std::string text_of(const Sweep& sweep) {
  return fields_of(sweep).dump(1, ' ', false, FieldsJson::error_handler_t::replace) + "\n";
}

Sweep parse_sweep(const std::string& path, const std::string& text) {
  try {
    Sweep sweep = parse_fields<Sweep>("it", text);
    require_sound(sweep);
    require_given(sweep);
    bind_head_scores(sweep);
    return sweep;
  } catch (const Error& error) {
    throw TraceError(path, -1, "", std::string("is no sweep of kvbound: ") + error.what());
  }
}

}  // namespace kvbound::sim
