// The nearest keys on the device, by all kernels: cosines within their bounds, no other key clearly nearer,
// and the first of equal keys.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include <gmock/gmock-matchers.h>

#include <kvbound/cuda/merging/merge_targets.hpp>
#include <kvbound/cuda/merging/nearest_key.hpp>
#include <kvbound/cuda/merging/nearest_key_check.hpp>
#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/bounds/merge_cluster_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/merging/nearest_key.hpp>
#include <kvbound/reference/numerics/directions.hpp>

#include "keys.hpp"
#include "support.hpp"

namespace kvbound::parity {
namespace {

using cuda::SearchKernel;

constexpr Keys kKinds[] = {Keys::random,  Keys::duplicated, Keys::zero,  Keys::peaked,
                           Keys::huge,    Keys::tiny,       Keys::mixed, Keys::nearly_parallel,
                           Keys::opposite};

std::string_view name(SearchKernel kernel) {
  return kernel == SearchKernel::wgmma ? "wgmma" : kernel == SearchKernel::mma ? "mma" : "portable";
}

bool has_wgmma(int64_t head_dim) { return cuda::device().has_wgmma && (head_dim == 64 || head_dim == 128); }

// The kernels for the type and head_dim, the fastest one last.
template <cuda::Storage T>
std::vector<SearchKernel> kernels(int64_t head_dim) {
  if (sizeof(T) != 2 || cuda::device().compute_capability < 80) return {SearchKernel::portable};
  std::vector<SearchKernel> all{SearchKernel::portable, SearchKernel::mma};
  if (has_wgmma(head_dim)) all.push_back(SearchKernel::wgmma);
  return all;
}

// The size of huge keys, of which tiny ones are the inverse. FP16 has no numbers whose products overflow.
template <cuda::Storage T>
constexpr double kHuge = std::is_same_v<T, cuda::Float16> ? 4e3 : 1e25;

// The keys, multiplied by powers of two so that the largest number of each is 0.5 to 1, which changes no
// cosine: bounds on cosines assume that squares neither overflow nor underflow.
Tensor near_one(Tensor keys) {
  const TensorView all = keys;
  for (int64_t s = 0; s < all.slices; ++s) {
    for (int64_t i = 0; i < all.rows; ++i) {
      double most = 0;
      for (const double number : all.slice(s).row(i)) most = std::max(most, std::abs(number));
      int exponent = 0;
      std::frexp(most, &exponent);
      double* const row = keys.data() + (s * all.rows + i) * all.cols;
      std::transform(row, row + all.cols, row, [&](double x) { return std::ldexp(x, -exponent); });
    }
  }
  return keys;
}

struct Case {
  Keys kind = Keys::random;
  int64_t head_dim = 10;
  int64_t tokens = 40;
  std::vector<int64_t> kept = {13, 5};  // per KV head: how many, spread over all positions
};

template <cuda::Storage T>
struct Subject {
  Case c;
  Tensor keys;
  std::vector<std::vector<int64_t>> kept, leaving;  // positions per KV head
  Tensor kept_keys;

  explicit Subject(const Case& given)
      : c(given), keys(rounded<T>(keys_of(c.kind, std::ssize(c.kept), c.tokens, c.head_dim, kHuge<T>))) {
    const int64_t capacity = *std::ranges::max_element(c.kept) + 3;
    kept_keys = Tensor(heads(), capacity, c.head_dim);
    for (int64_t g = 0; g < heads(); ++g) {
      std::vector<int64_t>& own = kept.emplace_back();
      for (int64_t i = 0; i < c.kept[g]; ++i) own.push_back(i * c.tokens / c.kept[g]);
      std::vector<int64_t> others;
      for (int64_t j = 0; j < c.tokens; ++j) {
        if (!std::ranges::binary_search(own, j)) others.push_back(j);
      }
      leaving.push_back(std::move(others));
      for (int64_t i = 0; i < c.kept[g]; ++i) {
        std::ranges::copy(keys.slice(g).row(own[i]), kept_keys.data() + (g * capacity + i) * c.head_dim);
      }
    }
  }

  int64_t heads() const { return std::ssize(c.kept); }
  int64_t stride() const { return c.tokens; }

