#include "client/calls/sha256.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"

namespace lorad::client {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  EVP_DigestInit_ex(context_, EVP_sha256(), nullptr);
}
Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::Update(absl::string_view bytes) {
  EVP_DigestUpdate(context_, bytes.data(), bytes.size());
}

std::string Sha256::HexDigest() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context_, digest, &size);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

}  // namespace lorad::client
