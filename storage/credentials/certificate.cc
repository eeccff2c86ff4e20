#include "storage/credentials/certificate.h"

#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cassert>
#include <ctime>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/credentials/openssl.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

using openssl::Ptr;

constexpr char kWorkerUri[] = "lorad://worker/";

absl::Status RefuseCertificate(std::string_view reason, std::string_view message) {
  return WithReason(absl::StatusCode::kFailedPrecondition, reason, message);
}

constexpr char kDamaged[] = "CERTIFICATE_DAMAGED";
constexpr char kNoCertificate[] = "this is no certificate in PEM format";

// OpenSSL says 1 where all is well; with sound arguments only memory can fail it.
void Must(long ok) {
  assert(ok > 0);
  (void)ok;
}

absl::Time FromAsn1(const ASN1_TIME* time) {
  std::tm parts = {};
  Must(ASN1_TIME_to_tm(time, &parts));
  return absl::FromTimeT(timegm(&parts));
}

std::string CommonName(const X509_NAME* name) {
  const int at = X509_NAME_get_index_by_NID(name, NID_commonName, -1);
  if (at < 0) return "";
  unsigned char* text = nullptr;
  const int bytes =
      ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, at)));
  const std::string copy(reinterpret_cast<char*>(text), static_cast<size_t>(std::max(bytes, 0)));
  OPENSSL_free(text);
  return copy;
}

void AddExtension(X509& certificate, X509V3_CTX* context, int kind, const std::string& value) {
  const Ptr<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, context, kind, value.c_str()));
  assert(extension != nullptr);
  Must(X509_add_ext(&certificate, extension.get(), -1));
}

void SetSerial(X509& certificate) {
  BIGNUM* number = BN_new();
  Must(BN_rand(number, 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY));
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(&certificate));
  BN_free(number);
}

void SetCommonName(X509_NAME* name, const std::string& text) {
  Must(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                  reinterpret_cast<const unsigned char*>(text.data()),
                                  static_cast<int>(text.size()), -1, 0));
}

// All but names, key, extensions and signature.
Ptr<X509> Blank(const Validity& validity) {
  Ptr<X509> certificate(X509_new());
  Must(X509_set_version(certificate.get(), 2));  // counted from 0: version 3
  SetSerial(*certificate);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(validity.from));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(validity.until));
  return certificate;
}

// NAME of its URI lorad://worker/NAME; "" where it has none.
std::string WorkerName(const X509& certificate) {
  const Ptr<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    const std::string text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                           static_cast<size_t>(ASN1_STRING_length(uri)));
    if (absl::StartsWith(text, kWorkerUri)) return text.substr(sizeof(kWorkerUri) - 1);
  }
  return "";
}

std::string Whose(const X509& certificate) {
  const std::string worker = WorkerName(certificate);
  return worker.empty() ? absl::StrCat("the certificate of ",
                                       Quoted(CommonName(X509_get_subject_name(&certificate))))
                        : absl::StrCat("the certificate of worker ", Quoted(worker));
}

std::string Again(const X509& certificate) {
  const std::string worker = WorkerName(certificate);
  return absl::StrCat("`lorad auth worker ", worker.empty() ? "NAME" : Quoted(worker),
                      "` at the coordinator makes another");
}

// X509_verify_cert's error in words; `authority`: the one that should have signed.
absl::Status Explain(int error, int depth, const X509& certificate, const X509& authority,
                     absl::Time now) {
  const X509& late = depth == 0 ? certificate : authority;
  switch (error) {
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return RefuseCertificate(
          "CERTIFICATE_NOT_YET_VALID",
          absl::StrCat(Whose(late), " holds from ", TimeText(FromAsn1(X509_get0_notBefore(&late))),
                       " on, and here it is ", TimeText(now), ": set the clock that is wrong"));
    case X509_V_ERR_CERT_HAS_EXPIRED:
      if (depth > 0) {
        return RefuseCertificate(
            "AUTHORITY_EXPIRED",
            absl::StrCat("the site's authority held until ",
                         TimeText(FromAsn1(X509_get0_notAfter(&late))), ", and here it is ",
                         TimeText(now),
                         ": `lorad auth init --replace` makes another, or set the clock"));
      }
      return RefuseCertificate(
          "CERTIFICATE_EXPIRED",
          absl::StrCat(Whose(late), " held until ", TimeText(FromAsn1(X509_get0_notAfter(&late))),
                       ", and here it is ", TimeText(now), ": ", Again(late),
                       "; or set the clock that is wrong"));
    case X509_V_ERR_INVALID_PURPOSE:
      return RefuseCertificate(
          "CERTIFICATE_NOT_A_WORKERS",
          absl::StrCat(Whose(certificate), " is not for workers: ", Again(certificate)));
    default:
      return RefuseCertificate("CERTIFICATE_OF_ANOTHER_AUTHORITY",
                               absl::StrCat(Whose(certificate), " is of ",
                                            Quoted(CommonName(X509_get_issuer_name(&certificate))),
                                            ", not of this site's ",
                                            Quoted(CommonName(X509_get_subject_name(&authority))),
                                            ": ", Again(certificate)));
  }
}

}  // namespace

