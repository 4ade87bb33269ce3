#include "merged_agreement.hpp"

#include <cmath>

#include <kvbound/reference/core/infinity.hpp>

namespace kvbound::sim {

void Expected::add(VectorView row, VectorView errors, bool sure) {
  numbers.insert(numbers.end(), row.begin(), row.end());
  bounds.insert(bounds.end(), errors.begin(), errors.end());
  certain.insert(certain.end(), row.size(), sure);
}

void MergedAgreement::add(const ExpectedEntries& entries) {
  for (size_t i = 0; i < entries.members.size(); ++i, ++rows_) {
    const auto row = static_cast<int64_t>(i);
    const bool sure = entries.is_certain(i);
    if (claims_.votes) add_votes(entries, i);
    keys_.add(entries.keys.row(row), entries.errors.keys.row(row), sure);
    values_.add(entries.values.row(row), entries.errors.values.row(row), sure);
  }
}

// Votes of an entry whose members are uncertain must be possible; an impossible number is wrong.
void MergedAgreement::add_votes(const ExpectedEntries& entries, size_t entry) {
  const MemberRange range = entries.members[entry];
  const double vote = claims_.votes->numbers[rows_];
  const bool possible = has_votes_ && vote >= 1 + static_cast<double>(range.least) &&
                        vote <= 1 + static_cast<double>(range.most) && vote == std::floor(vote);
  votes_.add(VectorView(entries.votes).subspan(entry, 1), std::vector{0.0},
             entries.is_certain(entry) || !possible);
}

void MergedAgreement::skip(int64_t rows) {
  const std::vector<double> nothing(head_dim_), unbounded(head_dim_, kInfinity);
  for (int64_t i = 0; i < rows; ++i, ++rows_) {
    votes_.add(std::vector{0.0}, std::vector{kInfinity}, false);
    keys_.add(nothing, unbounded, false);
    values_.add(nothing, unbounded, false);
  }
}

void MergedAgreement::add_nothing() {
  const std::vector<double> nothing(head_dim_);
  votes_.add(std::vector{0.0}, std::vector{0.0}, true);
  keys_.add(nothing, nothing, true);
  values_.add(nothing, nothing, true);
  ++rows_;
}

void MergedAgreement::append(const std::string& prefix, std::vector<TensorAgreement>& agreements) const {
  const auto judge = [&](const char* tensor, const RealClaim* claim, const Expected& expected) {
    if (!claim) return;
    agreements.push_back(
        compare_uncertain(prefix + tensor, *claim, expected.numbers, expected.bounds, expected.certain));
  };
  judge("votes", claims_.votes, votes_);
  judge("merged_key", claims_.keys, keys_);
  judge("merged_value", claims_.values, values_);
}

}  // namespace kvbound::sim
