// lora generate, lora evaluate

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/answers/ask.h"
#include "client/answers/exact_match.h"
#include "client/calls/error.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/text/table.h"
#include "lorad/v1/datasets.grpc.pb.h"

namespace lorad::client {
namespace {

using Json = nlohmann::ordered_json;
using lorad::v1::GenerateResponse;

constexpr int kRowsAtOnce = 64;
constexpr std::size_t kCellBytes = 60;

struct Options {
  std::string source;
  std::vector<std::string> with;
  std::string prompt;
  std::string system;
  bool raw = false;
  int max_tokens = 128;
  double temperature = 0;
  double top_p = 0;
  std::uint64_t seed = 0;
  std::vector<std::string> stop;
  int timeout_s = 600;
  // evaluate:
  std::string dataset;
  std::string exact_match;
  std::int64_t limit = 0;
};

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void SetHow(const Options& options, v1::Ask* ask) {
  ask->set_max_tokens(options.max_tokens);
  ask->set_temperature(options.temperature);
  ask->set_top_p(options.top_p);
  ask->set_seed(options.seed);
  for (const std::string& stop : options.stop) ask->add_stop(stop);
}

void SayWaiting(const GenerateResponse& message) {
  if (!message.waiting().empty()) std::cerr << "waits: " << message.waiting() << "\n";
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

// ---- generate ----

absl::Status ReadPrompt(Options& options) {
  if (options.prompt != "-") return absl::OkStatus();
  options.prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  return std::cin.bad() ? Error("INPUT_LOST", "stdin cannot be read") : absl::OkStatus();
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

absl::Status Generate(Session& session, Options& options) {
  if (absl::Status status = ReadPrompt(options); !status.ok()) return status;
  std::vector<std::string> sources = {options.source};
  sources.insert(sources.end(), options.with.begin(), options.with.end());
  v1::GenerateRequest request;
  for (const std::string& source : sources) {
    v1::Ask& ask = *request.add_asks();
    if (absl::Status status = SetSource(session, source, &ask); !status.ok()) return status;
    SetPrompt(options, &ask);
    SetHow(options, &ask);
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
  if (!status.ok() || streams) return status;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (session.json) {
      std::cout << Dump(ToJson(sources[i], answers[i])) << "\n";
    } else {
      std::cout << "== " << sources[i] << "\n" << answers[i].text << "\n";
    }
  }
  return status;
}

// ---- evaluate ----

// A cell of a table: one line, of whole characters.
std::string Cell(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  if (text.size() <= kCellBytes) return text;
  std::size_t end = kCellBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "..";
}

struct Score {
  std::int64_t rows = 0;
  std::int64_t right = 0;
  std::int64_t without = 0;  // an answer of their own that the expression finds

  double exact_match() const {
    return rows > 0 ? static_cast<double>(right) / static_cast<double>(rows) : 0;
  }
};

std::string ScoreText(const Score& score) {
  return absl::StrCat(score.right, " of ", score.rows, " right (",
                      CountText(100 * score.exact_match()), " %)");
}

void Judge(const Session& session, const ExactMatch& match, std::int64_t row,
           const Answered& answer, Score* score, Table* wrong) {
  const auto expected = match.Find(answer.reference);
  const auto got = match.Find(answer.text);
  const bool right = expected.has_value() && got == expected;
  score->rows++;
  score->right += right ? 1 : 0;
  score->without += expected.has_value() ? 0 : 1;
  if (session.json) {
    Json line = {{"row", row},
                 {"right", right},
                 {"expected", expected ? Json(*expected) : Json()},
                 {"got", got ? Json(*got) : Json()},
                 {"answer", answer.text},
                 {"finish_reason", GenerateResponse::FinishReason_Name(answer.finish)}};
    std::cout << Dump(line) << "\n" << std::flush;
  } else if (!right) {
    wrong->Add({absl::StrCat(row), Cell(expected.value_or("-")),
                got ? Cell(*got)
                    : absl::StrCat("- (", GenerateResponse::FinishReason_Name(answer.finish),
                                   "): ", Cell(answer.text))});
  }
}

// A line that is written over where somebody looks on, else one now and then.
class Progress {
 public:
  explicit Progress(std::int64_t rows) : rows_(rows), terminal_(isatty(STDERR_FILENO) == 1) {}

  void Answered(std::int64_t answered) {
    if (terminal_) std::cerr << "\r" << answered << "/" << rows_ << " answered" << std::flush;
  }
  void Judged(const Score& score) {
    std::cerr << (terminal_ ? "\r" : "") << score.rows << "/" << rows_ << " answered, "
              << ScoreText(score) << (terminal_ ? "" : "\n") << std::flush;
  }
  void End() {
    if (terminal_) std::cerr << "\n";
  }

 private:
  const std::int64_t rows_;
  const bool terminal_;
};

absl::Status EvaluateRows(Session& session, const Options& options, const ExactMatch& match,
                          const v1::Ask& how, std::int64_t rows, Score* score, Table* wrong) {
  Progress progress(rows);
  for (std::int64_t begin = 0; begin < rows; begin += kRowsAtOnce) {
    v1::GenerateRequest request;
    const std::int64_t end = std::min<std::int64_t>(begin + kRowsAtOnce, rows);
    for (std::int64_t row = begin; row < end; ++row) {
      v1::Ask& ask = *request.add_asks() = how;
      ask.mutable_row()->set_dataset(options.dataset);
      ask.mutable_row()->set_row(row);
    }
    std::vector<Answered> answers;
    std::int64_t answered = begin;
    const absl::Status status = client::Generate(
        session, request, options.timeout_s,
        [&](const GenerateResponse& message) {
          SayWaiting(message);
          if (message.finish_reason() == GenerateResponse::FINISH_REASON_UNSPECIFIED) return;
          progress.Answered(++answered);
        },
        &answers);
    if (!status.ok()) {
      progress.End();
      return status;
    }
    for (std::int64_t row = begin; row < end; ++row) {
      Judge(session, match, row, answers[static_cast<std::size_t>(row - begin)], score, wrong);
    }
    progress.Judged(*score);
  }
  progress.End();
  return absl::OkStatus();
}

absl::Status Evaluate(Session& session, Options& options) {
  const absl::StatusOr<ExactMatch> match = ExactMatch::Parse(options.exact_match);
  if (!match.ok()) return match.status();
  v1::Ask how;
  if (absl::Status status = SetSource(session, options.source, &how); !status.ok()) return status;
  SetHow(options, &how);
  v1::GetDatasetRequest get;
  get.set_name(options.dataset);
  v1::Dataset dataset;
  if (absl::Status status = Call(session, &v1::Datasets::Stub::GetDataset, get, dataset);
      !status.ok()) {
    return status;
  }
  const std::int64_t rows =
      options.limit > 0 ? std::min(options.limit, std::int64_t{dataset.rows()}) : dataset.rows();
  Score score;
  Table wrong({"ROW", "EXPECTED", "GOT"});
  if (absl::Status status = EvaluateRows(session, options, *match, how, rows, &score, &wrong);
      !status.ok()) {
    return status;
  }
  if (session.json) {
    const Json line = {{"rows", score.rows},
                       {"right", score.right},
                       {"without_reference", score.without},
                       {"exact_match", score.exact_match()}};
    std::cout << Dump(line) << "\n";
    return absl::OkStatus();
  }
  if (score.right < score.rows) wrong.Print(std::cout);
  std::cout << "exact match: " << ScoreText(score) << "\n";
  if (score.without > 0) {
    std::cerr << "warning: in the own answers of " << score.without
              << " rows the expression finds nothing, so none of theirs can be right\n";
  }
  return absl::OkStatus();
}

void AddHow(CLI::App& command, Options& options) {
  command.add_option("--max-tokens", options.max_tokens, "Tokens of an answer at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--temperature", options.temperature, "0: always the most likely token")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--top-p", options.top_p,
                     "Of the most likely tokens that have so much together; 0: of all");
  command.add_option("--seed", options.seed, "With a temperature: the same again, the same answer");
  command.add_option("--stop", options.stop, "A text before which an answer ends; may be repeated")
      ->allow_extra_args(false);
  command.add_option("--timeout", options.timeout_s, "Seconds to wait for the answers of a call")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

constexpr char kSource[] = "JOB, JOB/STEP, MODEL, or MODEL+ADAPTER (an imported one)";

}  // namespace

void AddGenerateCommands(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();
  CLI::App& generate = *app.add_subcommand("generate", "Ask a job's adapter, or a base model");
  generate.add_option("source", options->source, kSource)->required();
  generate.add_option("prompt", options->prompt, "What is asked; - reads stdin")->required();
  generate.add_option("--with", options->with, "Ask this one beside it, too; may be repeated")
      ->allow_extra_args(false);
  generate.add_flag("--raw", options->raw, "The prompt as it is, without the chat template");
  generate.add_option("--system", options->system, "A system message before the prompt");
  AddHow(generate, *options);
  generate.callback([&session, options] {
    if (options->raw && !options->system.empty()) throw CLI::ExcludesError("--system", "--raw");
    session.action = [&session, options] { return Generate(session, *options); };
  });

  const auto judged = std::make_shared<Options>();
  judged->max_tokens = 256;
  CLI::App& evaluate =
      *app.add_subcommand("evaluate", "Count the answers to a dataset's rows that are right");
  evaluate.add_option("source", judged->source, kSource)->required();
  evaluate.add_option("--dataset", judged->dataset, "Whose rows are asked")->required();
  evaluate
      .add_option("--exact-match", judged->exact_match,
                  "A regular expression: its first group is compared, e.g. '#### (.*)'")
      ->required();
  evaluate.add_option("--limit", judged->limit, "Only the first rows")->check(CLI::PositiveNumber);
  AddHow(evaluate, *judged);
  evaluate.callback([&session, judged] {
    session.action = [&session, judged] { return Evaluate(session, *judged); };
  });
}

}  // namespace lorad::client
