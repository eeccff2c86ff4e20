#include "tests/golden/golden_run.h"

#include <cmath>
#include <set>
#include <stdexcept>
#include <vector>

#include "storage/adapters/peft.h"
#include "storage/models/model_description.h"
#include "storage/tensors/safetensors_file.h"

namespace lorad::worker {
namespace {

// The last names of the modules whose matrices an adapter directory has.
std::set<std::string> TrainedModules(const std::string& directory) {
  const auto file = storage::SafetensorsFile::Open(directory + "/adapter_model.safetensors");
  if (!file.ok()) throw std::runtime_error(std::string(file.status().message()));
  std::set<std::string> modules;
  for (const storage::TensorInfo& tensor : file->tensors()) {
    const size_t end = tensor.name.find(".lora_");
    const size_t begin = tensor.name.rfind('.', end - 1) + 1;
    modules.insert(tensor.name.substr(begin, end - begin));
  }
  return modules;
}

// What the config of the run means on its model, module by module.
void AddPatterns(const std::string& folder, v1::SlotSpec* spec) {
  const auto config = storage::ParsePeftConfig(ReadFile(folder + "/init/adapter_config.json"));
  const auto model = storage::DescribeModel(ReadFile(folder + "/../model/config.json"));
  if (!config.ok()) throw std::runtime_error(std::string(config.status().message()));
  if (!model.ok()) throw std::runtime_error(std::string(model.status().message()));
  for (const storage::TargetModule& module : storage::ResolveTargets(*config, *model).modules) {
    v1::SlotSpec::Modules& modules = *spec->add_modules();
    modules.set_target(module.target);
    modules.add_layers(module.layer);
    modules.set_rank(module.rank);
    modules.set_scale(storage::LoraScale(module.alpha, module.rank, config->rslora));
  }
}

}  // namespace

GoldenJob ReadGoldenJob(const std::string& run) {
  GoldenJob golden;
  golden.folder = kGoldenFolder + run;
  golden.expected = nlohmann::json::parse(ReadFile(golden.folder + "/expected.json"));
  const nlohmann::json& hyper = golden.expected.at("hyper");
  const auto config = nlohmann::json::parse(ReadFile(golden.folder + "/init/adapter_config.json"));
  TestJob& job = golden.job;
  job.spec.set_job(run);
  const int rank = config.at("r");
  const double alpha = config.at("lora_alpha");
  job.spec.set_rank(rank);
  job.spec.set_scale(alpha / (config.at("use_rslora") ? std::sqrt(rank) : rank));
  for (const std::string& target : TrainedModules(golden.folder + "/init")) {
    job.spec.add_target_modules(target);
  }
  if (golden.expected.contains("peft")) AddPatterns(golden.folder, &job.spec);
  job.spec.set_beta1(hyper.at("beta1"));
  job.spec.set_beta2(hyper.at("beta2"));
  job.spec.set_eps(hyper.at("eps"));
  job.spec.set_weight_decay(hyper.at("weight_decay"));
  job.spec.set_max_grad_norm(hyper.at("max_grad_norm"));
  job.spec.set_loraplus_lr_ratio(hyper.value("loraplus_lr_ratio", 1.0));
  job.content = run;
  job.rows = ReadTokenRows(golden.folder + "/train.jsonl");
  job.batch = hyper.at("batch_size");
  // The schedules are the planner's to test.
  const auto rates = golden.expected.at("lr").get<std::vector<double>>();
  job.learning_rate = [rates](int64_t t) { return rates.at(t); };
  return golden;
}

}  // namespace lorad::worker
