// The files and methods of policies whose host is `given`, for one trace or task.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/traces/given_file.hpp>
#include <kvbound/traces/trace.hpp>

#include "given_method.hpp"
#include "head_budgets.hpp"
#include "runs.hpp"

namespace kvbound::sim {

/// What is known of a file, or a method, but its scores and positions.
struct GivenFact {
  std::string path = {};         ///< of the file itself, absolute; empty: of a method, as the next two
  std::string fingerprint = {};  ///< its size and time of change, by the file system's clock
  std::string sha256 = {};
  std::string name = {};                    ///< what the file calls its method; may be empty
  std::vector<int64_t> layer_entries = {};  ///< GivenFile::layer_entries; empty of methods
  std::vector<int64_t> always_kept = {};
  bool selects = false, evicts = false;  ///< of methods
};
/// By Given::file.
using GivenFacts = std::map<std::string, GivenFact>;

/// What policies name. A folder's files are looked through once.
struct GivenSources {
  std::map<std::string, traces::GivenSource> files = {};
  GivenMethods methods = {};

  bool empty() const { return files.empty() && methods.empty(); }
};
/// methods  what is none of them is a path
GivenSources given_sources(const std::vector<Run>& runs, GivenMethods methods = {});

/// What a file for a replay of a trace must be of.
///
/// sha256  the trace's
/// layers  that are replayed
traces::GivenSubject given_subject(const traces::TraceInfo& trace, const std::string& sha256,
                                   const std::vector<int64_t>& layers);

/// The files of a trace or task, and methods.
class GivenFiles {
 public:
  GivenFiles() = default;  ///< of policies that have none
  /// Throws as traces::GivenFile.
  GivenFiles(const GivenSources& sources, const traces::GivenSubject& subject);
  /// Files of which everything is known. Throws TraceError for one that has changed
  /// since; as traces::GivenFile.
  GivenFiles(const GivenFacts& known, const traces::GivenSubject& subject);

  const GivenFacts& facts() const { return facts_; }
  /// The policy with what its file has of a layer; other policies as they are. The last layer of
  /// every file stays in memory.
  Policy bound(Policy policy, int64_t layer) const;
  /// Likewise, or with what its method says of the layer at a budget.
  Policy bound(Policy policy, const std::shared_ptr<const traces::Layer>& layer, int64_t entries) const;

 private:
  struct OpenFile {
    explicit OpenFile(traces::GivenFile opened) : file(std::move(opened)) {}

    traces::GivenFile file;
    mutable int64_t layer = -1;
    mutable std::shared_ptr<const GivenLayer> data = {};  // of that layer
  };
  struct LastAnswer {
    int64_t layer = -1, entries = -1;
    std::shared_ptr<const GivenLayer> data = {};
  };
  std::map<std::string, std::unique_ptr<OpenFile>> files_;
  GivenMethods methods_;
  mutable std::map<std::string, LastAnswer> answers_;  // of methods
  GivenFacts facts_;
};

/// The policy with what is known of all layers of its file: which entries are always kept,
/// or that it has kept sets.
Policy with_facts(Policy policy, const GivenFacts& facts);

/// Throws InvalidPolicy where a run's method evicts and its backend cannot call it.
void require_known_to_backend(const Run& run, const GivenFacts& facts);

/// The runs, whose policies are called as their files say, unless two of them would share a name, or the name
/// reads as a policy.
std::vector<Run> with_names(std::vector<Run> runs, const GivenFacts& facts);

/// The entries that a run keeps.
struct RunBudgets {
  int64_t entries = 0;  ///< per KV head, on average over all of them, rounded down
  HeadBudgets heads;    ///< of kept sets, every head has the mean of its layer
};

/// The budgets of a run; of kept sets, their sizes.
///
/// throws  InvalidPolicy if the policy cannot compress such prompts to the budget (require_valid); if a
///         budget is not `given` but the file has kept sets, or the other way round; as head_budgets
RunBudgets run_budgets(const Policy& policy, const Budget& budget, const GivenFacts& facts,
                       const BudgetScope& scope);

/// The budgets of a layer's KV heads: as they are, or the sizes of the kept sets that were given.
///
/// policy  with what its file has of the layer
std::vector<int64_t> layer_budgets(const Policy& policy, std::vector<int64_t> budgets);

}  // namespace kvbound::sim
