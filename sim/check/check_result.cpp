#include "check_result.hpp"

#include <utility>

namespace kvbound::sim {

CheckedRows checked_rows(RealClaim claim, const TensorAgreement& found, std::vector<int64_t> extents,
                         std::vector<int64_t> begins) {
  RowNumbers numbers(std::move(claim));
  RowLayout layout = RowLayout::uniform(std::move(extents), std::ssize(numbers.numbers()));
  return {found.tensor, judged_rows(std::move(numbers), std::move(layout), found), std::move(begins)};
}

}  // namespace kvbound::sim
