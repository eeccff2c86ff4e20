// What the commands that ask have in common: how answers are made, and who is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lorad/v1/adapters.pb.h"

namespace CLI {
class App;
}

namespace lorad::client {

inline constexpr char kSourceHelp[] = "JOB, JOB/STEP, MODEL, or MODEL+ADAPTER (an imported one)";

struct AskOptions {
  std::string source;
  int max_tokens = 128;
  double temperature = 0;
  double top_p = 0;
  std::uint64_t seed = 0;
  std::vector<std::string> stop;
  int timeout_s = 600;
};

// The options, and what they may be. They live as long as the command.
void AddAskOptions(CLI::App& command, AskOptions& options);
// Rows of a command that has so many at most.
void AddLimit(CLI::App& command, std::int64_t& limit);

// INVALID_ARGUMENT: a stop text is no UTF-8.
absl::Status SetHow(const AskOptions& options, v1::Ask* ask);

}  // namespace lorad::client
