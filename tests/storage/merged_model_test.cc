// Merged models against the sums in float64, read whole and in pieces, in every type of weights.
#include "storage/adapters/merged_model.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "storage/adapters/module_matcher.h"
#include "storage/files/errors.h"
#include "storage/tensors/safetensors_file.h"
#include "tests/storage/temp_directory.h"

namespace lorad::storage {
namespace {

const std::string kGolden = "tests/golden/llama_gqa_untied/";

std::string Bytes(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* tensor = file.Find(name);
  return *file.Read(*tensor, 0, tensor->bytes());
}

std::vector<float> Floats(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* tensor = file.Find(name);
  REQUIRE(tensor != nullptr);
  std::vector<float> values(static_cast<size_t>(tensor->elements()));
  REQUIRE(file.ReadFloats(*tensor, values.data()).ok());
  return values;
}

// A float32 as bits of a 16-bit type, cut: the tests' weights need not be rounded well.
uint16_t Cut(TensorType type, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (type == TensorType::kBF16) return static_cast<uint16_t>(bits >> 16);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const uint32_t half = magnitude < 0x38800000 ? 0 : (magnitude - 0x38000000) >> 13;
  return static_cast<uint16_t>(((bits >> 16) & 0x8000) | half);
}

// The golden model with its weights in `type`, in two files with an index.
void WriteModel(const TempDirectory& directory, TensorType type) {
  namespace fs = std::filesystem;
  fs::create_directories(directory / "model");
  fs::copy_file(kGolden + "model/config.json", directory / "model/config.json");
  directory.Write("model/tokenizer_config.json", R"({"chat_template": "own"})");
  const auto whole = SafetensorsFile::Open(kGolden + "model/model.safetensors");
  REQUIRE(whole.ok());
  std::string index;
  for (const bool second : {false, true}) {
    const std::string name = second ? "model-2.safetensors" : "model-1.safetensors";
    std::vector<TensorEntry> entries;
    for (const TensorInfo& tensor : whole->tensors()) {
      if ((tensor.name.find("layers.1") != std::string::npos) != second) continue;
      entries.push_back({tensor.name, type, tensor.shape});
      index += (index.empty() ? "\"" : ", \"") + tensor.name + "\": \"" + name + "\"";
    }
    const SafetensorsLayout layout(entries, {{"format", "pt"}});
    std::string bytes;
    SafetensorsWriter writer(layout, [&](std::string_view piece) {
      bytes += piece;
      return absl::OkStatus();
    });
    REQUIRE(writer.Start().ok());
    for (const TensorInfo& tensor : layout.tensors()) {
      for (const float value : Floats(*whole, tensor.name)) {
        const uint16_t bits = Cut(type, value);
        const auto piece = type == TensorType::kF32
                               ? std::string_view(reinterpret_cast<const char*>(&value), 4)
                               : std::string_view(reinterpret_cast<const char*>(&bits), 2);
        REQUIRE(writer.Append(piece).ok());
      }
    }
    directory.Write("model/" + name, bytes);
  }
  directory.Write("model/model.safetensors.index.json", "{\"weight_map\": {" + index + "}}");
}

std::string FingerprintOf(const TempDirectory& directory) {
  const auto model = ModelDirectory::Open(directory / "model");
  REQUIRE(model.status().message() == "");
  return model->fingerprint();
}

absl::StatusOr<MergedModel> Merge(const TempDirectory& directory, const std::string& adapter,
                                  std::string_view chat_template = "") {
  return MergedModel::Open(directory / "model", FingerprintOf(directory), adapter, chat_template);
}

// All files of the merged model, read in pieces of `piece` bytes, into directory/merged.
void WriteMerged(const TempDirectory& directory, MergedModel& merged, uint64_t piece) {
  std::filesystem::create_directories(directory / "merged");
  for (const MergedFile& file : merged.files()) {
    std::string bytes;
    while (bytes.size() < file.size_bytes) {
      const auto next =
          merged.Read(file.name, bytes.size(), std::min(piece, file.size_bytes - bytes.size()));
      REQUIRE(next.status().message() == "");
      bytes += *next;
    }
    directory.Write("merged/" + file.name, bytes);
  }
}

// The distance from `value` to its neighbour in the type, for a bound on what one rounding may do.
double Step(TensorType type, double value) {
  const int exponent =
      std::max(std::ilogb(value == 0 ? 1e-30 : value), type == TensorType::kF16 ? -14 : -126);
  return std::ldexp(1.0, exponent - (type == TensorType::kBF16  ? 7
                                     : type == TensorType::kF16 ? 10
                                                                : 23));
}

// How many of the matrix's values are not W + s B A, rounded once to the type.
int WrongValues(const std::vector<float>& before, const std::vector<float>& after,
                const std::vector<float>& a, const std::vector<float>& b, int64_t in, double scale,
                TensorType type) {
  const auto rank = static_cast<int64_t>(a.size()) / in;
  int wrong = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(before.size()); ++i) {
    double sum = 0;
    double size = std::fabs(static_cast<double>(before[static_cast<size_t>(i)]));
    for (int64_t k = 0; k < rank; ++k) {
      const double product = static_cast<double>(b[static_cast<size_t>(i / in * rank + k)]) *
                             static_cast<double>(a[static_cast<size_t>(k * in + i % in)]);
      sum += product;
      size += std::fabs(scale * product);
    }
    const double exact = before[static_cast<size_t>(i)] + scale * sum;
    const double error = std::fabs(after[static_cast<size_t>(i)] - exact);
    wrong += error > 0.5 * Step(type, exact) + 1e-6 * size;
  }
  return wrong;
}

TEST_CASE("Weights with an adapter in them") {
  for (const TensorType type : {TensorType::kF32, TensorType::kBF16, TensorType::kF16}) {
    for (const std::string run : {"r8_all", "r4_qv_rslora"}) {
      INFO(TensorTypeName(type) << " " << run);
      const TempDirectory directory;
      WriteModel(directory, type);
      auto merged = Merge(directory, kGolden + run + "/final");
      REQUIRE(merged.status().message() == "");
      WriteMerged(directory, *merged, 1 << 20);

      const auto adapter = PeftAdapter::Open(kGolden + run + "/final");
      REQUIRE(adapter.ok());
      const auto matrices =
          SafetensorsFile::Open(kGolden + run + "/final/adapter_model.safetensors");
      const auto base = ModelDirectory::Open(directory / "model");
      const auto result = ModelDirectory::Open(directory / "merged");
      REQUIRE(result.status().message() == "");
      std::map<std::string, std::pair<std::string, int64_t>> changed;  // tensor: module, in
      for (const Block& block : base->description().blocks) {
        for (const LinearGroup* group : {&block.in, &block.out}) {
          for (const LinearPart& part : group->parts) {
            const std::string& path = part.path;
            if (matrices->Find(PeftKey(path, 'A')) == nullptr) continue;
            changed[part.tensor] = {path, group->in_features};
          }
        }
      }
      CHECK(changed.size() == (run == "r8_all" ? 21 : 6));
      for (size_t i = 0; i < 2; ++i) {
        const SafetensorsFile& before = base->weight_files()[i];
        const SafetensorsFile& after = result->weight_files()[i];
        CHECK(before.file_bytes() == after.file_bytes());
        for (const TensorInfo& tensor : before.tensors()) {
          const bool same = Bytes(before, tensor.name) == Bytes(after, tensor.name);
          const auto found = changed.find(tensor.name);
          CHECK(same == (found == changed.end()));
          if (found == changed.end()) continue;
          const auto& [path, in] = found->second;
          INFO(tensor.name);
          CHECK(WrongValues(Floats(before, tensor.name), Floats(after, tensor.name),
                            Floats(*matrices, PeftKey(path, 'A')),
                            Floats(*matrices, PeftKey(path, 'B')), in,
                            LoraScale(adapter->config().alpha, adapter->config().rank,
                                      adapter->config().rslora),
                            type) == 0);
        }
      }
    }
  }
}

// Every family's small model with the adapter that PEFT trained on it: all its matrices, and no
// other tensor, change, also where the file has names of an older order (towers), fused projections
// (Phi-3), or a rank and alpha for each module (patterns).
TEST_CASE("Weights of every family with an adapter in them") {
  const std::pair<std::string, int> runs[] = {
      {"gemma/r4_all", 21},          {"gemma2/r4_all", 21},   {"gemma3/r4_all", 28},
      {"gemma3_tower/r4_all", 28},   {"granite/r4_all", 21},  {"mistral3_tower/r4_all", 21},
      {"mistral_window/r4_all", 21}, {"olmo2/r4_all", 21},    {"olmo3/r4_all", 21},
      {"phi3/r4_all", 12},           {"phi3/all_linear", 10}, {"qwen2_bias_tied/r16_attn", 12},
      {"qwen3/r4_all", 21},          {"qwen3/patterns", 0},   {"qwen3/regex", 0},
      {"qwen3_yarn/r4_all", 21},     {"smollm3/r4_all", 21}};
  for (const auto& [run, matrices_expected] : runs) {
    INFO(run);
    const TempDirectory directory;
    const std::string model = "tests/golden/" + run.substr(0, run.find('/')) + "/model";
    const std::string path = "tests/golden/" + run + "/final";
    const auto base = ModelDirectory::Open(model);
    REQUIRE(base.status().message() == "");
    auto merged = MergedModel::Open(model, base->fingerprint(), path, "");
    REQUIRE(merged.status().message() == "");
    WriteMerged(directory, *merged, 1 << 20);
    const auto result = ModelDirectory::Open(directory / "merged");
    REQUIRE(result.status().message() == "");
    const auto adapter = PeftAdapter::Open(path);
    REQUIRE(adapter.ok());
    const auto matrices = SafetensorsFile::Open(path + "/adapter_model.safetensors");
    std::set<std::string> changed;
    for (const Block& block : base->description().blocks) {
      for (const LinearGroup* group : {&block.in, &block.out}) {
        for (const LinearPart& part : group->parts) {
          const TensorInfo* a = matrices->Find(PeftKey(part.path, 'A'));
          if (a == nullptr) continue;
          INFO(part.tensor);
          const auto lora = ModuleMatcher(adapter->config()).Match(part.path);
          REQUIRE(lora.has_value());
          REQUIRE(a->shape[0] == lora->rank);
          const TensorInfo* tensor = base->Find(part.tensor).second;
          changed.insert(tensor->name);
          const SafetensorsFile& before = base->weight_files()[0];
          const SafetensorsFile& after = result->weight_files()[0];
          CHECK(WrongValues(Floats(before, tensor->name), Floats(after, tensor->name),
                            Floats(*matrices, PeftKey(part.path, 'A')),
                            Floats(*matrices, PeftKey(part.path, 'B')), group->in_features,
                            LoraScale(lora->alpha, lora->rank, adapter->config().rslora),
                            tensor->type) == 0);
        }
      }
    }
    CHECK(2 * changed.size() == matrices->tensors().size());
    if (matrices_expected != 0) CHECK(changed.size() == static_cast<size_t>(matrices_expected));
    for (const TensorInfo& tensor : base->weight_files()[0].tensors()) {
      INFO(tensor.name);
      CHECK((Bytes(base->weight_files()[0], tensor.name) ==
             Bytes(result->weight_files()[0], tensor.name)) == !changed.contains(tensor.name));
    }
  }
}

TEST_CASE("Pieces of any size are those of the whole") {
  for (const TensorType type : {TensorType::kF32, TensorType::kBF16}) {
    const TempDirectory directory;
    WriteModel(directory, type);
    auto merged = Merge(directory, kGolden + "r8_all/final");
    REQUIRE(merged.ok());
    const MergedFile file = merged->files()[1];
    const auto whole = merged->Read(file.name, 0, file.size_bytes);
    REQUIRE(whole.ok());
    for (const uint64_t piece : {uint64_t{1}, uint64_t{3}, uint64_t{257}, uint64_t{65537}}) {
      const uint64_t begin = piece == 1 ? file.size_bytes / 2 : 0;
      const uint64_t end = piece < 100 ? std::min(begin + 5000, file.size_bytes) : file.size_bytes;
      for (uint64_t at = begin; at < end; at += piece) {
        const uint64_t length = std::min(piece, file.size_bytes - at);
        const auto bytes = merged->Read(file.name, at, length);
        REQUIRE(bytes.ok());
        REQUIRE(*bytes == whole->substr(at, length));
      }
    }
  }
}

TEST_CASE("What goes along, and the template that is given") {
  const TempDirectory directory;
  WriteModel(directory, TensorType::kBF16);
  directory.Write("model/notes.txt", "not ours");
  const auto names = [](const MergedModel& merged) {
    std::string all;
    for (const MergedFile& file : merged.files()) all += file.name + " ";
    return all;
  };
  auto own = Merge(directory, kGolden + "r8_all/final");
  REQUIRE(own.ok());
  CHECK(names(*own) ==
        "model-1.safetensors model-2.safetensors config.json tokenizer_config.json "
        "model.safetensors.index.json ");
  CHECK(*own->Read("config.json", 0, 1) == "{");
  auto given = Merge(directory, kGolden + "r8_all/final", "{{ given }}");
  REQUIRE(given.ok());
  CHECK(names(*given) ==
        "model-1.safetensors model-2.safetensors config.json tokenizer_config.json "
        "chat_template.jinja model.safetensors.index.json ");
  CHECK(*given->Read("chat_template.jinja", 3, 5) == "given");
}

TEST_CASE("A base that is another, or has no files, is not merged into") {
  const auto reason = [](const absl::Status& status) {
    const auto payload = status.GetPayload(Absl(kReasonPayload));
    return payload.has_value() ? std::string(*payload) : std::string(status.message());
  };
  const TempDirectory directory;
  WriteModel(directory, TensorType::kF32);
  const std::string fingerprint = FingerprintOf(directory);
  auto merged = MergedModel::Open(directory / "model", fingerprint, kGolden + "r8_all/final", "");
  REQUIRE(merged.ok());
  const std::string adapter = kGolden + "r8_all/final";
  CHECK(reason(MergedModel::Open(directory / "model", "other", adapter, "").status()) ==
        "MODEL_CHANGED");
  CHECK_FALSE(MergedModel::Open(directory / "model", fingerprint, directory / "none", "").ok());
  // Cut off under a merge that is under way.
  std::filesystem::resize_file(directory / "model/config.json", 10);
  const MergedFile& config = merged->files()[2];
  CHECK(reason(merged->Read(config.name, 0, config.size_bytes).status()) == "MODEL_CHANGED");

  const TempDirectory random;
  std::filesystem::create_directories(random / "model");
  std::filesystem::copy_file(kGolden + "model/config.json", random / "model/config.json");
  random.Write("model/random_weights.json", R"({"seed": 1})");
  CHECK(reason(Merge(random, adapter).status()) == "MODEL_UNSUPPORTED");
}

}  // namespace
}  // namespace lorad::storage
