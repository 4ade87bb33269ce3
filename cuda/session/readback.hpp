// What is read back from the device: asked for where it is computed, handed over when it has arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <kvbound/cuda/support/memory_pool.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>

#include "pack.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// A place among what is read back.
template <class T>
struct Read {
  int64_t first = 0;  ///< byte
  int64_t count = 0;
};
struct MatrixRead {
  Read<float> numbers;
  int64_t rows = 0, cols = 0;
};
template <Storage T>
struct TensorRead {
  Read<T> numbers;
  int64_t slices = 0, rows = 0, cols = 0;
};
struct ListsRead {
  Read<int64_t> indices;
  int64_t stride = 0;
};

/// What has been read back, in the host's memory.
class Arrived {
 public:
  explicit Arrived(const std::byte* data) : data_(data) {}

  template <class T>
  std::span<const T> operator[](const Read<T>& read) const {
    return {reinterpret_cast<const T*>(data_ + read.first), static_cast<size_t>(read.count)};
  }
  /// Throws NonFinite, naming `what`, if single precision could not hold a number.
  Matrix matrix(const MatrixRead& read, const char* what) const;
  /// The first counts[s] rows of every slice s.
  template <Storage T>
  std::vector<Matrix> slices(const TensorRead<T>& read, std::span<const int64_t> counts) const;
  /// The first counts[g] indices of every list g.
  std::vector<std::vector<int64_t>> lists(const ListsRead& read, std::span<const int64_t> counts) const;

 private:
  const std::byte* data_;
};

/// One transfer to the host: what it consists of, and what is done with it.
///
///     1. of(...) for everything that is wanted, and then(...) for what is done with it
///     2. fetch(...) behind the work that computes it; its memory may then be released
///     3. when the transfer has been waited for: arrive()
///
/// Or 2. by a transfer of several of them, each of which is packed into its part of one block of memory, or
/// written there from the first.
class Readback {
 public:
  /// A place that is written from the first.
  template <class T>
  Read<T> place(int64_t count) {
    return {reserve(count * static_cast<int64_t>(sizeof(T))), count};
  }
  template <class T>
  Read<T> of(const T* numbers, int64_t count) {
    return {add(numbers, count * static_cast<int64_t>(sizeof(T))), count};
  }
  template <class T>
  Read<T> of(const Buffer<T>& buffer) {
    return of(buffer.data(), buffer.size());
  }
  MatrixRead of(const DeviceMatrix& matrix) { return {of(matrix.numbers()), matrix.rows(), matrix.cols()}; }
  template <Storage T>
  TensorRead<T> of(const StoredTensor<T>& tensor) {
    const DeviceTensor<const T> view = tensor.view();
    return {of(tensor.numbers()), view.slices, view.rows, view.cols};
  }
  ListsRead of(const IndexLists& lists) { return {of(lists.indices()), lists.stride()}; }

  /// Keeps memory, of which a part is wanted, until it has been packed.
  template <class Memory>
  void keep(Memory memory) {
    kept_.push_back(std::make_shared<Memory>(std::move(memory)));
  }

  /// What is done when everything has arrived, in the order of the calls.
  void then(std::function<void(const Arrived&)> work) { works_.push_back(std::move(work)); }

  /// What it takes of device memory and of page-locked memory.
  int64_t bytes() const { return bytes_; }
  /// Queues the copy of everything that is not written there from the first to its place in `packed`.
  void pack(std::byte* packed, Stream stream);
  /// Packs into a temporary buffer and transfers that.
  void fetch(MemoryPool& pool);
  /// Where it arrives.
  void arrives_at(const std::byte* memory) { arrived_ = memory; }

  void arrive() const;

 private:
  int64_t reserve(int64_t bytes);
  int64_t add(const void* from, int64_t bytes);

  std::vector<PackedStretch> stretches_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::function<void(const Arrived&)>> works_;
  int64_t bytes_ = 0;
  const std::byte* arrived_ = nullptr;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
