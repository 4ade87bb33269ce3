#include "kept_sets.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <variant>

#include <fmt/format.h>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/bounds/theta_sweep_errors.hpp>
#include <kvbound/reference/core/decimal.hpp>
#include <kvbound/reference/core/draw.hpp>
#include <kvbound/reference/core/host_rules.hpp>
#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/selection_rules.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/merging/merge_targets.hpp>
#include <kvbound/reference/numerics/columns.hpp>
#include <kvbound/reference/perturbation.hpp>

#include "clusters.hpp"
#include "near_tie.hpp"
#include "swept_selections.hpp"

namespace kvbound::sim {
namespace {

using Positions = std::vector<int64_t>;

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

// Why a list of positions is not a valid kept set, whatever the scores are.
struct Disorder {
  size_t at = 0;  // index in the list
  std::string note;
  // Whether it is still a set of the prompt's positions, though of the wrong size or
  // without an always-kept one.
  bool usable = true;
};

std::optional<Disorder> disorder(const Positions& kept, const LayerView& layer, const Positions& always_kept,
                                 int64_t budget) {
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] < 0 || kept[i] >= layer.prompt_tokens()) {
      return Disorder{i, fmt::format("is no position of a prompt of {} tokens", layer.prompt_tokens()),
                      false};
    }
    if (i > 0 && kept[i] <= kept[i - 1]) {
      return Disorder{i, fmt::format("follows {}: positions must ascend", kept[i - 1]), false};
    }
  }
  if (kept.empty() && budget > 0)
    return Disorder{0, fmt::format("nothing is kept; the budget is {}", budget), false};
  if (std::ssize(kept) != budget) {
    return Disorder{kept.size() - 1,
                    fmt::format("{} entries are kept; the budget is {}", kept.size(), budget), true};
  }
  const Positions missing = difference(always_kept, kept);
  if (missing.empty()) return std::nullopt;
  return Disorder{kept.size() - 1,
                  fmt::format("position {} is missing, which is always kept", missing.front()), true};
}

// One KV head's selection and the scores that it is judged by.
class Judge {
 public:
  Judge(const LayerView& layer, const TestedImplementation& implementation, const PromptRecord& reference,
        const PromptErrors& errors, int64_t kv_head)
      : layer_(layer), implementation_(implementation), reference_(reference), errors_(errors), g_(kv_head) {}

  // Whether some other choice of this many candidates would have been found faulty.
  bool can_tell(int64_t selected) const {
    if (!ranks()) return true;
    const UncertainScores attention = scores();
    return selected == 0 || selected == std::ssize(attention.scores) || separates(attention);
  }

  struct Finding {
    std::optional<Fault> fault;  // nullopt if legal
    bool undecided = false;
  };

  // claimed, own: candidates selected by the tested implementation and by the reference, ascending.
  Finding find(const Positions& claimed, const Positions& own) const {
    if (claimed == own) return {};
    return std::visit([&](const auto& selection) -> Finding { return {by(selection, claimed, own)}; },
                      implementation_.policy.selection);
  }

 private:
  const reference::Ranking& ranking() const { return errors_.ranking; }
  bool ranks() const { return ranking().rules.ranks(); }
  UncertainScores scores() const { return candidates(ranking().scores, errors_.score); }
  // Scores of the candidates alone.
  UncertainScores candidates(const Matrix& scores, const Matrix& errors) const {
    return {ranking().candidate_scores(scores, g_), ranking().candidate_scores(errors, g_)};
  }

  std::optional<Fault> by(const TopK&, const Positions& claimed, const Positions& own) const {
    return ranks() ? top_k_fault(scores(), claimed) : unranked_fault(claimed, own);
  }

  // Without scores nothing rounds: only the reference's own choice is right, that of the smallest draws
  // or that which was given.
  Fault unranked_fault(const Positions& claimed, const Positions& own) const {
    const HostRules rules = rules_of(implementation_.policy.host, layer_.prompt_tokens(), 0);
    const DrawSeed seed{rules.seed.value_or(0), layer_.index, g_};
    const auto drawn = [&](int64_t candidate) {
      return std::ldexp(static_cast<double>(seed.draw_of(rules.sinks + candidate)), -64);
    };
    const Positions wrong = difference(claimed, own), missing = difference(own, claimed);
    Fault fault =
        rules.given
            ? Fault{"place in given's kept set", wrong.front(), missing.front(), 0, 1, 0, 1}
            : Fault{"draw", wrong.front(), missing.front(), drawn(wrong.front()), drawn(missing.front()), 0,
                    1};
    fault.faulty = std::ssize(wrong);
    return fault;
  }

