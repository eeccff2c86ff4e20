// What a worker shows of itself, and how that is renewed.
#include "worker/link/credentials.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "storage/credentials/certificate.h"
#include "tests/storage/temp_directory.h"
#include "worker/link/channel.h"

namespace lorad::worker {
namespace {

namespace fs = std::filesystem;

const absl::Time kNow =
    absl::FromCivil(absl::CivilSecond(2026, 3, 1, 12, 0, 0), absl::UTCTimeZone());
constexpr absl::Duration kDay = absl::Hours(24);

struct Site {
  // A certificate for `key`.
  std::string Sign(const std::string& key, const std::string& worker, absl::Time now) const {
    return *authority.SignWorker(*storage::MakeRequest(key), worker, storage::ValidFor(kDay, now));
  }
  // The credentials of worker b, in home/b.pem.
  std::unique_ptr<Credentials> Load() {
    const std::string key = storage::MakeKey();
    fs::create_directories(folder / "home");
    const auto bundle =
        storage::WorkerBundle::Of(key, Sign(key, "b", kNow), authority.certificate());
    REQUIRE(storage::WriteBundle(storage::RealFiles(), path, *bundle, false).ok());
    auto loaded = Credentials::Load(storage::RealFiles(), path, kNow);
    REQUIRE(loaded.ok());
    return *std::move(loaded);
  }

  const storage::Authority authority =
      storage::Authority::Make(storage::ValidFor(3650 * kDay, kNow));
  const storage::TempDirectory folder;
  const std::string path = folder / "home/b.pem";
};

TEST_CASE("a renewed certificate is shown and written") {
  Site site;
  const auto credentials = site.Load();
  CHECK(credentials->worker() == "b");
  CHECK(credentials->renewals() == 0);
  const std::string key = storage::MakeKey();
  const std::string renewed = site.Sign(key, "b", kNow + kDay / 2);
  REQUIRE(credentials->Renew(key, renewed).ok());
  CHECK(credentials->renewals() == 1);
  CHECK(credentials->bundle().certificate == renewed);
  const auto written = storage::ReadBundle(storage::RealFiles(), site.path);
  REQUIRE(written.ok());
  CHECK(written->certificate == renewed);
  CHECK(written->key == key);
  // The one before has ended by then.
  CHECK(Credentials::Load(storage::RealFiles(), site.path, kNow + kDay).ok());
  CHECK_FALSE(Credentials::Load(storage::RealFiles(), site.path, kNow + 2 * kDay).ok());
}

TEST_CASE("what is not this worker's is not taken for a renewal") {
  Site site;
  const Site other;
  const auto credentials = site.Load();
  const std::string before = credentials->bundle().certificate;
  const std::string key = storage::MakeKey();
  CHECK_FALSE(credentials->Renew(key, site.Sign(key, "c", kNow)).ok());
  CHECK_FALSE(credentials->Renew(key, other.Sign(key, "b", kNow)).ok());
  CHECK_FALSE(credentials->Renew(storage::MakeKey(), site.Sign(key, "b", kNow)).ok());
  CHECK_FALSE(credentials->Renew(key, "").ok());
  CHECK(credentials->renewals() == 0);
  CHECK(credentials->bundle().certificate == before);
  CHECK(storage::ReadBundle(storage::RealFiles(), site.path)->certificate == before);
}

TEST_CASE("a renewed certificate that cannot be written is shown all the same") {
  Site site;
  const auto credentials = site.Load();
  fs::remove_all(site.folder / "home");
  const std::string key = storage::MakeKey();
  CHECK_FALSE(credentials->Renew(key, site.Sign(key, "b", kNow)).ok());
  CHECK(credentials->renewals() == 1);
  CHECK(credentials->bundle().key == key);
}

TEST_CASE("a coordinator of this host is known by its address") {
  for (const char* here : {"127.0.0.1:7070", "127.1.2.3:1", "[::1]:7070", "localhost:7070"}) {
    INFO(here);
    CHECK(IsLoopback(here));
  }
  for (const char* there :
       {"10.0.0.1:7070", "[fd00::2]:7070", "localhost.example:1", "127.example:1", "c:127"}) {
    INFO(there);
    CHECK_FALSE(IsLoopback(there));
  }
}

TEST_CASE("of a port that closes connections without TLS is said what it may be") {
  for (const std::string how : {"Socket closed", "recvmsg:Connection reset by peer"}) {
    const absl::Status status = ExplainTls(
        absl::UnavailableError("failed to connect to all addresses; last error: " + how), nullptr);
    CHECK_THAT(std::string(status.message()), Catch::StartsWith("COORDINATOR_WITH_TLS: "));
    // A stream that stood was another matter.
    CHECK(ExplainTls(absl::UnavailableError(how), nullptr) == absl::UnavailableError(how));
  }
}

}  // namespace
}  // namespace lorad::worker
