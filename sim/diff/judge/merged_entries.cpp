#include "merged_entries.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <kvbound/reference/core/infinity.hpp>

namespace kvbound::sim {

namespace {

// The largest error of a claimed key, in bounds. A key without a bound has 1: it is neither near nor far.
double distance(const reference::PossibleKey& key, VectorView claimed) {
  double largest = 0;
  for (size_t c = 0; c < claimed.size(); ++c) {
    if (!(key.errors[c] < kInfinity)) return 1;
    const double error = std::abs(claimed[c] - key.key[c]);
    if (error > 0) largest = std::max(largest, error / key.errors[c]);
  }
  return largest;
}

const reference::PossibleKey& nearest_of(const std::vector<reference::PossibleKey>& keys,
                                         VectorView claimed) {
  return *std::ranges::min_element(keys, {},
                                   [&](const reference::PossibleKey& key) { return distance(key, claimed); });
}

// An entry's key or value is a row.
std::vector<WholeRow> entry_rows(const RealClaim& claim, const Expected& expected) {
  std::vector<WholeRow> rows = rows_of(claim);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].savings = expected.savings[i];
  return rows;
}

// Of an entry whose savings may not be known.
std::vector<double> savings_of(const std::vector<std::vector<double>>& all, size_t entry) {
  return entry < all.size() ? all[entry] : std::vector<double>();
}

}  // namespace

void Expected::add(VectorView row, VectorView errors, bool sure, std::vector<double> of_row) {
  numbers.insert(numbers.end(), row.begin(), row.end());
  bounds.insert(bounds.end(), errors.begin(), errors.end());
  certain.insert(certain.end(), row.size(), sure);
  savings.push_back(std::move(of_row));
}

void ExpectedEntries::add_errors(const MergedErrors& all, int64_t position) {
  const int64_t row = errors.keys.rows();
  errors.keys.append_row(all.stored_key(position, keys.row(row)));
  errors.values.append_row(all.stored_value(position, values.row(row)));
  const EntryErrors own = all.entry(position);
  condition_numbers.push_back(own.condition_number);
  key_savings.push_back(own.key_savings);
  value_savings.push_back(own.value_savings);
  std::vector<reference::PossibleKey> possible = all.stored_possible_keys(position);
  if (!possible.empty()) possible_keys[row] = std::move(possible);
}

// Entries whose votes together are a row.
void MergedAgreement::begin_row(int64_t entries) {
  if (!claims_.votes || entries == 0) return;
  vote_rows_.push_back({rows_, entries, index_of(rows_, claims_.votes->shape)});
}

void MergedAgreement::add(const ExpectedEntries& entries) {
  begin_row(std::ssize(entries.members));
  for (size_t i = 0; i < entries.members.size(); ++i, ++rows_) {
    const auto row = static_cast<int64_t>(i);
    const bool sure = entries.is_certain(i);
    if (claims_.votes) add_votes(entries, i);
    add_key(entries, i);
    values_.add(entries.values.row(row), entries.errors.values.row(row), sure,
                savings_of(entries.value_savings, i));
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

// A key of several possible ones is judged as the one that the claim is nearest to.
void MergedAgreement::add_key(const ExpectedEntries& entries, size_t entry) {
  const auto row = static_cast<int64_t>(entry);
  const VectorView own = entries.keys.row(row), errors = entries.errors.keys.row(row);
  const bool sure = entries.is_certain(entry);
  const auto possible = entries.possible_keys.find(entry);
  const bool is_unbounded = std::ranges::any_of(errors, [](double error) { return !(error < kInfinity); });
  if (possible != entries.possible_keys.end() || is_unbounded) {
    condition_number_ = std::max(condition_number_, entries.condition_numbers[entry]);
  }
  if (possible == entries.possible_keys.end() || !claims_.keys) {
    keys_.add(own, errors, sure, savings_of(entries.key_savings, entry));
    return;
  }
  const VectorView claimed = VectorView(claims_.keys->numbers).subspan(rows_ * head_dim_, head_dim_);
  const reference::PossibleKey& nearest = nearest_of(possible->second, claimed);
  keys_.add(nearest.key, nearest.errors, sure);
}

void MergedAgreement::skip(int64_t rows) {
  begin_row(rows);
  const std::vector<double> nothing(head_dim_), unbounded(head_dim_, kInfinity);
  for (int64_t i = 0; i < rows; ++i, ++rows_) {
    votes_.add(std::vector{0.0}, std::vector{kInfinity}, false);
    keys_.add(nothing, unbounded, false);
    values_.add(nothing, unbounded, false);
  }
}

void MergedAgreement::add_nothing() {
  begin_row(1);
  const std::vector<double> nothing(head_dim_);
  votes_.add(std::vector{0.0}, std::vector{0.0}, true);
  keys_.add(nothing, nothing, true);
  values_.add(nothing, nothing, true);
  ++rows_;
}

void MergedAgreement::append(const std::string& prefix, std::vector<TensorAgreement>& agreements) const {
  const auto judge = [&](const char* tensor, const char* numbers, const RealClaim& claim,
                         const Expected& expected, const std::vector<WholeRow>& rows) {
    agreements.push_back(
        compare_uncertain(prefix + tensor, claim, expected.numbers, expected.bounds, expected.certain));
    judge_rows({claim, expected.numbers, expected.bounds, expected.certain}, rows, numbers,
               agreements.back());
  };
  if (claims_.votes) judge("votes", "votes", *claims_.votes, votes_, vote_rows_);
  if (claims_.keys) {
    judge("merged_key", "keys", *claims_.keys, keys_, entry_rows(*claims_.keys, keys_));
    if (condition_number_ > 0) agreements.back().condition_number = condition_number_;
  }
  if (claims_.values) {
    judge("merged_value", "values", *claims_.values, values_, entry_rows(*claims_.values, values_));
  }
}

}  // namespace kvbound::sim
