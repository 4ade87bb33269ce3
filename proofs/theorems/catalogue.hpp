// The catalogue of all theorems.
#pragma once

#include <vector>

#include <kvbound/proofs/engine/theorem.hpp>

namespace kvbound::proofs {

/// All theorems, in the order of the written proofs.
const std::vector<Theorem>& catalogue();

// The catalogue's parts, one per file.
std::vector<Theorem> perturbation_theorems();
std::vector<Theorem> critical_kv_theorems();
std::vector<Theorem> window_theorems();
std::vector<Theorem> theta_sweep_theorems();
std::vector<Theorem> theta_all_theorems();
std::vector<Theorem> obcache_theorems();
std::vector<Theorem> removal_theorems();
std::vector<Theorem> zeroing_theorems();
std::vector<Theorem> score_sum_theorems();
std::vector<Theorem> keep_kv_theorems();
std::vector<Theorem> lossless_theorems();
std::vector<Theorem> joint_merge_theorems();
std::vector<Theorem> moving_average_theorems();
std::vector<Theorem> prediction_bound_theorems();
std::vector<Theorem> merge_sequence_theorems();
std::vector<Theorem> cam_theorems();

}  // namespace kvbound::proofs
