// Rows in other formats become JSON Lines.
#include <sys/resource.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "client/inputs/row_source.h"
#include "client/inputs/unpacker.h"
#include "tests/client/all_rows.h"
#include "tests/client/gzip.h"

namespace lorad::client {
namespace {

// What becomes of the text, given in pieces of so many bytes; an error's text where it fails.
std::string Converted(RowFormat format, const std::string& text, const std::string& columns,
                      std::size_t piece) {
  const auto names = ReadColumns(columns);
  REQUIRE(names.ok());
  const auto converter = MakeRowConverter(format, *names, "f");
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    const auto status = converter->Take(text.substr(at, piece), out);
    if (!status.ok()) return ErrorText(status);
  }
  const auto status = converter->Finish(out);
  return status.ok() ? out : ErrorText(status);
}

struct Case {
  RowFormat format;
  std::string text;
  std::string out;  // or the end of "error: BAD_ROWS_FILE: f: line "
  std::string columns = {};
};

const RowFormat kCsv = RowFormat::kCsv;
const RowFormat kArray = RowFormat::kArray;
const RowFormat kLines = RowFormat::kLines;

TEST_CASE("rows are converted, whatever the pieces they come in") {
  const Case cases[] = {
      {kCsv, "a,b\n1,2\n", "{\"a\": \"1\", \"b\": \"2\"}\n"},
      {kCsv,
       "\xef\xbb\xbf"
       "a,b\r\n1,\r\n\r\n,2",
       "{\"a\": \"1\", \"b\": \"\"}\n{\"a\": \"\", \"b\": \"2\"}\n"},
      {kCsv, "a,b\n\"x,\"\"y\"\"\nz\",it\xe2\x80\x99s 5\"\n",
       "{\"a\": \"x,\\\"y\\\"\\nz\", \"b\": \"it\\u2019s 5\\\"\"}\n"},
      {RowFormat::kTsv, "a\tb\n1,5\t2\n", "{\"a\": \"1,5\", \"b\": \"2\"}\n"},
      {kCsv, "question,id\nq,1\n", "{\"prompt\": \"q\", \"id\": \"1\"}\n", "prompt=question"},
      {kArray, "[{\"a\": 1, \"b\": 1.50}, {\"a\": \"]},\\\"\", \"b\": [{}]}]\n",
       "{\"a\": 1, \"b\": 1.50}\n{\"a\": \"]},\\\"\", \"b\": [{}]}\n"},
      {kArray, "\xef\xbb\xbf[{\"a\":1},{\"a\":2}]", "{\"a\":1}\n{\"a\":2}\n"},
      {kArray, "[\n  {\n    \"a\": 1,\n    \"b\": [\n      2\n    ]\n  }\n]\n",
       "{\"a\": 1, \"b\": [2]}\n"},
      {kArray, "[{\"q\": {\"q\": 1}, \"b\": \"q\"}]", "{\"p\": {\"q\": 1}, \"b\": \"q\"}\n", "p=q"},
      {kLines, "{\"q\": 1}\n\n{\"b\": 1, \"q\": 2}", "{\"p\": 1}\n{\"b\": 1, \"p\": 2}\n", "p=q"},
      {kLines, "any \xff thing", "any \xff thing"},
      {kCsv, "q;a\n1\n", "{\"text\": \"1\"}\n", "text=q;a"},
      {kCsv, "q;a,b\n1,2\n", "{\"q;a\": \"1\", \"b\": \"2\"}\n"},
  };
  for (const Case& c : cases) {
    for (const std::size_t piece : {1, 2, 3, 1000}) {
      INFO(c.text << " in pieces of " << piece);
      CHECK(Converted(c.format, c.text, c.columns, piece) == c.out);
    }
  }
}

TEST_CASE("what is wrong with a file of rows is told by line, with the way to mend it") {
  const Case cases[] = {
      {kCsv, "a,b\n1,2\n\n1,2,3\n",
       "4: has 3 fields, the header has 2; put fields that have a comma in them in quotes"},
      {kCsv, "a,b,a\n", "1: two columns are a; rename or remove one"},
      {kCsv, "a,b\n", "1: two columns are a, one of them by --columns; rename or remove one",
       "a=b"},
      {kCsv, "q;a\n1;2\n",
       "1: the header is one column, \"q;a\": it seems to have ; between columns, not commas; "
       "python3 "
       "-c "
       "'import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, "
       "delimiter=\";\"))' < FILE | lora dataset add NAME - --format csv"},
      {kCsv, "q\ta\n",
       "1: the header is one column, \"q\\ta\": it seems to have tabs between columns, not commas; "
       "say "
       "--format tsv"},
      {RowFormat::kTsv, "q,a\n",
       "1: the header is one column, \"q,a\": it seems to have commas between columns, not tabs; "
       "say "
       "--format csv"},
      {kCsv, ",a\n0,x\n",
       "1: column 1 has no name in the header; pandas leaves its index out with "
       "to_csv(index=False)"},
      {kCsv, std::string("a\nb\0c\n", 6),
       "2: a NUL byte; is this text in UTF-8? iconv -f UTF-16 -t UTF-8 makes it from UTF-16"},
      {kCsv, "a,b\n1,\xff\n",
       "2: field 2 is not UTF-8; iconv -f LATIN1 -t UTF-8 makes it from Latin-1"},
      {kCsv, "", "1: the file is empty; a header and rows are needed"},
      {kCsv, "a,b\n", "2: there is a header, and no row behind it"},
      {kCsv, "a\n\"x\ny\n", "2: the quote that opens here is never closed"},
      {kCsv, "a\n\"x\"y\n",
       "2: text behind a closing quote; a quote inside of a quoted field is doubled"},
      {kCsv, "a\rb\n",
       "1: a carriage return without a line feed; put such a field in quotes, or make lines of an "
       "old Mac's: tr '\\r' '\\n' < FILE | lora dataset add NAME - --format csv"},
      {kCsv, "a,b\n1,2\n", "1: no column c as --columns says; there are a, b", "x=c"},
      {kCsv, "a\n\"" + std::string(17 << 20, 'x'),
       "2: the row is longer than 16 MiB; is a quote missing?"},
      {kArray, "", "1: the file is empty; rows are needed"},
      {kArray, "{\"a\": 1}", "1: must be a list of objects, [{..}, ..]"},
      {kArray, "[\n1]", "2: row 1 must be an object, {..}"},
      {kArray, "[{},\n]", "2: a comma behind the last row, 1; take it away"},
      {kArray, "[,]", "1: row 1 must be an object, {..}"},
      {kArray, "[{} {}]", "1: a comma or ] must follow a row"},
      {kArray, "[{}]\nx", "2: text behind the end of the list"},
      {kArray, "[{},\n{\"a\"", "2: the file ends inside of row 2"},
      {kArray, "[{}", "1: the file ends before the list does; is it whole?"},
      {kArray, "[]", "1: there is no row"},
      {kArray, "[{\"a\n", "1: a line end in a string; is a quote missing?"},
      {kArray, "[{\"a\": [" + std::string(17 << 20, '1'),
       "1: row 1 is longer than 16 MiB; is a bracket missing?"},
      {kArray, "[{\"q\": 1},\n{\"a\": 1}]", "2: row 2 has no q, which --columns names", "p=q"},
      {kLines, "{}\n" + std::string(17 << 20, '\0'), "2: longer than 16 MiB; is this JSON Lines?"},
      {kLines, "{\"q\": 1} {\"q\": 2}", "1: a second row in one line", "p=q"},
      {kLines, "{\"q\":\n1}", "1: a row of JSON Lines must end in its line", "p=q"},
  };
  for (const Case& c : cases) {
    INFO(c.text.substr(0, 100));
    CHECK(Converted(c.format, c.text, c.columns, 1 << 16) ==
          "error: BAD_ROWS_FILE: f: line " + c.out + "\n");
  }
}

TEST_CASE("columns are named by pairs, each once") {
  for (const char* text : {"a", "a=", "=b", "a=b,", "a=b,c=b", "a=b,a=c"}) {
    INFO(text);
    const auto columns = ReadColumns(text);
    REQUIRE_FALSE(columns.ok());
    CHECK(ReasonOf(columns.status()) == "USAGE");
  }
}

struct Folder {
  Folder() : path(std::string(std::getenv("TEST_TMPDIR")) + "/rows") {
    std::filesystem::create_directories(path);
  }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name, std::ios::binary) << text;
    return path + "/" + name;
  }
  const std::string path;
};

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  const std::size_t size = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3);
  REQUIRE_FALSE(ZSTD_isError(size));
  return out.substr(0, size);
}

