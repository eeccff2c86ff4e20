#include "client/calls/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/calls/range.h"
#include "client/text/nearest.h"

namespace lorad::client {
namespace {

// Where a command line leads: the command that its words name, and the word that names none.
struct Walk {
  const CLI::App* command = nullptr;
  std::string path;  // "lora dataset"
  std::string unknown;
};

// The first words are commands, up to one that has none of its own. Before the last command there
// is one option alone that takes a value.
Walk WalkThrough(const CLI::App& app, const std::vector<std::string>& arguments) {
  Walk walk{&app, app.get_name(), ""};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--server") {
      ++i;  // its value
      continue;
    }
    if (absl::StartsWith(arguments[i], "-")) continue;
    const auto commands = walk.command->get_subcommands([](const CLI::App*) { return true; });
    const auto named = std::ranges::find_if(
        commands, [&](const CLI::App* command) { return command->get_name() == arguments[i]; });
    if (named != commands.end()) {
      walk.command = *named;
      absl::StrAppend(&walk.path, " ", arguments[i]);
      continue;
    }
    // Groups of options are commands without a name.
    const bool has_commands = std::ranges::any_of(
        commands, [](const CLI::App* command) { return !command->get_name().empty(); });
    if (has_commands) walk.unknown = arguments[i];
    break;
  }
  return walk;
}

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_name().empty()) names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> OptionsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

// The first option that the command does not have, or "".
std::string UnknownOption(const std::vector<std::string>& known,
                          const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (name.size() <= 2 || !absl::StartsWith(name, "--")) continue;
    if (std::ranges::count(known, name) == 0) return name;
  }
  return "";
}

// What the parser would refuse in words of its own. `parse` is what it calls.
template <class Number>
CLI::Validator Whole(Number (*parse)(const char*, char**, int)) {
  using Limits = std::numeric_limits<Number>;
  return CLI::Validator(
      [parse](std::string& value) {
        errno = 0;
        char* end = nullptr;
        parse(value.c_str(), &end, 0);
        const bool whole = *end == '\0' && (Limits::min() < 0 || value[0] != '-');
        return whole && errno != ERANGE
                   ? std::string()
                   : absl::StrCat("must be a whole number from ", Limits::min(), " to ",
                                  Limits::max(), ", got '", value, "'");
      },
      "");
}

}  // namespace

void RefuseWrongNumbers(CLI::App& app) {
  const CLI::Validator given(
      [](std::string& value) { return std::string(value.empty() ? "needs a number" : ""); }, "");
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (HasRange(type)) continue;
    const auto is = [&](const char* kind) { return type.starts_with(kind); };
    // transform() goes before what the option checks itself, check() behind the unit that it takes.
    const bool has_unit = type.find("SIZE") != std::string::npos;
    const auto expect = [&](const CLI::Validator& whole) {
      has_unit ? option->check(whole) : option->transform(whole);
    };
    if (is("INT")) expect(Whole(std::strtoll));
    if (is("UINT")) expect(Whole(std::strtoull));
    if (is("INT") || is("UINT") || is("FLOAT")) option->transform(given);
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    RefuseWrongNumbers(*command);
  }
}

absl::Status UsageError(const CLI::App& app, const CLI::ParseError& wrong,
                        const std::vector<std::string>& arguments) {
  const Walk walk = WalkThrough(app, arguments);
  const std::string help = absl::StrCat("; see `", walk.path, " --help`");
  const auto said = [&](const std::string& what, const std::string& near) {
    const std::string meant = near.empty() ? "" : absl::StrCat("; did you mean `", near, "`?");
    return Error("USAGE", absl::StrCat(what, meant, help));
  };
  if (!walk.unknown.empty()) {
    const std::string near = Nearest(walk.unknown, CommandsOf(*walk.command));
    return said(absl::StrCat("no such command: ", walk.path, " ", walk.unknown),
                near.empty() ? "" : absl::StrCat(walk.path, " ", near));
  }
  const bool extras = dynamic_cast<const CLI::ExtrasError*>(&wrong) != nullptr;
  const std::vector<std::string> known = OptionsOf(*walk.command);
  const std::string option = extras ? UnknownOption(known, arguments) : "";
  if (option.empty()) return said(wrong.what(), "");
  return said(absl::StrCat(walk.path, " has no option ", option), Nearest(option, known));
}

void PrintErrorJson(const absl::Status& status, std::ostream& out) {
  std::stringstream printed;
  PrintError(status, printed);
  std::string line;
  std::getline(printed, line);
  nlohmann::ordered_json violations = nlohmann::ordered_json::array();
  while (std::getline(printed, line)) violations.push_back(line.substr(2));
  const nlohmann::ordered_json error = {{"reason", ReasonOf(status)},
                                        {"message", std::string(status.message())},
                                        {"violations", violations}};
  const nlohmann::ordered_json whole = {{"error", error}};
  // One line of ASCII, whatever the message holds.
  out << whole.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << "\n";
}

int ExitStatus(const absl::Status& status) {
  if (status.ok()) return 0;
  return ReasonOf(status) == "USAGE" ? 2 : 1;
}

}  // namespace lorad::client
