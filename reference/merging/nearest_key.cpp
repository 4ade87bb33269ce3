#include "nearest_key.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/inner_product.hpp>
#include <kvbound/reference/numerics/instruction_set.hpp>
#include <kvbound/reference/numerics/parallel.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/token_blocks.hpp>

namespace kvbound::reference {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// Keys that leave, and keys that stay, that are multiplied at a time: so many that packing them costs the product little, and
// so few that their cosines are still in the processor's cache when they are looked at.
constexpr int64_t kBlock = kTokenBlock;

double largest_size(VectorView key) {
  double largest = 0;
  for (const double x : key) largest = std::max(largest, std::abs(x));
  return largest;
}

// A key's length is norm 2^exponent.
struct Length {
  double norm = 0;
  int exponent = 0;
};

// A power of two scales without rounding: keys that need none come out as if there were none.
Length length(VectorView key) {
  constexpr double kLeast = 0x1p-800, kMost = 0x1p800;  // beyond them squares overflow, or lose what matters
  const double square = inner_product(key, key);
  if (kLeast <= square && square <= kMost) return {std::sqrt(square), 0};
  require_finite("key", key);
  const double largest = largest_size(key);
  if (largest == 0) return {};
  const int exponent = std::ilogb(largest);
  std::vector<double> scaled(key.begin(), key.end());
  for (double& x : scaled) x = std::scalbn(x, -exponent);
  return {std::sqrt(inner_product(scaled, scaled)), exponent};
}

// The key at length 1, or zero.
void fill_direction(VectorView key, std::span<double> direction) {
  const Length size = length(key);
  for (size_t c = 0; c < key.size(); ++c) {
    const double x = size.exponent == 0 ? key[c] : std::scalbn(key[c], -size.exponent);
    direction[c] = size.norm == 0 ? 0 : x / size.norm;
  }
}

std::vector<double> direction(VectorView key) {
  std::vector<double> result(key.size());
  fill_direction(key, result);
  return result;
}

// Directions of keys first, first + 1, ..., as many as there are; the rest of the rows are zero.
void fill_directions(MatrixView keys, int64_t first, MutableMatrixView rows) {
  for (int64_t i = 0; i < rows.rows; ++i) {
    if (first + i < keys.rows) {
      fill_direction(keys.row(first + i), rows.row(i));
    } else {
      std::ranges::fill(rows.row(i), 0.0);
    }
  }
}

void require_finite_keys(std::string_view what, MatrixView keys) {
  for (int64_t i = 0; i < keys.rows; ++i) require_finite(what, keys.row(i));
}

// Of some numbers, none of them NaN; -infinity for none.
double largest_of(VectorView numbers) {
  double result = kNothing;
  run_at(
      instruction_set(), [&](auto lanes) __attribute__((always_inline)) {
        using L = decltype(lanes);
        typename L::Reals most[L::kVectors];
        for (auto& part : most) part = typename L::Reals{} + kNothing;
        size_t j = 0;
        for (; j + kLanes <= numbers.size(); j += kLanes) {
          for (size_t v = 0; v < L::kVectors; ++v) {
            typename L::Reals x;
            L::load(numbers.data() + j + v * L::kWidth, x);
            most[v] = x > most[v] ? x : most[v];
          }
        }
        double parts[kLanes];
        for (size_t v = 0; v < L::kVectors; ++v) L::store(most[v], parts + v * L::kWidth);
        result = *std::max_element(parts, parts + kLanes);
        for (; j < numbers.size(); ++j) result = std::max(result, numbers[j]);
      });
  return result;
}

double clamped(double cosine) { return std::clamp(cosine, -1.0, 1.0); }

// The cosines of keys first, first + 1, ... that stay, all later than those that were looked at before; -infinity for those
// that are not meant.
void take_nearer(VectorView cosines, int64_t first, NearestKey& nearest) {
  const double largest = largest_of(cosines);
  if (largest == kNothing) return;
  // Those that rounding took beyond 1, or -1, are equally near, and the first of them is taken.
  const double cosine = clamped(largest);
  if (nearest.index >= 0 && cosine <= nearest.cosine) return;
  const auto at =
      std::ranges::find_if(cosines, [cosine](double x) { return x > kNothing && clamped(x) >= cosine; });
  nearest = {first + (at - cosines.begin()), cosine};
}

// Directions of all keys, padded to whole blocks.
Matrix direction_blocks(MatrixView keys) {
  Matrix blocks(token_blocks(keys.rows, kBlock) * kBlock, keys.cols);
  parallel_for(token_blocks(keys.rows, kBlock), [&](int64_t b) {
    fill_directions(keys, b * kBlock, blocks.view().middle_rows(b * kBlock, kBlock));
  });
  return blocks;
}

// What a thread works on: a block of keys that leave, and their cosines with a block of those that stay.
class LeavingBlock {
 public:
  explicit LeavingBlock(int64_t head_dim) : directions_(kBlock, head_dim), cosines_(kBlock, kBlock) {}

