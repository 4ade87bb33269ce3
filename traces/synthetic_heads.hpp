// The keys, values and queries of a synthetic trace; each row is computed independently of the others.
// generate.hpp describes the construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <kvbound/reference/core/view.hpp>

#include "generate.hpp"
#include "portable_random.hpp"

namespace kvbound::traces {

/// A token whose logit and value size are set separately: a sink or a needle.
struct Landmark {
  int64_t token = 0;
  double logit = 0;       ///< z_j
  double value_size = 1;  ///< factor on a normal row that gives its value
};

/// The parameters of one KV head, as its kind determines them.
struct HeadDesign {
  double exponent = 0;     ///< p: the weight of rank r falls like r^-p; 0: flat
  double query_noise = 1;  ///< b
  bool tied = false;
  std::vector<Landmark> landmarks;
};

/// One KV head: its keys and values.
class SyntheticKvHead {
 public:
  SyntheticKvHead(const GenerateOptions& options, int64_t layer, int64_t head);

  const HeadDesign& design() const { return design_; }
  VectorView direction() const { return direction_; }

  /// Writes the key of a token: key [head_dim].
  void fill_key(int64_t token, std::span<double> key) const;
  /// Writes the value of a token: value [head_dim].
  void fill_value(int64_t token, std::span<double> value) const;

 private:
  const Landmark* landmark(int64_t token) const;
  double logit(int64_t token) const;

  HeadDesign design_;
  std::vector<double> direction_;  // u
  std::vector<double> key_mean_;   // mu
  int64_t tokens_;                 // N
  Permutation rank_;
  Stream logit_noise_;
  Stream key_;
  Stream value_size_;
  Stream value_;
};

/// One query head. Refers to its KV head, which must outlive it.
class SyntheticQueryHead {
 public:
  SyntheticQueryHead(const GenerateOptions& options, int64_t layer, int64_t head,
                     const SyntheticKvHead& kv_head);

  /// Writes the query at a position: query [head_dim].
  void fill_query(int64_t position, std::span<double> query) const;

 private:
  VectorView direction_;            // u
  std::vector<double> query_mean_;  // mu'
  double noise_;
  double sharpness_;
  Stream query_sharpness_;
  Stream query_;
};

/// One layer's output projection.
class SyntheticProjection {
 public:
  SyntheticProjection(const GenerateOptions& options, int64_t layer);

  /// Writes one row: projection [model_dim].
  void fill_row(int64_t row, std::span<double> projection) const;

 private:
  double size_;
  Stream projection_;
};

}  // namespace kvbound::traces
