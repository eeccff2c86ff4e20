#include "storage/adapters/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/files/sha256.h"

namespace lorad::storage {
namespace {

constexpr int kFormatVersion = 1;
constexpr uint64_t kTextLimit = uint64_t{1} << 20;
constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

absl::Status Invalid(std::string_view message) { return Refuse("CHECKPOINT_INVALID", message); }

absl::StatusOr<std::vector<ListedFile>> Parse(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format_version", nlohmann::json()) != kFormatVersion ||
      !json.contains("files") || !json["files"].is_object()) {
    return Invalid("not a manifest");
  }
  std::vector<ListedFile> files;
  for (const auto& [name, file] : json["files"].items()) {
    if (!file.is_object() || !file.contains("sha256") || !file["sha256"].is_string() ||
        !file.contains("size_bytes") || !file["size_bytes"].is_number_unsigned()) {
      return Invalid(absl::StrCat("no size and sha256 for ", Quoted(name)));
    }
    files.push_back({name, file["size_bytes"].get<uint64_t>(), file["sha256"].get<std::string>()});
  }
  return files;  // sorted, as a JSON object's keys are
}

}  // namespace

std::string ManifestText(const std::vector<ListedFile>& files) {
  nlohmann::json table = nlohmann::json::object();
  for (const ListedFile& file : files) {
    table[file.name] = {{"sha256", file.sha256}, {"size_bytes", file.size_bytes}};
  }
  const nlohmann::json json = {{"files", table}, {"format_version", kFormatVersion}};
  return json.dump(2) + "\n";
}

absl::StatusOr<std::vector<ListedFile>> ReadManifest(Files& files, const std::string& directory) {
  const std::string path = JoinPath(directory, kManifestFile);
  const absl::StatusOr<std::string> text = files.ReadAll(path, kTextLimit);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::vector<ListedFile>> listed = Parse(*text);
  if (!listed.ok()) return At(path, listed.status());
  return listed;
}

absl::StatusOr<std::string> ListedSha256(Files& files, const std::string& directory,
                                         std::string_view name) {
  const std::string path = JoinPath(directory, kManifestFile);
  if (!files.Exists(path)) return std::string();
  const absl::StatusOr<std::vector<ListedFile>> listed = ReadManifest(files, directory);
  if (!listed.ok()) return listed.status();
  const auto found = std::ranges::find(*listed, name, &ListedFile::name);
  if (found != listed->end()) return found->sha256;
  return At(path, Invalid(absl::StrCat("it does not list ", Quoted(name))));
}

absl::StatusOr<std::string> HashOf(Files& files, const std::string& path) {
  Sha256 sha;
  for (uint64_t offset = 0;;) {
    const absl::StatusOr<std::string> chunk = files.ReadRange(path, offset, kChunkBytes);
    if (!chunk.ok()) return chunk.status();
    sha.Update(*chunk);
    offset += chunk->size();
    if (chunk->size() < kChunkBytes) return sha.HexDigest();
  }
}

absl::Status Corrupt(std::string_view message) {
  absl::Status status = absl::DataLossError(Absl(message));
  status.SetPayload(Absl(kReasonPayload), absl::Cord("CHECKPOINT_CORRUPT"));
  return status;
}

absl::Status CheckListed(const std::string& path, const std::string& sha256,
                         const std::string& listed) {
  if (listed.empty() || sha256 == listed) return absl::OkStatus();
  return Corrupt(absl::StrCat(path, ": its sha256 is not the manifest's"));
}

}  // namespace lorad::storage
