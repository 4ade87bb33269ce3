// Compares claimed votes, keys and values of merged entries with the reference's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <kvbound/sim/diff/claims/comparison.hpp>
#include "exact_rows.hpp"
#include "merged_errors.hpp"
#include "target_rule.hpp"
#include "whole_rows.hpp"

namespace kvbound::sim {

/// Expected numbers of one tensor, their error bounds, and whether each is certain.
struct Expected {
  std::vector<double> numbers, bounds;
  std::vector<bool> certain;
  std::vector<std::vector<double>> savings;  ///< [rows]: WholeRow::savings

  void add(VectorView row, VectorView errors, bool sure, std::vector<double> of_row = {});
};

/// Entries of one KV head's cache after a merge, as the reference merges the tested
/// implementation's own members.
struct ExpectedEntries {
  std::vector<double> votes;  ///< [entries]
  Matrix keys, values;        ///< [entries, head_dim]
  CacheRowErrors errors;      ///< of the numbers as stored
  /// [entries]: how many others may have merged with each; an entry is certain if
  /// rounding leaves one possibility.
  std::vector<MemberRange> members;
  /// Of entries whose key may be one of several (EntryErrors::possible_keys), as stored.
  std::map<size_t, std::vector<reference::PossibleKey>> possible_keys = {};
  std::vector<double> condition_numbers = {};  ///< [entries]: EntryErrors::condition_number
  /// [entries]: those of EntryErrors, of the claimed rows' judged_directions.
  std::vector<std::vector<double>> key_savings = {}, value_savings = {};

  /// Adds the error bounds of an entry of the cache, whose key and value are in the next row.
  void add_errors(const MergedErrors& all, int64_t position);
  bool is_certain(size_t entry) const { return members[entry].least == members[entry].most; }
};

/// The judgement of the claims on merged entries, row by row.
class MergedAgreement {
 public:
  /// has_votes  whether the policy's merged entries have votes
  MergedAgreement(const MergedClaims& claims, int64_t head_dim, bool has_votes)
      : claims_(claims), head_dim_(head_dim), has_votes_(has_votes) {}

  /// The next claimed rows are of these entries, whose votes together are judged as a whole.
  void add(const ExpectedEntries& entries);
  /// The next claimed rows are of entries that the replay does not have: they are undecided.
  void skip(int64_t rows);
  /// The next claimed row is of no entry: zeros.
  void add_nothing();

  /// Adds the agreements of those tensors that are claimed; prefix: of their names.
  void append(const std::string& prefix, std::vector<TensorAgreement>& agreements) const;

 private:
  void begin_row(int64_t entries);
  void add_votes(const ExpectedEntries& entries, size_t entry);
  void add_key(const ExpectedEntries& entries, size_t entry);

  MergedClaims claims_;
  int64_t head_dim_, rows_ = 0;
  bool has_votes_;
  Expected votes_, keys_, values_;
  std::vector<WholeRow> vote_rows_;  // of entries that were added together
  double condition_number_ = 0;      // the largest of entries whose rank is not certain
};

}  // namespace kvbound::sim
