#pragma once

#include <string>

#include "absl/strings/string_view.h"

typedef struct evp_md_ctx_st EVP_MD_CTX;

namespace lorad::client {

// The SHA-256 of what it is given, piece by piece.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(absl::string_view bytes);
  // 64 hexadecimal digits. Once, at the end.
  std::string HexDigest();

 private:
  EVP_MD_CTX* const context_;
};

}  // namespace lorad::client