Validity ValidFor(absl::Duration length, absl::Time now) {
  const absl::Time from = now - std::min(absl::Hours(1), length / 10);
  const absl::Time whole = absl::FromTimeT(absl::ToTimeT(from));
  return {whole, whole + absl::Ceil(length, absl::Seconds(1))};
}

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

std::string MakeKey() {
  const Ptr<EVP_PKEY> key(EVP_EC_gen("P-256"));
  assert(key != nullptr);
  return openssl::ToPem(*key);
}

absl::StatusOr<std::string> MakeRequest(const std::string& key) {
  const Ptr<EVP_PKEY> read = openssl::ReadKey(key);
  if (read == nullptr) return Refuse("KEY_DAMAGED", "this is no private key in PEM format");
  const Ptr<X509_REQ> request(X509_REQ_new());
  Must(X509_REQ_set_pubkey(request.get(), read.get()));
  Must(X509_REQ_sign(request.get(), read.get(), EVP_sha256()));
  return openssl::ToPem(*request);
}

absl::StatusOr<Validity> ValidityOf(const std::string& certificate) {
  const auto read = openssl::ReadCertificates(certificate);
  if (read.empty()) return Refuse(kDamaged, kNoCertificate);
  return Validity{FromAsn1(X509_get0_notBefore(read[0].get())),
                  FromAsn1(X509_get0_notAfter(read[0].get()))};
}

absl::StatusOr<std::string> IssuerOf(const std::string& certificate) {
  const auto read = openssl::ReadCertificates(certificate);
  if (read.empty()) return Refuse(kDamaged, kNoCertificate);
  return CommonName(X509_get_issuer_name(read[0].get()));
}

bool BelongTogether(const std::string& key, const std::string& certificate) {
  const Ptr<EVP_PKEY> read_key = openssl::ReadKey(key);
  const auto read = openssl::ReadCertificates(certificate);
  const bool same = read_key != nullptr && !read.empty() &&
                    X509_check_private_key(read[0].get(), read_key.get()) == 1;
  ERR_clear_error();
  return same;
}

absl::StatusOr<std::string> WorkerOf(const std::string& certificate, const std::string& authority,
                                     absl::Time now) {
  const auto leaf = openssl::ReadCertificates(certificate);
  const auto root = openssl::ReadCertificates(authority);
  if (leaf.empty() || root.empty()) return RefuseCertificate(kDamaged, kNoCertificate);
  const Ptr<X509_STORE> store(X509_STORE_new());
  Must(X509_STORE_add_cert(store.get(), root[0].get()));
  const Ptr<X509_STORE_CTX> check(X509_STORE_CTX_new());
  Must(X509_STORE_CTX_init(check.get(), store.get(), leaf[0].get(), nullptr));
  X509_STORE_CTX_set_time(check.get(), 0, absl::ToTimeT(now));
  Must(X509_STORE_CTX_set_purpose(check.get(), X509_PURPOSE_SSL_CLIENT));
  const bool good = X509_verify_cert(check.get()) == 1;
  ERR_clear_error();
  if (!good) {
    return Explain(X509_STORE_CTX_get_error(check.get()),
                   X509_STORE_CTX_get_error_depth(check.get()), *leaf[0], *root[0], now);
  }
  std::string worker = WorkerName(*leaf[0]);
  if (worker.empty()) {
    return Explain(X509_V_ERR_INVALID_PURPOSE, 0, *leaf[0], *root[0], now);
  }
  return worker;
}

// ---- the authority ----

