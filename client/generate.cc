// lora generate

#include <CLI/CLI.hpp>
#include <cstddef>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/answers/ask.h"
#include "client/answers/options.h"
#include "client/calls/error.h"
#include "client/calls/session.h"
#include "client/calls/utf8.h"
#include "client/inputs/text_file.h"

namespace lorad::client {
namespace {

using Json = nlohmann::ordered_json;
using lorad::v1::GenerateResponse;

struct Options : AskOptions {
  std::vector<std::string> with;
  std::string prompt;
  std::string system;
  bool raw = false;
};

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json ToJson(const std::string& source, const Answered& answer) {
  return {{"source", source},
          {"step", answer.step},
          {"text", answer.text},
          {"finish_reason", GenerateResponse::FinishReason_Name(answer.finish)},
          {"prompt_tokens", answer.prompt_tokens},
          {"completion_tokens", answer.completion_tokens},
          {"token_ids", answer.token_ids},
          {"log_probabilities", answer.log_probabilities}};
}

absl::Status ReadPrompt(Options& options) {
  if (options.prompt == "-") {
    absl::StatusOr<std::string> text = ReadText("-");
    if (!text.ok()) return text.status();
    options.prompt = *std::move(text);
  }
  if (absl::Status status = CheckText("the prompt", options.prompt); !status.ok()) return status;
  return CheckText("the text of --system", options.system);
}

void SetPrompt(const Options& options, v1::Ask* ask) {
  if (options.raw) return ask->set_text(options.prompt);
  Json messages = Json::array();
  if (!options.system.empty()) {
    messages.push_back({{"role", "system"}, {"content", options.system}});
  }
  messages.push_back({{"role", "user"}, {"content", options.prompt}});
  ask->set_messages_json(Dump(messages));
}

// An answer that was to be longer than the model has positions for.
void SayCutOff(const std::string& source, const Answered& answer, int max_tokens) {
  if (answer.finish != GenerateResponse::LENGTH || answer.completion_tokens >= max_tokens) return;
  std::cerr << "warning: the answer of " << source << " ended at the model's last position: behind "
            << "the prompt's " << answer.prompt_tokens << " tokens " << answer.completion_tokens
            << " have a place, not the " << max_tokens << " of --max-tokens\n";
}

absl::Status Generate(Session& session, Options& options) {
  if (absl::Status status = ReadPrompt(options); !status.ok()) return status;
  std::vector<std::string> sources = {options.source};
  sources.insert(sources.end(), options.with.begin(), options.with.end());
  v1::GenerateRequest request;
  for (const std::string& source : sources) {
    v1::Ask& ask = *request.add_asks();
    if (absl::Status status = SetHow(options, &ask); !status.ok()) return status;
    if (absl::Status status = SetSource(session, source, &ask); !status.ok()) return status;
    SetPrompt(options, &ask);
  }
  const bool streams = sources.size() == 1 && !session.json;
  std::vector<Answered> answers;
  const absl::Status status = client::Generate(
      session, request, options.timeout_s,
      [&](const GenerateResponse& message) {
        SayWaiting(message);
        if (streams) std::cout << message.text() << std::flush;
      },
      &answers);
  if (streams && (status.ok() || !answers[0].text.empty())) std::cout << "\n";
  for (std::size_t i = 0; i < sources.size(); ++i) {
    SayCutOff(sources[i], answers[i], options.max_tokens);
  }
  if (streams) return status;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    // Of a call that breaks off, what has come.
    if (!status.ok() && answers[i].token_ids.empty()) continue;
    if (session.json) {
      std::cout << Dump(ToJson(sources[i], answers[i])) << "\n";
    } else {
      std::cout << "== " << sources[i] << "\n" << answers[i].text << "\n";
    }
  }
  return status;
}

}  // namespace

void AddGenerateCommand(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();
  CLI::App& generate = *app.add_subcommand("generate", "Ask a job's adapter, or a base model");
  generate.add_option("source", options->source, kSourceHelp)->required();
  generate.add_option("prompt", options->prompt, "What is asked; - reads stdin")->required();
  generate.add_option("--with", options->with, "Ask this one beside it, too; may be repeated")
      ->allow_extra_args(false);
  generate.add_flag("--raw", options->raw, "The prompt as it is, without the chat template");
  generate.add_option("--system", options->system, "A system message before the prompt");
  AddAskOptions(generate, *options);
  generate.callback([&session, options] {
    if (options->raw && !options->system.empty()) throw CLI::ExcludesError("--system", "--raw");
    session.action = [&session, options] { return Generate(session, *options); };
  });
}

}  // namespace lorad::client
