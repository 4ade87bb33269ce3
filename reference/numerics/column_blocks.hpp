// Parallel work on blocks of columns, for matrices with few rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <kvbound/reference/core/call_site.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/view.hpp>

namespace kvbound::reference {

/// Calls work(row, first, block) in parallel for blocks of successive columns, first,
/// first + 1, ..., of every row.
///
/// where  the loop's name in ParallelTimes
template <class Work>
void for_column_blocks(MutableMatrixView matrix, const Work& work, CallSite where = CallSite::current()) {
  constexpr int64_t kBlock = 8192;  // long beside starting a piece of work
  const int64_t blocks = (matrix.cols + kBlock - 1) / kBlock;
  parallel_for(
      matrix.rows * blocks,
      [&](int64_t piece) {
        const int64_t row = piece / blocks, first = piece % blocks * kBlock;
        work(row, first, matrix.row(row).subspan(first, std::min(kBlock, matrix.cols - first)));
      },
      where);
}

}  // namespace kvbound::reference
