// X.509 certificates of a site: its authority signs one for each worker and one for the
// coordinator.
//
// Keys are P-256, signatures ECDSA with SHA-256; everything is text (PEM). A worker's certificate
// has the URI lorad://worker/NAME and serves TLS clients alone; the coordinator's has the DNS name
// kCoordinatorName, whatever address it is reached at, and serves TLS servers alone. The authority
// signs both directly. Time is always given. Functions are thread-safe; random numbers are the
// system's. Source: RFC 5280, OpenSSL 3.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lorad::storage {

inline constexpr char kCoordinatorName[] = "coordinator.lorad";

// When a certificate holds: at `from`, and before `until`; whole seconds.
struct Validity {
  absl::Time from;
  absl::Time until;

  absl::Duration length() const { return until - from; }
  bool operator==(const Validity&) const = default;
};

// From a little before `now` (a tenth of `length`, an hour at most), so that hosts whose clocks
// differ by less than that agree on it.
Validity ValidFor(absl::Duration length, absl::Time now);

// "2026-01-02 03:04:05 UTC".
std::string TimeText(absl::Time time);

// A new private key (PKCS #8).
std::string MakeKey();

// Asks for a certificate for `key` (PKCS #10), and proves that the key is at hand. INVALID_ARGUMENT
// (KEY_DAMAGED).
absl::StatusOr<std::string> MakeRequest(const std::string& key);

// INVALID_ARGUMENT (CERTIFICATE_DAMAGED) for these two.
absl::StatusOr<Validity> ValidityOf(const std::string& certificate);
// The common name of who signed it.
absl::StatusOr<std::string> IssuerOf(const std::string& certificate);

// Whether `key` is the private half of `certificate`.
bool BelongTogether(const std::string& key, const std::string& certificate);

// The worker that `certificate` names, if `authority` (a certificate) signed it and it holds at
// `now`. Else FAILED_PRECONDITION, with both times where time is the reason: CERTIFICATE_DAMAGED,
// CERTIFICATE_EXPIRED, CERTIFICATE_NOT_YET_VALID, CERTIFICATE_OF_ANOTHER_AUTHORITY,
// CERTIFICATE_NOT_A_WORKERS, AUTHORITY_EXPIRED.
absl::StatusOr<std::string> WorkerOf(const std::string& certificate, const std::string& authority,
                                     absl::Time now);

// A site's authority: its certificate and the key that signs. Copies share them; const methods are
// thread-safe.
class Authority {
 public:
  // A new one; its name has a random part, so that two can be told apart.
  static Authority Make(const Validity& validity);
  // What ToText made. INVALID_ARGUMENT (AUTHORITY_DAMAGED).
  static absl::StatusOr<Authority> Parse(const std::string& text);
  std::string ToText() const;

  const std::string& certificate() const { return certificate_; }
  const std::string& name() const { return name_; }
  const Validity& validity() const { return validity_; }

  // Certificates, which end with the authority at the latest. INVALID_ARGUMENT (REQUEST_DAMAGED)
  // for a `request` that MakeRequest did not make.
  absl::StatusOr<std::string> SignWorker(const std::string& request, const std::string& worker,
                                         const Validity& validity) const;
  absl::StatusOr<std::string> SignCoordinator(const std::string& request,
                                              const Validity& validity) const;

 private:
  Authority() = default;
  absl::StatusOr<std::string> Sign(const std::string& request, const std::string& common_name,
                                   const std::string& alternative_name, const char* usage,
                                   const Validity& validity) const;

  std::string key_;
  std::string certificate_;
  std::string name_;
  Validity validity_;
};

}  // namespace lorad::storage
