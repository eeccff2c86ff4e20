// OpenSSL's objects with owners, and their PEM text. Only for this room's own .cc files.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lorad::storage::openssl {

struct Free {
  void operator()(BIO* one) const { BIO_free(one); }
  void operator()(EVP_PKEY* one) const { EVP_PKEY_free(one); }
  void operator()(X509* one) const { X509_free(one); }
  void operator()(X509_REQ* one) const { X509_REQ_free(one); }
  void operator()(X509_STORE* one) const { X509_STORE_free(one); }
  void operator()(X509_STORE_CTX* one) const { X509_STORE_CTX_free(one); }
  void operator()(X509_EXTENSION* one) const { X509_EXTENSION_free(one); }
  void operator()(GENERAL_NAMES* one) const { GENERAL_NAMES_free(one); }
};
template <class T>
using Ptr = std::unique_ptr<T, Free>;

// Null where the text has none.
Ptr<EVP_PKEY> ReadKey(std::string_view pem);
Ptr<X509_REQ> ReadRequest(std::string_view pem);
// In the order of the text.
std::vector<Ptr<X509>> ReadCertificates(std::string_view pem);

std::string ToPem(EVP_PKEY& key);
std::string ToPem(X509_REQ& request);
std::string ToPem(X509& certificate);

}  // namespace lorad::storage::openssl
