// Prints how fast texts are tokenized on one core, rows as a data set has them and single long
// texts; with --peer, the `tokenizers` library on the same rows beside it.
//
//   bazel run -c opt //tests/bench:tokenizer -- --tokenizer PATH/tokenizer.json --peer python3

#include "storage/datasets/tokenizer.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "nlohmann/json.hpp"

namespace lorad {
namespace {

using storage::Tokenizer;

// Of CPU time: the figure is a core's, whatever else the machine does.
double Seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Every string in a row's JSON, one after the other.
void AppendStrings(const nlohmann::json& json, std::string* out) {
  if (json.is_string()) *out += json.get<std::string>() + "\n";
  if (!json.is_structured()) return;
  for (const auto& part : json) AppendStrings(part, out);
}

std::vector<std::string> ReadRows(const std::string& path) {
  std::vector<std::string> rows;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    rows.emplace_back();
    AppendStrings(nlohmann::json::parse(line), &rows.back());
  }
  return rows;
}

struct Result {
  double megabytes_per_second = 0;
  size_t tokens = 0;
};

// Spans in the text, and in order.
bool Sound(const storage::Encoding& encoding, const std::string& text) {
  uint32_t begin = 0;
  for (const storage::TextSpan& span : encoding.spans) {
    if (span.begin < begin || span.end < span.begin || span.end > text.size()) return false;
    begin = span.begin;
  }
  return encoding.ids.empty() == text.empty();
}

// Repeats until `seconds` are over.
Result Measure(const Tokenizer& tokenizer, const std::vector<std::string>& texts, double seconds) {
  Result out;
  size_t bytes = 0;
  const double begin = Seconds();
  do {
    out.tokens = 0;
    for (const std::string& text : texts) {
      const auto encoding = tokenizer.Encode(text, false);
      if (!encoding.ok() || !Sound(*encoding, text)) {
        std::cerr << "error: a text was not tokenized as it should be\n";
        std::exit(1);
      }
      bytes += text.size();
      out.tokens += encoding->ids.size();
    }
  } while (Seconds() - begin < seconds);
  out.megabytes_per_second = static_cast<double>(bytes) / (Seconds() - begin) / 1e6;
  return out;
}

void Print(const char* what, const Result& result, size_t texts) {
  std::printf("%-34s %8.1f MB/s %10zu texts %10zu tokens\n", what, result.megabytes_per_second,
              texts, result.tokens);
}

int Run(int argc, char** argv) {
  std::string tokenizer_path = "tests/storage/testdata/tokenizers/llama3.json";
  std::string rows_path = "tests/storage/testdata/tokenizers/llama3.cases.jsonl";
  std::string peer;
  double seconds = 2;
  size_t long_bytes = 1 << 20;
  CLI::App app("speed of the tokenizer");
  app.add_option("--tokenizer", tokenizer_path, "a tokenizer.json");
  app.add_option("--rows", rows_path, "JSON Lines; all strings of a line are one text");
  app.add_option("--seconds", seconds, "of each measurement, at least");
  app.add_option("--long-bytes", long_bytes, "length of the single texts");
  app.add_option("--peer", peer, "a Python that has `tokenizers`");
  CLI11_PARSE(app, argc, argv);

  std::ifstream in(tokenizer_path);
  const std::string json{std::istreambuf_iterator<char>(in), {}};
  const double begin = Seconds();
  const auto tokenizer = Tokenizer::FromJson(json);
  if (!tokenizer.ok()) {
    std::cerr << "error: " << tokenizer_path << ": " << tokenizer.status() << "\n";
    return 1;
  }
  std::printf("%-34s %8.3f s\n", "loading", Seconds() - begin);
  const std::vector<std::string> rows = ReadRows(rows_path);
  if (rows.empty()) {
    std::cerr << "error: " << rows_path << " has no rows\n";
    return 1;
  }
  Print("rows (bar: 1 MB/s)", Measure(**tokenizer, rows, seconds), rows.size());
  std::string joined;
  while (joined.size() < long_bytes) {
    for (const std::string& row : rows) joined += row;
  }
  Print("the rows as one text", Measure(**tokenizer, {joined}, seconds), 1);
  for (const char c : {'a', ' ', '\n', '<'}) {
    const std::string what =
        "one text of nothing but '" + (c == '\n' ? std::string("\\n") : std::string(1, c)) + "'";
    Print(what.c_str(), Measure(**tokenizer, {std::string(long_bytes, c)}, 0), 1);
  }
  if (peer.empty()) return 0;
  std::fflush(stdout);
  const std::string command =
      peer + " tests/bench/tokenizer_peer.py '" + tokenizer_path + "' '" + rows_path + "'";
  return std::system(command.c_str()) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lorad

int main(int argc, char** argv) { return lorad::Run(argc, argv); }