  // The nearest of the keys first, first + 1, ..., one block's, among those that hide(key, first other, cosines) leaves.
  //
  // staying  direction_blocks of `count` keys
  template <class Hide>
  void find(MatrixView leaving, int64_t first, MatrixView staying, int64_t count,
            std::span<NearestKey> nearest, const Hide& hide) {
    fill_directions(leaving, first, directions_.view());
    const int64_t here = std::min(kBlock, leaving.rows - first);
    for (int64_t other = 0; other < count; other += kBlock) {
      multiply_transposed(directions_, staying.middle_rows(other, kBlock), cosines_.view());
      const auto there = static_cast<size_t>(std::min(kBlock, count - other));
      for (int64_t i = 0; i < here; ++i) {
        hide(first + i, other, cosines_.row(i).first(there));
        take_nearer(cosines_.row(i).first(there), other, nearest[static_cast<size_t>(first + i)]);
      }
    }
  }

 private:
  Matrix directions_;
  Matrix cosines_;
};

// Whether an inner product of keys with these norms is as good as one of their directions.
bool is_safe(double norm, double other) {
  constexpr double kLeast = 0x1p-400, kMost = 0x1p400;
  return kLeast < norm && norm < kMost && kLeast < other && other < kMost;
}

// Among those that hide leaves.
template <class Hide>
std::vector<NearestKey> find_nearest(MatrixView leaving, MatrixView staying, const Hide& hide) {
  require_equal("columns of leaving", leaving.cols, "columns of staying", staying.cols);
  require_finite_keys("leaving", leaving);
  require_finite_keys("staying", staying);
  std::vector<NearestKey> nearest(static_cast<size_t>(leaving.rows));
  if (leaving.rows == 0 || staying.rows == 0) return nearest;
  const Matrix directions = direction_blocks(staying);
  parallel_for(
      token_blocks(leaving.rows, kBlock), [&] { return LeavingBlock(leaving.cols); },
      [&](LeavingBlock& work, int64_t b) {
        work.find(leaving, b * kBlock, directions, staying.rows, nearest, hide);
      });
  return nearest;
}

}  // namespace

std::vector<NearestKey> nearest_keys(MatrixView leaving, MatrixView staying) {
  return find_nearest(leaving, staying, [](int64_t, int64_t, std::span<double>) {});
}

std::vector<NearestKey> nearest_better_keys(MatrixView keys, VectorView scores) {
  require_equal("scores", static_cast<int64_t>(scores.size()), "rows of keys", keys.rows);
  return find_nearest(keys, keys, [&](int64_t key, int64_t first, std::span<double> cosines) {
    const double own = scores[static_cast<size_t>(key)];
    const double* const others = scores.data() + first;
    for (size_t j = 0; j < cosines.size(); ++j) cosines[j] = others[j] > own ? cosines[j] : kNothing;
  });
}

Matrix key_directions(MatrixView keys) {
  Matrix directions(keys.rows, keys.cols);
  fill_directions(keys, 0, directions.view());
  return directions;
}

std::vector<double> key_norms(MatrixView keys) {
  std::vector<double> norms;
  for (int64_t i = 0; i < keys.rows; ++i) {
    const Length size = length(keys.row(i));
    norms.push_back(std::scalbn(size.norm, size.exponent));
  }
  return norms;
}

double cosine(VectorView key, double norm, VectorView other, double other_norm) {
  if (norm == 0 || other_norm == 0) return 0;
  return clamped(is_safe(norm, other_norm) ? inner_product(key, other) / (norm * other_norm)
                                           : inner_product(direction(key), direction(other)));
}

NearestKey nearest_key(int64_t entry, MatrixView keys, VectorView norms, std::span<const int64_t> positions) {
  require_equal("norms", static_cast<int64_t>(norms.size()), "rows of keys", keys.rows);
  require_equal("positions", static_cast<int64_t>(positions.size()), "rows of keys", keys.rows);
  const VectorView key = keys.row(entry);
  NearestKey nearest;
  for (int64_t other = 0; other < keys.rows; ++other) {
    if (other == entry) continue;
    const auto j = static_cast<size_t>(other);
    const double near = cosine(key, norms[static_cast<size_t>(entry)], keys.row(other), norms[j]);
    const bool nearer =
        nearest.index < 0 || near > nearest.cosine ||
        (near == nearest.cosine && positions[j] < positions[static_cast<size_t>(nearest.index)]);
    if (nearer) nearest = {other, near};
  }
  return nearest;
}

}  // namespace kvbound::reference
