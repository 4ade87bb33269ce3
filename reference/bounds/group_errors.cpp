#include "group_errors.hpp"

#include "obcache_errors.hpp"

namespace kvbound::reference {

Matrix group_errors(MatrixView scores, MatrixView errors, int64_t group_size, GroupReduction reduction,
                    const Arithmetic& arithmetic) {
  switch (reduction) {
    case GroupReduction::mean:
      return group_mean_errors(scores, errors, group_size, arithmetic);
    case GroupReduction::sum:
      return group_sum_errors(scores, errors, group_size, arithmetic);
  }
  __builtin_unreachable();
}

}  // namespace kvbound::reference
