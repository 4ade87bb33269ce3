#include "nearest_key.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/infinity.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/numerics/largest.hpp>
#include <kvbound/reference/numerics/token_blocks.hpp>

namespace kvbound::reference {
namespace {

void require_finite_keys(std::string_view what, MatrixView keys) {
  parallel_for(token_blocks(keys.rows), [&](int64_t b) {
    for (int64_t i = b * kTokenBlock; i < std::min(keys.rows, (b + 1) * kTokenBlock); ++i) {
      require_finite(what, keys.row(i));
    }
  });
}

double clamped(double cosine) { return std::clamp(cosine, -1.0, 1.0); }

// Updates `nearest` with the cosines of kept keys first, first + 1, ..., which come after all keys visited
// before. A cosine of -infinity excludes a key.
void take_nearer(VectorView cosines, int64_t first, NearestKey& nearest) {
  const double largest = largest_of(cosines);
  if (largest == -kInfinity) return;
  // Cosines that rounding carried beyond 1, or -1, are ties, and the first of them is taken.
  const double cosine = clamped(largest);
  if (nearest.index >= 0 && cosine <= nearest.cosine) return;
  const auto at =
      std::ranges::find_if(cosines, [cosine](double x) { return x > -kInfinity && clamped(x) >= cosine; });
  nearest = {first + (at - cosines.begin()), cosine};
}

// For each leaving key the nearest staying key. hide(key, first,
// cosines) sets the cosines of excluded keys to -infinity.
template <class Hide>
std::vector<NearestKey> find_nearest(MatrixView leaving, MatrixView staying, const Hide& hide) {
  require_equal("columns of leaving", leaving.cols, "columns of staying", staying.cols);
  require_finite_keys("leaving", leaving);
  require_finite_keys("staying", staying);
  std::vector<NearestKey> nearest(leaving.rows);
  visit_cosines(leaving, staying, [&](int64_t key, int64_t first, std::span<double> cosines) {
    hide(key, first, cosines);
    take_nearer(cosines, first, nearest[key]);
  });
  return nearest;
}

}  // namespace

std::vector<NearestKey> nearest_keys(MatrixView leaving, MatrixView staying) {
  return find_nearest(leaving, staying, [](int64_t, int64_t, std::span<double>) {});
}

std::vector<NearestKey> nearest_better_keys(MatrixView keys, VectorView scores) {
  require_equal("scores", std::ssize(scores), "rows of keys", keys.rows);
  return find_nearest(keys, keys, [&](int64_t key, int64_t first, std::span<double> cosines) {
    const double own = scores[key];
    const double* const others = scores.data() + first;
    for (size_t j = 0; j < cosines.size(); ++j) cosines[j] = others[j] > own ? cosines[j] : -kInfinity;
  });
}

std::vector<double> key_norms(MatrixView keys) {
  std::vector<double> norms;
  for (int64_t i = 0; i < keys.rows; ++i) norms.push_back(length(keys.row(i)));
  return norms;
}

NearestKey nearest_key(int64_t entry, MatrixView keys, VectorView norms, std::span<const int64_t> positions) {
  require_equal("norms", std::ssize(norms), "rows of keys", keys.rows);
  require_equal("positions", std::ssize(positions), "rows of keys", keys.rows);
  const VectorView key = keys.row(entry);
  NearestKey nearest;
  for (int64_t other = 0; other < keys.rows; ++other) {
    if (other == entry) continue;
    const int64_t j = other;
    const double near = cosine(key, norms[entry], keys.row(other), norms[j]);
    const bool nearer = nearest.index < 0 || near > nearest.cosine ||
                        (near == nearest.cosine && positions[j] < positions[nearest.index]);
    if (nearer) nearest = {other, near};
  }
  return nearest;
}

}  // namespace kvbound::reference
