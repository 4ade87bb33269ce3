#include <gmp.h>
#include <algorithm>
#include <cstring>
#include <iostream>
#include <new>
#include <set>

#include <fmt/format.h>

#include <kvbound/proofs/theorems/catalogue.hpp>
#include <kvbound/sim/cli/commands.hpp>
#include <kvbound/sim/cli/progress.hpp>
#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/figures/outputs.hpp>
#include <kvbound/sim/figures/text_options.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/traces/messages.hpp>

#include "prove_report.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kProveDetails =
    R"(Each theorem is evaluated from its definition, in 50 digits, on random instances of many kinds; the double-precision
reference is held to the same values within derived error bounds. Each theorem also has weakened claims, with a hypothesis
dropped, for which a counterexample must be found. Written proofs: proofs/critical_kv.md, proofs/obcache.md,
proofs/keep_kv.md.

Exit code 1 if a theorem is violated or a weakened claim has no counterexample, 5 if an instance could not be evaluated or a
regime that must be tried has less than 5 % of the cases.
)";

const std::vector<Example> kProveExamples{
    {"kvbound prove --list"},
    {"kvbound prove ckv-3.5 ckv-window:pooled --seed 7 --json proved.json"},
    {"kvbound prove ckv-3.3 --cases 500 --search 2"},
    {"kvbound prove --replay proved.json"},
};

// GMP, and MPFR with it, would abort where there is no memory: they take it as all else does.
void* allocate(size_t bytes) { return ::operator new(bytes); }
void* reallocate(void* memory, size_t before, size_t bytes) {
  void* const larger = allocate(bytes);
  std::memcpy(larger, memory, std::min(before, bytes));
  ::operator delete(memory);
  return larger;
}
void release(void* memory, size_t) { ::operator delete(memory); }

CommandLine prove_command_line() {
  CommandLine line("prove [ID...] [options]: searches for counterexamples to theorems", kProveDetails,
                   kProveExamples);
  line.add("cases", "N",
           "instances per theorem (default: 2000); at least ten times as many for a weakened claim");
  line.add("seed", "N", "seed of the random instances (default: 1)");
  line.add_flag("list", "list the theorems with their hypotheses, and exit");
  line.add("search", "SECONDS",
           "afterwards, for each theorem with a ratio, search this long for its tightest instance");
  line.add("replay", "FILE",
           "run the instances in a file again: an instance that this command printed, or its JSON");
  add_columns_option(line, prove_columns());
  add_output_options(line, "theorem, regime, search and stored instance");
  add_text_options(line);
  add_work_options(line);
  return line;
}

// The properties with these ids, in the order of the catalogue. A theorem's id stands for the theorem and its
// weakened claims, a weakened claim's id for that claim only. Without ids: all properties.
std::vector<StoredInstance> chosen(const std::vector<std::string>& ids) {
  std::set<const proofs::Property*> wanted;
  const auto want = [&](const proofs::Property& property) {
    if (!wanted.insert(&property).second)
      throw UsageError(fmt::format("'{}' is chosen twice, by itself or with its theorem", property.id));
  };
  for (const std::string& id : ids) {
    const StoredInstance found = find_property(id);
    want(*found.property);
    if (found.property == &found.theorem->property) std::ranges::for_each(found.theorem->weakened, want);
  }
  std::vector<StoredInstance> result;
  for (const proofs::Theorem& theorem : proofs::catalogue()) {
    const auto add = [&](const proofs::Property& property) {
      if (ids.empty() || wanted.contains(&property)) result.push_back({&theorem, &property, {}});
    };
    add(theorem.property);
    std::ranges::for_each(theorem.weakened, add);
  }
  return result;
}

double search_seconds(const CommandLine& line) {
  const auto text = line.text("search");
  if (!text) return 0;
  const auto seconds = parse_real(*text);
  constexpr double kMost = 1e6;
  if (!seconds || *seconds <= 0 || *seconds > kMost)
    throw UsageError(
        fmt::format("--search {}: expected seconds, above 0 and at most {:g}", traces::quoted(*text), kMost));
  return *seconds;
}

void prove(const std::vector<StoredInstance>& properties, ProveReport& report, bool progress_wanted) {
  Progress progress("proving", progress_wanted);
  const auto count = std::ssize(properties);
  for (int64_t i = 0; i < count; ++i) {
    const StoredInstance& wanted = properties[i];
    report.properties.push_back(
        proofs::examine(*wanted.theorem, *wanted.property, report.cases, report.seed, [&](int64_t done) {
          progress.update(i * report.cases + std::min(done, report.cases), count * report.cases);
        }));
  }
}

