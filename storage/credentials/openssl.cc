#include "storage/credentials/openssl.h"

#include <openssl/err.h>

#include <cassert>

namespace lorad::storage::openssl {
namespace {

Ptr<BIO> Reader(std::string_view text) {
  return Ptr<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// A key with a passphrase is refused, never asked for at the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

template <class Write>
std::string Written(const Write& write) {
  const Ptr<BIO> bio(BIO_new(BIO_s_mem()));
  [[maybe_unused]] const int ok = write(bio.get());
  assert(ok == 1);
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(bytes));
}

}  // namespace

Ptr<EVP_PKEY> ReadKey(std::string_view pem) {
  Ptr<EVP_PKEY> key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  return key;
}

Ptr<X509_REQ> ReadRequest(std::string_view pem) {
  Ptr<X509_REQ> request(PEM_read_bio_X509_REQ(Reader(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  return request;
}

std::vector<Ptr<X509>> ReadCertificates(std::string_view pem) {
  std::vector<Ptr<X509>> all;
  const Ptr<BIO> bio = Reader(pem);
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)) {
    all.emplace_back(one);
  }
  ERR_clear_error();
  return all;
}

std::string ToPem(EVP_PKEY& key) {
  return Written([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, &key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

std::string ToPem(X509_REQ& request) {
  return Written([&](BIO* bio) { return PEM_write_bio_X509_REQ(bio, &request); });
}

std::string ToPem(X509& certificate) {
  return Written([&](BIO* bio) { return PEM_write_bio_X509(bio, &certificate); });
}

}  // namespace lorad::storage::openssl
