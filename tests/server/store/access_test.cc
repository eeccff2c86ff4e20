#include "server/store/access.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "server/process_limits.h"

namespace lorad::server {
namespace {

namespace fs = std::filesystem;

mode_t ModeOf(const std::string& path) {
  struct stat status;
  REQUIRE(lstat(path.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

std::string NewDirectory() {
  std::string pattern = (fs::temp_directory_path() / "lorad_access_XXXXXX").string();
  return mkdtemp(pattern.data());
}

TEST_CASE("what the process makes is its user's alone, and it may open what the system allows") {
  const std::string directory = NewDirectory();
  rlimit limit;
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit before = limit;
  limit.rlim_cur = 64;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  const mode_t mask = umask(0);
  SetUpProcess();
  std::ofstream(directory + "/file") << "x";
  fs::create_directory(directory + "/folder");
  umask(mask);
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(limit.rlim_cur == before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(ModeOf(directory + "/file") == 0600);
  CHECK(ModeOf(directory + "/folder") == 0700);
  fs::remove_all(directory);
}

TEST_CASE("a data directory that others could look into is closed to them, once") {
  const std::string directory = NewDirectory();
  fs::create_directory(directory + "/uploads");
  std::ofstream(directory + "/lorad.sqlite") << "x";
  fs::create_symlink("/etc/hostname", directory + "/link");
  chmod(directory.c_str(), 0755);
  chmod((directory + "/uploads").c_str(), 0775);
  chmod((directory + "/lorad.sqlite").c_str(), 0644);
  const auto changed = MakePrivate(directory);
  REQUIRE(changed.ok());
  CHECK(changed->size() == 3);
  CHECK(ModeOf(directory) == 0700);
  CHECK(ModeOf(directory + "/uploads") == 0700);
  CHECK(ModeOf(directory + "/lorad.sqlite") == 0600);
  CHECK(MakePrivate(directory)->empty());
  fs::remove_all(directory);
}

TEST_CASE("a data directory of another user is refused") {
  const std::string directory = NewDirectory();
  CHECK(CheckOwner(directory, geteuid()).ok());
  CHECK(CheckOwner(directory + "/not-there", geteuid()).ok());
  const absl::Status refused = CheckOwner(directory, geteuid() + 1);
  CHECK(absl::IsPermissionDenied(refused));
  CHECK(refused.message().find(directory + " belongs to user ") != std::string::npos);
  fs::remove_all(directory);
}

}  // namespace
}  // namespace lorad::server
