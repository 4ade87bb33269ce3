// A cache in pages has the bits of the same cache in one piece, whatever reads it, and what writes it writes
// the same rows and nothing else.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/cuda/attention.hpp>
#include <kvbound/cuda/attention_variants.hpp>
#include <kvbound/cuda/eviction/obcache.hpp>
#include <kvbound/cuda/session/append.hpp>
#include <kvbound/cuda/session/compaction.hpp>
#include <kvbound/cuda/session/head_eviction.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/error.hpp>

#include "cache_slots.hpp"
#include "parity/support.hpp"
#include "support/message_of.hpp"

namespace kvbound::parity {
namespace {

// A page table whose pages lie in any order, a few of which no KV head has.
class Pages {
 public:
  Pages(int64_t kv_heads, int64_t capacity, int bits)
      : kv_heads_(kv_heads), of_head_(((capacity - 1) >> bits) + 1), bits_(bits) {
    const std::vector<int64_t> order = shuffled(77, count());
    for (int64_t n = 0; n < kv_heads * of_head_; ++n) pages_.push_back(static_cast<int32_t>(order[n] / 2));
    table_ = cuda::upload(pages_);
  }

  cuda::PageTable view() const {
    return {table_.data(), static_cast<int32_t>(kv_heads_), static_cast<int32_t>(of_head_), bits_};
  }
  int64_t count() const { return kv_heads_ * of_head_ + 3; }
  int64_t rows() const { return int64_t{1} << bits_; }  // of a page
  int64_t capacity() const { return of_head_ << bits_; }
  // Of KV head g's row.
  int64_t page(int64_t g, int64_t row) const { return pages_[g * of_head_ + (row >> bits_)]; }
  int64_t row_in_page(int64_t row) const { return row & (rows() - 1); }

  // A tensor [kv_heads, capacity, ...] of which these rows are in use, in pages; the others are NaN.
  template <cuda::Storage T>
  Uploaded<T> upload(const Tensor& tensor, const std::vector<int64_t>& used) const {
    Tensor pages(count(), rows(), tensor.view().cols);
    std::ranges::fill(pages.numbers(), std::numeric_limits<double>::quiet_NaN());
    for (int64_t g = 0; g < kv_heads_; ++g) {
      for (int64_t row = 0; row < used[g]; ++row)
        std::ranges::copy(tensor.slice(g).row(row), pages.slice(page(g, row)).row(row_in_page(row)).begin());
    }
    return Uploaded<T>(pages);
  }

 private:
  int64_t kv_heads_, of_head_;
  int bits_;
  std::vector<int32_t> pages_;
  cuda::Buffer<int32_t> table_;
};

struct Case {
  std::vector<int64_t> entries;  // [kv_heads]
  int64_t group_size = 4, head_dim = 64;
  int bits = 6;
  int64_t segments = 1;
  bool votes = false;

  int64_t kv_heads() const { return std::ssize(entries); }
  int64_t heads() const { return kv_heads() * group_size; }
  int64_t capacity() const { return Pages(kv_heads(), std::ranges::max(entries), bits).capacity(); }
};

// A cache in one piece and in pages, of one capacity.
template <cuda::Storage T>
class Caches {
 public:
  explicit Caches(const Case& c)
      : pages_(c.kv_heads(), c.capacity(), c.bits),
        entries_(cuda::upload(c.entries)),
        votes_(std::vector<float>(c.votes ? c.kv_heads() * c.capacity() : 0, 0.75F)),
        keys_(rounded<T>(random_tensor(1, c.kv_heads(), c.capacity(), c.head_dim))),
        values_(rounded<T>(random_tensor(2, c.kv_heads(), c.capacity(), c.head_dim))),
        plain_keys_(keys_, 0, c.entries),
        plain_values_(values_, 0, c.entries),
        paged_keys_(pages_.upload<T>(keys_, c.entries)),
        paged_values_(pages_.upload<T>(values_, c.entries)),
        segments_(c.segments) {}

  cuda::CacheView<T> in_one_piece() const {
    return {plain_keys_.view(), plain_values_.view(), entries_.data(), votes_.data(), segments_};
  }
  cuda::CacheView<T> in_pages() const {
    return {paged_keys_.view(), paged_values_.view(), entries_.data(), votes_.data(),
            segments_,          pages_.view()};
  }

 private:
  Pages pages_;
  cuda::Buffer<int64_t> entries_;
  cuda::Buffer<float> votes_;
  Tensor keys_, values_;
  Uploaded<T> plain_keys_, plain_values_, paged_keys_, paged_values_;
  int64_t segments_;
};

template <class T>
class PagedCacheParity : public DeviceTest {
 protected:
  using Numbers = std::vector<std::vector<float>>;
  // Whether threads copy tiles that TMA could bring: a variant of BF16 alone.
  static constexpr bool kHasVariants = std::is_same_v<T, cuda::Bfloat16>;
  static std::vector<bool> copies() {
    return kHasVariants ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }

