#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace lorad::client {

// Refuses what the parser would take for another number, or for none, of any option of the app and
// its commands: whole numbers that 64 bits do not hold, for which it takes the largest that they
// do, and "", for a script whose variable is not set would leave out a limit. Options that have a
// range of their own (range.h) do so themselves. To be called once all are added.
void RefuseWrongNumbers(CLI::App& app);

// What is wrong with a command line (without the program's name), as an error USAGE that names the
// command or option that is nearest to an unknown one, and the help of the command that was meant.
absl::Status UsageError(const CLI::App& app, const CLI::ParseError& wrong,
                        const std::vector<std::string>& arguments);

// PrintError as one line of JSON, for --json: {"error": {"reason": "...", "message": "...",
// "violations": ["adapter.rank: must be ..."]}}. REQUIRES: not ok.
void PrintErrorJson(const absl::Status& status, std::ostream& out);

// As docs/api.md has it: 0 done, 2 wrong usage, 1 everything else.
int ExitStatus(const absl::Status& status);

}  // namespace lorad::client
