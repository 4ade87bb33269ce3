// The argument checks of operations over an observation window.
#pragma once

#include <cstdint>

#include <kvbound/cuda/support/shape_check.hpp>

#include "snap_kv.hpp"

namespace kvbound::cuda {

/// Throws ShapeMismatch unless the window's arrays have one head_dim that operations take, kv_heads divides query_heads,
/// and there are at least `least` queries and no more than tokens.
template <Storage T>
void require_window(const WindowView<T>& window, int64_t least = 1) {
  require_layout("queries", window.queries);
  require_layout("keys", window.keys);
  require_groups(window.queries.slices, window.keys.slices);
  require_equal("columns of queries", window.queries.cols, "columns of keys", window.keys.cols);
  require_range("head_dim", window.keys.cols, 1, kMostHeadDim);
  require_range("window", window.queries.rows, least, window.keys.rows);
}

/// The same, and unless the values have the shape of the window's keys.
template <Storage T>
void require_window(const WindowView<T>& window, const DeviceTensor<const T>& values) {
  require_window(window);
  require_layout("values", values);
  require_equal("slices of values", values.slices, "slices of keys", window.keys.slices);
  require_equal("rows of values", values.rows, "rows of keys", window.keys.rows);
  require_equal("columns of values", values.cols, "columns of keys", window.keys.cols);
}

}  // namespace kvbound::cuda
