#pragma once
/// A cluster whose merge is compared with the same merge under errors.
#include <vector>

#include <kvbound/reference/bounds/merge_cluster_errors.hpp>

namespace kvbound::test {

/// A cluster as the reference and as another implementation has it: the other's members are off by at most
/// `errors`, its queries by rounding to the storage type.
struct ClusterCase {
  reference::ClusterMembers members, theirs;
  reference::MemberErrors errors;
  Matrix queries, their_queries;
  std::vector<double> denominators, their_denominators, denominator_errors;
  reference::Arithmetic arithmetic = reference::double_precision();
};

inline constexpr double kScale = 0.25;  // of the logits

/// The numbers of a matrix, row by row.
inline std::vector<double*> pointers(Matrix& matrix) {
  std::vector<double*> result;
  for (int64_t i = 0; i < matrix.rows(); ++i) {
    for (double& x : matrix.row(i)) result.push_back(&x);
  }
  return result;
}

}  // namespace kvbound::test
