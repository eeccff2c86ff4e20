// Shards of a small adapter, and how they are read.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "storage/adapters/shard_reader.h"
#include "tests/storage/published_configs.h"
#include "tests/storage/safetensors_bytes.h"

namespace lorad::storage {

inline PeftConfig Config() {
  PeftConfig config;
  config.rank = 4;
  config.target_modules = {"q_proj", "v_proj"};
  return config;
}

inline const CheckpointState kState{"job-1", 7, "cpu-abc"};

inline std::vector<TensorEntry> ShardEntries() {
  std::vector<TensorEntry> entries;
  for (const NamedShape& tensor :
       PeftTensors(ResolveTargets(Config(), DescribeModel(kTiny).value()).modules)) {
    for (const char* suffix : {"", kFirstMomentSuffix, kSecondMomentSuffix}) {
      entries.push_back({tensor.name + suffix, TensorType::kF32, tensor.shape});
    }
  }
  return entries;
}

inline std::string ShardBytes() { return SafetensorsOf(ShardEntries(), ShardMetadata(kState)); }

inline absl::StatusOr<std::string> Read(absl::StatusOr<std::unique_ptr<ShardReader>> reader) {
  if (!reader.ok()) return reader.status();
  std::string bytes;
  for (;;) {
    const absl::StatusOr<std::string> piece = (*reader)->Next();
    if (!piece.ok()) return piece.status();
    REQUIRE(piece->size() <= size_t{1} << 20);
    if (piece->empty()) return bytes;
    bytes += *piece;
  }
}

}  // namespace lorad::storage