  // The norms of a tensor's rows, [slices, rows].
  static cuda::Buffer<float> norms_of(const Uploaded<T>& rows, const cuda::Buffer<int64_t>* count) {
    cuda::Buffer<float> norms(rows.view().slices * rows.view().rows);
    cuda::key_norms<T>(rows.view(), count ? count->data() : nullptr, norms.data(), nullptr);
    return norms;
  }

  struct Result {
    std::vector<int64_t> index;
    std::vector<float> cosine;
  };

  Result run(SearchKernel kernel) const {
    const Uploaded<T> all(keys), some(kept_keys, kept_keys.view().rows, c.kept);
    std::vector<int64_t> lists(heads() * stride(), -1), counts;
    for (int64_t g = 0; g < heads(); ++g) {
      std::ranges::copy(leaving[g], lists.begin() + g * stride());
      counts.push_back(std::ssize(leaving[g]));
    }
    const cuda::Buffer<int64_t> positions = cuda::upload(lists), leaving_count = cuda::upload(counts),
                                kept_count = cuda::upload(c.kept);
    const cuda::Buffer<float> norms = norms_of(all, nullptr), kept_norms = norms_of(some, &kept_count);
    cuda::Buffer<int64_t> index = cuda::upload(std::vector<int64_t>(heads() * stride(), -7));
    cuda::Buffer<float> cosine = cuda::upload(std::vector<float>(heads() * stride(), -7));
    cuda::nearest_keys<T>({all.view(), norms.data()}, positions.data(), stride(), leaving_count.data(),
                          {some.view(), kept_norms.data(), kept_count.data()},
                          {index.data(), cosine.data(), stride()}, nullptr, kernel);
    cuda::synchronise(nullptr);
    return {cuda::download(index), cuda::download(cosine)};
  }
};

double cosine_of(VectorView a, VectorView b) {
  return reference::cosine(a, reference::length(a), b, reference::length(b));
}

double cosine_bound(VectorView a, VectorView b, const reference::Arithmetic& arithmetic) {
  const std::vector<double> none(a.size());
  return reference::cosine_error(a, none, b, none, arithmetic);
}

// Whether no kept key but those of smaller or nearly equal cosine comes before the chosen one.
void expect_nearest(MatrixView keys, int64_t leaving, const std::vector<int64_t>& kept, int64_t chosen,
                    float cosine, const reference::Arithmetic& arithmetic) {
  if (kept.empty()) {
    EXPECT_EQ(chosen, -1);
    return;
  }
  ASSERT_TRUE(0 <= chosen && chosen < std::ssize(kept)) << "entry " << leaving << " has target " << chosen;
  const VectorView own = keys.row(leaving), target = keys.row(kept[chosen]);
  const double near = cosine_of(own, target), off = cosine_bound(own, target, arithmetic);
  EXPECT_NEAR(cosine, near, off) << "entry " << leaving;
  for (size_t i = 0; i < kept.size(); ++i) {
    const VectorView other = keys.row(kept[i]);
    EXPECT_LE(cosine_of(own, other), near + off + cosine_bound(own, other, arithmetic))
        << "entry " << leaving << ", kept " << i;
    const bool same = std::ranges::equal(other, target);
    EXPECT_TRUE(!same || chosen <= static_cast<int64_t>(i)) << "an equal key stands before the chosen one";
  }
}

template <class T>
class NearestKeyParity : public DeviceTest {
 protected:
  explicit NearestKeyParity(int capability = 0) : DeviceTest(capability) {}

  static void expect_parity(const Case& c) {
    const Subject<T> subject(c);
    for (const SearchKernel kernel : kernels<T>(c.head_dim)) expect_parity(subject, kernel);
  }

