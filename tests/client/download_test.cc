#include "client/calls/download.h"

#include <openssl/sha.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/escaping.h"
#include "client/calls/error.h"

namespace lorad::client {
namespace {

namespace fs = std::filesystem;

// A service with files, which can break streams and damage bytes.
struct FakeService {
  std::map<std::string, std::string> files;
  int breaks = 0;   // so many streams end after half of what is left
  int damaged = 0;  // so many streams carry a wrong byte
  std::vector<std::int64_t> offsets;
  std::function<void()> before;  // its first stream

  std::vector<RemoteFile> List() const {
    std::vector<RemoteFile> list;
    for (const auto& [name, bytes] : files) {
      unsigned char digest[SHA256_DIGEST_LENGTH];
      SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
      list.push_back({name, static_cast<std::int64_t>(bytes.size()),
                      absl::BytesToHexString({reinterpret_cast<const char*>(digest), 32})});
    }
    return list;
  }

  absl::Status Stream(const RemoteFile& file, std::int64_t offset, const Sink& sink) {
    offsets.push_back(offset);
    if (before) std::exchange(before, nullptr)();
    std::string bytes = files.at(file.name).substr(static_cast<std::size_t>(offset));
    if (damaged > 0 && !bytes.empty()) {
      --damaged;
      bytes[0] = static_cast<char>(bytes[0] ^ 1);
    }
    if (breaks > 0) {
      --breaks;
      sink(absl::string_view(bytes).substr(0, bytes.size() / 2));
      return absl::UnavailableError("the stream broke");
    }
    sink(bytes);
    return absl::OkStatus();
  }

