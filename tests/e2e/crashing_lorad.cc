// lorad serve on a file system and a store that end the process, as SIGKILL does, at the N-th point
// of their effects on the disk: before each effect, in the midst of a write, and after it.
//
// usage: crashing_lorad N DATA_DIR WORKER_BINARY CPU_WORKERS

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/serve.h"
#include "storage/files/files.h"

namespace lorad {
namespace {

// Counts points and dies at one of them.
class Fuse {
 public:
  explicit Fuse(int64_t points) : left_(points) {}
  void Pass() {
    if (left_.fetch_sub(1) == 1) kill(getpid(), SIGKILL);
  }
  // Whether the next point is the last.
  bool IsNext() const { return left_.load() == 1; }

 private:
  std::atomic<int64_t> left_;
};

class CrashingFile : public storage::WritableFile {
 public:
  CrashingFile(std::unique_ptr<storage::WritableFile> file, Fuse& fuse)
      : file_(std::move(file)), fuse_(fuse) {}

  absl::Status Append(std::string_view bytes) override {
    fuse_.Pass();
    // A write that is cut in the middle.
    if (fuse_.IsNext()) (void)file_->Append(bytes.substr(0, bytes.size() / 2));
    fuse_.Pass();
    return After(file_->Append(bytes));
  }
  absl::Status Sync() override {
    fuse_.Pass();
    return After(file_->Sync());
  }
  absl::Status Close() override { return file_->Close(); }

 private:
  absl::Status After(absl::Status status) {
    fuse_.Pass();
    return status;
  }

  const std::unique_ptr<storage::WritableFile> file_;
  Fuse& fuse_;
};

class CrashingFiles : public storage::Files {
 public:
  CrashingFiles(storage::Files& files, Fuse& fuse) : files_(files), fuse_(fuse) {}

  absl::StatusOr<std::unique_ptr<storage::WritableFile>> Create(const std::string& path) override {
    fuse_.Pass();
    return Wrap(files_.Create(path));
  }
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> OpenAppend(
      const std::string& path) override {
    fuse_.Pass();
    return Wrap(files_.OpenAppend(path));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    fuse_.Pass();
    return After(files_.Rename(from, to));
  }
  absl::Status SyncDirectory(const std::string& path) override {
    fuse_.Pass();
    return After(files_.SyncDirectory(path));
  }
  absl::Status Remove(const std::string& path) override {
    fuse_.Pass();
    return After(files_.Remove(path));
  }
  absl::Status MakeDirectory(const std::string& path) override {
    fuse_.Pass();
    return After(files_.MakeDirectory(path));
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return files_.List(path);
  }
  absl::StatusOr<std::string> ReadAll(const std::string& path, uint64_t limit) override {
    return files_.ReadAll(path, limit);
  }
  absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        uint64_t length) override {
    return files_.ReadRange(path, offset, length);
  }
  absl::StatusOr<uint64_t> Size(const std::string& path) override { return files_.Size(path); }
  bool Exists(const std::string& path) override { return files_.Exists(path); }
  bool IsDirectory(const std::string& path) override { return files_.IsDirectory(path); }

 private:
  absl::Status After(absl::Status status) {
    fuse_.Pass();
    return status;
  }
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> Wrap(
      absl::StatusOr<std::unique_ptr<storage::WritableFile>> file) {
    fuse_.Pass();
    if (!file.ok()) return file;
    return std::make_unique<CrashingFile>(*std::move(file), fuse_);
  }

  storage::Files& files_;
  Fuse& fuse_;
};

int Main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: crashing_lorad N DATA_DIR WORKER_BINARY CPU_WORKERS\n");
    return 2;
  }
  Fuse fuse(std::atoll(argv[1]));
  CrashingFiles files(storage::RealFiles(), fuse);
  server::ServeOptions options;
  options.listen = "127.0.0.1:0";
  options.data_dir = argv[2];
  options.workers.binary = argv[3];
  options.workers.choice = {.kind = server::WorkerChoice::Kind::kCpu, .count = std::atoi(argv[4])};
  if (options.workers.choice.count == 0) {
    options.workers.choice.kind = server::WorkerChoice::Kind::kNone;
  }
  const auto pass = [&fuse] { fuse.Pass(); };
  const absl::Status status = server::RunServer(options, files, {pass, pass});
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace lorad

int main(int argc, char** argv) { return lorad::Main(argc, argv); }
