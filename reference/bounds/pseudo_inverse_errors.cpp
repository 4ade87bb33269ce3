#include "pseudo_inverse_errors.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/numerics/singular_values.hpp>
#include <kvbound/reference/numerics/vectors.hpp>

#include "softmax_errors.hpp"

namespace kvbound::reference {

using namespace rounding;

namespace {

// Singular values with errors, of which those below a limit are dropped.
struct UncertainSingularValues {
  std::vector<double> sigmas;  // descending
  double limit = 0;
  double stored = 0;    // the queries' own errors
  double computed = 0;  // the error of a decomposition, for queries that are equally long and independent

  // eta: the error of every singular value in an implementation that keeps this many, at least one. It has
  // found the last of them to be at least the limit.
  double error(size_t kept) const {
    return stored + computed * (sigmas[0] / std::max(sigmas[kept - 1], limit));
  }

  // How many the reference keeps.
  size_t own_rank() const {
    size_t kept = 0;
    while (kept < sigmas.size() && sigmas[kept] > 0 && sigmas[kept] >= limit) ++kept;
    return kept;
  }

  // Whether an implementation whose singular values have these errors may keep this many.
  bool may_keep(size_t kept) const {
    const double off = 2 * error(kept);
    const bool keeps = !(sigmas[kept - 1] < limit - off);
    return keeps && (kept == sigmas.size() || !(sigmas[kept] > limit + off));
  }

  TruncatedInverse inverse(size_t kept) const {
    const double most = sigmas[0], least = sigmas[kept - 1], off = error(kept);
    TruncatedInverse result{static_cast<int64_t>(kept), 1 / least, kInfinity};
    if (!(off < least / 2)) return result;
    double apart = off;
    if (kept < sigmas.size()) {
      const double gap = least - sigmas[kept];
      if (!(gap > 2 * off)) return result;
      apart += off / (gap - off) * (most + off);
    }
    result.error = 2 * apart / (least * (least - off));
    return result;
  }
};

double frobenius_norm(MatrixView rows) {
  double squares = 0;
  for (int64_t i = 0; i < rows.rows; ++i) squares += inner_product(rows.row(i), rows.row(i));
  return std::sqrt(squares);
}

}  // namespace

InverseErrors pseudo_inverse_errors(MatrixView rows, MatrixView errors, double rank,
                                    const Arithmetic& arithmetic) {
  UncertainSingularValues values{singular_values(rows)};
  if (!values.sigmas.empty()) values.limit = rank * values.sigmas[0];
  const auto sizes = static_cast<double>((rows.rows + 1) * (rows.cols + rows.rows));
  values.stored = frobenius_norm(errors);
  values.computed = 16 * sizes * unit(arithmetic) * frobenius_norm(rows);
  const size_t own = values.own_rank();
  if (own == 0) return {{{0, 0, values.stored == 0 ? 0 : kInfinity}}, 0};
  InverseErrors result{{values.inverse(own)}, values.sigmas[0] / values.sigmas[own - 1]};
  for (size_t kept = 1; kept <= values.sigmas.size(); ++kept) {
    if (kept != own && values.may_keep(kept)) result.ranks.push_back(values.inverse(kept));
  }
  return result;
}

}  // namespace kvbound::reference
