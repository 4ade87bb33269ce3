// What a compression method is made of: plain data, one variant per kind of component.
//
// A new method is a new alternative of one of these variants; the compiler then lists every visitor that has
// to learn it. Names, defaults and text form: sim/policy.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "decimal.hpp"

namespace kvbound {

/// SnapKV (arXiv:2404.14469): the last `window` positions stay, the others are ranked by the attention that
/// the window's queries pay them, max-pooled over `pool` neighbours.
struct SnapKv {
  int64_t window = 32;  ///< observation window, in tokens
  int64_t pool = 7;     ///< width of the max-pool, odd; 1 is none
  friend bool operator==(const SnapKv&, const SnapKv&) = default;
};

/// H2O (arXiv:2306.14048): the first `sinks` and the newest `recent` entries stay, the others are ranked by all the
/// attention that they ever got, from the prompt's last `window` queries on. In decoding the cache never grows.
struct H2o {
  int64_t window = 32;            ///< prompt queries that count
  int64_t sinks = 0;              ///< first positions that always stay
  std::optional<int64_t> recent;  ///< newest entries that always stay; nullopt: as many as `window`

  int64_t recent_entries() const { return recent.value_or(window); }
  friend bool operator==(const H2o& a, const H2o& b) {
    return a.window == b.window && a.sinks == b.sinks && a.recent_entries() == b.recent_entries();
  }
};

/// TOVA (arXiv:2401.06104): whom the last query heeds least leaves, the first `sinks` excepted.
struct Tova {
  int64_t sinks = 0;  ///< first positions that always stay
  friend bool operator==(const Tova&, const Tova&) = default;
};

/// StreamingLLM (arXiv:2309.17453): the first `sinks` and the newest entries stay; nothing is ranked.
struct StreamingLlm {
  int64_t sinks = 4;  ///< first positions that always stay
  friend bool operator==(const StreamingLlm&, const StreamingLlm&) = default;
};
using Host = std::variant<SnapKv, H2o, Tova, StreamingLlm>;

/// In which space a score measures how far an output moves.
enum class Space {
  head,       ///< the attention output's own, ||x||
  projected,  ///< the hidden state's, ||x W^O_h||
};

/// Attention weights themselves rank the entries.
struct AttentionScore {
  friend bool operator==(const AttentionScore&, const AttentionScore&) = default;
};

/// The scores that measure an output's change.
struct ChangeScore {
  Space space = Space::head;
  friend bool operator==(const ChangeScore&, const ChangeScore&) = default;
};
/// OBCache (arXiv:2510.07651): the change if the entry's value were zeroed.
struct ObcacheValue : ChangeScore {};
/// OBCache: the second-order term of the change if its key shrinks.
struct ObcacheKey : ChangeScore {};
/// OBCache: the second-order term of the change if its key and value shrink together.
struct ObcacheJoint : ChangeScore {};
/// The change if the entry is removed, exactly.
struct ExactRemoval : ChangeScore {};
using Score = std::variant<AttentionScore, ObcacheValue, ObcacheKey, ObcacheJoint, ExactRemoval>;

/// In which norm projected values are measured.
enum class Norm { l1, l2 };

/// How the scores and norms of the query heads that share a KV head become one stage-two score.
enum class GqaProduct {
  mean_of_products,  ///< mean_h((a^h + epsilon) * N^h): has the CKV-window bound
  product_of_means,  ///< (mean_h(a^h) + epsilon) * mean_h(N^h): what public code does
};

/// The options of CriticalKV's two stages.
struct TwoStage {
  std::optional<Decimal> alpha = Decimal{5, 1};  ///< share of the budget for stage one; nullopt: adaptive
  double epsilon = 1e-4;                         ///< added to the attention score in stage two
  GqaProduct gqa = GqaProduct::mean_of_products;
  Norm norm = Norm::l1;
  friend bool operator==(const TwoStage&, const TwoStage&) = default;
};

/// The k entries of largest score.
struct TopK {
  friend bool operator==(const TopK&, const TopK&) = default;
};
/// CriticalKV (arXiv:2502.03805): first by attention, then by attention times projected value norm.
struct Critical : TwoStage {};
/// Of all selections on the hull of (kept mass, kept norm mass), the one with the smallest bound.
struct ThetaSweep : TwoStage {};
/// One entry after the other leaves, each time the one without which the outputs are closest to the full cache's.
struct Greedy {
  friend bool operator==(const Greedy&, const Greedy&) = default;
};
using Selection = std::variant<TopK, Critical, ThetaSweep, Greedy>;

/// Every KV head gets the same budget.
struct Uniform {
  friend bool operator==(const Uniform&, const Uniform&) = default;
};
using Allocation = std::variant<Uniform>;

/// Who leaves is gone.
struct NoMerge {
  friend bool operator==(const NoMerge&, const NoMerge&) = default;
};
using Merge = std::variant<NoMerge>;

struct Policy {
  Host host;
  Score score;
  Selection selection;
  Allocation allocation;
  Merge merge;
  friend bool operator==(const Policy&, const Policy&) = default;
};

}  // namespace kvbound
