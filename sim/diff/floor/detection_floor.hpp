// The detection floor of the judge: the smallest fault of each kind that it always
// finds, whatever the rounding.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/diff/claims/declared_arithmetic.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// A number of cache entries, and the share of the attention that they have.
struct FaultyEntries {
  int64_t entries = 0;
  /// The mean over query heads: of missing entries in the right output, of padding in the faulty one.
  double weight = 0;
};

/// Interchanges of the outputs of two successive query heads: how many are always found, and of how many.
struct Swaps {
  int64_t found = 0;
  int64_t possible = 0;
};

/// The smallest faults of all numbers of one tensor that are always found, by one of its rows or
/// numbers at least. Faults that a tensor cannot have, or that are not found up to the largest
/// that is tried, are nullopt.
struct DetectionFloor {
  std::string
      operation;  ///< the dump's tensor; of scores with their score, of merged entries with their method
  int64_t layer = 0;
  int64_t tokens = 0;
  int64_t judged = 0;                         ///< outputs, or numbers
  std::optional<double> factor = {};          ///< x: factors 1 - x and 1 + x
  bool halved = false;                        ///< the factor 1/2
  bool zeros = false;                         ///< the factor 0
  std::optional<double> logit_scale = {};     ///< x <= 1: factors 1 - x and 1 + x of all logits
  std::optional<bool> base_2 = {};            ///< 2 instead of e as the base of exponentials
  std::optional<FaultyEntries> missing = {};  ///< the last entries of the cache are not attended
  /// Entries behind the cache, of zeros, are attended; at most as many as the cache has.
  std::optional<FaultyEntries> padding = {};
  std::optional<Swaps> swaps = {};
};

/// The floors of outputs of attention, of scores, of projected value norms and of merged entries.
///
/// Outputs are of the last recorded query of the prompt; the tensors are stored in the declared storage type.
/// Scores and norms are those of policies `snapkv` with the window of all recorded queries and no pool.
/// Merged entries are those of D2O and KeepKV with `threshold=none`, after the same selection of 20 % of the
/// prompt, at least the window: see merged_floors. Prompts of more than 16,384 tokens, where they would take
/// minutes, have none, nor have those of which nothing is evicted.
///
/// layer     only its prompt is used
/// progress  called with the number of operations done, and of all
/// throws    NonFinite if the layer's numbers are too large for double precision
std::vector<DetectionFloor> detection_floors(const traces::Layer& layer, const DeclaredArithmetic& declared,
                                             const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace kvbound::sim