  // Attention of a decode step's queries.
  static Numbers attention(const Case& c, const cuda::CacheView<T>& cache, bool copies_tiles) {
    using namespace cuda::attention_splits;
    const Uploaded<T> queries(rounded<T>(random_tensor(3, 1, c.heads(), c.head_dim)));
    Output output(c.heads() * c.head_dim), log_sum_exp(c.heads()), logits(c.heads() * c.capacity());
    const cuda::AttentionResult result{output.data(), log_sum_exp.data(), logits.data()};
    WorkingMemory memory(
        cuda::attention_workspace(c.heads(), c.kv_heads(), c.head_dim, c.capacity(), c.segments));
    if constexpr (kHasVariants) {
      Partition partition = kPartitions[0];
      partition.copies_tiles = copies_tiles;
      attention_by<T>(partition, queries.view(), cache, 0.125, result, memory.view(), nullptr);
    } else {
      cuda::attention<T>(queries.view(), cache, 0.125, result, memory.view(), nullptr);
    }
    return {output.numbers(), log_sum_exp.numbers(), logits.numbers()};
  }

  // What scoring by the exact change needs of a step: dominant entries, their scores, and all entries'.
  static Numbers scores(const Case& c, const cuda::CacheView<T>& cache) {
    const int64_t heads = c.heads();
    // One entry has nearly all of a query's attention.
    const Uploaded<T> queries(rounded<T>(random_tensor(3, heads, 1, c.head_dim, 12)));
    Output outputs(heads * c.head_dim), log_sum_exp(heads), logits(heads * c.capacity()),
        dominant_logits(heads), others(heads * c.head_dim), others_log_sum_exp(heads);
    cuda::Buffer<int64_t> rows(std::vector<int64_t>(heads, -3)), dominant(std::vector<int64_t>(heads, -3));
    const cuda::DominantEntries dominants{rows.data(), dominant_logits.data(), others.data(),
                                          others_log_sum_exp.data()};
    WorkingMemory memory(
        cuda::causal_attention_workspace(heads, 1, c.kv_heads(), c.head_dim, c.capacity(), c.segments));
    cuda::causal_attention<T>(queries.view(), cache, 0.125,
                              {outputs.data(), log_sum_exp.data(), logits.data()}, dominants, memory.view(),
                              nullptr);
    cuda::synchronise(nullptr);
    Output gram_outputs(heads * c.head_dim), output_norms(heads), dominant_scores(heads),
        all(heads * c.capacity());
    const cuda::MeasuredQueries measured{gram_outputs.data(), output_norms.data(), dominant.data(),
                                         dominant_scores.data()};
    const cuda::AttendedQueries attended{1, outputs.data(), logits.data(), log_sum_exp.data(), dominants};
    const cuda::Buffer<float> norms(std::vector<float>(heads * c.capacity(), 1.5F));
    cuda::measure_queries<T>(Change::exact, cache, attended, nullptr, heads, measured, nullptr);
    cuda::step_change_scores<T>(Change::exact, cache, attended, measured, norms.data(), heads, all.data(),
                                nullptr);
    std::vector<float> of_rows;
    for (const int64_t row : cuda::download(dominant)) of_rows.push_back(static_cast<float>(row));
    return {of_rows,          outputs.numbers(),         log_sum_exp.numbers(),
            others.numbers(), dominant_scores.numbers(), all.numbers()};
  }

