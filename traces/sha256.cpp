#include "sha256.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <openssl/evp.h>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::traces {

namespace {

void require(int succeeded) {
  if (succeeded != 1) throw Error("OpenSSL cannot compute SHA-256");
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  require(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
}

void Sha256::update(std::string_view bytes) {
  require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::string Sha256::hexadecimal() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  require(EVP_DigestFinal_ex(context_.get(), digest.data(), &size));
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

std::string sha256_of(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hexadecimal();
}

std::string sha256_of(std::span<const InputFile* const> files,
                      const std::function<void(int64_t, int64_t)>& progress) {
  int64_t total = 0;
  for (const InputFile* file : files) total += file->size();
  Sha256 hash;
  std::vector<char> chunk(size_t{1} << 20);
  int64_t done = 0;
  for (const InputFile* file : files) {
    for (int64_t offset = 0; offset < file->size();) {
      const auto count = std::min(chunk.size(), static_cast<size_t>(file->size() - offset));
      file->read(offset, {chunk.data(), count}, "");
      hash.update({chunk.data(), count});
      offset += static_cast<int64_t>(count);
      done += static_cast<int64_t>(count);
      if (progress) progress(done, total);
    }
  }
  return hash.hexadecimal();
}

}  // namespace kvbound::traces
