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
using Host = std::variant<SnapKv>;

/// Attention weights themselves rank the entries.
struct AttentionScore {
  friend bool operator==(const AttentionScore&, const AttentionScore&) = default;
};
using Score = std::variant<AttentionScore>;

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
using Selection = std::variant<TopK, Critical, ThetaSweep>;

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
