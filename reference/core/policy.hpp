// What a compression method is made of: plain data, one variant per kind of component.
//
// A new method is a new alternative of one of these variants; the compiler then lists every visitor that has
// to learn it. Names, defaults and text form: sim/options/policy.hpp.
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
  int64_t sinks = 0;              ///< first positions, always kept
  std::optional<int64_t> recent;  ///< newest entries, always kept; nullopt: as many as `window`

  int64_t recent_entries() const { return recent.value_or(window); }
  friend bool operator==(const H2o& a, const H2o& b) {
    return a.window == b.window && a.sinks == b.sinks && a.recent_entries() == b.recent_entries();
  }
};

/// TOVA (arXiv:2401.06104): the entry with the least attention of the last query is evicted, the first `sinks` excepted.
struct Tova {
  int64_t sinks = 0;  ///< first positions, always kept
  friend bool operator==(const Tova&, const Tova&) = default;
};

/// StreamingLLM (arXiv:2309.17453): the first `sinks` and the newest entries stay; nothing is ranked.
struct StreamingLlm {
  int64_t sinks = 4;  ///< first positions, always kept
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

/// AdaKV (arXiv:2407.11550): a layer's heads share out their candidates' budget by how many of the layer's largest
/// scores are theirs.
struct AdaKv {
  Decimal safeguard{2, 1};  ///< share that every head has for certain, 0..1
  friend bool operator==(const AdaKv&, const AdaKv&) = default;
};

/// How budgets fall from the first layer to the last.
enum class Decay { linear, cosine };

/// PyramidKV (arXiv:2406.02069): early layers keep more than late ones.
struct Pyramid {
  int64_t beta = 20;            ///< the last layer's budget is a beta-th of the mean
  Decay shape = Decay::linear;  ///< cosine: KeepKV's
  friend bool operator==(const Pyramid&, const Pyramid&) = default;
};
using Allocation = std::variant<Uniform, AdaKv, Pyramid>;

/// An evicted entry is gone.
struct NoMerge {
  friend bool operator==(const NoMerge&, const NoMerge&) = default;
};

/// An evicted entry merges with the kept entry whose key is nearest to its own, if it is near enough.
struct SimilarTarget {
  std::optional<Decimal> threshold = Decimal{8, 1};  ///< merge if the cosine is larger; nullopt: always
  friend bool operator==(const SimilarTarget&, const SimilarTarget&) = default;
};

enum class Prediction {
  ema,      ///< a moving average over all queries so far
  current,  ///< the last query's own raw scores
};
enum class ScoreKind {
  attention,  ///< ln s = z - LSE_j(z_j + ln p_j)
  raw,        ///< ln s = z
};
enum class Normalisation {
  exact,  ///< by the weights that were really added up
  paper,  ///< by 1 - ema^tokens, as KeepKV prints it
};

/// How the scores of queries to come are predicted.
struct PredictedScores {
  Prediction predict = Prediction::ema;
  double ema = 0.9;  ///< weight of the past, 0 <= ema < 1
  ScoreKind scores = ScoreKind::attention;
  Normalisation normalisation = Normalisation::exact;
  friend bool operator==(const PredictedScores&, const PredictedScores&) = default;
};

/// Which key speaks for a group.
enum class MergedKey {
  min_norm,  ///< the nearest to the weighted mean that keeps the group's weight
  zip,       ///< the multiple of the weighted mean that does, where there is one
  convex,    ///< the weighted mean
};

/// How the query heads that share a KV head come to one key and value.
enum class MergeGqa {
  joint,  ///< each by its own scores; the key meets all their targets as far as it can
  mean,   ///< as one head, with the mean of log scores and of queries
};

enum class MergeOrder {
  evict_first,  ///< those who were not selected merge with those who were
  merge_first,  ///< candidates merge with their betters, then the selection runs
};

/// KeepKV (arXiv:2504.09936): merged entries vote for all that they replace.
struct KeepKv : SimilarTarget {
  PredictedScores prediction;
  MergedKey key = MergedKey::min_norm;
  MergeGqa gqa = MergeGqa::joint;
  double rank = 0.3;  ///< singular values of the stacked queries below this share of the largest are dropped
  MergeOrder order = MergeOrder::evict_first;
  std::optional<int64_t> period;  ///< decode steps after which the cache is rebuilt from the full one
  friend bool operator==(const KeepKv&, const KeepKv&) = default;

  /// With the options of the paper, as printed.
  static KeepKv as_printed() {
    KeepKv options;
    options.prediction.scores = ScoreKind::raw;
    options.prediction.normalisation = Normalisation::paper;
    options.key = MergedKey::zip;
    options.gqa = MergeGqa::mean;
    return options;
  }
};

/// Means weighted by predicted scores, without votes.
struct ConvexMerge : SimilarTarget {
  PredictedScores prediction;
  MergeGqa gqa = MergeGqa::joint;
  friend bool operator==(const ConvexMerge&, const ConvexMerge&) = default;
};
/// D2O (arXiv:2406.13035): means weighted by the softmax of cosines with the target.
struct D2o : SimilarTarget {};
/// KVMerger (arXiv:2407.08454): means weighted by a Gaussian of the distance to the target.
struct KvMerger : SimilarTarget {};

/// CaM (ICML 2024, "Cache Merging for Memory-efficient LLMs Inference"): the value, or nothing, is spread over those that follow.
struct Cam {
  int64_t neighbours = 32;  ///< following kept values that share it
  int64_t seed = 0;         ///< of the draws that decide whether it is
  friend bool operator==(const Cam&, const Cam&) = default;
};
using Merge = std::variant<NoMerge, KeepKv, ConvexMerge, D2o, Cam, KvMerger>;

struct Policy {
  Host host;
  Score score;
  Selection selection;
  Allocation allocation;
  Merge merge;
  friend bool operator==(const Policy&, const Policy&) = default;
};

}  // namespace kvbound
