// Files of tokens, which may be pipes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvbound::traces {

/// Token ids in decimal digits, separated by white space or commas.
///
/// vocabulary  ids are below it
/// throws      TraceError, naming the byte, for anything else and for a file without tokens; IoError
std::vector<int64_t> read_token_ids(const std::string& path, int64_t vocabulary);

/// Every byte as a token, for models whose tokens are bytes. Throws as read_token_ids.
std::vector<int64_t> read_bytes_as_tokens(const std::string& path, int64_t vocabulary);

}  // namespace kvbound::traces