  std::optional<Fault> by(const Critical& options, const Positions& claimed, const Positions&) const {
    const UncertainScores stage_two = candidates(*reference_.stage_two_score, errors_.stage_two_score);
    return critical_fault(scores(), stage_two, claimed, stage_one_counts(options, std::ssize(claimed)));
  }

  CountRange stage_one_counts(const TwoStage& options, int64_t k) const {
    return stage_one_range(options, k, [&] { return adaptive_range(k); });
  }

  // Judged as the best of the sweep's mixtures and rivals.
  Finding by(const ThetaSweep& options, const Positions& claimed, const Positions& own) const {
    const auto k = std::ssize(claimed);
    const std::span<const int64_t> candidate_positions = ranking().candidate_positions();
    const auto of_candidates = [&](MatrixView all) {
      return reference::columns_of(all, candidate_positions);
    };
    const MatrixView weights = group(errors_.weights), norms = group(*reference_.projected_value_norms);
    const Matrix candidate_weights = of_candidates(weights);
    const reference::ThetaSweepInput input{
        weights, norms, candidate_weights, candidate_positions, ranking().always_kept, {}};
    const Matrix mixtures = reference::theta_sweep_scores(input);
    const Matrix mixture_errors = reference::theta_sweep_score_errors(
        input, of_candidates(group(errors_.weight_errors)), group(errors_.norms),
        implementation_.arithmetic.window_attention);
    std::vector<SweptSelection> selections;
    for (int64_t i = 0; i < mixtures.rows(); ++i) {
      selections.push_back(swept_top_k({mixtures.row(i), mixture_errors.row(i)}, k));
    }
    selections.push_back(swept_top_k(scores(), k));
    const std::vector<double> stage_two = reference::stage_two_scores(
        group(ranking().head_scores).middle_cols(ranking().first_candidate, ranking().candidates),
        of_candidates(norms), options.epsilon, options.gqa);
    const UncertainScores uncertain{stage_two, ranking().candidate_scores(errors_.stage_two_score, g_)};
    selections.push_back(swept_critical(scores(), uncertain, k, stage_one_counts(options, k)));
    const SweepJudgement judged = judge_sweep(
        selections, [&](const Positions& set) { return total_bound(set); }, own, claimed);
    return {judged.fault, judged.undecided};
  }

  // Other sets are undecided and never get here: see judge_kept.
  std::optional<Fault> by(const Greedy&, const Positions&, const Positions&) const { return std::nullopt; }

  MatrixView group(MatrixView rows) const { return layer_.shape.group_rows(rows, g_); }

  // sum_h theta_h for a selection and the always-kept entries, with the window's mean attention.
  UncertainNumber total_bound(const Positions& selected) const {
    Positions kept;
    std::ranges::merge(ranking().positions_of(selected), ranking().always_kept, std::back_inserter(kept));
    const MatrixView weights = group(errors_.weights), norms = group(*reference_.projected_value_norms);
    UncertainNumber total{
        0, reference::total_bound_error(weights, group(errors_.weight_errors), norms, group(errors_.norms),
                                        kept, implementation_.arithmetic.window_attention)};
    for (int64_t h = 0; h < weights.rows; ++h) {
      if (!(reference::attention_mass(weights.row(h), kept) > 0)) return {kInfinity, 0};
      total.value +=
          reference::perturbation_bound(reference::eviction_weights(weights.row(h), kept), norms.row(h));
    }
    return total;
  }

  // The range of stage-one sizes that the window queries' attention masses allow.
  CountRange adaptive_range(int64_t k) const {
    const int64_t window = ranking().rules.window, n = layer_.prompt_tokens();
    const std::vector<RankRange> ranks = rank_ranges(scores());
    const std::span<const int64_t> all_candidates = ranking().candidate_positions();
    CountRange all{0, 0};
    // An implementation may compute these masses apart from the scores, adding the weights in any order.
    const reference::Arithmetic arithmetic = implementation_.arithmetic.window_attention.in_any_order();
    for (int64_t i = 0; i < window; ++i) {
      const int64_t visible = n - window + i + 1;
      const Matrix queries = window_queries(layer_.window_queries() - window + i);
      const MatrixView keys = layer_.keys.slice(g_).middle_rows(0, visible);
      const Matrix weights = wider(reference::attention_weights(queries, keys, layer_.scale, visible - 1), n);
      const Matrix errors =
          wider(reference::attention_weight_errors(queries, keys, layer_.scale,
                                                   implementation_.arithmetic.window_attention),
                n);
      const double adding = reference::sum_rounding(visible, arithmetic);
      for (int64_t h = 0; h < weights.rows(); ++h) {
        all = CountRange::most(all, adaptive_counts(weights.row(h), errors.row(h), ranking().always_kept,
                                                    all_candidates, ranks, k, adding));
      }
    }
    return all;
  }

