#include "server/auth_command.h"

#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/errors/errors.h"
#include "server/store/access.h"
#include "server/validation/names.h"
#include "storage/credentials/certificate.h"
#include "storage/credentials/credential_files.h"
#include "storage/files/files.h"

namespace lorad::server {
namespace {

constexpr absl::Duration kDay = absl::Hours(24);
constexpr absl::Duration kAuthorityValid = absl::Hours(24 * 3650);
constexpr absl::Duration kWorkerValid = absl::Hours(24 * 90);
constexpr absl::Duration kValidMin = absl::Seconds(10);
constexpr absl::Duration kValidMax = absl::Hours(24 * 365 * 50);

absl::StatusOr<absl::Duration> ValidOr(const AuthOptions& options, absl::Duration otherwise) {
  if (options.valid.empty()) return otherwise;
  return ParseValid(options.valid);
}

}  // namespace

absl::StatusOr<absl::Duration> ParseValid(const std::string& text) {
  int64_t number = 0;
  const char unit = text.empty() ? ' ' : text.back();
  const absl::Duration one = unit == 'd'   ? kDay
                             : unit == 'h' ? absl::Hours(1)
                             : unit == 'm' ? absl::Minutes(1)
                             : unit == 's' ? absl::Seconds(1)
                                           : absl::ZeroDuration();
  if (one > absl::ZeroDuration() && absl::SimpleAtoi(text.substr(0, text.size() - 1), &number) &&
      number > 0) {
    const absl::Duration valid = one * number;
    if (valid >= kValidMin && valid <= kValidMax) return valid;
  }
  return Error(absl::StatusCode::kInvalidArgument, "INVALID_DURATION",
               absl::StrCat("--valid must be a number of days, hours, minutes or seconds like 90d, "
                            "12h, 30m or 45s, from 10s to 18250d, got '",
                            text, "'"));
}

absl::StatusOr<std::string> AuthInit(const AuthOptions& options, absl::Time now) {
  const absl::StatusOr<absl::Duration> valid = ValidOr(options, kAuthorityValid);
  if (!valid.ok()) return valid.status();
  storage::Files& files = storage::RealFiles();
  if (absl::Status status = CheckOwner(options.data_dir, geteuid()); !status.ok()) return status;
  const storage::Authority authority = storage::Authority::Make(storage::ValidFor(*valid, now));
  const absl::StatusOr<std::string> kept =
      storage::WriteAuthority(files, options.data_dir, authority, options.replace);
  if (!kept.ok()) return kept.status();
  std::string said = absl::StrCat(storage::AuthorityPath(options.data_dir), ": ", authority.name(),
                                  ", until ", storage::TimeText(authority.validity().until), "\n");
  if (!kept->empty()) {
    absl::StrAppend(&said, "the one before is kept as ", *kept,
                    "; workers of it are refused from the daemon's next start on: make each a new "
                    "bundle\n");
  }
  return absl::StrCat(said, "next: lorad auth worker NAME --data-dir ", options.data_dir, "\n");
}

absl::StatusOr<std::string> AuthWorker(const AuthOptions& options, absl::Time now) {
  if (const std::string wrong = CheckWorkerName(options.worker); !wrong.empty()) {
    return Error(
        absl::StatusCode::kInvalidArgument, "WORKER_NAME_INVALID",
        absl::StrCat("a worker's name ", wrong, ", got '", Quotable(options.worker, 100), "'"));
  }
  const absl::StatusOr<absl::Duration> valid = ValidOr(options, kWorkerValid);
  if (!valid.ok()) return valid.status();
  storage::Files& files = storage::RealFiles();
  const absl::StatusOr<storage::Authority> authority =
      storage::ReadAuthority(files, options.data_dir);
  if (!authority.ok()) return authority.status();
  const std::string key = storage::MakeKey();
  const absl::StatusOr<std::string> certificate = authority->SignWorker(
      *storage::MakeRequest(key), options.worker, storage::ValidFor(*valid, now));
  if (!certificate.ok()) return certificate.status();
  const absl::StatusOr<storage::WorkerBundle> bundle =
      storage::WorkerBundle::Of(key, *certificate, authority->certificate());
  if (!bundle.ok()) return bundle.status();
  if (absl::Status status = storage::CheckBundle(*bundle, now); !status.ok()) return status;
  const std::string path =
      options.output.empty() ? absl::StrCat(options.worker, ".pem") : options.output;
  if (absl::Status status = storage::WriteBundle(files, path, *bundle, options.replace);
      !status.ok()) {
    return status;
  }
  return absl::StrCat(path, ": worker ", bundle->worker, ", until ",
                      storage::TimeText(bundle->validity.until),
                      "; it holds a private key\nnext: carry it to the worker's host, and there: "
                      "lorad-worker --coordinator HOST:PORT --credentials ",
                      path, "\n");
}

void AddAuth(CLI::App& app, AuthOptions& options) {
  CLI::App& auth = *app.add_subcommand("auth", "Makes credentials for workers on other hosts");
  auth.require_subcommand(1);
  CLI::App& init =
      *auth.add_subcommand("init", "Makes the site's authority, in the data directory");
  CLI::App& worker = *auth.add_subcommand(
      "worker", "Makes a worker's bundle: key, certificate, and the authority's certificate");
  worker.add_option("NAME", options.worker, "The worker's name, unique in the cluster")->required();
  worker
      .add_option("-o,--output", options.output, "The bundle (default: NAME.pem in this directory)")
      ->type_name("FILE");
  for (CLI::App* one : {&init, &worker}) {
    const bool is_worker = one == &worker;
    one->add_option("--data-dir", options.data_dir, "The daemon's")->required()->type_name("DIR");
    one->add_option("--valid", options.valid,
                    is_worker ? "How long the certificate holds; the worker renews it by itself "
                                "(default: 90d)"
                              : "How long it holds (default: 3650d)")
        ->type_name("DURATION");
    one->add_flag("--replace", options.replace,
                  is_worker ? "Write over a file that is there"
                            : "Where there is one, keep it aside and make another");
  }
}

absl::StatusOr<std::string> RunAuth(const CLI::App& app, const AuthOptions& options) {
  return app.get_subcommand("auth")->got_subcommand("init") ? AuthInit(options, absl::Now())
                                                            : AuthWorker(options, absl::Now());
}

}  // namespace lorad::server
