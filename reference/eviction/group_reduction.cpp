#include "group_reduction.hpp"

#include "obcache.hpp"
#include "snap_kv.hpp"

namespace kvbound::reference {

Matrix reduce_group(MatrixView scores, int64_t group_size, GroupReduction reduction) {
  switch (reduction) {
    case GroupReduction::mean:
      return group_mean(scores, group_size);
    case GroupReduction::sum:
      return group_sum(scores, group_size);
  }
  __builtin_unreachable();
}

}  // namespace kvbound::reference
