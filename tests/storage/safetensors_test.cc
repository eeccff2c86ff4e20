#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <limits>
#include <vector>

#include "storage/files/errors.h"
#include "storage/tensors/safetensors_file.h"
#include "tests/storage/safetensors_bytes.h"
#include "tests/storage/temp_directory.h"

namespace lorad::storage {
namespace {

using Catch::Matchers::Contains;

std::string Message(std::string_view bytes) {
  const auto prefix = SafetensorsPrefixBytes(bytes, bytes.size());
  if (!prefix.ok()) return std::string(prefix.status().message());
  const auto header = ParseSafetensorsHeader(bytes, bytes.size());
  if (header.ok()) return "ok";
  REQUIRE(header.status().GetPayload("lorad/reason").value() == "SAFETENSORS_INVALID");
  return std::string(header.status().message());
}

struct Corrupt {
  std::string_view name;
  std::string_view header;
  size_t data_bytes;
  std::string_view message;
};

TEST_CASE("a broken file gets one clear error", "[safetensors]") {
  const std::vector<Corrupt> cases = {
      {"sound", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8, "ok"},
      {"sound, padded", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}   )", 2, "ok"},
      {"sound, no tensors", "{}", 0, "ok"},
      {"sound, zero-size tensors",
       R"({"a":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"c":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
       4, "ok"},
      {"sound, metadata", R"({"__metadata__":{"format":"pt","":"x"}})", 0, "ok"},
      {"zero-size inside another",
       R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[2,2]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4, "overlaps"},
      {"empty header", "", 0, "does not begin with '{'"},
      {"leading space", " {}", 0, "does not begin with '{'"},
      {"no JSON", "{nothing}", 0, "not JSON"},
      {"cut JSON", R"({"a":{"dtype":"F32")", 0, "not JSON"},
      {"text after the object", "{} x", 0, "not JSON"},
      {"bad UTF-8", "{\"\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
       "not JSON"},
      {"duplicate key",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "duplicate key \"a\""},
      {"duplicate metadata", R"({"__metadata__":{},"__metadata__":{}})", 0,
       "duplicate key \"__metadata__\""},
      {"duplicate field", R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "duplicate key \"dtype\" in \"a\""},
      {"unknown field",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"compression":"zip"}})", 1,
       "unknown field \"compression\""},
      {"missing field", R"({"a":{"dtype":"U8","shape":[1]}})", 1, "needs each of"},
      {"wrong type", R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,1]}})", 1,
       "unknown type \"F99\""},
      {"type is a number", R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,1]}})", 1,
       "unexpected: the number 1 in \"a\""},
      {"negative size", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
       "a negative number"},
      {"fractional size", R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1,
       "the number 1.5"},
      {"nested shape", R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1,
       "an array in \"a\""},
      {"three offsets", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1,
       "the number 2"},
      {"one offset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1,
       "data_offsets needs two"},
      {"tensor is a list", R"({"a":[]})", 0, "an array"},
      {"metadata is no string", R"({"__metadata__":{"step":1}})", 0, "the number 1"},
      {"size and bytes differ", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8,
       "has 8 bytes, but shape [3] of F32 needs 12"},
      {"product overflows",
       R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", 8,
       "too large"},
      {"size over 2^63",
       R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1,
       "over 2^63"},
      {"past the end", R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 8,
       "bytes are missing"},
      {"backwards", R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[8,4]}})", 8,
       "bytes are missing"},
      {"overlap",
       R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "tensor \"b\" overlaps"},
      {"hole",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
       6, "bytes [2, 4) before tensor \"b\""},
      {"hole at the end", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 6,
       "bytes [2, 6) at the end"},
  };
  for (const Corrupt& each : cases) {
    INFO(each.name);
    CHECK_THAT(Message(SafetensorsBytes(each.header, std::string(each.data_bytes, 'x'))),
               Contains(std::string(each.message)));
  }
}

TEST_CASE("a file cut off or of another kind is told so", "[safetensors]") {
  CHECK_THAT(Message(""), Contains("at least 8 bytes"));
  CHECK_THAT(Message("GGUF"), Contains("at least 8 bytes, this one has 4"));
  CHECK_THAT(Message("GGUF\x03\x01\x01\x01 more"), Contains("the limit is"));
  const std::string sound =
      SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  for (size_t size = 0; size < sound.size(); ++size) {
    INFO("cut to " << size);
    CHECK_THAT(Message(std::string_view(sound).substr(0, size)), !Contains("ok"));
  }
}

TEST_CASE("a stream's header is read without knowing the length", "[safetensors]") {
  const std::string bytes =
      SafetensorsOf({{"b", TensorType::kF32, {3}}, {"a", TensorType::kF32, {2}}}, {});
  const auto prefix =
      SafetensorsPrefixBytes(std::string_view(bytes).substr(0, 8), kUnknownFileBytes);
  REQUIRE(prefix.ok());
  const auto header =
      ParseSafetensorsHeader(std::string_view(bytes).substr(0, *prefix), kUnknownFileBytes);
  REQUIRE(header.ok());
  CHECK(header->data_bytes == 20);
  CHECK(header->Find("b")->begin == 8);
  CHECK(header->Find("c") == nullptr);
}

