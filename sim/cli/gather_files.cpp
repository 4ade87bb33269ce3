#include "gather_files.hpp"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <span>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/replay/spool.hpp>
#include <kvbound/sim/report/table.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/output_file.hpp>

#include "progress.hpp"
#include "replay_verdict.hpp"

namespace kvbound::sim {
namespace {

constexpr size_t kMostNamed = 20;

// The JSON document. Its beginning, which names the machines, is known at the end: the traces wait in a spool.
class GatheredJson {
 public:
  GatheredJson(const std::string& path, const Sweep& sweep)
      : file_(path),
        spool_(folder_of(path)),
        base_(sweep.base),
        report_([this](std::string_view text) { spool_.write(std::span<const char>(text)); }, sweep.base) {}

  void add(const Report& report) { report_.add(report); }
  void prepare(const Environment& environment) {
    report_.finish();
    file_.write(JsonReport::beginning(base_, environment));
    std::vector<char> block(size_t{1} << 20);
    while (spool_.left() > 0) {
      const auto count = std::min<size_t>(block.size(), static_cast<size_t>(spool_.left()));
      spool_.read(std::span(block).first(count));
      file_.write(std::string_view(block.data(), count));
    }
    file_.prepare();
  }
  void commit() { file_.commit(); }

 private:
  // The real file's folder, whose disk has to take the document anyway; another one for pipes and terminals.
  static std::string folder_of(const std::string& path) {
    namespace fs = std::filesystem;
    if (fs::exists(path) && !fs::is_regular_file(path)) return fs::temp_directory_path().string();
    return fs::weakly_canonical(fs::absolute(path)).parent_path().string();
  }

  traces::OutputFile file_;
  Spool spool_;
  std::optional<Policy> base_;
  JsonReport report_;
};

std::string text_of(const MissingItem& missing, const Sweep& sweep) {
  std::string text = text_of(missing.item, sweep);
  if (!missing.attempts.empty()) {
    text += fmt::format(
        ": failed {} times, the last: {}", missing.attempts.size(),
        one_line(without_middle(missing.attempts.back().problem.value_or("its process was killed"))));
  }
  if (missing.other_computation)
    text += "; another build, compiler, BLAS or GPU has results of it (--mixed takes them)";
  return text;
}

}  // namespace

std::optional<std::string> sweep_hash(const CommandLine& line) {
  const auto hash = line.text("sweep");
  if (hash && !SweepFolder::is_hash(*hash)) {
    throw UsageError(
        fmt::format("--sweep {}: expected a hash, 64 hexadecimal digits", traces::in_quotes(*hash)));
  }
  return hash;
}

void tell_damaged(SweepFolder& folder, const Sweep& sweep, const DamageOptions& options) {
  const std::vector<std::string> problems = find_damaged(folder, sweep, options);
  for (size_t i = 0; i < std::min(problems.size(), kMostNamed); ++i)
    std::cerr << fmt::format("kvbound: {}; it counts as missing\n", one_line(problems[i]));
  if (problems.size() > kMostNamed)
    std::cerr << fmt::format("kvbound: and {} more damaged results\n", problems.size() - kMostNamed);
}

int tell_missing(const SweepFolder& folder, const Sweep& sweep, const std::vector<MissingItem>& missing) {
  if (missing.empty()) return kPass;
  std::cerr << fmt::format("kvbound: {}: no results of {} item{}:\n", one_line(without_middle(folder.path())),
                           missing.size(), missing.size() == 1 ? "" : "s");
  for (size_t i = 0; i < std::min(missing.size(), kMostNamed); ++i)
    std::cerr << "  " << text_of(missing[i], sweep) << "\n";
  if (missing.size() > kMostNamed) std::cerr << fmt::format("  and {} more\n", missing.size() - kMostNamed);
  return kInconclusive;
}

int gather_files(const SweepFolder& folder, const Sweep& sweep, const GatherRequest& request) {
  std::unique_ptr<GatheredJson> json;
  std::optional<traces::OutputFile> csv;
  Gathering gathering(folder, sweep, request.mixed);
  int code = tell_missing(folder, sweep, gathering.missing());
  if (code != kPass && !request.partial) return code;
  if (request.json) json = std::make_unique<GatheredJson>(*request.json, sweep);
  if (request.csv) {
    csv.emplace(*request.csv);
    csv->write(csv_headings());
  }
  {
    Progress progress("gathering", !request.quiet);
    bool first = true;
    for (size_t t = 0; t < sweep.traces.size(); ++t) {
      progress.update(static_cast<int64_t>(t), std::ssize(sweep.traces));
      if (!gathering.is_whole(t)) continue;
      const Report report = gathering.trace(t);
      if (!request.quiet)
        std::cout << (first ? "" : "\n") << text_report(report, sweep.base, terminal_style(), request.columns)
                  << std::flush;
      if (json) json->add(report);
      if (csv) csv->write(csv_rows(report));
      code = worse(code, replay_verdict(report, request.quiet));
      first = false;
    }
  }
  if (json) json->prepare(gathering.environment());
  if (csv) csv->prepare();
  flush_standard_output();
  if (json) json->commit();
  if (csv) csv->commit();
  return code;
}

}  // namespace kvbound::sim
