// The weights of the values in a merged entry, from what a session recorded of the merge.
#pragma once

#include <vector>

#include <kvbound/reference/core/policy.hpp>
#include <kvbound/reference/core/view.hpp>

#include "keep_kv.hpp"

namespace kvbound::reference {

/// The weights c of a merged entry's value: v_r = sum_j c_j v_j, c >= 0 with sum 1.
///
///     keepkv, convex     one score per member, gqa=mean included: c = w / W (cluster_mean)
///     several scores     c = sum_h lambda_h w_h / W_h, sum lambda = 1: of all such mixtures the one of the
///                        value nearest to the recorded one, by the pseudo-inverse, then without negative
///                        weights: a merge's denominators D_h, which determine lambda, are not recorded
///     d2o, kvmerger      similarity_weights, gaussian_weights
///
/// merge    not cam, which spreads values over entries without a weight for them
/// members  before the merge, with the recorded scores
/// value    [head_dim] of the merged entry, as it was recorded
/// returns  [members]
/// throws   ShapeMismatch; NonFinite
std::vector<double> value_weights(const Merge& merge, const ClusterMembers& members, VectorView value);

}  // namespace kvbound::reference
