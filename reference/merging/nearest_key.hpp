// The kept entry whose key is nearest (has the largest cosine) to that of an evicted entry.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/numerics/directions.hpp>

namespace kvbound::reference {

/// The index of the nearest key, and its cosine.
struct NearestKey {
  int64_t index = -1;  ///< -1: there is none
  double cosine = 0;   ///< -1..1
};

/// For each leaving key the staying key of largest cosine.
///
///     cosine(a, b) = a . b / (||a|| ||b||),  0 if either is zero
///
/// leaving  [m, head_dim]
/// staying  [entries, head_dim]
/// returns  [m]; ties: the smaller index. Equal keys have equal cosines to the last bit
/// throws   ShapeMismatch; NonFinite if a key is NaN or infinite
/// source   KeepKV (arXiv:2504.09936); D2O (arXiv:2406.13035)
std::vector<NearestKey> nearest_keys(MatrixView leaving, MatrixView staying);

/// For each key the nearest among the keys of strictly higher score; index -1 for keys of the highest score.
///
/// keys     [entries, head_dim]
/// scores   [entries]
/// returns  [entries]; ties: the smaller index
/// throws   ShapeMismatch; NonFinite if a key is NaN or infinite
std::vector<NearestKey> nearest_better_keys(MatrixView keys, VectorView scores);

/// ||keys[i,:]||_2, also where the squares of the numbers overflow or underflow.
///
/// keys     [entries, head_dim]
/// returns  [entries], >= 0; +infinity where a norm exceeds the largest double
/// throws   NonFinite if a key is NaN or infinite
std::vector<double> key_norms(MatrixView keys);

/// The keys divided by their lengths; zero keys stay zero.
///
/// keys     [entries, head_dim]
/// returns  [entries, head_dim]
/// throws   NonFinite if a key is NaN or infinite
inline Matrix key_directions(MatrixView keys) { return row_directions(keys); }

/// The key nearest to that of one entry among the other entries of a cache in any order.
///
/// entry      index of the entry that is evicted
/// keys       [entries, head_dim]
/// norms      [entries]: key_norms(keys)
/// positions  [entries]; ties: the smaller position. Equal keys have equal cosines to the last bit, but these
///            may differ from the cosines of nearest_keys, whose sums are formed in another order
/// returns    the index of an entry; -1 if there is no other
/// throws     ShapeMismatch
NearestKey nearest_key(int64_t entry, MatrixView keys, VectorView norms, std::span<const int64_t> positions);

}  // namespace kvbound::reference
