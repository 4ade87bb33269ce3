// What a tested implementation recorded of a layer's compressed cache: any subset of a dump's tensors, to be judged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/core/dtype.hpp>
#include <kvbound/sim/measure/layer_record.hpp>

namespace kvbound::sim {

/// Real numbers as they were written down.
struct RealClaim {
  std::vector<int64_t> shape;
  std::vector<double> numbers;  ///< in C order; NaN and infinity included
  Dtype storage = Dtype::f64;   ///< the type that each was rounded to
};

/// One layer's claims. Names and shapes are those of dump_tensors(); `steps` may be fewer than the trace has.
struct LayerClaims {
  std::optional<std::vector<std::vector<int64_t>>> kept;  ///< per KV head
  std::optional<std::vector<int64_t>> kept_offsets;       ///< [kv_heads + 1]
  std::optional<std::vector<int64_t>> evicted;            ///< [steps, kv_heads]; -1 for none; any number
  std::optional<std::vector<int64_t>>
      merged_into;                        ///< [steps, kv_heads]; -1 dropped, -2 nothing evicted; any number
  std::optional<RealClaim> votes;         ///< [sum of kept]: the cache after the prompt
  std::optional<RealClaim> merged_key;    ///< [sum of kept, head_dim]
  std::optional<RealClaim> merged_value;  ///< [sum of kept, head_dim]
  std::optional<std::vector<int64_t>> score_positions;  ///< [m]
  std::optional<RealClaim> score;                       ///< [kv_heads, m]
  std::optional<RealClaim> projected_value_norms;       ///< [query_heads, n]
  std::optional<RealClaim> stage_two_score;             ///< [kv_heads, m]
  std::optional<RealClaim> output;                      ///< [steps, query_heads, head_dim]
  std::optional<RealClaim> kept_mass;                   ///< [steps, query_heads]
  std::optional<RealClaim> bound;                       ///< [steps, query_heads]
  std::optional<RealClaim> perturbation;                ///< [steps, query_heads]
  std::optional<RealClaim> layer_perturbation;          ///< [steps]
};

/// What a session recorded, as claims. What was measured of it is no claim: one piece of code measures them all.
///
/// storage  the type in which it computed its numbers
LayerClaims claims_of(const LayerRecord& record, Dtype storage = Dtype::f64);

}  // namespace kvbound::sim