  static void expect_parity(const Subject<T>& subject, SearchKernel kernel) {
    const Case& c = subject.c;
    SCOPED_TRACE(std::string(name(kernel)) + ", " + std::string(name(c.kind)) + ", head_dim " +
                 std::to_string(c.head_dim) + ", " + std::to_string(c.tokens) + " tokens, " +
                 std::to_string(c.kept.front()) + " kept");
    const reference::Arithmetic arithmetic =
        reference::arithmetic_of(cuda::nearest_keys_arithmetic(c.head_dim, kernel));
    const typename Subject<T>::Result result = subject.run(kernel);
    const Tensor keys = near_one(subject.keys);
    for (int64_t g = 0; g < subject.heads(); ++g) {
      for (int64_t i = 0; i < subject.stride(); ++i) {
        const int64_t place = g * subject.stride() + i;
        if (i >= std::ssize(subject.leaving[g])) {
          EXPECT_EQ(result.index[place], -7) << "written behind the last entry";
          continue;
        }
        expect_nearest(keys.slice(g), subject.leaving[g][i], subject.kept[g], result.index[place],
                       result.cosine[place], arithmetic);
      }
    }
  }
};
TYPED_TEST_SUITE(NearestKeyParity, StorageTypes, StorageName);

TYPED_TEST(NearestKeyParity, FindsTheNearestAcrossSizes) {
  for (const int64_t tokens : {1, 31, 32, 33, 64, 65, 300}) {
    for (const int64_t kept : {int64_t{0}, int64_t{1}, tokens / 2, tokens}) {
      this->expect_parity({.tokens = tokens, .kept = {kept, std::min<int64_t>(tokens, 1)}});
    }
  }
}

TYPED_TEST(NearestKeyParity, FindsTheNearestForEveryKindOfKeysAndHeadDim) {
  for (const Keys kind : kKinds) {
    for (const int64_t head_dim : {1, 8, 13, 64, 72, 128, 255, 256}) {
      this->expect_parity({.kind = kind, .head_dim = head_dim, .tokens = 140, .kept = {70, 10}});
    }
  }
}

// Some blocks of leaving keys, of which the last ones are partly filled, and many tiles of kept ones.
TYPED_TEST(NearestKeyParity, FindsTheNearestOfManyKeys) {
  this->expect_parity({.head_dim = 24, .tokens = 800, .kept = {523, 64}});
  this->expect_parity({.kind = Keys::mixed, .head_dim = 24, .tokens = 600, .kept = {129, 403}});
}

// More leaving keys than an item of wgmma has, and more kept ones than its ring of stages.
TYPED_TEST(NearestKeyParity, FindsTheNearestOfManyKeysOnEveryKernel) {
  this->expect_parity({.head_dim = 64, .tokens = 900, .kept = {523, 64}});
  this->expect_parity({.kind = Keys::mixed, .head_dim = 128, .tokens = 700, .kept = {129, 403}});
  this->expect_parity({.kind = Keys::opposite, .head_dim = 64, .tokens = 600, .kept = {300, 150}});
}

TYPED_TEST(NearestKeyParity, LengthsAreThoseOfTheReferenceWhateverTheirSize) {
  for (const double size : {1e-30, 1e-10, 1.0, 1e10, 1e30}) {
    if (std::is_same_v<TypeParam, cuda::Float16> && size != 1) continue;
    Tensor keys = random_tensor(2, 2, 9, 40, size);
    keys = rounded<TypeParam>(std::move(keys));
    std::fill_n(keys.data() + 3 * 40, 40, 0.0);
    const Uploaded<TypeParam> rows(keys);
    const std::vector<float> norms = cuda::download(Subject<TypeParam>::norms_of(rows, nullptr));
    for (int64_t s = 0; s < 2; ++s) {
      for (int64_t i = 0; i < 9; ++i) {
        const double expected = reference::length(keys.slice(s).row(i));
        EXPECT_NEAR(norms[s * 9 + i], expected, 1e-6 * expected);
      }
    }
  }
}

TYPED_TEST(NearestKeyParity, GivesTheSameUnderEverySchedule) {
  for (const SearchKernel kernel : kernels<TypeParam>(64)) {
    for (const Keys kind : {Keys::nearly_parallel, Keys::mixed}) {
      SCOPED_TRACE(std::string(name(kernel)) + ", " + std::string(name(kind)));
      const Subject<TypeParam> subject({.kind = kind, .head_dim = 64, .tokens = 330, .kept = {195, 65}});
      in_every_schedule([&] { return subject.run(kernel).index; });
      in_every_schedule([&] { return subject.run(kernel).cosine; });
    }
  }
}

// A key's cosines do not depend on the keys around it, nor on its place in a block or tile.
TYPED_TEST(NearestKeyParity, GivesTheSameBitsWhereverKeysStand) {
  for (const SearchKernel kernel : kernels<TypeParam>(64)) {
    SCOPED_TRACE(name(kernel));
    for (const Keys kind : {Keys::duplicated, Keys::mixed}) {
      const Subject<TypeParam> subject({.kind = kind, .head_dim = 64, .tokens = 400, .kept = {150, 77}});
      const typename Subject<TypeParam>::Result result = subject.run(kernel);
      for (int64_t g = 0; g < subject.heads(); ++g) {
        const int64_t period = kind == Keys::duplicated ? 7 : 11;
        std::vector<int64_t> first(period, -1);  // the place of the first leaving key of each kind
        for (int64_t i = 0; i < std::ssize(subject.leaving[g]); ++i) {
          const int64_t place = g * subject.stride() + i;
          int64_t& of_kind = first[subject.leaving[g][i] % period];
          if (of_kind < 0) of_kind = place;
          EXPECT_EQ(result.index[place], result.index[of_kind]);
          EXPECT_EQ(result.cosine[place], result.cosine[of_kind]);
        }
      }
    }
  }
}

template <class T>
class WgmmaNearestKeyParity : public NearestKeyParity<T> {
 protected:
  WgmmaNearestKeyParity() : NearestKeyParity<T>(90) {}
};
TYPED_TEST_SUITE(WgmmaNearestKeyParity, Storage16Types, StorageName);

// 16 multiprocessors of the emulation have more pairs of 256 leaving keys and a KV head to work on than
// blocks, so that a block takes several, and kept keys of different numbers leave the ring of stages in
// another place for the next one.
TYPED_TEST(WgmmaNearestKeyParity, FindsTheNearestWhereBlocksTakeSeveralItems) {
  std::vector<int64_t> kept;
  for (int64_t g = 0; g < 2 * std::min(cuda::device().multiprocessors, 16) + 1; ++g)
    kept.push_back(g * 37 % 290);
  this->expect_parity(Subject<TypeParam>({.kind = Keys::mixed, .head_dim = 64, .tokens = 300, .kept = kept}),
                      SearchKernel::wgmma);
}

TYPED_TEST(NearestKeyParity, RunsTheFastestKernelThatIsRight) {
  for (const int64_t head_dim : {64, 80, 128}) {
    const cuda::SearchChoice choice = cuda::search_choice<TypeParam>(head_dim);
    EXPECT_EQ(choice.kernel, kernels<TypeParam>(head_dim).back()) << choice.why;
    EXPECT_EQ(choice.kernel, cuda::chosen_search_kernel<TypeParam>(head_dim));
  }
}

// Kernels that a device's tensor cores might turn into: one index wrong, one cosine wrong,
// and a launch that fails.
namespace wrong {

template <class T>
using Arguments = cuda::nearest_key_search::Arguments<T>;

template <class T>
void one_index(const Arguments<T>& arguments, cuda::Stream stream) {
  cuda::nearest_key_search::launch_portable<false>(arguments, stream);
  const int64_t wrong = 800;
  cuda::detail::upload(arguments.nearest.index + 123, &wrong, sizeof wrong, stream);
}

template <class T>
void one_cosine(const Arguments<T>& arguments, cuda::Stream stream) {
  cuda::nearest_key_search::launch_portable<false>(arguments, stream);
  const float wrong = 1;
  cuda::detail::upload(arguments.nearest.cosine + 45, &wrong, sizeof wrong, stream);
}

template <class T>
void launch(const Arguments<T>&, cuda::Stream) {
  throw DeviceError("launch", "the driver lacks tensor maps", __FILE__, __LINE__);
}

}  // namespace wrong

TYPED_TEST(NearestKeyParity, FallsBackFromAKernelThatIsWrong) {
  if constexpr (sizeof(TypeParam) == 2) {
    using cuda::nearest_key_search::checked_choice;
    const auto expect = [](const cuda::SearchChoice& choice, SearchKernel kernel, const std::string& why) {
      EXPECT_EQ(choice.kernel, kernel);
      EXPECT_THAT(choice.why, testing::ContainsRegex(why));
    };
    const cuda::DeviceCounters before = cuda::counters();
    if (has_wgmma(64)) {
      expect(checked_choice<TypeParam>(64, {.wgmma = wrong::one_index}), SearchKernel::mma,
             "^wgmma: the nearest key of key 123 is 800 with .*; mma: right");
    }
    expect(checked_choice<TypeParam>(64, {.wgmma = wrong::launch, .mma = wrong::one_cosine}),
           SearchKernel::portable, "mma: the nearest key of key 45 is .* with a cosine of 1.0");
    expect(checked_choice<TypeParam>(80, {.mma = wrong::launch}), SearchKernel::portable,
           "^mma: .*the driver lacks tensor maps");
    EXPECT_EQ(cuda::counters(), before);
  }
}

// With little shared memory a block has one tile at a time; the results must not depend on it.
TYPED_TEST(NearestKeyParity, GivesTheSameBitsWithOneTileAtATime) {
  const Subject<TypeParam> subject({.head_dim = 256, .tokens = 200, .kept = {140, 70}});
  const auto cosines = [&] { return subject.run(SearchKernel::portable).cosine; };
  const std::vector<float> results = cosines();
  for_each_device([&](const std::string& device) {
    SCOPED_TRACE(device);
    EXPECT_TRUE(same_bits(in_every_schedule(cosines), results));
  });
}

// Evicted entries in a cache whose positions do not ascend: one in the middle, none, the last one.
template <cuda::Storage T>
class EvictedEntries {
 public:
  EvictedEntries(Keys kind, int64_t entries, int64_t head_dim)
      : entries_(entries),
        capacity_(entries + 2),
        keys_(rounded<T>(keys_of(kind, kHeads, capacity_, head_dim, kHuge<T>))),
        positions_(kHeads * capacity_, -1) {
    for (int64_t g = 0; g < kHeads; ++g) {
      for (int64_t slot = 0; slot < entries; ++slot)
        positions_[g * capacity_ + slot] = (slot * 7 + g) % entries + 100;
    }
  }

