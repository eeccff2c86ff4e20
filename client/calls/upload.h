#pragma once

#include <filesystem>
#include <fstream>
#include <istream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/calls/transfer.h"

namespace lorad::client {

inline absl::Status Unreadable(const std::string& path) {
  return Error(
      "FILE_UNREADABLE",
      absl::StrCat(path, ": cannot be read; does it exist, is it a file, may you read it?"));
}

inline absl::StatusOr<std::ifstream> OpenFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  if (!file || std::filesystem::is_directory(path, error)) return Unreadable(path);
  return file;
}

// Sends a file as messages that hold a chunk each, below the API's limit of 1 MiB. A stream that
// the server ended early is no error here: its Finish() says why.
template <typename Request, typename Writer>
absl::Status WriteChunks(std::istream& file, const std::string& path, Writer& writer,
                         TransferBar& bar) {
  constexpr std::size_t kChunkBytes = 256 << 10;
  Request request;
  while (file) {
    std::string& chunk = *request.mutable_chunk();
    chunk.resize(kChunkBytes);
    file.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    if (file.bad()) return Unreadable(path);
    chunk.resize(static_cast<std::size_t>(file.gcount()));
    if (!chunk.empty() && !writer.Write(request)) break;
    bar.Add(static_cast<std::int64_t>(chunk.size()));
  }
  return absl::OkStatus();
}

}  // namespace lorad::client
