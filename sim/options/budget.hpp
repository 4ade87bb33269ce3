// Budgets as text: 256 entries per KV head, 20% of the prompt, or `given`, the sizes of
// kept sets that a file has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <kvbound/reference/core/decimal.hpp>

namespace kvbound::sim {

/// Entries kept per KV head, always-kept ones included.
struct Budget {
  Decimal amount;
  bool percent = false;
  bool given = false;  ///< that of the host `given` with kept sets

  /// The count, or floor(percent * n / 100) in exact decimal arithmetic: 20% of 1000 is 200. Throws
  /// InvalidPolicy for `given`.
  int64_t entries(int64_t prompt_tokens) const;
  friend bool operator==(const Budget&, const Budget&) = default;
};

/// Reads "256", "20%", "2.5%" or "given". Throws InvalidPolicy for anything else.
Budget parse_budget(std::string_view text);

std::string to_string(const Budget& budget);

}  // namespace kvbound::sim
