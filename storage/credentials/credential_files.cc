#include "storage/credentials/credential_files.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/credentials/openssl.h"
#include "storage/files/errors.h"
#include "storage/files/sha256.h"

namespace lorad::storage {
namespace {

constexpr uint64_t kFileLimit = uint64_t{1} << 20;

// A kind of file, for messages.
struct Kind {
  const char* reason;  // "BUNDLE": of BUNDLE_MISSING and the others
  const char* what;
  std::string make;   // the command that makes one
  std::string stale;  // what to do where others may have read it
};

Kind AuthorityKind(const std::string& data_dir) {
  const std::string init = absl::StrCat("lorad auth init --data-dir ", data_dir);
  return {"AUTHORITY", "the site's authority", absl::StrCat("`", init, "` makes one"),
          absl::StrCat("`", init, " --replace` makes another")};
}

Kind BundleKind() {
  return {"BUNDLE", "a worker's bundle",
          "`lorad auth worker NAME` at the coordinator makes one, which is to be carried here",
          "it is known to others as long as its authority: `lorad auth init --replace` at the "
          "coordinator makes another"};
}

absl::StatusOr<std::string> ReadPrivate(Files& files, const std::string& path, const Kind& kind) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0 || !files.Exists(path)) {
    return WithReason(absl::StatusCode::kNotFound, absl::StrCat(kind.reason, "_MISSING"),
                      absl::StrCat(path, ": ", kind.what, " is not there; ", kind.make));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return WithReason(absl::StatusCode::kFailedPrecondition, absl::StrCat(kind.reason, "_UNSAFE"),
                      absl::StrCat(path, ": ", kind.what, " holds a private key, and has mode ",
                                   absl::StrFormat("%04o", status.st_mode & 07777), ": `chmod 600 ",
                                   path, "`. If others may have read it, ", kind.stale));
  }
  absl::StatusOr<std::string> text = files.ReadAll(path, kFileLimit);
  if (text.ok()) return text;
  return WithReason(
      absl::StatusCode::kFailedPrecondition, absl::StrCat(kind.reason, "_UNREADABLE"),
      absl::StrCat(kind.what, " cannot be read: ", std::string(text.status().message()),
                   "; it must be a file of the user who runs this program"));
}

// AtomicWrite, into a file that is made now: what lies at its temporary path may be open to others.
// Where it fails no copy of the key is left there.
absl::Status WritePrivate(Files& files, const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  if (files.Exists(temporary) || files.IsLink(temporary)) {
    if (absl::Status status = files.Remove(temporary); !status.ok()) return status;
  }
  absl::Status written = AtomicWrite(files, path, text);
  if (!written.ok()) files.Remove(temporary).IgnoreError();
  return written;
}

absl::Status Broken(const std::string& path, const Kind& kind, const absl::Status& why) {
  return Refuse(absl::StrCat(kind.reason, "_DAMAGED"),
                absl::StrCat(path, ": ", kind.what, " is damaged, ", std::string(why.message()),
                             "; put it back from a backup, or ", kind.make));
}

std::string ToText(const WorkerBundle& bundle) {
  return absl::StrCat(
      "The credentials of a lorad worker, and its private key: for its host alone.\n",
      bundle.worker, ", until ", TimeText(bundle.validity.until), "\n", bundle.key,
      bundle.certificate, bundle.authority);
}

}  // namespace

std::string AuthorityPath(const std::string& data_dir) {
  return JoinPath(data_dir, "authority.pem");
}

absl::StatusOr<Authority> ReadAuthority(Files& files, const std::string& data_dir) {
  const Kind kind = AuthorityKind(data_dir);
  const std::string path = AuthorityPath(data_dir);
  absl::StatusOr<std::string> text = ReadPrivate(files, path, kind);
  if (!text.ok()) return text.status();
  absl::StatusOr<Authority> authority = Authority::Parse(*text);
  if (!authority.ok()) return Broken(path, kind, authority.status());
  return authority;
}

absl::StatusOr<std::string> WriteAuthority(Files& files, const std::string& data_dir,
                                           const Authority& authority, bool replace) {
  const std::string path = AuthorityPath(data_dir);
  if (absl::Status status = MakeDirectoryDurably(files, data_dir); !status.ok()) return status;
  std::string kept;
  if (files.Exists(path)) {
    if (!replace) {
      return WithReason(absl::StatusCode::kAlreadyExists, "AUTHORITY_EXISTS",
                        absl::StrCat(path,
                                     ": the site has an authority, and the workers' bundles "
                                     "are of it; --replace makes another, and then every "
                                     "worker needs a new bundle"));
    }
    const absl::StatusOr<std::string> before = files.ReadAll(path, kFileLimit);
    if (!before.ok()) return before.status();
    kept = JoinPath(data_dir, absl::StrCat("authority-", Sha256::Of(*before).substr(0, 8), ".pem"));
    if (absl::Status status = WritePrivate(files, kept, *before); !status.ok()) return status;
  }
  if (absl::Status status = WritePrivate(files, path, authority.ToText()); !status.ok()) {
    return status;
  }
  return kept;
}

absl::StatusOr<WorkerBundle> WorkerBundle::Of(std::string key, std::string certificate,
                                              std::string authority) {
  const absl::StatusOr<Validity> validity = ValidityOf(certificate);
  const absl::StatusOr<Validity> root = ValidityOf(authority);
  if (!validity.ok() || !root.ok() || !BelongTogether(key, certificate)) {
    return Refuse("BUNDLE_DAMAGED",
                  "it must hold a private key, the certificate for it, and that of the authority");
  }
  // A time at which all hold, so that only who signed it counts.
  const absl::StatusOr<std::string> worker = WorkerOf(certificate, authority, validity->from);
  if (!worker.ok()) return Refuse("BUNDLE_DAMAGED", std::string(worker.status().message()));
  return WorkerBundle{*worker, std::move(key), std::move(certificate), std::move(authority),
                      *validity};
}

absl::Status CheckBundle(const WorkerBundle& bundle, absl::Time now) {
  return WorkerOf(bundle.certificate, bundle.authority, now).status();
}

absl::StatusOr<WorkerBundle> ReadBundle(Files& files, const std::string& path) {
  const Kind kind = BundleKind();
  absl::StatusOr<std::string> text = ReadPrivate(files, path, kind);
  if (!text.ok()) return text.status();
  const openssl::Ptr<EVP_PKEY> key = openssl::ReadKey(*text);
  const auto certificates = openssl::ReadCertificates(*text);
  if (key == nullptr || certificates.size() != 2) {
    return Broken(path, kind,
                  Refuse("BUNDLE_DAMAGED", "it must hold one private key and two certificates"));
  }
  absl::StatusOr<WorkerBundle> bundle = WorkerBundle::Of(
      openssl::ToPem(*key), openssl::ToPem(*certificates[0]), openssl::ToPem(*certificates[1]));
  if (!bundle.ok()) return Broken(path, kind, bundle.status());
  return bundle;
}

absl::Status WriteBundle(Files& files, const std::string& path, const WorkerBundle& bundle,
                         bool replace) {
  if (!replace && files.Exists(path)) {
    return WithReason(absl::StatusCode::kAlreadyExists, "BUNDLE_EXISTS",
                      absl::StrCat(path,
                                   ": there is a file already; name another with -o, or "
                                   "write over it with --replace"));
  }
  return WritePrivate(files, path, ToText(bundle));
}

}  // namespace lorad::storage
