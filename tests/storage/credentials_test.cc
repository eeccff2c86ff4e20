#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/credentials/certificate.h"
#include "storage/credentials/credential_files.h"
#include "storage/files/errors.h"
#include "tests/storage/temp_directory.h"

namespace lorad::storage {
namespace {

const absl::Time kNow =
    absl::FromCivil(absl::CivilSecond(2026, 3, 1, 12, 0, 0), absl::UTCTimeZone());
constexpr absl::Duration kYear = absl::Hours(24 * 365);
constexpr absl::Duration kDay = absl::Hours(24);

Authority NewAuthority(absl::Time now = kNow) { return Authority::Make(ValidFor(10 * kYear, now)); }

struct Worker {
  std::string key = MakeKey();
  std::string certificate;
};

Worker NewWorker(const Authority& authority, const std::string& name, const Validity& validity) {
  Worker worker;
  worker.certificate = *authority.SignWorker(*MakeRequest(worker.key), name, validity);
  return worker;
}

// "REASON: message".
std::string Text(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return absl::StrCat(reason.empty() ? "none" : reason, ": ", std::string(status.message()));
}

bool Has(const std::string& text, std::string_view part) {
  INFO(text);
  const bool has = text.find(part) != std::string::npos;
  CHECK(has);
  return has;
}

TEST_CASE("a worker is who its certificate says, while that holds") {
  const Authority authority = NewAuthority(kNow - 30 * kDay);
  const Validity validity = ValidFor(90 * kDay, kNow);
  CHECK(validity.from == kNow - absl::Hours(1));
  CHECK(validity.length() == 90 * kDay);
  const Worker worker = NewWorker(authority, "gpu-7.rack_2", validity);
  CHECK(*ValidityOf(worker.certificate) == validity);
  CHECK(*IssuerOf(worker.certificate) == authority.name());
  CHECK(BelongTogether(worker.key, worker.certificate));
  CHECK_FALSE(BelongTogether(MakeKey(), worker.certificate));
  for (const absl::Time at : {validity.from, kNow, validity.until - absl::Seconds(1)}) {
    const auto name = WorkerOf(worker.certificate, authority.certificate(), at);
    INFO(Text(name.status()));
    REQUIRE(name.ok());
    CHECK(*name == "gpu-7.rack_2");
  }

  const auto late = WorkerOf(worker.certificate, authority.certificate(), validity.until);
  CHECK(absl::IsFailedPrecondition(late.status()));
  Has(Text(late.status()),
      "CERTIFICATE_EXPIRED: the certificate of worker \"gpu-7.rack_2\" held until 2026-05-30 "
      "11:00:00 "
      "UTC, and here it is 2026-05-30 11:00:00 UTC: `lorad auth worker \"gpu-7.rack_2\"` at the "
      "coordinator makes another; or set the clock that is wrong");
  const auto early =
      WorkerOf(worker.certificate, authority.certificate(), validity.from - absl::Seconds(1));
  Has(Text(early.status()),
      "CERTIFICATE_NOT_YET_VALID: the certificate of worker \"gpu-7.rack_2\" holds from 2026-03-01 "
      "11:00:00 UTC on, and here it is 2026-03-01 10:59:59 UTC: set the clock that is wrong");
}

TEST_CASE("nobody is a worker by another's certificate") {
  const Authority authority = NewAuthority();
  const Authority other = NewAuthority();
  CHECK(authority.name() != other.name());
  const Validity validity = ValidFor(kDay, kNow);
  const std::string& root = authority.certificate();

  const auto strange = WorkerOf(NewWorker(other, "a", validity).certificate, root, kNow);
  Has(Text(strange.status()),
      absl::StrCat("CERTIFICATE_OF_ANOTHER_AUTHORITY: the certificate of worker \"a\" is of \"",
                   other.name(), "\", not of this site's \"", authority.name(), "\""));
  const std::string of_coordinator = *authority.SignCoordinator(*MakeRequest(MakeKey()), validity);
  Has(Text(WorkerOf(of_coordinator, root, kNow).status()),
      "CERTIFICATE_NOT_A_WORKERS: the certificate of \"coordinator.lorad\"");
  CHECK_FALSE(WorkerOf(root, root, kNow).ok());
  for (const char* text : {"", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n"}) {
    Has(Text(WorkerOf(text, root, kNow).status()), "CERTIFICATE_DAMAGED");
  }

  // A bit of it is another's.
  std::string forged = NewWorker(authority, "a", validity).certificate;
  const size_t at = forged.size() - 60;
  forged[at] = forged[at] == 'A' ? 'B' : 'A';
  CHECK_FALSE(WorkerOf(forged, root, kNow).ok());
}

TEST_CASE("an authority signs for keys that are at hand, and no longer than it holds itself") {
  const Authority authority = Authority::Make(ValidFor(kDay, kNow));
  const Worker worker = NewWorker(authority, "a", ValidFor(90 * kDay, kNow));
  CHECK(ValidityOf(worker.certificate)->until == authority.validity().until);
  const auto late = WorkerOf(worker.certificate, authority.certificate(), kNow + 2 * kDay);
  CHECK_FALSE(late.ok());

  CHECK_FALSE(MakeRequest("no key").ok());
  std::string request = *MakeRequest(MakeKey());
  CHECK(authority.SignWorker(request, "a", ValidFor(kDay, kNow)).ok());
  Has(Text(authority.SignWorker("no request", "a", ValidFor(kDay, kNow)).status()),
      "REQUEST_DAMAGED");
  // Signed by another key than it names.
  std::string other = *MakeRequest(MakeKey());
  request.replace(request.size() / 2, 80, other.substr(request.size() / 2, 80));
  CHECK_FALSE(authority.SignWorker(request, "a", ValidFor(kDay, kNow)).ok());
}

TEST_CASE("a short life begins a tenth of itself ago") {
  const Validity validity = ValidFor(absl::Seconds(20), kNow);
  CHECK(validity == Validity{kNow - absl::Seconds(2), kNow + absl::Seconds(18)});
  // As long again.
  CHECK(ValidFor(validity.length(), kNow + absl::Seconds(10)).length() == validity.length());
}

mode_t ModeOf(const std::string& path) {
  struct stat status = {};
  stat(path.c_str(), &status);
  return status.st_mode & 07777;
}

TEST_CASE("the authority's file is kept, and its errors say what mends them") {
  const TempDirectory folder;
  const std::string data_dir = folder / "data";
  const std::string path = AuthorityPath(data_dir);
  Files& files = RealFiles();
  Has(Text(ReadAuthority(files, data_dir).status()),
      absl::StrCat("AUTHORITY_MISSING: ", path,
                   ": the site's authority is not there; `lorad auth "
                   "init --data-dir ",
                   data_dir, "` makes one"));

  const Authority first = NewAuthority();
  CHECK(WriteAuthority(files, data_dir, first, false)->empty());
  CHECK(ModeOf(path) == 0600);
  const auto read = ReadAuthority(files, data_dir);
  REQUIRE(read.ok());
  CHECK(read->certificate() == first.certificate());
  CHECK(read->validity() == first.validity());
  CHECK(read->SignWorker(*MakeRequest(MakeKey()), "a", ValidFor(kDay, kNow)).ok());

  const Authority second = NewAuthority();
  Has(Text(WriteAuthority(files, data_dir, second, false).status()),
      absl::StrCat("AUTHORITY_EXISTS: ", path));
  const auto kept = WriteAuthority(files, data_dir, second, true);
  REQUIRE(kept.ok());
  CHECK(Authority::Parse(*files.ReadAll(*kept, 1 << 20))->name() == first.name());
  CHECK(ModeOf(*kept) == 0600);
  CHECK(ReadAuthority(files, data_dir)->name() == second.name());

  chmod(path.c_str(), 0640);
  Has(Text(ReadAuthority(files, data_dir).status()),
      absl::StrCat("AUTHORITY_UNSAFE: ", path,
                   ": the site's authority holds a private key, and has "
                   "mode 0640: `chmod 600 ",
                   path,
                   "`. If others may have read it, `lorad auth init "
                   "--data-dir ",
                   data_dir, " --replace` makes another"));
  chmod(path.c_str(), 0600);
  const std::string whole = *files.ReadAll(path, 1 << 20);
  for (const std::string& text : {std::string(), whole.substr(0, whole.size() / 2),
                                  first.ToText().substr(0, 500) + second.certificate()}) {
    REQUIRE(AtomicWrite(files, path, text).ok());
    Has(Text(ReadAuthority(files, data_dir).status()),
        absl::StrCat("AUTHORITY_DAMAGED: ", path, ": the site's authority is damaged"));
  }
}

TEST_CASE("a bundle is one file, and its errors say what mends them") {
  const TempDirectory folder;
  const std::string path = folder / "b.pem";
  Files& files = RealFiles();
  const Authority authority = NewAuthority();
  const Worker worker = NewWorker(authority, "b", ValidFor(90 * kDay, kNow));
  Has(Text(ReadBundle(files, path).status()), absl::StrCat("BUNDLE_MISSING: ", path));

  const auto bundle = WorkerBundle::Of(worker.key, worker.certificate, authority.certificate());
  REQUIRE(bundle.ok());
  REQUIRE(WriteBundle(files, path, *bundle, false).ok());
  CHECK(ModeOf(path) == 0600);
  const auto read = ReadBundle(files, path);
  INFO(Text(read.status()));
  REQUIRE(read.ok());
  CHECK(read->worker == "b");
  CHECK(read->key == worker.key);
  CHECK(read->certificate == worker.certificate);
  CHECK(read->authority == authority.certificate());
  CHECK(CheckBundle(*read, kNow).ok());
  Has(Text(CheckBundle(*read, kNow + 90 * kDay)), "CERTIFICATE_EXPIRED");
  Has(Text(CheckBundle(*read, kNow - kDay)), "CERTIFICATE_NOT_YET_VALID");

  Has(Text(WriteBundle(files, path, *bundle, false)), absl::StrCat("BUNDLE_EXISTS: ", path));
  CHECK(WriteBundle(files, path, *bundle, true).ok());
  CHECK_FALSE(std::filesystem::exists(path + ".tmp"));

  // What somebody has left where it is written, open to others or leading elsewhere.
  folder.Write("b.pem.tmp", "left");
  chmod((path + ".tmp").c_str(), 0666);
  CHECK(WriteBundle(files, path, *bundle, true).ok());
  CHECK(ModeOf(path) == 0600);
  folder.Write("elsewhere", "untouched");
  std::filesystem::create_symlink(folder / "elsewhere", path + ".tmp");
  CHECK(WriteBundle(files, path, *bundle, true).ok());
  CHECK(ModeOf(path) == 0600);
  CHECK(folder.Read("elsewhere") == "untouched");

  // Where it cannot be put into its place, its key is left nowhere.
  std::filesystem::create_directory(folder / "taken.pem");
  CHECK_FALSE(WriteBundle(files, folder / "taken.pem", *bundle, true).ok());
  CHECK_FALSE(std::filesystem::exists(folder / "taken.pem.tmp"));

  chmod(path.c_str(), 0604);
  Has(Text(ReadBundle(files, path).status()), "has mode 0604: `chmod 600 ");
  chmod(path.c_str(), 0600);
  const std::string whole = *files.ReadAll(path, 1 << 20);
  const std::string damaged[] = {"", whole.substr(0, whole.size() - 200),
                                 MakeKey() + worker.certificate + authority.certificate(),
                                 worker.key + worker.certificate + NewAuthority().certificate(),
                                 worker.key + worker.certificate};
  for (const std::string& text : damaged) {
    REQUIRE(AtomicWrite(files, path, text).ok());
    Has(Text(ReadBundle(files, path).status()),
        absl::StrCat("BUNDLE_DAMAGED: ", path, ": a worker's bundle is damaged"));
  }
}

}  // namespace
}  // namespace lorad::storage