TEST_CASE("what is written is what the reference implementation writes", "[safetensors]") {
  // safetensors.numpy.save of the same tensors.
  const SafetensorsLayout layout({{"b", TensorType::kF32, {1, 2}},
                                  {"a", TensorType::kBF16, {3}},
                                  {"c\"\n", TensorType::kF32, {}}},
                                 {{"format", "pt"}});
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("c\"\n":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
      R"("a":{"dtype":"BF16","shape":[3],"data_offsets":[12,18]}})";
  CHECK(layout.prefix().substr(8, header.size()) == header);
  CHECK(layout.prefix().size() % 8 == 0);
  CHECK(layout.file_bytes() == layout.prefix().size() + 18);
  CHECK(SafetensorsLayout({}, {}).prefix() == std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST_CASE("every half and bfloat16 converts exactly", "[safetensors]") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    float got = 0;
    ConvertToFloat(TensorType::kF16, reinterpret_cast<const char*>(&half), 1, &got);
    const int exponent = (half >> 10) & 31, fraction = half & 1023;
    const double magnitude = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                             : exponent == 0 ? std::ldexp(fraction, -24)
                                             : std::ldexp(1024 + fraction, exponent - 25);
    const float expected = static_cast<float>(half >> 15 != 0 ? -magnitude : magnitude);
    if (std::isnan(expected) ? !std::isnan(got)
                             : std::bit_cast<uint32_t>(got) != std::bit_cast<uint32_t>(expected)) {
      FAIL("half " << bits << " gave " << got << ", not " << expected);
    }
    ConvertToFloat(TensorType::kBF16, reinterpret_cast<const char*>(&half), 1, &got);
    if (std::bit_cast<uint32_t>(got) != bits << 16) FAIL("bfloat16 " << bits);
  }
}

TEST_CASE("a file is opened, read and moved", "[safetensors]") {
  const TempDirectory directory;
  const std::string path = directory.Write(
      "m.safetensors",
      SafetensorsOf({{"a", TensorType::kF32, {2, 2}}, {"z", TensorType::kF32, {0}}}, {{"k", "v"}}));
  auto opened = SafetensorsFile::Open(path);
  REQUIRE(opened.ok());
  SafetensorsFile file = *std::move(opened);
  CHECK(file.header().metadata.at("k") == "v");
  REQUIRE(file.Find("a") != nullptr);
  float values[4] = {};
  REQUIRE(file.ReadFloats(*file.Find("a"), values).ok());
  CHECK(values[3] == 3);
  CHECK(file.ReadFloats(*file.Find("z"), nullptr).ok());
  const auto last = file.Read(*file.Find("a"), 12, 4);
  REQUIRE(last.ok());
  CHECK(std::string_view(*last) == std::string_view(reinterpret_cast<const char*>(&values[3]), 4));
}

TEST_CASE("a file that becomes shorter, or goes, is an error", "[safetensors]") {
  const TempDirectory directory;
  const std::string path = directory.Write(
      "m.safetensors", SafetensorsOf({{"a", TensorType::kF32, {1024, 1024}}}, {}));  // four pieces
  const auto file = SafetensorsFile::Open(path);
  REQUIRE(file.ok());
  const TensorInfo& tensor = *file->Find("a");
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  REQUIRE(file->ReadFloats(tensor, values.data()).ok());
  int pieces = 0;
  const absl::Status cut = file->Stream(tensor, [&](std::string_view) {
    if (++pieces == 2) std::filesystem::resize_file(path, file->file_bytes() - 1);
    return absl::OkStatus();
  });
  CHECK(pieces == 3);
  CHECK(absl::IsInvalidArgument(cut));
  CHECK_THAT(std::string(cut.message()), Contains("m.safetensors: has become shorter"));
  CHECK(absl::IsInvalidArgument(file->ReadFloats(tensor, values.data())));
  CHECK(absl::IsInvalidArgument(file->Read(tensor, tensor.bytes() - 1, 1).status()));
  std::filesystem::remove(path);
  CHECK(absl::IsNotFound(file->ReadFloats(tensor, values.data())));
}

TEST_CASE("what is no file of floats is refused", "[safetensors]") {
  const TempDirectory directory;
  CHECK(absl::IsNotFound(SafetensorsFile::Open(directory / "absent").status()));
  CHECK_THAT(std::string(SafetensorsFile::Open(directory.path()).status().message()),
             Contains("not a regular file"));
  CHECK_THAT(std::string(SafetensorsFile::Open(directory.Write("empty", "")).status().message()),
             Contains("at least 8 bytes"));
  const auto file = SafetensorsFile::Open(directory.Write(
      "i64",
      SafetensorsBytes(R"({"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", "12345678")));
  REQUIRE(file.ok());
  float value = 0;
  CHECK_THAT(std::string(file->ReadFloats(*file->Find("a"), &value).message()),
             Contains("has type I64; F32, F16 and BF16 are read"));
}

}  // namespace
}  // namespace lorad::storage
