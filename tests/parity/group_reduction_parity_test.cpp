#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <kvbound/cuda/eviction/group_reduction.hpp>
#include <kvbound/reference/bounds/group_errors.hpp>
#include <kvbound/reference/eviction/group_reduction.hpp>

#include "support.hpp"
#include "support/message_of.hpp"

namespace kvbound::parity {
namespace {

class GroupReductionParity : public DeviceTest, public testing::WithParamInterface<GroupReduction> {};

// Numbers that are not negative, every third a whole one.
Matrix scores_of(int64_t rows, int64_t cols) {
  Matrix scores(rows, cols);
  const Tensor random = random_tensor(5, 1, rows, cols);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const double score = random.slice(0)(i, j);
      scores(i, j) = std::abs(j % 3 == 0 ? std::round(score) : number(stored<float>(score)));
    }
  }
  return scores;
}

std::vector<float> reduced(const Matrix& scores, int64_t group_size, GroupReduction reduction) {
  const std::vector<float> memory(scores.numbers().begin(), scores.numbers().end());
  const cuda::Buffer<float> buffer(memory);
  Output result(group_size > 0 ? scores.rows() / group_size * scores.cols() : 0);
  cuda::reduce_group(buffer.data(), scores.rows(), scores.cols(), group_size, reduction, result.data(),
                     nullptr);
  return result.numbers();
}

TEST_P(GroupReductionParity, MatchesReference) {
  Comparator comparator("reduce_group");
  for (const int64_t cols : {0, 1, 31, 32, 33, 128, 129, 5000}) {
    for (const int64_t group_size : {1, 3, 4, 12}) {
      const Matrix scores = scores_of(12, cols);
      const std::vector<float> actual =
          in_every_schedule([&] { return reduced(scores, group_size, GetParam()); });
      if (cols == 0) {
        EXPECT_TRUE(actual.empty());
        continue;
      }
      const Matrix expected = reference::reduce_group(scores, group_size, GetParam());
      const Matrix bounds = reference::group_errors(scores, Matrix(12, cols), group_size, GetParam(),
                                                    reference::single_precision());
      EXPECT_TRUE(comparator.hold(actual, expected.numbers(), bounds.numbers()))
          << cols << " columns, groups of " << group_size;
    }
  }
  EXPECT_TRUE(comparator.is_tight());
}

TEST_P(GroupReductionParity, NamesGroupsThatDoNotDivide) {
  for (const int64_t group_size : {5, 0, -1}) {
    EXPECT_EQ(test::message_of<ShapeMismatch>([&] { reduced(scores_of(12, 3), group_size, GetParam()); }),
              "12 query heads cannot be shared out in groups of " + std::to_string(group_size));
  }
}

INSTANTIATE_TEST_SUITE_P(, GroupReductionParity, testing::Values(GroupReduction::mean, GroupReduction::sum),
                         [](const auto& test) {
                           return std::string(test.param == GroupReduction::mean ? "mean" : "sum");
                         });

}  // namespace
}  // namespace kvbound::parity
