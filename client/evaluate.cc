// lora evaluate

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/answers/ask.h"
#include "client/answers/exact_match.h"
#include "client/answers/options.h"
#include "client/calls/error.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/text/table.h"
#include "client/text/width.h"
#include "lorad/v1/datasets.grpc.pb.h"

namespace lorad::client {
namespace {

using Json = nlohmann::ordered_json;
using lorad::v1::GenerateResponse;

constexpr int kRowsAtOnce = 64;
constexpr int kCellColumns = 60;  // at most; on a terminal about half of it
constexpr std::size_t kRowsNamedMax = 20;

struct Options : AskOptions {
  std::string dataset;
  std::string exact_match;
  std::int64_t limit = 0;
};

void PrintLine(const Json& json) {
  std::cout << json.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n" << std::flush;
}

// A cell of the table: one line, so that what is expected leaves room for what came.
std::string Cell(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  const int terminal = TerminalColumns();
  const auto room = static_cast<std::size_t>(
      terminal > 0 ? std::clamp(terminal / 2 - 8, 4, kCellColumns) : kCellColumns);
  return WidthOf(text) <= room ? text : CutToWidth(text, room) + "..";
}

std::string RowsText(std::size_t rows) { return absl::StrCat(rows, rows == 1 ? " row" : " rows"); }

// "2 rows (3, 17)".
std::string Named(std::vector<std::int64_t> rows) {
  std::string text = absl::StrCat(RowsText(rows.size()), " (");
  const bool more = rows.size() > kRowsNamedMax;
  if (more) rows.resize(kRowsNamedMax);
  return absl::StrCat(text, absl::StrJoin(rows, ", "), more ? ", .." : "", ")");
}

struct Score {
  std::int64_t rows = 0;  // that were answered
  std::int64_t right = 0;
  std::vector<std::int64_t> without;    // an answer of their own that the expression finds
  std::vector<std::int64_t> gave_up;    // the expression, on either answer
  std::vector<std::int64_t> not_asked;  // they are too long, say
  absl::Status why_not;                 // the first of these