  static void expect_same(const Case& c,
                          const std::function<Numbers(const Case&, const cuda::CacheView<T>&)>& of) {
    SCOPED_TRACE(testing::Message() << c.kv_heads() << " KV heads of " << c.head_dim << ", pages of "
                                    << (1 << c.bits) << " rows");
    const Caches<T> caches(c);
    EXPECT_TRUE(same_bits(of(c, caches.in_pages()), of(c, caches.in_one_piece())));
  }
};
TYPED_TEST_SUITE(PagedCacheParity, StorageTypes, StorageName);

TYPED_TEST(PagedCacheParity, AttentionHasTheBitsOfOnePieceUnderEverySchedule) {
  for (const bool copies_tiles : this->copies()) {
    this->expect_same({.entries = {130, 1, 0, 200}, .segments = 2, .votes = true},
                      [&](const Case& c, const cuda::CacheView<TypeParam>& cache) {
                        return in_every_schedule([&] { return this->attention(c, cache, copies_tiles); });
                      });
  }
}

TYPED_TEST(PagedCacheParity, AttentionHasTheBitsOfOnePieceAcrossSizes) {
  for (const bool copies_tiles : this->copies()) {
    for (const int64_t head_dim : {10, 64, 128, 256}) {
      for (const int bits : {6, 7, 9}) {
        for (const int64_t most : {64, 65, 1300}) {
          this->expect_same({.entries = {most, 63, most / 2}, .head_dim = head_dim, .bits = bits},
                            [&](const Case& c, const cuda::CacheView<TypeParam>& cache) {
                              return this->attention(c, cache, copies_tiles);
                            });
        }
      }
    }
  }
}

TYPED_TEST(PagedCacheParity, ScoresHaveTheBitsOfOnePieceUnderEverySchedule) {
  this->expect_same({.entries = {130, 64, 0}, .group_size = 2, .votes = true},
                    [&](const Case& c, const cuda::CacheView<TypeParam>& cache) {
                      return in_every_schedule([&] { return this->scores(c, cache); });
                    });
}

TYPED_TEST(PagedCacheParity, ScoresHaveTheBitsOfOnePieceAcrossSizes) {
  for (const int64_t head_dim : {10, 64, 128, 256}) {
    for (const int bits : {6, 8}) {
      this->expect_same({.entries = {300, 1, 129}, .group_size = 2, .head_dim = head_dim, .bits = bits},
                        this->scores);
    }
  }
}

// What is written to pages: row by row what is written to one piece, and nothing beside it.
template <cuda::Storage T>
class Written {
 public:
  // bits  of the page size; 0: in one piece
  Written(int64_t kv_heads, int64_t capacity, int64_t head_dim, int bits)
      : kv_heads_(kv_heads),
        capacity_(capacity),
        pages_(kv_heads, capacity, bits > 0 ? bits : 6),
        paged_(bits > 0),
        keys_(slices(), rows(), head_dim),
        values_(slices(), rows(), head_dim) {
    // Of which all numbers count.
    for (cuda::StoredTensor<T>* tensor : {&keys_, &values_})
      tensor->assign(Tensor(slices(), rows(), head_dim).view(), nullptr);
  }

  cuda::DeviceTensor<T> keys() { return keys_.view(); }
  cuda::DeviceTensor<T> values() { return values_.view(); }
  cuda::PageTable pages() const { return paged_ ? pages_.view() : cuda::PageTable(); }

  // All rows of KV heads, then what lies elsewhere.
  std::vector<T> numbers() const {
    cuda::synchronise(nullptr);
    std::vector<T> all;
    for (const cuda::StoredTensor<T>* tensor : {&keys_, &values_}) {
      const std::vector<T> memory = cuda::download(tensor->numbers());
      const int64_t length = tensor->view().row_stride;
      std::vector<bool> is_row(memory.size() / static_cast<size_t>(length));
      for (int64_t g = 0; g < kv_heads_; ++g) {
        for (int64_t row = 0; row < capacity_; ++row) {
          const int64_t at =
              paged_ ? pages_.page(g, row) * pages_.rows() + pages_.row_in_page(row) : g * capacity_ + row;
          is_row[static_cast<size_t>(at)] = true;
          all.insert(all.end(), memory.begin() + at * length, memory.begin() + (at + 1) * length);
        }
      }
      for (size_t at = 0; at < is_row.size(); ++at) {
        const auto first = memory.begin() + static_cast<std::ptrdiff_t>(at) * length;
        if (!is_row[at]) {
          EXPECT_TRUE(
              std::all_of(first, first + length, [](T number) { return cuda::unstored(number) == 0; }))
              << "row " << at << " belongs to no KV head";
        }
      }
    }
    return all;
  }

 private:
  int64_t slices() const { return paged_ ? pages_.count() : kv_heads_; }
  int64_t rows() const { return paged_ ? pages_.rows() : capacity_; }

