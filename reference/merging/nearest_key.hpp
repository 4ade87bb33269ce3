// The kept entry whose key is nearest to an evicted one's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/numerics/directions.hpp>

namespace kvbound::reference {

/// Index of the nearest key, and how near it is.
struct NearestKey {
  int64_t index = -1;  ///< -1: there is none
  double cosine = 0;   ///< -1..1
};

/// For each key that leaves the staying key of largest cosine.
///
///     cosine(a, b) = a . b / (||a|| ||b||),  0 if either is zero
///
/// leaving  [m, head_dim]
/// staying  [entries, head_dim]
/// returns  [m]; ties: the smaller index. Equal keys have equal cosines to the last bit
/// throws   ShapeMismatch; NonFinite if a key is NaN or infinite
/// source   KeepKV (arXiv:2504.09936); D2O (arXiv:2406.13035)
std::vector<NearestKey> nearest_keys(MatrixView leaving, MatrixView staying);

/// For each key the nearest of those that have a strictly higher score, index -1 for those of highest score.
///
/// keys     [entries, head_dim]
/// scores   [entries]
/// returns  [entries]; ties: the smaller index
/// throws   ShapeMismatch; NonFinite if a key is NaN or infinite
std::vector<NearestKey> nearest_better_keys(MatrixView keys, VectorView scores);

/// ||keys[i,:]||, safe for numbers whose squares are not.
///
/// keys     [entries, head_dim]
/// returns  [entries], >= 0; +infinity if no double holds a norm
/// throws   NonFinite if a key is NaN or infinite
std::vector<double> key_norms(MatrixView keys);

/// The keys at length 1; zero keys stay zero.
///
/// keys     [entries, head_dim]
/// returns  [entries, head_dim]
/// throws   NonFinite if a key is NaN or infinite
inline Matrix key_directions(MatrixView keys) { return row_directions(keys); }

/// The nearest of the other keys to one key, in a cache that is in no order.
///
/// entry      who leaves, and is not its own neighbour
/// keys       [entries, head_dim]
/// norms      [entries]: key_norms(keys)
/// positions  [entries]; ties: the smaller position. Equal keys have equal cosines to the last bit here, too, but not always
///            those of nearest_keys, whose sums are formed in another order
/// returns    an entry; index -1 if there is no other
/// throws     ShapeMismatch
NearestKey nearest_key(int64_t entry, MatrixView keys, VectorView norms, std::span<const int64_t> positions);

}  // namespace kvbound::reference
