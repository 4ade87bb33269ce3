#include "distributions.hpp"

#include "support.hpp"

namespace kvbound::parity {
namespace {

double key_size(Distribution distribution) {
  if (distribution == Distribution::flat) return 0.01;
  return distribution == Distribution::peaked ? 8 : 1;
}

// Sets the key to the multiple of the query that has this logit.
void set_logit(std::span<double> key, VectorView query, double logit, double scale) {
  double square = 0;
  for (const double entry : query) square += entry * entry;
  for (size_t i = 0; i < key.size(); ++i) key[i] = query[i] * logit / (scale * square);
}

}  // namespace

std::string_view name(Distribution distribution) {
  constexpr std::string_view kNames[] = {"random", "flat", "peaked", "tied", "sink", "extreme"};
  return kNames[static_cast<int>(distribution)];
}

Tensor keys_of(Distribution distribution, uint64_t seed, MatrixView queries, int64_t tokens, double scale) {
  Tensor keys = random_tensor(seed, queries.rows, tokens, queries.cols, key_size(distribution));
  for (int64_t g = 0; g < queries.rows; ++g) {
    const MutableMatrixView rows = keys.slice(g);
    for (int64_t j = 0; j < tokens; ++j) {
      if (distribution == Distribution::tied && j >= 3)
        std::ranges::copy(rows.row(j % 3), rows.row(j).begin());
      if (distribution == Distribution::sink && j == 0) set_logit(rows.row(j), queries.row(g), 30, scale);
      if (distribution == Distribution::extreme) {
        // Each number is perturbed by about 1 %, so that there are no ties.
        const std::vector<double> noise(rows.row(j).begin(), rows.row(j).end());
        set_logit(rows.row(j), queries.row(g), j % 2 == 0 ? -1e4 : 1e4, scale);
        for (size_t i = 0; i < noise.size(); ++i) rows.row(j)[i] *= 1 + 0.01 * noise[i];
      }
    }
  }
  return keys;
}

}  // namespace kvbound::parity
