#include "grid_limit.hpp"

#include <atomic>

namespace kvbound::cuda::emulation {
namespace {

std::atomic<int64_t> rows_along_y = kMostRows;

}  // namespace

int64_t grid_rows() { return rows_along_y; }

ScopedGridRows::ScopedGridRows(int64_t rows) : before_(rows_along_y.exchange(rows)) {}
ScopedGridRows::~ScopedGridRows() { rows_along_y = before_; }

}  // namespace kvbound::cuda::emulation
