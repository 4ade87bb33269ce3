// The rooflines of the reference's operations on a processor: DGEMM, and our own exponentials.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "bench.hpp"

namespace kvbound::sim {

/// "1 thread", "2 threads".
std::string thread_count(int threads);

/// Why DGEMM on this many threads cannot be a roofline; empty if it can.
std::string no_roofline(int threads);

/// The product of two square matrices, `times` times over, by BLAS with `threads` threads and
/// the fastest core's kernels.
BenchPiece cube_piece(const BenchOptions& options, int threads, int times);

/// `rows` rows of `length` exponentials, on all threads; each thread's row stays in its cache.
BenchPiece exponential_piece(int64_t rows, int64_t length, const std::string& name,
                             const std::function<double(std::span<double>)>& exponentials);

/// The reference's exponentials, exp(x - 1). Repeated on their own results, numbers
/// stay between exp(-1) and 1.
double vector_exponentials(std::span<double> numbers);

}  // namespace kvbound::sim