  absl::Status Get(const fs::path& directory) {
    return DownloadDirectory(directory, List(),
                             [this](const RemoteFile& file, std::int64_t offset, const Sink& sink) {
                               return Stream(file, offset, sink);
                             });
  }
};

struct Folder {
  Folder() {
    char name[] = "/tmp/lora-download-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

std::string Read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

FakeService TwoFiles() {
  FakeService service;
  service.files = {{"adapter_config.json", "{}"},
                   {"adapter_model.safetensors", std::string(1000, 'x') + "end"}};
  return service;
}

// The same of files whose hash nobody knows before: the fetch finds damage by itself.
struct UnhashedService : FakeService {
  bool refuses = false;  // once bytes have come

  absl::Status GetTagged(const fs::path& directory, const std::string& tag) {
    std::vector<RemoteFile> list = List();
    for (RemoteFile& file : list) file.sha256.clear();
    return DownloadDirectory(
        directory, list,
        [this](const RemoteFile& file, std::int64_t offset, const Sink& sink) {
          const bool wrong = damaged > 0;
          const absl::Status status = Stream(file, offset, sink);
          if (refuses) return absl::FailedPreconditionError("another file than when it began");
          return wrong && status.ok() ? absl::DataLossError("wrong bytes") : status;
        },
        tag);
  }
};

TEST_CASE("files of no known hash: cut off they go on, damaged they begin again") {
  Folder folder;
  UnhashedService service;
  service.files = TwoFiles().files;
  service.breaks = 2;
  REQUIRE(service.GetTagged(folder.path / "a", "1").ok());
  CHECK(Read(folder.path / "a" / "adapter_model.safetensors") ==
        service.files["adapter_model.safetensors"]);
  CHECK_FALSE(fs::exists(folder.path / "a.1.partial"));

  service.damaged = 1;
  REQUIRE(service.GetTagged(folder.path / "b", "1").ok());
  CHECK(Read(folder.path / "b" / "adapter_config.json") == "{}");

  service.damaged = 100;
  CHECK(absl::IsDataLoss(service.GetTagged(folder.path / "c", "1")));
  CHECK(Read(folder.path / "c.1.partial" / "adapter_config.json").empty());
  service.damaged = 0;

  // What came before a refusal is of no use either; another set of files has another tag.
  service.refuses = true;
  CHECK(absl::IsFailedPrecondition(service.GetTagged(folder.path / "d", "1")));
  CHECK(Read(folder.path / "d.1.partial" / "adapter_config.json").empty());
  service.refuses = false;
  service.files["adapter_config.json"] = "[]";
  REQUIRE(service.GetTagged(folder.path / "d", "2").ok());
  CHECK(Read(folder.path / "d" / "adapter_config.json") == "[]");
}

TEST_CASE("a download makes the directory whole") {
  Folder folder;
  FakeService service = TwoFiles();
  service.files["empty"] = "";
  REQUIRE(service.Get(folder.path / "a").ok());
  for (const auto& [name, bytes] : service.files) CHECK(Read(folder.path / "a" / name) == bytes);
  CHECK_FALSE(fs::exists(folder.path / "a.partial"));
}

TEST_CASE("a broken stream goes on where it broke") {
  Folder folder;
  FakeService service = TwoFiles();
  service.files.erase("adapter_config.json");
  service.breaks = 3;
  REQUIRE(service.Get(folder.path / "a/").ok());
  CHECK(Read(folder.path / "a/adapter_model.safetensors") ==
        service.files["adapter_model.safetensors"]);
  CHECK(service.offsets.back() > 0);
}

TEST_CASE("a download that gave up leaves no directory, and the next one goes on") {
  Folder folder;
  FakeService service = TwoFiles();
  service.breaks = 100;
  const absl::Status status = service.Get(folder.path / "a");
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  const std::string told(status.message());
  CHECK(told.find("stays in " + (folder.path / "a.partial").string() + ": the same command") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(folder.path / "a"));
  service.breaks = 0;
  service.offsets.clear();
  REQUIRE(service.Get(folder.path / "a").ok());
  CHECK(service.offsets.front() > 0);
}

TEST_CASE("damaged bytes are fetched again, and never kept") {
  Folder folder;
  FakeService service = TwoFiles();
  service.damaged = 1;
  REQUIRE(service.Get(folder.path / "a").ok());
  CHECK(Read(folder.path / "a/adapter_config.json") == "{}");

  service.damaged = 100;
  CHECK(ReasonOf(service.Get(folder.path / "b")) == "CHECKSUM_MISMATCH");
  CHECK_FALSE(fs::exists(folder.path / "b"));
}

TEST_CASE("of two who fetch into one directory, one is told so, and the other goes on") {
  Folder folder;
  FakeService service = TwoFiles();
  absl::Status second;
  service.before = [&] {
    FakeService other = TwoFiles();
    second = other.Get(folder.path / "a");
  };
  REQUIRE(service.Get(folder.path / "a").ok());
  CHECK(ReasonOf(second) == "DIRECTORY_EXISTS");
  CHECK(second.message().find("another lora is fetching into it") != std::string::npos);
  CHECK(Read(folder.path / "a/adapter_config.json") == "{}");
}

TEST_CASE("what lies in the way stays") {
  Folder folder;
  FakeService service = TwoFiles();
  fs::create_directories(folder.path / "empty");
  CHECK(service.Get(folder.path / "empty").ok());
  CHECK(ReasonOf(service.Get(folder.path / "empty")) == "DIRECTORY_EXISTS");
  std::ofstream(folder.path / "file") << "precious";
  CHECK(ReasonOf(service.Get(folder.path / "file")) == "DIRECTORY_EXISTS");
  CHECK(Read(folder.path / "file") == "precious");
}

TEST_CASE("large files come at once, and what is wrong with one is said") {
  Folder folder;
  FakeService service;
  for (const char* name : {"a", "b", "c", "d"}) {
    service.files[name] = std::string(17 << 20, *name);
  }
  service.files["small"] = "x";
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0, most = 0;
  bool refuses = false;
  const Fetch fetch = [&](const RemoteFile& file, std::int64_t offset, const Sink& sink) {
    {
      std::unique_lock lock(mutex);
      most = std::max(most, ++inside);
      changed.notify_all();
      if (file.name != "small") {
        CHECK(changed.wait_for(lock, std::chrono::seconds(20), [&] { return most == 3; }));
      }
      if (refuses && file.name == "b") {
        --inside;
        return absl::FailedPreconditionError("b has changed");
      }
    }
    const bool all = sink(absl::string_view(service.files.at(file.name)).substr(offset));
    std::lock_guard lock(mutex);
    --inside;
    return all ? absl::OkStatus() : absl::CancelledError("the sink is full");
  };
  REQUIRE(DownloadDirectory(folder.path / "all", service.List(), fetch).ok());
  CHECK(most == 3);
  for (const auto& [name, bytes] : service.files) CHECK(Read(folder.path / "all" / name) == bytes);

  most = 0;
  refuses = true;
  const absl::Status status = DownloadDirectory(folder.path / "none", service.List(), fetch);
  CHECK(status.message() == "b has changed");
  CHECK_FALSE(fs::exists(folder.path / "none"));
}

}  // namespace
}  // namespace lorad::client
