#include "readback.hpp"

#include <algorithm>
#include <string>

#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/rounding.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

Matrix Arrived::matrix(const MatrixRead& read, const char* what) const {
  Matrix matrix = Matrix::for_overwrite(read.rows, read.cols);
  if (!reference::widen((*this)[read.numbers], matrix.data()) && launches_are_whole()) {
    require_finite(std::string(what) + " in single precision", matrix.numbers());
  }
  return matrix;
}

template <Storage T>
std::vector<Matrix> Arrived::slices(const TensorRead<T>& read, std::span<const int64_t> counts) const {
  const std::span<const T> all = (*this)[read.numbers];
  const int64_t row_stride = padded<T>(read.cols);
  std::vector<Matrix> slices;
  for (int64_t s = 0; s < read.slices; ++s) {
    Matrix& slice = slices.emplace_back(counts[s], read.cols);
    for (int64_t r = 0; r < counts[s]; ++r) {
      std::ranges::transform(all.subspan((s * read.rows + r) * row_stride, read.cols), slice.row(r).begin(),
                             [](T number) { return unstored(number); });
    }
  }
  return slices;
}

template std::vector<Matrix> Arrived::slices(const TensorRead<float>&, std::span<const int64_t>) const;
template std::vector<Matrix> Arrived::slices(const TensorRead<Float16>&, std::span<const int64_t>) const;
template std::vector<Matrix> Arrived::slices(const TensorRead<Bfloat16>&, std::span<const int64_t>) const;

std::vector<std::vector<int64_t>> Arrived::lists(const ListsRead& read,
                                                 std::span<const int64_t> counts) const {
  std::vector<std::vector<int64_t>> lists;
  for (size_t g = 0; g < counts.size(); ++g) {
    const auto own = (*this)[read.indices].subspan(g * read.stride, counts[g]);
    lists.emplace_back(own.begin(), own.end());
  }
  return lists;
}

int64_t Readback::reserve(int64_t bytes) {
  constexpr int64_t kPlace = 16;
  return std::exchange(bytes_, bytes_ + (bytes + kPlace - 1) / kPlace * kPlace);
}

int64_t Readback::add(const void* from, int64_t bytes) {
  const int64_t to = reserve(bytes);
  if (bytes > 0) stretches_.push_back({from, bytes, to});
  return to;
}

void Readback::pack(std::byte* packed, Stream stream) {
  cuda::pack(stretches_, packed, bytes_, stream);
  kept_.clear();
}

void Readback::fetch(MemoryPool& pool) {
  Buffer<std::byte> packed(bytes_);
  pack(packed.data(), pool.stream());
  std::byte* const to = pool.stage(bytes_);
  if (bytes_ > 0) detail::queue_to_host(to, packed.data(), bytes_, pool.stream());
  arrives_at(to);
}

void Readback::arrive() const {
  for (const auto& work : works_) work(Arrived(arrived_));
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