  struct Result {
    std::vector<int64_t> index;
    std::vector<float> cosine;
    friend bool operator==(const Result&, const Result&) = default;
  };

  Result run() const {
    const std::vector<int64_t> counts(kHeads, entries_);
    const Uploaded<T> rows(keys_, capacity_, counts);
    const cuda::Buffer<int64_t> count = cuda::upload(counts);
    const cuda::Buffer<float> norms = Subject<T>::norms_of(rows, &count);
    cuda::Buffer<int64_t> used = cuda::upload(counts), free = cuda::upload(evicted_),
                          at = cuda::upload(positions_),
                          index = cuda::upload(std::vector<int64_t>(kHeads, -7));
    cuda::Buffer<float> cosine = cuda::upload(std::vector<float>(kHeads, -7));
    cuda::Buffer<int64_t> kept(kHeads), kept_count(kHeads), members(kHeads), offsets(2 * kHeads),
        into(kHeads);
    cuda::join_nearest<T>({rows.view(), norms.data()},
                          {kHeads, capacity_, used.data(), free.data(), nullptr, at.data()},
                          {index.data(), cosine.data(), 1}, {}, {kept.data(), kept_count.data(), 1},
                          {members.data(), 1, offsets.data(), 1}, into.data(), nullptr);
    return {cuda::download(index), cuda::download(cosine)};
  }

