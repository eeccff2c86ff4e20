// Rows of Parquet become the JSON Lines that Python's json.dumps makes of them, in a process of their
// own. tests/client/parquet/make.py made the files.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "absl/strings/str_split.h"
#include "client/inputs/row_source.h"
#include "tests/client/all_rows.h"
#include "tests/client/gzip.h"

namespace lorad::client {
namespace {

namespace fs = std::filesystem;

constexpr char kPrograms[] = "client";

std::string PathOf(const std::string& name) { return "tests/client/parquet/" + name; }

std::string ContentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.is_open());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

fs::path Folder() {
  const fs::path folder = fs::path(std::getenv("TEST_TMPDIR")) / "parquet";
  fs::create_directories(folder);
  return folder;
}

std::string Write(const std::string& name, const std::string& text) {
  const fs::path path = Folder() / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// All rows of a file; an error's text where it fails.
std::string AllOf(const std::string& path, const std::string& columns = "",
                  const std::string& format = "", const std::string& programs = kPrograms) {
  return AllRows(RowSource::Open(path, format, columns, programs));
}

TEST_CASE("rows are those of json.dumps, however the file is packed") {
  const std::string plain = ContentOf(PathOf("plain.jsonl"));
  for (const char* name : {"plain", "plain_none", "plain_snappy", "plain_gzip", "plain_zstd",
                           "plain_brotli", "plain_lz4"}) {
    INFO(name);
    CHECK(AllOf(PathOf(name + std::string(".parquet"))) == plain);
  }
  CHECK(AllOf(PathOf("kinds.parquet")) == ContentOf(PathOf("kinds.jsonl")));
}

TEST_CASE("Parquet is told by its first bytes, its name or the option") {
  const std::string plain = ContentOf(PathOf("plain.jsonl"));
  const std::string bytes = ContentOf(PathOf("plain.parquet"));
  CHECK(AllOf(Write("rows.bin", bytes)) == plain);
  CHECK(AllOf(Write("rows.csv", bytes), "", "parquet") == plain);
  CHECK(AllOf(Write("named.csv", bytes)) == plain);
  CHECK(AllOf(Write("rows.parquet.gz", Gzip(bytes))) == plain);
  CHECK(AllOf(Write("rows.gz", Gzip(bytes))) == plain);
  CHECK(AllOf(Write("par.txt", "PAR1\nx\n"), "", "csv") == "{\"PAR1\": \"x\"}\n");
  // A table is one by its name, whatever its header says.
  CHECK(AllOf(Write("par.csv", "PARENT,n\nx,1\n")) == "{\"PARENT\": \"x\", \"n\": \"1\"}\n");
  CHECK(AllOf(Write("par.tsv", "PAR1\tn\nx\t1\n")) == "{\"PAR1\": \"x\", \"n\": \"1\"}\n");
  CHECK(AllOf(Write("par.csv.gz", Gzip("PARENT\nx\n"))) == "{\"PARENT\": \"x\"}\n");
  const std::string other = Write("other.parquet", "{\"text\": \"a\"}\n");
  CHECK(AllOf(other) == "error: BAD_ROWS_FILE: " + other +
                            ": is no Parquet file, which begins with PAR1; say --format jsonl, "
                            "json, csv or tsv, whichever it is\n");
  CHECK(AllOf(other, "", "jsonl") == "{\"text\": \"a\"}\n");
  const std::string empty = Write("empty.parquet", "");
  CHECK(AllOf(empty) == "error: BAD_ROWS_FILE: " + empty + ": is empty, and no Parquet file\n");
}

TEST_CASE("what comes through a pipe is kept in a file without a name meanwhile") {
  const std::string pipe = Folder() / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  std::string bytes = ContentOf(PathOf("plain.parquet"));
  const auto left = [] {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(Folder())) {
      const std::string name = entry.path().filename();
      if (name.starts_with("lora-rows")) names.push_back(name);
    }
    return names;
  };
  setenv("TMPDIR", Folder().c_str(), 1);
  std::thread writer([&] { std::ofstream(pipe, std::ios::binary) << bytes; });
  CHECK(AllOf(pipe) == ContentOf(PathOf("plain.jsonl")));
  writer.join();
  CHECK(left().empty());
  setenv("TMPDIR", PathOf("plain.jsonl").c_str(), 1);  // no folder
  writer = std::thread([&] { std::ofstream(pipe, std::ios::binary) << bytes; });
  const std::string said = AllOf(pipe);
  writer.join();
  unsetenv("TMPDIR");
  CHECK(said.starts_with("error: NO_ROOM_FOR_ROWS: " + pipe + ": Parquet is read from its end"));
  CHECK(said.find("TMPDIR names another folder") != std::string::npos);
}

TEST_CASE("what comes through a pipe has a bound, and the file itself has none") {
  int pieces = 0;
  const auto next = [&]() -> absl::StatusOr<std::string> {
    return pieces-- > 0 ? std::string(1 << 20, 'x') : std::string();
  };
  pieces = 2;
  CHECK(Spooled(next, "f", 2 << 20).ok());
  pieces = 3;
  CHECK(ErrorText(Spooled(next, "f", 2 << 20).status()) ==
        "error: BAD_ROWS_FILE: f: is larger than 2 MiB, unpacked or through a pipe; unpack it and "
        "give the file\n");
}

TEST_CASE("columns are renamed as of a table") {
  std::string renamed = ContentOf(PathOf("plain.jsonl"));
  for (std::size_t at = 0; (at = renamed.find("\"prompt\"", at)) != std::string::npos; ++at) {
    renamed.replace(at, 8, "\"question\"");
  }
  CHECK(AllOf(PathOf("plain.parquet"), "question=prompt") == renamed);
  CHECK(AllOf(PathOf("lacking.parquet")) ==
        "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"completion\": \"c\"}\n");
  const std::pair<const char*, const char*> wrong[] = {
      {"q=a", "no column a as --columns says; there are prompt, completion"},
      {"completion=prompt",
       "two columns are completion, one of them by --columns; rename or "
       "remove one"},
      {"q=prompt", "row 2 has no prompt, which --columns names"},
  };
  for (const auto& [columns, what] : wrong) {
    const std::string path = PathOf("lacking.parquet");
    CHECK(AllOf(path, columns) == "error: BAD_ROWS_FILE: " + path + ": " + what + "\n");
  }
}

// "frame["at"] = frame["at"].astype(str) converts it, and ..".
std::string WithPandas(const std::string& column, const std::string& by) {
  const std::string frame = "frame[\"" + column + "\"]";
  return ", which JSON has not; with pandas, " +
         (by.empty() ? "" : frame + " = " + frame + by + " converts it, and ") +
         "frame.drop(columns=\"" + column + "\") leaves it out";
}

TEST_CASE("what has no JSON is told by column and type, with the way to convert it") {
  const std::pair<const char*, std::string> cases[] = {
      {"at", "column at is timestamp[us]" + WithPandas("at", ".astype(str)")},
      {"day", "column day is date32[day]" + WithPandas("day", ".astype(str)")},
      {"took", "column took is duration[s]" + WithPandas("took", ".astype(str)")},
      {"price", "column price is decimal128(5, 2)" + WithPandas("price", ".astype(float)")},
      {"raw", "column raw is binary" + WithPandas("raw", ".str.decode(\"utf-8\")")},
      {"fixed", "column fixed is fixed_size_binary[2]" + WithPandas("fixed", "")},
      {"map", "column map is map<string, int64 ('map')>" + WithPandas("map", ".map(dict)")},
      {"uuid", "column uuid is extension<arrow.uuid>" + WithPandas("uuid", "")},
      {"within", "column within[].at is time64[us]" + WithPandas("within", "")},
      {"nan", "row 2: a value in column nan is NaN, which JSON has not; make null of it"},
      {"infinite",
       "row 2: a value in column infinite is infinite, which JSON has not; make null of it"},
      {"latin", "row 2: a value in column prompt is not UTF-8"},
      {"norow", "has columns, and no row"},
      {"nocolumn", "has no columns"},
      {"twice", "two columns are prompt; rename or remove one"},
      {"encrypted",
       "is encrypted, which is not read; pyarrow.parquet.read_table(path, "
       "decryption_properties=..) reads it"},
      {"footer",
       "is encrypted, which is not read; pyarrow.parquet.read_table(path, "
       "decryption_properties=..) reads it"},
      {"long", "row 1: a value in column text makes the row longer than 16 MiB"},
      {"huge",
       "takes more than 1 GiB of memory; with pandas, frame.to_parquet(path, "
       "row_group_size=1000) writes it in smaller pieces"},
  };
  for (const auto& [name, what] : cases) {
    const std::string path = PathOf(name + std::string(".parquet"));
    CHECK(AllOf(path) == "error: BAD_ROWS_FILE: " + path + ": " + what + "\n");
  }
}

TEST_CASE("a name that is not UTF-8 is told before the first row") {
  std::string bytes = ContentOf(PathOf("fields.parquet"));
  CHECK(AllOf(PathOf("fields.parquet")) == "{\"pair\": {\"named\": 1}}\n");
  for (const auto& [name, what] :
       {std::pair("named", "a field in column pair"), {"pair", "a column"}}) {
    std::string changed = bytes;
    for (std::size_t at = 0; (at = changed.find(name, at)) != std::string::npos;)
      changed[at] = '\xff';
    const std::string path = Write("fields.parquet", changed);
    INFO(name);
    CHECK(AllOf(path).starts_with("error: BAD_ROWS_FILE: " + path + ": the name of " + what +
                                  " is not UTF-8"));
  }
}

TEST_CASE("a damaged file is an error, wherever it is damaged") {
  const std::string whole = ContentOf(PathOf("plain.parquet"));
  const std::string rows = ContentOf(PathOf("plain.jsonl"));
  int refused = 0;
  const auto check = [&](const std::string& bytes) {
    const std::string path = Write("damaged.parquet", bytes);
    const std::string said = AllOf(path);
    if (said.starts_with("error: BAD_ROWS_FILE: " + path + ": ")) return ++refused;
    // What says who wrote it, and statistics, are not gone by.
    REQUIRE_FALSE(said.starts_with("error"));
    return 0;
  };
  for (const std::size_t size : {4, 8, 12, 100, 700, 1100}) {
    INFO("cut at " << size);
    CHECK(check(whole.substr(0, size)) > 0);
  }
  CHECK(check(whole.substr(0, whole.size() - 1)) > 0);
  const std::string said = AllOf(Write("damaged.parquet", whole.substr(0, 700)));
  CHECK(said.find(": is no whole Parquet file: ") != std::string::npos);
  refused = 0;
  int tried = 0;
  for (std::size_t at = 0; at < whole.size(); at += 11, ++tried) {
    INFO("byte " << at);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    check(damaged);
  }
  CHECK(refused > tried / 4);
  // A page that is not what its checksum says.
  std::string changed = whole;
  changed.replace(changed.find("5 + 5"), 5, "6 + 6");
  CHECK(AllOf(Write("damaged.parquet", changed)).find("CRC") != std::string::npos);
}

// coded.parquet has no checksums, and codes of three bits for five words.
TEST_CASE("a code that a dictionary lacks is an error, and no row") {
  const std::string whole = ContentOf(PathOf("coded.parquet"));
  const std::set<std::string> right = {"{\"text\": \"zero\"}", "{\"text\": \"one\"}",
                                       "{\"text\": \"two\"}", "{\"text\": \"three\"}",
                                       "{\"text\": \"four\"}"};
  const std::size_t begin = whole.find("four") + 4;  // the page of codes, with its head
  int lacking = 0;
  for (std::size_t at = begin; at < begin + 66; ++at) {
    for (const char flip : {'\x07', '\x41', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      const std::string said = AllOf(Write("coded.parquet", damaged));
      INFO("byte " << at << ": " << said);
      REQUIRE(said.find("ended by signal") == std::string::npos);
      if (said.find("has a code that its dictionary lacks") != std::string::npos) ++lacking;
      if (said.starts_with("error: BAD_ROWS_FILE: ")) continue;
      for (const absl::string_view row : absl::StrSplit(said, '\n', absl::SkipEmpty())) {
        REQUIRE(right.contains(std::string(row)));
      }
    }
  }
  CHECK(lacking > 20);
}

TEST_CASE("a program that is not there, or does not start, is told") {
  const std::string path = PathOf("plain.parquet");
  CHECK(AllOf(path, "", "", "/nowhere") ==
        "error: PARQUET_MISSING: Parquet is read by lorad-parquet, which is to lie beside lora, as "
        "tools/install and the package lay it: it is not in /nowhere\n");
  const auto program = [](const std::string& script) {
    const std::string made = Write("lorad-parquet", "#!/bin/sh\n" + script + "\n");
    fs::permissions(made, fs::perms::owner_all);
  };
  program("echo 'error while loading shared libraries: libparquet.so' >&2; exit 127");
  const std::string lacking = AllOf(path, "", "", Folder());
  CHECK(lacking.starts_with("error: PARQUET_MISSING: "));
  CHECK(lacking.find("lay it: error while loading shared libraries") != std::string::npos);
  program("kill -SEGV $$");
  CHECK(AllOf(path, "", "", Folder()) ==
        "error: BAD_ROWS_FILE: " + path +
            ": lorad-parquet, which reads it, was ended by signal 11; is the file damaged, or is "
            "memory short?\n");
  // What it says may be long, and is not waited for.
  program("head -c 1000000 /dev/zero | tr '\\0' e >&2; echo '{}'; exit 0");
  CHECK(AllOf(path, "", "", Folder()) == "{}\n");
}

// The most memory that this process's only child has had so far, in KiB.
std::int64_t PeakKibOfChild() {
  const std::string self = std::to_string(getpid());
  int pid = 0;
  std::ifstream("/proc/self/task/" + self + "/children") >> pid;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; status >> word;) {
    std::int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib;
  }
  return 0;
}

// What the program takes while it reads a file, in KiB.
std::int64_t PeakKibOf(const std::string& path) {
  const pid_t pid = fork();
  if (pid == 0) {
    const bool opened = std::freopen(path.c_str(), "rb", stdin) != nullptr &&
                        std::freopen("/dev/null", "w", stdout) != nullptr &&
                        std::freopen("/dev/null", "w", stderr) != nullptr;
    if (opened) execl("client/parquet/lorad-parquet", "lorad-parquet", nullptr);
    _exit(127);
  }
  int status = 0;
  rusage used = {};
  REQUIRE(wait4(pid, &status, 0, &used) == pid);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 1);
  return used.ru_maxrss;
}

