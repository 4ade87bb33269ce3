#include "task_summary.hpp"

#include <algorithm>
#include <span>

#include <kvbound/reference/core/dtype.hpp>

namespace kvbound::sim {
namespace {

// The share of places where two lists of tokens are equal.
double share_equal(const std::vector<int64_t>& one, const std::vector<int64_t>& other) {
  int64_t equal = 0;
  for (size_t i = 0; i < one.size(); ++i) equal += one[i] == other[i] ? 1 : 0;
  return static_cast<double>(equal) / static_cast<double>(one.size());
}

class Summaries {
 public:
  Summaries(const EvaluateResult& result, const std::optional<Policy>& base, const Bootstrap& bootstrap)
      : result_(result), base_(base), bootstrap_(bootstrap) {}

  EvaluateSummary all() const {
    EvaluateSummary summary;
    for (const TaskKind& kind : kinds_of(result_.tasks)) {
      summary.kinds.push_back(of_full_cache(kind));
      for (size_t r = 0; r < result_.options.runs.size(); ++r) summary.runs.push_back(of_run(kind, r));
      if (kind.answers) add_depths(kind, summary.depths);
    }
    return summary;
  }

 private:
  const RunFigures& figures(size_t task, size_t run) const { return result_.results[task].runs[run]; }

  // A figure of every task of a kind.
  template <class Figure>
  std::vector<double> of_tasks(const TaskKind& kind, const Figure& figure) const {
    std::vector<double> numbers;
    for (const size_t task : kind.tasks) numbers.push_back(figure(task));
    return numbers;
  }
  std::vector<double> kl(const TaskKind& kind, size_t run) const {
    return of_tasks(kind, [&](size_t task) { return mean_of(figures(task, run).kl); });
  }
  std::vector<double> nll(const TaskKind& kind, size_t run) const {
    return of_tasks(kind, [&](size_t task) { return mean_of(figures(task, run).nll); });
  }
  std::vector<double> full_nll(const TaskKind& kind) const {
    return of_tasks(kind, [&](size_t task) { return mean_of(result_.results[task].full_nll); });
  }
  // Of each answer, the share of its tokens that are the most likely ones; run none: of the full cache.
  std::vector<double> hits(const TaskKind& kind, std::optional<size_t> run) const {
    return of_tasks(kind, [&](size_t task) {
      const TaskResult& found = result_.results[task];
      return share_equal(run ? found.runs[*run].top1 : found.full_top1, result_.tasks[task].target);
    });
  }

  // Of each answer, 1 if all of its tokens are.
  std::vector<double> exact(const TaskKind& kind, size_t run) const {
    std::vector<double> shares = hits(kind, run);
    for (double& share : shares) share = share == 1 ? 1 : 0;
    return shares;
  }

  KindSummary of_full_cache(const TaskKind& kind) const {
    KindSummary summary{kind.name, kind.answers, std::ssize(kind.tasks), mean_of(full_nll(kind)), 0, 0};
    if (!kind.answers) return summary;
    const std::vector<double> all = hits(kind, std::nullopt);
    summary.full_hits = mean_of(all);
    summary.full_exact = std::ranges::count(all, 1.0);
    return summary;
  }

  RunSummary of_run(const TaskKind& kind, size_t r) const {
    RunSummary summary;
    summary.kind = kind.name;
    summary.answers = kind.answers;
    summary.run = r;
    const std::vector<double> own_nll = nll(kind, r);
    summary.kl = bootstrap_.mean(kl(kind, r));
    summary.nll = mean_of(own_nll);
    summary.delta_nll = bootstrap_.mean(differences(own_nll, full_nll(kind)));
    summary.agreement = bootstrap_.mean(of_tasks(kind, [&](size_t task) {
      return share_equal(figures(task, r).top1, result_.results[task].full_top1);
    }));
    if (kind.answers) {
      const std::vector<double> own_hits = hits(kind, r);
      summary.hits = bootstrap_.mean(own_hits);
      summary.exact = std::ranges::count(own_hits, 1.0);
    }
    if (const auto base = base_of(r)) compare(kind, *base, summary);
    add_cache(kind, summary);
    add_open_loop(kind, summary);
    return summary;
  }