  int64_t kv_heads_, capacity_;
  Pages pages_;
  bool paged_;
  cuda::StoredTensor<T> keys_, values_;
};

// Calls write(cache) on a cache in one piece and on caches in pages, under every schedule.
template <cuda::Storage T>
void expect_written_alike(int64_t kv_heads, int64_t capacity, int64_t head_dim,
                          const std::function<void(Written<T>&)>& write) {
  Written<T> plain(kv_heads, capacity, head_dim, 0);
  write(plain);
  const std::vector<T> expected = plain.numbers();
  EXPECT_TRUE(std::ranges::any_of(expected, [](T number) { return cuda::unstored(number) != 0; }));
  for (const int bits : {6, 7}) {
    for_each_schedule([&](const std::string& schedule) {
      SCOPED_TRACE(std::to_string(bits) + " bits, " + schedule);
      Written<T> paged(kv_heads, capacity, head_dim, bits);
      write(paged);
      EXPECT_TRUE(same_bits(paged.numbers(), expected));
    });
  }
}

TYPED_TEST(PagedCacheParity, CompactionFillsPages) {
  using T = TypeParam;
  constexpr int64_t kHeads = 3, kCapacity = 256;
  const std::vector<int64_t> counts{200, 0, 65};
  std::vector<int64_t> kept(kHeads * kCapacity, -1);
  for (int64_t g = 0; g < kHeads; ++g) std::ranges::copy(shuffled(5 + g, 256), kept.begin() + g * kCapacity);
  const cuda::Buffer<int64_t> count = cuda::upload(counts), positions = cuda::upload(kept);
  for (const int64_t head_dim : {10, 64, 128, 256}) {
    const Uploaded<T> keys(rounded<T>(random_tensor(1, kHeads, 512, head_dim))),
        values(rounded<T>(random_tensor(2, kHeads, 512, head_dim)));
    expect_written_alike<T>(kHeads, kCapacity, head_dim, [&](Written<T>& cache) {
      cuda::compact<T>(keys.view(), values.view(), positions.data(), kCapacity, count.data(), cache.keys(),
                       cache.values(), nullptr, cache.pages());
    });
  }
}

// Appended behind the last entry, in a free slot, and in that of an entry that an eviction removes.
TYPED_TEST(PagedCacheParity, NewEntriesAreAppendedToPages) {
  using T = TypeParam;
  constexpr int64_t kHeads = 3, kCapacity = 256;
  const std::vector<std::vector<int64_t>> positions{shuffled(1, 130), shuffled(2, 200), shuffled(3, 255)};
  const cuda::Buffer<int64_t> next = cuda::upload(std::vector<int64_t>{1001, 1002, 1003}),
                              newest = cuda::upload(std::vector<int64_t>(kHeads, 1000)),
                              budgets = cuda::upload(std::vector<int64_t>{129, 300, 199});
  const cuda::Buffer<float> scores = cuda::upload([] {
    const Tensor random = random_tensor(9, 1, kHeads, kCapacity);
    return std::vector<float>(random.numbers().begin(), random.numbers().end());
  }());
  for (const bool evicts : {false, true}) {
    for (const int64_t head_dim : {10, 128}) {
      const Uploaded<T> keys(rounded<T>(random_tensor(4, kHeads, 1, head_dim))),
          values(rounded<T>(random_tensor(5, kHeads, 1, head_dim)));
      expect_written_alike<T>(kHeads, kCapacity, head_dim, [&](Written<T>& cache) {
        Slots of_cache(positions, {0, 0, 0}, kCapacity);
        cuda::CacheSlots slots = of_cache.view();
        slots.pages = cache.pages();
        if (!evicts) {
          const cuda::Buffer<int64_t> free = cuda::upload(std::vector<int64_t>{-1, 130, 3});
          slots.free = const_cast<int64_t*>(free.data());
          cuda::append<T>(keys.view(), values.view(), cache.keys(), cache.values(), slots, next.data(),
                          nullptr, nullptr);
          cuda::synchronise(nullptr);
          return;
        }
        cuda::Buffer<int64_t> evicted(std::vector<int64_t>(kHeads, -7));
        cuda::Buffer<float> running(std::vector<float>(kHeads * kCapacity, 0));
        cuda::Buffer<int> status(std::vector<int>{0});
        const cuda::ScoreUpdate update{{.contributions = scores.data()},
                                       StepUpdate::replace,
                                       GroupReduction::mean,
                                       {.running = running.data()}};
        cuda::evict({1, 1, false, budgets.data()}, slots, update,
                    cuda::new_entries<T>(keys.view(), values.view(), cache.keys(), cache.values(), slots,
                                         next.data()),
                    kHeads, newest.data(), evicted.data(), status.data(), nullptr);
        cuda::synchronise(nullptr);
      });
    }
  }
}

TYPED_TEST(PagedCacheParity, RefusesPagesThatKernelsDoNotTake) {
  using T = TypeParam;
  const Case c{.entries = {70, 1}};
  const Caches<T> caches(c);
  const auto refused = [&](const std::function<void(cuda::CacheView<T>&)>& change) {
    cuda::CacheView<T> cache = caches.in_pages();
    change(cache);
    return test::message_of<ShapeMismatch>([&] { this->attention(c, cache, false); });
  };
  EXPECT_EQ(refused([](auto& cache) { cache.pages.size_bits = 5; }),
            "bits of the page size is 5, outside 6..30");
  EXPECT_EQ(refused([](auto& cache) { cache.pages.size_bits = 7; }),
            "rows of keys is 64 but the page size is 128");
  EXPECT_EQ(refused([](auto& cache) { cache.values.slices = 3; }),
            "slices of keys is 7 but slices of values is 3");
}

}  // namespace
}  // namespace kvbound::parity
