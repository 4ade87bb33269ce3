// The shapes that a product of matrices takes, whichever library forms it.
#pragma once

#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::reference {

/// Throws ShapeMismatch unless out = a * b makes sense.
inline void require_product(MatrixView a, MatrixView b, MutableMatrixView out) {
  require_equal("columns of a", a.cols, "rows of b", b.rows);
  require_equal("rows of a", a.rows, "rows of the product", out.rows);
  require_equal("columns of b", b.cols, "columns of the product", out.cols);
}

/// Throws ShapeMismatch unless out = a * transpose(b) makes sense.
inline void require_transposed_product(MatrixView a, MatrixView b, MutableMatrixView out) {
  require_equal("columns of a", a.cols, "columns of b", b.cols);
  require_equal("rows of a", a.rows, "rows of the product", out.rows);
  require_equal("rows of b", b.rows, "columns of the product", out.cols);
}

}  // namespace kvbound::reference
