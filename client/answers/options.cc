#include "client/answers/options.h"

#include <CLI/CLI.hpp>
#include <limits>

#include "client/calls/range.h"
#include "client/calls/utf8.h"

namespace lorad::client {
namespace {

// As the service has them (docs/api.md).
constexpr int kTokensMax = 1 << 20;
constexpr double kTemperatureMax = 100;
constexpr int kTimeoutSecondsMax = 30 * 24 * 3600;

}  // namespace

void AddAskOptions(CLI::App& command, AskOptions& options) {
  command.add_option("--max-tokens", options.max_tokens, "Tokens of an answer at most")
      ->check(From(1, kTokensMax))
      ->capture_default_str();
  command.add_option("--temperature", options.temperature, "0: always the most likely token")
      ->check(From(0.0, kTemperatureMax))
      ->capture_default_str();
  command
      .add_option("--top-p", options.top_p,
                  "Of the most likely tokens that have so much together; 0: of all")
      ->check(From(0.0, 1.0));
  command.add_option("--seed", options.seed, "With a temperature: the same again, the same answer")
      ->check(From(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()));
  command.add_option("--stop", options.stop, "A text before which an answer ends; may be repeated")
      ->allow_extra_args(false);
  command.add_option("--timeout", options.timeout_s, "Seconds to wait for the answers of a call")
      ->check(From(1, kTimeoutSecondsMax))
      ->capture_default_str();
}

void AddLimit(CLI::App& command, std::int64_t& limit) {
  command.add_option("--limit", limit, "Only the first rows")
      ->check(From(std::int64_t{1}, std::int64_t{std::numeric_limits<std::int32_t>::max()}));
}

absl::Status SetHow(const AskOptions& options, v1::Ask* ask) {
  ask->set_max_tokens(options.max_tokens);
  ask->set_temperature(options.temperature);
  ask->set_top_p(options.top_p);
  ask->set_seed(options.seed);
  for (const std::string& stop : options.stop) {
    if (absl::Status status = CheckText("a --stop text", stop); !status.ok()) return status;
    ask->add_stop(stop);
  }
  return absl::OkStatus();
}

}  // namespace lorad::client
