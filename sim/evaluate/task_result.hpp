// What was measured on one task.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvbound::sim {

/// What a policy does to the sequence with the full cache, as `kvbound replay` measures a trace of its
/// steps (sim/measure/metrics.hpp); means over layers, steps and query heads. No value: undefined, or not
/// measured for such policies.
struct OpenLoop {
  std::optional<double> perturbation;        ///< L, hidden-state units
  std::optional<double> relative;            ///< L / || a V W^O_h ||_1
  std::optional<double> bound;               ///< theta, of policies that only evict; units of L
  std::optional<double> kept_mass;           ///< true attention on the entries in the cache
  std::optional<double> layer_perturbation;  ///< || sum_h (o_h - o^_h) ||_1, units of L
  std::optional<double> layer_relative;      ///< the same / || sum_h o_h ||_1
  std::optional<double>
      recall;  ///< share of the entries kept that the first step would miss most, over KV heads
};

struct OpenLoopFigure {
  const char* name;  ///< in JSON
  std::optional<double> OpenLoop::*figure;
};
inline constexpr std::array kOpenLoopFigures{
    OpenLoopFigure{"perturbation", &OpenLoop::perturbation},
    OpenLoopFigure{"relative", &OpenLoop::relative},
    OpenLoopFigure{"layer_perturbation", &OpenLoop::layer_perturbation},
    OpenLoopFigure{"layer_relative", &OpenLoop::layer_relative},
    OpenLoopFigure{"bound", &OpenLoop::bound},
    OpenLoopFigure{"kept_mass", &OpenLoop::kept_mass},
    OpenLoopFigure{"recall", &OpenLoop::recall}};

/// One run (a policy at a budget) on one task. Figures are in nats where they are logarithms.
struct RunFigures {
  std::vector<double> kl;   ///< [target]: KL(full || compressed) of the distribution that predicts the token
  std::vector<double> nll;  ///< [target]: -ln p(token)
  std::vector<int64_t> top1;  ///< [target]: the most likely token (ties: the smaller)
  /// [layers]: || h - h_full ||_2 / || h_full ||_2 of the hidden state behind the
  /// layer, mean over decode steps.
  std::vector<double> hidden_error;
  /// [steps]: entries that a KV head's queries attend to, the step's own included; mean
  /// over layers and KV heads.
  std::vector<double> entries;
  /// [steps]: entries that are stored for them: `entries`, and with merging in periods also the full cache,
  /// from which the cache is rebuilt.
  std::vector<double> stored_entries;

  OpenLoop open_loop;
  int64_t violations = 0;  ///< L > theta by more than rounding explains
};

struct TaskResult {
  std::string id;
  int64_t steps = 0;               ///< decode steps
  std::vector<double> full_nll;    ///< [target]: of the full cache
  std::vector<int64_t> full_top1;  ///< likewise
  std::vector<RunFigures> runs;
  double prefill_seconds = 0, decode_seconds = 0;  ///< wall time; `decode` is of all runs together
};

}  // namespace kvbound::sim