  static std::vector<double> differences(std::vector<double> numbers, const std::vector<double>& others) {
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] -= others[i];
    return numbers;
  }

  // The base policy's run at the same budget; none for itself.
  std::optional<size_t> base_of(size_t r) const {
    const std::vector<Run>& runs = result_.options.runs;
    if (!base_ || runs[r].policy.policy == *base_) return std::nullopt;
    for (size_t b = 0; b < runs.size(); ++b) {
      if (runs[b].policy.policy == *base_ && runs[b].budget == runs[r].budget) return b;
    }
    return std::nullopt;
  }

  void compare(const TaskKind& kind, size_t base, RunSummary& summary) const {
    const size_t r = summary.run;
    summary.kl_less_base = bootstrap_.mean(differences(kl(kind, r), kl(kind, base)));
    summary.nll_less_base = bootstrap_.mean(differences(nll(kind, r), nll(kind, base)));
    if (!kind.answers) return;
    summary.hits_less_base = bootstrap_.mean(differences(hits(kind, r), hits(kind, base)));
    summary.exact_less_base = bootstrap_.mean(differences(exact(kind, r), exact(kind, base)));
  }

  void add_cache(const TaskKind& kind, RunSummary& summary) const {
    const traces::ModelConfig& model = result_.model;
    const size_t r = summary.run;
    summary.entries = mean_of(of_tasks(kind, [&](size_t task) { return mean_of(figures(task, r).entries); }));
    const double stored =
        mean_of(of_tasks(kind, [&](size_t task) { return mean_of(figures(task, r).stored_entries); }));
    summary.bytes = stored * static_cast<double>(model.layers * model.kv_heads * 2 * model.head_dim *
                                                 size_of(result_.options.dtype));
    summary.hidden_error.resize(model.layers);
    for (size_t l = 0; l < summary.hidden_error.size(); ++l)
      summary.hidden_error[l] =
          mean_of(of_tasks(kind, [&](size_t task) { return figures(task, r).hidden_error[l]; }));
  }

  void add_open_loop(const TaskKind& kind, RunSummary& summary) const {
    for (const OpenLoopFigure& one : kOpenLoopFigures) {
      std::vector<double> numbers;
      for (const size_t task : kind.tasks) {
        if (const auto number = figures(task, summary.run).open_loop.*one.figure) numbers.push_back(*number);
      }
      if (!numbers.empty()) summary.open_loop.*one.figure = mean_of(numbers);
    }
    for (const size_t task : kind.tasks) summary.violations += figures(task, summary.run).violations;
  }

  void add_depths(const TaskKind& kind, std::vector<DepthSummary>& depths) const {
    std::vector<double> known;
    for (const size_t task : kind.tasks) {
      if (const auto depth = result_.tasks[task].depth) known.push_back(*depth);
    }
    std::ranges::sort(known);
    known.erase(std::unique(known.begin(), known.end()), known.end());
    const auto add = [&](std::optional<size_t> run) {
      for (const double depth : known) {
        TaskKind part{kind.name, true, {}};
        std::ranges::copy_if(kind.tasks, std::back_inserter(part.tasks),
                             [&](size_t task) { return result_.tasks[task].depth == depth; });
        const std::vector<double> found = hits(part, run);
        depths.push_back(
            {kind.name, run, depth, std::ssize(found), std::ranges::count(found, 1.0), mean_of(found)});
      }
    };
    add(std::nullopt);
    for (size_t r = 0; r < result_.options.runs.size(); ++r) add(r);
  }

  const EvaluateResult& result_;
  const std::optional<Policy>& base_;
  const Bootstrap& bootstrap_;
};

}  // namespace

EvaluateSummary summarise(const EvaluateResult& result, const std::optional<Policy>& base,
                          const Bootstrap& bootstrap) {
  return Summaries(result, base, bootstrap).all();
}

}  // namespace kvbound::sim
