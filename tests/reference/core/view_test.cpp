#include <type_traits>

#include <gtest/gtest.h>

#include <kvbound/reference/core/session.hpp>
#include <kvbound/reference/core/view.hpp>

#include "support/random_layer.hpp"

namespace kvbound::view_test {
namespace {

using test::matrix;

std::vector<double> list(VectorView numbers) { return {numbers.begin(), numbers.end()}; }

TEST(MatrixView, ReadsRowByRow) {
  const double numbers[] = {1, 2, 3, 4, 5, 6};
  const MatrixView view(numbers, 2, 3);
  EXPECT_EQ(view.row_stride, 3);
  EXPECT_EQ(view(0, 2), 3);
  EXPECT_EQ(view(1, 0), 4);
  EXPECT_EQ(list(view.row(1)), (std::vector<double>{4, 5, 6}));
}

TEST(MatrixView, SkipsWhatLiesBetweenItsRows) {
  const double numbers[] = {1, 2, 99, 3, 4, 99};
  const MatrixView view(numbers, 2, 2, 3);
  EXPECT_EQ(view(1, 1), 4);
  EXPECT_EQ(list(view.row(1)), (std::vector<double>{3, 4}));
}

TEST(MatrixView, CutsRowsAndColumns) {
  const Matrix whole = matrix({{1, 2, 3}, {4, 5, 6}, {7, 8, 9}});
  const MatrixView corner = whole.view().middle_rows(1, 2).middle_cols(1, 2);
  EXPECT_EQ(corner.rows, 2);
  EXPECT_EQ(corner.cols, 2);
  EXPECT_EQ(list(corner.row(0)), (std::vector<double>{5, 6}));
  EXPECT_EQ(list(corner.row(1)), (std::vector<double>{8, 9}));
  EXPECT_EQ(whole.view().middle_rows(3, 0).rows, 0) << "nothing, behind the last row";
  EXPECT_EQ(whole.view().middle_cols(3, 0).cols, 0);
}

TEST(MatrixView, WritesWhereItLooks) {
  Matrix whole = matrix({{1, 2}, {3, 4}});
  whole.view().middle_cols(1, 1)(1, 0) = 9;
  whole.row(0)[0] = 8;
  EXPECT_EQ(list(whole.numbers()), (std::vector<double>{8, 2, 3, 9}));
  static_assert(std::is_convertible_v<MutableMatrixView, MatrixView>);
  static_assert(!std::is_convertible_v<MatrixView, MutableMatrixView>, "a reader must not become a writer");
}

TEST(MatrixView, IsEmptyByDefault) {
  EXPECT_EQ(MatrixView().rows, 0);
  EXPECT_EQ(MatrixView().cols, 0);
  EXPECT_EQ(MatrixView().data, nullptr);
}

TEST(Matrix, IsZeroAtFirst) {
  const Matrix zeros(2, 3);
  EXPECT_EQ(zeros.rows(), 2);
  EXPECT_EQ(zeros.cols(), 3);
  EXPECT_EQ(list(zeros.numbers()), std::vector<double>(6, 0.0));
  EXPECT_EQ(Matrix(0, 3).cols(), 3) << "no rows, but of a known width";
}

TEST(Matrix, GrowsByRows) {
  Matrix growing;
  growing.append_row(std::vector<double>{1, 2});
  growing.append_row(std::vector<double>{3, 4});
  EXPECT_EQ(growing.rows(), 2);
  EXPECT_EQ(growing.cols(), 2);
  EXPECT_EQ(growing(1, 0), 3);
}

TEST(Matrix, CopiesItsNumbers) {
  Matrix original = matrix({{1}});
  const Matrix copy = original;
  original(0, 0) = 2;
  EXPECT_EQ(copy(0, 0), 1);
}

// 2 slices of 3 x 2: slice s, row r, column c holds 100 s + 10 r + c.
Tensor numbered() {
  Tensor tensor(2, 3, 2);
  for (int64_t s = 0; s < 2; ++s) {
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 0; c < 2; ++c) tensor.slice(s)(r, c) = static_cast<double>(100 * s + 10 * r + c);
    }
  }
  return tensor;
}

TEST(Tensor, IsRowMajor) {
  const Tensor tensor = numbered();
  EXPECT_EQ(list(tensor.numbers()),
            (std::vector<double>{0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121}));
}

TEST(TensorView, ShowsASlice) {
  const Tensor tensor = numbered();
  EXPECT_EQ(list(tensor.slice(1).row(2)), (std::vector<double>{120, 121}));
}

TEST(TensorView, CutsRowsOfEverySlice) {
  const Tensor tensor = numbered();
  const TensorView last = tensor.view().middle_rows(1, 2);
  EXPECT_EQ(last.slices, 2);
  EXPECT_EQ(last.rows, 2);
  EXPECT_EQ(list(last.slice(0).row(0)), (std::vector<double>{10, 11}));
  EXPECT_EQ(list(last.slice(1).row(1)), (std::vector<double>{120, 121}));
}

TEST(TensorView, ShowsOneRowOfEverySlice) {
  const Tensor tensor = numbered();
  const MatrixView row = tensor.view().row_of_slices(1);
  EXPECT_EQ(row.rows, 2);
  EXPECT_EQ(list(row.row(0)), (std::vector<double>{10, 11}));
  EXPECT_EQ(list(row.row(1)), (std::vector<double>{110, 111}));
  EXPECT_EQ(list(tensor.view().middle_rows(1, 2).row_of_slices(1).row(1)), (std::vector<double>{120, 121}));
}

TEST(LayerShape, SharesKvHeadsOutInOrder) {
  // 6 query heads on 2 KV heads: 0, 1, 2 read the first, 3, 4, 5 the second.
  const LayerShape shape{6, 2, 4, 8};
  EXPECT_EQ(shape.group_size(), 3);
  EXPECT_EQ(shape.kv_head_of(2), 0);
  EXPECT_EQ(shape.kv_head_of(3), 1);
  EXPECT_EQ(shape.kv_head_of(5), 1);
}

TEST(LayerView, FindsAHeadsRowsOfTheOutputProjection) {
  // Two query heads of dimension 2: head 1 owns rows 2 and 3.
  const Matrix output_projection = matrix({{1}, {2}, {3}, {4}});
  const Tensor keys(1, 5, 2), queries(2, 3, 2);
  const LayerView layer{{2, 1, 2, 1}, 1, keys, keys, queries, output_projection};
  EXPECT_EQ(layer.prompt_tokens(), 5);
  EXPECT_EQ(layer.window_queries(), 3);
  EXPECT_EQ(layer.head_projection(1).rows, 2);
  EXPECT_EQ(layer.head_projection(1)(0, 0), 3);
  EXPECT_EQ(layer.head_projection(1)(1, 0), 4);
}

}  // namespace
}  // namespace kvbound::view_test
