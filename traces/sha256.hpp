// SHA-256, computed incrementally.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "input_file.hpp"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace kvbound::traces {

class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  /// The digest as 64 lower-case hexadecimal digits. Ends the computation: call it once.
  std::string hexadecimal();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
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