bool has_ratio(const StoredInstance& wanted) {
  return wanted.property == &wanted.theorem->property && !wanted.theorem->ratio.empty();
}

void search(const std::vector<StoredInstance>& properties, ProveReport& report, bool progress_wanted) {
  for (const StoredInstance& wanted : properties) {
    const proofs::Theorem& theorem = *wanted.theorem;
    if (!has_ratio(wanted)) continue;
    Progress progress("searching " + theorem.id, progress_wanted);
    report.searches.push_back(
        {&theorem,
         proofs::search_tightest(theorem, report.search_seconds, report.seed, [&](double passed, double) {
           progress.update(static_cast<int64_t>(1e3 * passed),
                           static_cast<int64_t>(1e3 * report.search_seconds));
         })});
  }
}

Replayed replayed(const StoredInstance& stored) {
  const proofs::Outcome outcome = proofs::check(*stored.property, stored.instance);
  return {stored, outcome.holds() ? std::nullopt : std::optional(outcome.failure()), outcome.undecided(),
          outcome.ratio()};
}

// The most severe outcome of the run.
int exit_code(const ProveReport& report) {
  using proofs::Verdict;
  const auto any = [&](Verdict verdict) {
    return std::ranges::any_of(report.properties,
                               [&](const auto& result) { return result.verdict == verdict; });
  };
  const bool search_failed =
      std::ranges::any_of(report.searches, [](const Searched& s) { return s.tightest.failure.has_value(); });
  const bool replay_failed = std::ranges::any_of(report.replayed, [](const Replayed& replayed) {
    return !replayed.undecided && !replayed.as_it_must();
  });
  if (any(Verdict::violated) || any(Verdict::none_found) || search_failed || replay_failed) return kMismatch;
  const bool undecided =
      any(Verdict::undecided) || std::ranges::any_of(report.replayed, &Replayed::undecided);
  return undecided || any(Verdict::regimes_too_rare) ? kInconclusive : kPass;
}

void refuse_together(const CommandLine& line, const char* option, std::initializer_list<const char*> others) {
  for (const char* other : others) {
    if (line.has(option) && line.has(other))
      throw UsageError(fmt::format("--{} and --{} exclude each other", option, other));
  }
}

}  // namespace

Part empty_prove_part() { return prove_part({}); }

int prove_command(const Arguments& arguments) {
  mp_set_memory_functions(allocate, reallocate, release);
  CommandLine line = prove_command_line();
  if (!line.parse(arguments)) return kPass;
  apply_threads(line);
  refuse_together(line, "list",
                  {"cases", "seed", "search", "replay", "json", "csv", "columns", "markdown", "plot"});
  refuse_together(line, "replay", {"cases", "seed", "search", "columns", "plot"});
  constexpr int64_t kMostCases = 100'000'000;
  ProveReport report;
  report.cases = line.integer("cases", 1, kMostCases, 2000);
  report.seed = static_cast<uint64_t>(line.integer("seed", 0, INT64_MAX, 1));
  report.search_seconds = search_seconds(line);
  const std::vector<std::string> ids = line.positionals("ID", 0, line.has("replay") ? 0 : SIZE_MAX);
  const std::vector<StoredInstance> properties = chosen(ids);
  if (line.has("search") && std::ranges::none_of(properties, has_ratio))
    throw UsageError("--search: none of the chosen theorems has a ratio that could be tight");
  if (line.has("list")) {
    const proofs::Theorem* last = nullptr;
    for (const StoredInstance& wanted : properties) {
      if (wanted.theorem != last) std::cout << (last ? "\n" : "") << describe(*wanted.theorem);
      last = wanted.theorem;
    }
    return kPass;
  }
  const std::vector<std::string> columns = chosen_columns(line, prove_columns());
  const auto replay_path = line.text("replay");
  OutputPaths taken;
  if (replay_path) taken.add_input(*replay_path);
  Outputs outputs(line, taken, "prove");
  std::vector<StoredInstance> stored;
  if (replay_path) stored = read_instances(*replay_path);
  outputs.open();

  const bool progress_wanted = !line.has("quiet");
  if (replay_path) {
    std::ranges::transform(stored, std::back_inserter(report.replayed), replayed);
  } else {
    prove(properties, report, progress_wanted);
    if (report.search_seconds > 0) search(properties, report, progress_wanted);
  }
  const Part part = prove_part(report);
  std::cout << text_report(report, part, text_style(line), columns);
  outputs.write(part, provenance(environment(), report.properties.empty() ? Json() : Json(report.seed)));
  return exit_code(report);
}

}  // namespace kvbound::sim
