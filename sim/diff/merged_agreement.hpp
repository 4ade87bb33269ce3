// Compares claimed votes, keys and values of merged entries with the reference's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comparison.hpp"
#include "forced_merges.hpp"
#include "merged_errors.hpp"
#include "target_ambiguity.hpp"

namespace kvbound::sim {

/// Expected numbers of one tensor, their error bounds, and whether each is certain.
struct Expected {
  std::vector<double> numbers, bounds;
  std::vector<bool> certain;

  void add(VectorView row, VectorView errors, bool sure);
};

/// Entries of one KV head's cache after a merge, as the reference merges the tested implementation's own members.
struct ExpectedEntries {
  std::vector<double> votes;  ///< [entries]
  Matrix keys, values;        ///< [entries, head_dim]
  CacheRowErrors errors;      ///< of the numbers as stored
  /// [entries]: how many others may have merged with each; an entry is certain if rounding leaves one possibility.
  std::vector<MemberRange> members;

  bool is_certain(size_t entry) const { return members[entry].least == members[entry].most; }
};

/// The judgement of the claims on merged entries, row by row.
class MergedAgreement {
 public:
  /// has_votes  whether the policy's merged entries have votes
  MergedAgreement(const MergedClaims& claims, int64_t head_dim, bool has_votes)
      : claims_(claims), head_dim_(head_dim), has_votes_(has_votes) {}

  /// The next claimed rows are of these entries.
  void add(const ExpectedEntries& entries);
  /// The next claimed rows are of entries that the replay does not have: they are undecided.
  void skip(int64_t rows);
  /// The next claimed row is of no entry: zeros.
  void add_nothing();

  /// Adds the agreements of those tensors that are claimed; prefix: of their names.
  void append(const std::string& prefix, std::vector<TensorAgreement>& agreements) const;

 private:
  void add_votes(const ExpectedEntries& entries, size_t entry);

  MergedClaims claims_;
  int64_t head_dim_, rows_ = 0;
  bool has_votes_;
  Expected votes_, keys_, values_;
};

}  // namespace kvbound::sim
