// A compression policy as plain data: one variant per kind of component.
//
// A new method is a new alternative of one of these variants; the compiler then reports every visitor that
// does not handle it yet. Names, defaults and text form: sim/options/policy.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "decimal.hpp"

namespace kvbound {

/// SnapKV (arXiv:2404.14469): the last `window` positions are kept, the others are ranked by the attention
/// that they receive from the window's queries, max-pooled over `pool` neighbours.
struct SnapKv {
  int64_t window = 32;  ///< observation window, in tokens
  int64_t pool = 7;     ///< width of the max-pool, odd; 1: no pooling
  friend bool operator==(const SnapKv&, const SnapKv&) = default;
};

/// H2O (arXiv:2306.14048): the first `sinks` and the newest `recent` entries are
/// kept, the others are ranked by the sum of the attention that they have received
/// since the prompt's last `window` queries. The cache does not grow in decoding.
struct H2o {
  int64_t window = 32;            ///< number of last prompt queries whose attention counts
  int64_t sinks = 0;              ///< first positions, always kept
  std::optional<int64_t> recent;  ///< newest entries, always kept; nullopt: as many as `window`

  int64_t recent_entries() const { return recent.value_or(window); }
  friend bool operator==(const H2o& a, const H2o& b) {
    return a.window == b.window && a.sinks == b.sinks && a.recent_entries() == b.recent_entries();
  }
};

/// TOVA (arXiv:2401.06104): evicts the entry that receives the
/// least attention from the last query, except the first `sinks`.
struct Tova {
  int64_t sinks = 0;  ///< first positions, always kept
  friend bool operator==(const Tova&, const Tova&) = default;
};

/// StreamingLLM (arXiv:2309.17453): the first `sinks` and the newest entries are
/// kept; entries are not ranked.
struct StreamingLlm {
  int64_t sinks = 4;  ///< first positions, always kept
  friend bool operator==(const StreamingLlm&, const StreamingLlm&) = default;
};
/// A null baseline, of no paper: the first `sinks` and the last `window` positions of the
/// prompt are kept, and of the others those that are drawn at random, for every layer and KV
/// head anew; entries are not ranked.
struct RandomHost {
  int64_t seed = 0;     ///< of the draws
  int64_t sinks = 4;    ///< first positions, always kept
  int64_t window = 32;  ///< last positions of the prompt, always kept
  friend bool operator==(const RandomHost&, const RandomHost&) = default;
};

struct GivenLayer;

/// A method that was computed elsewhere: a file has its kept sets, or its scores of the prompt's entries.
struct Given {
  std::string file;  ///< or a folder of such files, of several traces or tasks
  /// last prompt queries whose attention decides, where a selection of scored entries needs attention
  int64_t window = 32;
  std::shared_ptr<const GivenLayer> layer = {};  ///< of the layer that is compressed; null: not read yet

