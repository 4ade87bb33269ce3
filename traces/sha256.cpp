#include "sha256.hpp"

#include <algorithm>
#include <vector>

namespace kvbound::traces {

// The functions of SHA-256 itself, which neither allocate nor fail; OpenSSL 3 would have EVP instead, which
// brings 3 MB into a program that is linked statically.

Sha256::Sha256() { SHA256_Init(&context_); }

void Sha256::update(std::string_view bytes) { SHA256_Update(&context_, bytes.data(), bytes.size()); }

Sha256::Digest Sha256::digest() {
  Digest digest{};
  SHA256_Final(digest.data(), &context_);
  return digest;
}

std::string Sha256::hexadecimal() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digest()) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
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