Authority Authority::Make(const Validity& validity) {
  Authority authority;
  authority.key_ = MakeKey();
  const Ptr<EVP_PKEY> key = openssl::ReadKey(authority.key_);
  const Ptr<X509> certificate = Blank(validity);
  // Named by its serial number, which is random.
  BIGNUM* const serial = ASN1_INTEGER_to_BN(X509_get_serialNumber(certificate.get()), nullptr);
  char* const digits = BN_bn2hex(serial);
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  SetCommonName(name, absl::StrCat("lorad authority ", std::string(digits).substr(0, 8)));
  OPENSSL_free(digits);
  BN_free(serial);
  Must(X509_set_issuer_name(certificate.get(), name));
  Must(X509_set_pubkey(certificate.get(), key.get()));
  X509V3_CTX context;
  X509V3_set_ctx(&context, certificate.get(), certificate.get(), nullptr, nullptr, 0);
  AddExtension(*certificate, &context, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  AddExtension(*certificate, &context, NID_key_usage, "critical,keyCertSign");
  AddExtension(*certificate, &context, NID_subject_key_identifier, "hash");
  Must(X509_sign(certificate.get(), key.get(), EVP_sha256()));
  authority.certificate_ = openssl::ToPem(*certificate);
  authority.name_ = CommonName(name);
  authority.validity_ = validity;
  return authority;
}

absl::StatusOr<Authority> Authority::Parse(const std::string& text) {
  const Ptr<EVP_PKEY> key = openssl::ReadKey(text);
  const auto certificates = openssl::ReadCertificates(text);
  if (key == nullptr || certificates.size() != 1 ||
      X509_check_private_key(certificates[0].get(), key.get()) != 1 ||
      X509_check_ca(certificates[0].get()) != 1) {
    ERR_clear_error();
    return Refuse("AUTHORITY_DAMAGED",
                  "it must hold one private key and its authority's certificate");
  }
  Authority authority;
  authority.key_ = openssl::ToPem(*key);
  authority.certificate_ = openssl::ToPem(*certificates[0]);
  authority.name_ = CommonName(X509_get_subject_name(certificates[0].get()));
  authority.validity_ = *ValidityOf(authority.certificate_);
  return authority;
}

std::string Authority::ToText() const {
  return absl::StrCat(
      "The authority of a lorad site, and its private key. Whoever has it can make "
      "workers of the site.\n",
      name_, ", until ", TimeText(validity_.until), "\n", key_, certificate_);
}

absl::StatusOr<std::string> Authority::SignWorker(const std::string& request,
                                                  const std::string& worker,
                                                  const Validity& validity) const {
  return Sign(request, worker, absl::StrCat("URI:", kWorkerUri, worker), "clientAuth", validity);
}

absl::StatusOr<std::string> Authority::SignCoordinator(const std::string& request,
                                                       const Validity& validity) const {
  return Sign(request, kCoordinatorName, absl::StrCat("DNS:", kCoordinatorName), "serverAuth",
              validity);
}

absl::StatusOr<std::string> Authority::Sign(const std::string& request,
                                            const std::string& common_name,
                                            const std::string& alternative_name, const char* usage,
                                            const Validity& validity) const {
  const Ptr<X509_REQ> asked = openssl::ReadRequest(request);
  EVP_PKEY* const asked_key = asked == nullptr ? nullptr : X509_REQ_get0_pubkey(asked.get());
  const bool sound = asked_key != nullptr && X509_REQ_verify(asked.get(), asked_key) == 1;
  ERR_clear_error();
  if (!sound) {
    return Refuse("REQUEST_DAMAGED", "this is no request for a certificate, signed by its key");
  }
  const Ptr<EVP_PKEY> key = openssl::ReadKey(key_);
  const auto authority = openssl::ReadCertificates(certificate_);
  const Ptr<X509> certificate = Blank({validity.from, std::min(validity.until, validity_.until)});
  SetCommonName(X509_get_subject_name(certificate.get()), common_name);
  Must(X509_set_issuer_name(certificate.get(), X509_get_subject_name(authority[0].get())));
  Must(X509_set_pubkey(certificate.get(), asked_key));
  X509V3_CTX context;
  X509V3_set_ctx(&context, authority[0].get(), certificate.get(), nullptr, nullptr, 0);
  AddExtension(*certificate, &context, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(*certificate, &context, NID_key_usage, "critical,digitalSignature");
  AddExtension(*certificate, &context, NID_ext_key_usage, usage);
  AddExtension(*certificate, &context, NID_subject_alt_name, alternative_name);
  AddExtension(*certificate, &context, NID_authority_key_identifier, "keyid");
  Must(X509_sign(certificate.get(), key.get(), EVP_sha256()));
  return openssl::ToPem(*certificate);
}

}  // namespace lorad::storage
