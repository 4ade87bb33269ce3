// Shape checks of matrix products, shared by the BLAS and the Eigen implementation.
#pragma once

#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::reference {

/// Throws ShapeMismatch unless the shapes fit out = a * b.
template <class T>
void require_product(BasicMatrixView<const T> a, BasicMatrixView<const T> b, BasicMatrixView<T> out) {
  require_equal("columns of a", a.cols, "rows of b", b.rows);
  require_equal("rows of a", a.rows, "rows of the product", out.rows);
  require_equal("columns of b", b.cols, "columns of the product", out.cols);
}

/// Throws ShapeMismatch unless the shapes fit out = a * transpose(b).
template <class T>
void require_transposed_product(BasicMatrixView<const T> a, BasicMatrixView<const T> b,
                                BasicMatrixView<T> out) {
  require_equal("columns of a", a.cols, "columns of b", b.cols);
  require_equal("rows of a", a.rows, "rows of the product", out.rows);
  require_equal("rows of b", b.rows, "columns of the product", out.cols);
}

}  // namespace kvbound::reference