  // Pads rows with zeros for the tokens that a query does not see.
  static Matrix wider(const Matrix& rows, int64_t columns) {
    Matrix result(rows.rows(), columns);
    for (int64_t i = 0; i < rows.rows(); ++i) std::ranges::copy(rows.row(i), result.row(i).begin());
    return result;
  }

  // The queries of one recorded row, one of each query head of the group.
  Matrix window_queries(int64_t row) const {
    Matrix queries(0, layer_.shape.head_dim);
    for (int64_t i = 0; i < layer_.shape.group_size(); ++i) {
      queries.append_row(layer_.queries.slice(g_ * layer_.shape.group_size() + i).row(row));
    }
    return queries;
  }

  const LayerView& layer_;
  const TestedImplementation& implementation_;
  const PromptRecord& reference_;
  const PromptErrors& errors_;
  int64_t g_;
};

// The indices of numbers in a list, both ascending, that holds them all.
Positions indices_in(const Positions& list, const Positions& numbers) {
  Positions indices;
  for (const int64_t number : numbers)
    indices.push_back(std::ranges::lower_bound(list, number) - list.begin());
  return indices;
}

// One KV head's selection among the roots of its clusters, with order=merge-first.
class RootsJudge {
 public:
  // target_of: [n], the recorded clusters
  RootsJudge(const TestedImplementation& implementation, const PromptErrors& errors, int64_t kv_head,
             std::span<const int64_t> target_of)
      : always_kept_(std::ssize(errors.ranking.always_kept)),
        roots_(root_scores({errors.ranking.candidate_positions(),
                            {errors.ranking.candidate_scores(errors.ranking.scores, kv_head),
                             errors.ranking.candidate_scores(errors.score, kv_head)}},
                           target_of, implementation.arithmetic.window_attention)) {}

  // Whether some other choice of roots would have been found faulty.
  bool can_tell(int64_t budget) const {
    return std::ssize(roots_.roots) <= budget - always_kept_ || separates(roots_.view());
  }

  // nullopt if legal. Indices are positions. claimed: those kept that are not always kept, ascending
  std::optional<Fault> fault(const Positions& claimed, int64_t budget) const {
    Positions selected;
    for (const int64_t position : claimed) {
      const auto root = std::ranges::lower_bound(roots_.roots, position);
      if (root == roots_.roots.end() || *root != position) return no_root(position);
      selected.push_back(root - roots_.roots.begin());
    }
    if (std::ssize(selected) != std::min(budget - always_kept_, std::ssize(roots_.roots))) {
      return no_root(claimed.empty() ? 0 : claimed.back());
    }
    std::optional<Fault> fault = top_k_fault(roots_.view(), selected);
    if (!fault) return std::nullopt;
    fault->by = "sum of its cluster's scores";
    fault->chosen = roots_.roots[fault->chosen];
    fault->better = roots_.roots[fault->better];
    return fault;
  }

 private:
  // A kept entry that is no root, or that should have had others beside it.
  Fault no_root(int64_t position) const {
    return {"number of roots", position, roots_.roots.empty() ? 0 : roots_.roots.front(), 0, kInfinity, 0, 1};
  }

  int64_t always_kept_;
  RootScores roots_;
};

std::string text_of(const Fault& fault, size_t kv_head) {
  return fmt::format("KV head {} kept position {} rather than {}, {}", kv_head, fault.chosen, fault.better,
                     text_of(fault));
}

// Accumulates the agreement of the kept sets of all KV heads, one after the other.
class KeptJudgement {
 public:
  KeptJudgement() {
    result_.tensor = "kept";
    result_.near_tie_swaps = 0;
  }

  // A list that is not a valid kept set.
  void add(const Positions& kept, const Positions& own, const Disorder& disorder, size_t kv_head) {
    const double expected =
        own.empty() ? kNothing : static_cast<double>(own[std::min(disorder.at, own.size() - 1)]);
    const double claimed = kept.empty() ? kNothing : static_cast<double>(kept[disorder.at]);
    blame({{elements() + static_cast<int64_t>(disorder.at)},
           claimed,
           expected,
           kInfinity,
           0,
           Dtype::i64,
           fmt::format("KV head {}: {}", kv_head, disorder.note)},
          1, !kept.empty());
    count(kept, true);
  }

