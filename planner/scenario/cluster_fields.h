// What scenarios of clusters have in common: base models with their times, workers, adapters, the
// policy. Names that a scenario gives are checked against each other where they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "planner/scenario/fields.h"
#include "planner/schedule/view.h"

namespace lorad::planner::scenario {

// Bounds under which no sum of bytes overflows.
inline constexpr int64_t kTokensMax = int64_t{1} << 20;
inline constexpr int64_t kStepTokensMax = int64_t{1} << 32;
inline constexpr double kStepSquaresMax = 1e15;
inline constexpr int64_t kStepsMax = int64_t{1} << 32;
inline constexpr int64_t kSecondsMax = int64_t{1} << 40;
inline constexpr size_t kListMax = 4096;

// "models": their shapes, and what is known of their speed.
class Models {
 public:
  // With `devices` each base model must have times on each of these, above 0.
  void Read(Fields& scenario, const std::set<std::string>* devices = nullptr);
  // Reads "base_model" of a job or a group; nullptr: a violation.
  const ModelShape* Find(Fields& fields, std::string* name) const;
  // By device, whatever was given for all of them.
  void Spread(const std::set<std::string>& devices, std::map<DeviceKey, TimeCoefficients>* times,
              std::map<DeviceKey, double>* load_s) const;

 private:
  // What is given of a base model's times: for all devices, and for each.
  struct ModelTimes {
    std::optional<TimeCoefficients> of_all;
    std::optional<double> load_s;
    std::map<std::string, TimeCoefficients> of_device;
    std::map<std::string, double> load_of_device;
  };
  void ReadModel(Fields& fields, const std::set<std::string>* devices);
  static ModelTimes ReadModelTimes(Fields& fields);

  std::set<std::string> names_;
  std::map<std::string, ModelShape> models_;
  std::map<std::string, ModelTimes> times_;
};

// Name, budget and device; `names` collects the names.
WorkerView ReadWorkerView(Fields& fields, std::set<std::string>* names);
// One rank for its targets, or `modules`: a rank and a number of layers for each projection.
AdapterShape ReadAdapter(Fields& fields);
std::vector<std::string> AllTargets();  // which an adapter has where none are named
int32_t ReadPriority(Fields& fields);
int64_t ReadStepTokens(Fields& fields);
double ReadStepSquares(Fields& fields);
int64_t ReadRemainingSteps(Fields& fields);
// Empty where it is not given.
std::string ReadName(Fields& fields, const std::string& name);
SchedulePolicy ReadPolicy(Fields& fields);

}  // namespace lorad::planner::scenario
