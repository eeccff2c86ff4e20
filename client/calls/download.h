#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/calls/transfer.h"

namespace lorad::client {

// A file to fetch, as the service describes it.
struct RemoteFile {
  std::string name;
  std::int64_t size_bytes = 0;
  std::string sha256;  // empty: it is not known before; `fetch` then checks what comes
};

// Takes bytes in order; false ends the transfer.
using Sink = std::function<bool(absl::string_view bytes)>;
// Streams a file from `offset` on into the sink. An error may come after some bytes; DATA_LOSS:
// those were wrong. Several threads may call it at once.
using Fetch =
    std::function<absl::Status(const RemoteFile& file, std::int64_t offset, const Sink& sink)>;

// Makes `directory` hold `files`, whole or not at all. Bytes are gathered in `directory`.partial,
// or in `directory`.`tag`.partial (where no sha256 tells files apart, each set has its own tag),
// which a broken download leaves behind and the next one goes on with; every file's size and sha256
// are checked and its bytes synced before the folder gets its name. A broken stream is taken up
// again a few times. `bar` is told what comes. REQUIRES: file names without a path in them. Errors:
// DIRECTORY_EXISTS, CHECKSUM_MISMATCH, FILE_UNWRITABLE, and what `fetch` says.
absl::Status DownloadDirectory(const std::filesystem::path& directory,
                               const std::vector<RemoteFile>& files, const Fetch& fetch,
                               const std::string& tag = "", TransferBar* bar = nullptr);

}  // namespace lorad::client
