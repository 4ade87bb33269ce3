// SHA-256, computed incrementally.
#pragma once

#include <memory>
#include <string>
#include <string_view>

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

}  // namespace kvbound::traces