// 40 MiB of control characters, each of which JSON writes in six, in one string and in forty.
TEST_CASE("a row that is too long is refused before much of it is made") {
  for (const char* name : {"control", "controls"}) {
    const std::string path = PathOf(name + std::string(".parquet"));
    CHECK(AllOf(path) == "error: BAD_ROWS_FILE: " + path +
                             ": row 1: a value in column text makes the row longer than 16 MiB\n");
    [[maybe_unused]] const std::int64_t peak_kib = PeakKibOf(path);
#ifndef __SANITIZE_ADDRESS__  // which keeps what is freed
    CHECK(peak_kib < 256 << 10);
#endif
  }
}

TEST_CASE("what unpacks to much takes little memory, and ends when nobody reads on") {
  {
    const auto source = RowSource::Open(PathOf("many.parquet"), "", "", kPrograms);
    REQUIRE(source.ok());
    REQUIRE((*source)->Next().ok());
  }
  CHECK(waitpid(-1, nullptr, WNOHANG) < 0);  // no child is left
  const auto source = RowSource::Open(PathOf("many.parquet"), "", "", kPrograms);
  REQUIRE(source.ok());
  const std::int64_t kBytes = 100'000 * 1'013;
  std::int64_t bytes = 0;
  std::int64_t peak_kib = 0;
  while (true) {
    const auto piece = (*source)->Next();
    REQUIRE(piece.ok());
    if (piece->empty()) break;
    bytes += static_cast<std::int64_t>(piece->size());
    if (bytes > kBytes / 2 && peak_kib == 0) peak_kib = PeakKibOfChild();
  }
  CHECK(bytes == kBytes);
  CHECK(peak_kib > 0);
#ifndef __SANITIZE_ADDRESS__  // which keeps what is freed
  CHECK(peak_kib < 64 << 10);
#endif
}

}  // namespace
}  // namespace lorad::client