  void expect_nearest_of(const Result& found) const {
    const reference::Arithmetic arithmetic =
        reference::arithmetic_of(cuda::nearest_key_arithmetic<T>(keys_.view().cols));
    const Tensor keys = near_one(keys_);
    EXPECT_EQ(found.index[1], -1);
    EXPECT_EQ(found.cosine[1], 0);
    for (const int64_t g : {0, 2}) {
      // By ascending position, so that the first of equal keys is the one of smallest position.
      std::vector<int64_t> others;
      for (int64_t slot = 0; slot < entries_; ++slot) {
        if (slot != evicted_[g]) others.push_back(slot);
      }
      std::ranges::sort(others, {}, [&](int64_t slot) { return positions_[g * capacity_ + slot]; });
      const auto chosen = std::ranges::find(others, found.index[g]);
      const int64_t rank = chosen == others.end() ? -1 : chosen - others.begin();
      expect_nearest(keys.slice(g), evicted_[g], others, rank, found.cosine[g], arithmetic);
    }
  }

 private:
  static constexpr int64_t kHeads = 3;

  int64_t entries_, capacity_;
  Tensor keys_;
  std::vector<int64_t> positions_;
  std::vector<int64_t> evicted_{entries_ / 2, -1, entries_ - 1};
};

TYPED_TEST(NearestKeyParity, FindsTheNearestEntryOfTheOneThatWasEvicted) {
  for (const Keys kind : kKinds) {
    for (const int64_t entries : {1, 2, 15, 16, 17, 90}) {
      const EvictedEntries<TypeParam> cache(kind, entries, 24);
      for_each_schedule([&](const std::string& schedule) {
        SCOPED_TRACE(schedule + ", " + std::string(name(kind)) + ", " + std::to_string(entries) + " entries");
        cache.expect_nearest_of(cache.run());
      });
    }
  }
}

// Of as many entries that a cluster's blocks share a KV head where there are clusters, which must not matter.
TYPED_TEST(NearestKeyParity, FindsTheNearestEntryOfMany) {
  for (const int64_t head_dim : {40, 128, 200}) {
    for (const Keys kind : {Keys::random, Keys::duplicated}) {
      SCOPED_TRACE(std::string(name(kind)) + ", head_dim " + std::to_string(head_dim));
      const EvictedEntries<TypeParam> cache(kind, 1300, head_dim);
      const auto found = cache.run();
      cache.expect_nearest_of(found);
      without_clusters([&] { EXPECT_EQ(cache.run(), found); });
    }
  }
}

TYPED_TEST(NearestKeyParity, GivesTheSameNearestEntryUnderEverySchedule) {
  const EvictedEntries<TypeParam> cache(Keys::duplicated, 1300, 64);
  const auto found = cache.run();
  for_each_schedule([&](const std::string& schedule) {
    SCOPED_TRACE(schedule);
    EXPECT_EQ(cache.run(), found);
  });
}

TEST(NearestKeyArithmetic, CountsAdditionsThatAProductMayPassThrough) {
  EXPECT_EQ(cuda::nearest_key_arithmetic<float>(64).product_depth, 4 + 4);
  EXPECT_EQ(cuda::nearest_key_arithmetic<float>(128).product_depth, 4 + 5);
  EXPECT_EQ(cuda::nearest_key_arithmetic<float>(129).product_depth, 8 + 5);
  EXPECT_EQ(cuda::nearest_key_arithmetic<cuda::Bfloat16>(1).product_depth, 8 + 3);
  EXPECT_EQ(cuda::nearest_key_arithmetic<cuda::Bfloat16>(128).product_depth, 8 + 4);
  EXPECT_EQ(cuda::nearest_key_arithmetic<cuda::Float16>(256).product_depth, 8 + 5);
}

TYPED_TEST(NearestKeyParity, RefusesShapesThatDoNotFit) {
  using T = TypeParam;
  const Uploaded<T> keys(Tensor(2, 5, 8)), narrow(Tensor(2, 5, 7)), one(Tensor(1, 5, 8)),
      wide(Tensor(2, 5, 257));
  const auto call = [&](const Uploaded<T>& kept, int64_t stride, SearchKernel kernel = SearchKernel::chosen) {
    cuda::nearest_keys<T>({keys.view()}, nullptr, 5, nullptr, {kept.view()}, {nullptr, nullptr, stride},
                          nullptr, kernel);
  };
  EXPECT_THROW(call(narrow, 5), ShapeMismatch);
  EXPECT_THROW(call(one, 5), ShapeMismatch);
  EXPECT_THROW(call(keys, 4), ShapeMismatch);
  if (std::is_same_v<T, float>) {
    EXPECT_THROW(call(keys, 5, SearchKernel::mma), ShapeMismatch);
  }
  EXPECT_THROW(call(keys, 5, SearchKernel::wgmma), ShapeMismatch) << "head_dim is 8";
  EXPECT_THROW(cuda::key_norms<T>(wide.view(), nullptr, nullptr, nullptr), ShapeMismatch);
}

}  // namespace
}  // namespace kvbound::parity
