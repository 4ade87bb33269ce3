#include "memory_pool.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kLeastStaging = int64_t{1} << 16;  // bytes
constexpr int64_t kMostStaged = int64_t{1} << 22;    // bytes of an upload

thread_local MemoryPool* in_force = nullptr;

constexpr int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

MemoryPool::~MemoryPool() {
  try {
    synchronise(stream_);  // queued copies still use staged memory
  } catch (const DeviceError&) {
    // An earlier operation failed. Its error has been or will be thrown by a call that may throw.
  }
  for (const Block& block : blocks_) {
    assert(block.is_free);
    detail::release(block.memory);
  }
  for (const Staging& staging : staging_) detail::release_page_locked(staging.data);
  for (const Chunk& chunk : chunks_) detail::release_page_locked(chunk.data);
}

int64_t MemoryPool::room_for(int64_t bytes) const {
  return aligned(static_cast<int64_t>(std::ceil(static_cast<double>(bytes) * growth_)));
}

MemoryPool::Block* MemoryPool::smallest_free(int64_t least, int64_t most) {
  Block* best = nullptr;
  for (Block& block : blocks_) {
    if (!block.is_free || block.room < least || block.room > most) continue;
    if (best == nullptr || block.room < best->room) best = &block;
  }
  return best;
}

void* MemoryPool::take(int64_t bytes) {
  const int64_t room = room_for(bytes);
  Block* const best = smallest_free(phase_ == Phase::reserving ? room : bytes,
                                    phase_ == Phase::settled ? INT64_MAX : 2 * room);
  if (best == nullptr) {
    blocks_.reserve(blocks_.size() + 1);
    blocks_.push_back({detail::allocate(bytes, room), room, bytes, false, taken_++});
    return blocks_.back().memory;
  }
  best->memory = detail::renew(best->memory, bytes);
  best->bytes = bytes;
  best->is_free = false;
  best->turn = taken_++;
  return best->memory;
}

void MemoryPool::give(void* memory) noexcept {
  const auto block = std::ranges::find_if(
      blocks_, [memory](const Block& own) { return !own.is_free && own.memory == memory; });
  assert(block != blocks_.end());
  block->memory = detail::set_aside(memory);
  block->is_free = true;
}

size_t MemoryPool::layout() const {
  std::map<int64_t, const Block*> in_use;
  for (const Block& block : blocks_) {
    if (!block.is_free) in_use.emplace(block.turn, &block);
  }
  size_t hash = in_use.size();
  for (const auto& [turn, block] : in_use) {
    for (const size_t part : {reinterpret_cast<size_t>(block->memory), static_cast<size_t>(block->bytes)}) {
      hash = (hash ^ part) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    }
  }
  return hash;
}

std::byte* MemoryPool::stage(int64_t bytes) {
  const int64_t needed = aligned(bytes);
  auto place = std::ranges::find_if(
      staging_, [needed](const Staging& staging) { return staging.bytes - staging.used >= needed; });
  if (place == staging_.end()) {
    const int64_t room = std::max(kLeastStaging, aligned(needed + needed / 8));
    staging_.reserve(staging_.size() + 1);
    staging_.push_back({static_cast<std::byte*>(detail::allocate_page_locked(room)), room, 0});
    place = staging_.end() - 1;
  }
  return place->data + std::exchange(place->used, place->used + needed);
}

MemoryPool::Chunk& MemoryPool::chunk(int64_t bytes) {
  Chunk& chunk = chunks_[turn_++ % chunks_.size()];
  chunk.copied.wait();
  if (chunk.bytes < bytes) {
    detail::release_page_locked(std::exchange(chunk.data, nullptr));
    chunk.bytes = 0;
    const int64_t room = std::max(bytes, kMostStaged);
    chunk.data = static_cast<std::byte*>(detail::allocate_page_locked(room));
    chunk.bytes = room;
  }
  return chunk;
}

int64_t MemoryPool::staged() const {
  int64_t bytes = 0;
  for (const Staging& staging : staging_) bytes += staging.used;
  return bytes;
}

void MemoryPool::wait() {
  synchronise(stream_);
  for (Staging& staging : staging_) staging.used = 0;
}

PoolScope::PoolScope(MemoryPool& pool) : outer_(std::exchange(in_force, &pool)) {}
PoolScope::PoolScope() : outer_(std::exchange(in_force, nullptr)) {}
PoolScope::~PoolScope() { in_force = outer_; }

namespace detail {

MemoryPool* pool_in_force() { return in_force; }

void* take(int64_t bytes, MemoryPool* pool) { return pool ? pool->take(bytes) : allocate(bytes, bytes); }

void give(void* memory, MemoryPool* pool) noexcept {
  if (memory == nullptr) return;
  if (pool) {
    pool->give(memory);
  } else {
    release(memory);
  }
}

void upload(void* to, const void* from, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  if (in_force == nullptr || in_force->stream() != stream) {
    queue_to_device(to, from, bytes, stream);
    return synchronise(stream);
  }
  upload_rows(
      to, bytes, 1,
      [from](int64_t first, int64_t count, std::byte* memory) {
        std::memcpy(memory, static_cast<const std::byte*>(from) + first, static_cast<size_t>(count));
      },
      stream);
}

void upload_rows(void* to, int64_t rows, int64_t row_bytes, const WriteRows& write, Stream stream) {
  MemoryPool* const pool = in_force && in_force->stream() == stream ? in_force : nullptr;
  const int64_t at_once = std::min(rows, std::max<int64_t>(1, kMostStaged / std::max<int64_t>(1, row_bytes)));
  if (at_once * row_bytes == 0) return;
  std::vector<std::byte> own(pool ? 0 : static_cast<size_t>(at_once * row_bytes));
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min(at_once, rows - first);
    MemoryPool::Chunk* const chunk = pool && at_once < rows ? &pool->chunk(at_once * row_bytes) : nullptr;
    std::byte* const memory = chunk ? chunk->data : pool ? pool->stage(count * row_bytes) : own.data();
    write(first, count, memory);
    queue_to_device(static_cast<std::byte*>(to) + first * row_bytes, memory, count * row_bytes, stream);
    if (chunk) chunk->copied.record(stream);
    if (!pool) synchronise(stream);
  }
}

void download(void* to, const void* from, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  queue_to_host(to, from, bytes, stream);
  synchronise(stream);
}

}  // namespace detail

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
