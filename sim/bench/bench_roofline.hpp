// What the reference's operations are measured against on a processor: DGEMM and our own exponentials.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "bench.hpp"

namespace kvbound::sim {

/// "1 thread", "2 threads".
std::string thread_count(int threads);

/// Why DGEMM on so many threads is no roofline; empty if it is one.
std::string no_roofline(int threads);

/// The product of two square matrices by BLAS with threads of its own and the fastest core's kernels, several times over.
BenchPiece cube_piece(const BenchOptions& options, int threads, int times);

/// `rows` rows of `length` exponentials, by as many threads as there are; each row in its thread's cache.
BenchPiece exponential_piece(int64_t rows, int64_t length, const std::string& name,
                             const std::function<double(std::span<double>)>& exponentials);

/// The reference's exponentials, exp(x - 1): again and again stays between exp(-1) and 1.
double vector_exponentials(std::span<double> numbers);

}  // namespace kvbound::sim
