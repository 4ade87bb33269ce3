// `check compact`: what a cache holds after a kernel has moved its kept rows together.
#pragma once

#include "check_file.hpp"
#include "check_result.hpp"

namespace kvbound::sim {

/// Judges `after`: every kept row of `before` once, bit for bit, and unused rows untouched.
///
/// before   [kv_heads, n, head_dim] of any type
/// kept     I32, I64: positions of one KV head after the other; kept_offsets [kv_heads + 1]
/// after    of the same type: ragged [kept rows, head_dim]; dense [kv_heads, m, head_dim], of which each
///          head's first rows are used; paged [pages, page_size, head_dim] with kv_indptr [kv_heads + 1],
///          kv_indices, kv_last_page_len [kv_heads], or [pages, page_size, kv_heads, head_dim]
///          (kv_layout=HND: [pages, kv_heads, page_size, head_dim]) with one table for all
/// poison   what unused rows hold: tensor [head_dim], or option, a number or the bits of one as 0x7fc0;
///          without it they are not judged
/// order    any, kept (rows stand in the order of `kept`) or ascending (of positions)
///
/// throws   TraceError
CheckResult check_compact(CheckFile& file);

}  // namespace kvbound::sim
