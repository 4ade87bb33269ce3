// Which sizes a cache's pages may have, and which policies' caches can be stored in pages.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/policy.hpp>

namespace kvbound::cuda {

inline constexpr int64_t kLeastPageSize = int64_t{1} << PageTable::kLeastBits,
                         kMostPageSize = 65536;  ///< rows

/// Whether a cache can have pages of so many rows: a power of two.
inline bool is_page_size(int64_t rows) {
  return kLeastPageSize <= rows && rows <= kMostPageSize && std::has_single_bit(static_cast<uint64_t>(rows));
}

/// Throws InvalidPolicy unless a cache by this policy can be stored in pages of so many rows.
inline void require_pageable(const Policy& policy, int64_t page_size) {
  if (!is_page_size(page_size)) {
    throw InvalidPolicy("a page has " + std::to_string(page_size) + " rows; a power of two from " +
                        std::to_string(kLeastPageSize) + " to " + std::to_string(kMostPageSize) +
                        " is possible");
  }
  if (rules_of(policy.merge).merges)
    throw InvalidPolicy("a cache whose entries merge is not stored in pages");
}

}  // namespace kvbound::cuda
