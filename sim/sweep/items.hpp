// The items of a sweep: some layers of one trace through some of the runs. An item is
// computed by one process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sweep.hpp"

namespace kvbound::sim {

struct SweepItem {
  size_t trace = 0;             ///< index in Sweep::traces
  std::vector<int64_t> layers;  ///< ascending, successive in the trace's scope
  std::shared_ptr<const std::vector<size_t>>
      runs;  ///< indices in Sweep::runs, ascending; most items share them
};

/// All items: trace by trace, its layers in blocks of `layers_per_item`, and of a block the policies in
/// blocks of `policies_per_item`, each at all budgets on all backends.
std::vector<SweepItem> items_of(const Sweep& sweep);
/// Those of one trace.
std::vector<SweepItem> items_of(const Sweep& sweep, size_t trace);

/// "a.safetensors, layers 0-3, 12 runs"
std::string text_of(const SweepItem& item, const Sweep& sweep);

/// What an item's results depend on, as keys: SHA-256 of the text of all of it. Runs have keys of their own,
/// so that a plan that is extended by policies or budgets finds the results of the runs that it had before.
struct ItemKey {
  std::string content;      ///< trace hash, layers, steps, recall, merge bounds, all backends of the sweep
  std::string runs;         ///< policies, budgets and backends
  std::string computation;  ///< the program's build, compiler, BLAS kernels and GPU

  /// The name of the results' file: the keys' first digits.
  std::string file() const { return content + "-" + runs + "-" + computation; }
};

/// A run as results name it: "snapkv:window=32:pool=7 20% reference".
std::string key_of(const Run& run);
/// Whether what a run computes depends on more than the run and a trace's layers: on files, or on which other
/// layers are replayed.
bool depends_on_trace(const Run& run);
/// The key of results of a trace: behind that of the run, what it depends on.
std::string key_of(const Run& run, const SweepTrace& trace);

/// ItemKey::runs of some runs' keys.
std::string digest_of_runs(const std::vector<std::string>& keys);

/// The keys of a sweep's items.
class ItemKeys {
 public:
  /// sweep  outlives the object
  explicit ItemKeys(const Sweep& sweep);
  ItemKey of(const SweepItem& item);

 private:
  const Sweep& sweep_;
  std::string computation_;
  std::vector<std::string> backends_;
  bool depends_on_trace_ = false;  // whether a run does
  // Digests of the runs of items, which are few different ones, and of the trace if they depend on it.
  std::map<std::pair<size_t, std::vector<size_t>>, std::string> of_runs_;
};

}  // namespace kvbound::sim
