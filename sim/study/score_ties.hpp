// Ties of scores: how many entries a score does not tell apart, and how many are selected by the tie-break.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/reference/core/view.hpp>

namespace kvbound::sim {

/// The entries whose score equals that of the last selected entry.
struct CutTies {
  int64_t tied = 0;  ///< number of these entries, the last selected one included, >= 1
  int64_t selected =
      0;  ///< how many of them are selected, 1..tied; where fewer than all are, the tie-break decides which
};

struct ScoreTies {
  double share = 0;  ///< share of the entries whose score another entry has as well; 0 for no entries
  std::optional<CutTies> cut;  ///< nullopt if no entry is selected
  /// Share of the selected entries that a different tie-break could replace: cut->selected / k if more are
  /// tied at the cut than are selected, else 0.
  double tie_break = 0;
};

/// Ties among scores of which the k largest are selected.
///
/// scores  [entries], not NaN
/// k       0..entries
/// throws  ShapeMismatch if k is out of range
ScoreTies score_ties(VectorView scores, int64_t k);

/// The scores rounded once, to nearest, ties to even, to bfloat16: 8 significant bits, the
/// range of single precision.
std::vector<double> rounded_to_bfloat16(VectorView scores);

}  // namespace kvbound::sim
