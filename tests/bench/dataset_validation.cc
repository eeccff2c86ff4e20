// CreateDataset's work on the rows of an upload: chunks of 1 MiB through the scanner and the hash,
// as they come from the network. Prints MB/s, beside what the hash alone takes, and what memory it
// grew by; fails where that is not bounded or a row is lost.
//
//   bazel run -c opt //tests/bench:dataset_validation -- [--megabytes N]
#include <chrono>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "storage/datasets/dataset.h"
#include "storage/files/sha256.h"
#include "worker/host/process.h"

namespace lorad::storage {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
constexpr int64_t kGrowthBytesMax = 24 << 20;

// Rows of the kind that people have, each another length; every 1000th is a bad one.
class Rows {
 public:
  bool Bad(int64_t row) const { return row % 1000 == 999; }

  std::string Next() {
    const int64_t row = count_++;
    if (Bad(row)) return "{\"messages\": [{\"role\": \"user\"}]}\n";
    std::string text;
    for (int64_t i = 0; i < 4 + row % 13; ++i) {
      text += "She had " + std::to_string(row * 7 + i) +
              " apples \\u2013 \\\"green\\\" – and gave " + std::to_string(i) + " away.\\n";
    }
    return "{\"messages\": [{\"role\": \"user\", \"content\": \"" + text +
           "\"}, {\"role\": \"assistant\", \"content\": \"#### " + std::to_string(row) + "\"}]}\n";
  }
  int64_t count() const { return count_; }

 private:
  int64_t count_ = 0;
};

template <class Fn>
double Seconds(Fn fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int Run(int64_t megabytes) {
  Rows rows;
  DatasetScanner scanner;
  Sha256 hash;
  std::string pending;
  double scan_seconds = 0, hash_seconds = 0;
  int64_t bytes = 0;
  const int64_t before_bytes = worker::PeakResidentBytes();
  while (bytes < megabytes * 1'000'000) {
    while (pending.size() < kChunkBytes) pending += rows.Next();
    const std::string chunk = pending.substr(0, kChunkBytes);
    pending.erase(0, kChunkBytes);
    absl::Status status;
    scan_seconds += Seconds([&] { status = scanner.Add(chunk); });
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      return 1;
    }
    hash_seconds += Seconds([&] { hash.Update(chunk); });
    bytes += static_cast<int64_t>(chunk.size());
  }
  if (!scanner.Add(pending).ok()) return 1;
  const DatasetReport report = scanner.Finish();
  const int64_t grown_bytes = worker::PeakResidentBytes() - before_bytes;
  const double megabyte = 1e6;
  std::printf(
      "%lld rows, %.0f MB: scanned at %.0f MB/s, hashed at %.0f MB/s; memory grew by %.1f MB\n",
      static_cast<long long>(report.rows), static_cast<double>(bytes) / megabyte,
      static_cast<double>(bytes) / megabyte / scan_seconds,
      static_cast<double>(bytes) / megabyte / hash_seconds,
      static_cast<double>(grown_bytes) / megabyte);
  const bool complete = report.rows == rows.count() && report.error_count == rows.count() / 1000 &&
                        report.format == DatasetFormat::kMessages;
  if (!complete) std::fprintf(stderr, "rows or errors were lost\n");
  if (grown_bytes > kGrowthBytesMax) std::fprintf(stderr, "memory is not bounded\n");
  return complete && grown_bytes <= kGrowthBytesMax ? 0 : 1;
}

}  // namespace
}  // namespace lorad::storage

int main(int argc, char** argv) {
  CLI::App app("Validation of an upload's rows");
  int64_t megabytes = 100;
  app.add_option("--megabytes", megabytes, "bytes to make up and scan")->check(CLI::Range(1, 4000));
  CLI11_PARSE(app, argc, argv);
  return lorad::storage::Run(megabytes);
}