  // A valid kept set, legal or not.
  //
  // fault     its indices are positions
  // can_tell  whether some other choice would have been found faulty
  void add(const Positions& kept, const Positions& own, const std::optional<Fault>& fault, bool can_tell,
           size_t kv_head) {
    if (fault) {
      const int64_t at = std::ranges::lower_bound(kept, fault->chosen) - kept.begin();
      blame({{elements() + at},
             static_cast<double>(fault->chosen),
             static_cast<double>(fault->better),
             std::abs(fault->excess()),
             fault->band,
             Dtype::i64,
             text_of(*fault, kv_head)},
            fault->faulty, true);
    } else {
      *result_.near_tie_swaps += static_cast<int64_t>(difference(kept, own).size());
    }
    count(kept, fault || can_tell);
  }

  // A kept set other than the reference's, of which rounding hides whether it is right.
  void add_undecided(const Positions& kept, const Positions& own) {
    result_.undecided += static_cast<int64_t>(difference(kept, own).size());
    result_.undecided_at.push_back(elements());
    count(kept, false);
  }

  TensorAgreement result() const { return result_; }

 private:
  int64_t elements() const { return result_.elements; }
  void count(const Positions& kept, bool judged) {
    result_.elements += std::ssize(kept);
    if (judged) result_.judged += std::ssize(kept);
  }

  // exists: whether the kept set has the element that is blamed
  void blame(const Offender& found, int64_t faulty, bool exists) {
    result_.outside += faulty;
    if (exists) result_.outside_at.push_back(found.index.front());
    if (!result_.worst || result_.worst->share() < found.share()) result_.worst = found;
  }

  TensorAgreement result_;
};

}  // namespace

TensorAgreement judge_kept(const LayerView& layer, const TestedImplementation& implementation,
                           const PromptRecord& reference, const PromptErrors& errors,
                           const std::vector<Positions>& kept,
                           const std::optional<std::vector<int64_t>>& target_of,
                           std::vector<Positions>& teacher_forced) {
  const int64_t n = layer.prompt_tokens();
  const bool merges_first = rules_of(implementation.policy.merge).order == MergeOrder::merge_first;
  const bool by_roots = merges_first && target_of;
  // Whether sets other than the reference's are undecided.
  const bool untold = (merges_first && !by_roots) || rules_of(implementation.policy.selection).is_greedy;
  KeptJudgement judgement;
  for (size_t g = 0; g < kept.size(); ++g) {
    const auto head = static_cast<int64_t>(g);
    const Positions& own = reference.kept[g];
    const int64_t budget = implementation.budget(head);
    const HostRules rules =
        errors.ranking.rules.ranks() ? errors.ranking.rules : rules_of(implementation.policy.host, n, budget);
    const Positions always_kept = rules.always_kept(n);
    // With order=merge-first fewer entries may be kept than the budget allows.
    const auto size = std::ssize(kept[g]);
    const auto found = disorder(kept[g], layer, always_kept, merges_first ? std::min(size, budget) : budget);
    if (!found || found->usable) teacher_forced[g] = kept[g];
    if (found) {
      judgement.add(kept[g], own, *found, g);
      continue;
    }
    if (by_roots) {
      const std::span<const int64_t> targets = std::span(*target_of).subspan(g * static_cast<size_t>(n), n);
      const RootsJudge judge(implementation, errors, head, targets);
      judgement.add(kept[g], own, judge.fault(difference(kept[g], always_kept), budget),
                    judge.can_tell(budget), g);
      continue;
    }
    if (untold && kept[g] != own) {
      judgement.add_undecided(kept[g], own);
      continue;
    }
    const Judge judge(layer, implementation, reference, errors, head);
    const Positions candidates = reference::others_than(always_kept, n);
    const Positions selected = indices_in(candidates, difference(kept[g], always_kept));
    auto [fault, undecided] = judge.find(selected, indices_in(candidates, difference(own, always_kept)));
    if (undecided) {
      judgement.add_undecided(kept[g], own);
      continue;
    }
    if (fault) {
      fault->chosen = candidates[fault->chosen];
      fault->better = candidates[fault->better];
    }
    judgement.add(kept[g], own, fault, untold || judge.can_tell(std::ssize(selected)), g);
  }
  return judgement.result();
}

}  // namespace kvbound::sim