  friend bool operator==(const Given& a, const Given& b) { return a.file == b.file && a.window == b.window; }
};
using Host = std::variant<SnapKv, H2o, Tova, StreamingLlm, RandomHost, Given>;

/// The space in which a score measures the change of an output.
enum class Space {
  head,       ///< the head's attention output, ||x||
  projected,  ///< the hidden state, ||x W^O_h||
};

/// Entries are ranked by their attention weights.
struct AttentionScore {
  friend bool operator==(const AttentionScore&, const AttentionScore&) = default;
};

/// The part common to all scores that measure an output's change.
struct ChangeScore {
  Space space = Space::head;
  friend bool operator==(const ChangeScore&, const ChangeScore&) = default;
};
/// OBCache (arXiv:2510.07651): the output's change if the entry's value is zeroed.
struct ObcacheValue : ChangeScore {};
/// OBCache: the second-order term of the output's change if the entry's key shrinks.
struct ObcacheKey : ChangeScore {};
/// OBCache: the second-order term of the output's change if the entry's key and value shrink together.
struct ObcacheJoint : ChangeScore {};
/// The exact change of the output if the entry is removed.
struct ExactRemoval : ChangeScore {};
using Score = std::variant<AttentionScore, ObcacheValue, ObcacheKey, ObcacheJoint, ExactRemoval>;

/// The norm of projected values.
enum class Norm { l1, l2 };

/// How the scores and norms of the query heads that share a KV head become one stage-two score.
enum class GqaProduct {
  mean_of_products,  ///< mean_h((a^h + epsilon) * N^h): the bound CKV-window holds for it
  product_of_means,  ///< (mean_h(a^h) + epsilon) * mean_h(N^h): as the published code computes it
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
/// The selection with the smallest bound among those on the hull of (kept mass, kept norm mass).
struct ThetaSweep : TwoStage {};
/// Evicts one entry at a time, always the one whose removal leaves the outputs closest to
/// those of the full cache.
struct Greedy {
  friend bool operator==(const Greedy&, const Greedy&) = default;
};
using Selection = std::variant<TopK, Critical, ThetaSweep, Greedy>;

/// Every KV head gets the same budget.
struct Uniform {
  friend bool operator==(const Uniform&, const Uniform&) = default;
};

/// AdaKV (arXiv:2407.11550): the layer's budget for candidates is divided among its heads in proportion to
/// how many of the layer's largest scores each head has.
struct AdaKv {
  Decimal safeguard{2, 1};  ///< share of the uniform budget that every head is guaranteed, 0..1
  friend bool operator==(const AdaKv&, const AdaKv&) = default;
};

/// The shape in which budgets decrease from the first layer to the last.
enum class Decay { linear, cosine };

/// PyramidKV (arXiv:2406.02069): early layers keep more than late ones.
struct Pyramid {
  int64_t beta = 20;            ///< the last layer's budget is 1/beta of the mean
  Decay shape = Decay::linear;  ///< cosine is KeepKV's variant
  friend bool operator==(const Pyramid&, const Pyramid&) = default;
};

struct HeadScores;

/// HeadKV (arXiv:2410.19258): the KV heads of all layers share the budget by importances that were
/// measured elsewhere.
struct HeadKv {
  std::string scores;   ///< file of every query head's importance
  Decimal beta{12, 1};  ///< 1/beta of the budget for candidates is shared by importance, at least 1
  double temperature =
      1;  ///< importances are raised to this power, finite and >= 0, before they are added up
  std::shared_ptr<const HeadScores> read = {};  ///< what the file says; null: not read yet

  friend bool operator==(const HeadKv& a, const HeadKv& b) {
    return a.scores == b.scores && a.beta == b.beta && a.temperature == b.temperature;
  }
};
using Allocation = std::variant<Uniform, AdaKv, Pyramid, HeadKv>;

/// Evicted entries are dropped.
struct NoMerge {
  friend bool operator==(const NoMerge&, const NoMerge&) = default;
};

/// An evicted entry merges with the kept entry whose key is the
/// most similar to its own, if their cosine is large enough.
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
  exact,  ///< divide by the sum of the weights that were added
  paper,  ///< divide by 1 - ema^tokens, as KeepKV prints it
};

/// How the scores of future queries are predicted.
struct PredictedScores {
  Prediction predict = Prediction::ema;
  double ema = 0.9;  ///< weight of the past, 0 <= ema < 1
  ScoreKind scores = ScoreKind::attention;
  Normalisation normalisation = Normalisation::exact;
  friend bool operator==(const PredictedScores&, const PredictedScores&) = default;
};

/// The key of a merged cluster.
enum class MergedKey {
  min_norm,  ///< of all keys that preserve the cluster's attention weight, the nearest to the weighted mean
  zip,  ///< the multiple of the weighted mean that preserves the cluster's attention weight, where one exists
  convex,  ///< the weighted mean
};

/// How the query heads that share a KV head determine one merged key and value.
enum class MergeGqa {
  joint,  ///< every head uses its own scores; the key meets the targets of all heads as closely as possible
  mean,   ///< the heads are treated as one, with the mean of their log scores and of their queries
};

enum class MergeOrder {
  evict_first,  ///< the selection runs first, then evicted entries merge with kept ones
  merge_first,  ///< candidates merge with higher-scored candidates first, then the selection runs
};

/// KeepKV (arXiv:2504.09936): every merged entry has votes, the number of original entries that it replaces.
struct KeepKv : SimilarTarget {
  PredictedScores prediction;
  MergedKey key = MergedKey::min_norm;
  MergeGqa gqa = MergeGqa::joint;
  double rank = 0.3;  ///< singular values of the stacked queries below this share of the largest are dropped
  MergeOrder order = MergeOrder::evict_first;
  std::optional<int64_t> period;  ///< decode steps after which the cache is rebuilt from the full one
  friend bool operator==(const KeepKv&, const KeepKv&) = default;

  /// The options with which the paper prints the method.
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

/// CaM (ICML 2024, "Cache Merging for Memory-efficient LLMs Inference"): a random draw decides whether an
/// evicted value is dropped or spread over the kept values that follow it.
struct Cam {
  int64_t neighbours = 32;  ///< number of following kept values that share the evicted value
  int64_t seed = 0;         ///< of the draws
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