// A frame with a window of 2^log bytes, and blocks of 128 KiB of line ends (RFC 8878, 3.1.1).
std::string ZstdBlanks(int window_log, int blocks) {
  std::string frame("\x28\xb5\x2f\xfd\x00", 5);
  frame += static_cast<char>((window_log - 10) << 3);
  for (int i = 0; i < blocks; ++i) {
    const int header = (128 << 10) << 3 | 1 << 1 | (i + 1 == blocks ? 1 : 0);  // RLE
    for (int shift = 0; shift < 24; shift += 8) frame += static_cast<char>(header >> shift);
    frame += '\n';
  }
  return frame;
}

std::string AllOf(const std::string& path, const std::string& format = "") {
  return AllRows(RowSource::Open(path, format, ""));
}

TEST_CASE("files say by name and first bytes what they are") {
  const Folder folder;
  std::string lines;
  std::string table = "a\n";
  for (int i = 0; i < 200'000; ++i) {
    lines += "{\"a\": \"" + std::to_string(i) + "\"}\n";
    table += std::to_string(i) + "\n";
  }
  std::string list = "[" + lines.substr(0, lines.size() - 1) + "]";
  for (std::size_t at = 0; (at = list.find("}\n", at)) != std::string::npos;) list[++at] = ',';
  CHECK(AllOf(folder.Write("a.jsonl", lines)) == lines);
  CHECK(AllOf(folder.Write("a.csv", table)) == lines);
  CHECK(AllOf(folder.Write("a.tsv", table)) == lines);
  CHECK(AllOf(folder.Write("a.txt", table), "csv") == lines);
  CHECK(AllOf(folder.Write("a.json", list)) == lines);
  CHECK(AllOf(folder.Write("b.json", lines)) == lines);
  CHECK(AllOf(folder.Write("a.csv.gz", Gzip(table))) == lines);
  CHECK(AllOf(folder.Write("a.json.gz", Gzip(list))) == lines);
  CHECK(AllOf(folder.Write("a.gz", Gzip(lines) + Gzip(lines))) == lines + lines);
  const std::string zeros(100'000, '\0');  // as tapes fill their last block
  CHECK(AllOf(folder.Write("z.gz", Gzip(lines) + zeros)) == lines);
  CHECK(AllOf(folder.Write("zz.gz", Gzip(lines) + zeros + Gzip(lines))) == lines + lines);
  CHECK(AllOf(folder.Write("a.csv.zst", Zstd(table))) == lines);
  CHECK(AllOf(folder.Write("a.json.zst", Zstd(list))) == lines);
  CHECK(AllOf(folder.Write("renamed", Zstd(table)), "csv") == lines);
  CHECK(AllOf(folder.Write("a.zst", Zstd(lines) + Zstd("") + Zstd(lines))) == lines + lines);
  const std::string skipped("\x50\x2a\x4d\x18\x02\0\0\0xx", 10);
  CHECK(AllOf(folder.Write("b.zst", skipped + Zstd(lines))) == lines);
  CHECK(AllOf(folder.Write("largest.zst", ZstdBlanks(27, 1))).size() == 128 << 10);
  CHECK(AllOf(folder.Write("empty.zst", Zstd(""))).empty());
  CHECK(AllOf(folder.Write("empty.jsonl", "")).empty());
}

std::int64_t PeakBytes() {
  rusage used = {};
  getrusage(RUSAGE_SELF, &used);
  return std::int64_t{1024} * used.ru_maxrss;
}

TEST_CASE("what unpacks to much takes little memory") {
  const Folder folder;
  const std::int64_t kBytes = 64 << 20;
  for (const bool zstd : {true, false}) {
    INFO((zstd ? "zstd" : "gzip"));
    // Members of 1 MiB: a thousandth of it is packed, in less than is read at once.
    std::string packed = zstd ? ZstdBlanks(20, kBytes / (128 << 10)) : std::string();
    if (!zstd) {
      const std::string member = Gzip(std::string(1 << 20, '\n'));
      for (int i = 0; i < kBytes >> 20; ++i) packed += member;
    }
    const std::string path = folder.Write("bomb", packed);
    [[maybe_unused]] const std::int64_t before = PeakBytes();
    const auto source = RowSource::Open(path, "", "");
    REQUIRE(source.ok());
    std::int64_t bytes = 0;
    std::size_t largest = 0;
    while (true) {
      const auto piece = (*source)->Next();
      REQUIRE(piece.ok());
      if (piece->empty()) break;
      bytes += static_cast<std::int64_t>(piece->size());
      largest = std::max(largest, piece->size());
    }
    CHECK(bytes == kBytes);
    CHECK(largest <= kPieceBytes);
#ifndef __SANITIZE_ADDRESS__  // which keeps what is freed
    CHECK(PeakBytes() - before < 8 << 20);
#endif
  }
}

TEST_CASE("files that cannot be taken say what to do") {
  const Folder folder;
  const auto is_in = [](const std::string& text, const std::string& what) {
    INFO(text);
    CHECK(text.find(what) != std::string::npos);
  };
  const std::string packed = Gzip("a\n1\n");
  is_in(AllOf(folder.Write("cut.csv.gz", packed.substr(0, packed.size() - 6))), "cut off");
  is_in(AllOf(folder.Write("bad.gz", "\x1f\x8bxxxxxxxxxxxx")), "no whole gzip file");
  is_in(AllOf(folder.Write("more.gz", packed + std::string(3, '\0') + "more")),
        "no whole gzip file");
  is_in(AllOf(folder.Write("a.arrow", "ARROW1..")), "pandas.read_feather");
  for (const char* mark : {"\xff\xfe", "\xfe\xff"}) {
    is_in(AllOf(folder.Write("a.jsonl", mark)), "iconv -f UTF-16 -t UTF-8");
    is_in(AllOf(folder.Write("a.csv", mark)), "iconv -f UTF-16 -t UTF-8");
  }
  is_in(AllOf(folder.Write("a.xlsx", "PK\x03\x04....")), "unzip -p FILE |");
  is_in(AllOf(folder.Write("a.xz", std::string("\xfd"
                                               "7zXZ\0....",
                                               10))),
        "xz -dc FILE |");
  is_in(AllOf(folder.Write("a.bz2", "BZh91AY&SY....")), "bzip2 -dc FILE |");
  CHECK(AllOf(folder.Write("bzh.csv", "BZh\n1\n")) == "{\"BZh\": \"1\"}\n");
  const std::string frame = Zstd("a\n1\n");
  is_in(AllOf(folder.Write("cut.csv.zst", frame.substr(0, frame.size() - 2))), "cut off");
  is_in(AllOf(folder.Write("bad.zst", "\x28\xb5\x2f\xfd....")), "no whole zstd file");
  is_in(AllOf(folder.Write("more.zst", frame + "xxxx")), "no whole zstd file");
  is_in(AllOf(folder.Write("wide.zst", ZstdBlanks(28, 1))), "zstd -dc --long=31 FILE |");
  is_in(AllOf(folder.Write("wider.zst", ZstdBlanks(41, 1))), "window of more than 128 MiB");
  is_in(AllOf(folder.Write("table.txt", "q,a\n{1},2\n")), "say --format csv or tsv of a table");
  is_in(AllOf(folder.Write("table.gz", Gzip("q\ta\n"))), "say --format csv or tsv of a table");
  CHECK(AllOf(folder.Write("table.txt", "q,a\n"), "jsonl") == "q,a\n");
  CHECK(AllOf(folder.Write("two.jsonl", "{\"q\": 1, \"a\": 2}\n")) == "{\"q\": 1, \"a\": 2}\n");
  is_in(AllOf(folder.path + "/none"), "FILE_UNREADABLE");
  is_in(AllOf(folder.path), "FILE_UNREADABLE");
  is_in(AllOf(folder.Write("b.csv", "a\n1\n"), "xml"), "USAGE");
}

}  // namespace
}  // namespace lorad::client
