// A data directory with datasets of tokens, and a tiny base model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/files/files.h"
#include "tests/storage/published_configs.h"
#include "tests/storage/temp_directory.h"

namespace lorad::server::feed {

struct House {
  storage::TempDirectory directory;

  House() {
    directory.Write("model/config.json", storage::kTiny);
    directory.Write("model/random_weights.json", R"({"seed": 1})");
  }
  std::string model() const { return directory / "model"; }

  // A row for each length; row i's tokens are all i % 16, the first `prompt` are not trained on.
  std::string AddTokens(const std::string& name, const std::vector<int64_t>& lengths,
                        int64_t prompt = 1) const {
    std::string rows;
    for (size_t i = 0; i < lengths.size(); ++i) {
      std::string ids, labels;
      for (int64_t t = 0; t < lengths[i]; ++t) {
        ids += (t == 0 ? "" : ",") + std::to_string(i % 16);
        labels += (t == 0 ? "" : ",") + (t < prompt ? "-100" : std::to_string(i % 16));
      }
      rows += "{\"input_ids\":[" + ids + "],\"labels\":[" + labels + "]}\n";
    }
    directory.Write(name, rows);
    return name;
  }
};

}  // namespace lorad::server::feed
