#include "bench_roofline.hpp"

#include <cmath>
#include <memory>

#include <fmt/format.h>

#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/numerics/exponential.hpp>
#include <kvbound/reference/numerics/product.hpp>

#include "bench_layer.hpp"

namespace kvbound::sim {

std::string thread_count(int threads) { return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s"); }

std::string no_roofline(int threads) {
  const int real = blas_threads(threads);
  return real == threads ? "" : reference::blas_info().library() + " works on " + thread_count(real);
}

BenchPiece cube_piece(const BenchOptions& options, int threads, int times) {
  struct SquareProduct {
    Matrix a, b, out;
  };
  const int64_t side = options.shape.cube;
  const auto cube = std::make_shared<SquareProduct>(
      SquareProduct{random_matrix(side, side, BenchLayer::random(options, 5)),
                    random_matrix(side, side, BenchLayer::random(options, 6)), Matrix(side, side)});
  const std::string core = options.fastest_core.empty() ? reference::blas_info().core : options.fastest_core;
  return {fmt::format("{} DGEMM, {}-cube, {}", core, side, thread_count(blas_threads(threads))),
          2 * std::pow(static_cast<double>(side), 3) * times, "FLOP", [cube, threads, times, core] {
            const reference::ProductsOf fastest(core);
            for (int i = 0; i < times; ++i) {
              reference::multiply_with_blas_threads(cube->a, cube->b, cube->out.view(), threads);
            }
          }};
}

BenchPiece exponential_piece(int64_t rows, int64_t length, const std::string& name,
                             const std::function<double(std::span<double>)>& exponentials) {
  return {name, static_cast<double>(rows * length), "exponentials", [=] {
            reference::parallel_for(
                rows, [&] { return std::vector<double>(length, 0.0); },
                [&](std::vector<double>& numbers, int64_t) { exponentials(numbers); });
          }};
}

double vector_exponentials(std::span<double> numbers) { return reference::exponentiate(numbers, 1); }

int blas_threads(int asked) {
  const Matrix one(1, 1);
  Matrix product(1, 1);
  return reference::multiply_with_blas_threads(one, one, product.view(), asked);
}

}  // namespace kvbound::sim
