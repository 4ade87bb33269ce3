// OBCache's Table 2 and the exact change, as the factors of a squared length; for the kernels of obcache.hpp.
#pragma once

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/reference/core/score_rules.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace obcache_terms {

/// A score is (scale || value v - output o ||)^2.
struct Factors {
  float scale, value, output;
};

/// others = 1 - weight, which only the exact change takes; the logit z is without votes.
template <Change change>
__device__ inline Factors table_2(float weight, float others, float z) {
  if constexpr (change == Change::value) return {weight, 1, 0};
  if constexpr (change == Change::key) return {weight * z, 1, 1};
  if constexpr (change == Change::joint) return {weight, 1 + z, z};
  return {weight / others, 1, 1};
}
/// exponent = z + ln p - log_sum_exp
template <Change change>
__device__ inline Factors table_2(float exponent, float z) {
  return table_2<change>(expf(exponent), change == Change::exact ? -expm1f(exponent) : 0, z);
}

/// The same for the dominant entry, where o is the output of the other entries, of which
/// `rest` = 1 - weight is the share.
template <Change change>
__device__ inline Factors dominant_factors(float weight, float rest, float z) {
  if constexpr (change == Change::joint) return {weight, 1 + z * rest, z * rest};
  return {weight, 1, 1};
}

/// norm = v G v, product = v . (o G), output_norm = o G o. NaN stays NaN.
__device__ inline float score_of(const Factors& by, float norm, float product, float output_norm) {
  const float square =
      by.value * by.value * norm - 2 * by.value * by.output * product + by.output * by.output * output_norm;
  return by.scale * by.scale * (square < 0 ? 0 : square);
}

/// 1 / (1 + e^-x)
__device__ inline float sigmoid(float x) { return x < 0 ? expf(x) / (1 + expf(x)) : 1 / (1 + expf(-x)); }

/// Throws InvalidPolicy for a change by which no policy scores.
inline void require_scored(Change change) {
  switch (change) {
    case Change::value:
    case Change::key:
    case Change::joint:
    case Change::exact:
      return;
    case Change::slot:
      break;
  }
  throw InvalidPolicy("no policy scores by the change `slot`");
}

/// Calls call.operator()<change>(). Throws as require_scored.
template <class Call>
void for_change(Change change, const Call& call) {
  require_scored(change);
  if (change == Change::value) call.template operator()<Change::value>();
  if (change == Change::key) call.template operator()<Change::key>();
  if (change == Change::joint) call.template operator()<Change::joint>();
  if (change == Change::exact) call.template operator()<Change::exact>();
}

}  // namespace obcache_terms
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
