// SHA-256, computed incrementally.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <openssl/sha.h>

#include "input_file.hpp"

namespace kvbound::traces {

class Sha256 {
 public:
  using Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

  Sha256();
  void update(std::string_view bytes);
  /// Ends the computation: call one of these, once.
  Digest digest();
  std::string hexadecimal();  ///< 64 lower-case digits

 private:
  SHA256_CTX context_;
};

/// The digest of some bytes, as Sha256::hexadecimal.
std::string sha256_of(std::string_view bytes);

/// The digest of files' bytes, one file after the other.
///
/// progress  called with the bytes done and the whole; may be empty
/// throws    TraceError if a file was shortened since it was opened; IoError
std::string sha256_of(std::span<const InputFile* const> files,
                      const std::function<void(int64_t, int64_t)>& progress);

}  // namespace kvbound::traces