  double exact_match() const {
    return rows > 0 ? static_cast<double>(right) / static_cast<double>(rows) : 0;
  }
};

std::string ScoreText(const Score& score) {
  return absl::StrCat(
      score.right, " of ", score.rows, " right (", CountText(100 * score.exact_match()), " %)",
      score.not_asked.empty()
          ? ""
          : absl::StrCat(", ", RowsText(score.not_asked.size()), " could not be asked"));
}

void Judge(const Session& session, const ExactMatch& match, std::int64_t row,
           const Answered& answer, Score* score, Table* wrong) {
  const ExactMatch::Found expected = match.Find(answer.reference);
  const ExactMatch::Found got = match.Find(answer.text);
  const bool gave_up = expected.gave_up || got.gave_up;
  const bool right = expected.group.has_value() && got.group == expected.group;
  score->rows++;
  score->right += right ? 1 : 0;
  if (gave_up) score->gave_up.push_back(row);
  if (!expected.group.has_value() && !expected.gave_up) score->without.push_back(row);
  if (session.json) {
    PrintLine({{"row", row},
               {"right", right},
               {"expected", expected.group ? Json(*expected.group) : Json()},
               {"got", got.group ? Json(*got.group) : Json()},
               {"gave_up", gave_up},
               {"answer", answer.text},
               {"finish_reason", GenerateResponse::FinishReason_Name(answer.finish)}});
  } else if (!right) {
    const auto cell = [](const ExactMatch::Found& found) {
      return found.group ? Cell(*found.group) : found.gave_up ? "- (the expression gave up)" : "-";
    };
    wrong->Add({absl::StrCat(row), cell(expected),
                got.group || got.gave_up
                    ? cell(got)
                    : absl::StrCat("- (", GenerateResponse::FinishReason_Name(answer.finish),
                                   "): ", Cell(answer.text))});
  }
}

// A row that cannot be asked: the others are.
void LeaveOut(const Session& session, std::int64_t row, const absl::Status& why, Score* score,
              Table* wrong) {
  if (score->not_asked.empty()) score->why_not = why;
  score->not_asked.push_back(row);
  const std::string message(why.message());
  if (session.json) {
    PrintLine({{"row", row}, {"error", {{"reason", ReasonOf(why)}, {"message", message}}}});
  } else {
    wrong->Add(
        {absl::StrCat(row), "-", absl::StrCat("not asked: ", ReasonOf(why), ": ", Cell(message))});
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

// Those of `rows` that can be asked.
absl::Status AskRows(Session& session, const Options& options, const v1::Ask& how,
                     std::vector<std::int64_t> rows, const ExactMatch& match, Progress& progress,
                     Score* score, Table* wrong) {
  while (!rows.empty()) {
    v1::GenerateRequest request;
    for (const std::int64_t row : rows) {
      v1::Ask& ask = *request.add_asks() = how;
      ask.mutable_row()->set_dataset(options.dataset);
      ask.mutable_row()->set_row(row);
    }
    std::vector<Answered> answers;
    std::int64_t answered = score->rows;
    const absl::Status status = client::Generate(
        session, request, options.timeout_s,
        [&](const GenerateResponse& message) {
          SayWaiting(message);
          if (message.finish_reason() == GenerateResponse::FINISH_REASON_UNSPECIFIED) return;
          progress.Answered(++answered);
        },
        &answers);
    if (status.ok()) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        Judge(session, match, rows[i], answers[i], score, wrong);
      }
      return status;
    }
    // A call is refused before any of it is answered.
    const std::optional<int> bad = AskOf(status, static_cast<int>(rows.size()));
    if (!bad) return status;
    LeaveOut(session, rows[static_cast<std::size_t>(*bad)], status, score, wrong);
    rows.erase(rows.begin() + *bad);
  }
  return absl::OkStatus();
}

absl::Status EvaluateRows(Session& session, const Options& options, const ExactMatch& match,
                          const v1::Ask& how, std::int64_t rows, Score* score, Table* wrong) {
  Progress progress(rows);
  for (std::int64_t begin = 0; begin < rows; begin += kRowsAtOnce) {
    std::vector<std::int64_t> some(
        static_cast<std::size_t>(std::min<std::int64_t>(kRowsAtOnce, rows - begin)));
    std::iota(some.begin(), some.end(), begin);
    const absl::Status status =
        AskRows(session, options, how, std::move(some), match, progress, score, wrong);
    if (!status.ok()) {
      progress.End();
      return status;
    }
    progress.Judged(*score);
  }
  progress.End();
  return absl::OkStatus();
}

// Of what does not fit a terminal the numbers of rows stay longest.
void PrintWrong(const Table& wrong) { wrong.PrintFit(std::cout, TerminalColumns(), {0, 1}); }

void Print(const Session& session, const Score& score, const Table& wrong) {
  if (session.json) {
    PrintLine({{"rows", score.rows},
               {"right", score.right},
               {"without_reference", score.without.size()},
               {"gave_up", score.gave_up.size()},
               {"not_asked", score.not_asked.size()},
               {"exact_match", score.exact_match()}});
    return;
  }
  if (score.right < score.rows || !score.not_asked.empty()) PrintWrong(wrong);
  std::cout << "exact match: " << ScoreText(score) << "\n";
  if (!score.without.empty()) {
    std::cerr << "warning: the expression finds nothing in the own answer of "
              << Named(score.without) << ", so none there can be right\n";
  }
  if (!score.gave_up.empty()) {
    std::cerr << "warning: the expression goes back and forth too long on the answers of "
              << Named(score.gave_up) << " and was given up, so these count as wrong\n";
  }
}

absl::Status Evaluate(Session& session, Options& options) {
  const absl::StatusOr<ExactMatch> match = ExactMatch::Parse(options.exact_match);
  if (!match.ok()) return match.status();
  v1::Ask how;
  if (absl::Status status = SetHow(options, &how); !status.ok()) return status;
  if (absl::Status status = SetSource(session, options.source, &how); !status.ok()) return status;
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
    // What came is said all the same; in JSON every row was, as it came.
    if (!session.json && score.rows > 0) {
      PrintWrong(wrong);
      std::cout << "exact match so far: " << ScoreText(score) << "\n";
    }
    return status;
  }
  Print(session, score, wrong);
  if (score.rows > 0 || score.not_asked.empty()) return absl::OkStatus();
  return Error(ReasonOf(score.why_not),
               absl::StrCat("none of ", RowsText(score.not_asked.size()), " could be asked; ",
                            std::string(score.why_not.message())));
}

}  // namespace

void AddEvaluateCommand(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();
  options->max_tokens = 256;
  CLI::App& evaluate =
      *app.add_subcommand("evaluate", "Count the answers to a dataset's rows that are right");
  evaluate.add_option("source", options->source, kSourceHelp)->required();
  evaluate.add_option("--dataset", options->dataset, "Whose rows are asked")->required();
  evaluate
      .add_option("--exact-match", options->exact_match,
                  "A regular expression: its first group is compared, e.g. '#### (.*)'")
      ->required();
  AddLimit(evaluate, options->limit);
  AddAskOptions(evaluate, *options);
  evaluate.callback([&session, options] {
    session.action = [&session, options] { return Evaluate(session, *options); };
  });
}

}  // namespace lorad::client
