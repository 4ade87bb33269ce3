// FlashInfer's functions whose recorded calls can be imported.
#pragma once

#include <string>
#include <string_view>

namespace kvbound::traces {

/// Where a function has its keys and values: one request's in arrays, those of a batch one
/// after the other, or in pages.
enum class RecordedCache { whole, ragged, paged };

struct AttentionFunction {
  std::string_view name;  ///< as it is recorded, with its class
  RecordedCache cache;
  bool decodes;  ///< all requests have the same number of queries, and the mask is always causal
};

/// Null if there is none of that name.
const AttentionFunction* attention_function_named(std::string_view name);

/// The names of all, for messages.
std::string attention_functions();

}  // namespace kvbound::traces
