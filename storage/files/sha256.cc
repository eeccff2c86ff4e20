#include "storage/files/sha256.h"

#include <openssl/evp.h>

#include <cassert>
#include <utility>

namespace lorad::storage {

struct Sha256::Context {
  Context() : evp(EVP_MD_CTX_new()) {
    [[maybe_unused]] const int ok = EVP_DigestInit_ex(evp, EVP_sha256(), nullptr);
    assert(ok == 1);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(evp); }
  EVP_MD_CTX* evp;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(std::string_view bytes) {
  [[maybe_unused]] const int ok = EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size());
  assert(ok == 1);
}

std::string Sha256::HexDigest() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  [[maybe_unused]] const int ok = EVP_DigestFinal_ex(context_->evp, digest, &size);
  assert(ok == 1 && size == 32);
  std::string hex;
  hex.reserve(2 * size);
  for (unsigned int i = 0; i < size; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return hex;
}

std::string Sha256::Of(std::string_view bytes) {
  Sha256 sha;
  sha.Update(bytes);
  return sha.HexDigest();
}

}  // namespace lorad::storage
