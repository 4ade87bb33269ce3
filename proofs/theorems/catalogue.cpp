#include "catalogue.hpp"

#include <initializer_list>

namespace kvbound::proofs {

const std::vector<Theorem>& catalogue() {
  static const std::vector<Theorem> all = [] {
    std::vector<Theorem> result;
    const auto add = [&](const char* page, std::initializer_list<std::vector<Theorem>> parts) {
      for (const std::vector<Theorem>& part : parts) {
        for (const Theorem& theorem : part) result.emplace_back(theorem).page = page;
      }
    };
    add("critical_kv.md", {perturbation_theorems(), critical_kv_theorems(), window_theorems(),
                           theta_sweep_theorems(), theta_all_theorems()});
    add("obcache.md", {obcache_theorems(), removal_theorems(), zeroing_theorems(), score_sum_theorems()});
    add("keep_kv.md",
        {keep_kv_theorems(), lossless_theorems(), joint_merge_theorems(), moving_average_theorems(),
         prediction_bound_theorems(), merge_sequence_theorems(), cam_theorems()});
    return result;
  }();
  return all;
}

}  // namespace kvbound::proofs
